"""One stream: its tables, their commit, recovery and eviction.

A commit is begun while nobody adds rows (:meth:`StreamWriter.begin`): its tables are fixed, and what it takes of each
array. From then on rows may be added, and another thread may write its files (:meth:`StreamWriter.write`), in order:
append full chunks, and an index of each shard, to the shards, if they are worth it, and fsync them; append to the tail
a block with all rows that neither a shard nor the tail holds, and fsync it; replace the stream's ``zarr.json``, which
holds the commit record; take the new record over in RAM; then unlink the shards that no row of the new window, no
context row and no checkpoint needs, and the tails that nobody reads any more.

Every step that changes files, or publishes in RAM what became durable, runs inside :meth:`StreamWriter.fail_stop`: it
holds signals back and marks the writer as failed first, and only a complete step clears the mark. While another thread
writes a commit, there is no mark: :meth:`StreamWriter.stopped_by` stops the writer once something went wrong.

Recovery, on opening to write: take the lock, sync the directories in which a killed writer may have renamed files, cut
the tail and the last shards back to their committed bytes, or to those that checkpoints need, remove tails and shards
that neither the record nor a checkpoint knows, load what the tail holds into the write buffers.
Opening to read changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from numpy.typing import NDArray

from diskreplay.errors import (
    CorruptionError,
    DamageWarning,
    LockedError,
    StateError,
    StoreNotFoundError,
    WriteFailedError,
    warn_outside,
)
from diskreplay.native import core
from diskreplay.process import lifecycle
from diskreplay.process.locks import held_back
from diskreplay.schema.columns import PATCH_TABLE, START, Column, Schema
from diskreplay.storage import chunks, metadata, tail
from diskreplay.storage import files as fs
from diskreplay.storage.column import ColumnReader, ColumnWriter, ShardAppend, Taken
from diskreplay.storage.commit import (
    NO_START,
    NO_TAIL,
    ROWS,
    Commit,
    LimiterStart,
    Stored,
    Table,
    Tail,
    needed_shards,
    rows_table,
    table_of,
)
from diskreplay.storage.temporaries import LOCK

RECORD_BYTES = 1 << 13
"""About the bytes of two commit records, and of what a block has beside its rows."""
MAX_UNSYNCED = 16
"""The most files of a commit that are open at a time, before they are synced."""
PUSHED_BYTES = 1 << 20
"""The encoded bytes of an array that wait in the tail at most, if the stream is pushed."""
STREAMS, CHECKPOINTS = "streams", metadata.CHECKPOINTS
TEMPORARY_STREAM = ".tmp-stream-"
MOST_KNOWN = 4096
"""Streams of which the newest record that was read is remembered: it is looked at more often than it changes."""
SCRATCH = "start"
"""The array whose directory takes temporary files: Zarr readers list groups, never the inside of an array."""

_known: dict[str, tuple[bytes, Commit]] = {}
"""Bytes of a record, and what they say, by the stream's path."""

AnyColumn = TypeVar("AnyColumn", bound=ColumnReader)


@dataclasses.dataclass(frozen=True)
class Begun:
    """A commit that was begun: what it makes durable, whatever is added from then on.

    Attributes:
        record: its record, but for the arrays, the tail, and its place after the one before.
        taken: what it takes of each array, by path.
        closing: True to have shards hold the chunks that are not full, too.
    """

    record: Commit
    taken: dict[str, Taken]
    closing: bool

    def compress(self) -> None:
        """Wait until all full chunks are compressed, or compress them here."""
        for one in self.taken.values():
            one.parts()


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
        self.columns = open_columns(files, path, schema, commit, make, schema.arrays) | self.logs
        self._tail = NO_TAIL
        """The tail whose rows are in RAM, as far as it was read."""
        self.rows = {column.name: self.columns[column.name] for column in schema.columns}
        self.patches = {column.name: self.columns[f"{PATCH_TABLE}/{column.name}"] for column in schema.patch_columns}
        self.items = {name: self.columns[ragged.items.name] for name, ragged in schema.ragged.items()}
        """The items of each ragged column, by its name."""
        self._observed = {column.name for column in schema.obs_columns}
        metadata.check_no_link(files, *(os.path.join(path, below) for below in (*self.columns, *groups(schema.arrays))))

    def load(self, commit: Commit) -> None:
        """Take over a commit record, and read the rows of the tail and the indexes that it adds."""
        parts = self._read_tail(commit).parts
        for path, column in self.columns.items():
            table = commit.of(path)
            stored = commit.arrays.get(path)
            column.load(stored, table.needed_from, table.end, again=bool(commit.timeline))
        for part in parts:
            self._put(part)
        for path, column in self.columns.items():
            column.check_held(commit.of(path).end + self.has_newest(path, commit))
        if not self.rows[START].still_current():  # asked once, after the last
            raise CorruptionError(
                f"{self.path!r} has gone back to a checkpoint; refresh", file=os.path.join(self.path, metadata.NAME),
                stream=self.name,
            )  # fmt: skip
        self.commit_record = commit

    def has_newest(self, path: str, commit: Commit) -> bool:
        """Tell whether an array has the newest next observation behind its last row."""
        return commit.end > 0 and path in self._observed

    def _read_tail(self, commit: Commit) -> tail.Read:
        """Return what a commit's tail holds beyond what is in RAM; it is opened before any other file."""
        number, size, _ = commit.tail
        known = self._tail.size if number == self._tail.number and size >= self._tail.size else 0
        found = read_tail(self.files, self.path, self.schema, commit, known)
        if not known:
            for column in self.columns.values():
                column.forget_held()
        self._tail = commit.tail
        return found

    def _put(self, part: tail.Part) -> None:
        """Take in rows of the tail."""
        column = self.columns.get(part.path)
        if column is None or column.stored_rows >= part.first + part.rows:
            return
        try:
            column.put(part.first, part.values((column.num_envs, *column.column.shape), column.column.dtype))
        except chunks.DamagedError as error:
            path = os.path.join(self.path, SCRATCH, tail.name(self._tail.number))
            raise CorruptionError(f"{path!r}: {error}", file=path, stream=self.name, column=part.path) from error

    def close_files(self) -> None:
        """Close the shards that are open; a later read opens them again."""
        for column in self.columns.values():
            column.close_files()


