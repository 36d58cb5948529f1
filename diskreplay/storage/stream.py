"""One stream: a table of rows and a table of patches, their commit, recovery and eviction.

A commit, in order: append the new chunks and indexes to the open shards, fsync them and, where files are new, their
directories; replace the stream's ``zarr.json``, which holds the commit record; then unlink the shards that no row
of the new window, no context row and no checkpoint needs; and take the new record over in RAM.

Every step that changes files, or publishes in RAM what became durable, runs inside :meth:`StreamWriter.fail_stop`: it
holds signals back and marks the writer as failed first, and only a complete step clears the mark.

Recovery, on opening to write: take the lock, sync the directories in which a killed writer may have renamed files, cut
the open shards back to their committed bytes, remove shards that the record does not know, load the last chunks back
into the write buffers.
Opening to read changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from diskreplay import forks
from diskreplay.errors import CorruptionError, LockedError, StateError, StoreNotFoundError, WriteFailedError
from diskreplay.interrupts import held_back
from diskreplay.schema.columns import PATCH_TABLE, START, Column, Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.column import ColumnReader, ColumnWriter, ShardAppend
from diskreplay.storage.commit import NO_START, Commit, LimiterStart, Tail, needed_shards
from diskreplay.storage.temporaries import LOCK

MAX_UNSYNCED = 16
"""The most files of a commit that are open at a time, before they are synced."""
STREAMS, CHECKPOINTS = "streams", metadata.CHECKPOINTS
TEMPORARY_STREAM = ".tmp-stream-"
MOST_KNOWN = 4096
"""Streams of which the newest record that was read is remembered: it is looked at more often than it changes."""
SCRATCH = "start"
"""The array whose directory takes temporary files: Zarr readers list groups, never the inside of an array."""

_known: dict[str, tuple[bytes, Commit]] = {}
"""Bytes of a record, and what they say, by the stream's path."""

AnyColumn = TypeVar("AnyColumn", bound=ColumnReader)


class _Stream(Generic[AnyColumn]):
    """The columns of a stream: ``rows`` and ``patches`` by name."""

    def __init__(
        self, files: fs.Files, path: str, schema: Schema, commit: Commit, make: Callable[..., AnyColumn]
    ) -> None:
        self.files = files
        self.path = path
        self.name = os.path.basename(path)
        self.schema = schema
        self.commit_record = commit
        self.logs = open_columns(files, path, schema, commit, make, schema.logs)
        """The logs by path: columns of bytes, which are on disk only once something was logged."""
        self._columns = open_columns(files, path, schema, commit, make, schema.arrays) | self.logs
        self.rows = {column.name: self._columns[column.name] for column in schema.columns}
        self.patches = {column.name: self._columns[f"{PATCH_TABLE}/{column.name}"] for column in schema.patch_columns}
        self.items = {name: self._columns[ragged.items.name] for name, ragged in schema.ragged.items()}
        """The items of each ragged column, by its name."""
        metadata.check_no_link(files, *(os.path.join(path, below) for below in (*self._columns, *groups(schema))))

    def columns(self) -> Iterable[tuple[str, AnyColumn]]:
        """Return all columns by their path below the stream's group."""
        return self._columns.items()

    def load(self, commit: Commit) -> None:
        """Take over a commit record, and read the indexes that it adds."""
        for path, column in self.columns():
            span = commit.span(path, self.schema.context)
            if span.end > span.begin and not span.ends_in_tail(column.column):
                last = span.tail.shard if span.tail.size else None
                raise CorruptionError(
                    f"the commit record of {self.path!r} says {span.end} rows but shard {last} as last of {path!r}",
                    file=os.path.join(self.path, metadata.NAME), stream=self.name, column=path,
                )  # fmt: skip
            column.load(span.begin, span.end, span.tail)
        if not self.rows[START].still_current():  # asked once, after the last
            raise CorruptionError(
                f"{self.path!r} has gone back to a checkpoint; refresh", file=os.path.join(self.path, metadata.NAME),
                stream=self.name,
            )  # fmt: skip
        self.commit_record = commit

    def close_files(self) -> None:
        """Close the shards that are open; a later read opens them again."""
        for _, column in self.columns():
            column.close_files()


