"""The repair of a damaged store, which gives up as little as it can prove lost, and deletes nothing.

1. Documents that follow from the schema, of groups and arrays, are written anew where they are wrong.
2. A stream whose commit record cannot be read goes back to its newest checkpoint; without one it is moved aside.
3. Checkpoints that need something damaged are moved aside.
4. Of each stream, every chunk that is needed is read. A row with a chunk that cannot be read is *lost*. Given up with
   it are: the transition before it, whose next observation it is; with stacked frames the rest of its run, whose
   stacks reach back to it; and transitions whose patches are lost, except where the next row holds the same frame.
   A row of a ragged column is lost, too, if its items, or its span, are.
5. Rows that are given up become rows that are no transitions (``valid`` false): this is committed first, on a new
   timeline. A second commit gives them start codes that continue nothing, a third puts a chunk of zeros in the place of
   each damaged one.

6. Where some of the facts of a stream's episodes cannot be read, all of the stream's are given up, and its rows stay;
   likewise the values that were written later.

All of step 5 is appended, or written beside and renamed, so that a crash leaves a store that is as damaged as before,
or less; repairing again goes on from there. Whatever is moved, or changed in place, stands in a folder beside the
store, ``<store>.quarantine-<n>``, with its path below the store.

Where one bit of a document is flipped, its checksum says which. A root document with more damage than that cannot be
repaired: nothing else says what the columns are.
"""

# ruff: noqa: PTH118  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from diskreplay.errors import CorruptionError, DiskReplayError, LockedError
from diskreplay.ops.mend import mended
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.repair.logs import give_up_logs
from diskreplay.ops.repair.stream_repair import StreamLoss, StreamRepair
from diskreplay.ops.signals import Progress
from diskreplay.ops.verify import Verified, check_checkpoint, check_saved_state, verify
from diskreplay.remote import local
from diskreplay.schema.columns import LOGS
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, saved_state, stream
from diskreplay.storage.column import shard_number
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import CHECKPOINTS, FIRST_STREAM, STREAMS, Checkpoint, Store

MAX_VALUES = 1 << 33
"""The most values (rows times environments) of a window for which a record is believed."""
MAX_READ_ITEMS = 1 << 36
"""Likewise the most items of all ragged columns."""


@dataclasses.dataclass(frozen=True)
class Repaired:
    """The damage that was found, what was given up, and what is still damaged.

    Attributes:
        before, after: the results of ``verify``.
        quarantine: folder with what was moved or changed; None where nothing was.
        streams: the losses of each stream that had to give up something.
        checkpoints: the checkpoints that were moved aside.
        moved: everything that was moved or copied aside, by its path below the store.
    """

    path: str
    before: Verified
    after: Verified
    quarantine: str | None
    streams: tuple[StreamLoss, ...]
    checkpoints: tuple[str, ...]
    moved: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        return self.after.ok

    @property
    def changed(self) -> bool:
        return self.quarantine is not None or not self.before.ok

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok, "changed": self.changed}


def repair(path: PathLike, progress: Progress | None = None, files: fs.Files | None = None) -> Repaired:
    """Repair the store at ``path``, as the module's docstring says.

    Raises LockedError when a stream is being written, WriteFailedError when the file system refuses, and what opening
    raises when the root's document cannot be read: that cannot be repaired.
    """
    started = time.perf_counter()
    full = local(path, "repairing")
    files = files or LocalFiles()
    quarantine = Quarantine(files, full)
    with fs.translate("repairing", full):
        mend(files, full, "", quarantine)
        before = verify(full, progress, files)
        work = None
        if not before.ok:
            store = Store(full, files)
            work = _StoreRepair(store, quarantine)
            work.run()
    return Repaired(
        full, before, verify(full, progress, files) if work else before, quarantine.path,
        tuple(work.losses) if work else (), tuple(work.checkpoints) if work else (), tuple(quarantine.moved),
        time.perf_counter() - started,
    )  # fmt: skip


def mend(files: fs.Files, directory: str, node: str, quarantine: Quarantine) -> None:
    """Flip one bit of a group's document back, if that makes its checksum right."""
    data = mended(files, directory, node)
    if data is not None:
        path = os.path.join(directory, metadata.NAME)
        quarantine.copy(path)
        fs.replace(files, path, data)


