"""The layout of the steps of several agents in a store.

1. The observation is a Dict of ``obs`` (all agents, ``(n_agents, *obs_shape)``), ``state`` and ``available_actions``,
   so that what follows a step, at an episode's end too, comes from the engine as every next observation does.
2. The action is that of all agents, ``(n_agents, *action_shape)``.
3. What says nothing of the next step stands in columns of its own: ``agent_mask``, ``agent_reward``, ``mean_action``.
   The engine's own reward is the team's, or the mean of the agents'.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from diskreplay.buffers.on_policy import AGENTS_ROLLOUT
from diskreplay.buffers.options import Space
from diskreplay.checks import check_array, check_count, check_flag
from diskreplay.engine.engine import Engine
from diskreplay.engine.inputs import rounded
from diskreplay.errors import InputError, NotAStoreError, SchemaError
from diskreplay.schema.columns import Schema
from diskreplay.schema.spaces import discrete

OBS, STATE, AVAILABLE = "obs", "state", "available_actions"
AGENT_MASK, AGENT_REWARD, MEAN_ACTION = "agent_mask", "agent_reward", "mean_action"
OWN_COLUMNS = {AGENT_MASK: AGENT_MASK, AGENT_REWARD: "reward", MEAN_ACTION: MEAN_ACTION}
"""The layout's own columns, and the fields of a batch that show them."""
AGENTS_LEAF = f"obs/{OBS}"
"""The name of the agents' observations in the store."""
KEY = "agents"
"""The name of the layout among a store's settings."""

