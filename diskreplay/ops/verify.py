"""The check of every chunk and every invariant of a store, without stopping at the first problem.

Of the store:

1. Every group has a ``zarr.json`` that says so; the root's schema can be read, and copies of it are right; stream
   numbers differ.

Of each stream:

2. The commit record can be read: counts are whole numbers, ``begin`` does not pass ``end``, the window fits the
   capacity.
3. It names the last shard of every column that has rows, and no other column.
4. Every array's ``zarr.json`` is the one that its column must have, and its shape covers the commit's rows.
5. Every shard, index and chunk of every row of the window and its context is there and whole
   (:mod:`diskreplay.ops.verify_chunks`).
6. Rows and patches agree with each other (:mod:`diskreplay.ops.verify_rows`).

Of each checkpoint:

7. The streams of its cut exist, none of its commits is newer than the stream's, and every chunk that it pins is there
   and whole.
8. Its priorities and its random state can be restored.

Of each commit of both:

9. The facts of episodes can be read, no two are of one episode, and names and those whose meaning is known are as they
   must be.
10. What was written later can be read, and is of rows that are there.

Of each stream:

11. The priorities that closing kept can be restored.

Reading changes nothing and works beside a live writer: what that evicts meanwhile is no problem. Memory is bounded by
one shard's index, 32 MB of chunks, a block of the small columns, and the places of the patches.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.state import restore_sampler, settings
from diskreplay.engine.generator import set_rng
from diskreplay.errors import CheckpointError, DiskReplayError, FormatVersionError
from diskreplay.index.log import StreamLog
from diskreplay.ops.problems import DAMAGE, Findings, Problem
from diskreplay.ops.signals import Progress
from diskreplay.ops.verify_chunks import ColumnCheck
from diskreplay.ops.verify_rows import UNREADABLE, RowCheck
from diskreplay.reading.bytelog import CONTENTS, read_records
from diskreplay.remote import locate_store
from diskreplay.schema.columns import PATCH_TABLE, Schema
from diskreplay.storage import attachments, metadata, root, saved_state, stream
from diskreplay.storage.commit import ROWS, Commit, table_of
from diskreplay.storage.files import Files, translate_reads
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Checkpoint, Store
from diskreplay.storage.tail import Part
from diskreplay.views.transition import Transition


@dataclasses.dataclass(frozen=True)
class Verified:
    """The extent of a check, and every problem found.

    Attributes:
        streams, checkpoints, chunks: the numbers of those that were looked at.
        bytes: the bytes of the chunks that were read.
        seconds: the seconds that the check took.
        checkpoint: the newest whole checkpoint to which streams with damaged rows can go back; None if there is none,
            or no stream's newest commit needs a damaged row.
    """

    path: str
    streams: int
    checkpoints: int
    chunks: int
    bytes: int
    seconds: float
    problems: tuple[Problem, ...]
    checkpoint: str | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}


def verify(path: PathLike, progress: Progress | None = None, files: Files | None = None) -> Verified:
    """Check the store at ``path``, as the module's docstring says.

    Raises StoreNotFoundError, NotAStoreError or FormatVersionError when there is no store to check. Damage is never
    raised: it is in ``problems``. A directory that the file system refuses to list raises ReadFailedError.
    """
    started = time.perf_counter()
    found = Findings()
    full, files = locate_store(path, files)
    try:
        store = Store(full, files)
    except DAMAGE as error:
        found.take(error)
        return Verified(full, 0, 0, 0, 0, time.perf_counter() - started, tuple(found.problems))
    with translate_reads(full):
        checker = _StoreCheck(store, found, progress)
        checker.run()
        checkpoint = checker.whole_checkpoint()
    return Verified(
        full, len(checker.commits), len(checker.checkpoints), found.chunks, found.bytes, time.perf_counter() - started,
        tuple(found.problems), checkpoint,
    )  # fmt: skip


def _check_log(path: str, check: RowCheck) -> None:
    """Rules 9 and 10, of the log that a commit names; what cannot be read of its files is found by ColumnCheck."""
    reader, schema, view, found = check.readers[path], check.schema, check.commit, check.found
    place = {"stream": reader.stream, "column": path, "file": reader.directory}
    rows = StreamLog(view.stream, (), (), view.num_envs, view.capacity, 0, schema.later)
    rows.restart(view.begin, view.end, 0)
    content = CONTENTS[path](schema, rows)
    begin, end, _ = view.of(path)
    try:
        for record in read_records(content, check.loaded(path), begin, end):
            content.take(record)
    except ValueError as error:
        found.add(f"{content.what} cannot be read: {error}", **place)
    except UNREADABLE:
        return
    else:
        for problem in content.problems():
            found.add(problem, **place)


def _check_saved_state(store: Store, name: str) -> None:
    """Raise an error if what closing kept in a stream cannot be read, or restored."""
    files, path = store.files, store.stream_path(name)
    found = saved_state.read(files, path)
    if found is None or not found.cut:
        return
    try:
        _check_sampler(store, found, saved_state.read_arrays(files, path, found))
    except DiskReplayError:
        now = saved_state.read(files, path)
        if now is not None and now.id == found.id:  # else a live writer took it away
            raise


def _check_sampler(store: Store, checkpoint: Checkpoint, arrays: dict[str, NDArray[Any]]) -> None:
    """Raise an error if priorities cannot be restored; unknown kinds are left alone."""
    with contextlib.suppress(FormatVersionError):
        _, sampler = settings(store.schema, {**store.settings, **checkpoint.state}, Transition(), None)
        restore_sampler(sampler, checkpoint.state.get("priorities"), arrays, checkpoint.name)


def _before(cut: Commit, newest: Commit) -> bool:
    """Tell whether a stream can have been at ``cut`` before ``newest``; going back gives up evictions, but no rows."""
    same = (cut.stream, cut.num_envs) == (newest.stream, newest.num_envs)
    earlier = (cut.timeline, cut.sequence) <= (newest.timeline, newest.sequence)
    names = cut.tables.keys() | newest.tables.keys()
    spans = [(cut.table(name), newest.table(name)) for name in names]
    if cut.timeline < newest.timeline:
        return same and all(before.end <= now.end for before, now in spans)
    return same and earlier and all(before <= now for pair in spans for before, now in zip(*pair, strict=True))


class _StoreCheck:
    def __init__(self, store: Store, found: Findings, progress: Progress | None) -> None:
        self.store = store
        self.schema: Schema = store.schema
        self.found = found
        self.progress = progress
        self.commits: dict[str, Commit] = {}
        self.numbers: dict[int, str] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self._done = 0
        self._total = 0

    def run(self) -> None:
        self._groups([self.store.path, self._path(STREAMS), self._path(CHECKPOINTS)])
        self._copies()
        for name in metadata.nodes(self.store.files, self._path(STREAMS)):
            self._read_stream(name)
        for name in metadata.nodes(self.store.files, self._path(CHECKPOINTS)):
            self._read_checkpoint(name)
        views = {name: self._views(name) for name in self.commits}
        checks = {name: self.columns(name, of) for name, of in views.items()}
        if self.progress:
            self._total = sum(check.size for columns in checks.values() for check in columns)
        for name, columns in checks.items():
            before = len(self.found.problems)
            for check in columns:
                check.run()
            self.rows(name, views[name])
            self._forgive(name, before)

    def whole_checkpoint(self) -> str | None:
        """Return the newest whole checkpoint of all streams whose newest rows are damaged, None without one of either.

        A checkpoint may be whole where the same rows are damaged now: chunks that were not full were written again.
        """
        named = {problem.stream for problem in self.found.problems if problem.stream is not None}
        sick = {name for name in named if name not in self.commits or not self._is_whole(name, self.commits[name])}
        for one in sorted(self.checkpoints.values(), key=lambda one: one.order, reverse=True) if sick else []:
            if sick <= one.cut.keys() and all(self._is_whole(name, view) for name, view in one.cut.items()):
                return one.name
        return None

    def _is_whole(self, name: str, view: Commit) -> bool:
        """Tell whether all that a commit of a stream needs is whole."""
        if name not in self.commits or not _before(view, self.commits[name]):
            return False
        check = _StoreCheck(self.store, Findings(), None)
        check.record(name, view, self.store.path)
        for column in check.columns(name, [view]):
            column.run()
        check.rows(name, [view])
        return not check.found.problems

    def _path(self, *parts: str) -> str:
        return "/".join([self.store.path, *parts])

    def _tick(self, count: int) -> None:
        self._done += count
        if self.progress:
            self.progress(min(self._done, self._total), self._total)

    def _copies(self) -> None:
        store = self.store
        if store.root_copy is not None:
            said = f"its copy {store.root_copy!r} was read; opening the store to write puts the document back"
            self.found.add(said, file=self._path(metadata.NAME))
        for file, ours in root.copies(store.files, store.path).items():
            if ours != store.attributes:
                self.found.add("it is no copy of the root document, which counts", file=file)

    def _groups(self, folders: Sequence[str], name: str | None = None) -> None:
        files = self.store.files
        for folder in folders:

            def read(folder: str = folder) -> dict[str, Any]:
                metadata.check_no_link(files, *([] if folder == self.store.path else [folder]))
                return metadata.read(files, folder)

            place = {"stream": name, "file": f"{folder}/{metadata.NAME}"}
            document = self.found.read("the group's metadata", read, **place)
            if document and (document.get("zarr_format") != 3 or document.get("node_type") != "group"):
                self.found.add("it does not describe a Zarr v3 group", **place)

    def _read_stream(self, name: str) -> None:
        files, folder = self.store.files, self.store.stream_path(name)
        place = {"stream": name, "file": f"{folder}/{metadata.NAME}"}

        def read() -> Commit:
            return Commit.from_json(metadata.read_attributes(files, folder), place["file"])

        commit = self.found.read("the stream's commit record", read, **place)
        if commit is None:
            return
        if (other := self.numbers.setdefault(commit.stream, name)) != name:
            self.found.add(f"its number {commit.stream} is that of {other!r} too", **place)
        self.commits[name] = commit
        self.record(name, commit, place["file"])
        try:
            _check_saved_state(self.store, name)
        except DiskReplayError as error:
            self.found.take(error, stream=name)
        arrays = {*commit.arrays, *(column.name for column in self.schema.columns)}
        self._groups([f"{folder}/{group}" for group in stream.groups(arrays)], name)

    def record(self, name: str, commit: Commit, file: str) -> None:
        """Check rules 2 and 3, of a stream's commit or of a checkpoint's cut."""
        columns = {**self.schema.arrays, **stream.logs(self.schema, commit)}
        for unknown in sorted(commit.arrays.keys() - columns.keys()):
            self.found.add(f"the commit record names an unknown column {unknown!r}", stream=name, file=file)

    def _read_checkpoint(self, name: str) -> None:
        """Check rules 7 and 8, without what the cut pins."""
        file = self._path(CHECKPOINTS, name, metadata.NAME)
        try:
            checkpoint = self.store.checkpoint(name)
            with self.store.reading(checkpoint):
                self._state(checkpoint)
        except (CheckpointError, FileNotFoundError, NotADirectoryError):
            return  # dropped meanwhile, or nothing of ours
        except DiskReplayError as error:
            self.found.take(error, file=file)
            return
        self.checkpoints[name] = checkpoint
        for of, commit in checkpoint.cut.items():
            newest = self.commits.get(of)
            if newest is None:
                if of not in self.store.files.list(self._path(STREAMS)):
                    self.found.add(f"the checkpoint names the stream {of!r}, which does not exist", file=file)
            elif not (_before(commit, newest) or _before(commit, self.store.newest_commit(of))):
                self.found.add(
                    f"the checkpoint's cut of rows {commit.begin} to {commit.end} does not come before the "
                    f"stream's commit of rows {newest.begin} to {newest.end}",
                    stream=of, file=file,
                )  # fmt: skip
            self.record(of, commit, file)

    def _state(self, checkpoint: Checkpoint) -> None:
        """Raise an error if what a sampler needs of it cannot be read; unknown kinds are left alone."""
        set_rng(np.random.Generator(np.random.PCG64(0)), checkpoint.state, checkpoint.name)
        arrays = self.store.read_arrays(checkpoint)
        for attachment in checkpoint.attachments.values():
            attachments.verify(self.store.files, self._path(CHECKPOINTS, checkpoint.name), attachment)
        _check_sampler(self.store, checkpoint, arrays)

    def _views(self, name: str) -> list[Commit]:
        """Return the stream's commit, and the cuts that can be checked with it."""
        newest = self.commits[name]
        cuts = [one.cut[name] for one in self.checkpoints.values() if name in one.cut]
        return [newest, *(cut for cut in cuts if _before(cut, newest))]

    def columns(self, name: str, views: Sequence[Commit]) -> list[ColumnCheck]:
        """Return a check of what views need of each column: of a log, those views that have it.

        Views that give an array other layouts are checked apart: at most one of them is right.
        """
        checks, newest = [], self.store.readers(name, views[0])
        for path in newest:
            layouts: dict[tuple[Any, ...], list[Commit]] = {}
            for view in views:
                if path in view.arrays:
                    layouts.setdefault(view.arrays[path][3:], []).append(view)
            for alike in layouts.values() or ([[views[0]]] if table_of(path) == ROWS else []):
                reader = newest[path] if alike[0] is views[0] else self.store.readers(name, alike[0])[path]
                spans = [(view.of(path).needed_from, view.arrays[path]) for view in alike if path in view.arrays]
                checks.append(ColumnCheck(reader, path, spans, self.found, self._tick))
        return checks

    def rows(self, name: str, views: Sequence[Commit]) -> None:
        """Check rules 6, 9 and 10 of views; rows and patches that several of a timeline have are checked once."""
        seen: dict[int, tuple[int, int]] = {}
        for view in sorted(views, key=lambda view: (view.timeline, view.end), reverse=True):
            patches = view.table(PATCH_TABLE)
            row, patch = seen.get(view.timeline, (view.end, patches.end))
            before = len(self.found.problems)
            parts: Sequence[Part] | None = None
            try:
                parts, record = self.store.read_tail(name, view)
                if record and view is views[0]:
                    stream.check_said(self.store.stream_path(name), view, record)
            except DAMAGE as error:
                self.found.take(error)
            check = RowCheck(self.store.readers(name, view), parts or (), self.schema, view, self.found, (row, patch))
            check.run()
            if parts is None and self._left(name, view):
                del self.found.problems[before:]
            seen[view.timeline] = min(row, check.first), min(patch, patches.begin)
            for path in self.schema.logs:
                _check_log(path, check)

    def _left(self, name: str, view: Commit) -> bool:
        """Tell whether a live writer has left the tail of a view meanwhile, and no checkpoint keeps it any more."""
        with contextlib.suppress(*DAMAGE, FileNotFoundError, NotADirectoryError):
            newest = stream.read_commit(self.store.files, self.store.stream_path(name))
            return view.tail.number < newest.tail.oldest and view not in self.store.cuts_of([name])[name]
        return False

    def _forgive(self, name: str, first: int) -> None:
        """Forget problems, from the ``first`` on, of rows that a live writer evicted meanwhile."""
        with contextlib.suppress(*DAMAGE, FileNotFoundError, NotADirectoryError):
            newest = stream.read_commit(self.store.files, self.store.stream_path(name))
            dropped = self.checkpoints.keys() - self.store.checkpoint_names()
            if newest.evicted_since(self.commits[name]) or dropped:
                self.found.problems[first:] = [
                    p
                    for p in self.found.problems[first:]
                    if p.rows is None or p.column is None or p.rows[1] > newest.of(p.column).needed_from
                ]
