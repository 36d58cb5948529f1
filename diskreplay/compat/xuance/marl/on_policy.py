"""XuanCe's on-policy buffers of single steps, with observations and states on disk and all else in RAM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.checks import Array, check_count, check_share
from diskreplay.compat.ring import Field
from diskreplay.compat.stores import closed_on_failure
from diskreplay.compat.xuance import rollouts
from diskreplay.compat.xuance.marl.base import Fields, MultiAgentBuffer, needed, row_of, take_step
from diskreplay.compat.xuance.memory import checked_shape
from diskreplay.errors import InputError
from diskreplay.schema.ids import Ids
from diskreplay.views.transition import Transition


class MARL_OnPolicyBuffer(MultiAgentBuffer):
    """Steps of the present policy, with returns and advantages.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs: see :class:`BaseBuffer`; actions and
            observations are of one agent, rewards ``rew_space`` and terminals ``done_space`` of one environment: with
            ``n_agents`` elements one for each agent, with one element that of the team.
        buffer_size: steps of all environments.
        use_gae: returns and advantages by generalised advantage estimation, else discounted sums.
        use_advnorm: give each sample's advantages mean 0 and standard deviation 1.
        gamma, gae_lam: discount factor and lambda, 0 to 1.
        **kwargs: the store's own options, see :class:`MultiAgentBuffer`; others are taken and ignored.

    Attributes:
        start_ids: ``(n_envs,)`` int64, the entry where each environment's open path begins.
    """

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, rew_space: Any, done_space: Any,
        n_envs: int, buffer_size: int, use_gae: bool, use_advnorm: bool, gamma: float, gae_lam: float, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size)
        self.use_gae = bool(use_gae)
        self.use_advantage_norm = bool(use_advnorm)
        self.gamma, self.gae_lambda = check_share("gamma", gamma), check_share("gae_lam", gae_lam)
        self._take(kwargs)
        self._open(kwargs)

    def _take(self, kwargs: Mapping[str, Any]) -> None:
        self._check_shapes()

    def _check_shapes(self) -> None:
        for name, shape in (("rew_space", self.rew_space), ("done_space", self.done_space)):
            if math.prod(shape) not in (1, self.n_agents):
                raise InputError(
                    f"{name} must have one element, or one for each of {self.n_agents} agents, got {shape}"
                )

    def _open(self, kwargs: dict[str, Any]) -> None:
        self._fields = self._table()
        self.engine = self._store(kwargs, Transition(), self.n_envs, self.n_size, {})
        with closed_on_failure(self.engine):
            self._adapter: Any = rollouts.Rollout(self.engine)
            self._adapter.begin(self, {"data": self._fields})
        self._data = self._adapter.ram.arrays["data"]

    @property
    def start_ids(self) -> Ids:
        """The position at which each environment's open path begins."""
        starts: Ids = self._adapter.start_ids
        return starts

    def _table(self) -> Fields:
        agents, own = (self.n_agents,), math.prod(self.rew_space) == self.n_agents
        estimated = Field(self.rew_space if own else (self.n_agents, 1), optional=True)
        fields = {
            "obs": Field(agents + self.obs_space, part=("obs",)),
            "actions": Field(agents + self.act_space),
            "rewards": Field(self.rew_space),
            "returns": estimated,
            "values": Field((*agents, 1), optional=True),
            "log_pi_old": Field(agents, optional=True),
            "advantages": estimated,
            "terminals": Field(self.done_space, np.bool_),
            "agent_mask": Field(agents, np.bool_, 1, optional=True),
        }
        return fields if self.state_space is None else {**fields, "state": Field(self.state_space, part=("state",))}

    def store(self, step_data: Mapping[str, Any]) -> None:
        """Store one step of all environments.

        Args:
            step_data: ``(n_envs, ...)`` for each key of ``data``; ``values``, ``log_pi_old`` and ``returns`` may be
                left out (zeros), ``agent_mask`` too (all True). ``advantages`` is not read, nor is any other key.

        Raises InputError, with nothing stored, for a missing key, a wrong shape, or rewards that are not finite.
        """
        fields = {key: field for key, field in self._fields.items() if key != "advantages"}
        step = self._completed(take_step(step_data, fields, self.n_envs), step_data)
        self._adapter.store(row_of(step), {"data": step})

    def _completed(self, step: dict[str, Array], given: Mapping[str, Any]) -> dict[str, Array]:
        """Return a step with what follows from the rest of it."""
        return step

    def finish_path(self, value: Any, i_env: int, value_normalizer: Any = None) -> None:
        """Compute returns and advantages of an environment's steps since the last call, if there are any.

        Args:
            value: the value of what follows the newest step, ``(n_agents, 1)`` or ``(n_agents,)`` or one number; it
                does not count for an agent whose newest step is terminal.
            i_env: the environment.
            value_normalizer: an object with ``denormalize``, where values are of what it normalises; None where they
                are true values. Returns and advantages are of true values.

        Raises InputError, with nothing changed, where there is no such environment, and for another ``value``.
        """
        i_env = check_count("i_env", i_env, least=0, most=self.n_envs - 1)
        self._adapter.finish(i_env, "data", lambda path: self._estimate(path, value, value_normalizer))

    def _estimate(self, path: rollouts.Path, value: Any, value_normalizer: Any) -> tuple[Array, Array]:
        """Return the returns and advantages ``(T, n_agents)`` of a path."""
        lambda_ = self.gae_lambda if self.use_gae else 1.0
        return rollouts.path_estimates(path, value, self.gamma, lambda_, value_normalizer)

    def sample(self, indexes: Any) -> dict[str, Array]:
        """Return the steps at ``indexes``, integers ``(B,)`` (``environment * n_size + entry``), as arrays by key.

        Raises NotEnoughDataError until the buffer is full.
        """
        envs, slots = self._adapter.chosen(indexes)
        batch = self._read(slots, envs)
        samples = {
            key: field.of(batch) if field.part else self.data[key][envs, slots] for key, field in self._fields.items()
        }
        if self.use_advantage_norm and "advantages" in samples:
            samples["advantages"] = rollouts.normalized(samples["advantages"])
        return samples


