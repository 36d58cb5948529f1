"""The shards that a commit needs, and what a reader needs of them first."""

from __future__ import annotations

from collections.abc import Iterator

from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import Column, Schema
from diskreplay.storage.chunks import CRC_BYTES, index_bytes
from diskreplay.storage.column import shard_name
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import STREAMS


def needed_arrays(schema: Schema, commit: Commit) -> dict[str, Column]:
    """Return the arrays of a stream that have rows, by path; raise CorruptionError for one that it cannot have."""
    known = {**schema.arrays, **schema.logs}
    strange = next((path for path in commit.tails if path not in known), None)
    if strange is not None:
        raise CorruptionError(f"a commit record names the array {strange!r}, which the store does not have")
    return {path: known[path] for path in commit.tails}


def needed_shards(schema: Schema, stream: str, commit: Commit) -> Iterator[str]:
    """Yield the keys of the shards that a commit needs: of its window and context, and the growing ones."""
    return (key for key, _ in read_first(schema, stream, commit))


def read_first(schema: Schema, stream: str, commit: Commit) -> Iterator[tuple[str, int | None]]:
    """Yield the keys of these shards, each with the bytes of the index at its end, or None where all of it is read.

    Small columns are read whole; and what still grows is small, or has the newest rows.
    """
    for path, column in needed_arrays(schema, commit).items():
        span = commit.span(path, schema.context)
        first = min(span.begin // column.shard_rows, span.tail.shard)
        index = index_bytes(column.shard_rows // column.chunk_rows * span.num_envs) + CRC_BYTES
        for shard in range(first, span.tail.shard + 1):
            whole = column.resident or shard == span.tail.shard
            yield f"{STREAMS}/{stream}/{path}/{shard_name(shard, column)}", None if whole else index
