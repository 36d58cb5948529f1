"""The dataset, which draws as d3rlpy's buffer does and adds the steps of its online training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, NoReturn, cast

import numpy as np
from d3rlpy.dataset import (
    BasicTrajectorySlicer,
    BasicTransitionPicker,
    DatasetInfo,
    PartialTrajectory,
    ReplayBufferBase,
    TrajectoryMiniBatch,
    Transition,
    TransitionMiniBatch,
)
from d3rlpy.dataset import io as d3rlpy_io
from gymnasium import spaces

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.multi_agent_layout import KEY as AGENTS
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import Array, arrays, check_array, check_count
from diskreplay.compat.arguments import flags, numbers, rewards
from diskreplay.compat.d3rlpy import batches
from diskreplay.compat.d3rlpy.episodes import DiskEpisode, NewestStep, Reader, all_episodes, last_facts
from diskreplay.compat.d3rlpy.signatures import actions, boxes, of_gymnasium
from diskreplay.compat.location import Location, close_with
from diskreplay.compat.rows import by_episodes, ids_of, places, transitions, window
from diskreplay.compat.stores import check_checkpoint, closed_on_failure, open_or_create
from diskreplay.errors import InputError, NotEnoughDataError, ReadOnlyError
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema.ids import Ids
from diskreplay.schema.spaces import leaf_spaces, unflatten
from diskreplay.storage.paths import PathLike
from diskreplay.views import transition

__all__ = ["DiskDataset"]


class DiskDataset(OverStores, ReplayBufferBase):  # type: ignore[misc]  # d3rlpy is not followed by mypy
    """d3rlpy's ``ReplayBuffer`` over a store: ``fit`` reads any store, and with ``limit``, ``fit_online`` writes one.

    Draws come from numpy's global generator, as d3rlpy's do: where both hold the same transitions, the same seed draws
    the same batches.

    Args:
        path: the path of an existing store, which is read as it stands now. With ``limit`` the path of a store that is
            opened for writing, or made; None, with ``limit``, for a temporary directory that goes away with the
            dataset.
        transition_picker, trajectory_slicer: as in d3rlpy's ``ReplayBuffer``. For d3rlpy's own a batch is read at once;
            any other gets whole episodes.
        writer_preprocessor: d3rlpy's writer preprocessor, which is applied to what ``append`` gets.
        limit: transitions that are held, as of ``create_fifo_replay_buffer``; None to read.
        env: an environment: a store that is made has its spaces, and ``append`` gets single observations of it.
        frame_stack: frames that ``env`` stacks, which are then stored once; or that the store is to stack.
        checkpoint: the checkpoint of the store at ``path``.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        store: the ``diskreplay.ReplayBuffer``.

    Raises InputError for a store, or an environment, whose observations or actions d3rlpy cannot take, and what
    ``diskreplay.ReplayBuffer.open`` and ``create`` raise.
    """

    def __init__(
        self, path: PathLike | None = None, *, transition_picker: Any = None, trajectory_slicer: Any = None,
        writer_preprocessor: Any = None, limit: int | None = None, env: Any = None, frame_stack: int | None = None,
        checkpoint: str | None = None, cache_bytes: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._picker = BasicTransitionPicker() if transition_picker is None else transition_picker
        self._slicer = BasicTrajectorySlicer() if trajectory_slicer is None else trajectory_slicer
        self._preprocessor = writer_preprocessor
        self._waiting: tuple[int, NewestStep, bool] | None = None
        """The row that the newest step becomes, the step, and True if it begins an episode."""
        self._listed: tuple[Any, Sequence[DiskEpisode]] | None = None
        settings: dict[str, Any] = {"cache_bytes": cache_bytes, "view": transition.Transition(), "sampler": Uniform()}
        if limit is None:
            self.store = self._opened(path, {**settings, **options}, checkpoint, env, frame_stack)
        else:
            self.store = self._writing(path, limit, env, frame_stack, checkpoint, {**settings, "seed": 0}, options)
        with closed_on_failure(self.store):
            if AGENTS in self.store.engine.store.settings:
                raise InputError(
                    f"the store at {self.store.path!r} is of several agents, which d3rlpy does not know; open it "
                    "with MultiAgentReplayBuffer"
                )
            self._reader = Reader(self.store, self._running)
            self._check_stacks(max(stack.frames for stack in self.store.schema.stacks), self.store.path)
            self._fixed: Ids | None = by_episodes(self.store)[0] if limit is None else None
            if limit is not None:
                _check_written(self.store)
                self.store.cut()  # who wrote before has left its episode
                close_with(self, self.store)

    def _opened(
        self, path: PathLike | None, settings: dict[str, Any], checkpoint: str | None, env: Any, frame_stack: Any
    ) -> Store:
        if path is None:
            raise InputError("a dataset to read needs the path of its store; to write one, give limit and env")
        if env is not None or frame_stack is not None or self._preprocessor is not None:
            raise InputError("env, frame_stack and writer_preprocessor are for a store that is written: give limit too")
        return Store.open(path, mode="r", checkpoint=checkpoint, ragged=None, **settings)

    def _writing(
        self, path: PathLike | None, limit: int, env: Any, frame_stack: int | None, checkpoint: str | None,
        settings: dict[str, Any], options: dict[str, Any],
    ) -> Store:  # fmt: skip
        facts: dict[str, Any] = {"num_envs": 1, "capacity": check_count("limit", limit)}
        place = Location(path, self)
        if checkpoint is not None:
            check_checkpoint(place, checkpoint)
            settings = {**settings, "checkpoint": checkpoint}
        if env is not None:
            facts["action_space"], observation_space = map(of_gymnasium, (env.action_space, env.observation_space))
            actions(facts["action_space"])
            boxes(observation_space)
            facts["observation_space"] = _stored_space(observation_space, self._preprocessor)
        elif not place.exists:
            raise InputError(f"there is no store at {place.path!r}; to make one, give env, whose spaces it has")
        if frame_stack is not None:
            self._check_stacks(frame_stack, place.path)
            facts["frame_stack"] = frame_stack
        options = {**options, "cache_bytes": settings.pop("cache_bytes")}
        return open_or_create(Store, place, options, facts, {**facts, "columns": {}}, grows=True, **settings)

    def _check_stacks(self, frames: int, path: str) -> None:
        for name, given in (("transition_picker", self._picker), ("trajectory_slicer", self._slicer)):
            if frames > 1 and batches.stacked_frames(given) > 1:
                raise InputError(
                    f"the observations of the store at {path!r} are stacks of {frames} frames already: leave the "
                    f"{name} that stacks them out"
                )

    # Drawing

    @property
    def transition_count(self) -> int:
        """The number of transitions, with the last ones of truncated episodes."""
        return transitions(self.store) if self._fixed is None else len(self._fixed)

    def _ids(self, positions: Any) -> Ids:
        """Return the ids at positions: episode after episode, or in the order of time if the store is written."""
        if self._fixed is None:
            return ids_of(self.store, window(self.store).begin + np.asarray(positions), 0)
        return cast(Ids, self._fixed[positions])

    def _draw(self, size: int) -> Ids:
        count = self.transition_count
        if not count:
            raise NotEnoughDataError(f"the dataset at {self.store.path!r} holds no transition; add more steps")
        return self._ids(np.random.randint(count, size=size))

    def _picked(self, ids: Ids, pick: Any, *length: int) -> list[Any]:
        """Return what a picker or slicer of the user's own makes of whole episodes, each read once."""
        where, found = places(self.store, ids), [None] * len(ids)
        for number in np.argsort(where.first, kind="stable"):
            place = where.one(number)
            found[number] = pick(self._reader.episode(place._replace(step=0)), place.step, *length)
        return found

    def sample_transition(self) -> Transition:
        """Return one transition, made by the picker."""
        return self._transitions(self._draw(1))[0]

    def sample_transition_batch(self, batch_size: int) -> TransitionMiniBatch:
        """Return ``batch_size`` transitions drawn with replacement, as float32 arrays ``(B, ...)``."""
        ids = self._draw(check_count("batch_size", batch_size))
        if type(self._picker) in batches.OWN:
            return batches.transition_batch(self._reader, self._picker, ids)
        return TransitionMiniBatch.from_transitions(self._transitions(ids))

    def _transitions(self, ids: Ids) -> Sequence[Any]:
        if type(self._picker) in batches.OWN:
            return batches.transitions(self._reader, self._picker, ids)[1]
        return self._picked(ids, self._picker)

    def sample_trajectory(self, length: int) -> PartialTrajectory:
        """Return ``length`` steps of one episode up to a transition, padded in front, made by the slicer."""
        ids, length = self._draw(1), check_count("length", length)
        if type(self._slicer) in batches.OWN:
            return batches.trajectory(self._reader, self._slicer, ids, length)
        return self._picked(ids, self._slicer, length)[0]

    def sample_trajectory_batch(self, batch_size: int, length: int) -> TrajectoryMiniBatch:
        """Return ``batch_size`` trajectories of ``length`` steps, as float32 arrays ``(B, length, ...)``."""
        ids, length = self._draw(check_count("batch_size", batch_size)), check_count("length", length)
        if type(self._slicer) in batches.OWN:
            return batches.trajectory_batch(self._reader, self._slicer, ids, length)
        return TrajectoryMiniBatch.from_partial_trajectories(self._picked(ids, self._slicer, length))

    # Facts

    @property
    def episodes(self) -> Sequence[DiskEpisode]:
        """All episodes with a transition; each is read when it is looked at."""
        now: Any = None if self._fixed is not None else (*window(self.store), self._running())
        if self._listed is None or self._listed[0] != now:
            self._listed = now, all_episodes(self._reader)
        return self._listed[1]

    def size(self) -> int:
        """Return the number of episodes."""
        return len(self.episodes)

    @property
    def dataset_info(self) -> DatasetInfo:
        """Signatures of the arrays, and the kind and number of actions."""
        return self._reader.layout.info

    @property
    def transition_picker(self) -> Any:
        """The object that makes transitions of episodes."""
        return self._picker

    @property
    def trajectory_slicer(self) -> Any:
        """The object that makes trajectories of episodes."""
        return self._slicer

    @property
    def buffer(self) -> DatasetBuffer:
        """The episode and place of each transition, as d3rlpy's buffers have them; nothing can be added here."""
        return DatasetBuffer(self)

    # Adding

    def _running(self) -> NewestStep | None:
        """Return the newest step of an episode that has transitions, if it is not one yet, or None."""
        step = self._held()
        return None if step is None or step[2] else step[1]

    def _held(self) -> tuple[int, NewestStep, bool] | None:
        """Return the newest step if it is not a row yet (an interrupted call may have added it), or None."""
        step = self._waiting
        return step if step is not None and step[0] == window(self.store).end else None

    def append(self, observation: Any, action: Any, reward: Any) -> None:
        """Add a step, which becomes a transition with the next step's observation, or when the episode is clipped.

        Raises InputError, with nothing added, for values of another shape, actions that are none of the space, and
        rewards that are not finite; ReadOnlyError for a dataset that was opened without ``limit``.
        """
        self._check_writable()
        step = self._fitted(observation, action, reward)
        held = self._held()
        if held is not None:
            self._add(held[1], step.obs, False, False)
        self._waiting = window(self.store).end, step, held is None

    def clip_episode(self, terminated: bool, final_observation: Any = None) -> None:
        """End the running episode.

        Args:
            terminated: True if the environment ended the episode; False for a time limit. Then its last step is no
                transition, as in d3rlpy, since nobody has said what followed it: its action and reward are facts of the
                episode.
            final_observation: the observation that followed the last step, which makes that step a transition.

        Raises InputError, with nothing changed, for an observation of another shape.
        """
        self._check_writable()
        ended = bool(flags("terminated", terminated, ()))
        final = None if final_observation is None else self._observation(final_observation)
        held = self._held()
        if held is not None:
            _, step, begins = held
            if ended:
                self._add(step, step.obs, True, False)  # nobody looks at what follows
            elif final is not None:
                self._add(step, final, False, True)
            elif not begins:
                self.store.annotate_episode(**last_facts(step.action, step.reward))
        self._waiting = None
        self.store.cut()

    def append_episode(self, episode: Any) -> None:
        """Add the transitions of an episode of d3rlpy's, and keep its last step if that is not a transition.

        Raises InputError as :meth:`append`, and while an episode is running.
        """
        self._check_writable()
        if self._held() is not None:
            raise InputError("append_episode: an episode is running; clip_episode() ends it")
        try:
            count, size = episode.transition_count, len(check_array("actions", episode.actions))
            ended = bool(flags("terminated", episode.terminated, ()))
            arrays = episode.observations, episode.actions, episode.rewards
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise InputError(f"append_episode takes an episode of d3rlpy's, got {episode!r:.80}: {error}") from error
        schema = self.store.schema
        observed = arrays[0] if isinstance(arrays[0], list | tuple) else [arrays[0]]
        leaves = leaf_spaces(schema.observation_space)
        if len(observed) != len(leaves):
            raise InputError(f"the episode has {len(observed)} observation arrays, the dataset {len(leaves)}")
        obs = [
            numbers("observations", leaf, (size, *cast(Any, space.shape)), space.dtype, finite=schema.finite)
            for leaf, space in zip(observed, leaves, strict=True)
        ]
        space: Any = schema.action_space
        chosen = self._actions("actions", arrays[1], (size, *space.shape))
        earned = rewards("rewards", arrays[2], (size,), self._reader.layout.info.reward_signature.dtype[0])
        if count != size - (not ended):
            raise InputError(f"an episode of {size} steps has {size - (not ended)} transitions, got {count}")
        if not count:
            return
        following = [np.concatenate([leaf[1 : count + 1], leaf[-1:]])[:count] for leaf in obs]
        ends = np.zeros((2, count), bool)
        ends[0, -1] = ended
        tree = schema.obs_tree
        self.store.cut()
        self.store.extend(
            unflatten(tree, [leaf[:count] for leaf in obs]), chosen[:count], earned[:count],
            unflatten(tree, following), *ends,
        )  # fmt: skip
        if not ended:
            self.store.annotate_episode(**last_facts(chosen[-1], earned[-1]))
        self.store.cut()

    def _check_writable(self) -> None:
        if self._fixed is not None:
            raise ReadOnlyError("the dataset was opened to be read; DiskDataset(path, limit=...) writes")

    def _fitted(self, observation: Any, action: Any, reward: Any) -> NewestStep:
        space: Any = self.store.schema.action_space
        obs = self._observation(observation)
        info = self.dataset_info
        if self._preprocessor is not None:
            action = self._preprocessor.process_action(_array("action", action, info.action_signature.dtype[0]))
            reward = self._preprocessor.process_reward(_array("reward", reward, info.reward_signature.dtype[0]))
        chosen = self._actions("action", action, space.shape)
        return NewestStep(chosen.copy(), rewards("reward", reward, (), info.reward_signature.dtype[0]).copy(), obs)

    def _actions(self, what: str, given: Any, shape: tuple[int, ...]) -> Array:
        space: Any = self.store.schema.action_space
        return numbers(what, given, shape, space.dtype, within=space, finite=self.store.schema.finite)

    def _observation(self, observation: Any) -> list[Array]:
        if self._preprocessor is not None:
            observation = self._preprocessor.process_observation(observation)
        return self._reader.layout.as_stored(observation)

    def _add(self, step: NewestStep, following: list[Array], terminated: bool, truncated: bool) -> None:
        tree = self.store.schema.obs_tree
        obs, next_obs = unflatten(tree, step.obs), unflatten(tree, following)
        self.store.add(obs, step.action, step.reward, next_obs, terminated, truncated)

    # d3rlpy's files

    def dump(self, f: BinaryIO) -> None:
        """Write d3rlpy's file, one episode after the other; ``diskreplay export`` keeps more of a store."""
        if not len(self.episodes):
            raise NotEnoughDataError(f"the dataset at {self.store.path!r} holds no episode to dump")
        d3rlpy_io.dump(self.episodes, f)

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise InputError: ``diskreplay import`` makes a store of d3rlpy's file."""
        raise InputError("DiskDataset.load: import the file (diskreplay import), and open DiskDataset(path)")

    @classmethod
    def from_episode_generator(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise InputError: episodes are added one by one."""
        raise InputError(
            "DiskDataset.from_episode_generator: make DiskDataset(path, limit=..., env=...), and append_episode each"
        )

    def __repr__(self) -> str:
        return f"DiskDataset({self.store.path!r}, transitions={self.transition_count})"


def _array(what: str, value: Any, dtype: Any) -> Array:
    value = arrays(what, value)
    return value if isinstance(value, np.ndarray) and value.ndim else np.array([value], dtype)


def _stored_space(space: Any, preprocessor: Any) -> Any:
    if preprocessor is None:
        return space
    if not isinstance(space, spaces.Box):
        raise InputError(f"a writer_preprocessor takes observations of a Box, not of {space}")
    low, high = (np.asarray(preprocessor.process_observation(bound)) for bound in (space.low, space.high))
    return spaces.Box(low, high, low.shape, cast(Any, space.dtype))


def _check_written(store: Store) -> None:
    begin, end = window(store)
    if not len(store) == transitions(store) == end - begin:
        raise InputError(
            f"the store at {store.path!r} has several streams, or steps that are no transitions: read it without "
            "limit, and write another"
        )


class DatasetBuffer:
    """``d3rlpy.dataset.BufferProtocol`` of a dataset."""

    def __init__(self, dataset: DiskDataset) -> None:
        self._dataset = dataset

    @property
    def episodes(self) -> Sequence[DiskEpisode]:
        return self._dataset.episodes

    @property
    def transition_count(self) -> int:
        return self._dataset.transition_count

    def __len__(self) -> int:
        return self._dataset.transition_count

    def __getitem__(self, index: int) -> tuple[DiskEpisode, int]:
        """Return the episode of a transition, and its place there."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"there are {count} transitions, and none at {index}")
        dataset = self._dataset
        place = places(dataset.store, np.atleast_1d(dataset._ids(index % count))).one(0)
        return dataset._reader.episode(place._replace(step=0)), place.step

    def append(self, episode: Any, index: int) -> NoReturn:
        """Raise InputError: the dataset takes whole steps, and episodes."""
        raise InputError("steps are added to the dataset: append(), clip_episode(), append_episode()")
