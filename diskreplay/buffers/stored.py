"""What every buffer is: a store that is open, its streams, and the one that is written.

Rows come in by :meth:`StoredBuffer._add`, become durable by ``commit``, and get a name by ``checkpoint``. What a sample
looks like is the business of the classes over this one.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Self, Unpack

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay import notebooks
from diskreplay.buffers import checkpointing, copies, forks, pushes, unclosed
from diskreplay.buffers.appender import Appender
from diskreplay.buffers.companion import Companion
from diskreplay.buffers.facts import annotate, begin
from diskreplay.buffers.inputs import NO_FREEDOMS, Freedoms
from diskreplay.buffers.later import LaterWriter
from diskreplay.buffers.options import RUN_DEFAULTS, RunOptions
from diskreplay.buffers.selection import Selection
from diskreplay.buffers.state import set_rng
from diskreplay.buffers.steps import checked, one
from diskreplay.buffers.streams import Streams, beside_writers
from diskreplay.buffers.subscripts import Subscripted
from diskreplay.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    DiskReplayError,
    InputError,
    ReadOnlyError,
    RemoteWarning,
    StateError,
)
from diskreplay.index.episodes import Episode, ends, episodes
from diskreplay.index.where import Where
from diskreplay.interrupts import Lock, undisturbed
from diskreplay.reading import blocks
from diskreplay.reading.reads import Empty, Reads
from diskreplay.remote import checkpoints
from diskreplay.remote.files import RemoteFiles
from diskreplay.remote.objects import connect
from diskreplay.schema import INFO, LATER, Schema
from diskreplay.storage.attachments import Given
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter
from diskreplay.views.batch import Batch

if TYPE_CHECKING:
    import zarr

COMMIT_BYTES = 64 << 20
"""Encoded bytes that may wait in RAM for a commit."""
WAITING_ROWS = 64
"""After every so many rows it is counted how many bytes wait."""


@dataclasses.dataclass(frozen=True)
class Restored:
    """The checkpoint that a buffer was opened at.

    Attributes:
        name: of it.
        metadata: as :meth:`StoredBuffer.checkpoint` was given it.
    """

    name: str
    metadata: dict[str, Any]


class StoredBuffer(Subscripted):
    """What the buffers share. One thread may add while several sample.

    Whatever ends a call half-way, Ctrl-C at any line or an error out of the program's own code, the next call finds it
    done, or finds nothing of it done, or says what to do; each begins with :meth:`_settled`.
    """

    _forked = ""
    """Why a copy in a forked process cannot be used."""

    FREEDOMS: Freedoms = NO_FREEDOMS
    """Of ``add``."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if not (args and isinstance(args[0], Store)):
            raise TypeError(
                f"a {cls.__name__} is made by {cls.__name__}.create(path, ...), open(path) or open_or_create(path, ...)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        store: Store,
        *,
        stream: str | None,
        checkpoint: Checkpoint | None = None,
        forget: Callable[[int], None] = lambda stream: None,
        only_written: bool = False,
        **options: Unpack[RunOptions],
    ) -> None:
        """``stream`` is the one to write, None for none; ``forget`` is told of a stream whose rows were taken back.

        ``only_written``: open no other stream.
        """
        options = {**RUN_DEFAULTS, **options}
        self._store = store
        self._rng = np.random.Generator(np.random.PCG64(options["seed"]))
        if checkpoint:
            set_rng(self._rng, checkpoint.state, checkpoint.name)
        self._commit_rows = options["commit_rows"]
        self._commit_seconds = options["commit_seconds"]
        self._lock = Lock(f"the buffer {store.path!r}")
        """Held while the index in RAM is read or changed; never during a write to disk."""
        self._write_lock = Lock(f"the buffer {store.path!r}", then=self._lock)
        """Held by whoever adds, commits or checkpoints; taken before the other one."""
        self._closed = False
        self._ending = False
        """Whether the last commit was made, and the buffer is open until it is pushed."""
        self._warned_later = 0
        """Blocks of :func:`pushes.warned_later` that are under way, under the lock of writers."""
        self._companion: Companion | None = None
        self._restored = checkpoint
        self._checkpoint = checkpoint if stream is None else None
        """Stay there until a refresh: what it pins cannot be outrun."""
        self._streams = Streams(store, options["cache_bytes"], forget, only_written)
        try:
            self._pushing = pushes.prepare(store, stream, options["remote"], options["push_seconds"])
            self._streams.open(stream, checkpoint, self._pushing.check_going_back if self._pushing else None)
            written = self._streams.written
            if self._streams.writer is not None and written is not None:
                self._appender = Appender(
                    store.schema, self._streams.writer, written.log, written.facts, self.FREEDOMS
                )  # fmt: skip
                self._appender.resume(written.pending())
                self._later = LaterWriter(store.schema, written, self._streams.writer)
            self._last_commit = time.monotonic()
            pushes.committed(self)
            forks.watch(self)
            self._call_off = unclosed.watch(self) if self._streams.writer is not None else None
        except BaseException:
            self._streams.release()
            raise

    # What the classes over this one add

    def _state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """What a checkpoint must hold beside rows and random state: facts for JSON, and arrays (n,)."""
        return {}, {}

    # Facts

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._store.path

    @property
    def schema(self) -> Schema:
        """Spaces, columns, capacity: what does not change."""
        return self._store.schema

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the steps come from, as ``create`` was told; empty where it was not. A copy."""
        return copy.deepcopy(self._store.provenance)

    @property
    def stream(self) -> str | None:
        """Name of the stream that is written; None with mode "r"."""
        writer = self._streams.writer
        return writer.name if writer else None

    @property
    def num_envs(self) -> int:
        """Environments of the stream that is written, or of the first."""
        writer = self._streams.writer
        return writer.commit_record.num_envs if writer else self.schema.num_envs

    @property
    def capacity(self) -> int:
        """Transitions that fit into the window of the stream that is written, or of the first.

        Of a rollout that is ``steps * num_envs``. ``stats()["capacity"]`` adds up all streams.
        """
        writer = self._streams.writer
        return writer.commit_record.capacity if writer else self.schema.capacity

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The space of an observation, as ``create`` was given it."""
        return self.schema.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of an action, as ``create`` was given it."""
        return self.schema.action_space

    def __len__(self) -> int:
        """Transitions in the windows of all streams, committed or not; ClosedError after :meth:`close`."""
        with self._lock:
            if self._closed:
                self._check_open()
            return len(self._settled())

    def __repr__(self) -> str:
        held = "closed" if self._closed else f"{len(self):,} transitions"
        return f"<{type(self).__name__} {self.path!r}: {held}>"

    def _repr_html_(self) -> str:
        """For notebooks: what the buffer holds, and thumbnails of observations that are pictures."""
        if self._closed:
            return notebooks.heading(repr(self))
        facts, every = self.stats(), self.episodes
        done = [episode.total_reward for episode in every if episode.complete_start and episode.ended]
        rows = [
            ("path", self.path),
            ("transitions", f"{facts['transitions']:,} of {facts['capacity']:,}"),
            ("episodes", f"{len(every):,}, mean return {np.mean(done):.5g}" if done else f"{len(every):,}"),
            ("streams", ", ".join(facts["streams"])),
            ("observations", str(self.schema.observation_space)),
            ("actions", str(self.schema.action_space)),
        ]
        return notebooks.heading(type(self).__name__) + notebooks.table((), rows) + self._thumbnails()

    def _thumbnails(self) -> str:
        """Pictures of what is held, as HTML."""
        return ""

    @property
    def episodes(self) -> list[Episode]:
        """Episodes in the windows of all streams, in the order of streams, first rows and environments."""
        with self._lock:
            return [episode for stream in self._settled() for episode in episodes(stream.log, stream.facts)]

    def select(self, where: str) -> Selection:
        """The episodes for which a condition holds, for ``sample`` and ``shuffled`` to keep to: ``within=selection``.

        It is of the episodes as they are now, committed or not. Selecting again finds what was added since.

        Args:
            where: such as ``"return > 100 and tag = 'expert'"``, over ``return``, ``length``, ``end``, ``stream``,
                ``environment`` and the facts of :meth:`begin_episode`; see :mod:`diskreplay.index.where`.

        Raises InputError, which names the character, for what is not in the language.
        """
        read = Where(where)
        with self._lock:
            self._check_open()
            return Selection(read, self._streams.all)

    @property
    def checkpoints(self) -> list[str]:
        """Names of the checkpoints of all makers, oldest first: by their numbers, whatever clocks say."""
        return self._store.checkpoint_names()

    def zarr(self) -> zarr.Group:
        """The committed store as zarr-python sees it, read-only.

        ``rb.zarr()["streams/0/obs"]`` is an array ``(rows, num_envs, *shape)`` of single frames; rows that left the
        window, and those past the last commit, read as zeros.
        """
        with undisturbed():
            import zarr

        files = self._store.files
        if isinstance(files, RemoteFiles):
            return zarr.open_group(zarr.storage.ObjectStore(connect(self.path), read_only=True), mode="r")
        return zarr.open_group(self.path, mode="r")

    def stats(self) -> dict[str, Any]:
        """Facts about the open buffer: transitions, capacity, bytes cached; of each stream rows, commits, and ``ends``.

        ``ends`` counts the episodes of its window by what ended them: "terminated", "truncated", or "cut off" by an
        observation that was not the next one of the step before, or by :meth:`cut`.
        """
        with self._lock:
            streams = {
                stream.disk.name: {
                    "begin": stream.log.begin,
                    "end": stream.log.end,
                    "committed": stream.disk.commit_record.end,
                    "num_envs": stream.log.num_envs,
                    "patches": stream.log.patch_end - stream.log.patch_begin,
                    "ends": ends(stream.log),
                    "sequence": stream.disk.commit_record.sequence,
                }
                for stream in self._settled()
            }
            files = self._store.files
            remote = self._pushing or (files if isinstance(files, RemoteFiles) else None)
            return {
                "transitions": len(self._streams),
                "capacity": sum(stream.disk.commit_record.capacity for stream in self._streams),
                "streams": streams,
                "cache_bytes": self._streams.cache.budget_bytes,
                "cache_used_bytes": self._streams.cache.used_bytes,
                **({"remote": remote.stats()} if remote is not None else {}),
            }

    # Adding

    def _add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Adds one row, and commits where that is due."""
        with self._write_lock:
            self._add_row(obs, action, reward, next_obs, terminated, truncated, valid, extra)
            self._warn()

    def _warn(self) -> None:
        """Says what looks like a mistake, where something does."""
        if self._appender.watch.to_say is not None:
            self._appender.watch.say()

    def _add_row(self, *row: Any) -> None:
        self._writable()
        with self._lock.exclusive:
            self._appender.add(*row)
        self._added()

    def cut(self, envs: Any = None) -> None:
        """Ends the episodes of environments without a flag: their next step begins a new one.

        For an episode that is left, not ended, as when the environment is reset in the middle of it. It is followed as
        a truncated one is: its last transition is bootstrapped. Before the first step, and after one that ended, it
        changes nothing. It is not kept on disk: a program that is started again, resets its environment and could be
        given the very observation that it left calls it again.

        Args:
            envs: bool ``(num_envs,)``; all if None.

        Raises InputError, and what :meth:`add` raises where this buffer takes no rows.
        """
        wanted = np.ones(self.num_envs, bool) if envs is None else np.atleast_1d(np.asarray(envs))
        if wanted.dtype != bool or wanted.shape != (self.num_envs,):
            raise InputError(f"envs must be bool of shape ({self.num_envs},), got {wanted.dtype} {wanted.shape}")
        with self._write_lock:
            self._writable()
            with self._lock.exclusive:
                self._appender.cut(wanted)

    def begin_episode(self, env: int | None = None, **facts: Any) -> None:
        """Says that the next step begins a new episode, and what is known of it: its seed, tags, the policy's version.

        As :meth:`cut`, with facts, which are durable with the commit that has the step. Without a step they are lost.

        Args:
            env: number of the environment; all, each with the same facts, if None.
            **facts: by name, anything that JSON holds, 4,096 bytes an episode. ``seed`` must be an integer from 0 on,
                ``success`` True or False, ``tags`` a list of texts; what others mean is yours. None says nothing.

        Raises InputError, before anything changes, and what :meth:`add` raises where this buffer takes no rows.
        """
        with self._write_lock:
            self._writable().check()
            with self._lock.exclusive:
                begin(self._appender, env, facts)

    def annotate_episode(self, episode: Episode | None = None, /, env: int | None = None, **facts: Any) -> None:
        """Says more of an episode, as at its end: facts are added, and those of the same name replaced.

        They are durable with the next commit.

        Args:
            episode: one of the stream that is written, from ``episodes`` or a selection; the newest if None, which
                after :meth:`begin_episode` is the one that has no step yet.
            env: number of the environment whose newest episode is meant; each one's if None.
            **facts: as of :meth:`begin_episode`.

        Raises InputError, before anything changes, where there is no such episode (any more), and what
        :meth:`begin_episode` raises.
        """
        with self._write_lock:
            self._writable().check()
            with self._lock.exclusive:
                annotate(self._appender, episode, env, facts)

    def write(self, name: str, index: Any, values: Any) -> None:
        """Gives rows that are already there values of a column that was declared as ``later``, in the place of others.

        Batches show them from now on, as ``extra[name]``; ``extra[name + "_known"]`` says which rows have a value, the
        others are zeros. They are durable with the next commit.

        Args:
            name: of the column.
            index: ``(B,)`` integers, of batches: of transitions of the stream that this buffer writes, whatever the
                view shows. The index of the row ``t`` steps after another is higher by ``t * num_envs``. Those that
                have left the window since are ignored; of a repeated index the last value counts.
            values: ``(B, *shape)``; of the column's dtype, or what it holds without loss.

        Raises InputError, with nothing written, for another column, shape or dtype, an index that names no transition
        or one of another writer's stream, and NaN or infinity with ``finite=True``; and what :meth:`add` raises where
        this buffer takes no rows.
        """
        with self._write_lock:
            self._writable().check()
            with self._lock.exclusive:
                self._later.write(name, index, values)
            if self._later.waiting_bytes > COMMIT_BYTES:
                self.commit()

    def _check_write(self, name: str, index: Any, values: Any) -> None:
        """Raises what :meth:`write` would, and writes nothing."""
        with self._lock:
            self._writable().check()
            self._later.checked(name, index, values)

    def _extend(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Adds many rows, and commits wherever that is due."""
        with self._write_lock, pushes.warned_later(self):
            writer, appender = self._writable(), self._appender
            steps = checked(appender, obs, action, reward, next_obs, terminated, truncated, valid, extra)
            appender.check(len(steps))
            at = 0
            while at < len(steps):
                if not (at and appender.single_frames and steps.follows[at]):
                    self._add_row(*one(appender, steps, at))
                    at += 1
                    continue
                stop = at + int(np.argmin(np.append(steps.follows[at:], False)))
                left = self._commit_rows - (appender.log.end - writer.commit_record.end)
                with self._lock.exclusive:
                    at += appender.add_run(steps.values, steps.next_obs, steps.ended, at, min(stop, at + left))
                self._added()
            self._warn()
        pushes.warn(self)

    def _added(self) -> None:
        """Commits after rows were added, where that is due. Needs the lock of writers alone: nobody else adds."""
        end, writer = self._appender.log.end, self._appender.writer
        if (
            end - writer.commit_record.end >= self._commit_rows
            or time.monotonic() - self._last_commit >= self._commit_seconds
            or (not end % WAITING_ROWS and writer.waiting_bytes() > COMMIT_BYTES)
        ):
            self.commit()

    def commit(self) -> None:
        """Makes everything added so far durable.

        Raises ReadOnlyError, ClosedError or StateError when this buffer writes nothing, WriteFailedError when the file
        system refuses; the last commit is then intact, and the store takes no more rows until it is reopened.
        """
        with self._write_lock:
            writer = self._writable()
            with self._write_lock.exclusive:
                self._commit(writer)
            if self._companion is not None:
                self._companion.committed()
            pushes.committed(self)
        pushes.warn(self)

    def push(self, timeout: float | None = None) -> None:
        """Commits, and waits until the remote store has everything: rows, and the checkpoints of this store.

        Args:
            timeout: seconds to wait at the most.

        Raises InputError where the buffer was opened without ``remote``, RemoteError when the time has passed,
        RemoteConflictError where the remote stream is another writer's; and what :meth:`commit` raises.
        """
        with self._write_lock:
            self._writable()
            if self._pushing is None:
                raise InputError("there is nowhere to push to: open the buffer with remote='s3://bucket/name'")
            with pushes.warned_later(self):
                self.commit()
        self._pushing.wait(timeout)
        pushes.warn_of_names(self, self._pushing, 4)

    def _commit(self, writer: StreamWriter) -> None:
        log = self._appender.log
        self._last_commit = time.monotonic()
        facts, same = self._appender.facts, log.end == writer.commit_record.end
        unwritten = facts.unwritten or self._later.unwritten
        if same and log.begin == writer.commit_record.begin and not unwritten:
            writer.commit_counts(self._lock.exclusive)
            writer.reclaim(self._lock.exclusive)  # a checkpoint may have been dropped
            return
        with self._lock.exclusive:
            self._appender.patch_pending()
            patch_begin = log.drop_patches()
            lines = facts.lines(log.begin)
            at = writer.put_info(lines.data)
            begins = {INFO: at if lines.begin < 0 else lines.begin, LATER: self._later.before_commit()}
        writer.commit(log.begin, patch_begin, self._lock.exclusive, begins)
        with self._lock.exclusive:
            facts.written(lines, at)
            self._later.written()
            self._streams.size_cache()

    def _clear(self) -> None:
        """Empties the window of the stream that is written; the next commit gives its space back. Needs the locks."""
        self._appender.log.slide(self._appender.log.end)

    def checkpoint(
        self,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        attachments: Given | None = None,
        keep: int | None = None,
    ) -> None:
        """Commits, and names this point: rows, sampler and random state stay available until it is dropped.

        A buffer that reads a remote store (a URL, ``mode="r"``) makes one, too: over the commits that it stands at.

        Args:
            name: printable, without the characters that file systems reserve; not in use.
            metadata: a mapping of anything that JSON can hold, 16 MiB at most; comes back by
                :meth:`checkpoint_metadata` and :attr:`restored`.
            attachments: files by name, such as the learner's weights: bytes, or a function that is called once with a
                binary file, and writes to it in order (``lambda file: torch.save(state, file)``). They are as durable
                as the checkpoint, and come back by :meth:`attachment`. They are written first, while other threads add
                and sample; rows that come meanwhile are in the checkpoint, too.
            keep: drop all but the newest so many of the checkpoints that this stream's writer (or, under a URL, a
                reader) made with ``keep``, this one counted. None drops none.

        Raises InputError or CheckpointError for a bad name, metadata, attachment or ``keep``, and what a function for
        an attachment and :meth:`commit` raise; there is no such checkpoint then, and the store goes on.
        """
        checkpointing.make(self, checkpointing.wanted(self._store, name, metadata, attachments, keep))
        pushes.warn(self)

    def drop_checkpoint(self, name: str) -> None:
        """Forgets a checkpoint; the next commit gives back the space that only it needed.

        Of a remote store that was opened by its URL, `diskreplay gc` gives it back.
        """
        files = self._store.files
        if isinstance(files, RemoteFiles):
            checkpoints.drop(self._store, files, name)
            return
        with self._write_lock:
            writer = self._writable()
            with self._write_lock.exclusive:
                self._store.drop_checkpoint(name, writer)

    def checkpoint_metadata(self, name: str) -> dict[str, Any]:
        """The metadata that the checkpoint was made with; CheckpointError when there is none of that name."""
        return self._store.checkpoint(name).metadata

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that this buffer was opened at; None where it was opened at a last commit, or made."""
        found = self._restored
        return None if found is None else Restored(found.name, copy.deepcopy(found.metadata))

    def attachment(self, name: str, checkpoint: str | None = None) -> BinaryIO:
        """Opens a file that a checkpoint took along: a binary file to be read, in any order.

        Args:
            name: of the file.
            checkpoint: name of the checkpoint; the one that the buffer was opened at if None.

        Raises CheckpointError where there is no such checkpoint (any more) or file. Reading it raises CorruptionError
        where a byte is not what was written.
        """
        if checkpoint is not None:
            found = self._store.checkpoint(checkpoint)
        elif self._restored is None:
            raise CheckpointError(
                f"the buffer {self.path!r} was not opened at a checkpoint; name one: "
                f"attachment({name!r}, checkpoint=...)"
            )
        else:
            found = self._store.checkpoint(self._restored.name)
            if found.id != self._restored.id:
                raise CheckpointError(
                    f"the checkpoint {found.name!r} that the buffer was opened at was dropped; another has its name now"
                )
        return self._store.open_attachment(found, name)

    # Reading

    def _beside_writers(self, draft: Callable[[Reads], Batch]) -> Batch:
        """A batch; made again after a refresh where another process changed meanwhile what was to be read."""

        def batch() -> Batch:
            reads, drafted = self._drafted(draft)
            reads.finish()
            return drafted

        return beside_writers(batch, self._caught_up)

    def _drafted(self, draft: Callable[[Reads], Batch], empty: Empty = blocks.empty) -> tuple[Reads, Batch]:
        """A batch whose large arrays are still to be read."""
        reads = Reads(empty)
        with self._lock:
            self._check_open()
            return reads, draft(reads)

    def _begun(self, draft: Callable[[Reads], Batch], empty: Empty = blocks.empty) -> Callable[[], Batch]:
        """As :meth:`_beside_writers`, in two halves: the batch is drawn now, and what is remote begins to come.

        ``empty`` makes its large arrays.
        """
        begun: list[tuple[Reads, Batch]] = []
        with contextlib.suppress(CorruptionError):  # the other half looks again
            begun.append(self._drafted(draft, empty))
            begun[0][0].begin()

        def batch() -> Batch:
            reads, drafted = begun.pop() if begun else self._drafted(draft, empty)
            reads.finish()
            return drafted

        return lambda: beside_writers(batch, self._caught_up)

    def _caught_up(self, any_commit: bool) -> bool:
        """Goes on to the newest commits where other writers have evicted what this buffer still held for there.

        Likewise, if ``any_commit``, where there are just newer ones: a shard may have been compacted since.
        """
        with self._lock:
            if self._checkpoint or not self._streams.outrun(any_commit):
                return False
        return self.refresh()

    def refresh(self) -> bool:
        """Goes on to the newest commits of the streams that others write; whether anything changed.

        Of a store under a URL, raises RemoteError where the storage fails, StoreNotFoundError where the store was
        removed and RemoteConflictError where another has taken its place; the buffer stays where it was.
        """
        files = self._store.files
        if isinstance(files, RemoteFiles) and not self._closed:
            files.refresh()
        with self._write_lock:
            torn = self._streams.torn
            self._check_open()
            with self._lock.exclusive:
                before = self._streams.commits
                self._checkpoint = None
                self._streams.open_readers(None)
                return torn or before != self._streams.commits

    # End

    def close(self) -> None:
        """Commits, and gives the stream to the next writer. Closing twice does nothing.

        Priorities of a sampler are not kept; a checkpoint keeps them. A buffer that is forgotten is closed, and what
        is still open when the interpreter ends is committed; see :mod:`diskreplay.buffers.unclosed`.

        A Ctrl-C meanwhile is acted on when it is done. Raises what a commit raises, and StateError where rows are lost
        because an earlier commit was cut short; the buffer is closed all the same. Of a commit that failed with
        WriteFailedError the program knows already. What else ends it half-way leaves the buffer open, to be closed
        again.
        """
        unsent = self._end_pushing()  # before signals wait: the network may take its time
        pushing = None if self._closed else self._pushing
        with self._write_lock:
            try:
                if not (self._closed or self._ending) and self._streams.writer is not None:
                    with pushes.warned_later(self):
                        self._commit_last(self._streams.writer)
            except DiskReplayError:
                self._finish()
                raise
            self._finish()
        if isinstance(self._store.files, RemoteFiles):
            self._store.files.stop()
        if pushing is not None:
            pushes.warn_of_names(self, pushing, 4)
        if unsent is not None:
            warnings.warn(
                f"not everything of {self.path!r} is pushed, and all of it is here; 'diskreplay push' sends the rest: "
                f"{unsent}", RemoteWarning, stacklevel=2,
            )  # fmt: skip

    def _end_pushing(self) -> Exception | None:
        """Commits and pushes what is left; what kept that from being done."""
        return pushes.end(self)

    def _commit_last(self, writer: StreamWriter) -> None:
        """The commit of :meth:`close`; StateError where there can be none, and something is lost by that."""
        if writer.failure is None:
            if self._companion is None:
                self.commit()
            else:
                self._companion.save()
            return
        self._settled()
        log, record = self._appender.log, writer.commit_record
        unwritten = self._appender.facts.unwritten or self._later.unwritten
        lost = (log.begin, log.end) != (record.begin, record.end) or unwritten
        if writer.cut_short and (self._companion is not None or lost):
            writer.check()

    def _finish(self) -> None:
        """Gives everything back; rows that no commit holds are gone. Doing it again does no harm."""
        with self._lock.exclusive:
            self._closed = True
            self._companion = None
            self._streams.release()
            if self._call_off is not None:
                self._call_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except StateError as lost:
            if error is None:
                raise
            error.add_note(f"{type(lost).__name__}: {lost}")  # what ended the block is what there is to know

    def __reduce__(self) -> tuple[Any, ...]:
        """A buffer with mode "r" is copied and pickled by its path; see :mod:`diskreplay.buffers.copies`."""
        return copies.reduce(self, self._opened_with())

    def _opened_with(self) -> dict[str, Any]:
        """What ``open`` of this class is told beside the options of all buffers, to make one like this."""
        return {}

    # Inside

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the buffer {self.path!r} is closed; ReplayBuffer.open opens it again")
        if self._forked:
            raise StateError(self._forked)
        if self._torn():
            self._settled()

    def _settled(self) -> Streams:
        """The streams, after what an interrupted call left half-done was taken back, or done."""
        if self._torn():
            with self._lock.exclusive:
                self._settle()
        return self._streams

    def _torn(self) -> bool:
        """Whether a call was interrupted half-way; also while another thread is in it, which has the lock."""
        return (
            self._streams.torn
            or (self._streams.writer is not None and (self._appender.torn or self._later.torn))
            or (self._companion is not None and self._companion.torn)
        )

    def _settle(self) -> None:
        """Takes back, or does, what an interrupted call left half-done. Needs the lock; can be interrupted itself."""
        if self._streams.torn:
            self._checkpoint = None
            self._streams.open_readers(None)
        if self._streams.writer is not None:
            self._appender.take_back()
            self._later.settle()
        if self._companion is not None:
            self._companion.settle()

    @property
    def _read_only(self) -> bool:
        """Whether it was opened with mode "r"; ClosedError after :meth:`close`."""
        self._check_open()
        return self._streams.writer is None

    def _writable(self) -> StreamWriter:
        self._check_open()
        if self._streams.writer is None:
            raise ReadOnlyError(f"the buffer {self.path!r} was opened with mode='r'; open it with mode='r+' to write")
        if self._ending:
            raise ClosedError(f"the buffer {self.path!r} is being closed, and takes no more rows")
        return self._streams.writer
