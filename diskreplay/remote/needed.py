"""Which shards a commit needs."""

from __future__ import annotations

from collections.abc import Iterator

from diskreplay.schema import INFO, Schema
from diskreplay.storage.column import shard_name
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import STREAMS


def shards(schema: Schema, stream: str, commit: Commit) -> Iterator[str]:
    """Keys of the shards of a stream that a commit needs: those of its window and context, and the growing ones."""
    for path, tail in commit.tails.items():
        column = schema.info_column if path == INFO else schema.arrays[path]
        span = commit.span(path, schema.context)
        first = min(span.begin // column.shard_rows, tail.shard)
        for shard in range(first, tail.shard + 1):
            yield f"{STREAMS}/{stream}/{path}/{shard_name(shard, column)}"
