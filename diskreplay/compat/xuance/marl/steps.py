"""The store under XuanCe's multi-agent buffers, and what stands beside its rows.

1. Steps are rows of a :class:`~diskreplay.MultiAgentReplayBuffer`. Rewards and terminals in XuanCe's own shapes, and
   the slot of XuanCe's ring, are columns of the user; masks of available actions are part of what an agent observes.
2. What XuanCe's callers may rewrite in RAM (returns, half-built episodes) is :class:`~diskreplay.compat.kept.Held`.
3. On-policy steps come without the observation after them: the newest one waits for the next (:class:`LaggingSteps`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_batch import MultiAgentBatch
from diskreplay.compat.kept import HELD, SLOT, Assignment, Keeping, Lagging, set_attribute
from diskreplay.compat.place import Place
from diskreplay.errors import InputError
from diskreplay.views.view import View

Array = NDArray[Any]
Ids = NDArray[np.int64]

REWARDS, TERMINALS = "rewards", "terminals"
AVAILABLE = "avail_actions"
CREATE_OPTIONS = ("codec", "chunk_rows", "shard_rows")
OPEN_OPTIONS = ("cache_bytes", "commit_rows", "commit_seconds")
OPTIONS = ("path", *CREATE_OPTIONS, *OPEN_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What a row holds; shapes of one agent, or of one environment where all agents share it.

    Attributes:
        dtype: of observations and actions.
        n_actions: of the masks of available actions; None where there are none.
        columns: ``(shape, dtype)`` by name.
    """

    n_agents: int
    num_envs: int
    rows: int
    obs: tuple[int, ...]
    action: tuple[int, ...]
    dtype: Any
    state: tuple[int, ...] | None
    n_actions: int | None = None
    mean_action: tuple[int, ...] | None = None
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Of :meth:`diskreplay.MultiAgentReplayBuffer.create`."""
        obs: spaces.Space[Any] = _box(self.obs, self.dtype)
        if self.n_actions is not None:
            obs = spaces.Dict({"obs": obs, AVAILABLE: spaces.MultiBinary(self.n_actions)})
        return {
            "observation_space": obs,
            "action_space": _box(self.action, self.dtype),
            "n_agents": self.n_agents,
            "num_envs": self.num_envs,
            "capacity": self.rows * self.num_envs,
            "state_space": None if self.state is None else _box(self.state, np.float32),
            "mean_action_shape": self.mean_action,
            "columns": {SLOT: ((), np.int32), **self.columns},
        }

    def same(self, steps: MultiAgentReplayBuffer) -> bool:
        """Whether a store was made for this layout."""
        found = {column.name: (column.shape, column.dtype) for column in steps.schema.columns}
        lead = (self.n_agents,)
        wanted = {"obs/obs": (lead + self.obs, self.dtype), "action": (lead + self.action, self.dtype)}
        if self.n_actions is not None:
            wanted["obs/obs/obs"] = wanted.pop("obs/obs")
            wanted[f"obs/obs/{AVAILABLE}"] = (*lead, self.n_actions), np.int8
        if self.state is not None:
            wanted["obs/state"] = self.state, np.float32
        if self.mean_action is not None:
            wanted["mean_action"] = self.mean_action, np.float32
        wanted |= {SLOT: ((), np.int32), "agent_mask": (lead, bool), **self.columns}
        engine = ("reward", "terminated", "truncated", "valid", "start")
        ours = {name: (shape, dtype) for name, (shape, dtype) in found.items() if name not in engine}
        return (
            ours == {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in wanted.items()}
            and steps.num_envs == self.num_envs
            and steps.schema.capacity == self.rows * self.num_envs
        )


class Steps(Keeping[MultiAgentBatch], MultiAgentReplayBuffer):
    """The rows of one buffer of XuanCe's."""

    _filing: tuple[int, Sequence[Mapping[str, Any]], tuple[Assignment, ...]] | None = None
    """The first row of those that are being added, arguments of ``add``, and what goes with them."""

    def file(self, rows: Sequence[Mapping[str, Any]], *assignments: Assignment) -> None:
        """Adds rows, then does what goes with them; interrupted, it is gone on with by :meth:`flush`."""
        with self._write_lock:
            self.flush()
            self._filing = self.end, rows, assignments
            self.flush()

    def flush(self) -> None:
        with self._write_lock:
            self.settle()
            if self._filing is None:
                return
            first, rows, assignments = self._filing
            try:
                for row in rows[self.end - first :]:
                    self.add(**row)
            except InputError:
                self._filing = None
                raise
            self.change(*assignments, set_attribute(self, "_filing", None))

    def _forget(self) -> None:
        self._filing = None
        super()._forget()


class RingSteps(Steps):
    """Rows whose slots are the ring."""

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = super()._state()
        facts[HELD]["ptr"], facts[HELD]["size"] = self.ring
        return facts, arrays


class LaggingSteps(Lagging[MultiAgentBatch], Steps):
    """Rows whose next observation comes with the row after them."""

    def _put(self, step: dict[str, Any], following: Mapping[str, Any]) -> None:
        self.add(**step, next_obs=following["obs"], next_state=following.get("state"))


def open_steps(kind: type[Steps], owner: object, layout: Layout, options: Mapping[str, Any], view: View) -> Steps:
    """The store of ``owner``: that at the path, or a new one; InputError where it has other shapes."""
    path = options.get("path")
    place = Place(path, owner)
    opening = {name: options[name] for name in OPEN_OPTIONS if name in options}
    if place.exists:
        steps = kind.open(place.path, view=view, **opening)
        assert isinstance(steps, kind)
        if not layout.same(steps):
            steps.abandon()
            raise InputError(f"the store at {place.path!r} was made with other shapes or sizes; choose another path")
    else:
        making = {name: options[name] for name in CREATE_OPTIONS if name in options}
        steps = kind.create(place.path, **layout.arguments(), view=view, **making, **opening)
    assert isinstance(steps, kind)
    return steps


def _box(shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, shape, dtype)
