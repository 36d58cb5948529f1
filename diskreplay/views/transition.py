"""Transitions: an observation, what was done, and the observation ``n_step`` steps later."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.schema import Schema, check_count, check_share
from diskreplay.views.part import StreamPart
from diskreplay.views.samples import Samples
from diskreplay.views.view import Draft, View, keep

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Transition(View):
    """Transitions of ``n_step`` steps, made at sampling time (n-step returns as in Sutton and Barto 2018, chapter 7).

    ``reward`` is the sum of ``gamma ** i * reward_i`` over the steps until the episode ends, ``next_obs`` the
    observation after the last of them, and ``discount`` what its value counts: ``gamma ** steps``, or 0 after
    termination. A truncated or cut off episode keeps its discount: its next observation is the true final one.

    Args:
        n_step: steps of one transition, at least 1.
        gamma: discount factor, 0 to 1.
    """

    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        keep(self, n_step=check_count("n_step", self.n_step, most=1 << 16), gamma=check_share("gamma", self.gamma))

    @property
    def reach(self) -> int:
        return self.n_step

    def check(self, schema: Schema) -> None:
        """Every store has transitions."""

    def standing(self, part: StreamPart, ids: Ids) -> NDArray[np.int8]:
        if self.n_step == 1 and not part.log.invalid:
            return np.ones(len(ids), np.int8)
        return part.log.standing(*part.log.locate(ids), self.n_step)

    def draft(
        self, schema: Schema, parts: Sequence[StreamPart], ids: Ids, weight: NDArray[Any],
        rng: np.random.Generator | None = None,
    ) -> Draft:  # fmt: skip
        samples = Samples(schema, parts, ids)
        return Draft(samples.transitions(self.n_step, self.gamma, ids, weight), samples.rest)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Transition", "n_step": self.n_step, "gamma": self.gamma}


def from_json(stored: dict[str, Any]) -> Transition:
    """The view of a document by ``to_json``."""
    return Transition(stored["n_step"], stored["gamma"])