class _StoreRepair:
    def __init__(self, store: Store, quarantine: Quarantine) -> None:
        self.store = store
        self.files = store.files
        self.quarantine = quarantine
        self.losses: list[StreamLoss] = []
        self.checkpoints: list[str] = []

    def _path(self, *parts: str) -> str:
        return os.path.join(self.store.path, *parts)

    def run(self) -> None:
        if self.store.root_copy is not None:
            self.quarantine.copy(self._path(metadata.NAME))
            self.store.put_root_back()
        with contextlib.ExitStack() as held:
            with contextlib.suppress(CorruptionError):  # of a record that says which stream has the lock
                held.enter_context(self._locked(self.store.lock_file))
            self.group(STREAMS)
            self.group(CHECKPOINTS)
            names = metadata.nodes(self.files, self._path(STREAMS))
            with contextlib.ExitStack() as locks:
                for name in names:
                    if self.files.kind(self._path(STREAMS, name)) == "directory":
                        locks.enter_context(self._locked(stream.lock_file(self._path(STREAMS, name))))
                        mend(self.files, self._path(STREAMS, name), f"{STREAMS}/{name}", self.quarantine)
                for name in metadata.nodes(self.files, self._path(CHECKPOINTS)):
                    mend(self.files, self._path(CHECKPOINTS, name), f"{CHECKPOINTS}/{name}", self.quarantine)
                commits = self.records(names)
                for name, commit in commits.items():
                    above = [path.rpartition("/")[0] for path in LOGS if path in commit.tails]
                    for group in [*stream.groups(self.store.schema), *filter(None, above)]:
                        self.group(STREAMS, name, group)
                self.check_checkpoints(commits)
                for name, commit in commits.items():
                    try:
                        check_saved_state(self.store, name)
                    except DiskReplayError:
                        self.quarantine.take(saved_state.folder(self._path(STREAMS, name)))
                    work = StreamRepair(
                        self.store,
                        name,
                        commit,
                        self.quarantine,
                        committed_lengths(readable_checkpoints(self.store), name),
                    )
                    loss = work.run(functools.partial(self.release, commits, name))
                    cuts = [one.cut[name] for one in readable_checkpoints(self.store) if name in one.cut]
                    if logs := give_up_logs(self.store, name, self.quarantine, cuts):
                        loss = dataclasses.replace(loss or StreamLoss(name), **logs)
                    if loss is not None:
                        self.losses.append(loss)

    @contextlib.contextmanager
    def _locked(self, path: str) -> Iterator[None]:
        lock = self.files.lock(path)
        if lock is None:
            raise LockedError(f"{path!r} is being written by {self.files.lock_holder(path)}; close that writer first")
        try:
            yield
        finally:
            lock.release()

    def group(self, *parts: str) -> None:
        """Write the ``zarr.json`` of a group that has no attributes, unless it already says that it is a group."""
        path = self._path(*parts)
        self.quarantine.keep_directory(path)
        try:
            document = metadata.read(self.files, path)
            if document.get("zarr_format") == 3 and document.get("node_type") == "group":
                return
        except (FileNotFoundError, *DAMAGE):
            pass
        self.quarantine.take(os.path.join(path, metadata.NAME))
        metadata.write(self.files, path, metadata.group_document())

    def records(self, names: list[str]) -> dict[str, Commit]:
        """Return the commit record of each stream: its own, or a checkpoint's.

        Streams without either are moved aside.
        """
        commits: dict[str, Commit] = {}
        for name in names:
            commit = self._record(name)
            if commit is None or commit.stream in {known.stream for known in commits.values()}:
                self._give_up(name)
            else:
                commits[name] = commit
        if not commits:
            schema = self.store.schema
            empty = Commit.first(0, schema.num_envs, schema.capacity)
            scratch = self._path(f".{FIRST_STREAM}.tmp")
            fs.clear(self.files, scratch)
            stream.create(self.files, scratch, schema, empty, FIRST_STREAM, {})
            self.files.rename(scratch, self._path(STREAMS, FIRST_STREAM))
            self.files.sync_dir(self._path(STREAMS))
            commits[FIRST_STREAM] = empty
        return commits

    def _record(self, name: str) -> Commit | None:
        path = self._path(STREAMS, name)
        if self.files.kind(path) != "directory":
            return None
        if (own := believed_record(self.store, name)) is not None:
            return own
        cuts = [checkpoint.cut[name] for checkpoint in readable_checkpoints(self.store) if name in checkpoint.cut]
        cuts = [cut for cut in cuts if not self._contradictions(cut)]
        if not cuts:
            return None
        newest = max(cuts, key=lambda cut: (cut.timeline, cut.sequence))
        commit = newest.next(timeline=newest.timeline + 1)
        # Recovery will cut the shards back to this record: what stands behind it is kept aside.
        for path_below, column in self.store.schema.arrays.items():
            tail = commit.tails.get(path_below)
            for file_name in self.files.list(os.path.join(path, path_below)):
                self.quarantine.keep_shard(os.path.join(path, path_below, file_name), column, tail)
        self.quarantine.copy(os.path.join(path, metadata.NAME))
        if self.files.kind(os.path.join(path, metadata.NAME)) not in ("file", None):
            self.quarantine.take(os.path.join(path, metadata.NAME))
        stream.write_commit(self.files, path, commit)
        self.losses.append(StreamLoss(name, went_back_to=commit.end))
        return commit

    def _contradictions(self, commit: Commit) -> bool:
        """Tell whether a commit's last row is not in its last shard, or whether it has more rows than there can be."""
        if is_absurd(self.store, commit):
            return True
        for path, column in self.store.schema.arrays.items():
            span = commit.span(path, self.store.schema.context)
            if span.end and not span.ends_in_tail(column):
                return True
        return False

    def _give_up(self, name: str) -> None:
        path = self._path(STREAMS, name)
        nothing = self.files.kind(path) == "directory" and not self.files.list(path)
        if not nothing:
            self.quarantine.take(path)
            self.losses.append(StreamLoss(name, whole=True))

    def check_checkpoints(self, commits: dict[str, Commit]) -> None:
        """Move aside the checkpoints to which nobody can go back."""
        for name in metadata.nodes(self.files, self._path(CHECKPOINTS)):
            if is_damaged(self.store, name, commits):
                self.take_checkpoint(name, commits)

    def release(self, commits: dict[str, Commit], name: str, first: int, stop: int) -> None:
        """Move aside the checkpoints that show some of these rows of a stream: they are about to change."""
        context = self.store.schema.context
        for checkpoint in readable_checkpoints(self.store):
            cut = checkpoint.cut.get(name)
            if cut is not None and cut.floor(context) < stop and first < cut.end:
                self.take_checkpoint(checkpoint.name, commits)

    def take_checkpoint(self, name: str, commits: dict[str, Commit]) -> None:
        """Move a checkpoint aside, with copies of the shards that only it needed: a commit will unlink them."""
        cut: dict[str, Commit] = {}
        with contextlib.suppress(DiskReplayError):
            cut = self.store.checkpoint(name).cut
        for of in cut.keys() & commits.keys():
            for path, column in self.store.schema.arrays.items():
                directory = self._path(STREAMS, of, path)
                floors = [one.span(path, self.store.schema.context).begin for one in (cut[of], commits[of])]
                for file in self.files.list(directory):
                    shard = shard_number(file, column)
                    if shard is not None and floors[0] < (shard + 1) * column.shard_rows <= floors[1]:
                        self.quarantine.copy(os.path.join(directory, file))
        self.quarantine.take(self._path(CHECKPOINTS, name))
        self.checkpoints.append(name)


