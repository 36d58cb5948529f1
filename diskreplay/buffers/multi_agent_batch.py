"""The batches that ``sample`` and ``minibatches`` of the multi-agent buffers give."""

from __future__ import annotations

import dataclasses
from typing import Any

from diskreplay.views.batch import Arrays, Batch, RolloutBatch


class _OfAgents(Arrays):
    """A batch whose observations have one more axis: the agents."""

    @property
    def leading_axes(self) -> int:
        return super().leading_axes + 1


@dataclasses.dataclass(kw_only=True, repr=False)
class MultiAgentBatch(_OfAgents, Batch):
    """A batch of ``B`` transitions of ``N`` agents; what the buffer does not hold is None.

    With sequences and episodes every ``(B, ...)`` is ``(B, T, ...)``, but ``index`` and ``weight``.

    The fields of :class:`Batch`: ``obs`` and ``next_obs`` ``(B, N, *obs_shape)``, ``action`` ``(B, N, *action_shape)``,
    ``reward`` ``(B,)``, or ``(B, N)`` where each agent has its own; and

    Attributes:
        state, next_state: ``(B, *state_shape)``.
        available_actions, next_available_actions: ``(B, N, n_actions)`` bool.
        action_onehot: ``(B, N, n_actions)`` float32, of Discrete actions.
        agent_mask: ``(B, N)`` bool; True where the agent is alive.
        mean_action: ``(B, *mean_action_shape)`` float32.
        next_mean_action: the mean action of the step after the transition. Where no step follows it, at an episode's
            end or the newest row, nobody has acted yet: the mean action of the transition's last step stands there.
        mask: ``(B, T)`` bool, as of :class:`SequenceBatch` and :class:`EpisodeBatch`.
        is_first: ``(B, T)`` bool, as of :class:`SequenceBatch`.
        length: ``(B,)`` int64, as of :class:`EpisodeBatch`.
    """

    state: Any = None
    next_state: Any = None
    available_actions: Any = None
    next_available_actions: Any = None
    action_onehot: Any = None
    agent_mask: Any = None
    mean_action: Any = None
    next_mean_action: Any = None
    mask: Any = None
    is_first: Any = None
    length: Any = None


@dataclasses.dataclass(kw_only=True, repr=False)
class MultiAgentRolloutBatch(_OfAgents, RolloutBatch):
    """A batch of ``B`` steps of ``N`` agents, or of ``B`` episodes: then every ``(B, ...)`` is ``(B, T, ...)``.

    The fields of :class:`RolloutBatch`: ``obs`` ``(B, N, *obs_shape)``, ``action`` ``(B, N, *action_shape)``,
    ``value``, ``log_prob``, ``advantage`` and ``returns`` ``(B, N)``, ``reward`` ``(B,)`` or ``(B, N)``. Where
    advantages are normalised, that is over the agents alive, and 0 of the others. What the buffer does not hold is
    None.

    Attributes:
        state, available_actions, action_onehot, agent_mask, mean_action: as in :class:`MultiAgentBatch`.
    """

    state: Any = None
    available_actions: Any = None
    action_onehot: Any = None
    agent_mask: Any = None
    mean_action: Any = None
