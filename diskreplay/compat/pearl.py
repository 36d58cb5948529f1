"""Pearl's buffers over a store on disk.

A *trajectory* is what others call a transition; all environments of a vector environment add theirs together, as one
row. What is sampled is ``(batch_size, ...)``, and ``(num_envs, batch_size, ...)`` where there are several environments;
``flatten_env=True`` leaves that axis out: ``batch_size`` trajectories of any environment.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import pathlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import Array, check_count
from diskreplay.compat import arguments
from diskreplay.compat.location import Location, close_with, global_seed
from diskreplay.compat.ring import Field, Ring, ring_property, shown
from diskreplay.compat.rows import ids_of_all, transitions, window
from diskreplay.compat.stores import closed_on_failure, open_or_create
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.reading.reads import Reads
from diskreplay.sampling.uniform import Uniform
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Batch, map_arrays
from diskreplay.views.hindsight import ACHIEVED, DESIRED, Hindsight
from diskreplay.views.transition import Transition
from diskreplay.views.view import View

__all__ = [
    "BaseBuffer",
    "DictTrajectories",
    "GoalSelectionStrategy",
    "HERBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "Trajectories",
    "TrajectoryType",
]

OBSERVATION = "observation"


class TrajectoryType(enum.Enum):
    """The kind of sampled arrays: of numpy or of torch."""

    NUMPY = "numpy"
    TORCH = "torch"


class GoalSelectionStrategy(enum.Enum):
    """The step whose achieved goal a relabelled trajectory is given; see :class:`diskreplay.Hindsight`."""

    FINAL = "final"
    FUTURE = "future"
    EPISODE = "episode"


@dataclasses.dataclass
class Trajectories:
    """Arrays, or tensors, of trajectories; ``rewards`` and ``dones`` are ``(..., 1)`` float32."""

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    dones: Any


class DictTrajectories(Trajectories):
    """Trajectories whose observations are dicts with ``observation`` and ``desired_goal``."""


class BaseBuffer(ABC):
    """The base of all buffers, of your own too, which then keep what they add in its arrays.

    Args:
        env: a Gymnasium environment or vector environment.
        buffer_size: rows that are held.
        device: the device of torch tensors; "auto" is CUDA where there is one, else the CPU.
        path: a directory for what is stored; None for a temporary one that goes away with the buffer.
        seed: the seed of the draws; from numpy's global generator if None.

    Attributes:
        env, buffer_size, device: the arguments of these names.
        num_envs: 1 for environments that are no vector environment.
        pos, full: the position of the next row in the ring, and whether it has come round.
        batch_shape: ``(buffer_size,)``, with several environments ``(buffer_size, num_envs)``.
        obs_shape, action_shape: the shapes of one environment's observation and action; a Discrete space's is ``(1,)``.
        observations, actions: ``(*batch_shape, *obs_shape)`` and ``(*batch_shape, *action_shape)`` in the dtypes of
            the spaces; of a Dict space it is the key ``observation``.
        rewards, dones: ``(*batch_shape, 1)`` float32.
    """

    def __init__(
        self,
        env: Any,
        buffer_size: int,
        device: Any = "auto",
        *,
        path: PathLike | None = None,
        seed: int | None = None,
    ) -> None:
        self.env = env
        self.buffer_size = check_count("buffer_size", buffer_size)
        self.device = device
        self.num_envs = int(getattr(env, "num_envs", 1))
        vector = hasattr(env, "single_observation_space")
        self._observation_space = env.single_observation_space if vector else env.observation_space
        self._action_space = env.single_action_space if vector else env.action_space
        whole = self._observation_space
        if isinstance(whole, spaces.Dict) and OBSERVATION not in whole.spaces:
            raise InputError(f"a Dict observation space must have the key {OBSERVATION!r}, got {list(whole.spaces)}")
        part = whole[OBSERVATION] if isinstance(whole, spaces.Dict) else whole
        self.obs_shape, self._obs_dtype = _layout(part)
        self.action_shape, self._action_dtype = _layout(self._action_space)
        self.batch_shape = (self.buffer_size,) if self.num_envs == 1 else (self.buffer_size, self.num_envs)
        self._rng = np.random.default_rng(global_seed() if seed is None else seed)
        self._place = Location(path, self)
        self._make()

    def _make(self) -> None:
        """Make the arrays: files that are mapped into memory, and take room on disk as they are filled."""
        self.pos, self.full = 0, False
        pathlib.Path(self._place.path).mkdir(parents=True, exist_ok=True)
        self.observations: Any = self._map("observations", self.obs_shape, self._obs_dtype)
        self.actions: Any = self._map("actions", self.action_shape, self._action_dtype)
        self.rewards: Any = self._map("rewards", (1,), np.dtype(np.float32))
        self.dones: Any = self._map("dones", (1,), np.dtype(np.float32))

    def _map(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        file = pathlib.Path(self._place.path, f"{name}.raw")
        return np.memmap(file, dtype, "r+" if file.exists() else "w+", shape=(*self.batch_shape, *shape))

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""
        self.pos, self.full = 0, False
        for array in (self.observations, self.actions, self.rewards, self.dones):
            array[...] = 0

    @abstractmethod
    def add_trajectory(self, observation: Any, action: Any, reward: Any, next_observation: Any, done: Any) -> None:
        """Add one trajectory of each environment; arrays lead with ``num_envs`` if there are several."""

    def add_batch_trajectories(
        self, observations: Any, actions: Any, rewards: Any, next_observations: Any, dones: Any
    ) -> None:
        """Add several trajectories, one after the other; every array leads with their number.

        Raises InputError, with nothing added, where they are not all of one length.
        """
        for step in _by_step(observations, actions, rewards, next_observations, dones):
            self.add_trajectory(*step)

    @abstractmethod
    def sample(self, batch_size: int, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return a batch of trajectories.

        Args:
            batch_size: trajectories, of each environment unless ``flatten_env``.
            flatten_env: no axis of environments: ``batch_size`` trajectories of all environments together.
            dtype: "numpy" or "torch".
        """

    @abstractmethod
    def last(self, batch_size: int, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return the newest trajectories, the newest of all last."""

    @abstractmethod
    def all(self, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return all trajectories that are held, oldest first."""

    def _transform(self, values: Any, dtype: str | TrajectoryType) -> Any:
        """Return nested arrays as the kind that ``dtype`` names."""
        if _type_of(dtype) is TrajectoryType.NUMPY:
            return values
        try:
            import torch
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("dtype='torch' needs torch: pip install 'diskreplay[torch]'") from error
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return map_arrays(lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(device), values)


class _DiskBuffer(OverStores, BaseBuffer):
    """A buffer whose rows are in a ``diskreplay.ReplayBuffer``, its attribute ``store``."""

    _kind: type[Any] = Trajectories

    def __init__(
        self,
        env: Any,
        buffer_size: int,
        device: Any = "auto",
        *,
        path: PathLike | None = None,
        cache_bytes: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self._options = {"cache_bytes": cache_bytes, **options}
        super().__init__(env, buffer_size, device, path=path, seed=seed)

    def _view(self) -> View:
        return Transition()

    def _make(self) -> None:
        create = {
            "observation_space": self._observation_space, "action_space": self._action_space,
            "capacity": self.buffer_size * self.num_envs, "num_envs": self.num_envs,
        }  # fmt: skip
        self.store = open_or_create(
            Store, self._place, self._options, create, grows=True, view=self._view(), sampler=Uniform(),
            seed=int(self._rng.integers(1 << 31)),
        )  # fmt: skip
        with closed_on_failure(self.store):
            close_with(self, self.store)
            self._ring = Ring(self.store, self._fields(), self.batch_shape)

    pos = ring_property("pos", "The position of the next row.")
    full = ring_property("full", "Whether the ring has come round.")
    observations, actions, rewards, dones = map(shown, ("observations", "actions", "rewards", "dones"))

    def _fields(self) -> dict[str, Any]:
        key = (OBSERVATION,) if isinstance(self._observation_space, spaces.Dict) else ()
        return {
            "observations": Field(self.obs_shape, self._obs_dtype, part=("obs", *key)),
            "next_observations": Field(self.obs_shape, self._obs_dtype, part=("next_obs", *key)),
            "actions": Field(self.action_shape, self._action_dtype, part=("action",)),
            "rewards": Field((1,), part=("reward",)), "dones": Field((1,), part=("terminated",)),
        }  # fmt: skip

    def reset(self) -> None:
        """Forget all trajectories."""
        self.store.clear()

    def add_trajectory(self, observation: Any, action: Any, reward: Any, next_observation: Any, done: Any) -> None:
        """Add one trajectory of each environment.

        Args:
            observation, next_observation: ``(*obs_shape)``, or a dict; at an episode's end the true final observation.
            action: ``(*action_shape)``.
            reward, done: scalars.

        All lead with ``num_envs`` where there are several. Raises InputError, with nothing added, for other shapes and
        for rewards that are not finite.
        """
        self._ring.add([self._checked(observation, action, reward, next_observation, done)])

    def add_batch_trajectories(
        self, observations: Any, actions: Any, rewards: Any, next_observations: Any, dones: Any
    ) -> None:
        """Add several trajectories at once, with their number as first axis; errors are :meth:`add_trajectory`'s."""
        steps = _by_step(observations, actions, rewards, next_observations, dones)
        self._ring.add([self._checked(*step) for step in steps])

    def _checked(self, observation: Any, action: Any, reward: Any, next_observation: Any, done: Any) -> tuple[Any, ...]:
        """Return the arguments of ``store.add`` for one trajectory of each environment."""
        lead = () if self.num_envs == 1 else (self.num_envs,)
        space, finite = self._observation_space, self.store.schema.finite
        return (
            arguments.of_space("observation", observation, space, lead, finite=finite),
            arguments.of_space("action", action, self._action_space, lead, finite=finite),
            arguments.rewards("reward", reward, lead),
            arguments.of_space("next_observation", next_observation, space, lead, finite=finite),
            arguments.flags("done", done, lead),
            np.zeros(lead, np.bool_),
        )

    # Reading

    def _count(self, batch_size: int, flatten_env: bool) -> tuple[int, int, int]:
        """Return how many rows hold a batch, and the window; raise NotEnoughDataError if fewer are held."""
        batch_size = check_count("batch_size", batch_size)
        rows = math.ceil(batch_size / self.num_envs) if flatten_env else batch_size
        begin, end = window(self.store)
        if rows > end - begin:
            raise NotEnoughDataError(
                f"batch_size={batch_size}: the buffer holds {end - begin} rows; add more, or ask for fewer"
            )
        return rows, begin, end

    def sample(self, batch_size: int, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return rows drawn with replacement, each with the same probability, as :meth:`BaseBuffer.sample` does.

        Raises NotEnoughDataError when nothing is held.
        """
        _, begin, end = self._count(1, flatten_env)
        count = check_count("batch_size", batch_size)
        count = math.ceil(count / self.num_envs) if flatten_env else count
        ids = ids_of_all(self.store, self._rng.integers(begin, end, count))
        return self._give(ids[:batch_size] if flatten_env else ids, flatten_env, dtype)

    def last(self, batch_size: int, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return the newest trajectories as :meth:`BaseBuffer.last`; raise NotEnoughDataError when fewer are held."""
        count, _, end = self._count(batch_size, flatten_env)
        ids = ids_of_all(self.store, np.arange(end - count, end))
        return self._give(ids[-batch_size:] if flatten_env else ids, flatten_env, dtype)

    def all(self, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return all trajectories as :meth:`BaseBuffer.all`."""
        return self._give(ids_of_all(self.store, np.arange(*window(self.store))), flatten_env, dtype, recorded=True)

    def _give(
        self, ids: NDArray[np.int64], flatten_env: bool, dtype: str | TrajectoryType, recorded: bool = False
    ) -> Any:
        _type_of(dtype)
        batch = self._batch(ids, recorded)
        fields = {
            "observations": batch.obs, "actions": batch.action, "rewards": batch.reward,
            "next_observations": batch.next_obs, "dones": batch.terminated.astype(np.float32),
        }  # fmt: skip
        several = self.num_envs > 1 and not flatten_env

        def shaped(array: Array) -> Array:
            array = array[:, None] if array.ndim == 1 else array
            if not several:
                return array
            return array.reshape(len(ids) // self.num_envs, self.num_envs, *array.shape[1:]).swapaxes(0, 1)

        return self._kind(**self._transform(map_arrays(shaped, fields), dtype))

    def _batch(self, ids: NDArray[np.int64], recorded: bool) -> Batch:
        return self.store.get(ids)


class ReplayBuffer(_DiskBuffer):
    """A buffer for off-policy algorithms: any rows, each observation stored once; see :class:`BaseBuffer`."""


class RolloutBuffer(_DiskBuffer):
    """A buffer for on-policy algorithms: rows in the order in which they were added.

    Attributes:
        next_observations: the next observations, like ``observations``.
    """

    next_observations = shown("next_observations")

    def sample(self, batch_size: int, flatten_env: bool = False, dtype: str | TrajectoryType = "numpy") -> Any:
        """Return consecutive rows from a drawn one on, as :meth:`BaseBuffer.sample` does.

        Raises NotEnoughDataError when fewer are held.
        """
        count, begin, end = self._count(batch_size, flatten_env)
        first = int(self._rng.integers(begin, end - count + 1))
        ids = ids_of_all(self.store, np.arange(first, first + count))
        return self._give(ids[:batch_size] if flatten_env else ids, flatten_env, dtype)


class HERBuffer(_DiskBuffer):
    """Hindsight experience replay for environments with goals, vector environments too.

    Batches are :class:`DictTrajectories`. Those of ``sample`` and ``last`` are relabelled in part, by
    :class:`diskreplay.Hindsight`; those of ``all`` are as they were recorded. ``sample`` too raises NotEnoughDataError
    when fewer are held than were asked for.

    Args:
        env: an environment with a Dict observation space of ``observation``, ``achieved_goal`` and ``desired_goal``,
            and with ``compute_reward(achieved_goal, desired_goal, info)`` for arrays.
        buffer_size: rows that are held.
        goal_selection_strategy: "future", "final" or "episode".
        n_sampled_goal: relabelled trajectories to each that is not, at least 0.
        device: as in :class:`BaseBuffer`.
        compute_reward: a function to use in the place of the environment's.

    Attributes:
        her_ratio: probability that a trajectory is relabelled.
        desired_goals, next_achieved_goals: ``(*batch_shape, *goal_shape)``.
    """

    _kind = DictTrajectories

    def __init__(
        self,
        env: Any,
        buffer_size: int,
        goal_selection_strategy: str | GoalSelectionStrategy = "future",
        n_sampled_goal: int = 4,
        device: Any = "auto",
        *,
        compute_reward: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        name = goal_selection_strategy
        try:
            self.goal_selection_strategy = GoalSelectionStrategy(name.lower() if isinstance(name, str) else name)
        except ValueError as error:
            kinds = [strategy.value for strategy in GoalSelectionStrategy]
            raise InputError(f"goal_selection_strategy must be one of {kinds}, got {name!r}") from error
        self.goal_section_strategy = self.goal_selection_strategy  # the name it has in Pearl
        self.n_sampled_goal = check_count("n_sampled_goal", n_sampled_goal, least=0)
        self.her_ratio = 1.0 - 1.0 / (self.n_sampled_goal + 1)
        self._compute_reward = _reward_function(env) if compute_reward is None else compute_reward
        whole = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
        if not isinstance(whole, spaces.Dict) or not {OBSERVATION, ACHIEVED, DESIRED} <= whole.spaces.keys():
            raise InputError(
                f"HERBuffer needs an environment whose observations are a Dict of {OBSERVATION}, {ACHIEVED} and "
                f"{DESIRED}, got {whole}"
            )
        super().__init__(env, buffer_size, device, **options)

    def _view(self) -> View:
        strategy: Any = self.goal_selection_strategy.value
        return Hindsight(self._compute_reward, strategy, self.her_ratio)

    desired_goals, next_achieved_goals = map(shown, ("desired_goals", "next_achieved_goals"))

    def _fields(self) -> dict[str, Any]:
        goals = {"desired_goals": ("obs", DESIRED), "next_achieved_goals": ("next_obs", ACHIEVED)}
        shapes = {name: _layout(self._observation_space[key]) for name, (_, key) in goals.items()}
        return {**super()._fields(), **{name: Field(*shapes[name], part=part) for name, part in goals.items()}}

    def _batch(self, ids: NDArray[np.int64], recorded: bool) -> Batch:
        batch = self.store.get(ids) if recorded or not len(ids) else self.store.engine.read(self._draft, ids)
        goals = batch.obs[DESIRED]
        obs, next_obs = ({OBSERVATION: whole[OBSERVATION], DESIRED: goals} for whole in (batch.obs, batch.next_obs))
        return dataclasses.replace(batch, obs=obs, next_obs=next_obs)

    def _draft(self, ids: NDArray[np.int64], reads: Reads) -> Batch:
        """Return relabelled transitions, as ``store.sample`` makes them of ids that it draws itself."""
        store, held = self.store, transitions(self.store)
        if len(ids) > held:
            raise NotEnoughDataError(f"the buffer holds {held} trajectories, {len(ids)} were asked for; add more")
        weights = np.ones(len(ids), np.float32)
        return store.view.draft(store.schema, store.engine.streams.all, ids, weights, store.engine.rng, reads)


def _layout(space: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of the arrays for a space; a single number has shape (1,)."""
    if isinstance(space, spaces.Dict | spaces.Tuple) or space.shape is None or space.dtype is None:
        raise InputError(f"a space must be Box, Discrete, MultiDiscrete, MultiBinary or a Dict of them, got {space}")
    return tuple(space.shape) or (1,), np.dtype(space.dtype)


def _by_step(observations: Any, actions: Any, rewards: Any, following: Any, dones: Any) -> list[tuple[Any, ...]]:
    """Return the arguments of ``add_trajectory`` for each of several."""
    return arguments.by_step({
        "observations": observations, "actions": actions, "rewards": rewards, "next_observations": following,
        "dones": dones,
    })  # fmt: skip


def _type_of(dtype: str | TrajectoryType) -> TrajectoryType:
    try:
        return TrajectoryType(dtype.lower() if isinstance(dtype, str) else dtype)
    except ValueError as error:
        raise InputError(f"dtype must be 'numpy' or 'torch', got {dtype!r}") from error


def _reward_function(env: Any) -> Callable[..., Any]:
    """Return the ``compute_reward`` of an environment below its wrappers, or of a vector environment's first one."""
    inner = env.unwrapped
    single = inner.envs[0] if hasattr(inner, "envs") else env
    try:
        found: Callable[..., Any] = single.get_wrapper_attr("compute_reward")
    except AttributeError as error:
        raise InputError(
            f"{env} has no compute_reward in this process; give it: HERBuffer(..., compute_reward=f)"
        ) from error
    return found