def believed_record(store: Store, name: str) -> Commit | None:
    """Return the commit record of a stream, or None if it cannot be read, or says what cannot be."""
    path = store.stream_path(name)
    try:
        commit = Commit.from_json(metadata.read_attributes(store.files, path), os.path.join(path, metadata.NAME))
    except (FileNotFoundError, NotADirectoryError, *DAMAGE):
        return None
    return None if is_absurd(store, commit) else commit


def is_absurd(store: Store, commit: Commit) -> bool:
    """Tell whether a record says more rows than there can be, or more environments than a chunk can hold."""
    patches = max(0, commit.patch_end - commit.patch_begin)
    items = sum(end - begin for path, (begin, end) in commit.logs.items() if path not in LOGS)
    try:
        store.readers("", commit)
    except DAMAGE:
        return True
    return min(commit.end, commit.rows) * commit.num_envs + patches > MAX_VALUES or items > MAX_READ_ITEMS


def readable_checkpoints(store: Store) -> list[Checkpoint]:
    """Return the checkpoints whose documents can be read."""
    found = []
    for name in metadata.nodes(store.files, os.path.join(store.path, CHECKPOINTS)):
        with contextlib.suppress(DiskReplayError):
            found.append(store.checkpoint(name))
    return found


def is_damaged(store: Store, name: str, commits: dict[str, Commit]) -> bool:
    """Tell whether a checkpoint, or something that it needs, is damaged; ``commits`` are the streams' records."""
    found = Findings()
    check_checkpoint(store, name, commits, found)
    return bool(found.problems)


def committed_lengths(checkpoints: Iterable[Checkpoint], name: str) -> dict[str, dict[int, int]]:
    """Return the committed bytes of each shard of a stream that a checkpoint relies on, by column."""
    lengths: dict[str, dict[int, int]] = {}
    for checkpoint in checkpoints:
        if name in checkpoint.cut:
            for path, tail in checkpoint.cut[name].tails.items():
                known = lengths.setdefault(path, {})
                known[tail.shard] = max(tail.size, known.get(tail.shard, 0))
    return lengths