MAX_AGENTS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Agents:
    """The layout of a store of several agents' steps.

    Attributes:
        n_agents: agents of each environment.
        rewards: "team", one reward for all, or "agent", one for each.
        state: True if there is a global state.
        available_actions: True if there are masks of actions.
        mean_action_shape: the shape of the mean-field action probabilities; None if there are none.
        n_actions, first_action: the size and the first action of a Discrete action space; None and 0 for another space.
    """

    n_agents: int
    rewards: Literal["team", "agent"]
    state: bool
    available_actions: bool
    mean_action_shape: tuple[int, ...] | None
    n_actions: int | None
    first_action: int

    def columns(self, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the store's further columns: the layout's own, and those of the user."""
        if given is not None and not isinstance(given, Mapping):
            raise InputError(f"columns must be a mapping of names to dtypes, got {given!r}")
        taken = sorted({*OWN_COLUMNS} & {*(given or {})})
        if taken:
            raise InputError(f"columns: {taken[0]!r} is a name of the multi-agent buffer's own; choose another")
        own: dict[str, Any] = {AGENT_MASK: ((self.n_agents,), bool)}
        if self.rewards == "agent":
            own[AGENT_REWARD] = ((self.n_agents,), np.float32)
        if self.mean_action_shape is not None:
            own[MEAN_ACTION] = (self.mean_action_shape, np.float32)
        return {**own, **(given or {})}

    def observation(self, obs: Any, state: Any, available_actions: Any, which: str = "") -> dict[str, Any]:
        """Return the observation of a step, or with ``which="next_"`` the next one; raise InputError for bad parts."""
        found = {OBS: obs}
        if _is_given(f"{which}{STATE}", state, self.state):
            found[STATE] = state
        if _is_given(f"{which}{AVAILABLE}", available_actions, self.available_actions):
            found[AVAILABLE] = _zeros_and_ones(f"{which}{AVAILABLE}", available_actions)
        return found

    def values(
        self, lead: tuple[int, ...], reward: Any, agent_mask: Any, mean_action: Any, extra: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the engine's reward of a step, and the values of its further columns."""
        taken = sorted({*OWN_COLUMNS} & extra.keys())
        if taken:
            raise InputError(f"add: {taken[0]!r} is the buffer's own column; leave it out")
        shape = (*lead, self.n_agents)
        columns = {**extra, AGENT_MASK: np.ones(shape, bool) if agent_mask is None else agent_mask}
        if _is_given(MEAN_ACTION, mean_action, self.mean_action_shape is not None):
            columns[MEAN_ACTION] = rounded(MEAN_ACTION, mean_action)
        if self.rewards == "team":
            return reward, columns
        rewards = rounded("reward", reward)
        if rewards.shape != shape:
            raise InputError(f"reward must be one for each agent, of shape {shape}, got {rewards.shape}")
        columns[AGENT_REWARD] = rewards
        return rewards.astype(np.float64).mean(axis=-1), columns

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def lay_out(of_agents: Sequence[Any], options: Mapping[str, Any]) -> tuple[Agents, tuple[Space, Space], dict[str, Any]]:
    """Return the layout, the store's spaces and its options; raise InputError or SchemaError for a bad argument.

    ``of_agents`` are the spaces of one agent, and the number of agents.
    """
    observation_space, action_space, n_agents = of_agents
    agents = _checked(observation_space, action_space, n_agents, options)
    parts = [(OBS, _of_all(observation_space, agents.n_agents))]
    if options["state_space"] is not None:
        parts.append((STATE, options["state_space"]))
    if agents.available_actions:
        parts.append((AVAILABLE, spaces.MultiBinary((agents.n_agents, agents.n_actions or 0))))
    spaces_of_all = spaces.Dict(parts), _of_all(action_space, agents.n_agents)
    return agents, spaces_of_all, {**options, "columns": agents.columns(options["columns"])}


def _checked(observation_space: Any, action_space: Any, n_agents: int, options: Mapping[str, Any]) -> Agents:
    count = check_count("n_agents", n_agents, most=MAX_AGENTS)
    state_space, rewards = options["state_space"], options["rewards"]
    if not isinstance(observation_space, gymnasium.Space) or not isinstance(action_space, gymnasium.Space):
        raise SchemaError("observation_space and action_space must be Gymnasium spaces, those of one agent")
    if state_space is not None and not isinstance(state_space, gymnasium.Space):
        raise SchemaError(f"state_space must be a Gymnasium space, or None, got {state_space!r}")
    if rewards not in ("team", "agent"):
        raise InputError(f"rewards must be 'team' or 'agent', got {rewards!r}")
    available_actions = check_flag("available_actions", options["available_actions"])
    n_actions, first_action = None, 0
    if isinstance(action_space, spaces.Discrete):
        n_actions, first_action = int(action_space.n), int(action_space.start)
    if available_actions and n_actions is None:
        raise InputError(f"available_actions needs a Discrete action space, got {action_space}")
    mean_action_shape = options["mean_action_shape"]
    if mean_action_shape is not None:
        try:
            mean_action_shape = tuple(check_count("mean_action_shape", n) for n in mean_action_shape)
        except TypeError as error:
            raise InputError(f"mean_action_shape must be a shape, got {mean_action_shape!r}") from error
    return Agents(
        count, rewards, state_space is not None, available_actions, mean_action_shape, n_actions, first_action
    )  # fmt: skip


def _of_all(space: gymnasium.Space[Any], count: int) -> gymnasium.Space[Any]:
    """Return the space of ``count`` agents.

    As Gymnasium's ``batch_space``, but for MultiBinary and MultiDiscrete: it makes a Box of them, in which every number
    lies that the dtype can hold.
    """
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary((count, *space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = (np.broadcast_to(of, (count, *of.shape)).copy() for of in (space.nvec, space.start))
        return spaces.MultiDiscrete(nvec, dtype=space.dtype, start=start)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _of_all(part, count) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_of_all(part, count) for part in space.spaces])
    return batch_space(space, count)


class AgentsStore:
    """The facts that the buffers of several agents share."""

    engine: Engine
    schema: Schema

    @functools.cached_property
    def _agents(self) -> Agents:
        settings = self.engine.store.settings
        return from_json(settings.get(AGENTS_ROLLOUT, settings).get(KEY))

    @property
    def n_agents(self) -> int:
        """The number of agents of each environment."""
        return self._agents.n_agents

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """The space of one agent's observation, as ``create`` was given it; ``schema`` has all of a step."""
        everything: Any = self.schema.observation_space
        return _of_one(everything[OBS])

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """The space of one agent's action, as ``create`` was given it; ``schema`` has that of all agents."""
        return _of_one(self.schema.action_space)


def _of_one(space: Any) -> gymnasium.Space[Any]:
    """Return the space of one agent, from that of all agents that :func:`_of_all` made."""
    if isinstance(space, spaces.Box):
        return spaces.Box(space.low[0], space.high[0], space.shape[1:], space.dtype.type)
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiBinary(space.shape[1:] if len(space.shape) > 2 else space.shape[1])
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _of_one(part) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_of_one(part) for part in space.spaces])
    if space.nvec.ndim > 1:
        return spaces.MultiDiscrete(space.nvec[0], dtype=space.dtype, start=space.start[0])
    return discrete(int(space.nvec[0]), int(space.start[0]), space.dtype)


def from_json(stored: Any) -> Agents:
    """Return the layout of a document by ``to_json``; raise NotAStoreError if it is none."""
    try:
        fields = {field.name: stored[field.name] for field in dataclasses.fields(Agents)}
        shape = fields.pop("mean_action_shape")
        return Agents(**fields, mean_action_shape=None if shape is None else tuple(shape))
    except (KeyError, TypeError) as error:
        raise NotAStoreError(
            "the store holds no steps of several agents; open it with the class that made it"
        ) from error


def _is_given(what: str, value: Any, held: bool) -> bool:
    """Tell whether a part of a step is there; raise InputError unless that is so where the buffer holds such."""
    if held and value is None:
        raise InputError(f"{what} must be given: the buffer was created with it")
    if value is not None and not held:
        raise InputError(f"{what} was given, but the buffer was created without; leave it out")
    return held


def _zeros_and_ones(what: str, value: Any) -> NDArray[np.int8]:
    array = check_array(what, value)
    if array.dtype == bool:
        return array.astype(np.int8)
    if array.dtype.kind not in "iuf" or not ((array == 0) | (array == 1)).all():
        raise InputError(f"{what} must be bool, or 0 and 1, got {array.dtype}")
    return array.astype(np.int8)
