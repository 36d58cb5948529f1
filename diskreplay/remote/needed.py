"""The shards that a commit needs."""

from __future__ import annotations

from collections.abc import Iterator

from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import Column, Schema
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
    for path, column in needed_arrays(schema, commit).items():
        span = commit.span(path, schema.context)
        first = min(span.begin // column.shard_rows, span.tail.shard)
        for shard in range(first, span.tail.shard + 1):
            yield f"{STREAMS}/{stream}/{path}/{shard_name(shard, column)}"
