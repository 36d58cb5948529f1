"""The objects that a commit needs, and what a reader needs of them first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import CUTS, INFO, PATCH_TABLE, Column, Schema
from diskreplay.storage import tail
from diskreplay.storage.chunks import CRC_BYTES, index_bytes
from diskreplay.storage.column import shard_name
from diskreplay.storage.commit import ROWS, Commit, table_of
from diskreplay.storage.store import STREAMS
from diskreplay.storage.stream import SCRATCH


class Needed(NamedTuple):
    """An object that a commit needs.

    Attributes:
        key: the object's key.
        size: the bytes that it has at least.
        end: the bytes of the index at its end, if that is all that is read first; None where all of it is.
    """

    key: str
    size: int
    end: int | None = None


def needed_arrays(schema: Schema, commit: Commit) -> dict[str, Column]:
    """Return the arrays of a stream that have shards, by path; raise CorruptionError for one that it cannot have."""
    known = {**schema.arrays, **schema.logs}
    strange = next((path for path in commit.arrays if path not in known), None)
    if strange is not None:
        raise CorruptionError(f"a commit record names the array {strange!r}, which the store does not have")
    return {path: known[path] for path in commit.arrays}


def tail_key(stream: str, number: int) -> str:
    return f"{STREAMS}/{stream}/{SCRATCH}/{tail.name(number)}"


def tail_number(stream: str, key: str) -> int | None:
    """Return the number of the stream's tail that has this key, or None if it is no such tail."""
    folder, _, file = key.rpartition("/")
    return tail.number_of(file) if folder == f"{STREAMS}/{stream}/{SCRATCH}" else None


def needed_objects(schema: Schema, stream: str, commit: Commit) -> Iterator[Needed]:
    """Yield what a commit needs: its tail, then the shards of its window and context, and the last ones.

    Columns that are small, or no rows', are read whole; and the last shards are small, or have the newest rows.
    """
    if commit.tail.number:
        yield Needed(tail_key(stream, commit.tail.number), commit.tail.size)
    large = {column.name for column in schema.columns} - schema.held(commit.capacity).keys()
    for path, column in needed_arrays(schema, commit).items():
        stored = commit.arrays[path]
        first = min(commit.of(path).needed_from, stored.rows - 1) // stored.shard_rows
        chunks = stored.shard_rows // stored.chunk_rows * (commit.envs(path) // stored.chunk_envs)
        read_in_parts = table_of(path) not in (ROWS, PATCH_TABLE, CUTS, INFO)  # items, and values written later
        index = index_bytes(chunks) + CRC_BYTES if read_in_parts or column.name in large else None
        for shard in range(first, stored.shard + 1):
            key, last = f"{STREAMS}/{stream}/{path}/{shard_name(shard, column)}", shard == stored.shard
            yield Needed(key, stored.size, None) if last else Needed(key, 0, index)
