"""The open store on which buffers, mixtures, adapters and commands stand.

An :class:`Engine` has the streams of a store, one of which it may write, and two locks. :meth:`Engine.add` takes rows,
:meth:`Engine.commit` makes them durable, and :meth:`Engine.read` reads them. An engine knows neither what a batch looks
like nor what a sampler is. Objects whose state goes with the rows are its hooks (:mod:`diskreplay.engine.hooks`).

A thread that needs both locks takes ``write_lock`` before ``lock``.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine import pushes
from diskreplay.engine.appender import Appender
from diskreplay.engine.commits import Commits
from diskreplay.engine.facts import annotate, begin
from diskreplay.engine.generator import rng_to_json, set_rng
from diskreplay.engine.hooks import Companion, Hook, State
from diskreplay.engine.inputs import NO_EXCEPTIONS, InputExceptions
from diskreplay.engine.later import LaterWriter
from diskreplay.engine.pushes import Pushes
from diskreplay.engine.ragged_rows import RaggedRows
from diskreplay.engine.row_buffers import RowBuffers
from diskreplay.engine.run import EngineOptions, budget_of
from diskreplay.engine.streams import Streams
from diskreplay.errors import (
    ClosedError,
    CorruptionError,
    DiskReplayError,
    InputError,
    ReadFailedError,
    ReadOnlyError,
    RemoteWarning,
    SamplerWarning,
    StateError,
    WriteFailedError,
    warn_outside,
)
from diskreplay.index.cuts import Cuts
from diskreplay.index.episodes import Episode
from diskreplay.native import core
from diskreplay.process import lifecycle
from diskreplay.process.locks import Lock
from diskreplay.reading import blocks
from diskreplay.reading.bytelog import ByteLog
from diskreplay.reading.reads import Empty, Reads
from diskreplay.schema.columns import CUT_PLACES, CUTS, REWARD, Schema
from diskreplay.schema.ragged import PADDED, check_forms
from diskreplay.storage.commit import check_size
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter

T = TypeVar("T")


class Engine:
    """One open store, to which one thread may add while several read.

    Each change is a block ``with lock.change``. Arguments are checked before the block, and signals wait for its end.
    If something else ends the block early, such as a lack of memory, the writer stops, as after a failed write, and
    the next call raises StateError.

    Args:
        store: the store to open.
        options: the user's, of :func:`~diskreplay.engine.run.engine_options`.
        stream: the stream to write; None for none.
        checkpoint: the checkpoint to go back to; the last commits if None.
        exceptions: the values that ``add`` takes against a rule.
        forget: a function, called with the number of a stream whose rows were taken back.
        only_written: True to open no other stream.
        capacity: the capacity to give the stream to write, if it has less.
        reward_column: the column that is shown as the rewards; that of the rewards if None.

    Attributes:
        store, path, schema: the store, its directory and its columns.
        rng: the random generator of all draws; a checkpoint holds its state.
        lock: guards what is in RAM; never held during a write to disk.
        write_lock: held by the thread that adds, commits or makes a checkpoint; taken before ``lock``. The thread that
            writes the files of a commit beside these holds neither, and takes ``lock`` to publish it.
        streams: the open streams of the store.
        appender, later, cuts, commits: these add rows, write later values, say where runs begin, and make commits, if a
            stream is written.
        logs: the logs of bytes beside the rows of the written stream, by path.
        pushes: the pushes of the written stream.
        hooks, companion: the objects whose state goes with the rows; see :mod:`diskreplay.engine.hooks`.
        saving: a function of :meth:`save_sampler`, called with this engine and ``closing``.
        restored: the checkpoint at which the store was opened.
        stays_at: the checkpoint at which a reader stays until a refresh. No writer can evict the rows that it pins.
        gate: what bars the store from use: it is ``ending`` if the last commit was made, and the store is open only
            until it is pushed.
        refused: the reason why a copy in a forked process cannot be used, or "".
        call_off: a function that cancels the closing of the store when its buffer is forgotten.
        settle: a function that waits until another thread has added the rows it was given; :meth:`close` calls it.
        copies: the copies that other processes got, less the forks before the store was opened.
        forms: the form that each ragged column has in a batch.
    """

    appender: Appender
    commits: Commits
    cuts: Cuts
    later: LaterWriter

    def __init__(
        self,
        store: Store,
        options: EngineOptions,
        *,
        stream: str | None,
        checkpoint: Checkpoint | None = None,
        exceptions: InputExceptions = NO_EXCEPTIONS,
        forget: Callable[[int], None] = lambda stream: None,
        only_written: bool = False,
        capacity: int | None = None,
        reward_column: str | None = None,
    ) -> None:
        self.store = store
        self.path = store.path
        self.schema: Schema = store.schema
        self.rng = np.random.Generator(np.random.PCG64(options["seed"]))
        if checkpoint:
            set_rng(self.rng, checkpoint.state, checkpoint.name)
        self.forms = PADDED if options["ragged"] is None else options["ragged"]
        check_forms(self.forms, self.schema.ragged)
        self.gate = core.Gate()
        self.lock = Lock(f"the buffer {store.path!r}", reentrant=self.gate.lock)
        self.write_lock = Lock(f"the buffer {store.path!r}", then=self.lock, reentrant=self.gate.write_lock)
        self.refused = ""
        self.hooks: list[Hook] = []
        self.companion: Companion | None = None
        self.saving: Callable[[Engine, bool], str] = lambda engine, closing: ""
        self.call_off: Callable[[], None] | None = None
        self.settle: Callable[[], None] = lambda: None
        self.copies = -lifecycle.forks
        self.restored = checkpoint
        self.stays_at = checkpoint if stream is None else None
        self.cache_bytes = options["cache_bytes"]
        self.logs: Mapping[str, ByteLog] = {}
        self._rows: RowBuffers | None = None
        self.streams = Streams(
            store, budget_of(options, only_written), forget, only_written, reward_column or REWARD, gate=self.gate
        )
        url = options["remote"]
        try:
            pushing = None
            if url is not None and stream is not None:
                pushing = pushes.prepare(store, stream, url, options["push_seconds"])
            self.pushes = Pushes(store.path, pushing)
            self.streams.open(stream, checkpoint, pushing.check_going_back if pushing else None, capacity)
            written = self.streams.written
            if self.streams.writer is not None and written is not None:
                change = self.lock.change
                change.stop = self.streams.writer.stop
                self.streams.writer.pushed = pushing is not None
                items, log = self.streams.writer.items, written.log
                read = functools.partial(written.read_span, lock=self.lock)
                ragged = RaggedRows(store.schema, items, log.num_envs, read) if items else None
                self.appender = Appender(
                    store.schema, self.streams.writer, log, written.facts, change, self.gate, exceptions, ragged
                )
                self.appender.resume(written.pending())
                self._rows = self.appender.buffers if self.appender.plain else None
                self.later = LaterWriter(store.schema, written, change)
                self.logs = written.logs
                known = self.streams.writer.commit_record.table(CUTS)
                places = self.streams.writer.columns[CUT_PLACES].read_rows(known.begin, known.end)[:, 0]
                self.cuts = Cuts(log, places, known.begin, log.end)
                self.commits = Commits(
                    self.streams.writer, log, self.logs, self.cuts, self.streams, self.pushes, self.lock,
                    options["commit_rows"], options["commit_seconds"],
                )  # fmt: skip
            self.pushes.committed(self.streams.writer)
        except BaseException:
            self.streams.release()
            raise

    @property
    def stream(self) -> str | None:
        """The name of the stream that this engine writes, or None with mode "r"."""
        writer = self.streams.writer
        return writer.name if writer else None

    # Whether it may be used

    def check_open(self) -> None:
        """Raise ClosedError if the engine is closed, StateError if it cannot be used; the caller holds the lock."""
        if self.gate.closed:
            raise ClosedError(f"the buffer {self.path!r} is closed; ReplayBuffer.open opens it again")
        if self.refused:
            raise StateError(self.refused)
        self.checked_streams()

    def checked_streams(self) -> Streams:
        """Return the streams; redo a refresh that was cut short, and raise StateError if another change was."""
        streams = self.streams
        if self.gate.broken and streams.writer is not None:
            streams.writer.check()
        if self.gate.stale:
            with self.lock.exclusive:
                self.stays_at = None
                streams.open_readers(None)
        return streams

    def writable(self) -> StreamWriter:
        """Return the writer of the written stream; raise ReadOnlyError, ClosedError or StateError if none can write."""
        self.check_open()
        if self.streams.writer is None:
            raise ReadOnlyError(f"the buffer {self.path!r} was opened with mode='r'; open it with mode='r+' to write")
        if self.gate.ending:
            raise ClosedError(f"the buffer {self.path!r} is being closed, and takes no more rows")
        return self.streams.writer

    def settled(self) -> StreamWriter:
        """Return the writer as :meth:`writable`, once no commit is being written; the caller holds ``write_lock``."""
        if self.streams.writer is not None:
            self.commits.wait()
        return self.writable()

    @property
    def read_only(self) -> bool:
        """True if the store was opened with mode "r"; raises ClosedError after :meth:`close`."""
        self.check_open()
        return self.streams.writer is None

    # Rows

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Add one row, and commit if a commit is due."""
        rows, done = self._rows, 0
        if rows is not None:
            done = rows.call.row.add(obs, action, reward, next_obs, terminated, truncated, valid, extra)
            if done == core.ADDED:
                return
        with self.write_lock:
            self.writable()
            if done > 0:
                self.appender.look_for_misuse()
            else:
                given = obs, action, reward, next_obs, terminated, truncated, valid, extra
                self.appender.add(*given, exact=done == core.EXACT)
            self._added()
            self._warn()

    def _warn(self) -> None:
        """Give the warning that is due, if any, about a likely mistake of the program."""
        if self.appender.watch.to_say is not None:
            self.appender.watch.say()

    def extend(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Add many rows, and commit between them whenever a commit is due."""
        with self.write_lock, self.pushes.warned_later():
            self.writable()
            appender = self.appender
            steps = appender.steps(
                appender.arguments.steps(obs, action, reward, next_obs, terminated, truncated, valid, extra)
            )
            for first, stop in appender.runs(steps):
                at = first
                while at < stop:
                    count = min(stop - at, self.commits.rows_before(appender.log.end))
                    appender.add_run(steps, at, at + count, at > first)
                    at += count
                    self._added()
            self._warn()
        self.pushes.warn()

    def _added(self) -> None:
        """Begin a commit after rows were added, if one is due; the caller holds ``write_lock`` but not ``lock``."""
        if self.commits.added():
            self.pushes.warn()
        row = self.appender.buffers.call.row
        row.due, row.due_at = self.commits.due

    def cut(self, envs: NDArray[np.bool_], first_missing: bool = False) -> None:
        """Have the next row begin an episode, as :meth:`Appender.cut`."""
        with self.write_lock:
            self.writable()
            with self.lock.change:
                self.appender.cut(envs, first_missing)

    def begin_episode(self, env: int | None, facts: Mapping[str, Any]) -> None:
        """Have the next row begin an episode with these facts; raise InputError, before any change, for wrong ones."""
        with self.write_lock:
            self.writable().check()
            begin(self.appender, env, facts)

    def annotate_episode(self, episode: Episode | None, env: int | None, facts: Mapping[str, Any]) -> None:
        """Add facts to an episode that has begun; raise InputError as :meth:`write`."""
        with self.write_lock:
            self.writable().check()
            annotate(self.appender, episode, env, facts)

    def write(self, name: str, index: Any, values: Any) -> None:
        """Write values of a later column; raise InputError, before any change, for wrong arguments."""
        with self.write_lock:
            self.writable().check()
            self.later.write(name, index, values)
            if self.commits.relieve():
                self.pushes.warn()

    def check_write(self, name: str, index: Any, values: Any) -> None:
        """Raise the errors of :meth:`write`, but write nothing."""
        with self.lock:
            self.writable().check()
            self.later.checked(name, index, values)

    def clear(self) -> None:
        """Empty the window of the written stream, and have every hook forget its state."""
        with self.write_lock:
            self.settled().check()
            with self.lock.change:
                if self.companion is not None:
                    self.companion.forget()
                for hook in self.hooks:
                    hook.forget()
                self.empty()

    def empty(self) -> None:
        """Empty the window of the written stream, with the locks held; the next commit gives its space back."""
        self.appender.log.slide(self.appender.log.end)

    def resize(self, capacity: int) -> None:
        """Give the window of the written stream another capacity, in transitions, and commit."""
        with self.write_lock:
            writer = self.settled()
            writer.check()
            capacity = check_size(writer.commit_record.num_envs, capacity)
            with self.lock.change:
                self.streams.resize(capacity)
            self.commit()

    def grow(self, capacity: int) -> None:
        """Resize a window of a smaller capacity; raise InputError, as ``open`` does, for one of a larger capacity."""
        self.store.check_stream(str(self.stream), None, capacity)
        if capacity > self.appender.log.capacity:
            self.resize(capacity)

    # Commits

    def commit(self, closing: bool = False) -> None:
        """Make all rows added so far durable; raise the errors of a buffer's ``commit``.

        With ``closing`` shards hold all of them, for other readers of Zarr.
        """
        with self.write_lock:
            self.settled()
            with self.write_lock.exclusive:
                self.commits.commit(closing)
        self.pushes.warn()

    def push(self, timeout: float | None) -> None:
        """Commit, and wait until the remote store has all of it."""
        with self.write_lock:
            self.writable()
            pushing = self.pushes.pushing
            if pushing is None:
                raise InputError("there is nowhere to push to: open the buffer with remote='s3://bucket/name'")
            with self.pushes.warned_later():
                self.commit()
        pushing.wait(timeout)
        self.pushes.warn_of_names()

    def state(self) -> State:
        """Return the state of hooks, companion and random generator for a checkpoint; the caller holds the lock."""
        facts: dict[str, Any] = {"rng": rng_to_json(self.rng)}
        arrays: dict[str, NDArray[Any]] = {}
        for hook in self.hooks if self.companion is None else [*self.hooks, self.companion]:
            more, values = hook.state()
            facts, arrays = {**facts, **more}, {**arrays, **values}
        return facts, arrays

    def save_sampler(self, closing: bool = False) -> str:
        """Save the sampler's state, after a commit, for the next opening; return "", or the reason why it cannot.

        With ``closing`` the engine is closed as soon as the state has been copied.
        """
        return self.saving(self, closing)

    # Reading

    def read(self, draft: Callable[..., T], *args: Any) -> T:
        """Call ``draft(*args, reads)``, which draws a batch, with the lock held; then read its data without the lock.

        If another process has changed the data meanwhile, refresh and draw again.
        """
        return self._finish([], draft, args, blocks.empty)

    def begin(self, draft: Callable[..., T], *args: Any, empty: Empty = blocks.empty) -> Callable[[], T]:
        """Draw a batch as :meth:`read` does, start its downloads, and return a function that finishes the read.

        ``empty`` is a function such as ``numpy.empty``, which makes the batch's large arrays.
        """
        drawn: list[tuple[Reads, T]] = []
        with self.store.reading(self.stays_at), contextlib.suppress(CorruptionError):  # what is returned tries again
            drawn.append(self._draw(draft, args, empty))
            drawn[0][0].begin()
        return functools.partial(self._finish, drawn, draft, args, empty)

    def _draw(self, draft: Callable[..., T], args: tuple[Any, ...], empty: Empty) -> tuple[Reads, T]:
        with self.lock:
            self.check_open()
            reads = Reads(empty, self.streams.addresses, self.forms, self.streams.reward)
            return reads, draft(*args, reads)

    def _finish(self, drawn: list[tuple[Reads, T]], draft: Callable[..., T], args: tuple[Any, ...], empty: Empty) -> T:
        stale = False
        while True:
            try:
                with self.store.reading(self.stays_at):
                    reads, made = drawn.pop() if drawn else self._draw(draft, args, empty)
                    reads.finish()
                    return made
            except CorruptionError:
                if not self._caught_up():
                    raise
            except ReadFailedError as error:
                if error.errno != errno.ESTALE or stale:
                    raise
                stale = True
                with self.lock:  # another machine replaced a file that is open here
                    for stream in self.streams:
                        stream.disk.close_files()

    def _caught_up(self) -> bool:
        """Refresh if other writers evicted or rewrote rows of the windows here; return True if anything changed."""
        with self.lock:
            if self.stays_at or not self.streams.outrun():
                return False
        return self.refresh()

    def refresh(self) -> bool:
        """Go on to the newest commits of the streams that others write, and return True if anything changed."""
        if not self.gate.closed:
            self.store.files.refresh()
        with self.write_lock:
            stale = self.gate.stale
            self.check_open()
            with self.lock.exclusive:
                before = self.streams.commits
                self.stays_at = None
                self.streams.open_readers(None)
                return stale or before != self.streams.commits

    # End

    def close(self) -> None:
        """Commit, save the sampler's state, and give files and locks back; raise the errors of a commit."""
        if self.streams.writer is not None:
            self.commits.check_thread()
        self.settle()  # before a lock is taken that the other thread needs
        unsent = self.end_pushing()  # before signals wait, because the network may take long
        open_, not_saved = not self.gate.closed, ""
        with self.write_lock:
            try:
                if not (self.gate.closed or self.gate.ending) and self.streams.writer is not None:
                    with self.pushes.warned_later():
                        self._commit_last(self.streams.writer)
                if not self.gate.closed:
                    not_saved = self.save_sampler(closing=True)
            except DiskReplayError:
                self.finish()
                self.store.files.stop()
                raise
            self.finish()
        self.store.files.stop()
        if open_:
            self.pushes.warn_of_names()
        if not_saved:
            warn_outside(not_saved, SamplerWarning)
        if unsent is not None:
            warn_outside(
                f"not everything of {self.path!r} is pushed, and all of it is here; 'diskreplay push' sends the rest: "
                f"{unsent}", RemoteWarning,
            )  # fmt: skip

    def end_pushing(self) -> Exception | None:
        """Commit and push what is left, and take no rows from then on; return the error that prevented it, or None."""
        if self.pushes.pushing is None or self.gate.closed:
            return None
        try:
            with contextlib.suppress(DiskReplayError), self.write_lock:  # closing will say so
                if self.streams.writer is not None and not self.gate.ending:
                    with self.pushes.warned_later():
                        self._commit_last(self.streams.writer)
                self.gate.ending = True
            return self.pushes.end()
        except BaseException:
            self.gate.ending = False  # it stays open, to be closed again
            raise

    def _commit_last(self, writer: StreamWriter) -> None:
        """Make the commit of :meth:`close`; if it fails, or one did before, raise an error that says what is lost."""
        self.commits.wait()
        untold, writer.untold = writer.untold is not None, None
        failed_before = writer.failure is not None
        if not failed_before:
            try:
                if self.companion is not None:
                    self.companion.flush()
                self.commit()
                with contextlib.suppress(WriteFailedError):  # nothing is lost: the rows are in the tail
                    self.commit(closing=True)
                return
            except WriteFailedError:
                if writer.failure is None:
                    raise
        assert writer.failure is not None
        log, record = self.appender.log, writer.commit_record
        unwritten = any(stored.unwritten for stored in self.logs.values())
        lost = (log.begin, log.end, log.capacity) != (record.begin, record.end, record.capacity) or unwritten
        if self.gate.broken or (writer.cut_short and (self.companion is not None or lost)):
            writer.check()
        if lost or self.companion is not None or untold or not failed_before:
            said = f"{log.end - record.end} rows" if log.end > record.end else "changes"
            failure = writer.failure
            raise type(failure)(failure.errno, f"{failure.strerror}; {said} since the last commit are lost")

    def finish(self) -> None:
        """Give files and locks back. Rows that no commit holds are lost. A second call does nothing."""
        if self.streams.writer is not None:
            self.commits.wait()
        with self.lock.exclusive:
            self.gate.closed = True
            self.companion = None
            self.streams.release()
            if self.call_off is not None:
                self.call_off()