class StreamReader(_Stream[ColumnReader]):
    """A stream as of one commit; ``load`` goes on to a newer one of the same timeline.

    Args:
        timeline: the timeline of the newest commit when ``commit`` was read; a checkpoint's own may be older.
    """

    def __init__(self, files: fs.Files, path: str, schema: Schema, commit: Commit, timeline: int) -> None:

        def still_current() -> bool:
            """Tell whether the stream has not gone back to a checkpoint since, when a shard may hold other rows."""
            return read_commit(files, path).timeline == timeline

        # The columns must not refer to the stream: a reference cycle would keep their files open.
        make = functools.partial(ColumnReader, still_current=still_current)
        super().__init__(files, path, schema, commit, make)
        self.load(commit)


class StreamWriter(_Stream[ColumnWriter]):
    """A stream whose lock this object holds; its methods are not thread-safe."""

    def __init__(
        self,
        files: fs.Files,
        path: str,
        schema: Schema,
        cuts: Callable[[], Collection[Commit]],
        choose: Callable[[Commit], Commit],
        check: Callable[[], None],
        lock_store: Callable[[float], contextlib.AbstractContextManager[object]],
    ) -> None:
        """Lock the stream at ``path`` and recover it to its newest commit, or to the one that ``choose`` gives.

        Args:
            cuts: reads the stream's commits that checkpoints hold.
            choose: turns the newest commit into the one to go on from: another one is made the newest first.
            check: raises CheckpointError if a checkpoint needs rows that going back gives up; called again once the new
                record is on disk.
            lock_store: holds the store's lock for a block; raises LockedError if another has it for so many seconds.
        """
        self._lock_store = lock_store
        self._lock: fs.FileLock | None = None
        self._cuts = cuts
        self.dropped = False
        """True if a checkpoint was dropped here: the next commit looks at what the others need."""
        self.failure: WriteFailedError | None = None
        self.sampled = 0
        """The transitions that were drawn, by the count of a rate limiter; the next commit makes it durable."""
        self.last_checkpoint = 0
        """The number of the last checkpoint that was begun; the next commit makes it durable."""
        self.limiter = NO_START
        """Where the rate limiter by which this process draws began; the next commit makes it durable."""
        self.cut_short = False
        """True if a block of :meth:`whole` ended early by something else than a failed write, such as an interrupt."""
        self.broken = False
        """True if a change in RAM was cut short: nobody knows what of it is there, and nothing is read any more."""
        self._process = forks.process
        self._lock_file = lock_file(path)
        store = os.path.dirname(os.path.dirname(path))
        self._checkpoints, self._maker_lock = os.path.join(store, CHECKPOINTS), os.path.join(store, LOCK)
        try:
            self._lock = lock(files, path)
            self._settle(files, path)
            newest = read_commit(files, path)
            commit = choose(newest)
            super().__init__(files, path, schema, commit, ColumnWriter)
            # Shards below the first were looked at already: they are gone, or a checkpoint needs them.
            self._pinned_shards: dict[str, list[int]] = {path: [] for path, _ in self.columns()}
            self.sampled, self.last_checkpoint, self.limiter = commit.sampled, commit.last_checkpoint, commit.limiter
            self._first_shards = self._recover(newest, commit, check)
            for path, column in self.columns():
                column.resume(commit.span(path, schema.context).end)
            with fs.translate("recovering", path):
                for path in self.logs:
                    self._resume_log(path, commit)
        except BaseException:
            self.release()  # not left to the collector: a traceback that somebody keeps would hold the lock
            raise

    def _settle(self, files: fs.Files, path: str) -> None:
        """Sync the directories in which a killed writer may have renamed something and not synced.

        They hold the names of the newest record, the stream, the store, and the checkpoints that were made or dropped.
        """
        streams = os.path.dirname(path)
        with fs.translate("recovering", path):
            for directory in (path, streams, self._checkpoints):
                files.sync_dir(directory)
            with contextlib.suppress(PermissionError):  # a store may stand where its user reads no names
                files.sync_dir(os.path.dirname(os.path.dirname(streams)))

    def _check_tails(self, commit: Commit) -> None:
        """Raise CorruptionError if a file ends before its committed bytes."""
        for path, column in self.columns():
            tail = commit.tails.get(path)
            size = self.files.size(column.shard_path(tail.shard)) if tail else None
            if tail and size is not None and size < tail.size:
                raise column.damage(tail.shard, size, f"the file ends before its {tail.size} committed bytes")

    def _recover(self, newest: Commit, commit: Commit, check: Callable[[], None]) -> dict[str, int]:
        """Make ``commit`` the stream's, and the files what it says; return each column's lowest shard on disk."""
        with fs.translate("recovering", self.path):
            # Before anything changes: a record that is wrong must cost nothing.
            self._check_tails(commit)
            self.load(commit)
            if commit.timeline != newest.timeline:
                self._go_back(newest, commit, check)
                self.close_files()  # other files stand in the places of shards
            elif commit != newest:  # resized
                self.replace_record(commit)
            self._clear_scratch()
            return {path: self._recover_column(commit, path, column) for path, column in self.columns()}

    def _go_back(self, newest: Commit, commit: Commit, check: Callable[[], None]) -> None:
        """Make an older commit the newest, after what it leaves of the last shards was written: a disk may be full.

        Another writer makes a checkpoint, then looks for a new timeline; this one begins a timeline, then looks for new
        checkpoints. So one of them sees the other. If this one does, it gives way: no shard was changed yet.
        """
        shorter: dict[str, str] = {}
        try:
            for path, column in self.columns():
                tail = commit.tails.get(path)
                if tail and (self.files.size(file := column.shard_path(tail.shard)) or 0) > tail.size:
                    temporary = os.path.join(self.path, SCRATCH, f".tmp-shard-{len(shorter)}")
                    fs.write(self.files, temporary, read_first(self.files.open(file), tail.size))
                    shorter[temporary] = file
            self.replace_record(commit)
            try:
                check()
            except BaseException:
                as_before = dataclasses.replace(newest, sequence=commit.sequence)
                self.replace_record(as_before.next(timeline=commit.timeline + 1))
                raise
        except BaseException:
            with contextlib.suppress(OSError):
                self._clear_scratch()
            raise
        for temporary, file in shorter.items():
            self.files.rename(temporary, file)

    def _clear_scratch(self) -> None:
        """Remove the temporary files that killed writers left."""
        scratch = os.path.join(self.path, SCRATCH)
        for name in self.files.list(scratch):
            if name.startswith(TEMPORARY_STREAM):
                self.remove_half_made(os.path.join(scratch, name))
            elif name.startswith(".tmp-"):
                fs.clear(self.files, os.path.join(scratch, name))
        for name in metadata.nodes(self.files, self._checkpoints):
            place = os.path.join(self._checkpoints, name)
            if self.files.size(os.path.join(place, metadata.NAME)) is None:  # it was dropped where it could not move
                self.remove_half_made(place)
        if self.files.size(self._maker_lock) is not None:  # of who made the store
            self.files.unlink(self._maker_lock)

    def _recover_column(self, commit: Commit, path: str, column: ColumnWriter) -> int:
        """Remove what no record names, and return the lowest shard on disk."""
        tail = commit.tails.get(path)
        kept = []
        spared: set[int] = set()
        if tail is None and path in self.logs and any(column.shards_on_disk()):
            # A writer that knows nothing of a log left a record without it; what checkpoints need of it is there still.
            spared = self._needed([path])[path]
        if self.files.size(temporary := os.path.join(column.directory, f"{metadata.NAME}.tmp")) is not None:
            self.files.unlink(temporary)
        for shard, file in column.shards_on_disk():
            if (tail is None or shard > tail.shard) and shard not in spared:
                self.files.unlink(file)
                continue
            kept.append(shard)
            if tail and shard == tail.shard and (self.files.size(file) or 0) > tail.size:
                self._cut(file, tail.size, in_place=not commit.timeline)
                column.close_files()  # another file may stand in the shard's place
        if tail and commit.timeline:  # a writer that was killed may have renamed a shard in :meth:`_cut`, no more
            self.files.sync_dir(column.directory)
        return min(kept, default=0)

    def _resume_log(self, path: str, commit: Commit) -> None:
        """Have a log go on after the shards that checkpoints pin, if the record names none."""
        log = self.logs[path]
        there = [shard for shard, _ in log.shards_on_disk()]
        if there and path not in commit.tails:
            first = max(there) + 1
            log.entries.restart(first * log.shard_chunks)
            log.resume(first * log.column.shard_rows)

    def remove_half_made(self, path: str) -> None:
        """Remove a stream or a checkpoint without a document, but if a living process that makes one holds the lock."""
        with contextlib.suppress(LockedError), self._lock_store(0.0):
            fs.clear(self.files, path)

    def _cut(self, file: str, size: int, in_place: bool) -> None:
        """Leave the first ``size`` bytes of a shard.

        Where the stream ever went back to a checkpoint, the bytes after them may have been committed once, and a reader
        may still be reading them: then the shard becomes a new file under its old name.
        """
        handle = self.files.open(file, write=in_place)
        if in_place:
            handle.truncate(size)
            handle.sync()
        else:
            temporary = os.path.join(self.path, SCRATCH, ".tmp-shard")
            fs.replace(self.files, file, read_first(handle, size), temporary)

    @property
    def end(self) -> int:
        """One past the newest row, committed or not."""
        return self.rows[SCRATCH].end

    @property
    def scratch(self) -> str:
        """The directory for what has no name yet; opening the stream removes what is left there."""
        return os.path.join(self.path, SCRATCH)

    def waiting_bytes(self) -> int:
        """Return about how many encoded bytes in RAM wait for a commit."""
        return sum(column.waiting_bytes() for _, column in self.columns())

    def check(self) -> None:
        """Raise StateError if nothing can be committed any more, so that no rows are taken either."""
        if self.failure:
            lost = self.end - self.commit_record.end
            raise StateError(
                f"the store stopped writing and must be reopened; the last commit is intact, {lost} newer rows are "
                f"not in it: {self.failure}"
            )
        if forks.process != self._process:
            raise StateError("this process was forked from the one that writes the stream: open a stream of its own")

    def stop(self, error: object) -> None:
        """Stop writing: a change was cut short by ``error``."""
        self.failure = WriteFailedError(0, f"a change of {self.path!r} was cut short: {error!r}; reopen the store")
        self.cut_short = self.broken = True

    @property
    def held(self) -> bool:
        """True if the stream is still its own: not in a forked process, and not once it was released."""
        held = getattr(self._lock, "held", None)  # which the locks of somebody's own Files may lack
        return forks.process == self._process and (held is None or held())

    def writes(self, path: str) -> bool:
        """Tell whether the stream at a path is the one whose lock this object holds."""
        is_at = getattr(self._lock, "is_at", None)  # which the locks of somebody's own Files may lack
        return self.held and (path == self.path if is_at is None else bool(is_at(lock_file(path))))

    def check_place(self, action: str) -> None:
        """Raise StateError if the stream is not at its path any more: what is there now is somebody else's."""
        is_at = getattr(self._lock, "is_at", None)  # which the locks of somebody's own Files may lack
        with fs.translate(action, self.path):
            here = is_at is None or is_at(self._lock_file)
        if not here:
            raise StateError(
                f"{action} {self.path!r}: the store was moved, removed or replaced while it was open, so nothing was "
                f"written; {self.end - self.commit_record.end} rows are in no commit. Move it back and commit again, "
                f"or close this buffer and open the store where it is"
            )

    @contextlib.contextmanager
    def fail_stop(self, action: str) -> Iterator[None]:
        """Run a block to its end; if it is cut short, nothing more is written until the store is opened again.

        Signals wait. Where something ends the block all the same, nobody knows how much of it is on disk and in RAM,
        and only recovery may write. The failure is noted before the block, so that no interrupt can come before it.
        """
        self.check()
        self.check_place(action)
        with held_back():
            self.cut_short = True
            self.failure = WriteFailedError(0, f"{action} {self.path!r} was cut short; reopen the store")
            try:
                with fs.translate(action, self.path):
                    yield
            except WriteFailedError as error:
                self.failure = type(error)(*error.args)  # without the traceback, which would keep files open
                self.cut_short = False
                raise
            except BaseException as error:
                self.failure = WriteFailedError(0, f"{action} {self.path!r} was cut short: {error!r}; reopen the store")
                raise
            self.failure = None

    def commit(
        self,
        begin: int,
        patch_begin: int,
        publish: contextlib.AbstractContextManager[object],
        begins: Mapping[str, int] | None = None,
        capacity: int | None = None,
    ) -> Commit:
        """Make every row durable and move the window's first row to ``begin``; ``publish`` guards the readers.

        ``begins`` has the first byte or item that is needed of each log, and of the items of each ragged column, by
        their paths; where it is lower than before it stays. So does the ``capacity`` if None.
        """
        self.check()
        staged = {path: appended for path, column in self.columns() if (appended := column.stage())}
        record = self.commit_record.next(
            capacity=self.commit_record.capacity if capacity is None else capacity,
            begin=begin,
            end=self.end,
            patch_begin=patch_begin,
            patch_end=next(iter(self.patches.values())).end,
            tails={**self.commit_record.tails, **{path: appended[-1].tail for path, appended in staged.items()}},
            **self.counts,
        )
        for path, log in {**self.logs, **{column.column.name: column for column in self.items.values()}}.items():
            if path in record.tails:
                # A log that goes on behind shards that checkpoints pin has nothing before them.
                least = max(log.entries.begin * log.column.chunk_rows, self.commit_record.log_span(path)[0])
                record = record.with_log(path, max((begins or {}).get(path, 0), least), log.end)
        with self.fail_stop("committing"):
            for path in self.logs:
                if path in staged:
                    self._make_log(path)
            self._append(staged)
            self.replace_record(record)
            with publish:
                for path, column in self.columns():
                    column.publish(staged.get(path, []), column.end)
                self.commit_record = record
            self._evict(publish)
        return record

    def _make_log(self, path: str) -> None:
        """Make the array of a log, if it is not there, and the group that it is in; both appear whole."""
        log = self.logs[path]
        if self.files.size(os.path.join(log.directory, metadata.NAME)) is not None:
            return
        top, *below = path.split("/")
        made = temporary = fs.unused(self.files, os.path.join(self.path, SCRATCH, ".tmp-log"))
        self.files.mkdir(temporary)
        for name in below:
            metadata.write(self.files, made, metadata.group_document())
            made = os.path.join(made, name)
            self.files.mkdir(made)
        metadata.write(self.files, made, metadata.array_document(log.column, 1, log.column.shard_rows))
        if below:
            self.files.sync_dir(temporary)
        self.files.rename(temporary, os.path.join(self.path, top))
        self.files.sync_dir(self.path)

    def _append(self, staged: dict[str, list[ShardAppend]]) -> None:
        """Make the new chunks and indexes durable, which no record names yet."""
        columns = dict(self.columns())
        written: list[fs.File] = []
        directories = set()
        for path, appended in staged.items():
            column = columns[path]
            for append in appended:
                if len(written) >= MAX_UNSYNCED:  # descriptors are few
                    _sync(written)
                file = self.files.open(column.shard_path(append.shard), write=True)
                file.pwrite(append.parts, append.offset)
                written.append(file)
                if append.offset == 0:
                    directories.add(column.directory)
            if appended[-1].shard != column.tail.shard:
                column.grow(appended[-1].shard)
        _sync(written)
        for directory in directories:
            self.files.sync_dir(directory)

    @property
    def counts(self) -> dict[str, Any]:
        """What a record says beside its rows: the fields that this process counts, by their names."""
        return {"sampled": self.sampled, "last_checkpoint": self.last_checkpoint, "limiter": self.limiter}

    @property
    def counted(self) -> bool:
        """True if :attr:`counts` changed since the last commit."""
        return any(getattr(self.commit_record, name) != count for name, count in self.counts.items())

    def commit_counts(self, publish: contextlib.AbstractContextManager[object]) -> None:
        """Make :attr:`counts` durable if they changed; rows stay. ``publish`` as in commit."""
        if not self.counted:
            return
        record = self.commit_record.next(**self.counts)
        with self.fail_stop("committing"):
            self.replace_record(record)
            with publish:
                self.commit_record = record

    def replace_record(self, record: Commit) -> None:
        """Make ``record`` the commit of the stream, atomically and durably."""
        write_commit(self.files, self.path, record)

    def reclaim(
        self, publish: contextlib.AbstractContextManager[object], cuts: Collection[Commit] | None = None
    ) -> None:
        """Unlink the shards that neither the committed window nor a checkpoint needs, with ``publish`` as in commit.

        ``cuts`` are the stream's commits that checkpoints hold, where the caller has read them since it was opened.
        """
        with self.fail_stop("committing"):
            self._evict(publish, cuts)

    def _evict(
        self, publish: contextlib.AbstractContextManager[object], cuts: Collection[Commit] | None = None
    ) -> None:
        """Unlink the shards of which no row is needed any more, and forget where their chunks are.

        The documents of checkpoints are read before that, and only if a shard has left the window, or one that
        checkpoints needed may not be needed any more because one was dropped here.
        """
        begins = {path: self.commit_record.span(path, self.schema.context).begin for path, _ in self.columns()}
        left = {path: found for path, column in self.columns() if (found := self._left(path, column, begins[path]))}
        old = {path: shards for path in begins if (shards := [*self._pinned_shards[path], *left.get(path, ())])}
        if not old or not (left or self.dropped or cuts is not None):
            return
        needed = self._needed(old, cuts)
        self._unlink(
            [self._columns[path].shard_path(n) for path, shards in old.items() for n in shards if n not in needed[path]]
        )
        self.dropped = False
        for path, shards in old.items():
            self._pinned_shards[path] = [shard for shard in shards if shard in needed[path]]
            self._first_shards[path] = max(self._first_shards[path], *(shard + 1 for shard in shards))
            with publish:
                self._columns[path].trim(begins[path])

    def _left(self, path: str, column: ColumnWriter, row: int) -> range:
        """Return the shards that hold only rows below ``row``, may be on disk, and were not looked at yet."""
        return range(self._first_shards[path], min(row // column.column.shard_rows, column.tail.shard))

    def _needed(self, paths: Iterable[str], cuts: Collection[Commit] | None = None) -> dict[str, set[int]]:
        """Return the shards of some columns that checkpoints need now, or that ``cuts`` do."""
        arrays = {path: self._columns[path].column.shard_rows for path in paths}
        return needed_shards(self._cuts() if cuts is None else cuts, arrays, self.schema.context)

    def _unlink(self, shards: list[str]) -> None:
        """Unlink the files of shards that are there."""
        there = [file for file in shards if self.files.size(file) is not None]
        if there:
            # A checkpoint that was dropped must not come back when what it pinned is gone.
            self.files.sync_dir(self._checkpoints)
        for file in there:
            fs.clear(self.files, file)

    def release(self) -> None:
        """Give the lock back, and give up writes that no commit holds; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def lock_file(path: str, name: str = LOCK) -> str:
    """Return the file whose lock is that of the stream at ``path``, or another one beside it."""
    return os.path.join(path, SCRATCH, name)


def lock_holder(files: fs.Files, path: str) -> str:
    """Return in words who writes the stream at ``path``, as far as the system tells."""
    return files.lock_holder(lock_file(path))


def lock(files: fs.Files, path: str) -> fs.FileLock:
    """Take the lock of the stream at ``path``; raise LockedError if another has it."""
    with fs.translate("locking", path):
        metadata.check_no_link(files, path, os.path.join(path, SCRATCH))  # a missing lock would be made elsewhere
        taken = files.lock(lock_file(path))
    if taken is None:
        holder = lock_holder(files, path)
        if holder.startswith(fs.THIS_PROCESS):
            holder += " (with take_over=True that is committed and closed first)"
        raise LockedError(
            f"the stream {path!r} is being written by {holder}; close that writer, open another stream, or open "
            "with mode='r'"
        )
    return taken


def _sync(written: list[fs.File]) -> None:
    """Make files durable, and forget them."""
    while written:
        written[-1].sync()
        written.pop()


def identity(schema: Schema, commit: Commit, path: str) -> str:
    """Return the name of an array, in all stores, by which its shards are sealed."""
    return f"{schema.identity}/{commit.stream}/{path}"


def open_columns(
    files: fs.Files, path: str, schema: Schema, commit: Commit, make: Callable[..., AnyColumn],
    columns: Mapping[str, Column],
) -> dict[str, AnyColumn]:  # fmt: skip
    """Return some columns of the stream at ``path``, by path below its group, with nothing loaded."""
    return {
        below: make(
            files, os.path.join(path, below), os.path.basename(path), column,
            commit.span(below, schema.context).num_envs, identity(schema, commit, below),
        )
        for below, column in columns.items()
    }  # fmt: skip


def logs(schema: Schema, commit: Commit) -> dict[str, Column]:
    """Return the logs that a stream has at a commit, by their paths below its group."""
    return {path: log for path, log in schema.logs.items() if path in commit.tails}


def groups(schema: Schema) -> list[str]:
    """Return the paths of the groups below a stream's own, parents first."""
    return sorted({parent for path in schema.arrays for parent in parents(os.path.dirname(path))})


def create(
    files: fs.Files, path: str, schema: Schema, commit: Commit, name: str, beside: Mapping[str, bytes]
) -> None:  # fmt: skip
    """Make a new, empty stream at ``path``, perhaps a temporary place: groups, arrays, and files beside ``start``."""
    metadata.create_group(files, path, commit.to_json(), f"{STREAMS}/{name}")
    for group in groups(schema):
        metadata.create_group(files, os.path.join(path, group))
    for below, column in schema.arrays.items():
        array = os.path.join(path, below)
        num_envs = commit.span(below, schema.context).num_envs
        files.mkdir(array)
        metadata.write(files, array, metadata.array_document(column, num_envs, column.shard_rows))
        files.sync_dir(os.path.dirname(array))
    for file, data in {LOCK: b"", **beside}.items():
        fs.write(files, os.path.join(path, SCRATCH, file), data)
    files.sync_dir(os.path.join(path, SCRATCH))


def parents(group: str) -> Iterator[str]:
    """Yield a path and all above it: ``a`` and ``a/b`` for ``a/b``."""
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts)):
        yield "/".join(parts[: depth + 1])


