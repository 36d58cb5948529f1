"""The replay buffer and the rollout buffer of several agents that act together in each environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers import multi_agent_layout as layout
from diskreplay.buffers.multi_agent_view import AgentsView, MultiAgentBatch, MultiAgentRolloutBatch, fields_of_agents
from diskreplay.buffers.on_policy import AGENTS_ROLLOUT, FINAL_VALUE, LOG_PROB, VALUE, OnPolicyBuffer
from diskreplay.buffers.opening import Asked
from diskreplay.buffers.options import AgentsCreateOptions, AgentsRolloutCreateOptions, OpenOptions, Space, shared
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array, check_share
from diskreplay.engine.inputs import InputExceptions
from diskreplay.errors import InputError
from diskreplay.reading.samples import Samples
from diskreplay.sampling.window import Sampler
from diskreplay.schema.columns import Schema
from diskreplay.storage.paths import PathLike
from diskreplay.views.delta_timestamps import DeltaTimestamps
from diskreplay.views.view import View


class MultiAgentReplayBuffer(layout.AgentsStore, SampledBuffer[MultiAgentBatch]):
    """A replay buffer of ``n_agents`` agents, made by :meth:`create` or :meth:`open`, else as :class:`ReplayBuffer`.

    A transition is one step of one environment with all its agents.
    """

    _ragged = False
    _exceptions = InputExceptions(alive=layout.AGENT_MASK, agents=layout.AGENTS_LEAF)

    @classmethod
    @shared(AgentsCreateOptions)
    def create(
        cls,
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        n_agents: int,
        **options: Unpack[AgentsCreateOptions],
    ) -> Self:
        """Make a new store at ``path`` and open it for writing.

        Its columns are ``obs/obs``, ``obs/state``, ``obs/available_actions``, ``agent_mask``, ``agent_reward``,
        ``mean_action`` and the usual ones.

        Args:
            path: as in :meth:`diskreplay.ReplayBuffer.create`.
            observation_space, action_space: the spaces of one agent; all agents have the same.
            n_agents: agents of each environment.
            **options: as described by their types.

        Raises SchemaError, InputError, StoreExistsError and WriteFailedError as that does.
        """
        return cls._create(path, (observation_space, action_space, n_agents), options)

    @classmethod
    @shared(AgentsCreateOptions)
    def open_or_create(
        cls,
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        n_agents: int,
        *,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[AgentsCreateOptions],
    ) -> Self:
        """Open the store at ``path``, or make it, as :meth:`diskreplay.ReplayBuffer.open_or_create`."""
        opening = {"checkpoint": checkpoint, "take_over": take_over}
        return cls._open_or_create(path, (observation_space, action_space, n_agents), {**options, **opening})

    @classmethod
    @shared(OpenOptions)
    def open(
        cls,
        path: PathLike,
        *,
        num_envs: int | None = None,
        capacity: int | None = None,
        view: View[Any] | None = None,
        sampler: Sampler | None = None,
        **options: Unpack[OpenOptions],
    ) -> Self:
        """Open the store at ``path`` at a commit or a checkpoint, as :meth:`diskreplay.ReplayBuffer.open`.

        Args:
            path, num_envs, capacity, view, sampler: as there.
            **options: as described by their types.

        NotAStoreError where the store is not of this class.
        """
        more = {"num_envs": num_envs, "capacity": capacity, "view": view, "sampler": sampler}
        return cls._open(path, {**options, **more})

    @classmethod
    def _asked(cls, given: Sequence[Any], options: Mapping[str, Any]) -> Asked:
        agents, spaces, options = layout.lay_out(given, options)
        return spaces, options, {layout.KEY: agents.to_json()}

    @classmethod
    def _kept(
        cls, schema: Schema, stored: Mapping[str, Any], options: Mapping[str, Any], path: PathLike | None = None
    ) -> dict[str, Any]:
        layout.from_json(stored.get(layout.KEY))
        if isinstance(options["view"], DeltaTimestamps):
            raise InputError(
                "several agents' batches have no windows by time: give a Sequence in place of DeltaTimestamps"
            )
        return super()._kept(schema, stored, options, path)

    def _showing(self, view: View[Any]) -> AgentsView:
        return AgentsView(view, self._agents)

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, *,
        state: Any = None, next_state: Any = None, available_actions: Any = None, next_available_actions: Any = None,
        agent_mask: Any = None, mean_action: Any = None, valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Add one step of each environment; arrays lead with ``num_envs`` when it is above 1.

        Args:
            obs, next_obs: ``(n_agents, *obs_shape)``; next ones as of :meth:`diskreplay.ReplayBuffer.add`: at an
                episode's end the true final ones. So are the others named ``next_``.
            action: ``(n_agents, *action_shape)``; anything that the dtype can hold for agents that are not alive.
            reward: scalar, or ``(n_agents,)`` with ``rewards="agent"``; finite.
            terminated, truncated: bool, of the episode; an agent that drops out before is said by ``agent_mask``.
            state, next_state: ``(*state_shape)``, where there is a global state.
            available_actions, next_available_actions: ``(n_agents, n_actions)`` bool, or 0 and 1, where there are such.
            agent_mask: ``(n_agents,)`` bool; True where the agent is alive, as all are if None.
            mean_action: ``(*mean_action_shape)``, where there is such.
            valid, **extra: as in :meth:`diskreplay.ReplayBuffer.add`.

        Raises what :meth:`diskreplay.ReplayBuffer.add` raises; nothing was added where an argument breaks its rule.
        """
        agents = self._agents
        lead = (self.num_envs,) if self.num_envs > 1 else ()
        given = agents.observation(obs, state, available_actions)
        following = agents.observation(next_obs, next_state, next_available_actions, "next_")
        rewards, columns = agents.values(lead, reward, agent_mask, mean_action, extra)
        self.engine.add(given, action, rewards, following, terminated, truncated, valid, columns)


