"""The facts of a stream's episodes, where they are damaged: they are given up, and the rows stay."""

# ruff: noqa: PTH118  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence

from diskreplay.ops.problems import Findings
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.verify_chunks import ColumnCheck
from diskreplay.ops.verify_facts import check_facts
from diskreplay.schema import INFO
from diskreplay.storage import metadata, stream
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Store


def lost_facts(store: Store, name: str, commit: Commit) -> int:
    """Bytes of the facts that a repair would give up: all of a stream's where some are damaged, else none."""
    if INFO not in commit.tails:
        return 0
    found = Findings()
    span = commit.span(INFO, store.schema.context)
    if span.begin > span.end or (span.end > span.begin and not span.ends_in_tail(store.schema.info_column)):
        return max(1, span.end - span.begin)
    ColumnCheck(store.info_reader(name, commit), INFO, found, lambda size: None).run([span])
    check_facts(name, store.info_reader(name, commit), commit, found)
    return max(1, span.end - span.begin) if found.problems else 0


def give_up_facts(store: Store, name: str, quarantine: Quarantine, cuts: Sequence[Commit]) -> int:
    """Commits a stream without its facts where some are damaged; how many bytes of them there were.

    ``cuts`` are the commits of the stream that checkpoints hold, whose facts are whole: their shards stay.
    """
    path = store.stream_path(name)
    commit = Commit.as_written(metadata.read_attributes(store.files, path), os.path.join(path, metadata.NAME))
    lost = lost_facts(store, name, commit)
    if not lost:
        return 0
    reader = store.info_reader(name, commit)
    rows = reader.column.shard_rows
    pinned = {
        shard for cut in cuts if INFO in cut.tails for shard in range(cut.info_begin // rows, cut.tails[INFO].shard + 1)
    }
    if store.files.kind(reader.directory) == "directory":
        for shard, file in list(reader.shards_on_disk()):
            if shard in pinned:
                quarantine.copy(file)
    tails = {path: tail for path, tail in commit.tails.items() if path != INFO}
    record = dataclasses.replace(
        commit, sequence=commit.sequence + 1, timeline=commit.timeline + 1, time=time.time(),
        tails=tails, info_begin=0, info_end=0,
    )  # fmt: skip
    stream.write_commit(store.files, path, record)
    if not pinned:
        quarantine.take(reader.directory)
        return lost
    for shard, file in list(reader.shards_on_disk()):
        if shard not in pinned:
            quarantine.take(file)
    quarantine.take(os.path.join(reader.directory, metadata.NAME))
    metadata.write(store.files, reader.directory, metadata.array_document(reader.column, 1, (max(pinned) + 1) * rows))
    return lost
