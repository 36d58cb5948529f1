"""The losses of a repair, found without a change: by the same reading, and the same choice of rows.

Where a commit record cannot be read, a repair may still find what it was (one flipped bit); that takes long to look
for, so that here the worst is said.
"""

from __future__ import annotations

import dataclasses

from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.repair.logs import lost_logs
from diskreplay.ops.repair.store_repair import believed_record, committed_lengths, is_damaged, readable_checkpoints
from diskreplay.ops.repair.stream_repair import StreamLoss, StreamRepair
from diskreplay.ops.result import Result
from diskreplay.remote import local
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store


@dataclasses.dataclass(frozen=True)
class RepairPlan(Result):
    """The rows that a repair would give up.

    Attributes:
        streams: the losses of each stream that would lose something.
        checkpoints: the checkpoints that would be moved aside.
    """

    streams: tuple[StreamLoss, ...]
    checkpoints: tuple[str, ...]


def plan(path: PathLike, files: fs.Files | None = None) -> RepairPlan:
    """Return what :func:`diskreplay.ops.repair.repair` would give up of the store at ``path``; change nothing.

    Raises what opening raises when the root's document cannot be read: that cannot be repaired.
    """
    store = Store(local(path, "repairing"), files or LocalFiles())
    quarantine = Quarantine(store.files, store.path)  # nothing is put there
    context = store.schema.context
    names = metadata.nodes(store.files, f"{store.path}/{CHECKPOINTS}")
    readable = readable_checkpoints(store)
    commits: dict[str, Commit] = {}
    losses, changed = [], {}
    for name in metadata.nodes(store.files, f"{store.path}/{STREAMS}"):
        commit = believed_record(store, name)
        if commit is None:
            cuts = [checkpoint.cut[name] for checkpoint in readable if name in checkpoint.cut]
            newest = max(cuts, key=lambda cut: (cut.timeline, cut.sequence), default=None)
            back = None if newest is None else newest.end
            losses.append(StreamLoss(name, went_back_to=back, whole=newest is None))
            continue
        commits[name] = commit
        lengths = committed_lengths(readable, name)
        loss, rows = StreamRepair(store, name, commit, quarantine, lengths).foresee()
        if logs := lost_logs(store, name, commit):
            loss = dataclasses.replace(loss or StreamLoss(name), **logs)
        if loss is not None:
            losses.append(loss)
            changed[name] = rows
    doomed = [
        name for name in names
        if is_damaged(store, name, commits)
        or any(
            cut.floor(context) < stop and first < cut.end
            for checkpoint in readable if checkpoint.name == name
            for of, cut in checkpoint.cut.items()
            for first, stop in changed.get(of, ())
        )
    ]  # fmt: skip
    return RepairPlan(tuple(losses), tuple(doomed))
