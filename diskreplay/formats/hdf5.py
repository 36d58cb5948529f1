"""HDF5 files as formats need them: opened with clear errors, written and read a few MB at a time.

Chunks are compressed and shuffled here, several at a time in threads, and handed to HDF5 as they are to stand in the
file (``H5Dwrite_chunk``); reading goes the same way back. HDF5's own filters do one chunk after another, under Python's
lock. The file is the same as theirs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pathlib
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import DiskReplayError, InputError
from diskreplay.formats.layout import Layout

CHUNK_BYTES = 1 << 20
"""Decoded bytes of an HDF5 chunk: what h5py advises as the most, and what its chunk cache holds."""
MAX_CHUNK_ROWS = 1 << 14
GZIP_LEVEL = 4
"""h5py's own default."""
MAGIC = b"\x89HDF\r\n\x1a\n"
COMPRESSIONS = ("gzip", "lzf", "none")
WORKERS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
DEFLATE, SHUFFLE = 1, 2
"""HDF5's numbers of these filters."""
METADATA_BYTES = 1 << 20
"""Of the file's own structure that HDF5 keeps, several times as much in RAM. It would go up to 32 MB by itself, where a
file of many episodes is walked through once."""

Array = NDArray[Any]


def open_file(path: pathlib.Path, mode: str) -> h5py.File:
    """The file, with a metadata cache that stays small."""
    file = h5py.File(path, mode)
    cache = file.id.get_mdc_config()
    cache.set_initial_size = True
    cache.initial_size = cache.min_size = cache.max_size = METADATA_BYTES
    file.id.set_mdc_config(cache)
    return file


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[h5py.File]:
    """The file, to be read; InputError when it is none, or when HDF5 finds it damaged while it is read."""
    if not is_hdf5(path):
        raise InputError(f"{str(path)!r} is no HDF5 file")
    try:
        with open_file(path, "r") as file:
            yield file
    except DiskReplayError:
        raise
    except (OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{str(path)!r} is damaged: {error}") from error


def is_hdf5(path: pathlib.Path) -> bool:
    """Whether a file begins as HDF5 does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Shared by all files: zlib works without Python's lock."""
    return ThreadPoolExecutor(WORKERS, "diskreplay-zlib")


class Compressor:
    """Chunks on their way through the threads into one file, shared by all its columns."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[h5py.Dataset, tuple[int, ...], Future[bytes]]] = deque()

    def put(self, data: h5py.Dataset, offset: tuple[int, ...], chunk: Array) -> None:
        """Compresses a whole chunk and writes it, now or later; the chunk must not change any more."""
        self._waiting.append((data, offset, _threads().submit(_gzip, chunk)))
        while len(self._waiting) > 2 * WORKERS:
            self._write()

    def _write(self) -> None:
        data, offset, chunk = self._waiting.popleft()
        data.id.write_direct_chunk(offset, chunk.result())

    def finish(self) -> None:
        """Writes what waits."""
        while self._waiting:
            self._write()


def _gzip(chunk: Array) -> bytes:
    if chunk.itemsize > 1:  # HDF5's shuffle filter: first bytes first
        chunk = np.ascontiguousarray(chunk.reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize).T)
    return zlib.compress(chunk.data, GZIP_LEVEL)


class ColumnWriter:
    """One HDF5 array that is filled from its first entry to its last, a whole chunk at a time.

    Args:
        group: that takes it.
        key: its name there.
        count, shape, dtype: entries, and what one of them is.
        compression: one of ``COMPRESSIONS``.
        compressor: for "gzip".
    """

    def __init__(
        self, group: h5py.Group, key: str, count: int, shape: tuple[int, ...], dtype: np.dtype[Any],
        compression: str = "gzip", compressor: Compressor | None = None,
    ) -> None:  # fmt: skip
        item = math.prod(shape) * dtype.itemsize
        self.chunk_rows = max(1, min(CHUNK_BYTES // item, MAX_CHUNK_ROWS, count))
        filters: dict[str, Any] = {}
        if count:  # an array without entries has no chunks
            filters["chunks"] = (self.chunk_rows, *shape)
            if compression != "none":
                filters |= {"compression": compression, "shuffle": dtype.itemsize > 1}
            if compression == "gzip":
                filters["compression_opts"] = GZIP_LEVEL
        self._data = group.create_dataset(key, (count, *shape), dtype, **filters)
        self._compressor = compressor if compression == "gzip" else None
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
        if self._compressor is None:
            self._data[self._end : self._end + self._filled] = self._chunk[: self._filled]
        else:
            self._compressor.put(self._data, (self._end, *(0 for _ in self._chunk.shape[1:])), self._chunk)
            self._chunk = np.zeros_like(self._chunk)
        self._end += self._filled
        self._filled = 0

    def finish(self) -> None:
        """Writes the rest."""
        if self._filled:
            self._write()


class FileWriter:
    """An HDF5 file to be written, column by column as blocks come; a context manager."""

    def __init__(self, path: pathlib.Path, compression: str) -> None:
        self.file = open_file(path, "w")
        self._compression = compression
        self._compressor = Compressor()
        self.columns: dict[str, ColumnWriter] = {}

    def add(self, key: str, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ColumnWriter:
        """A new array of ``count`` entries, filled by ``append``; its groups are made on the way."""
        column = ColumnWriter(self.file, key, count, shape, dtype, self._compression, self._compressor)
        self.columns[key] = column
        return column

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        try:
            if kind is None:
                for column in self.columns.values():
                    column.finish()
                self._compressor.finish()
        finally:
            self.file.close()


class GzipArray:
    """An array of gzip chunks that is read some entries at a time, its chunks decompressed side by side."""

    def __init__(self, data: h5py.Dataset, shuffled: bool) -> None:
        self._data = data
        self._shuffled = shuffled and data.dtype.itemsize > 1
        self.shape: tuple[int, ...] = data.shape
        self.dtype: np.dtype[Any] = data.dtype
        self.chunks: tuple[int, ...] = data.chunks
        self._last: tuple[int, Array] | None = None
        """Number and values of the chunk read last: the next entries may begin in it."""

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        size = self.chunks[0]
        numbers = range(start // size, -(-stop // size)) if stop > start else range(0)
        chunks: list[Array | Future[Array]] = []
        for number in numbers:
            if self._last is not None and self._last[0] == number:
                chunks.append(self._last[1])
            else:
                chunks.append(self._chunk(number))
        out = np.empty((max(0, stop - start), *self.shape[1:]), self.dtype)
        for number, chunk in zip(numbers, chunks, strict=True):
            values = chunk.result() if isinstance(chunk, Future) else chunk
            low, high = max(start, number * size), min(stop, (number + 1) * size)
            out[low - start : high - start] = values[low - number * size : high - number * size]
            self._last = number, values
        return out

    def _chunk(self, number: int) -> Array | Future[Array]:
        first = number * self.chunks[0]
        offset = first, *(0 for _ in self.shape[1:])
        if self._data.id.get_chunk_info_by_coord(offset).byte_offset is None:  # never written
            return np.full(self.chunks, self._data.fillvalue, self.dtype)
        left_out, data = self._data.id.read_direct_chunk(offset)
        if left_out:  # filters that did not do this chunk any good
            return np.asarray(self._data[first : first + self.chunks[0]])
        where = f"{self._data.file.filename}: {self._data.name}"
        return _threads().submit(_gunzip, data, self.chunks, self.dtype, self._shuffled, where)


def _gunzip(data: bytes, shape: tuple[int, ...], dtype: np.dtype[Any], shuffled: bool, where: str) -> Array:
    size = math.prod(shape) * dtype.itemsize
    try:
        found = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise InputError(f"{where} is damaged: {error}") from error
    if len(found) != size:
        raise InputError(f"{where} is damaged: a chunk has {len(found)} bytes, where {size} are needed")
    if shuffled:
        found = np.frombuffer(found, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    return np.frombuffer(found, dtype).reshape(shape)


def array(data: h5py.Dataset) -> h5py.Dataset | GzipArray:
    """The same values, read in the fastest way there is."""
    if not data.shape or data.chunks is None or data.chunks[1:] != data.shape[1:] or data.dtype.kind not in "biuf":
        return data
    plan = data.id.get_create_plist()
    filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    return GzipArray(data, SHUFFLE in filters) if filters in ([DEFLATE], [SHUFFLE, DEFLATE]) else data


def dataset(group: h5py.Group, key: str, where: str) -> h5py.Dataset:
    """The array ``key``; InputError where there is none."""
    found = group.get(key)
    if not isinstance(found, h5py.Dataset):
        raise InputError(f"{where}: the array {key!r} is missing")
    return found


def datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """All arrays below a group, by path."""
    found: dict[str, h5py.Dataset] = {}
    group.visititems(lambda path, node: found.update({path: node}) if isinstance(node, h5py.Dataset) else None)
    return found


def write_layout(group: h5py.Group, key: str, layout: Layout) -> None:
    """Keeps a layout as JSON in a dataset: attributes may have 64 KB at most."""
    group[key] = json.dumps(layout.to_json())


def read_layout(group: h5py.Group, key: str, where: str) -> Layout | None:
    """What :func:`write_layout` kept; None where there is nothing."""
    found = group.get(key)
    return Layout.from_json(found[()], where) if isinstance(found, h5py.Dataset) else None
