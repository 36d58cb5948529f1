"""What a repair would give up, found without changing anything: the same reading, and the same choice of rows.

Where a commit record cannot be read, a repair may still find what it was (one flipped bit); that takes long to look
for, so that here the worst is said.
"""

from __future__ import annotations

import dataclasses

from diskreplay.errors import DiskReplayError
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.repair import committed_lengths
from diskreplay.ops.repair_logs import lost_logs
from diskreplay.ops.repair_stream import StreamLoss, StreamRepair
from diskreplay.ops.result import Result
from diskreplay.ops.verify import check_checkpoint
from diskreplay.paths import PathLike
from diskreplay.remote.place import local
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit
from diskreplay.storage.files import LocalFiles
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Checkpoint, Store


@dataclasses.dataclass(frozen=True)
class Plan(Result):
    """What a repair would give up.

    Attributes:
        streams: what of each stream that would lose something.
        checkpoints: that would be moved aside.
    """

    streams: tuple[StreamLoss, ...]
    checkpoints: tuple[str, ...]


def plan(path: PathLike, files: fs.Files | None = None) -> Plan:
    """What :func:`diskreplay.ops.repair.repair` would give up of the store at ``path``; nothing is changed.

    Raises what opening raises when the root's document cannot be read: that cannot be repaired.
    """
    store = Store(local(path, "repairing"), files or LocalFiles())
    quarantine = Quarantine(store.files, store.path)  # nothing is put there
    context = store.schema.context
    names = [name for name in store.files.list(f"{store.path}/{CHECKPOINTS}") if name != metadata.NAME]
    readable = [found for name in names if (found := _checkpoint(store, name)) is not None]
    commits: dict[str, Commit] = {}
    losses, changed = [], {}
    for name in (name for name in store.files.list(f"{store.path}/{STREAMS}") if name != metadata.NAME):
        commit = _record(store, name)
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
        if _is_damaged(store, name, commits)
        or any(
            cut.floor(context) < stop and first < cut.end
            for checkpoint in readable if checkpoint.name == name
            for of, cut in checkpoint.cut.items()
            for first, stop in changed.get(of, ())
        )
    ]  # fmt: skip
    return Plan(tuple(losses), tuple(doomed))


def _record(store: Store, name: str) -> Commit | None:
    folder = store.stream_path(name)
    try:
        commit = Commit.from_json(metadata.read_attributes(store.files, folder), f"{folder}/{metadata.NAME}")
        store.readers(name, commit)
    except (FileNotFoundError, NotADirectoryError, *DAMAGE):
        return None
    return commit


def _checkpoint(store: Store, name: str) -> Checkpoint | None:
    try:
        return store.checkpoint(name)
    except DiskReplayError:
        return None


def _is_damaged(store: Store, name: str, commits: dict[str, Commit]) -> bool:
    found = Findings()
    check_checkpoint(store, name, commits, found)
    return bool(found.problems)
