"""HDF5 files that are written a few MB at a time.

Chunks are shuffled and compressed here, several at a time in threads, and handed to HDF5 as they are to stand in the
file (``H5Dwrite_chunk``). The file is the same as HDF5's own filters write, which do one chunk after another.
"""

from __future__ import annotations

import contextlib
import functools
import math
import pathlib
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay import workers
from diskreplay.formats.files.hdf5 import open_file
from diskreplay.formats.files.hdf5_output import Output
from diskreplay.workers import THREADS, Task

CHUNK_BYTES = 1 << 20
"""The number of decoded bytes of an HDF5 chunk: h5py advises no more, and its chunk cache holds as much."""
MAX_CHUNK_ROWS = 1 << 14
GZIP_LEVEL = 4
"""h5py's own default."""
COMPRESSIONS = ("gzip", "lzf", "none")
SMALL_BYTES = 1 << 13
"""The largest size of an array that is not chunked: an index of chunks takes some kB of its own."""

Array = NDArray[Any]


def filters(compression: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the arguments of h5py's ``create_dataset`` for one of ``COMPRESSIONS``."""
    if compression == "none":
        return {}
    level = {"compression_opts": GZIP_LEVEL} if compression == "gzip" else {}
    return {"compression": compression, "shuffle": dtype.itemsize > 1, **level}


class Compressor:
    """Chunks on their way through the threads into one file, shared by all its columns.

    Args:
        check: raises the error of the file, if it could not be written.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.check = check
        self._waiting: deque[tuple[h5py.Dataset, tuple[int, ...], Task[bytes]]] = deque()

    def put(self, data: h5py.Dataset, offset: tuple[int, ...], chunk: Array) -> None:
        """Compress a whole chunk and write it, now or later; the chunk must not change any more."""
        self._waiting.append((data, offset, workers.submit(functools.partial(_gzip, chunk))))
        while len(self._waiting) > 2 * THREADS:
            self._write()

    def _write(self) -> None:
        data, offset, chunk = self._waiting.popleft()
        data.id.write_direct_chunk(offset, chunk.result())
        self.check()

    def finish(self) -> None:
        """Write what waits."""
        while self._waiting:
            self._write()


def _gzip(chunk: Array) -> bytes:
    if chunk.itemsize > 1:  # HDF5's shuffle filter: first bytes first
        chunk = np.ascontiguousarray(chunk.reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize).T)
    return zlib.compress(chunk.data, GZIP_LEVEL)


class Hdf5ArrayWriter:
    """One HDF5 array that is filled from its first entry to its last, a whole chunk at a time.

    Where its length is not known before, it waits in RAM as long as it is no longer than a chunk.

    Args:
        group: the group that takes the array.
        key: its name there.
        compression: one of ``COMPRESSIONS``.
        compressor: the compressor of the file; it takes the chunks if that is "gzip".
    """

    def __init__(self, group: h5py.Group, key: str, compression: str, compressor: Compressor) -> None:
        self._group, self._key, self._compression, self._compressor = group, key, compression, compressor
        self._parts: list[Array] = []
        self._waiting = 0
        self._data: h5py.Dataset | None = None
        self._end = 0

    def reserve(self, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Make the array at once, for ``count`` entries of a shape and dtype."""
        if count:
            self._create((count, *shape), dtype, _chunk_rows(math.prod(shape) * dtype.itemsize, count))
        else:  # it has no chunks
            self._data = self._group.create_dataset(self._key, (0, *shape), dtype)

    def append(self, values: Array) -> None:
        """Take values ``(n, *shape)``."""
        self._parts.append(values)
        self._waiting += len(values)
        shape = values.shape[1:]
        rows = _chunk_rows(math.prod(shape) * values.dtype.itemsize) if self._data is None else self._data.chunks[0]
        if self._waiting > rows:
            waiting = self._taken()
            if self._data is None:
                self._create((0, *shape), values.dtype, rows, maxshape=(None, *shape))
            whole = len(waiting) // rows * rows
            for start in range(0, whole, rows):
                self._write(waiting[start : start + rows])
            self._parts, self._waiting = [waiting[whole:].copy()], len(waiting) - whole

    def finish(self) -> None:
        """Write the rest."""
        values = self._taken() if self._parts else None
        if values is None or (self._data is not None and not len(values)):
            return
        if self._data is None:
            if self._compression == "none" or values.nbytes <= SMALL_BYTES:
                self._group.create_dataset(self._key, data=values)
                return
            self._create(values.shape, values.dtype, len(values))
        self._write(values)

    def _taken(self) -> Array:
        """Return all that waits."""
        return np.ascontiguousarray(self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts))

    def _create(self, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int, **more: Any) -> None:
        self._data = self._group.create_dataset(
            self._key, shape, dtype, chunks=(rows, *shape[1:]), **filters(self._compression, dtype), **more
        )

    def _write(self, values: Array) -> None:
        """Write a chunk, a shorter one only at the end."""
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


def _chunk_rows(item_bytes: int, most: int = MAX_CHUNK_ROWS) -> int:
    return max(1, min(CHUNK_BYTES // item_bytes, MAX_CHUNK_ROWS, most))


class NewFile:
    """An HDF5 file to be written; a context manager.

    Args:
        path: the path of the file, where nothing may be yet.
        compression: one of ``COMPRESSIONS``.

    Raises the OSError of the first write that fails, soon after it and at the end at the latest.
    """

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        self._output = Output(path)
        self.file = open_file(self._output, "w")
        self._compression = compression
        self._compressor = Compressor(self._output.check)

    def finish(self) -> None:
        """Write what waits."""
        self._compressor.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        with self._output:
            with contextlib.closing(self.file):
                if kind is None:
                    self.finish()
            if kind is None:
                self._output.check()


class FileWriter(NewFile):
    """A file that is filled column by column as blocks come."""

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        super().__init__(path, compression)
        self.columns: dict[str, Hdf5ArrayWriter] = {}

    def add(self, key: str, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Hdf5ArrayWriter:
        """Return a new array of ``count`` entries, filled by ``append``, and make its groups."""
        column = self.columns[key] = Hdf5ArrayWriter(self.file, key, self._compression, self._compressor)
        column.reserve(count, shape, dtype)
        return column

    def finish(self) -> None:
        for column in self.columns.values():
            column.finish()
        super().finish()


class EpisodesFile(NewFile):
    """A file that takes one episode after another, each with arrays of its own, while the steps come.

    An episode's length is known at its end. Until then an array waits in RAM as long as it is shorter than a chunk;
    what grows beyond that becomes an array that can be extended. Whole episodes that wait are written as one chunk, or
    without chunks where those would take more than they save.
    """

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        super().__init__(path, compression)
        self._columns: dict[str, Hdf5ArrayWriter] = {}

    def append(self, key: str, values: Array) -> None:
        """Take entries ``(n, *shape)`` of an array of the current episode; its groups are made on the way."""
        if key not in self._columns:
            self._columns[key] = Hdf5ArrayWriter(self.file, key, self._compression, self._compressor)
        self._columns[key].append(values)

    def end_episode(self) -> None:
        """No more comes for the arrays so far."""
        for column in self._columns.values():
            column.finish()
        self._columns = {}
        self._compressor.check()
