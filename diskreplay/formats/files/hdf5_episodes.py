"""HDF5 files with arrays of their own for every episode, written while the steps come.

An episode's length is known at its end. Until then an array waits in RAM as long as it is shorter than a chunk; what
grows beyond that becomes an array that can be extended. Whole episodes that wait are written as one chunk, or without
chunks where those would take more than they save.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay.formats.files import hdf5_writer
from diskreplay.formats.files.hdf5_writer import filters

SMALL_BYTES = 1 << 13
"""Arrays up to this size are not chunked: the index of chunks takes some kB of its own."""

Array = NDArray[Any]


class _Column:
    """One array of the episode at hand."""

    def __init__(self, file: h5py.File, key: str, compression: str, compressor: hdf5_writer.Compressor) -> None:
        self._file, self._key, self._compression, self._compressor = file, key, compression, compressor
        self._parts: list[Array] = []
        self._waiting = 0
        self._data: h5py.Dataset | None = None
        self._end = 0

    def append(self, values: Array) -> None:
        self._parts.append(values)
        self._waiting += len(values)
        rows = max(1, min(hdf5_writer.CHUNK_BYTES // _item_bytes(values), hdf5_writer.MAX_CHUNK_ROWS))
        if self._waiting > rows:
            waiting = self._taken()
            if self._data is None:
                self._data = self._create(
                    (0, *values.shape[1:]), values.dtype, rows, maxshape=(None, *values.shape[1:])
                )
            whole = len(waiting) // rows * rows
            for start in range(0, whole, rows):
                self._write(waiting[start : start + rows])
            self._parts, self._waiting = [waiting[whole:].copy()], len(waiting) - whole

    def finish(self) -> None:
        values = self._taken()
        if self._data is not None:
            if len(values):
                self._write(values)
        elif self._compression == "none" or values.nbytes <= SMALL_BYTES:
            self._file.create_dataset(self._key, data=values)
        else:
            self._data = self._create(values.shape, values.dtype, len(values))
            self._write(values)

    def _taken(self) -> Array:
        """All that waits."""
        return np.ascontiguousarray(self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts))

    def _create(self, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int, **more: Any) -> h5py.Dataset:
        return self._file.create_dataset(
            self._key, shape, dtype, chunks=(rows, *shape[1:]), **filters(self._compression, dtype), **more
        )

    def _write(self, values: Array) -> None:
        """A chunk; a shorter one only at the end."""
        data = self._data
        assert data is not None
        if data.shape[0] < self._end + len(values):
            data.resize(self._end + len(values), 0)
        if self._compression == "gzip":
            chunk = values
            if len(values) < data.chunks[0]:
                chunk = np.zeros(data.chunks, values.dtype)
                chunk[: len(values)] = values
            self._compressor.put(data, (self._end, *(0 for _ in values.shape[1:])), chunk)
        else:
            data[self._end : self._end + len(values)] = values
            self._compressor.check()
        self._end += len(values)


class EpisodesFile(hdf5_writer.NewFile):
    """A file that takes one episode after another."""

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        super().__init__(path, compression)
        self._columns: dict[str, _Column] = {}

    def append(self, key: str, values: Array) -> None:
        """Takes entries ``(n, *shape)`` of an array of the episode at hand; its groups are made on the way."""
        if key not in self._columns:
            self._columns[key] = _Column(self.file, key, self._compression, self._compressor)
        self._columns[key].append(values)

    def end_episode(self) -> None:
        """No more comes for the arrays so far."""
        for column in self._columns.values():
            column.finish()
        self._columns = {}
        self._compressor.check()


def _item_bytes(values: Array) -> int:
    return math.prod(values.shape[1:]) * values.dtype.itemsize
