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

from diskreplay.formats.files.hdf5 import open_file
from diskreplay.formats.files.hdf5_output import Output
from diskreplay.storage.encoders import THREADS, Encoders, Task

CHUNK_BYTES = 1 << 20
"""Decoded bytes of an HDF5 chunk: what h5py advises as the most, and what its chunk cache holds."""
MAX_CHUNK_ROWS = 1 << 14
GZIP_LEVEL = 4
"""h5py's own default."""
COMPRESSIONS = ("gzip", "lzf", "none")

Array = NDArray[Any]


def filters(compression: str, dtype: np.dtype[Any]) -> dict[str, Any]:
    """What h5py's ``create_dataset`` is to be called with for one of ``COMPRESSIONS``."""
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
        """Compresses a whole chunk and writes it, now or later; the chunk must not change any more."""
        self._waiting.append((data, offset, Encoders.submit(functools.partial(_gzip, chunk))))
        while len(self._waiting) > 2 * THREADS:
            self._write()

    def _write(self) -> None:
        data, offset, chunk = self._waiting.popleft()
        data.id.write_direct_chunk(offset, chunk.result())
        self.check()

    def finish(self) -> None:
        """Writes what waits."""
        while self._waiting:
            self._write()


def _gzip(chunk: Array) -> bytes:
    if chunk.itemsize > 1:  # HDF5's shuffle filter: first bytes first
        chunk = np.ascontiguousarray(chunk.reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize).T)
    return zlib.compress(chunk.data, GZIP_LEVEL)


class Hdf5ArrayWriter:
    """One HDF5 array that is filled from its first entry to its last, a whole chunk at a time.

    Args:
        group: that takes it.
        key: its name there.
        count, shape, dtype: entries, and what one of them is.
        compression: one of ``COMPRESSIONS``.
        compressor: of the file; takes the chunks if that is "gzip".
    """

    def __init__(
        self, group: h5py.Group, key: str, count: int, shape: tuple[int, ...], dtype: np.dtype[Any], compression: str,
        compressor: Compressor,
    ) -> None:  # fmt: skip
        item = math.prod(shape) * dtype.itemsize
        self.chunk_rows = max(1, min(CHUNK_BYTES // item, MAX_CHUNK_ROWS, count))
        # An array without entries has no chunks.
        options = {"chunks": (self.chunk_rows, *shape), **filters(compression, dtype)} if count else {}
        self._data = group.create_dataset(key, (count, *shape), dtype, **options)
        self._compressed = compression == "gzip"
        self._compressor = compressor
        self._chunk = np.zeros((self.chunk_rows, *shape), dtype)
        self._filled = 0
        self._end = 0

    def append(self, values: Array) -> None:
        """Takes ``(n, *shape)``."""
        done = 0
        while done < len(values):
            taken = min(self.chunk_rows - self._filled, len(values) - done)
            self._chunk[self._filled : self._filled + taken] = values[done : done + taken]
            self._filled += taken
            done += taken
            if self._filled == self.chunk_rows:
                self._write()

    def _write(self) -> None:
        if self._compressed:
            self._compressor.put(self._data, (self._end, *(0 for _ in self._chunk.shape[1:])), self._chunk)
            self._chunk = np.zeros_like(self._chunk)
        else:
            self._data[self._end : self._end + self._filled] = self._chunk[: self._filled]
            self._compressor.check()
        self._end += self._filled
        self._filled = 0

    def finish(self) -> None:
        """Writes the rest."""
        if self._filled:
            self._write()


class NewFile:
    """An HDF5 file to be written; a context manager.

    Args:
        path: where nothing is yet.
        compression: one of ``COMPRESSIONS``.

    Raises the OSError of the first write that fails, soon after it and at the end at the latest.
    """

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        self._output = Output(path)
        self.file = open_file(self._output, "w")
        self._compression = compression
        self._compressor = Compressor(self._output.check)

    def finish(self) -> None:
        """Writes what waits."""
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
        """A new array of ``count`` entries, filled by ``append``; its groups are made on the way."""
        column = Hdf5ArrayWriter(self.file, key, count, shape, dtype, self._compression, self._compressor)
        self.columns[key] = column
        return column

    def finish(self) -> None:
        for column in self.columns.values():
            column.finish()
        super().finish()
