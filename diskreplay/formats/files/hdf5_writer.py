"""HDF5 files that are written a few MB at a time; several chunks are compressed at once, just as HDF5 would do it."""

from __future__ import annotations

import contextlib
import pathlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import numpy as np

from diskreplay.checks import Array
from diskreplay.formats.core.container import ATTRIBUTES, ChunkedOutput
from diskreplay.formats.files.hdf5 import open_file
from diskreplay.formats.files.hdf5_output import Output
from diskreplay.process.background import side_by_side

GZIP_LEVEL = 4
"""h5py's own default."""
COMPRESSIONS = ("gzip", "lzf", "none")
SMALL_BYTES = 1 << 13
"""The largest size of an array that is not chunked: an index of chunks takes some kB of its own."""


class Hdf5Writer(ChunkedOutput):
    """A file to be written.

    Args:
        file: the file.
        compression: one of :data:`COMPRESSIONS`.
        check: raises the error of the file, if it could not be written.
    """

    def __init__(self, file: h5py.File, compression: str, check: Callable[[], None]) -> None:
        super().__init__()
        self.file, self._compression, self._check = file, compression, check
        self._growing: dict[str, h5py.Dataset] = {}

    def put(self, name: str, value: Any) -> None:
        """Write an array, a single value, or an attribute."""
        path, attribute_of, key = name.rpartition(ATTRIBUTES)
        if attribute_of:
            (self.file.require_group(path) if path else self.file).attrs[key] = value
        else:
            self.file[name] = value

    def grow(self, name: str, values: Array, rows: int) -> None:
        shape = values.shape[1:]
        if name not in self._growing:
            self._growing[name] = self.file.create_dataset(
                name, (0, *shape), maxshape=(None, *shape), chunks=(rows, *shape), **self._stored(values.dtype)
            )
        data = self._growing[name]
        done = len(data)
        data.resize(done + len(values), 0)
        if self._compression == "gzip" and not values.dtype.hasobject:
            _write_compressed(data, done, values)
        else:
            data[done:] = values
        self._check()

    def finish(self, name: str, values: Array) -> None:
        stored = self._stored(values.dtype)
        if name in self._growing:
            if len(values):
                self.grow(name, values, len(values))
            del self._growing[name]
        elif "compression" in stored and values.nbytes > SMALL_BYTES:
            self.file.create_dataset(name, data=values, chunks=values.shape, **stored)
        else:
            self.file.create_dataset(name, data=values, dtype=stored["dtype"])
        self._check()

    def _stored(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        if dtype.hasobject:
            return {"dtype": h5py.string_dtype()}
        if self._compression == "none":
            return {"dtype": dtype}
        level = {"compression_opts": GZIP_LEVEL} if self._compression == "gzip" else {}
        return {"dtype": dtype, "compression": self._compression, "shuffle": dtype.itemsize > 1, **level}


def _write_compressed(data: h5py.Dataset, first: int, values: Array) -> None:
    """Write entries from ``first`` on as chunks, of which the last may be shorter, past HDF5's own filters."""
    rows, starts, found = data.chunks[0], range(0, len(values), data.chunks[0]), dict[int, bytes]()

    def compress(begin: int, end: int) -> int:
        for start in starts[begin:end]:
            chunk = values[start : start + rows]
            if len(chunk) < rows:
                chunk = np.concatenate([chunk, np.zeros((rows - len(chunk), *chunk.shape[1:]), chunk.dtype)])
            shuffled = np.ascontiguousarray(chunk, data.dtype).view(np.uint8).reshape(-1, chunk.itemsize).T
            found[start] = zlib.compress(np.ascontiguousarray(shuffled).data, GZIP_LEVEL)
        return end

    side_by_side(compress, range(len(starts) + 1))
    for start in starts:
        data.id.write_direct_chunk((first + start, *(0 for _ in values.shape[1:])), found[start])


@contextlib.contextmanager
def created(path: pathlib.Path, compression: str) -> Iterator[Hdf5Writer]:
    """Make a file to be written, where nothing may be yet.

    Raises the OSError of the first write that fails, soon after it and at the end at the latest.
    """
    with Output(path) as output:
        with contextlib.closing(open_file(output, "w")) as file:
            out = Hdf5Writer(file, compression, output.check)
            yield out
            out.end()
        output.check()
