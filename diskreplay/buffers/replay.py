"""The replay buffer: add steps, sample transitions, commit, checkpoint, resume."""

from __future__ import annotations

from typing import Any, Unpack

from typing_extensions import TypeVar

from diskreplay.buffers.options import ReplayCreateOptions, ReplayOpenOptions, Space, shared
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.sampling.window import Sampler
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Batch, SomeBatch
from diskreplay.views.view import View

Shown = TypeVar("Shown", bound=Batch, default=Batch)
"""The batch of the view that is given; pyright would not learn it from the buffer's own variable."""


class ReplayBuffer(SampledBuffer[SomeBatch]):
    """A replay buffer on disk, made by :meth:`create` or :meth:`open`.

    Its batches are those of its view: with ``Sequence(20)`` it is a ``ReplayBuffer[SequenceBatch]``.

    One thread may add while several sample. Rows that no commit holds are sampled like all others, and are lost when
    the process dies; :meth:`commit` is called by itself every ``commit_rows`` rows or ``commit_seconds`` seconds
    (looked at when a row is added), and by :meth:`close`.
    """

    @classmethod
    @shared(ReplayCreateOptions)
    def create(
        cls: type[ReplayBuffer[Any]],
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        *,
        view: View[Shown] | None = None,
        **options: Unpack[ReplayCreateOptions],
    ) -> ReplayBuffer[Shown]:
        """Make a new store at ``path`` and open it for writing.

        Args:
            path: a directory that does not exist or is empty.
            observation_space, action_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them;
                dtypes are kept as they are.
            view: the view, which says what a sample looks like: ``Transition(...)``, as if None, ``Sequence(...)``,
                ``Hindsight(...)`` or ``PaddedEpisodes(...)``.
            **options: as described by their types.

        Raises:
            SchemaError, InputError: for arguments that break a rule.
            StoreExistsError: when something is at ``path``.
            WriteFailedError: when the file system refuses.
        """
        return cls._create(path, (observation_space, action_space), {**options, "view": view})

    @classmethod
    @shared(ReplayCreateOptions)
    def open_or_create(
        cls: type[ReplayBuffer[Any]],
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        *,
        view: View[Shown] | None = None,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[ReplayCreateOptions],
    ) -> ReplayBuffer[Shown]:
        """Open the store at ``path``, or make it as :meth:`create`: the one line of a program that is started again.

        Args:
            path, observation_space, action_space, capacity, num_envs, view, sampler and all others: as in
                :meth:`create`. A store with less ``capacity`` grows, one with more is not shrunk (InputError).
            stream: the stream to write, the store's first if None.
            provenance: the origin of a store that is made; not compared with that of one that is there.
            checkpoint: as in :meth:`open`; "latest" opens the last commit where there is no checkpoint yet.
            take_over: as in :meth:`open`.

        Raises InputError, which names what differs, where the store that is there was made with other spaces or
        options than these (of ``codec``, ``chunk_rows`` and ``shard_rows`` those that are given), and what
        :meth:`create` and :meth:`open` raise.
        """
        opening = {"view": view, "checkpoint": checkpoint, "take_over": take_over}
        return cls._open_or_create(path, (observation_space, action_space), {**options, **opening})

    @classmethod
    @shared(ReplayOpenOptions)
    def open(
        cls: type[ReplayBuffer[Any]],
        path: PathLike,
        *,
        num_envs: int | None = None,
        capacity: int | None = None,
        view: View[Shown] | None = None,
        sampler: Sampler | None = None,
        **options: Unpack[ReplayOpenOptions],
    ) -> ReplayBuffer[Shown]:
        """Open the store at ``path`` at its last commit, or at a checkpoint.

        Priorities and random state come back with a checkpoint; at a last commit, a buffer that writes goes on with the
        priorities that ``close`` kept. In a process that is forked later, a buffer with mode "r" draws batches of its
        own, as follows from its seed, its draws and the number of the fork; one that writes raises StateError.

        Args:
            path: the path of the store, or a URL (``s3://bucket/name``) with mode "r", which is read through a mirror.
            num_envs: the environments of a new stream, as many as the first has if None; those of an old one stay.
            capacity: the capacity of a new stream, that of the first if None. A stream that has less grows, and keeps
                its rows; one that has more, here or at the checkpoint, is not shrunk (InputError): :meth:`resize` does.
            view, sampler: the view and the sampler; those of the store (or of the checkpoint) if None. A new sampler
                that is given draws by its own arguments, and goes on with the priorities and counts of the checkpoint,
                or of ``close``, where they are those of one of its class; where it cannot, a SamplerWarning says so.
                With mode "r+" and a checkpoint, a used sampler is cleared, and then treated as a new one; otherwise
                it keeps what it knows.
            **options: as described by their types.

        Raises:
            StoreNotFoundError, NotAStoreError, FormatVersionError, CheckpointError: when there is no such thing.
            LockedError: when another writer holds the stream.
            CorruptionError: when what was committed cannot be read.
        """
        more = {"num_envs": num_envs, "capacity": capacity, "view": view, "sampler": sampler}
        return cls._open(path, {**options, **more})

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Add one step of each environment.

        Arrays lead with ``num_envs`` when it is above 1. Nothing is kept of the arguments; they may be reused.

        Args:
            obs: the observation from which ``action`` was chosen, ``(*obs_shape)``, nested as the space.
            action: ``(*action_shape)``. Values of Discrete, MultiDiscrete and MultiBinary spaces, here and in
                observations, must lie in them; the bounds of a Box are not looked at.
            reward: scalar; must be finite.
            next_obs: the true next observation; at an episode's end its final observation, not the one after the reset.
                For vector environments that reset in the same step, see :func:`diskreplay.final_observations`.
            terminated, truncated: bool, as Gymnasium defines them.
            valid: bool; False where an environment's step is no transition, as in the step in which Gymnasium's
                next-step autoreset resets; such a row is never sampled, and may hold any values that their dtypes
                can. All True if None.
            **extra: the user's own columns, all of them.

        Raises:
            InputError: for wrong shapes, dtypes that would lose information, numbers that would become infinite,
                discrete values outside of their space, NaN rewards; nothing was added.
            ReadOnlyError, ClosedError, StateError: when this buffer takes no rows.
            WriteFailedError: when an automatic commit failed; the row is in RAM, the last commit intact.
        """
        self.engine.add(obs, action, reward, next_obs, terminated, truncated, valid, extra)

    def extend(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Add ``T`` steps of each environment as :meth:`add` would one after another, but several times faster.

        Args:
            obs, action, reward, next_obs, terminated, truncated, valid, **extra: as in :meth:`add`, arrays that lead
                with ``T``, then with ``num_envs`` when it is above 1.

        Raises:
            InputError: as :meth:`add`; nothing was added.
            ReadOnlyError, ClosedError, StateError: when this buffer takes no rows.
            WriteFailedError: when an automatic commit failed; the steps up to it are in RAM, the last commit intact.
        """
        self.engine.extend(obs, action, reward, next_obs, terminated, truncated, valid, extra)
