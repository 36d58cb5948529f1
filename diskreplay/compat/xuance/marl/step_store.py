"""The store under XuanCe's multi-agent buffers.

1. Steps are rows of a :class:`~diskreplay.MultiAgentReplayBuffer`. Rewards and terminals in XuanCe's own shapes are
   columns of the user; masks of available actions are part of what an agent observes.
2. What XuanCe's callers may rewrite in RAM (returns, half-built episodes) is a
   :class:`~diskreplay.compat.keeper.RamState`.
3. On-policy steps come without the observation after them: :class:`~diskreplay.compat.keeper.PendingStep`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_layout import lay_out
from diskreplay.buffers.options import AgentsSpec
from diskreplay.compat.disk_array import Shape
from diskreplay.compat.location import Location
from diskreplay.compat.stores import CREATE_OPTIONS, OPEN_OPTIONS, open_or_create
from diskreplay.spaces import unbounded
from diskreplay.views.view import View

REWARDS, TERMINALS = "rewards", "terminals"
AVAILABLE = "avail_actions"
OPTIONS = ("path", *CREATE_OPTIONS, *OPEN_OPTIONS)


def open_steps(
    owner: object, kwargs: Mapping[str, Any], view: View, n_agents: int, num_envs: int, rows: int, obs: Shape,
    action: Shape, state: Shape | None, *, dtype: Any = np.float32, n_actions: int | None = None,
    mean_action: Shape | None = None, columns: Mapping[str, tuple[Shape, Any]] | None = None,
) -> MultiAgentReplayBuffer:  # fmt: skip
    """Return the store of ``owner``: that at the path, or a new one; raise InputError if it has other shapes.

    Args:
        owner: the buffer; the store is removed with it where it has no path.
        kwargs: its keyword arguments, of which those of ``OPTIONS`` count.
        view: the view of the store.
        n_agents, num_envs, rows: agents, environments, and rows of each.
        obs, action: shapes of one agent.
        state: shape of the global state; None where there is none.
        dtype: the dtype of observations and actions.
        n_actions: the number of actions in the masks of available actions; None where there are none.
        mean_action: shape of the mean action of one environment; None where there is none.
        columns: ``(shape, dtype)`` by name.
    """
    observation: spaces.Space[Any] = unbounded(obs, dtype)
    if n_actions is not None:
        observation = spaces.Dict({"obs": observation, AVAILABLE: spaces.MultiBinary(n_actions)})
    actions, states = unbounded(action, dtype), None if state is None else unbounded(state, np.float32)
    create = {
        "observation_space": observation, "action_space": actions, "n_agents": n_agents, "num_envs": num_envs,
        "capacity": rows * num_envs, "state_space": states, "mean_action_shape": mean_action, "columns": columns,
    }  # fmt: skip
    agents, *stored = lay_out(observation, actions, n_agents, AgentsSpec(states, mean_action_shape=mean_action))
    of_all: dict[str, Any] = dict(zip(("observation_space", "action_space"), stored, strict=True))
    facts = {**create, **of_all, "columns": agents.columns(columns)}
    options = {name: kwargs[name] for name in OPTIONS if name in kwargs and name != "path"}
    place = Location(kwargs.get("path"), owner)
    return open_or_create(MultiAgentReplayBuffer, place, options, create, facts, view=view)