class MeanField_OnPolicyBuffer(MARL_OnPolicyBuffer):
    """Steps with the mean-field action probabilities, as Mean-Field Actor-Critic wants them.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, use_gae, use_advnorm, gamma,
            gae_lam: as of :class:`MARL_OnPolicyBuffer`.
        n_size: its ``buffer_size``.
        **kwargs: ``prob_space``, the shape of the action probabilities of one environment; otherwise as there.
    """

    def __init__(
        self, n_agents: int, state_space: Any, obs_space: Any, act_space: Any, rew_space: Any, done_space: Any,
        n_envs: int, n_size: int, use_gae: bool, use_advnorm: bool, gamma: float, gae_lam: float, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.prob_space = checked_shape("prob_space", needed(kwargs, "prob_space"))
        super().__init__(
            n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, n_size, use_gae, use_advnorm,
            gamma, gae_lam, **kwargs,
        )  # fmt: skip

    def _table(self) -> Fields:
        return beside_actions(super()._table(), act_mean=Field(self.prob_space))

    def finish_ac_path(self, value: Any, i_env: int) -> None:
        """Compute returns and advantages as ``finish_path``."""
        self.finish_path(value, i_env)


class COMA_Buffer(MARL_OnPolicyBuffer):
    """Steps whose returns are TD(lambda) targets, as COMA's critic learns them; there are no advantages.

    Args:
        n_agents, state_space, obs_space, act_space, rew_space, done_space, n_envs, buffer_size, use_gae, use_advnorm,
            gamma, gae_lam: as of :class:`MARL_OnPolicyBuffer`.
        **kwargs: ``dim_act``, the number of actions; ``td_lambda``, 0 to 1; otherwise as there.
    """

    def _take(self, kwargs: Mapping[str, Any]) -> None:
        self.dim_act = check_count("dim_act", needed(kwargs, "dim_act"))
        self.td_lambda = check_share("td_lambda", needed(kwargs, "td_lambda"))
        super()._take(kwargs)

    def _table(self) -> Fields:
        fields = {key: field for key, field in super()._table().items() if key != "advantages"}
        return beside_actions(fields, actions_onehot=Field((self.n_agents, self.dim_act), optional=True))

    def _completed(self, step: dict[str, Array], given: Mapping[str, Any]) -> dict[str, Array]:
        if "actions_onehot" not in given:
            step["actions_onehot"] = onehot(step["actions"], self.dim_act)
        return step

    def _estimate(self, path: rollouts.Path, value: Any, value_normalizer: Any) -> tuple[Array, Array]:
        return rollouts.path_estimates(path, value, self.gamma, self.td_lambda, value_normalizer, td_targets=True)


def beside_actions(fields: Fields, **more: Field) -> Fields:
    """Return a table with more fields behind that of the actions."""
    names = list(fields)
    at = names.index("actions") + 1
    return {name: {**fields, **more}[name] for name in (*names[:at], *more, *names[at:])}


def onehot(actions: Array, dim_act: int) -> Array:
    """Return actions ``(...)``, or ``(..., 1)``, as one-hot float32 ``(..., dim_act)``."""
    flat = actions[..., 0] if actions.ndim > 2 and actions.shape[-1] == 1 else actions
    if flat.ndim != 2:
        raise InputError("actions_onehot must be given where an action is more than one number")
    return np.asarray(flat[..., None] == np.arange(dim_act), np.float32)
