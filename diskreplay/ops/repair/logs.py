"""The damaged logs of a stream: facts of episodes and values written later.

Each is given up whole, and the rows stay.
"""

# ruff: noqa: PTH118  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from diskreplay.ops.problems import Findings
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.verify import check_log
from diskreplay.ops.verify_chunks import ColumnCheck
from diskreplay.schema.columns import INFO, LATER
from diskreplay.storage import metadata, stream
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Store


def lost_logs(store: Store, name: str, commit: Commit) -> dict[str, Any]:
    """Return the bytes of damaged logs that a repair would give up whole, by the loss's field."""
    return {field: lost for path, field in LOSSES.items() if (lost := _lost(store, name, commit, path))}


def _lost(store: Store, name: str, commit: Commit, path: str) -> int:
    readers = store.log_readers(name, commit)
    if path not in readers:
        return 0
    found, reader = Findings(), readers[path]
    span = commit.span(path, store.schema.context)
    if span.begin > span.end or (span.end > span.begin and not span.ends_in_tail(reader.column)):
        return max(1, span.end - span.begin)
    ColumnCheck(reader, path, [span], found, lambda size: None).run()
    check_log(path, store.log_readers(name, commit)[path], store.schema, commit, found)
    return max(1, span.end - span.begin) if found.problems else 0


def give_up_logs(store: Store, name: str, quarantine: Quarantine, cuts: Sequence[Commit]) -> dict[str, Any]:
    """Commit a stream without its damaged logs; return how many bytes of them there were, by the loss's field.

    ``cuts`` are the commits of the stream that checkpoints hold, whose logs are whole: their shards stay.
    """
    return {field: lost for path, field in LOSSES.items() if (lost := _give_up(store, name, path, quarantine, cuts))}


def _give_up(store: Store, name: str, path: str, quarantine: Quarantine, cuts: Sequence[Commit]) -> int:
    folder = store.stream_path(name)
    commit = Commit.from_json(metadata.read_attributes(store.files, folder), os.path.join(folder, metadata.NAME))
    lost = _lost(store, name, commit, path)
    if not lost:
        return 0
    reader = store.log_readers(name, commit)[path]
    rows = reader.column.shard_rows
    pinned = {
        shard for cut in cuts if path in cut.tails
        for shard in range(cut.log_span(path)[0] // rows, cut.tails[path].shard + 1)
    }  # fmt: skip
    if store.files.kind(reader.directory) == "directory":
        for shard, file in list(reader.shards_on_disk()):
            if shard in pinned:
                quarantine.copy(file)
    record = commit.without_log(path).next(timeline=commit.timeline + 1)
    stream.write_commit(store.files, folder, record)
    if not pinned:
        quarantine.take(os.path.join(folder, path.split("/")[0]))
        return lost
    for shard, file in list(reader.shards_on_disk()):
        if shard not in pinned:
            quarantine.take(file)
    quarantine.take(os.path.join(reader.directory, metadata.NAME))
    metadata.write(store.files, reader.directory, metadata.array_document(reader.column, 1, (max(pinned) + 1) * rows))
    return lost


LOSSES = {INFO: "facts", LATER: "later"}
"""The field of :class:`~diskreplay.ops.repair.stream_repair.StreamLoss` that counts what is lost of each log."""
