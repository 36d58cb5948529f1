"""XuanCe's buffers of whole episodes, for recurrent networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from diskreplay.checks import Array, check_share
from diskreplay.compat.ring import Field
from diskreplay.compat.xuance import rollouts
from diskreplay.compat.xuance.marl.base import Fields, needed
from diskreplay.compat.xuance.marl.episodes import FILLED, EpisodeRing
from diskreplay.compat.xuance.marl.off_policy import MARL_OffPolicyBuffer
from diskreplay.compat.xuance.marl.on_policy import MARL_OnPolicyBuffer, onehot
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.schema.ids import Ids


class MARL_OffPolicyBuffer_RNN(EpisodeRing, MARL_OffPolicyBuffer):
    """Whole episodes of any policy.

    Args:
        n_agents, state_space, obs_space, act_space, done_space, n_envs: as in :class:`MARL_OffPolicyBuffer`.
        rew_space: the space of one agent's reward.
        buffer_size: episodes.
        batch_size: episodes of a sample.
        **kwargs: ``max_episode_length``, steps; ``dim_act``, actions of an agent; the store's own options, see
            :class:`MultiAgentBuffer`; others are taken and ignored.
    """

    DTYPE = np.float64

    def finish_path(self, i_env: int, next_t: int, *terminal_data: Any) -> None:
        """Finish an environment's episode.

        Args:
            i_env: the environment.
            next_t: steps of the episode; above ``max_eps_len`` it has that many.
            terminal_data: ``obs_next, state_next, available_actions, filled``, each ``(n_envs, ...)``: what followed
                the last step, and which steps are there, ``(n_envs, max_eps_len, 1)``.

        Raises InputError, with nothing changed, where there is no such environment, and for other shapes.
        """
        self._finish(*self._finishing(i_env, next_t), terminal_data)

    def sample(self) -> dict[str, Array]:
        """Return ``batch_size`` episodes drawn with replacement by numpy's global generator, as arrays by key."""
        size = self.size
        if not size:
            raise NotEnoughDataError("the buffer is empty: store an episode before sampling")
        return self._adapter.episodes(np.random.choice(size, self.batch_size))


class MARL_OnPolicyBuffer_RNN(EpisodeRing, MARL_OnPolicyBuffer):
    """Whole episodes of the present policy, with returns and advantages.

    Args:
        n_agents, state_space, obs_space, act_space, done_space, n_envs, use_gae, use_advnorm, gamma, gae_lam: as in
            :class:`MARL_OnPolicyBuffer`.
        rew_space: the space of one agent's reward, which has one element.
        buffer_size: episodes.
        **kwargs: as in :class:`MARL_OffPolicyBuffer_RNN`.
    """

    ESTIMATED: tuple[str, ...] = ("returns", "advantages")
    TAKEN: ClassVar = {"actions": "actions_n", "values": "values", "log_pi_old": "log_pi"}

    @property
    def start_ids(self) -> Ids:
        """The first position of each episode's path, 0."""
        return np.zeros(self.n_envs, np.int64)

    def _check_shapes(self) -> None:
        if math.prod(self.rew_space) != 1:
            raise InputError(f"rew_space must have one element, that of one agent, got {self.rew_space}")
        if math.prod(self.done_space) not in (1, self.n_agents):
            raise InputError(f"done_space must have one element, or one for each agent, got {self.done_space}")

    def _table_in_ram(self) -> Fields:
        steps = self.n_agents, self.max_eps_len
        each = Field(steps + self.rew_space, time=1)
        return {"returns": each, "values": each, "advantages": each, "log_pi_old": Field(steps, time=1)}

    def finish_path(  # type: ignore[override]  # as XuanCe's own does
        self, i_env: int, next_t: int, *terminal_data: Any, value_next: Any = None, value_normalizer: Any = None
    ) -> None:
        """Finish an environment's episode, and compute its returns and advantages.

        Args:
            i_env, next_t, terminal_data: as in :class:`MARL_OffPolicyBuffer_RNN`.
            value_next: the value of what followed the last step, ``(n_agents, 1)`` or ``(n_agents,)`` or one number;
                may be left out where that step was terminal for all agents.
            value_normalizer: as in :class:`MARL_OnPolicyBuffer`.

        Raises InputError, with nothing changed, where there is no such environment, and for other shapes.
        """
        i_env, steps = self._finishing(i_env, next_t)
        data = self.episode_data
        if value_next is None:
            if not data["terminals"][i_env, steps - 1].all():
                raise InputError("value_next must be given where the last step was not terminal for all agents")
            value_next = 0.0
        path = {key: np.moveaxis(data[key][i_env, :, :steps], 1, 0) for key in ("rewards", "values")}
        path["terminals"] = data["terminals"][i_env, :steps]
        found = self._estimate(path, value_next, value_normalizer)
        shape = self.n_agents, steps, *self.rew_space
        estimates = {key: values.T.reshape(shape) for key, values in zip(self.ESTIMATED, found, strict=False)}
        self._finish(i_env, steps, terminal_data, estimates)

    def sample(self, indexes: Any) -> dict[str, Array]:
        """Return the episodes at ``indexes``, integers ``(B,)``, as arrays by key.

        Raises NotEnoughDataError until the buffer is full.
        """
        size = self.buffer_size
        samples = self._adapter.episodes(rollouts.checked_indexes(indexes, self.size, size, size))
        if self.use_advantage_norm:
            counted = np.broadcast_to(
                samples[FILLED][:, None].reshape(len(samples[FILLED]), 1, -1, *[1] * len(self.rew_space)),
                samples["advantages"].shape,
            )
            samples["advantages"] = rollouts.normalized(samples["advantages"], counted)
        return samples


class COMA_Buffer_RNN(MARL_OnPolicyBuffer_RNN):
    """Whole episodes whose returns are TD(lambda) targets, as COMA's critic learns them; advantages stay 0.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, use_gae, use_advnorm,
            gamma, gae_lam: as of :class:`MARL_OnPolicyBuffer_RNN`.
        **kwargs: ``td_lambda``, 0 to 1; otherwise as there.
    """

    ESTIMATED = ("returns",)

    def _take(self, kwargs: Mapping[str, Any]) -> None:
        self.td_lambda = check_share("td_lambda", needed(kwargs, "td_lambda"))
        super()._take(kwargs)

    def _table_in_ram(self) -> Fields:
        onehots = Field((self.n_agents, self.max_eps_len, self.dim_act), time=1)
        return {"actions_onehot": onehots, **super()._table_in_ram()}

    def _from_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        found = super()._from_actions(actions)
        given = actions.get("act_n_onehot")
        found["actions_onehot"] = onehot(np.asarray(found["actions"]), self.dim_act) if given is None else given
        return found

    def _estimate(self, path: rollouts.Path, value: Any, value_normalizer: Any) -> tuple[Array, Array]:
        return rollouts.path_estimates(path, value, self.gamma, self.td_lambda, value_normalizer, td_targets=True)
