"""The indexes that stand in a shard file: each commit that added to it left one, the newest last.

A record names one of them, by the byte where it ends. Where it names another than it should, or that one is damaged,
the others are found by what an index looks like: a checksum at its end, entries that point before it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diskreplay.ops.problems import DAMAGE
from diskreplay.storage import chunks
from diskreplay.storage.column import ColumnReader

SEARCH_BYTES = 64 << 20
"""The bytes that are searched around the place that a record names, at a file's end and at its beginning.

Files may lie about their length.
"""
BLOCK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class ShardIndex:
    """An index that is whole, and belongs to this shard.

    Attributes:
        stop: the byte where it ends.
        entries: ``(shard_chunks, groups, 2)``, offset and bytes, -1 where a chunk is missing.
        end: one past the last row that it knows, as its seal says.
    """

    stop: int
    entries: NDArray[np.int64]
    end: int


def _decoded(reader: ColumnReader, shard: int, data: bytes, stop: int, near: int) -> ShardIndex | None:
    body = data[-reader.index_bytes :]
    if len(body) < reader.index_bytes or not chunks.is_whole(body):
        return None
    try:
        entries = chunks.decode_index(body, reader.shard_chunks, reader.groups, stop - len(body))
    except chunks.DamagedError:
        return None
    first, rows = shard * reader.column.shard_rows, reader.column.shard_rows
    near = min(max(near, first + 1), first + rows)
    for end in (*range(near, first, -1), *range(near + 1, first + rows + 1)):
        if chunks.seals(data, reader.seal(shard, end)):
            return ShardIndex(stop, entries, end)
    return None


def indexes(reader: ColumnReader, shard: int, near: int, named: int = 0) -> Iterator[ShardIndex]:
    """Yield all indexes of a shard, the newest first; ``named`` is the byte where a record says that one ends."""
    try:
        size = reader.handle(shard).size()
    except (OSError, *DAMAGE):
        return
    least = reader.index_bytes
    top = size
    for at in sorted({size, min(named, size), 0}, reverse=True):
        stop, low = min(top, at + SEARCH_BYTES), max(least, at - SEARCH_BYTES)
        while stop >= low:
            first = max(low, stop - BLOCK_BYTES)
            origin = max(0, first - least - chunks.CRC_BYTES)
            try:
                data = reader.handle(shard).pread(stop - origin, origin)
            except (OSError, *DAMAGE):
                return
            for end in _candidates(reader, data, origin, first):
                begin = max(0, end - least - chunks.CRC_BYTES)
                found = _decoded(reader, shard, data[begin - origin : end - origin], end, near)
                if found is not None:
                    yield found
            stop = first - 1
        top = min(top, stop)


def _candidates(reader: ColumnReader, data: bytes, origin: int, first: int) -> list[int]:
    """Return the bytes from ``first`` on at which something ends that looks like an index, the last first.

    ``data`` are the file's bytes from ``origin`` on.
    """
    if data.count(0) == len(data) or len(data) < reader.index_bytes:
        return []
    words = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))  # the integer that begins at each byte
    begins = np.arange(first, origin + len(data) + 1) - reader.index_bytes
    limit = begins.astype(np.uint64)
    fits = np.ones(len(begins), bool)
    for entry in (0, reader.shard_chunks * reader.groups - 1):
        at = begins - origin + entry * chunks.ENTRY_BYTES
        offset, size = words[at], words[at + 8]
        missing = (offset == chunks.MISSING) & (size == chunks.MISSING)
        small = (offset < limit) & (size > chunks.CRC_BYTES) & (size <= limit)
        fits &= missing | (small & (offset + size <= limit))
    found: list[int] = (begins[fits][::-1] + reader.index_bytes).tolist()
    return found
