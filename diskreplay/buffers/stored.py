"""The base of every buffer: facts of its store, rows that are added, commits and checkpoints.

An :class:`~diskreplay.engine.engine.Engine` does the work. What a sample looks like is the business of the classes over
this one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import gymnasium
import numpy as np

from diskreplay.buffers import copies
from diskreplay.buffers.opening import Openable
from diskreplay.buffers.selection import Selection
from diskreplay.buffers.subscripts import Subscripted
from diskreplay.checks import check_array
from diskreplay.engine import checkpointing, lifetime
from diskreplay.engine.engine import Engine
from diskreplay.engine.inputs import NO_EXCEPTIONS, InputExceptions
from diskreplay.engine.run import DEFAULTS, EngineOptions
from diskreplay.errors import CheckpointError, InputError, end_block
from diskreplay.index.episodes import Episode, ends
from diskreplay.index.selecting import warn_of_unknown
from diskreplay.index.where import Where
from diskreplay.process.locks import held_back
from diskreplay.schema.columns import Schema
from diskreplay.storage.attachments import Given
from diskreplay.storage.store import Store
from diskreplay.views import notebooks

if TYPE_CHECKING:
    import zarr


@dataclasses.dataclass(frozen=True)
class Restored:
    """The checkpoint that a buffer was opened at.

    Attributes:
        name: the name of the checkpoint.
        metadata: the metadata that :meth:`StoredBuffer.checkpoint` was given.
    """

    name: str
    metadata: dict[str, Any]


class StoredBuffer(Openable, Subscripted):
    """The base of all buffers; one thread may add while several sample.

    Attributes:
        engine: the open store, for adapters of other libraries; see docs/architecture.md, "The engine's interface".
    """

    _exceptions: InputExceptions = NO_EXCEPTIONS
    """The values that ``add`` takes against a rule."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if not (args and isinstance(args[0], Store)):
            raise TypeError(
                f"a {cls.__name__} is made by {cls.__name__}.create(path, ...), open(path) or open_or_create(path, ...)"
            )
        return super().__new__(cls)

    def __init__(self, store: Store, *, run: EngineOptions = DEFAULTS, **options: Any) -> None:
        """Open a store; ``run`` are the user's options of its engine, ``options`` its other arguments."""
        self.engine = Engine(store, run, exceptions=self._exceptions, **options)
        lifetime.watch(self, self.engine)

    # Facts

    @property
    def path(self) -> str:
        """The store's directory."""
        return self.engine.path

    @property
    def schema(self) -> Schema:
        """The spaces, columns and first capacity of the store, which do not change."""
        return self.engine.schema

    @property
    def provenance(self) -> dict[str, Any]:
        """A copy of the origin of the steps that ``create`` was told, empty if it was told none."""
        return copy.deepcopy(self.engine.store.provenance)

    @property
    def stream(self) -> str | None:
        """The name of the stream that is written, or None with mode "r"."""
        return self.engine.stream

    @property
    def num_envs(self) -> int:
        """The number of environments of the stream that is written, or of the first."""
        writer = self.engine.streams.writer
        return writer.commit_record.num_envs if writer else self.schema.num_envs

    @property
    def capacity(self) -> int:
        """The number of transitions that fit into the window of the stream that is written, or of the first.

        Of a rollout that is ``steps * num_envs``. ``stats()["capacity"]`` adds up all streams.
        """
        if self.engine.streams.writer is not None:
            return self.engine.appender.log.capacity
        first = next(iter(self.engine.streams), None)
        return self.schema.capacity if first is None else first.log.capacity

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The space of an observation, as ``create`` was given it."""
        return self.schema.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of an action, as ``create`` was given it."""
        return self.schema.action_space

    def __len__(self) -> int:
        """Return the number of transitions in the windows of all streams; raise ClosedError after :meth:`close`."""
        with self.engine.lock:
            if self.engine.gate.closed:
                self.engine.check_open()
            return len(self.engine.checked_streams())

    def __repr__(self) -> str:
        held = "closed" if self.engine.gate.closed else f"{len(self):,} transitions"
        return f"<{type(self).__name__} {self.path!r}: {held}>"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: what the buffer holds, and thumbnails of observations that are pictures."""
        if self.engine.gate.closed:
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
        """Return pictures of what is held, as HTML."""
        return ""

    @property
    def episodes(self) -> list[Episode]:
        """The episodes in the windows of all streams, in the order of streams, first rows and environments.

        The buffer keeps them, 250 bytes each: asked again, it makes only those that are new, or have changed.
        """
        found: list[Episode] = []
        with self.engine.lock:
            for stream in self.engine.checked_streams():
                found += stream.episodes()
        return found

    def select(self, where: str) -> Selection:
        """Return the episodes for which a condition holds; ``sample(n, within=...)`` and ``shuffled`` keep to them.

        It is of the episodes as they are now, committed or not. Selecting again finds what was added since.

        Args:
            where: such as ``"return > 100 and tag == 'expert'"``, over ``return``, ``length``, ``end``, ``stream``,
                ``environment`` and the facts of :meth:`begin_episode`; see :mod:`diskreplay.index.where`.

        Raises InputError, which names the character, for what is not in the language; and for the name of a column,
        such as ``reward``, where no episode has a fact of that name: what can be selected are episodes, not steps.
        Warns, by MisuseWarning, of any other name that no episode has as a fact.
        """
        read = Where(where)
        names = {one.name.partition("/")[0] for one in (*self.schema.columns, *self.schema.later)}
        with self.engine.lock:
            self.engine.check_open()
            streams = self.engine.streams.all
            found = Selection(read, streams, names)
            facts = [each for one in streams for each in one.episodes.facts()] if read.facts else []
        warn_of_unknown(read, facts)
        return found

    @property
    def checkpoints(self) -> list[str]:
        """The names of the checkpoints of all makers, oldest first: by their numbers, whatever clocks say."""
        return self.engine.store.checkpoint_names()

    def zarr(self) -> zarr.Group:
        """Return the committed store as zarr-python sees it, read-only.

        ``rb.zarr()["streams/0/obs"]`` is an array ``(rows, num_envs, *shape)`` of single frames. It shows whole chunks,
        of each array up to another row: those that commits have moved to shards; closing moves all rows there. Others,
        and rows that left the window, read as zeros.
        """
        with held_back():
            import zarr

        return zarr.open_group(self.engine.store.files.zarr(self.path), mode="r")

    def stats(self) -> dict[str, Any]:
        """Return facts about the open buffer: transitions, capacity, bytes cached, and rows, commits, ends by stream.

        ``cache`` says for ``"runs"`` (frames kept as what differs from a key frame), ``"raw"`` (frames kept whole) and
        ``"disk"`` which share of what batches read came from there, and for the first two the rows and bytes held.

        ``held`` names the columns whose windows are held in RAM, with the bytes that these take of ``cache_bytes``.

        ``ends`` counts the episodes of its window by what ended them: "terminated", "truncated", or "cut off" by an
        observation that was not the next one of the step before, or by :meth:`cut`.
        """
        with self.engine.lock:
            streams = {
                stream.disk.name: {
                    "begin": stream.log.begin,
                    "end": stream.log.end,
                    "committed": stream.disk.commit_record.end,
                    "num_envs": stream.log.num_envs,
                    "capacity": stream.log.capacity,
                    "patches": stream.log.patch_end - stream.log.patch_begin,
                    "ends": ends(stream.log),
                    "sequence": stream.disk.commit_record.sequence,
                }
                for stream in self.engine.checked_streams()
            }
            remote = (self.engine.pushes.pushing or self.engine.store.files).stats()
            return {
                "transitions": len(self.engine.streams),
                "capacity": sum(stream.log.capacity for stream in self.engine.streams),
                "streams": streams,
                "cache_bytes": self.engine.streams.cache.budget.size,
                "cache_used_bytes": self.engine.streams.cache.used_bytes,
                "held": {
                    "columns": sorted(self.engine.streams.held or ()),
                    "bytes": self.engine.streams.cache.held_bytes,
                },
                "cache": self.engine.streams.cache.stats(),
                **({"remote": remote} if remote else {}),
            }

    # Adding

    def cut(self, envs: Any = None) -> None:
        """End the episodes of environments without a flag: their next step begins a new one.

        For an episode that is left, not ended, as when the environment is reset in the middle of it. It is followed as
        a truncated one is: its last transition is bootstrapped. Before the first step, and after one that ended, it
        changes nothing. It is not kept on disk: a program that is started again, resets its environment and could be
        given the very observation that it left calls it again.

        Args:
            envs: bool ``(num_envs,)``; all if None.

        Raises InputError, and what :meth:`add` raises where this buffer takes no rows.
        """
        wanted = np.ones(self.num_envs, bool) if envs is None else np.atleast_1d(check_array("envs", envs))
        if wanted.dtype != bool or wanted.shape != (self.num_envs,):
            raise InputError(f"envs must be bool of shape ({self.num_envs},), got {wanted.dtype} {wanted.shape}")
        self.engine.cut(wanted)

    def begin_episode(self, env: int | None = None, **facts: Any) -> None:
        """Tell that the next step begins an episode, and what is known of it: its seed, tags, the policy's version.

        As :meth:`cut`, with facts, which are durable with the commit that has the step. Without a step they are lost.

        Args:
            env: number of the environment; all, each with the same facts, if None.
            **facts: the facts by name, anything that JSON holds, 4,096 bytes an episode. ``seed`` must be an integer
                from 0 on, ``success`` True or False, ``tags`` a list of texts; what others mean is yours. None says
                nothing.

        Raises InputError, before anything changes, and what :meth:`add` raises where this buffer takes no rows.
        """
        self.engine.begin_episode(env, facts)

    def annotate_episode(self, episode: Episode | None = None, /, env: int | None = None, **facts: Any) -> None:
        """Tell more of an episode, such as at its end: facts are added, and those of the same name replaced.

        They are durable with the next commit.

        Args:
            episode: one of the stream that is written, from ``episodes`` or a selection; the newest if None, which
                after :meth:`begin_episode` is the one that has no step yet.
            env: number of the environment whose newest episode is meant; each one's if None.
            **facts: as in :meth:`begin_episode`.

        Raises InputError, before anything changes, where there is no such episode (any more), and what
        :meth:`begin_episode` raises.
        """
        self.engine.annotate_episode(episode, env, facts)

    def write(self, name: str, index: Any, values: Any) -> None:
        """Give rows that are already there values of a column declared as ``later``, in place of earlier values.

        Batches show them from now on, as ``extra[name]``; ``extra[name + "_known"]`` says which rows have a value, the
        others are zeros. They are durable with the next commit.

        Args:
            name: the name of the column.
            index: ``(B,)`` integers, of batches: of transitions of the stream that this buffer writes, whatever the
                view shows. The index of the row ``t`` steps after another is higher by ``t * num_envs``. Those that
                have left the window since are ignored; of a repeated index the last value counts.
            values: ``(B, *shape)``; of the column's dtype, or what it holds without loss.

        Raises InputError, with nothing written, for another column, shape or dtype, an index that names no transition
        or one of another writer's stream, and NaN or infinity with ``finite=True``; and what :meth:`add` raises where
        this buffer takes no rows.
        """
        self.engine.write(name, index, values)

    def commit(self) -> None:
        """Make everything added so far durable.

        Raises ReadOnlyError, ClosedError or StateError when this buffer writes nothing, WriteFailedError when the file
        system refuses; the last commit is then intact, and the store takes no more rows until it is reopened.
        """
        self.engine.commit()

    def push(self, timeout: float | None = None) -> None:
        """Commit, and wait until the remote store has everything: rows, and the checkpoints of this store.

        Args:
            timeout: seconds to wait at the most.

        Raises InputError where the buffer was opened without ``remote``, RemoteError when the time has passed,
        RemoteConflictError where the remote stream is another writer's; and what :meth:`commit` raises.
        """
        self.engine.push(timeout)

    def checkpoint(
        self,
        name: str,
        metadata: Mapping[str, Any] | None = None,
        *,
        attachments: Given | None = None,
        keep: int | None = None,
    ) -> None:
        """Commit, and name this point: rows, sampler and random state stay available until it is dropped.

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

        Raises InputError or CheckpointError for a bad name, metadata, attachment or ``keep``, InputError where a
        function for an attachment writes nothing, or returns bytes or text, and what it and :meth:`commit` raise;
        there is no such checkpoint then, and the store goes on.
        """
        engine = self.engine
        checkpointing.make(engine, checkpointing.wanted(engine.store, name, metadata, attachments, keep))
        engine.pushes.warn()

    def drop_checkpoint(self, name: str) -> None:
        """Forget a checkpoint; the next commit gives back the space that only it needed.

        Of a remote store that was opened by its URL, `diskreplay gc` gives it back.
        """
        checkpointing.drop(self.engine, name)

    def checkpoint_metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata that the checkpoint was made with; raise CheckpointError if there is no such one."""
        return self.engine.store.checkpoint(name).metadata

    @property
    def restored(self) -> Restored | None:
        """The checkpoint at which this buffer was opened, or None if it was opened at a last commit, or made."""
        found = self.engine.restored
        return None if found is None else Restored(found.name, copy.deepcopy(found.metadata))

    def attachment(self, name: str, checkpoint: str | None = None) -> BinaryIO:
        """Open a file that a checkpoint took along: a binary file to be read, in any order.

        Args:
            name: the name of the file.
            checkpoint: name of the checkpoint; the one that the buffer was opened at if None.

        Raises CheckpointError where there is no such checkpoint (any more) or file. Reading it raises CorruptionError
        where a byte is not what was written.
        """
        if checkpoint is not None:
            found = self.engine.store.checkpoint(checkpoint)
        elif self.engine.restored is None:
            raise CheckpointError(
                f"the buffer {self.path!r} was not opened at a checkpoint; name one: "
                f"attachment({name!r}, checkpoint=...)"
            )
        else:
            found = self.engine.store.checkpoint(self.engine.restored.name)
            if found.id != self.engine.restored.id:
                raise CheckpointError(
                    f"the checkpoint {found.name!r} that the buffer was opened at was dropped; another has its name now"
                )
        return self.engine.store.open_attachment(found, name)

    def refresh(self) -> bool:
        """Go on to the newest commits of the streams that others write, and return True if anything changed.

        Of a store under a URL, raises RemoteError where the storage fails, StoreNotFoundError where the store was
        removed and RemoteConflictError where another has taken its place; the buffer stays where it was.
        """
        return self.engine.refresh()

    # End

    def close(self) -> None:
        """Commit, and give the stream to the next writer; a second call does nothing.

        Priorities are kept for the next opening to write, as long as no other rows are committed before it. A buffer
        that is forgotten is closed, and what is still open when the interpreter ends is committed, and its priorities
        kept; see :mod:`diskreplay.engine.lifetime`.

        A Ctrl-C meanwhile is acted on when it is done. Raises what a commit raises, also if an earlier commit failed or
        was cut short (StateError) and rows are lost by that: the error says how many, once, and the buffer is closed
        all the same. Where an exception leaves a ``with`` block, it gets that as a note. What else ends closing
        half-way leaves the buffer open, to be closed again.
        """
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        end_block(self.close, error)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the pickle of a buffer with mode "r", which holds its path; see :mod:`diskreplay.buffers.copies`."""
        return copies.reduce(type(self), self.engine, {})
