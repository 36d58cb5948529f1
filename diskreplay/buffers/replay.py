"""The replay buffer: add steps, sample transitions, commit, checkpoint, resume."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay import schema as schemas
from diskreplay.buffers import assemble, shuffle
from diskreplay.buffers.appender import Appender
from diskreplay.buffers.assemble import Draft
from diskreplay.buffers.batch import Batch
from diskreplay.buffers.loader import Loader
from diskreplay.buffers.state import restore_sampler, rng_to_json, sampler_state, set_rng, settings
from diskreplay.buffers.streams import Streams
from diskreplay.errors import (
    CheckpointError,
    ClosedError,
    CorruptionError,
    InputError,
    NotEnoughDataError,
    ReadOnlyError,
)
from diskreplay.index.episodes import Episode, episodes
from diskreplay.sampling.window import Prioritized, Sampler
from diskreplay.schema import Codec, Schema
from diskreplay.storage.files import Files, LocalFiles
from diskreplay.storage.store import FIRST_STREAM, Checkpoint, Store
from diskreplay.storage.stream import StreamWriter
from diskreplay.views.transition import Transition

if TYPE_CHECKING:
    import zarr

CACHE_BYTES = 256 << 20
COMMIT_ROWS = 10_000
COMMIT_SECONDS = 10.0
COMMIT_BYTES = 64 << 20
"""Encoded bytes that may wait in RAM for a commit."""

PathLike = str | os.PathLike[str]


class ReplayBuffer:
    """A replay buffer on disk, made by :meth:`create` or :meth:`open`.

    One thread may add while several sample. Rows that no commit holds are sampled like all others, and are lost when
    the process dies; :meth:`commit` is called by itself every ``commit_rows`` rows or ``commit_seconds`` seconds
    (looked at when a row is added), and by :meth:`close`.
    """

    def __init__(
        self,
        store: Store,
        *,
        stream: str | None,
        checkpoint: Checkpoint | None = None,
        view: Transition | None = None,
        sampler: Sampler | None = None,
        cache_bytes: int = CACHE_BYTES,
        commit_rows: int = COMMIT_ROWS,
        commit_seconds: float = COMMIT_SECONDS,
        seed: int | None = None,
    ) -> None:
        """Not for users: see :meth:`create` and :meth:`open`. ``stream`` is the one to write, None for none."""
        state = checkpoint.state if checkpoint else {}
        self._store = store
        self._view, self._sampler = settings({**store.settings, **state}, view, sampler)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        if checkpoint:
            set_rng(self._rng, state, checkpoint.name)
        self._commit_rows = commit_rows
        self._commit_seconds = commit_seconds
        self._write_lock = threading.RLock()
        """Held by whoever adds, commits or checkpoints; taken before the other one."""
        self._lock = threading.RLock()
        """Held while the index in RAM is read or changed; never during a write to disk."""
        self._closed = False
        self._checkpoint = checkpoint if stream is None else None
        """Stay there until a refresh: what it pins cannot be outrun."""
        if checkpoint and sampler is None:
            restore_sampler(self._sampler, state.get("priorities"), store.read_arrays(checkpoint), checkpoint.name)
        forget = self._sampler.forget if isinstance(self._sampler, Prioritized) else lambda number: None
        self._streams = Streams(store, stream, checkpoint, cache_bytes, forget)
        written = self._streams.written
        if self._streams.writer is not None and written is not None:
            self._appender = Appender(store.schema, self._streams.writer, written.log)
            try:
                self._appender.resume(written.pending())
            except BaseException:
                self._streams.release()
                raise
        self._last_commit = time.monotonic()

    @classmethod
    def create(
        cls,
        path: PathLike,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        capacity: int,
        num_envs: int = 1,
        frame_stack: int | Mapping[str, int] = 1,
        stack_axis: Literal["auto", 0, -1] | None = "auto",
        stack_padding: Literal["zero", "reset"] = "zero",
        columns: Mapping[str, Any] | None = None,
        reward_dtype: Any = np.float32,
        codec: str | Codec | Mapping[str, str | Codec] | None = None,
        chunk_rows: int | Mapping[str, int] | None = None,
        shard_rows: int | Mapping[str, int] | None = None,
        view: Transition | None = None,
        sampler: Sampler | None = None,
        cache_bytes: int = CACHE_BYTES,
        commit_rows: int = COMMIT_ROWS,
        commit_seconds: float = COMMIT_SECONDS,
        seed: int | None = None,
        files: Files | None = None,
    ) -> ReplayBuffer:
        """Makes a new store at ``path`` and opens it for writing.

        Args:
            path: a directory that does not exist or is empty.
            observation_space, action_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them;
                dtypes are kept as they are.
            capacity: transitions (rows x environments) that can be sampled; older ones are evicted, and their disk
                space is given back shard by shard.
            num_envs: environments that step in lockstep.
            frame_stack: frames of an observation, for every leaf or by name of the leaf. Frames are stored once.
            stack_axis: where given observations hold the stack: 0, -1, or None when they are single frames, which are
                stacked at sampling time; "auto" takes an axis with just ``frame_stack`` entries for it.
            stack_padding: what single frames are stacked with at an episode's start: "zero", or "reset" for the first
                frame repeated (Gymnasium's FrameStackObservation). Stacked input keeps its own padding.
            columns: further values of each step by name: a dtype, ``(shape, dtype)`` or a space.
            reward_dtype: float32, as most learners want it, or another floating point type.
            codec: "lz4hc", "lz4", "zstd" (with a level: "lz4hc:5") or "none"; for the observations, or by column.
            chunk_rows, shard_rows: rows of a compressed chunk and of a file, likewise; chosen from a row's bytes if
                None.
            view: what a sample looks like; ``Transition()`` if None.
            sampler: which transitions it holds: ``Uniform()``, as if None, ``Proportional(...)`` or ``RankBased(...)``;
                an object of its own for each buffer.
            cache_bytes: RAM for decoded chunks.
            commit_rows, commit_seconds: how much may be lost when the process is killed.
            seed: of the sampler's random generator; from the system's entropy if None.
            files: another file system, for tests.

        Raises:
            SchemaError, InputError: for arguments that break a rule.
            StoreExistsError: when something is at ``path``.
            WriteFailedError: when the file system refuses.
        """
        cls._check_options(cache_bytes, commit_rows, commit_seconds, seed)
        schema = schemas.build(
            observation_space, action_space, capacity=capacity, num_envs=num_envs, frame_stack=frame_stack,
            stack_axis=stack_axis, stack_padding=stack_padding, columns=columns, reward_dtype=reward_dtype, codec=codec,
            chunk_rows=chunk_rows, shard_rows=shard_rows,
        )  # fmt: skip
        view, sampler = settings({}, view, sampler)
        kept = {"view": view.to_json(), "sampler": sampler.to_json()}
        store = Store.create(_full_path(path), files or LocalFiles(), schema, kept)
        return cls(
            store, stream=FIRST_STREAM, view=view, sampler=sampler, cache_bytes=cache_bytes, commit_rows=commit_rows,
            commit_seconds=commit_seconds, seed=seed,
        )  # fmt: skip

    @classmethod
    def open(
        cls,
        path: PathLike,
        *,
        mode: Literal["r", "r+"] = "r+",
        stream: str = FIRST_STREAM,
        checkpoint: str | None = None,
        num_envs: int | None = None,
        capacity: int | None = None,
        view: Transition | None = None,
        sampler: Sampler | None = None,
        cache_bytes: int = CACHE_BYTES,
        commit_rows: int = COMMIT_ROWS,
        commit_seconds: float = COMMIT_SECONDS,
        seed: int | None = None,
        files: Files | None = None,
    ) -> ReplayBuffer:
        """Opens the store at ``path`` at its last commit, or at a checkpoint.

        Args:
            path: of the store.
            mode: "r+" to write one stream and sample from all; "r" to sample beside a live writer, changing nothing.
            stream: to write; a new name makes a new stream, for another process. Ignored with mode "r".
            checkpoint: name of one to return to: data, sampler and random state are just as they were. With "r+" the
                rows of ``stream`` after it are discarded, unless a later checkpoint needs them.
            num_envs, capacity: of a new stream, as of the first if None; those of one that exists do not change.
            view, sampler: as the store was created with (or as of the checkpoint) if None.
            cache_bytes, commit_rows, commit_seconds, seed, files: as of :meth:`create`; ``seed`` is not used with a
                checkpoint, which has its own random state.

        Raises:
            StoreNotFoundError, NotAStoreError, FormatVersionError, CheckpointError: when there is no such thing.
            LockedError: when another writer holds the stream.
            CorruptionError: when what was committed cannot be read.
        """
        if mode not in ("r", "r+"):
            raise InputError(f"mode must be 'r' or 'r+', got {mode!r}")
        cls._check_options(cache_bytes, commit_rows, commit_seconds, seed)
        store = Store(_full_path(path), files or LocalFiles())
        cut = store.checkpoint(checkpoint) if checkpoint is not None else None
        settings({**store.settings, **(cut.state if cut else {})}, view, sampler)  # checked before a stream is made
        if mode == "r+" and stream not in store.stream_names():
            if cut is not None:
                raise CheckpointError(f"checkpoint {checkpoint!r} knows no stream {stream!r}")
            store.create_stream(
                stream,
                schemas.check_count("num_envs", num_envs if num_envs is not None else store.schema.num_envs),
                schemas.check_count("capacity", capacity if capacity is not None else store.schema.capacity),
            )
        elif mode == "r+":
            store.check_stream(stream, num_envs, capacity)
        return cls(
            store, stream=stream if mode == "r+" else None, checkpoint=cut, view=view, sampler=sampler,
            cache_bytes=cache_bytes, commit_rows=commit_rows, commit_seconds=commit_seconds, seed=seed,
        )  # fmt: skip

    @staticmethod
    def _check_options(cache_bytes: int, commit_rows: int, commit_seconds: float, seed: int | None) -> None:
        schemas.check_count("cache_bytes", cache_bytes, least=0)
        schemas.check_count("commit_rows", commit_rows)
        if not isinstance(commit_seconds, int | float) or not commit_seconds > 0:
            raise InputError(f"commit_seconds must be above 0, got {commit_seconds!r}")
        if seed is not None:
            schemas.check_count("seed", seed, least=0, most=1 << 128)

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
    def view(self) -> Transition:
        """What a sample looks like."""
        return self._view

    @property
    def sampler(self) -> Sampler:
        """Which transitions a sample holds."""
        return self._sampler

    @property
    def num_envs(self) -> int:
        """Environments of the stream that is written, or of the first."""
        writer = self._streams.writer
        return writer.commit_record.num_envs if writer else self.schema.num_envs

    def __len__(self) -> int:
        """Transitions in the windows of all streams, committed or not."""
        with self._lock:
            return len(self._streams)

    def __repr__(self) -> str:
        return f"<ReplayBuffer {self.path!r}: {len(self):,} transitions>"

    @property
    def episodes(self) -> list[Episode]:
        """Episodes in the windows of all streams, in the order of streams, first rows and environments."""
        with self._lock:
            return [episode for part in self._streams for episode in episodes(part.log)]

    @property
    def checkpoints(self) -> list[str]:
        """Names of the checkpoints, oldest first."""
        return self._store.checkpoint_names()

    def zarr(self) -> zarr.Group:
        """The committed store as zarr-python sees it, read-only.

        ``rb.zarr()["streams/0/obs"]`` is an array ``(rows, num_envs, *shape)`` of single frames; rows that left the
        window, and those past the last commit, read as zeros.
        """
        import zarr

        return zarr.open_group(self.path, mode="r")

    def stats(self) -> dict[str, Any]:
        """Facts about the open buffer: transitions, capacity, rows and commits of each stream, bytes cached."""
        with self._lock:
            streams = {
                part.stream.name: {
                    "begin": part.log.begin,
                    "end": part.log.end,
                    "committed": part.stream.commit_record.end,
                    "num_envs": part.log.num_envs,
                    "patches": part.log.patch_end - part.log.patch_begin,
                    "sequence": part.stream.commit_record.sequence,
                }
                for part in self._streams
            }
            return {
                "transitions": len(self._streams),
                "capacity": sum(part.stream.commit_record.capacity for part in self._streams),
                "streams": streams,
                "cache_bytes": self._streams.cache.budget_bytes,
                "cache_used_bytes": self._streams.cache.used_bytes,
            }

    # Adding

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Adds one step of each environment.

        Arrays lead with ``num_envs`` when it is above 1. Nothing is kept of the arguments; they may be reused.

        Args:
            obs: what ``action`` was chosen from, ``(*obs_shape)``, nested as the space.
            action: ``(*action_shape)``.
            reward: scalar; must be finite.
            next_obs: the true next observation; at an episode's end its final observation, not the one after the reset.
                For vector environments that reset in the same step, see :func:`diskreplay.final_observations`.
            terminated, truncated: bool, as Gymnasium defines them.
            valid: bool; False where an environment's step is no transition, as in the step in which Gymnasium's
                next-step autoreset resets; such a row is never sampled. All True if None.
            **extra: the user's own columns, all of them.

        Raises:
            InputError: for wrong shapes, dtypes that would lose information, NaN rewards; nothing was added.
            ReadOnlyError, ClosedError, StateError: when this buffer takes no rows.
            WriteFailedError: when an automatic commit failed; the row is in RAM, the last commit intact.
        """
        with self._write_lock, self._lock:
            writer = self._writable()
            self._appender.add(obs, action, reward, next_obs, terminated, truncated, valid, extra)
            log = self._appender.log
            if valid is not None:
                log.invalid += log.num_envs - int(np.count_nonzero(valid))
            if log.end - log.begin > log.rows:
                log.slide(log.end - log.rows)
            due = (
                log.end - writer.commit_record.end >= self._commit_rows
                or time.monotonic() - self._last_commit >= self._commit_seconds
            )
        if due or (not log.end % 64 and writer.waiting_bytes() > COMMIT_BYTES):
            self.commit()

    def commit(self) -> None:
        """Makes everything added so far durable.

        Raises ReadOnlyError, ClosedError or StateError when this buffer writes nothing, WriteFailedError when the file
        system refuses; the last commit is then intact, and the store takes no more rows until it is reopened.
        """
        with self._write_lock:
            writer = self._writable()
            log = self._appender.log
            self._last_commit = time.monotonic()
            if writer.half_row:
                with self._lock:
                    self._appender.rewind()
            if log.end == writer.commit_record.end and log.begin == writer.commit_record.begin:
                writer.reclaim(self._lock)  # a checkpoint may have been dropped
                return
            with self._lock:
                self._appender.patch_pending()
                patch_begin = log.drop_patches()
            writer.commit(log.begin, patch_begin, self._lock)
            with self._lock:
                self._streams.size_cache()

    def checkpoint(self, name: str, metadata: Mapping[str, Any] | None = None) -> None:
        """Commits, and names this point: rows, sampler and random state stay available until it is dropped.

        Args:
            name: printable, without the characters that file systems reserve; not in use.
            metadata: anything that JSON can hold; comes back by :meth:`checkpoint_metadata`.

        Raises InputError or CheckpointError for a bad name or metadata, and what :meth:`commit` raises.
        """
        with self._write_lock:
            writer = self._writable()
            try:
                given = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
            except (TypeError, ValueError) as error:
                raise InputError(f"metadata must be JSON (call .item() on numpy scalars): {error}") from error
            self._store.check_new_checkpoint(name)
            self.commit()
            for _ in range(10):
                with self._lock:
                    priorities, arrays = sampler_state(self._sampler)
                    cut = self._streams.commits
                    state = {
                        "view": self._view.to_json(),
                        "sampler": self._sampler.to_json(),
                        "priorities": priorities,
                        "rng": rng_to_json(self._rng),
                    }
                if self._store.write_checkpoint(writer, Checkpoint(name, cut, state, given, time.time()), arrays):
                    return
                self.refresh()
            raise CheckpointError(f"checkpoint {name!r}: other writers evict faster than their rows can be pinned")

    def drop_checkpoint(self, name: str) -> None:
        """Forgets a checkpoint; the next commit gives back the space that only it needed."""
        with self._write_lock:
            self._store.drop_checkpoint(name, self._writable())

    def checkpoint_metadata(self, name: str) -> dict[str, Any]:
        """The metadata that the checkpoint was made with; CheckpointError when there is none of that name."""
        return self._store.checkpoint(name).metadata

    # Sampling

    def sample(self, batch_size: int) -> Batch:
        """A batch of ``batch_size`` transitions.

        Raises:
            NotEnoughDataError: when fewer are in the buffer.
            CorruptionError: when a chunk on disk is damaged; names the place.
        """
        batch_size = schemas.check_count("batch_size", batch_size)
        return self._beside_writers(lambda: self._draft(batch_size))

    def _draft(self, batch_size: int) -> Draft:
        held = len(self._streams)
        if batch_size > held:
            raise NotEnoughDataError(
                f"sample({batch_size}): the buffer holds {held} transitions; add more steps, or ask for fewer"
            )
        windows = self._streams.windows(self._view.n_step)
        ids, weight = self._sampler.sample(self._rng, windows, self._is_transition, batch_size)
        return assemble.draft(self.schema, self._streams.parts, self._view, ids, weight)

    def _beside_writers(self, draft: Callable[[], Draft]) -> Batch:
        """A batch; made again after a refresh where another process evicted meanwhile what was to be read."""
        while True:
            try:
                with self._lock:
                    self._check_open()
                    drafted = draft()
                return drafted.finish()
            except CorruptionError:
                if not self._caught_up():
                    raise

    def _caught_up(self) -> bool:
        """Goes on to the newest commits where other writers have evicted what this buffer still held for there."""
        with self._lock:
            if self._checkpoint or not self._streams.outrun():
                return False
        return self.refresh()

    def _is_transition(self, ids: NDArray[np.int64]) -> NDArray[np.bool]:
        return self._streams.is_transition(ids, self._view.n_step)

    def update_priorities(self, index: Any, priorities: Any) -> None:
        """Tells a prioritized sampler the TD errors of transitions.

        Args:
            index: ``(B,)`` integers, of batches. Those that have left the window since are ignored.
            priorities: ``(B,)`` TD errors, or their magnitudes; of a repeated index the last one counts.

        Raises InputError, with no priority changed, where a priority is not finite, an index names no transition, or
        the sampler has no priorities.
        """
        with self._lock:
            self._check_open()
            if not isinstance(self._sampler, Prioritized):
                raise InputError(f"{self._sampler!r} has no priorities; create or open the store with Proportional()")
            self._sampler.update(index, priorities, self._streams.windows(self._view.n_step), self._is_transition)

    def get(self, index: Any) -> Batch:
        """The transitions that ``index``, int64 ``(B,)`` of some batch, names.

        Raises EvictedError where one has left the window, InputError where one was never given.
        """
        ids = np.atleast_1d(np.asarray(index))
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise InputError(f"index must be integers of shape (B,), got {ids.dtype} {ids.shape}")
        ids = ids.astype(np.int64)

        def draft() -> Draft:
            self._streams.check(ids, self._view.n_step)
            weight = np.ones(len(ids), np.float32)
            return assemble.draft(self.schema, self._streams.parts, self._view, ids, weight)

        return self._beside_writers(draft)

    def loader(self, batch_size: int, *, prefetch: int = 2) -> Loader:
        """An endless iterator of batches that a background thread samples ahead.

        Args:
            batch_size: of each.
            prefetch: batches that may wait. They were drawn before rows that were added since; a checkpoint holds the
                random state with them already drawn.
        """
        batch_size = schemas.check_count("batch_size", batch_size)
        schemas.check_count("prefetch", prefetch, most=1 << 16)
        return Loader(lambda: self.sample(batch_size), prefetch)

    def shuffled(
        self, batch_size: int, epochs: int = 1, *, pool_bytes: int = shuffle.POOL_BYTES, drop_last: bool = False
    ) -> Iterator[Batch]:
        """Walks all transitions of the windows without replacement, for offline training.

        Each pass reads every chunk once, from many places of the log at the same time, into a shuffle pool of about
        ``pool_bytes``. What is added meanwhile is not part of the pass.

        Args:
            batch_size: of every batch but a pass's last.
            epochs: passes.
            pool_bytes: of decoded frames that are shuffled together.
            drop_last: leave out a last batch that is smaller.
        """
        batch_size = schemas.check_count("batch_size", batch_size)
        epochs = schemas.check_count("epochs", epochs)
        schemas.check_count("pool_bytes", pool_bytes)
        with self._lock:
            self._check_open()
        return self._shuffled(batch_size, epochs, pool_bytes, drop_last)

    def _shuffled(self, batch_size: int, epochs: int, pool_bytes: int, drop_last: bool) -> Iterator[Batch]:
        for _ in range(epochs):
            with self._lock:
                self._check_open()
                parts = self._streams.parts
            yield from shuffle.epoch(
                self.schema,
                parts,
                self._view,
                self._rng,
                batch_size,
                pool_bytes,
                drop_last,
                self._lock,
                self._caught_up,
            )

    def refresh(self) -> bool:
        """Goes on to the newest commits of the streams that others write; whether anything changed."""
        with self._write_lock, self._lock:
            self._check_open()
            before = self._streams.commits
            self._checkpoint = None
            self._streams.open_readers(None)
            return before != self._streams.commits

    # End

    def close(self) -> None:
        """Commits, and gives the stream to the next writer. Closing twice does nothing."""
        with self._write_lock:
            if self._closed:
                return
            try:
                writer = self._streams.writer
                if writer is not None and writer.failure is None:
                    self.commit()
            finally:
                with self._lock:
                    self._closed = True
                    self._streams.release()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Inside

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the buffer {self.path!r} is closed; ReplayBuffer.open opens it again")

    def _writable(self) -> StreamWriter:
        self._check_open()
        if self._streams.writer is None:
            raise ReadOnlyError(f"the buffer {self.path!r} was opened with mode='r'; open it with mode='r+' to write")
        return self._streams.writer


def _full_path(path: PathLike) -> str:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"path must be a non-empty text or path, got {path!r}")
    return os.path.abspath(text)  # noqa: PTH100  # resolve() would follow links, which the user may move
