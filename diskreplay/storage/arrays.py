"""Arrays of one axis beside a checkpoint's attributes, such as priorities: written once, whole, never changed."""

from __future__ import annotations

import os
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count, check_key
from diskreplay.errors import CorruptionError
from diskreplay.schema import DTYPES, Codec, Column
from diskreplay.storage import chunks, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.column import ColumnReader, shard_name
from diskreplay.storage.commit import Tail

CHUNK_ROWS = 1 << 16
SHARD_CHUNKS = 1 << 8


def _column(name: str, dtype: np.dtype[Any]) -> Column:
    return Column(name, (), dtype, CHUNK_ROWS, CHUNK_ROWS * SHARD_CHUNKS, Codec("zstd", 1), resident=True)


def facts(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """What :func:`read` needs to know of arrays ``(n,)`` that :func:`write` makes."""
    return {
        name: {"dtype": _column(name, values.dtype).dtype.name, "length": len(values), "crc32c": _crc32c(values)}
        for name, values in arrays.items()
    }


def write(files: fs.Files, directory: str, arrays: dict[str, NDArray[Any]]) -> None:
    """Makes a Zarr array ``(rows, 1)`` of each ``(n,)`` below the group at ``directory``."""
    for name, values in arrays.items():
        column = _column(name, values.dtype)
        path = os.path.join(directory, name)
        files.mkdir(path)
        shards = max(1, -(-len(values) // column.shard_rows))
        metadata.write(files, path, metadata.array_document(column, 1, shards * column.shard_rows))
        for shard in range(shards if len(values) else 0):
            rows = values[shard * column.shard_rows : (shard + 1) * column.shard_rows]
            file = files.open(os.path.join(path, shard_name(shard, column)), write=True)
            file.pwrite(_shard(column, rows), 0)
            file.sync()
        files.sync_dir(path)


def _crc32c(values: NDArray[Any]) -> int:
    """CRC-32C of the values: those of chunks only say that each chunk is whole."""
    return int(google_crc32c.value(np.ascontiguousarray(values).tobytes()))


def _shard(column: Column, values: NDArray[Any]) -> list[bytes]:
    """The chunks of a shard and its index."""
    parts, offset = [], 0
    index = np.full((SHARD_CHUNKS, 1, 2), -1, np.int64)
    for number, start in enumerate(range(0, len(values), CHUNK_ROWS)):
        chunk = np.zeros(CHUNK_ROWS, column.dtype)
        rows = values[start : start + CHUNK_ROWS]
        chunk[: len(rows)] = rows
        parts.append(chunks.encode(column.codec, chunk))
        index[number, 0] = offset, len(parts[-1])
        offset += len(parts[-1])
    return [*parts, chunks.encode_index(index)]


def read(files: fs.Files, directory: str, facts: Any) -> dict[str, NDArray[Any]]:
    """The arrays that :func:`write` made; CorruptionError where they are not what was written."""
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
        last = max(0, length - 1) // column.shard_rows
        reader = ColumnReader(files, path, os.path.basename(directory), column, 1)
        size = files.size(os.path.join(path, shard_name(last, column)))
        reader.load(0, length, Tail(last, size or 0))
        found[name] = reader.read_rows(0, length)[:, 0]
        if facts[name].get("crc32c", _crc32c(found[name])) != _crc32c(found[name]):
            raise CorruptionError(f"the values of {path!r} are not those that were written", file=path)
    return found