class MultiAgentRolloutBuffer(layout.AgentsStore, OnPolicyBuffer[MultiAgentRolloutBatch]):
    """A rollout buffer of ``n_agents`` agents under the present policy, otherwise as :class:`RolloutBuffer`.

    Values, log-probabilities, advantages and returns are per agent, ``(n_agents,)``.
    """

    _kind = AGENTS_ROLLOUT
    _exceptions = InputExceptions(unknown=FINAL_VALUE, alive=layout.AGENT_MASK, agents=layout.AGENTS_LEAF)

    @classmethod
    @shared(AgentsRolloutCreateOptions)
    def create(
        cls,
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        n_agents: int,
        **options: Unpack[AgentsRolloutCreateOptions],
    ) -> Self:
        """Make a new store at ``path`` and open it for writing.

        Args:
            path, observation_space, action_space, n_agents, num_envs: as of
                :meth:`diskreplay.MultiAgentReplayBuffer.create`.
            **options: as described by their types.

        Raises SchemaError, InputError, StoreExistsError and WriteFailedError as that does.
        """
        return cls._create(path, (observation_space, action_space, n_agents), options)

    @classmethod
    @shared(AgentsRolloutCreateOptions)
    def open_or_create(
        cls,
        path: PathLike,
        observation_space: Space,
        action_space: Space,
        n_agents: int,
        *,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[AgentsRolloutCreateOptions],
    ) -> Self:
        """Open the store at ``path``, or make it, as :meth:`diskreplay.ReplayBuffer.open_or_create`."""
        opening = {"checkpoint": checkpoint, "take_over": take_over}
        return cls._open_or_create(path, (observation_space, action_space, n_agents), {**options, **opening})

    @classmethod
    def _asked(cls, given: Sequence[Any], options: Mapping[str, Any], *more: Any, **own: Any) -> Asked:
        td_lambda = None if options["td_lambda"] is None else check_share("td_lambda", options["td_lambda"])
        agents, spaces, options = layout.lay_out(given, options)
        own |= {"td_lambda": td_lambda, layout.KEY: agents.to_json()}
        return super()._asked(spaces, options, (agents.n_agents,), **own)

    @property
    def td_lambda(self) -> float | None:
        """The lambda of TD(lambda) targets, or None if advantages are estimated."""
        return self._settings.get("td_lambda")

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, *,
        value: Any, log_prob: Any, final_value: Any = None, state: Any = None, next_state: Any = None,
        available_actions: Any = None, next_available_actions: Any = None, agent_mask: Any = None,
        mean_action: Any = None, valid: Any = None, **extra: Any,
    ) -> None:  # fmt: skip
        """Add one step of each environment; arrays lead with ``num_envs`` when it is above 1.

        Args:
            obs, action, reward, next_obs, terminated, truncated, state, next_state, available_actions,
                next_available_actions, agent_mask, mean_action, valid, **extra: as of
                :meth:`diskreplay.MultiAgentReplayBuffer.add`.
            value, log_prob: ``(n_agents,)``, the critic's value and the log-probability of each agent's action.
            final_value: ``(n_agents,)``, of what follows the step; read where an episode was truncated; NaN, or None
                for all, where :meth:`finish` shall ask its ``value_fn``, which is given a dict of ``obs``, ``state``
                and ``available_actions``.

        Raises InputError, StateError when the rollout is full, and what :meth:`diskreplay.ReplayBuffer.add` raises.
        """
        agents = self._agents
        given = agents.observation(obs, state, available_actions)
        following = agents.observation(next_obs, next_state, next_available_actions, "next_")
        rewards, columns = agents.values(self._lead, reward, agent_mask, mean_action, extra)
        self._collect(
            given, action, rewards, following, terminated, truncated, valid, final_value,
            {VALUE: value, LOG_PROB: log_prob, **columns},
        )  # fmt: skip

    def _rewards(self, samples: Samples) -> Array:
        if self._agents.rewards == "agent":
            return self._values(samples, layout.AGENT_REWARD)
        return super()._rewards(samples)

    def _batch(self, samples: Samples, ids: NDArray[np.int64], mask: Array) -> MultiAgentRolloutBatch:
        fields = self._fields(samples, ids, mask)
        return MultiAgentRolloutBatch(**fields_of_agents(fields, self._agents, mask, samples.reads))

    def _counted(self, batch: MultiAgentRolloutBatch) -> Array:
        counted: Array = batch.mask[..., None] & batch.agent_mask
        return counted