def read_first(file: fs.File, size: int) -> bytes:
    """Return the first ``size`` bytes; raise OSError if there are fewer."""
    data = file.pread(size, 0)
    if len(data) < size:
        raise OSError(f"a file ended at byte {len(data)} instead of {size}")
    return data


def write_commit(files: fs.Files, path: str, record: Commit) -> None:
    """Make ``record`` the newest one of the stream at ``path``, atomically and durably, with the lock held."""
    document = metadata.group_document(record.to_json(), f"{STREAMS}/{os.path.basename(path)}")
    temporary = os.path.join(path, SCRATCH, ".tmp-commit")
    fs.replace(files, os.path.join(path, metadata.NAME), metadata.dump(document), temporary)


def largest_record(schema: Schema) -> Commit:
    """Return a record with numbers as large as they can be, which the records of a store never exceed."""
    most = 1 << 62
    paths = [*schema.logs, *(ragged.items.name for ragged in schema.ragged.values())]
    tails = dict.fromkeys([*schema.arrays, *schema.logs], Tail(most, most))
    counts = {field.name: most for field in dataclasses.fields(Commit) if field.type == "int"}
    start = LimiterStart(most, most, most, most, 1 / 3)
    return Commit(**counts, tails=tails, time=1 / 3, limiter=start, logs=dict.fromkeys(paths, (most, most)))


