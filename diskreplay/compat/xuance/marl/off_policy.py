"""XuanCe's off-policy buffers of single steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.multi_agent_view import MultiAgentBatch
from diskreplay.checks import Array, check_count
from diskreplay.compat.ring import Field, picked
from diskreplay.compat.xuance.marl.base import REWARDS, TERMINALS, Fields, MultiAgentBuffer, row_of, take_step
from diskreplay.compat.xuance.memory import checked_shape
from diskreplay.errors import NotEnoughDataError
from diskreplay.views.transition import Transition

BESIDE = {
    "next_obs": "obs_next", "next_state": "state_next", "mean_action": "act_mean", REWARDS: "rewards",
    TERMINALS: "terminals",
}  # fmt: skip
"""The arguments of ``add`` beside those of a row, and the keys of a step that hold them."""


class MARL_OffPolicyBuffer(MultiAgentBuffer):
    """Transitions of single steps.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs: see :class:`BaseBuffer`; actions and
            observations are of one agent, rewards ``rew_space`` and terminals ``done_space`` of one environment.
        buffer_size: transitions of all environments.
        batch_size: the number of transitions in a sample.
        **kwargs: the store's own options, see :class:`MultiAgentBuffer`; others are taken and ignored.
    """

    _mean_action: tuple[int, ...] | None = None
    """The shape of the mean action of an environment, or None if it is not stored."""

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, rew_space: Any, done_space: Any,
        n_envs: int, buffer_size: int, batch_size: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size)
        self.batch_size = check_count("batch_size", batch_size)
        self._take(kwargs)
        self._open(kwargs)

    def _open(self, kwargs: dict[str, Any]) -> None:
        self._fields = self._table()
        columns = {REWARDS: (self.rew_space, np.float32), TERMINALS: (self.done_space, bool)}
        self.engine = self._store(
            kwargs, Transition(), self.n_envs, self.n_size, columns, mean_action=self._mean_action
        )
        self._begin(self._fields)
        self._data = self._ring.arrays(self._fields)

    def _table(self) -> Fields:
        obs, agents = (self.n_agents, *self.obs_space), (self.n_agents,)
        fields = {
            "obs": Field(obs, part=("obs",)),
            "actions": Field(agents + self.act_space, part=("action",)),
            "obs_next": Field(obs, part=("next_obs",)),
            "rewards": Field(self.rew_space, part=("extra", REWARDS)),
            "terminals": Field(self.done_space, np.bool_, part=("extra", TERMINALS)),
            "agent_mask": Field(agents, np.bool_, 1, part=("agent_mask",), optional=True),
        }
        if self.state_space is not None:
            fields["state"] = Field(self.state_space, part=("state",))
            fields["state_next"] = Field(self.state_space, part=("next_state",))
        if self._mean_action is not None:
            fields["act_mean"] = Field(self._mean_action, part=("mean_action",))
        return fields

    def store(self, step_data: Mapping[str, Any]) -> None:
        """Store one step of all environments.

        Args:
            step_data: ``(n_envs, ...)`` for each key of ``data``; ``agent_mask`` may be left out, all True then.

        Raises InputError, with nothing stored, for a missing key, a wrong shape, or rewards that are not finite.
        """
        step = take_step(step_data, self._fields, self.n_envs)
        row = row_of(step)
        row.update({name: step[key] for name, key in BESIDE.items() if key in step})
        self._ring.catch_up()
        self.engine.add(**row)

    def sample(self) -> dict[str, Array]:
        """Return ``batch_size`` transitions drawn with replacement by numpy's global generator, as arrays by key."""
        return dict(picked(self._fields, self._draw()))

    def _draw(self) -> MultiAgentBatch:
        size = self.size
        if not size:
            raise NotEnoughDataError("the buffer is empty: store a step before sampling")
        envs = np.random.choice(self.n_envs, self.batch_size)
        slots = np.random.choice(size, self.batch_size)
        batch: MultiAgentBatch = self._read(slots, envs)
        return batch


class MeanField_OffPolicyBuffer(MARL_OffPolicyBuffer):
    """Transitions with the mean-field action probabilities, as Mean-Field Q-Learning wants them.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, batch_size, **kwargs:
            as of :class:`MARL_OffPolicyBuffer`.
        prob_shape: the shape of the action probabilities of one environment.
    """

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, prob_shape: Any, rew_space: Any,
        done_space: Any, n_envs: int, buffer_size: int, batch_size: int, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.prob_shape = self._mean_action = checked_shape("prob_shape", prob_shape)
        super().__init__(
            n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, batch_size,
            **kwargs,
        )  # fmt: skip

    def sample(self) -> dict[str, Array]:
        """Return transitions, and ``act_mean_next``, the mean action of the step after each.

        Where no step follows, the mean action of the transition itself stands there.
        """
        batch = self._draw()
        return {**picked(self._fields, batch), "act_mean_next": np.asarray(batch.next_mean_action)}
