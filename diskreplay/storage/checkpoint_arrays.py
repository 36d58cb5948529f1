"""Arrays of one axis beside a checkpoint's attributes, such as priorities: written once, in order, never changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_key
from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import CHOSEN, DTYPES, Codec, StoredColumn
from diskreplay.storage import chunks, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.column import array_reader, shard_name

CHUNK_ROWS = 1 << 16
SHARD_CHUNKS = 1 << 8
WRITTEN_BYTES = 4 << 20
"""The encoded bytes that wait before they are written."""


def _column(name: str, dtype: np.dtype[Any]) -> StoredColumn:
    return StoredColumn(name, (), dtype, CHOSEN, CHUNK_ROWS, CHUNK_ROWS * SHARD_CHUNKS, 1, Codec("zstd", 1))


def facts(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return what :func:`read` needs to know of arrays ``(n,)`` that :func:`write` makes."""
    return {
        name: {"dtype": _column(name, values.dtype).dtype.name, "length": len(values), "crc32c": _crc32c(values)}
        for name, values in arrays.items()
    }


def write(files: fs.Files, directory: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Make a Zarr array ``(rows, 1)`` of each ``(n,)`` below the group at ``directory``."""
    for name, values in arrays.items():
        writer = ArrayWriter(files, os.path.join(directory, name), _column(name, values.dtype))
        writer.append(np.ascontiguousarray(values))
        writer.finish()


class ArrayWriter:
    """A writer of one array of any length in order, which holds a few of its chunks in RAM.

    Attributes:
        length: values so far.
        crc32c: CRC-32C of their bytes.

    Args:
        files: the files by which it is written.
        path: the path of the array, where nothing may be yet.
        column: dtype, codec, and rows of chunks and shards.
    """

    def __init__(self, files: fs.Files, path: str, column: StoredColumn) -> None:
        self._files, self._path, self._column = files, path, column
        self._file: fs.File | None = None
        self._index = np.empty((0, 1, 2), np.int64)
        self._shards = 0
        self._chunk, self._filled = np.empty(column.chunk_rows, column.dtype), 0
        self._parts: list[bytes] = []
        self._written = 0
        self.length, self.crc32c = 0, 0
        files.mkdir(path)

    def append(self, values: NDArray[Any]) -> None:
        """Add values ``(n,)``, contiguous and of the column's dtype."""
        self.length += len(values)
        while len(values):
            fitting = values[: len(self._chunk) - self._filled]
            self.crc32c = int(google_crc32c.extend(self.crc32c, fitting.tobytes()))
            self._chunk[self._filled : self._filled + len(fitting)] = fitting
            self._filled += len(fitting)
            values = values[len(fitting) :]
            if self._filled == len(self._chunk):
                self._seal()

    def finish(self) -> None:
        """Make the array durable, its document last."""
        if self._filled:
            self._chunk[self._filled :] = 0
            self._seal()
        self._end_shard()
        rows = max(1, self._shards) * self._column.shard_rows
        document = metadata.array_document(self._column, 1, rows)
        fs.write(self._files, os.path.join(self._path, metadata.NAME), metadata.dump(document))
        self._files.sync_dir(self._path)

    def _seal(self) -> None:
        """Encode the chunk that is full, or the last one."""
        encoded, self._filled = chunks.encode(self._column.codec, self._chunk), 0
        entry = [self._written + sum(map(len, self._parts)), len(encoded)]
        self._index = np.concatenate([self._index, np.array(entry, np.int64).reshape(1, 1, 2)])
        self._parts.append(encoded)
        full = len(self._index) == self._column.shard_rows // self._column.chunk_rows
        if full:
            self._end_shard()
        elif sum(map(len, self._parts)) >= WRITTEN_BYTES:
            self._write()

    def _end_shard(self) -> None:
        """Make the shard durable, if it has chunks."""
        if not len(self._index):
            return
        missing = self._column.shard_rows // self._column.chunk_rows - len(self._index)
        self._parts.append(chunks.encode_index(np.pad(self._index, ((0, missing), (0, 0), (0, 0)), constant_values=-1)))
        self._write()
        assert self._file is not None
        self._file.sync()
        self._file, self._written, self._index = None, 0, self._index[:0]
        self._shards += 1

    def _write(self) -> None:
        """Write what waits to the shard's file."""
        if self._file is None:
            self._file = self._files.open(os.path.join(self._path, shard_name(self._shards, self._column)), write=True)
        self._file.pwrite(self._parts, self._written)
        self._written += sum(map(len, self._parts))
        self._parts = []


def _crc32c(values: NDArray[Any]) -> int:
    """Return the CRC-32C of the values: those of chunks only say that each chunk is whole."""
    return int(google_crc32c.value(np.ascontiguousarray(values).tobytes()))


def read(files: fs.Files, directory: str, facts: Any) -> dict[str, NDArray[Any]]:
    """Return the arrays that :func:`write` made; raise CorruptionError if they are not what was written."""
    found = {}
    try:
        layouts = [
            (check_key(n, "array"), str(f["dtype"]), check_count("length", f["length"], 0)) for n, f in facts.items()
        ]
        if not all(dtype in DTYPES for _, dtype, _ in layouts):
            raise ValueError(f"unknown dtype in {facts!r:.200}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"the arrays of {directory!r} cannot be read: {error!r}", file=directory) from error
    for name, dtype, length in layouts:
        column = _column(name, np.dtype(dtype))
        path = os.path.join(directory, name)
        metadata.check_no_link(files, path)
        reader = array_reader(files, path, os.path.basename(directory), column, length)
        found[name] = reader.read_rows(0, length)[:, 0]
        if facts[name].get("crc32c") != _crc32c(found[name]):
            raise CorruptionError(f"the values of {path!r} are not those that were written", file=path)
    return found