def check_there(files: fs.Files, store: str) -> None:
    """Raise StoreNotFoundError if nothing of a store that was open is at its path."""
    with fs.translate_reads(store):
        kinds = [files.kind(os.path.join(store, name)) for name in (STREAMS, metadata.NAME)]
    if kinds == [None, None]:
        raise StoreNotFoundError(f"there is no store at {store!r} any more: it was removed, or moved")


def read_commit(files: fs.Files, path: str) -> Commit:
    """Return the stream's newest commit record.

    Raises CorruptionError if there is none, StoreNotFoundError if the store was removed.
    """
    metadata.check_no_link(files, os.path.dirname(path), path)
    try:
        with fs.translate_reads(path):
            data = fs.settled(files, path, lambda: metadata.read_bytes(files, path))
    except (FileNotFoundError, NotADirectoryError) as error:
        store, name = os.path.dirname(os.path.dirname(path)), os.path.basename(path)
        check_there(files, store)
        message = f"the stream {name!r} of {store!r} is missing, or its commit record {metadata.NAME}"
        raise CorruptionError(message, file=os.path.join(path, metadata.NAME), stream=name) from error
    known = _known.get(path)
    if known is None or known[0] != data:
        known = data, Commit.from_json(metadata.attributes(path, data), os.path.join(path, metadata.NAME))
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[path] = known
    return known[1]
