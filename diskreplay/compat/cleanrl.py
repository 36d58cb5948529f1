"""CleanRL's replay buffers over a store on disk, with the names of ``cleanrl_utils.buffers`` and ``rainbow_atari.py``.

Neither needs CleanRL or Stable-Baselines3, only torch.

1. A step of all environments becomes a row. CleanRL tells which steps terminated; where an episode was truncated, the
   store sees that the next step does not begin with the ``next_obs`` of the one before.
2. Stacked images are stored as single frames. How many are stacked is seen from the first step, which makes the store.
3. Draws come from numpy's global generator, in CleanRL's order, so that the same seed draws the same transitions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("diskreplay.compat.cleanrl needs torch: pip install 'diskreplay[torch]'") from error

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import check_array, check_count
from diskreplay.compat import arguments
from diskreplay.compat.first_step import FirstStepBuffer, FrameStack, SharedStore, VectorBuffer
from diskreplay.compat.rows import ids_of
from diskreplay.compat.sampler_draws import draw
from diskreplay.compat.stores import named_checkpoint
from diskreplay.errors import InputError
from diskreplay.process.locks import uninterrupted
from diskreplay.sampling.proportional import Proportional
from diskreplay.schema.spaces import unbounded
from diskreplay.storage.paths import PathLike
from diskreplay.views.transition import Transition

__all__ = ["PrioritizedBatch", "PrioritizedReplayBuffer", "ReplayBuffer", "ReplayBufferSamples"]

ANY_ACTION = unbounded((), np.int64)
"""The space of Rainbow's actions: its buffer is not told how many there are."""


class ReplayBufferSamples(NamedTuple):
    """A batch as torch tensors.

    Attributes:
        observations, next_observations: ``(B, *obs_shape)``, in the dtype of the space.
        actions: ``(B, action_dim)``.
        dones, rewards: ``(B, 1)`` float32.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    rewards: torch.Tensor


class PrioritizedBatch(NamedTuple):
    """A batch of n-step transitions as torch tensors.

    Attributes:
        observations, next_observations: ``(B, *obs_shape)`` uint8.
        actions: ``(B, 1)`` int64.
        rewards: ``(B, 1)`` float32: the discounted sum of the steps of one episode.
        dones: ``(B, 1)`` bool: terminated.
        indices: ``(B,)`` int64, an array, for ``update_priorities``.
        weights: ``(B, 1)`` float32, the largest of a batch is 1.
        discounts: ``(B, 1)`` float32: ``gamma ** steps``, of fewer steps where a truncated episode ends; 0 where done.
            CleanRL's batch lacks it.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    rewards: torch.Tensor
    next_observations: torch.Tensor
    dones: torch.Tensor
    indices: NDArray[np.int64]
    weights: torch.Tensor
    discounts: torch.Tensor


