"""A view of several agents' steps over another view, which says which steps an item has.

1. The other view's batch is taken apart: a nested observation into its fields, columns out of ``extra``.
2. One-hot actions are made of actions when those are read.
3. The mean action after a transition is that of the row after its last one, where that row continues it.
4. Agents' rewards of several steps are summed here; the engine sums only its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.multi_agent_batch import MultiAgentBatch
from diskreplay.buffers.multi_agent_layout import (
    AGENT_MASK,
    AGENT_REWARD,
    AVAILABLE,
    MEAN_ACTION,
    OBS,
    STATE,
    Agents,
    onehot,
)
from diskreplay.ids import Ids
from diskreplay.index.rewards import returns
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema import Schema
from diskreplay.views.transition import Transition
from diskreplay.views.view import View

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class AgentsView(View[MultiAgentBatch]):
    """A view whose items are those of ``view``, as :class:`MultiAgentBatch`."""

    view: View
    agents: Agents

    @property
    def reach(self) -> int:
        return self.view.reach

    def check(self, schema: Schema) -> None:
        self.view.check(schema)

    def standing(self, stream: OpenStream, ids: Ids) -> NDArray[np.int8]:
        return self.view.standing(stream, ids)

    def draft(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, weight: Array,
        rng: np.random.Generator | None, reads: Reads,
    ) -> MultiAgentBatch:  # fmt: skip
        fields = dict(vars(self.view.draft(schema, streams, ids, weight, rng, reads)))
        mask = fields.get("mask")
        several = _Several(schema, streams, ids, mask, self.view, reads)
        fields.update(self._observations(fields))
        extra = fields["extra"] = dict(fields["extra"])
        fields[AGENT_MASK] = extra.pop(AGENT_MASK)
        if self.agents.rewards == "agent":
            one = extra.pop(AGENT_REWARD)
            fields["reward"] = one if several.n_step == 1 else several.returns(AGENT_REWARD)
        if self.agents.mean_action_shape is not None:
            fields[MEAN_ACTION] = extra.pop(MEAN_ACTION)
            fields["next_mean_action"] = several.following(MEAN_ACTION)
        if self.agents.n_actions is not None:
            fields["action_onehot"] = onehot_later(fields["action"], self.agents, mask, reads)
        return MultiAgentBatch(**fields)

    def _observations(self, fields: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for which in ("", "next_"):
            whole = fields[f"{which}obs"]
            found[f"{which}{OBS}"] = whole[OBS]
            if self.agents.state:
                found[f"{which}{STATE}"] = whole[STATE]
            if self.agents.available_actions:
                found[f"{which}{AVAILABLE}"] = whole[AVAILABLE].view(bool)
        return found

    def to_json(self) -> dict[str, Any]:
        return self.view.to_json()


def onehot_later(actions: Array, agents: Agents, mask: Array | None, reads: Reads) -> Array:
    """Return one-hot actions ``(..., N, n_actions)``, complete after ``reads``, zeros where the mask is False."""
    out = np.zeros((*actions.shape, agents.n_actions or 0), np.float32)

    def fill() -> None:
        out[...] = onehot(actions, agents)
        if mask is not None:
            out[~mask] = 0.0

    reads.then(fill)
    return out


class _Several:
    """The steps of a batch, and those after them; its methods are called with the buffer's lock held.

    Args:
        ids: the ids of the items, ``(B,)``.
        mask: ``(B, T)``, which of their steps are there; None where an item is a transition.
    """

    def __init__(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, mask: Array | None, view: View, reads: Reads
    ) -> None:
        self.schema, self.streams, self.reads = schema, streams, reads
        self.n_step, self.gamma = (view.n_step, view.gamma) if isinstance(view, Transition) else (1, 1.0)
        self.lead = ids.shape if mask is None else mask.shape
        self.place: Ids | None = None
        self.ids = ids
        if mask is not None:
            at = Samples(schema, streams, ids)
            num_envs = at.each(lambda stream, rows, envs: np.full(len(rows), stream.log.num_envs))
            self.ids = (ids[:, None] + np.arange(mask.shape[1]) * num_envs[:, None])[mask]
            self.place = np.flatnonzero(mask)

    def following(self, name: str) -> Array:
        """Return a column's values at the row that continues each transition, or else at its last row."""

        def find(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            log = stream.log
            last = returns(log, rows, envs, self.n_step, self.gamma)[1]
            goes_on = ~log.is_cut(last, envs) & (last + 1 < log.end)
            return log.first_id + (last + goes_on - log.begin) * log.num_envs + envs

        return self._values(name, Samples(self.schema, self.streams, self.ids).each(find))

    def returns(self, name: str) -> Array:
        """Return discounted sums of a column's values over the steps of each transition, complete after the reads."""

        def span(stream: OpenStream, rows: Ids, envs: Ids) -> Ids:
            return returns(stream.log, rows, envs, self.n_step, self.gamma)[1] - rows

        at = Samples(self.schema, self.streams, self.ids)
        spans = at.each(span)
        num_envs = at.each(lambda stream, rows, envs: np.full(len(rows), stream.log.num_envs))
        steps = [self._values(name, self.ids + np.minimum(step, spans) * num_envs) for step in range(self.n_step)]
        out = np.zeros(steps[0].shape, steps[0].dtype)

        def add() -> None:
            total = np.zeros(out.shape, np.float64)
            for step, values in enumerate(steps):
                held = (step <= spans).reshape(-1, *[1] * (values.ndim - 1))
                total += np.where(held, self.gamma**step * values.astype(np.float64), 0.0)
            out[...] = total

        self.reads.then(add)
        return out

    def _values(self, name: str, ids: Ids) -> Array:
        samples = Samples(self.schema, self.streams, ids, self.place, int(np.prod(self.lead)), reads=self.reads)
        found = samples.values(self.schema.column(name))
        return found.reshape(*self.lead, *found.shape[1:])
