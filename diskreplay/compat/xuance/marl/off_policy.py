"""XuanCe's off-policy buffers of single steps."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent_batch import MultiAgentBatch
from diskreplay.checks import check_count
from diskreplay.compat.keeper import Keeper
from diskreplay.compat.rows import SLOT, ids_of, read_once, ring, ring_array, rows_at
from diskreplay.compat.xuance.marl.base import MultiAgentBuffer, Spec, take_step, team_reward
from diskreplay.compat.xuance.marl.steps import REWARDS, TERMINALS, open_steps
from diskreplay.compat.xuance.memory import checked_shape
from diskreplay.errors import NotEnoughDataError
from diskreplay.views.transition import Transition

Array = NDArray[Any]
Ids = NDArray[np.int64]


class MARL_OffPolicyBuffer(MultiAgentBuffer):
    """Transitions of single steps.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs: see :class:`BaseBuffer`; actions and
            observations are of one agent, rewards ``rew_space`` and terminals ``done_space`` of one environment.
        buffer_size: transitions of all environments.
        batch_size: of a sample.
        **kwargs: the store's own options, see :class:`MultiAgentBuffer`; others are taken and ignored.
    """

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, rew_space: Any, done_space: Any,
        n_envs: int, buffer_size: int, batch_size: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size)
        self.batch_size = check_count("batch_size", batch_size)
        self._build(kwargs)

    def _build(self, kwargs: dict[str, Any]) -> None:
        self.engine = open_steps(
            self, kwargs, Transition(), self.n_agents, self.n_envs, self.n_size, self.obs_space, self.act_space,
            self.state_space, mean_action=self._mean_action(),
            columns={REWARDS: (self.rew_space, np.float32), TERMINALS: (self.done_space, bool)},
        )  # fmt: skip
        self._keep(Keeper(self.engine))

    def _mean_action(self) -> tuple[int, ...] | None:
        return None

    def _specs(self) -> dict[str, Spec]:
        agents = (self.n_agents,)
        specs: dict[str, Spec] = {
            "obs": (agents + self.obs_space, np.float32, 0),
            "actions": (agents + self.act_space, np.float32, 0),
            "obs_next": (agents + self.obs_space, np.float32, 0),
            "rewards": (self.rew_space, np.float32, 0),
            "terminals": (self.done_space, np.bool_, 0),
            "agent_mask": (agents, np.bool_, 1),
        }
        if self.state_space is not None:
            specs["state"] = specs["state_next"] = (self.state_space, np.float32, 0)
        mean_action = self._mean_action()
        if mean_action is not None:
            specs["act_mean"] = (mean_action, np.float32, 0)
        return specs

    def _arrays(self) -> dict[str, Any]:
        own_ring = functools.partial(ring, self.engine)  # not our own method: the buffer would never be forgotten
        lead = self.n_envs, self.n_size
        return {
            key: ring_array(self.engine, own_ring, lead, shape, dtype, functools.partial(_field, key), fill)
            for key, (shape, dtype, fill) in self._specs().items()
        }

    def store(self, step_data: Mapping[str, Any]) -> None:
        """Stores one step of all environments.

        Args:
            step_data: ``(n_envs, ...)`` for each key of ``data``; ``agent_mask`` may be left out, all True then.

        Raises InputError, with nothing stored, for a missing key, a wrong shape, or rewards that are not finite.
        """
        step = take_step(step_data, self._specs(), self.n_envs)
        reward = team_reward(step["rewards"])
        more = {name: step[key] for name, key in (("mean_action", "act_mean"),) if key in step}
        if self.state_space is not None:
            more.update(state=step["state"], next_state=step["state_next"])
        self.engine.add(
            step["obs"], step["actions"], reward, step["obs_next"],
            step["terminals"].reshape(self.n_envs, -1).all(axis=1), np.zeros(self.n_envs, bool),
            agent_mask=step["agent_mask"], rewards=step["rewards"], terminals=step["terminals"],
            **{SLOT: np.full(self.n_envs, self.ptr, np.int32)}, **more,
        )  # fmt: skip

    def sample(self) -> dict[str, Array]:
        """``batch_size`` transitions, drawn with replacement by numpy's global generator; arrays by key."""
        return fields(self._draw())

    def _draw(self) -> MultiAgentBatch:
        ptr, size = self._ring()
        if not size:
            raise NotEnoughDataError("the buffer is empty: store a step before sampling")
        envs = np.random.choice(self.n_envs, self.batch_size)
        slots = np.random.choice(size, self.batch_size)
        batch: MultiAgentBatch = read_once(
            self.engine, ids_of(self.engine, rows_at(self.engine, slots, ptr, self.n_size), envs)
        )
        return batch


class MeanField_OffPolicyBuffer(MARL_OffPolicyBuffer):
    """Transitions with the mean-field action probabilities, as Mean-Field Q-Learning wants them.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, batch_size, **kwargs:
            as of :class:`MARL_OffPolicyBuffer`.
        prob_shape: of the action probabilities of one environment.
    """

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, prob_shape: Any, rew_space: Any,
        done_space: Any, n_envs: int, buffer_size: int, batch_size: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.prob_shape = checked_shape("prob_shape", prob_shape)
        super().__init__(
            n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, batch_size,
            **kwargs,
        )  # fmt: skip

    def _mean_action(self) -> tuple[int, ...] | None:
        return self.prob_shape

    def sample(self) -> dict[str, Array]:
        """As of :class:`MARL_OffPolicyBuffer`, and ``act_mean_next``, the mean action of the step after each.

        Where no step follows, the mean action of the transition itself stands there.
        """
        batch = self._draw()
        return {**fields(batch), "act_mean_next": batch.next_mean_action}


def fields(batch: MultiAgentBatch) -> dict[str, Array]:
    """A batch by XuanCe's keys."""
    found = {
        "obs": batch.obs,
        "actions": batch.action,
        "obs_next": batch.next_obs,
        "rewards": batch.extra[REWARDS],
        "terminals": batch.extra[TERMINALS],
        "agent_mask": batch.agent_mask,
        "state": batch.state,
        "state_next": batch.next_state,
        "act_mean": batch.mean_action,
    }
    return {key: value for key, value in found.items() if value is not None}


def _field(key: str, batch: MultiAgentBatch) -> Array:
    return fields(batch)[key]
