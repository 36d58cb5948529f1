"""A view of several agents' steps over another view, which says which steps an item has.

1. The other view's batch is taken apart: a nested observation into its fields, columns out of ``extra``.
2. One-hot actions are made of actions when those are read.
3. The mean action after a transition is that of the row after its last one, where that row continues it.
4. Agents' rewards of several steps are summed here; the engine sums only its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent_layout import AGENT_REWARD, AVAILABLE, MEAN_ACTION, OWN_COLUMNS, Agents
from diskreplay.checks import Array
from diskreplay.index.rewards import returns
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.reading.unroll import unroll
from diskreplay.schema.columns import Schema
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import Arrays, Batch, RolloutBatch
from diskreplay.views.transition import Transition
from diskreplay.views.view import View


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


@dataclasses.dataclass(frozen=True)
class AgentsView(View[MultiAgentBatch]):
    """A view whose items are those of ``view``, as :class:`MultiAgentBatch`."""

    view: View
    agents: Agents

    @property
    def reach(self) -> int:
        return self.view.reach

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        return self.view.standing(stream, ids)

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: Array,
        rng: np.random.Generator | None, reads: Reads,
    ) -> MultiAgentBatch:  # fmt: skip
        fields = vars(self.view.draft(schema, streams, ids, weight, rng, reads))
        mask = fields.get("mask")
        found = fields_of_agents(fields, self.agents, mask, reads)
        steps = self.view if isinstance(self.view, Transition) else Transition()
        items = _Items(schema, streams, ids, reads, steps)
        if self.agents.rewards == "agent" and steps.n_step > 1:
            found["reward"] = items.returns(AGENT_REWARD)
        if self.agents.mean_action_shape is not None:
            found["next_mean_action"] = items.following(MEAN_ACTION, mask)
        return MultiAgentBatch(**found)

    def to_json(self) -> dict[str, Any]:
        return self.view.to_json()


def fields_of_agents(fields: Mapping[str, Any], agents: Agents, mask: Array | None, reads: Reads) -> dict[str, Any]:
    """Return the fields of a batch of several agents' steps, made of those of a batch of the store's rows."""
    extra = dict(fields["extra"])
    found = {**fields, "extra": extra}
    for which in ("", "next_"):
        for name, values in fields.get(f"{which}obs", {}).items():
            found[f"{which}{name}"] = values.view(bool) if name == AVAILABLE else values
    found.update({field: extra.pop(name) for name, field in OWN_COLUMNS.items() if name in extra})
    if agents.n_actions is not None:
        found["action_onehot"] = _onehot(found["action"], agents, mask, reads)
    return found


def _onehot(actions: Array, agents: Agents, mask: Array | None, reads: Reads) -> Array:
    """Return one-hot actions ``(..., N, n_actions)``, complete after ``reads``, zeros where the mask is False."""
    choices = agents.first_action + np.arange(agents.n_actions or 0)
    out = np.zeros((*actions.shape, len(choices)), np.float32)

    def fill() -> None:
        out[...] = actions[..., None] == choices
        if mask is not None:
            out[~mask] = 0.0

    reads.then(fill)
    return out


@dataclasses.dataclass(frozen=True)
class _Items:
    """The items of a batch, whose steps are transitions; its methods are called with the buffer's lock held."""

    schema: Schema
    streams: Sequence[OpenStream]
    ids: Ids
    reads: Reads
    steps: Transition

    def last(self, stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
        """Return the last row of the transitions that begin at rows."""
        return returns(stream.log, rows, envs, self.steps.n_step, self.steps.gamma)[1]

    def following(self, name: str, mask: Array | None) -> Array:
        """Return a column's values at the row that continues each transition, or else at its last row.

        ``mask``, ``(B, T)``, says which steps of the items are there; None where an item is a transition.
        """

        def find(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            log, last = stream.log, self.last(stream, rows, envs)
            goes_on = ~log.is_cut(last, envs) & (last + 1 < log.end)
            return log.first_id + (last + goes_on - log.begin) * log.num_envs + envs

        ids, shown = self.ids, np.ones(len(self.ids), bool)
        if mask is not None:
            num_envs = self._at(ids).each(lambda stream, rows, envs: np.full(len(rows), stream.log.num_envs))
            ids, shown = (ids[:, None] + np.arange(mask.shape[1]) * num_envs[:, None])[mask], mask
        samples = self._at(self._at(ids).each(find), np.flatnonzero(shown), shown.size, reads=self.reads)
        found = samples.values(self.schema.column(name))
        return found.reshape(*shown.shape, *found.shape[1:])

    def returns(self, name: str) -> Array:
        """Return discounted sums of a column's values over the steps of each transition, complete after the reads."""

        def stop(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            return self.last(stream, rows, envs) + 1

        samples, mask = unroll(self.schema, self.streams, self.ids, stop, self.steps.n_step, self.reads)
        values = samples.values(self.schema.column(name)).reshape(*mask.shape, -1)
        out = np.zeros_like(values[:, 0])
        scales = np.array([[self.steps.gamma**step] for step in range(self.steps.n_step)])
        self.reads.then(lambda: np.copyto(out, (scales * values).sum(axis=1), casting="same_kind"))
        return out

    def _at(self, ids: Ids, *place: Any, **options: Any) -> Samples:
        return Samples(self.schema, self.streams, ids, *place, **options)
