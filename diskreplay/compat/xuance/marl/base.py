"""The base of XuanCe's multi-agent buffers: arguments, ring, the store, and arrays that are read from it.

1. Steps are rows of a :class:`~diskreplay.MultiAgentReplayBuffer`. Rewards and terminals in XuanCe's own shapes are
   columns of the user; masks of available actions are part of what an agent observes.
2. What XuanCe's callers may rewrite in RAM (returns, half-built episodes) is a
   :class:`~diskreplay.compat.adapter_state.RamState`.
"""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_layout import lay_out
from diskreplay.buffers.options import DEFAULTS
from diskreplay.checks import Array, check_count
from diskreplay.compat.disk_array import Shape, fit
from diskreplay.compat.location import Location
from diskreplay.compat.ring import Field
from diskreplay.compat.stores import CREATE_OPTIONS, OPEN_OPTIONS, open_or_create
from diskreplay.compat.xuance.disk_buffer import DiskBuffer
from diskreplay.compat.xuance.memory import Buffer, checked_shape
from diskreplay.errors import InputError
from diskreplay.schema.spaces import unbounded
from diskreplay.views.view import View

REWARDS, TERMINALS = "rewards", "terminals"
AVAILABLE = "avail_actions"
OPTIONS = (*CREATE_OPTIONS, *OPEN_OPTIONS)

Fields = Mapping[str, Field]


class BaseBuffer(Buffer):
    """The arguments that all buffers have, and their ring.

    Args:
        args: ``n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size``; the spaces
            are shapes, ``state_space`` may be None.

    Attributes:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size: the arguments of these
            names, with shapes as tuples.
        n_size: entries of the ring for one environment, ``buffer_size // n_envs``.
        ptr, size: the entry to be written next, and how many there are.
    """

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


class MultiAgentBuffer(DiskBuffer, BaseBuffer):
    """A buffer of XuanCe's over a store.

    Keyword arguments of all of them, beside XuanCe's own:
        path: where the store is, or is to be made; None for a temporary directory that goes away with the buffer.
        codec, chunk_rows, shard_rows, cache_bytes, commit_rows, commit_seconds: as of
            :meth:`diskreplay.ReplayBuffer.create`.

    Attributes:
        data: arrays by key, with the axes of XuanCe's. Those on disk are read when they are indexed, and read-only;
            the others are numpy arrays, which may be rewritten in place.
        keys: the keys of ``data``.
        data_shapes: shapes by key.
        store_global_state: True if there is a global state.
        engine: the store, a :class:`diskreplay.MultiAgentReplayBuffer`.
    """

    engine: MultiAgentReplayBuffer
    _fields: Fields
    """The fields that describe one entry of each array of ``data``."""
    _data: dict[str, Any]

    def _store(
        self, kwargs: Mapping[str, Any], view: View, num_envs: int, rows: int, columns: Mapping[str, Any], *,
        dtype: Any = np.float32, n_actions: int | None = None, mean_action: Shape | None = None,
    ) -> MultiAgentReplayBuffer:  # fmt: skip
        """Return the store: that at the path, or a new one; raise InputError if it has other shapes.

        Args:
            kwargs: the keyword arguments of the buffer, of which those of ``OPTIONS`` count.
            view: the view of the store.
            num_envs, rows: environments, and rows of each.
            columns: ``(shape, dtype)`` by name.
            dtype: the dtype of observations and actions.
            n_actions: the number of actions in the masks of available actions; None where there are none.
            mean_action: shape of the mean action of one environment; None where there is none.
        """
        observation: spaces.Space[Any] = unbounded(self.obs_space, dtype)
        if n_actions is not None:
            observation = spaces.Dict({"obs": observation, AVAILABLE: spaces.MultiBinary(n_actions)})
        actions = unbounded(self.act_space, dtype)
        states = None if self.state_space is None else unbounded(self.state_space, np.float32)
        create = {
            "observation_space": observation, "action_space": actions, "n_agents": self.n_agents, "num_envs": num_envs,
            "capacity": rows * num_envs, "state_space": states, "mean_action_shape": mean_action, "columns": columns,
        }  # fmt: skip
        _, (observed, acted), laid_out = lay_out((observation, actions, self.n_agents), {**DEFAULTS, **create})
        stored = {"observation_space": observed, "action_space": acted, "columns": laid_out["columns"]}
        options = {name: kwargs[name] for name in OPTIONS if name in kwargs}
        place = Location(kwargs.get("path"), self)
        return open_or_create(MultiAgentReplayBuffer, place, options, create, {**create, **stored}, view=view)

    def _take(self, kwargs: Mapping[str, Any]) -> None:
        """Take further arguments; raise InputError if one is missing, or does not fit the others."""

    @property
    def store_global_state(self) -> bool:
        return self.state_space is not None

    @property
    def data(self) -> dict[str, Any]:
        self._adapter.check_whole()
        return self._data

    @property
    def keys(self) -> KeysView[str]:
        """The keys of ``data``."""
        return self._data.keys()

    @property
    def data_shapes(self) -> dict[str, Shape]:
        """The shapes of ``data`` by key."""
        return {key: self._data[key].shape for key in self.keys}


def needed(kwargs: Mapping[str, Any], name: str) -> Any:
    """Return a keyword argument that a class cannot do without; raise InputError if it is missing."""
    if name not in kwargs:
        raise InputError(f"{name} must be given, as a keyword argument")
    return kwargs[name]


def take_step(step_data: Mapping[str, Any], fields: Fields, num_envs: int) -> dict[str, Array]:
    """Return one step's arrays ``(num_envs, ...)`` by key; raise InputError if a key that is needed is missing."""
    if not isinstance(step_data, Mapping):
        raise InputError(f"step_data must be a dict of arrays, got {step_data!r:.80}")
    found = {}
    for key, field in fields.items():
        if key in step_data:
            found[key] = fit(key, step_data[key], (num_envs, *field.shape), field.dtype)
        elif field.optional:
            found[key] = field.empty(num_envs)
        else:
            raise InputError(f"step_data lacks {key!r}; it needs {[k for k in fields if not fields[k].optional]}")
    return found


def row_of(step: Mapping[str, Array]) -> dict[str, Array]:
    """Return a step as ``add`` takes it, without what follows; its reward is the mean of an environment's rewards.

    Raises InputError if that is not finite.
    """
    count = len(step["rewards"])
    reward = step["rewards"].reshape(count, -1).mean(axis=1, dtype=np.float64)
    if not np.isfinite(reward).all():
        raise InputError("rewards must be finite; nothing was stored")
    return {
        "obs": step["obs"], "action": step["actions"], "reward": reward,
        "terminated": step["terminals"].reshape(count, -1).all(axis=1), "truncated": np.zeros(count, bool),
        "agent_mask": step["agent_mask"], **({"state": step["state"]} if "state" in step else {}),
    }  # fmt: skip