class StreamReader(_Stream[ColumnReader]):
    """A stream as of one commit; ``load`` goes on to a newer one of the same timeline.

    Args:
        timeline: the timeline of the newest commit when ``commit`` was read; a checkpoint's own may be older.
        kind: what reads the arrays.
    """

    def __init__(
        self, files: fs.Files, path: str, schema: Schema, commit: Commit, timeline: int,
        kind: type[ColumnReader] = ColumnReader,
    ) -> None:  # fmt: skip

        def still_current() -> bool:
            """Tell whether the stream has not gone back to a checkpoint since, when a shard may hold other rows."""
            return newest_commit(files, path, schema).timeline == timeline

        # The columns must not refer to the stream: a reference cycle would keep their files open.
        make = functools.partial(kind, still_current=still_current)
        super().__init__(files, path, schema, commit, make)
        self.load(commit)


class StreamWriter(_Stream[ColumnWriter]):
    """A stream whose lock this object holds; not thread-safe, but rows may come during :meth:`write`."""

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
        self._opened = files, path, schema
        self.pushed = False
        """True if the stream goes to a remote store, to which a shard that grew goes whole."""
        self.dropped = False
        """True if a checkpoint was dropped here: the next commit looks at what the others need."""
        self.gate = core.Gate()
        """What bars the store from use; the engine has the same one."""
        self._failure: WriteFailedError | None = None
        self.untold: BaseException | None = None
        """The error that stopped the writer in a thread of its own: :meth:`check` raises it, once."""
        self.sampled = 0
        """The transitions that were drawn, by the count of a rate limiter; the next commit makes it durable."""
        self.last_checkpoint = 0
        """The number of the last checkpoint that was begun; the next commit makes it durable."""
        self.limiter = NO_START
        """Where the rate limiter by which this process draws began; the next commit makes it durable."""
        self._pinned_tails: list[int] = []
        """The tails that checkpoints alone need."""
        self.cut_short = False
        """True if a block of :meth:`fail_stop` ended early by something else than a failed write: an interrupt."""
        self._process = lifecycle.process
        self._lock_file = lock_file(path)
        store = os.path.dirname(os.path.dirname(path))
        self._checkpoints, self._maker_lock = os.path.join(store, CHECKPOINTS), os.path.join(store, LOCK)
        try:
            self._lock = lock(files, path)
            self._settle(files, path)
            newest = newest_commit(files, path, schema)
            lost = not self._has_record(path, newest)
            commit = choose(newest)
            with fs.translate("recovering", path):
                # Before anything changes: a record that is wrong must cost nothing.
                whole = self._takes(newest, commit)
                self._clear_scratch()
                self._recover(newest)
                if commit.timeline != newest.timeline:
                    self._go_back(newest, commit, check, whole)
                elif commit != newest or newest.back or lost:  # resized, or what went back was stopped
                    self._replace(commit if commit != newest else newest.next())
        except BaseException:
            self.release()  # not left to the collector: a traceback that somebody keeps would hold the lock
            raise

    def _takes(self, newest: Commit, commit: Commit) -> bool:
        """Load the newest commit; return False if it is damaged, and the older one to go back to is whole."""
        try:
            self._take(newest)
            if self._read.record:
                check_said(self.path, newest, self._read.record)
            self._check_fits(newest)
        except CorruptionError:
            if commit.timeline == newest.timeline:
                raise
            self._take(commit)
            return False
        return True

    def _check_fits(self, record: Commit) -> None:
        """Raise CorruptionError if a record, which is loaded, leaves out an array: recovery would remove its shards."""
        wrong = record.arrays.keys() - self.columns.keys()
        for name, items in self.items.items():  # of other columns it is known by now that all rows are there
            spans = self.rows[name]
            left_out = record.end and not record.of(items.column.name).end and any(items.shards_on_disk())
            if left_out and spans.read_rows(spans.needed_from, record.end).any():
                wrong |= {items.column.name}
        if wrong:
            file = os.path.join(self.path, metadata.NAME)
            raise CorruptionError(
                f"the commit record of {file!r} does not fit the schema of the store at {sorted(wrong)}; put it back "
                "from a backup", file=file, stream=self.name,
            )  # fmt: skip

    def _has_record(self, path: str, newest: Commit) -> bool:
        """Tell whether the record is not from the tail; raise CorruptionError if a lost one may have said more."""
        files, _, schema = self._opened
        try:
            read_commit(files, path)
        except CorruptionError:
            for below, column in open_columns(files, path, schema, newest, ColumnReader, schema.arrays).items():
                stored = newest.arrays.get(below)
                last = (stored.shard, stored.size) if stored else (-1, 0)
                if any((shard, files.size(file) or 0) > last for shard, file in column.shards_on_disk()):
                    raise
            return False
        return True

    def _settle(self, files: fs.Files, path: str) -> None:
        """Sync the directories in which a killed writer may have renamed something and not synced.

        They hold the names of the newest record, the stream, the store, and the checkpoints that were made or dropped.
        """
        streams = os.path.dirname(path)
        with fs.translate("recovering", path):
            for directory in (path, os.path.join(path, SCRATCH), streams, self._checkpoints):
                files.sync_dir(directory)
            with contextlib.suppress(PermissionError):  # a store may stand where its user reads no names
                files.sync_dir(os.path.dirname(os.path.dirname(streams)))

    def _take(self, commit: Commit) -> None:
        """Load a commit, and go on after its rows."""
        files, path, schema = self._opened
        super().__init__(files, path, schema, commit, ColumnWriter)
        self.tail = tail.TailWriter(files, self.scratch, identity(schema, commit, "tail"))
        for path, column in self.columns.items():
            stored = commit.arrays.get(path)
            size = files.size(column.shard_path(stored.shard)) if stored else None
            if stored and size is not None and size < stored.size:
                raise column.damage(stored.shard, size, f"the file ends before its {stored.size} committed bytes")
        there = tail.on_disk(files, self.scratch)
        self.load(commit)
        for path, column in self.columns.items():
            column.resume(self.has_newest(path, commit))
        self.tail.go_on(commit.tail, self._read.parts, there)
        for path, column in self.columns.items():
            self.tail.logged[path] = column.end
            if self.has_newest(path, commit):
                self.tail.newest[path] = column.read_rows(column.end, column.end + 1).tobytes()
        # Shards below the first were looked at already: they are gone, or a checkpoint needs them.
        self._pinned_shards: dict[str, list[int]] = {path: [] for path in self.columns}
        self._first_shards = dict.fromkeys(self.columns, 0)
        self.sampled, self.last_checkpoint, self.limiter = commit.sampled, commit.last_checkpoint, commit.limiter

    def _read_tail(self, commit: Commit) -> tail.Read:
        self._read = super()._read_tail(commit)
        return self._read

    def _recover(self, record: Commit) -> None:
        """Make the files what a record and the checkpoints say: first the tails, then the shards.

        The documents of checkpoints are read only if something is behind what the record names.
        """
        cuts = functools.cache(self._cuts)
        went = False
        number, size, _ = record.tail
        for there in tail.on_disk(self.files, self.scratch):
            file = self.tail.path(there)
            if there < number or (there == number and (self.files.size(file) or 0) <= size):
                continue
            named = max((cut.tail.size for cut in cuts() if cut.tail.number == there), default=0)
            if there > number and not named:
                self.files.unlink(file)
                self.tail.gone(there)
                went = True
            elif there == number:
                self._shorten(file, max(named, size))
                self.tail.renew |= named > size
        if went:  # before anything is appended: an old block of the highest tail would say an old record
            self.files.sync_dir(self.scratch)
        self._first_shards = {
            path: self._recover_column(record, path, column, cuts) for path, column in self.columns.items()
        }

    def _shorten(self, file: str, size: int) -> None:
        """Cut a file in place if it is longer."""
        if (self.files.size(file) or 0) > size:
            handle = self.files.open(file, write=True)
            handle.truncate(size)
            handle.sync()

    def _go_back(self, newest: Commit, commit: Commit, check: Callable[[], None], whole: bool) -> None:
        """Make an older commit the newest, which is damaged where it is not ``whole``: then its tail stays as it is.

        Another writer makes a checkpoint, then looks for a new timeline; this one begins a timeline, then looks for new
        checkpoints. So one of them sees the other. If this one does, it gives way: nothing was given up yet.
        """
        kept = (self._kept(commit, path, ()) or 0 for path in commit.arrays)  # what goes to new files
        if self.files.room(self.scratch) < 2 * newest.tail.size + commit.tail.size + sum(kept) + RECORD_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)  # before anything is written
        put = functools.partial(self._replace, begin=True) if whole else self._say
        put(newest.next(timeline=commit.timeline - 1, back=True))
        try:
            check()
        except BaseException:
            put(self.commit_record.next())
            raise
        cuts = self._cuts()
        arrays = dict(commit.arrays)
        for cut in cuts:  # of each array, what most of its rows are in
            for path, stored in cut.arrays.items():
                if cut.of(path).end == commit.of(path).end and cut.end == commit.end:
                    arrays[path] = max(arrays.get(path, stored), stored, key=lambda one: one.rows)
        oldest, sequence = self.commit_record.tail.oldest, self.commit_record.sequence
        self._take(dataclasses.replace(commit, arrays=arrays))
        self._check_fits(self.commit_record)
        record = dataclasses.replace(self.commit_record, sequence=sequence).next()
        shorter = self._shorter(record, cuts)
        self._replace(record, begin=True, oldest=oldest)
        for temporary, file in shorter.items():
            self.files.rename(temporary, file)
        self.close_files()  # other files stand in the places of shards
        self._recover(self.commit_record)

    def _shorter(self, record: Commit, cuts: Collection[Commit]) -> dict[str, str]:
        """Write what a record leaves of last shards, which it cuts, to temporary files: a disk may be full."""
        shorter: dict[str, str] = {}
        try:
            for path, column in self.columns.items():
                if (kept := self._kept(record, path, cuts)) is None:
                    continue
                file = column.shard_path(record.arrays[path].shard)
                if (self.files.size(file) or 0) > kept:
                    temporary = os.path.join(self.scratch, f".tmp-shard-{len(shorter)}")
                    fs.write(self.files, temporary, read_first(self.files.open(file), kept))
                    shorter[temporary] = file
        except BaseException:
            with contextlib.suppress(OSError):
                self._clear_scratch()
            raise
        return shorter

    def _kept(self, record: Commit, path: str, cuts: Collection[Commit]) -> int | None:
        """Return the bytes to keep of an array's last shard: those that the record or a checkpoint names."""
        stored = record.arrays.get(path)
        if stored is None:
            return None
        named = (cut.arrays[path].size for cut in cuts if path in cut.arrays and cut.arrays[path].shard == stored.shard)
        return max(stored.size, *named, 0)

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

    def _recover_column(
        self, record: Commit, path: str, column: ColumnWriter, cuts: Callable[[], Collection[Commit]]
    ) -> int:
        """Remove what neither the record nor a checkpoint names, and return the lowest shard on disk."""
        stored = record.arrays.get(path)
        kept = []
        if self.files.size(temporary := os.path.join(column.directory, f"{metadata.NAME}.tmp")) is not None:
            self.files.unlink(temporary)
        for shard, file in column.shards_on_disk():
            if (stored is None or shard > stored.shard) and shard not in needed_shards(cuts(), path):
                self.files.unlink(file)
                continue
            kept.append(shard)
            if stored and shard == stored.shard and (length := self.files.size(file) or 0) > stored.size:
                column.append_at = self._kept(record, path, cuts()) or stored.size
                if length > column.append_at:
                    self._cut(file, column.append_at, in_place=not record.timeline)
                    column.close_files()  # another file may stand in the shard's place
        if stored and record.timeline:  # a writer that was killed may have renamed a shard in :meth:`_cut`, no more
            self.files.sync_dir(column.directory)
        return min(kept, default=0)

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
        return sum(column.waiting_bytes() for column in self.columns.values())

    def check(self) -> None:
        """Raise StateError if nothing can be committed any more, so that no rows are taken either.

        If nobody was told yet why, raise the error that stopped the writer.
        """
        if self.untold is not None:
            error, self.untold = self.untold, None
            try:
                raise error
            finally:
                del error  # whose traceback has this call
        if self.failure:
            lost = self.end - self.commit_record.end
            raise StateError(
                f"the store stopped writing and must be reopened; the last commit is intact, {lost} newer rows are "
                f"not in it: {self.failure}"
            )
        if lifecycle.process != self._process:
            raise StateError("this process was forked from the one that writes the stream: open a stream of its own")

    def stop(self, error: object) -> None:
        """Stop writing: a change was cut short by ``error``."""
        self.failure = WriteFailedError(0, f"a change of {self.path!r} was cut short: {error!r}; reopen the store")
        self.cut_short = self.gate.broken = True

    @property
    def failure(self) -> WriteFailedError | None:
        """The error after which nothing more is written until the store is opened again, or None."""
        return self._failure

    @failure.setter
    def failure(self, error: WriteFailedError | None) -> None:
        self._failure, self.gate.failed = error, error is not None

    @property
    def held(self) -> bool:
        """True if the stream is still its own: not in a forked process, and not once it was released."""
        held = getattr(self._lock, "held", None)  # which the locks of somebody's own Files may lack
        return lifecycle.process == self._process and (held is None or held())

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
            with self.stopped_by(action):
                yield
            self.failure = None

    @contextlib.contextmanager
    def stopped_by(self, action: str, *, aside: bool = False) -> Iterator[None]:
        """Run a block; what cuts it short stops the writer, as in :meth:`fail_stop`. Until then others go on.

        With ``aside`` the error goes no further, and waits for the next :meth:`check`.
        """
        try:
            with fs.translate(action, self.path):
                yield
        except BaseException as error:
            failure = WriteFailedError(0, f"{action} {self.path!r} was cut short: {error!r}; reopen the store")
            if refused := isinstance(error, WriteFailedError):
                failure = type(error)(*error.args)  # without the traceback, which would keep files open
            if aside:
                self.untold = type(error)(*error.args) if refused else error
            self.cut_short, self.failure = not refused, failure
            if not aside:
                raise

    def commit(
        self,
        begin: int,
        needed: Mapping[str, int],
        publish: contextlib.AbstractContextManager[object],
        capacity: int | None = None,
        *,
        closing: bool = False,
    ) -> Commit:
        """Make every row durable and move the window's first row to ``begin``; ``publish`` guards the readers.

        The other arguments are those of :meth:`begin`.
        """
        self.check()
        begun = self.begin(begin, needed, capacity, closing=closing)
        with self.fail_stop("committing"):
            return self.write(begun, publish)

    def begin(
        self, begin: int, needed: Mapping[str, int], capacity: int | None = None, *, closing: bool = False
    ) -> Begun:
        """Begin a commit of every row, with the window's first row at ``begin``; nobody adds rows meanwhile.

        From then on rows may be added. One commit is begun at a time, and :meth:`write` ends it.

        Args:
            needed: for each table but that of the rows, the first entry that is needed; where it is lower than before,
                or missing, it stays.
            capacity: the capacity of the window; it stays if None.
            closing: True to have shards hold the chunks that are not full, too; then no rows may be added.
        """
        before = self.commit_record
        tables = {ROWS: rows_table(begin, self.end, self.schema.context)}
        for path, column in self.columns.items():
            if (table := table_of(path)) != ROWS:
                first = max(needed.get(table, 0), before.table(table).begin)
                tables[table] = Table(first, column.end, first)
        record = dataclasses.replace(
            before, tables=tables, capacity=before.capacity if capacity is None else capacity, **self.counts
        )
        taken = {
            path: column.take(record.of(path).needed_from, self.has_newest(path, record))
            for path, column in self.columns.items()
        }
        for path, column in self.columns.items():
            if column.stored is None and table_of(path) != ROWS and (closing or taken[path].stop):
                column.lay_out(record.column(path, column.column))  # now it is known how many there will be
        return Begun(record, taken, closing)

    def write(self, begun: Begun, publish: contextlib.AbstractContextManager[object]) -> Commit:
        """Write the files of a commit that was begun, and publish it; rows may be added meanwhile.

        ``publish`` guards the readers, and whoever adds. The caller has the writer stopped by what cuts this short:
        :meth:`fail_stop`, or :meth:`stopped_by` where others go on.
        """
        staged = self._staged(begun)
        before = self.commit_record.arrays
        record = begun.record.next(
            arrays={**before, **{path: appended[-1].stored for path, appended in staged.items()}}
        )
        for top in sorted({path.partition("/")[0] for path in staged if table_of(path) != ROWS}):
            self._make_arrays(top, record)
        self._append(staged)
        record = self._block(record, newest={path: one.newest for path, one in begun.taken.items()})
        self.replace_record(record)
        with publish:
            for path, column in self.columns.items():
                column.publish(staged.get(path, []), record.of(path).end, record.of(path).needed_from)
            self.commit_record = record
        self._evict(publish)
        return record

    @property
    def closing_adds(self) -> bool:
        """True if chunks that are not full would go to shards when the stream is closed."""
        return any(column.stored_rows < column.end for column in self.columns.values())

    def _staged(self, begun: Begun) -> dict[str, list[ShardAppend]]:
        """Return what goes to shards: by table, all full chunks, if they outweigh their indexes or fill a shard."""
        record, taken, closing = begun.record, begun.taken, begun.closing
        tables: dict[str, dict[str, ColumnWriter]] = {}
        for path, column in self.columns.items():
            if closing or record.of(path).end > self.commit_record.of(path).end:
                tables.setdefault(table_of(path), {})[path] = column
        staged: dict[str, list[ShardAppend]] = {}
        for columns in tables.values():
            found = {path: taken[path].parts() for path in columns}
            full = {path: parts for path, parts in found.items() if parts}
            if not (closing or _outweigh(columns, taken, full, self.pushed)):
                full = {}
            for path in columns if closing else full:
                column, stop, end = columns[path], taken[path].stop, record.of(path).end
                appended = column.stage(stop, found[path], end)
                if closing and (last := column.partial()):
                    whole = column.stage(stop + 1, found[path] + last, end)
                    appended = appended if column.mostly_dead(whole[-1]) else whole
                if appended:
                    staged[path] = appended
        return staged

    def _block(
        self, record: Commit, begin: bool = False, oldest: int | None = None,
        newest: Mapping[str, NDArray[Any] | None] | None = None,
    ) -> Commit:  # fmt: skip
        """Append a record's block to the tail, durably, and return the record with its place in the tail.

        ``newest`` are the newest next observations, if rows may have been added since.
        """
        live = {path: max(record.stored_rows(path), record.of(path).needed_from) for path in self.columns}
        begin = self.tail.begins(live) or begin
        number = None
        if begin:
            cuts = () if not self.tail.tail.number else self._cuts()
            named = (cut.tail.number for cut in cuts)
            number = max([record.tail.number, *named, *tail.on_disk(self.files, self.scratch)]) + 1
        if newest is None:
            end = record.end
            newest = {
                path: column.read_rows(end, end + 1)[0] if self.has_newest(path, record) else None
                for path, column in self.columns.items()
            }
        parts: list[tail.Part] = []
        for path, column in self.columns.items():
            behind = -1 if begin else self.tail.logged.get(path, -1)
            first, end, last = max(live[path], behind), record.of(path).end, newest[path]
            if last is not None and first == behind:
                row = last if first == end else column.read_rows(first, first + 1)
                # If it is the newest next observation of the block before, that has become a row.
                first += row.tobytes() == self.tail.newest.get(path)
            stop = end + (last is not None)
            if first < stop:
                rows = column.read_rows(first, stop)
                if last is not None:
                    rows[-1] = last
                parts.append(tail.Part.of(path, first, rows))
        placed = self.tail.append(record.to_json(), parts, number, oldest)
        self.tail.logged = {path: record.of(path).end for path in self.columns}
        self.tail.newest = {path: last.tobytes() for path, last in newest.items() if last is not None}
        return dataclasses.replace(record, tail=placed)

    def _replace(self, record: Commit, begin: bool = False, oldest: int | None = None) -> None:
        """Make a record that has the same rows the commit of the stream, atomically and durably, with a block."""
        self._say(self._block(record, begin, oldest))

    def _say(self, record: Commit) -> None:
        """Make a record that has the same rows the commit of the stream, atomically and durably."""
        self.replace_record(record)
        self.commit_record = record

    def _make_arrays(self, top: str, record: Commit) -> None:
        """Make the array, or the group of arrays, that is ``top``, if it is not there; it appears whole."""
        place = os.path.join(self.path, top)
        if self.files.kind(place) is not None:
            return
        arrays = {**self.schema.arrays, **self.schema.logs}
        made = {path: column for path, column in arrays.items() if path.partition("/")[0] == top}
        temporary = fs.unused(self.files, os.path.join(self.path, SCRATCH, ".tmp-arrays"))
        self.files.mkdir(temporary)
        make_arrays(self.files, temporary, record, made)
        fs.sync_tree(self.files, temporary)
        self.files.rename(os.path.join(temporary, top), place)
        self.files.sync_dir(self.path)
        fs.clear(self.files, temporary)

    def _append(self, staged: dict[str, list[ShardAppend]]) -> None:
        """Make the new chunks and indexes durable, which no record names yet."""
        columns = self.columns
        written: list[fs.File] = []
        directories = set()
        for path, appended in staged.items():
            column = columns[path]
            if appended[-1].shard != (column.stored.shard if column.stored else -1):
                column.describe(appended[-1].shard)
            for append in appended:
                if len(written) >= MAX_UNSYNCED:  # descriptors are few
                    _sync(written)
                file = self.files.open(column.shard_path(append.shard), write=True)
                file.pwrite(append.parts, append.offset)
                written.append(file)
                if append.offset == 0:
                    directories.add(column.directory)
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
        with self.fail_stop("committing"):
            record = self._block(self.commit_record.next(**self.counts))
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
        record = self.commit_record
        left = {path: found for path, column in self.columns.items() if (found := self._left(path, column, record))}
        old = {path: [*pinned, *left.get(path, ())] for path, pinned in self._pinned_shards.items()}
        old = {path: shards for path, shards in old.items() if shards}
        tails = self.tail.outdated()
        if not (left or tails or ((self.dropped or cuts is not None) and (old or self._pinned_tails))):
            return
        cuts = self._cuts() if cuts is None else cuts
        needed = {path: needed_shards(cuts, path) for path in old}
        named = {cut.tail.number: cut.tail.size for cut in sorted(cuts, key=lambda cut: cut.tail.size)}
        tails = [*tails, *self._pinned_tails]
        self._unlink(
            [self.columns[path].shard_path(n) for path, shards in old.items() for n in shards if n not in needed[path]]
            + [self.tail.path(number) for number in tails if number not in named]
        )
        for number in tails:
            if number in named:
                self._shorten(self.tail.path(number), named[number])
            self.tail.gone(number)
        self._pinned_tails = [number for number in tails if number in named]
        self.dropped = False
        for path, shards in old.items():
            self._pinned_shards[path] = [shard for shard in shards if shard in needed[path]]
            self._first_shards[path] = max(self._first_shards[path], *(shard + 1 for shard in shards))
        with publish:
            for path, column in self.columns.items():
                column.trim(record.of(path).needed_from)

    def _left(self, path: str, column: ColumnWriter, record: Commit) -> range:
        """Return the shards that hold only rows nobody needs, may be on disk, and were not looked at yet."""
        stored = record.arrays.get(path)
        if stored is None:
            return range(0)
        return range(self._first_shards[path], min(record.of(path).needed_from // stored.shard_rows, stored.shard))

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


def _outweigh(
    columns: Mapping[str, ColumnWriter], taken: Mapping[str, Taken], full: Mapping[str, list[bytes]], pushed: bool
) -> bool:
    """Tell whether full chunks of arrays outweigh the indexes that would follow them, or one fills its shard.

    Where they are ``pushed``, whether those of one array are a quarter of a shard, or ``PUSHED_BYTES``.
    """
    counts = {path: len(parts) // columns[path].groups for path, parts in full.items()}
    for path, count in counts.items():
        size = columns[path].shard_chunks
        if (taken[path].stop - count) % size + count >= size:
            return True
    sizes = [sum(map(len, parts)) for parts in full.values()]
    if pushed:
        quarter = any(4 * count >= columns[path].shard_chunks for path, count in counts.items())
        return quarter or any(size >= PUSHED_BYTES for size in sizes)
    return sum(sizes) > sum(columns[path].index_bytes for path in full) > 0


def open_columns(
    files: fs.Files, path: str, schema: Schema, commit: Commit, make: Callable[..., AnyColumn],
    columns: Mapping[str, Column],
) -> dict[str, AnyColumn]:  # fmt: skip
    """Return some columns of the stream at ``path``, by path below its group, with nothing loaded."""
    return {
        below: make(
            files, os.path.join(path, below), os.path.basename(path), commit.column(below, column),
            commit.envs(below), identity(schema, commit, below),
        )
        for below, column in columns.items()
    }  # fmt: skip


def logs(schema: Schema, commit: Commit) -> dict[str, Column]:
    """Return the logs that a stream has at a commit, by their paths below its group."""
    return {path: log for path, log in schema.logs.items() if path in commit.arrays}


def read_tail(files: fs.Files, path: str, schema: Schema, commit: Commit, known: int = 0) -> tail.Read:
    """Return what the tail of a commit holds behind its first ``known`` bytes; raise CorruptionError."""
    if commit.tail.size == known:
        return tail.Read([], b"")
    seal = identity(schema, commit, "tail")
    return tail.read(files, os.path.join(path, SCRATCH), os.path.basename(path), seal, commit.tail, known)


def check_said(path: str, commit: Commit, record: bytes) -> None:
    """Raise CorruptionError if the ``record`` in the last block of the newest commit's tail, JSON, says other rows."""
    if not commit.is_said_by(record, file := os.path.join(path, metadata.NAME)):
        raise CorruptionError(
            f"the commit record of {file!r} has other rows than the one in the stream's tail: put it back from a "
            "backup, or remove it, and the one in the tail is read", file=file, stream=os.path.basename(path),
        )  # fmt: skip


def groups(arrays: Iterable[str]) -> list[str]:
    """Return the paths of the groups that arrays are in, below a stream's own, parents first."""
    return sorted({parent for path in arrays for parent in parents(os.path.dirname(path))})


def create(
    files: fs.Files, path: str, schema: Schema, commit: Commit, name: str, beside: Mapping[str, bytes]
) -> None:  # fmt: skip
    """Make a new, empty stream at ``path``, a temporary place: the rows' arrays, and files beside ``start``."""
    metadata.make(files, path, metadata.group_document(commit.to_json(), f"{STREAMS}/{name}"))
    make_arrays(files, path, commit, {column.name: column for column in schema.columns})
    for file, data in {LOCK: b"", **beside}.items():
        fs.write(files, os.path.join(path, SCRATCH, file), data)
    fs.sync_tree(files, path)


def make_arrays(files: fs.Files, path: str, commit: Commit, columns: Mapping[str, Column]) -> None:
    """Make arrays by their paths below ``path``, with the layouts of a commit, and the groups that they are in.

    Syncing their names is left to the caller.
    """
    for group in groups(columns):
        metadata.make(files, os.path.join(path, group), metadata.group_document())
    for below, column in columns.items():
        stored = commit.column(below, column)
        document = metadata.array_document(stored, commit.envs(below), stored.shard_rows)
        metadata.make(files, os.path.join(path, below), document)


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
    most = 1 << 48
    stored = Stored(most, most, most, most, most, most, "lz4hc:9")
    tables = dict.fromkeys(map(table_of, schema.arrays | schema.logs), Table(most, most, most))
    counts: dict[str, Any] = {field.name: most for field in dataclasses.fields(Commit) if field.type == "int"}
    start = LimiterStart(most, most, most, most, 1 / 3)
    arrays = dict.fromkeys([*schema.arrays, *schema.logs], stored)
    return Commit(**counts, tables=tables, arrays=arrays, tail=Tail(most, most, most), time=1 / 3, limiter=start)


def check_there(files: fs.Files, store: str) -> None:
    """Raise StoreNotFoundError if nothing of a store that was open is at its path."""
    with fs.translate_reads(store):
        kinds = [files.kind(os.path.join(store, name)) for name in (STREAMS, metadata.NAME)]
    if kinds == [None, None]:
        raise StoreNotFoundError(f"there is no store at {store!r} any more: it was removed, or moved")


def newest_commit(files: fs.Files, path: str, schema: Schema) -> Commit:
    """Return the newest commit record as :func:`read_commit`, or the one in the tail, with a warning, if it is lost."""
    try:
        return read_commit(files, path)
    except CorruptionError:
        metadata.check_no_link(files, os.path.dirname(path), path, os.path.join(path, SCRATCH))
        if (found := commit_in_tail(files, path, schema)) is None:
            raise
    warn_outside(
        f"the commit record of {path!r} is missing or damaged: the one in the stream's tail is read in its place; "
        "opening the store to write puts it back", DamageWarning,
    )  # fmt: skip
    return found


def commit_in_tail(files: fs.Files, path: str, schema: Schema) -> Commit | None:
    """Return the newest record in a stream's tails, or None if there is none, or shards do not end as it says."""
    found = tail.newest_record(files, os.path.join(path, SCRATCH), schema.identity)
    if found is None:
        return None
    with contextlib.suppress(CorruptionError):
        record = dataclasses.replace(Commit.from_json(found[0], path), tail=found[1])
        columns = open_columns(files, path, schema, record, ColumnReader, {**schema.arrays, **schema.logs})
        for below, stored in record.arrays.items():
            columns[below].read_index(stored.shard, stored.size, stored.rows)
        return record
    return None


def commit_before_damage(files: fs.Files, path: str, schema: Schema, commit: Commit) -> Commit | None:
    """Return the commit of the last whole block of another one's tail, less what that one does not need, or None."""
    found = tail.last_record(files, os.path.join(path, SCRATCH), schema.identity, commit.tail)
    if found is not None:
        with contextlib.suppress(CorruptionError):
            older = dataclasses.replace(Commit.from_json(found[0], path), tail=found[1])
            if (older.stream, older.timeline) == (commit.stream, commit.timeline) and older.sequence < commit.sequence:
                return older.kept_by(commit, schema.context)
    return None


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
    return _said(path, data)


def _said(path: str, data: bytes) -> Commit:
    """Return the record of a stream that has these bytes; raise CorruptionError if they are none."""
    known = _known.get(path)
    if known is None or known[0] != data:
        known = data, Commit.from_json(metadata.attributes(path, data), os.path.join(path, metadata.NAME))
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[path] = known
    return known[1]


def read_commits(files: fs.Files, paths: Sequence[str]) -> dict[str, Commit]:
    """Return the newest commit records of streams by path, but for those that :func:`read_commit` must look for."""
    found = {}
    for path, data in zip(paths, files.read_small([f"{path}/{metadata.NAME}" for path in paths]), strict=True):
        if (known := _known.get(path)) is not None and known[0] == data:
            found[path] = known[1]
        elif data is not None:
            with contextlib.suppress(CorruptionError):
                metadata.check_no_link(files, os.path.dirname(path), path)
                found[path] = _said(path, data)
    return found
