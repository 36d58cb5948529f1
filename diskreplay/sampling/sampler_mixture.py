"""A mixture of samplers: each gives a fixed share of every batch.

1. A batch holds first what the first sampler drew, then what the second drew, and so on. How many that is follows from
   the weights and from how many were drawn before (:mod:`diskreplay.sampling.shares`).
2. So transition i has the probability ``sum_k w_k P_k(i)``, with weights that add up to 1.
3. Each sampler gives the importance weights of what it drew. Weights that take back all of the bias of their own
   sampler (``beta`` 1 of :class:`~diskreplay.sampling.proportional.Proportional`) make its part an unbiased estimate of
   the same mean, up to a factor, and then the whole is one, too.
4. At most one of them may have priorities, or another state: what an update means is then never in doubt, and it
   happens whole or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.sampling import shares
from diskreplay.sampling.composed import Composed
from diskreplay.sampling.conforming import check
from diskreplay.sampling.groups import Groups
from diskreplay.sampling.window import Prioritized, Sampler, Standings, Windows, checked_draw, checked_updates
from diskreplay.schema.ids import Ids

GIVEN, STATE = "given", "state"


class SamplerMixture(Composed):
    """A sampler made of several samplers of one store, each of which draws its share.

    The object counts what was drawn, and so belongs to the one buffer that it is given to.

    Args:
        samplers: at least one, of any kinds but mixtures; at most one of them with priorities, or another state.
        weights: numbers above 0, one for each sampler, in proportion to their shares; all equal if None. Where a share
            of a batch is no whole number, batches take turns, so that of all that was ever drawn each sampler has given
            its share, to less than one.

    Raises InputError where an argument is none of that.
    """

    def __init__(self, samplers: Sequence[Sampler], weights: Sequence[float] | None = None) -> None:
        if not isinstance(samplers, list | tuple) or not samplers:
            raise InputError(f"samplers must be a list of at least one sampler, got {samplers!r}")
        for part in samplers:
            check(part)
            if isinstance(part, SamplerMixture):
                raise InputError(f"a mixture takes no mixture: give the samplers of {part!r} and their weights instead")
            if isinstance(part, Groups):
                raise InputError(f"a mixture counts transitions, and {part!r} groups: draw from each by itself")
            if isinstance(part, Composed):
                raise InputError(f"a mixture takes no sampler that counts: count the mixture instead of {part!r}")
        self._samplers = tuple(samplers)
        told = [part for part in self._samplers if isinstance(part, Prioritized)]
        if len(told) > 1:
            raise InputError(f"a mixture takes one sampler with priorities or another state, got {len(told)}: {told}")
        self._told = told[0] if told else None
        """The sampler with priorities, or another state."""
        given = [1.0] * len(self._samplers) if weights is None else weights
        self._shares = shares.of("weights", given, len(self._samplers))
        self._weights = tuple(float(weight) for weight in given)
        self._given = [0] * len(self._samplers)
        """The number of ids that each sampler has drawn so far."""

    def __repr__(self) -> str:
        return f"SamplerMixture({list(self._samplers)}, weights={self._weights})"

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """The samplers, as they were given."""
        return self._samplers

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights, as they were given."""
        return self._weights

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, sampler by sampler, and the importance weights that each gave them, float32.

        Raises what a sampler raises that is to give some: NotEnoughDataError, where it has nothing to draw from.
        """
        counts = self._shares.counts(self._given, size)
        drawn = [
            checked_draw(part, part.sample(rng, windows, standing, count), count)
            for part, count in zip(self._samplers, counts, strict=True)
            if count
        ]
        self._given = [before + count for before, count in zip(self._given, counts, strict=True)]
        return np.concatenate([ids for ids, _ in drawn]), np.concatenate([weights for _, weights in drawn])

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return the probability of ids ``(B,)`` over all draws, float64 ``(B,)``: each sampler's own, by its share."""
        whole = sum(self._weights)
        return sum(
            (weight / whole * part.probability(ids, windows, standing)
             for part, weight in zip(self._samplers, self._weights, strict=True)),
            np.zeros(()),
        )  # fmt: skip

    def update(self, ids: Any, priorities: Any, windows: Windows, standing: Standings) -> None:
        """Hand TD errors ``(B,)`` of ids ``(B,)``, whichever sampler drew them, to the one with priorities.

        Raises InputError where none has priorities, and what that one raises.
        """
        if self._told is None:
            raise InputError(f"{self!r} has no priorities; give it a Proportional() or RankBased() too")
        ids, priorities = checked_updates(ids, priorities)
        self._told.update(ids, priorities, windows, standing)

    def forget(self, stream: int) -> None:
        """Forget the priorities of a stream whose rows were taken back."""
        if self._told is not None:
            self._told.forget(stream)

    def clear(self) -> None:
        """Forget all priorities and counts; keep the arguments."""
        if self._told is not None:
            self._told.clear()
        self._given = [0] * len(self._samplers)

    @property
    def is_new(self) -> bool:
        """True if it knows nothing of any buffer yet, or was cleared."""
        return not any(self._given) and (self._told is None or self._told.is_new)

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return how many ids each has drawn, and the state of the one that has one: facts for JSON, and arrays."""
        facts, arrays = self._told.state() if self._told is not None else (None, {})
        return {GIVEN: self._given, STATE: facts}, arrays

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`state` gave; raise ValueError, KeyError or TypeError for anything else."""
        given, state = self._shares.checked(facts[GIVEN]), facts[STATE]
        if (state is None) != (self._told is None):
            raise ValueError("the stored mixture and this one have not both a sampler with priorities")
        if self._told is not None:
            self._told.restore(state, arrays)
        self._given = given

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        parts = [part.to_json() for part in self._samplers]
        return {"kind": "SamplerMixture", "samplers": parts, "weights": list(self._weights)}
