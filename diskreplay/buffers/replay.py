"""The replay buffer: add steps, sample transitions, commit, checkpoint, resume."""

from __future__ import annotations

from typing import Any, Unpack

import gymnasium
from typing_extensions import TypeVar

from diskreplay.buffers.opening import make_buffer, open_buffer, open_or_make_buffer
from diskreplay.buffers.options import CreateOptions, EitherOptions, ReplayOpenOptions, of, shared
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.sampling.window import Sampler
from diskreplay.schema.spec import StoreSpec
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
    @shared(CreateOptions)
    def create(
        cls: type[ReplayBuffer[Any]],
        path: PathLike,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        capacity: int,
        num_envs: int = 1,
        view: View[Shown] | None = None,
        sampler: Sampler | None = None,
        **options: Unpack[CreateOptions],
    ) -> ReplayBuffer[Shown]:
        """Make a new store at ``path`` and open it for writing.

        Args:
            path: a directory that does not exist or is empty.
            observation_space, action_space: Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of them;
                dtypes are kept as they are.
            capacity: transitions (rows x environments) that can be sampled; older ones are evicted, and their disk
                space is given back shard by shard.
            num_envs: environments that step in lockstep.
            frame_stack: frames of an observation, for every leaf or by name of the leaf. Frames are stored once.
            stack_axis: the axis of given observations that holds the stack: 0, -1, or None if they are single frames,
                which are stacked at sampling time; "auto" takes an axis with just ``frame_stack`` entries for it, and
                raises SchemaError where one has three or four times as many, as stacked colour frames do.
            stack_padding: the padding of single frames at an episode's start: "zero", or "reset" for the first frame
                repeated (Gymnasium's FrameStackObservation). Stacked input keeps its own padding.
            columns: further values of each step by name: a dtype, ``(shape, dtype)`` or a space. With a first
                axis of None it has another length in each step, as values of Text, Sequence and Graph spaces have.
            video: the columns that hold video, with the facts of each: ``{"camera": Video("av1", 640, 480)}``. Such
                a leaf of the observation, or column, has the shape ``(height, width, 3)`` and dtype uint8. ``add``
                takes the records of its packets, from the key frame on (:mod:`diskreplay.video`), and a batch shows
                pictures, decoded by PyAV: ``pip install 'diskreplay[video]'``. Only with one environment.
            later: columns, in the same form, whose values :meth:`write` gives to steps after they were added, such as
                recurrent states.
            reward_dtype: float32, as most learners want it, or another floating point type.
            codec: "lz4hc", "lz4", "zstd" (with a level: "lz4hc:5") or "none"; for the observations, or by column.
            chunk_rows, shard_rows: rows of a compressed chunk and of a file, likewise; chosen from a row's bytes if
                None.
            finite: refuse NaN and infinity in observations, actions and columns, as always in rewards; the store keeps
                it.
            continuity: the rule by which a step goes on with the episode of the one before it: "observations", where
                its ``obs`` is bit for bit the ``next_obs`` of the step before, or "flags", which does not compare them,
                for observations that are normalised or encoded anew for each call. A flag, :meth:`cut`,
                :meth:`begin_episode` and a step that is not ``valid`` end an episode in both cases. The ``next_obs``
                that was given is kept in both cases. Of stacked observations the older frames must still be those of
                the steps before; and the first step after opening goes on only where its ``obs`` is the last
                ``next_obs``. The store keeps it.
            provenance: the origin of the steps, a mapping of JSON values that the store keeps; such as
                :func:`diskreplay.provenance` makes of an environment.
            view: the view, which says what a sample looks like: ``Transition(...)``, as if None, ``Sequence(...)``,
                ``Hindsight(...)`` or ``PaddedEpisodes(...)``.
            sampler: the sampler, which chooses the transitions of a sample: ``Uniform()``, as if None, ``Recent(...)``,
                ``Proportional(...)``, ``RankBased(...)``, ``SamplerMixture(...)`` or an object of your own class
                (``docs/samplers.md``), one for each buffer. One with priorities that was another's, or still is, is
                refused; after that buffer was closed, ``open`` takes it for the same store, whose priorities it goes on
                with, and ``sampler.clear()`` frees it for any.
            cache_bytes: RAM for frames and other large values that were read, of which frames that are like each other
                take a tenth of their size. If None, what the window needs, at most a sixteenth of the memory of the
                machine, or of the control group, or 256 MB where that is more; 64 MB with ``mode="a"``; never more than
                a quarter of what this process may still take.
            commit_rows, commit_seconds: ``add`` commits after so many rows, or so many seconds. A process that is
                killed loses what it added after that.
            remote: URL that the store is pushed to in the background (``s3://bucket/name``); see ``docs/remote.md``.
                Nothing may be there; ``open_or_create`` joins a store that is, with a stream of its own.
            push_seconds: between the beginnings of two pushes; ``push`` and ``close`` do not wait for it.
            ragged: how batches show ragged values, all, or by column: ``Pad(...)``, to the longest if nothing else is
                said, as :class:`~diskreplay.Padded`, or "lists" as :class:`~diskreplay.Lists`. None refuses a store
                that has some.
            seed: the seed of the sampler's random generator; from the system's entropy if None.
            stream: name of the first stream, such as that of the actor that writes it; "0" if None.
            files: another file system, for tests.

        Raises:
            SchemaError, InputError: for arguments that break a rule.
            StoreExistsError: when something is at ``path``.
            WriteFailedError: when the file system refuses.
        """
        spec = of(StoreSpec, options, observation_space, action_space, capacity=capacity, num_envs=num_envs)
        return make_buffer(cls, path, spec, options, view=view, sampler=sampler)

    @classmethod
    @shared(EitherOptions)
    def open_or_create(
        cls: type[ReplayBuffer[Any]],
        path: PathLike,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        capacity: int,
        num_envs: int = 1,
        view: View[Shown] | None = None,
        sampler: Sampler | None = None,
        **options: Unpack[EitherOptions],
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
        spec = of(StoreSpec, options, observation_space, action_space, capacity=capacity, num_envs=num_envs)
        return open_or_make_buffer(cls, path, spec, options, view=view, sampler=sampler)

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
            mode: "r+" to write one stream and sample from all; "r" to sample beside a live writer, changing nothing;
                "a" to write one stream of many: only its rows are opened and sampled, so that memory and time to
                open do not grow with those of the others.
            stream: the stream to write, the store's first if None; a new name makes a new stream, for another process.
                Ignored with mode "r".
            checkpoint: name of one to return to: data, sampler and random state are just as they were. With "r+" the
                rows of ``stream`` after it are discarded, unless a later checkpoint needs them. "latest" is, unless
                one has that name, the newest that a writer of ``stream`` made; with mode "r" the newest that a reader
                of a URL made, and where there is none the newest of all.
            or_last_commit: True to open at the last commit if there is no checkpoint "latest" yet.
            take_over: True to first commit and close another buffer of this process that writes the stream, so that a
                notebook's cell can be run again. Other processes, and mode "r", are not concerned.
            num_envs: the environments of a new stream, as many as the first has if None; those of an old one stay.
            capacity: the capacity of a new stream, that of the first if None. A stream that has less grows, and keeps
                its rows; one that has more, here or at the checkpoint, is not shrunk (InputError): :meth:`resize` does.
            view, sampler: the view and the sampler; those of the store (or of the checkpoint) if None. A new sampler
                that is given draws by its own arguments, and goes on with the priorities and counts of the checkpoint,
                or of ``close``, where they are those of one of its class; where it cannot, a SamplerWarning says so.
                With mode "r+" and a checkpoint, a used sampler is cleared, and then treated as a new one; otherwise
                it keeps what it knows.
            mirror: directory for copies of a remote store's shards; one of its own below the user's cache directory if
                None. Several processes may share it.
            mirror_bytes: the most bytes that the copies may take; 16 GiB if None.
            reward_column: a column of the user's own, or a later one, of one real number a step, such as ``relabel``
                writes: every view shows its values as ``reward``, and those that were recorded as
                ``extra["recorded_reward"]``; a column of that name stays. ``episodes`` has the recorded returns.
                InputError, with their number, if transitions have no finite value; a batch with one that was added
                since raises it, too, so that a learner can ``write`` values of new steps and train on them.
            cache_bytes, commit_rows, commit_seconds, remote, push_seconds, ragged, seed, files: as in ``create``;
                ``seed`` is not used with a checkpoint, which has its own random state.

        Raises:
            StoreNotFoundError, NotAStoreError, FormatVersionError, CheckpointError: when there is no such thing.
            LockedError: when another writer holds the stream.
            CorruptionError: when what was committed cannot be read.
        """
        return open_buffer(cls, path, options, num_envs, capacity, view=view, sampler=sampler)

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