class ReplayBuffer(VectorBuffer):
    """CleanRL's ``cleanrl_utils.buffers.ReplayBuffer`` with its rows on disk.

    Args:
        buffer_size: transitions (rows x environments) that can be sampled.
        observation_space, action_space: the observation space and action space of one environment: Box, Discrete,
            MultiDiscrete or MultiBinary.
        device: the device of the tensors; "auto" is CUDA where there is one, else the CPU.
        n_envs: environments that step in lockstep.
        optimize_memory_usage: draws as CleanRL's does with it, which leaves the oldest row out once the ring is full;
            frames are stored once in any case, and final observations kept.
        handle_timeout_termination: do not give out dones that ``infos`` calls ``TimeLimit.truncated``. Without it
            ``infos`` is not looked at.
        path: the directory of the store, which is made if nothing is there; None for a temporary one that goes away
            with the buffer.
        checkpoint: the checkpoint of the store at ``path`` to go back to; "latest" is the newest, or the last commit
            where there is none yet, or a new store.
        frame_stack: frames of an image observation; "auto" sees it from the first step.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        **options: further ones of ``diskreplay.ReplayBuffer.create`` and ``open``: ``codec``, ``chunk_rows``,
            ``shard_rows``, ``commit_rows``, ``commit_seconds``.

    Attributes:
        store: the ``diskreplay.ReplayBuffer``; None until the first step where ``frame_stack`` is to be seen from it.
        pos, full: position of the next row in the ring, and whether it has come round.
        observations, next_observations, actions, rewards, dones, timeouts: ``(buffer_size, n_envs, ...)``; read-only,
            and read from the store when they are indexed.
    """

    _ignores_resets = True

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: PathLike | None = None,
        checkpoint: str | None = None,
        frame_stack: FrameStack = "auto",
        cache_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.n_envs = check_count("n_envs", n_envs)
        self.buffer_size = max(check_count("buffer_size", buffer_size) // self.n_envs, 1)
        self.observation_space, self.action_space = observation_space, action_space
        shape = _shape("observation_space", observation_space)
        self.obs_shape = (1,) if isinstance(observation_space, spaces.Discrete) else shape
        self.action_dim = int(np.prod(_shape("action_space", action_space)))
        self.device = _device(device)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        facts = {
            "observation_space": observation_space, "action_space": _flat(action_space), "num_envs": self.n_envs,
            "capacity": self.buffer_size * self.n_envs,
        }  # fmt: skip
        shared, settings = SharedStore(path), {"cache_bytes": cache_bytes, "seed": 0}
        self._begin(
            shared, facts, settings, options, frame_stack, fields=self._fields(_flat(action_space)),
            checkpoint=named_checkpoint([shared.place], checkpoint),
        )  # fmt: skip

    def size(self) -> int:
        """Return the number of rows held."""
        return self.buffer_size if self.full else self.pos

    def _checked(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> tuple[Any, ...]:
        told = infos if self.handle_timeout_termination else None
        return super()._checked(obs, next_obs, action, reward, done, told)

    @uninterrupted
    def sample(self, batch_size: int) -> ReplayBufferSamples:
        """Return ``batch_size`` transitions, drawn with replacement; raise NotEnoughDataError if there is none."""
        store = self._filled()
        batch_size, ring = check_count("batch_size", batch_size), self._ring
        _, pos, full = ring.catch_up()
        if full and self.optimize_memory_usage and self.buffer_size > 1:
            drawn = (np.random.randint(1, self.buffer_size, batch_size) + pos) % self.buffer_size
        else:
            drawn = np.random.randint(0, self.buffer_size if full else pos, batch_size)
        envs = np.random.randint(0, self.n_envs, batch_size)
        batch = store.get(ids_of(store, ring.entries(drawn), envs))
        dones = batch.terminated if self.handle_timeout_termination else batch.terminated | batch.truncated
        return ReplayBufferSamples(
            observations=_tensor(batch.obs.reshape(-1, *self.obs_shape), self.device),
            actions=_tensor(batch.action.reshape(-1, self.action_dim), self.device),
            next_observations=_tensor(batch.next_obs.reshape(-1, *self.obs_shape), self.device),
            dones=_tensor(dones.reshape(-1, 1).astype(np.float32), self.device),
            rewards=_tensor(batch.reward.reshape(-1, 1), self.device),
        )


class PrioritizedReplayBuffer(FirstStepBuffer):
    """The prioritized n-step buffer of CleanRL's ``rainbow_atari.py``, for one environment, with its rows on disk.

    n-step returns stay within an episode. Priorities come back when the store is opened again after ``close()`` or an
    orderly end; after a crash, or where rows came later, all are new.

    Args:
        capacity: steps that are held.
        obs_shape: the shape of an observation, which is uint8.
        device: the device of the tensors.
        n_step, gamma: the steps and the discount of the returns.
        alpha: the exponent of the priorities; 0 is uniform.
        beta: the exponent of the importance weights; it can be set, and counts for the next batch.
        eps: a number above 0 that is added to every priority.
        path, checkpoint, frame_stack, cache_bytes, **options: as in :class:`ReplayBuffer`.

    Attributes:
        store: the ``diskreplay.ReplayBuffer``; None until the first step where ``frame_stack`` is to be seen from it.
        pos, size: position of the next step in the ring, and steps that are held, those included that still wait for
            the rest of their ``n_step``.
        max_priority: the largest priority so far, which a new transition gets.
    """

    _ignores_resets = True

    def __init__(
        self,
        capacity: int,
        obs_shape: tuple[int, ...],
        device: Any,
        n_step: int,
        gamma: float,
        alpha: float = 0.6,
        beta: float = 0.4,
        eps: float = 1e-6,
        *,
        path: PathLike | None = None,
        checkpoint: str | None = None,
        frame_stack: FrameStack = "auto",
        cache_bytes: int | None = None,
        **options: Any,
    ) -> None:
        self.capacity = check_count("capacity", capacity)
        self.obs_shape = tuple(obs_shape)
        self.device = _device(device)
        self.n_step, self.gamma, self.alpha, self.eps = n_step, gamma, alpha, eps
        self.beta = beta
        self._space = spaces.Box(0, 255, self.obs_shape, np.uint8)
        facts = {
            "observation_space": self._space, "action_space": ANY_ACTION,
            "num_envs": 1, "capacity": self.capacity, "sampler": Proportional(alpha, beta, epsilon=eps),
        }  # fmt: skip
        shared, settings = SharedStore(path), {"view": Transition(n_step, gamma), "cache_bytes": cache_bytes, "seed": 0}
        checkpoint = named_checkpoint([shared.place], checkpoint)
        self._begin(shared, facts, settings, options, frame_stack, checkpoint=checkpoint)

    @property
    def size(self) -> int:
        return 0 if self.store is None else len(self.store)

    @property
    def max_priority(self) -> float:
        return 1.0 if self.store is None else float(_sampler(self.store).maxima[0])

    @uninterrupted
    def add(self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any) -> None:
        """Add one step; every argument may have a leading axis of one environment.

        Raises InputError, with nothing added, for wrong shapes, observations that are not uint8, and rewards that are
        not finite.
        """
        before, after = (
            arguments.of_space(what, value, self._space) for what, value in (("obs", obs), ("next_obs", next_obs))
        )
        actions = arguments.numbers("action", action, (), np.int64)
        rewards, ended = arguments.rewards("reward", reward, ()), arguments.flags("done", done, ())
        self._add([(before, actions, rewards, after, ended, False)])

    @uninterrupted
    def sample(self, batch_size: int) -> PrioritizedBatch:
        """Return ``batch_size`` transitions, each drawn from an equal slice of the priorities' total.

        Raises NotEnoughDataError where no transition has all of its steps yet.
        """
        store = self._filled()
        _sampler(store).beta = self.beta
        ids, weights = draw(store, check_count("batch_size", batch_size), np.random)
        batch = store.get(ids)
        columns = {
            "actions": batch.action, "rewards": batch.reward, "dones": batch.terminated,
            "weights": weights / weights.max(), "discounts": batch.discount,
        }  # fmt: skip
        return PrioritizedBatch(
            observations=_tensor(batch.obs.reshape(-1, *self.obs_shape), self.device),
            next_observations=_tensor(batch.next_obs.reshape(-1, *self.obs_shape), self.device),
            indices=ids,
            **{name: _tensor(values.reshape(-1, 1), self.device) for name, values in columns.items()},
        )

    @uninterrupted
    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Set the priorities of transitions to ``|priority| + eps``; transitions that have left the buffer are ignored.

        Args:
            indices: ``(B,)``, of batches; of one that repeats the last priority counts.
            priorities: ``(B,)`` TD errors or losses.

        Raises InputError, with nothing changed, where a priority is not finite or an index names no transition.
        """
        store = self._filled()
        store.update_priorities(check_array("indices", indices), check_array("priorities", priorities))


def _sampler(store: Store) -> Proportional:
    assert isinstance(store.sampler, Proportional), "Rainbow's buffer makes its store with one"
    return store.sampler


def _shape(what: str, space: spaces.Space[Any]) -> tuple[int, ...]:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        raise InputError(f"{what} must be Box, Discrete, MultiDiscrete or MultiBinary, got {space}")
    assert space.shape is not None
    return space.shape


def _flat(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space of actions as they are stored: continuous ones flat, unbounded, and never float64."""
    if not isinstance(space, spaces.Box):
        return space
    return unbounded((int(np.prod(space.shape)),), np.float32 if space.dtype == np.float64 else space.dtype)


def _device(device: Any) -> torch.device:
    """Return the device as CleanRL chooses it: "auto" is CUDA, and CUDA becomes the CPU where there is none."""
    found = torch.device("cuda" if device == "auto" else device)
    return torch.device("cpu") if found.type == "cuda" and not torch.cuda.is_available() else found


def _tensor(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
