"""What XuanCe's multi-agent buffers share: their arguments, their ring, and arrays that are read from the store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import KeysView, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.checks import check_count
from diskreplay.compat.arrays import Shape, fit
from diskreplay.compat.keeper import Keeper, RamState, ring_part
from diskreplay.compat.rows import ring
from diskreplay.compat.xuance.memory import checked_shape
from diskreplay.errors import InputError
from diskreplay.ids import Ids

Array = NDArray[Any]
Spec = tuple[Shape, Any, int]
"""Shape of one entry, dtype, and what stands where nothing was stored: 0 or 1."""


class BaseBuffer(ABC):
    """The arguments that all buffers have, and their ring.

    Args:
        args: ``n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size``; the spaces
            are shapes, ``state_space`` may be None.

    Attributes:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size: as given, shapes as
            tuples.
        n_size: entries of the ring for one environment, ``buffer_size // n_envs``.
        ptr, size: the entry to be written next, and how many there are.
    """

    ptr: int = 0
    size: int = 0

    def __init__(self, *args: Any) -> None:
        if len(args) != 8:
            raise InputError(
                "the arguments are n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs and "
                f"buffer_size, got {len(args)} of them"
            )
        names = ("obs_space", "act_space", "rew_space", "done_space")
        n_agents, state, *shapes, n_envs, buffer_size = args
        self.n_agents = check_count("n_agents", n_agents)
        self.state_space = None if state is None else checked_shape("state_space", state)
        self.obs_space, self.act_space, self.rew_space, self.done_space = map(checked_shape, names, shapes)
        self.n_envs = check_count("n_envs", n_envs)
        self.buffer_size = check_count("buffer_size", buffer_size, least=self.n_envs)
        self.n_size = self.buffer_size // self.n_envs

    @property
    def full(self) -> bool:
        """Whether every entry of the ring is there."""
        return bool(self.size >= self.n_size)

    @abstractmethod
    def store(self, *args: Any, **kwargs: Any) -> None:
        """Adds an entry."""

    @abstractmethod
    def clear(self, *args: Any) -> None:
        """Empties the buffer."""

    @abstractmethod
    def sample(self, *args: Any) -> Any:
        """A batch, by key."""

    def finish_path(self, *args: Any, **kwargs: Any) -> None:
        """Called when an episode has ended; nothing to do here."""
        return


class MultiAgentBuffer(BaseBuffer):
    """A buffer of XuanCe's over a store.

    Keyword arguments of all of them, beside XuanCe's own:
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        codec, chunk_rows, shard_rows, cache_bytes, commit_rows, commit_seconds: as of
            :meth:`diskreplay.ReplayBuffer.create`.

    Attributes:
        data: arrays by key, with the axes of XuanCe's. Those on disk are read when they are indexed, and read-only;
            the others are numpy arrays, which may be rewritten in place.
        keys: of ``data``.
        data_shapes: shapes by key.
        store_global_state: whether there is a global state.
        engine: the store, a :class:`diskreplay.MultiAgentReplayBuffer`.
    """

    engine: MultiAgentReplayBuffer
    _keeper: Keeper

    ptr = ring_part(0, "The entry to be written next.")
    size = ring_part(1, "Entries that are there.")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.store_global_state = self.state_space is not None
        self._data: dict[str, Any] = {}

    def _keep(self, keeper: Keeper) -> None:
        """Takes an open store, fills ``data``, and goes on as the store was closed."""
        self._keeper = keeper
        with keeper.opening(self):
            self._data.update(self._arrays())
            if not keeper.restore():
                self._recover()
            self._look()

    def _ram(self, marks: dict[str, Ids], **more: Any) -> RamState:
        """What is in RAM: marks, and those arrays of ``data`` that are not on disk."""
        fills = {key: fill for key, (_, _, fill) in self._specs().items()}
        return RamState(marks=marks, arrays={"data": self._data, **more}, fills=fills)

    def _recover(self) -> None:
        """The store is new, or was not closed: finds in its rows what can be found."""

    def _look(self) -> None:
        """Finds in the rows what is nowhere else."""

    def _specs(self) -> dict[str, Spec]:
        """One entry of each array of ``data``."""
        raise NotImplementedError

    def _arrays(self) -> dict[str, Any]:
        """The arrays of ``data``, with nothing in them."""
        raise NotImplementedError

    def _ring(self) -> tuple[int, int]:
        """``ptr`` and ``size``: found in the rows."""
        return ring(self.engine)

    @property
    def data(self) -> dict[str, Any]:
        self._keeper.finish_change()
        return self._data

    @property
    def keys(self) -> KeysView[str]:
        """Of ``data``."""
        return self._data.keys()

    @property
    def data_shapes(self) -> dict[str, Shape]:
        """Shapes of ``data`` by key."""
        return {key: self._data[key].shape for key in self.keys}

    def clear(self) -> None:
        """Empties the buffer, with all that goes with its entries; its space goes back with the next commit."""
        self.engine.clear()

    def commit(self) -> None:
        """Makes everything durable, what is in RAM too."""
        self._keeper.save()

    def close(self) -> None:
        """Commits, and gives the store to the next writer."""
        self.engine.close()


def needed(kwargs: Mapping[str, Any], name: str) -> Any:
    """A keyword argument that a class cannot do without."""
    if name not in kwargs:
        raise InputError(f"{name} must be given, as a keyword argument")
    return kwargs[name]


def empty(lead: Shape, spec: Spec) -> Array:
    """What stands in ``data`` where nothing was stored."""
    shape, dtype, fill = spec
    return np.full((*lead, *shape), fill, dtype)


def take_step(step_data: Mapping[str, Any], specs: Mapping[str, Spec], num_envs: int) -> dict[str, Array]:
    """One step's arrays ``(num_envs, ...)`` by key; InputError where a key that has no default is missing."""
    if not isinstance(step_data, Mapping):
        raise InputError(f"step_data must be a dict of arrays, got {step_data!r:.80}")
    found = {}
    for key, spec in specs.items():
        if key in step_data:
            found[key] = fit(key, step_data[key], (num_envs, *spec[0]), spec[1])
        elif key in OPTIONAL:
            found[key] = empty((num_envs,), spec)
        else:
            raise InputError(f"step_data lacks {key!r}; it needs {[k for k in specs if k not in OPTIONAL]}")
    return found


OPTIONAL = ("agent_mask", "returns", "values", "log_pi_old", "advantages", "actions_onehot")
"""What a step may leave out: the default is that of an empty buffer."""


def team_reward(rewards: Array) -> Array:
    """The mean of an environment's rewards, which the engine wants; InputError where it is not finite."""
    mean: Array = rewards.reshape(len(rewards), -1).mean(axis=1, dtype=np.float64)
    if not np.isfinite(mean).all():
        raise InputError("rewards must be finite; nothing was stored")
    return mean
