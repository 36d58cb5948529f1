"""Proportional prioritisation after Schaul et al., "Prioritized Experience Replay" (2016), section 3.3.

1. Transition i has priority ``p_i = |TD error| + epsilon`` and is drawn with ``P(i) = p_i^alpha / sum_k p_k^alpha``.
   ``alpha`` is applied once, when a priority enters the tree.
2. A new transition has the largest priority so far, which is 1 at first.
3. A batch of B takes one transition from each of B equal slices of the total.
4. Its weights are ``(N P(i))^-beta``, divided by the largest of all N transitions, so that they only scale down. N and
   the total cancel in that: a weight is ``(least p^alpha / p_i^alpha)^beta``.
5. By environment, each has all that for itself: the sum, N, the largest priority so far, the slices and the largest
   weight. A batch of B takes B / E from each of E environments, so that P(i) over all of them is that of its
   environment divided by E.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Floats, check_flag, checked_number
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.sum_tree import GROUP, START, WideSumTree
from diskreplay.native import core
from diskreplay.sampling.places import Places
from diskreplay.sampling.priorities import SAMPLES, Priorities
from diskreplay.sampling.window import Standings, Windows
from diskreplay.schema.ids import Ids

LEAST_MASS = 1e-280
MOST_MASS = 1e280
"""The largest mass, so far from the ends of float64 that no transition underflows and no total overflows."""


class Proportional(Priorities[WideSumTree, core.Masses]):
    """A sampler that draws transitions in proportion to a power of their priority.

    The object holds the priorities of the one buffer that it is given to.

    Args:
        alpha: the exponent of the priorities; 0 is uniform.
        beta: the exponent of the importance weights; 1 takes back all of the bias.
        beta_schedule: ``(final_beta, calls)``: beta goes in a straight line from ``beta`` to ``final_beta`` over the
            first ``calls`` calls of ``sample``, and stays there; None keeps it.
        epsilon: a number above 0 that is added to every TD error, so that each transition can be drawn.
        by_env: True to draw from each environment by itself, equally many from each. A batch then begins with the
            transitions of environment 0 and goes on in order, the environments of a stream after those of the streams
            that were seen before it. All streams that hold rows count; the batch size must be a multiple of their
            environments.

    Raises InputError where an argument is out of range.
    """

    _array, _nothing = "mass", 0.0

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_schedule: tuple[float, int] | None = None,
        epsilon: float = 1e-6,
        by_env: bool = False,
    ) -> None:
        self._alpha = checked_number("alpha", alpha)
        self._schedule = _checked_schedule(beta_schedule)
        self._epsilon = checked_number("epsilon", epsilon, above=True)
        largest = 10.0 ** min(300.0, np.log10(MOST_MASS) / self._alpha if self._alpha else 300.0)
        super().__init__(beta, float(largest), check_flag("by_env", by_env))

    def __repr__(self) -> str:
        return (
            f"Proportional(alpha={self._alpha}, beta={self._beta}, beta_schedule={self._schedule}, "
            f"epsilon={self._epsilon}, by_env={self._by_env})"
        )

    @property
    def beta(self) -> float:
        """The part of the bias that the next sample's weights take back; can be set unless a schedule sets it."""
        if self._schedule is None:
            return self._beta
        final, calls = self._schedule
        return self._beta + (final - self._beta) * min(1.0, int(self._counts[SAMPLES]) / calls)

    @beta.setter
    def beta(self, beta: float) -> None:
        if self._schedule is not None:
            raise InputError(f"beta follows its beta_schedule {self._schedule} and cannot be set")
        self._beta = checked_number("beta", beta)

    @property
    def maxima(self) -> Floats:
        """The largest priority so far, epsilon included: of each environment in the order of a batch, or of all."""
        return self._maxima[self._held.ranges()[:, GROUP]] if self._by_env else self._maxima.copy()

    @property
    def total(self) -> float:
        """The sum of all ``p^alpha``, as of the last sample or update."""
        return self._tree.total

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, and their importance weights, float32 in (0, 1].

        Raises NotEnoughDataError when nothing in the windows is a transition or, by environment, when one has none;
        InputError when the batch is no multiple of the environments.
        """
        held = self._catch_up(windows, standing)
        if not self._tree.total > 0:
            raise NotEnoughDataError("nothing in the window can be drawn yet; add more steps")
        if self._by_env:
            self._check_environments(self._tree.totals(held.ranges()), size)
        return held.draw(rng.random(size), size, self.beta)

    def _check_environments(self, totals: Floats, size: int) -> None:
        if size % len(totals):
            raise InputError(f"with by_env a batch must be a multiple of the {len(totals)} environments, got {size}")
        if not totals.all():
            raise NotEnoughDataError(
                f"environment {int(np.argmin(totals))} of {len(totals)} has no transition yet; add more steps"
            )

    # The tree

    def _new_tree(self, slots: int) -> WideSumTree:
        return WideSumTree(slots)

    def _given(self, places: Places, tree: WideSumTree, maxima: Floats, counts: Ids, waiting: Ids) -> core.Masses:
        power = self._alpha, self._epsilon, LEAST_MASS, self._most
        return core.Masses(places.table, waiting, maxima, counts, tree.core, self._by_env, power)

    def _chances(self, held: core.Masses, slots: Ids) -> Floats:
        ranges = held.ranges()
        totals = self._tree.totals(ranges)
        drawn = totals > 0  # each environment that holds a transition is as likely as the others
        at = np.searchsorted(ranges[:, START], slots, side="right") - 1
        chances: Floats = (
            self._tree.leaves[slots] / (np.where(drawn, totals, 1.0) * max(1, np.count_nonzero(drawn)))[at]
        )
        return chances

    def _values(self, tree: WideSumTree, slots: Ids) -> Floats:
        return tree.leaves[slots]

    def _restored(self, places: Places, slots: Ids, values: Floats) -> WideSumTree:
        tree = self._new_tree(places.slots)
        tree.fill(slots, values)
        return tree

    # State

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments, beta as it was last set."""
        return {
            "kind": "Proportional",
            "alpha": self._alpha,
            "beta": self._beta,
            "beta_schedule": list(self._schedule) if self._schedule else None,
            "epsilon": self._epsilon,
            "by_env": self._by_env,
        }

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        facts, arrays = super().state()
        return facts | {"alpha": self._alpha, "by_env": self._by_env, "samples": int(self._counts[SAMPLES])}, arrays

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`state` gave, also of a sampler with another ``alpha``, or with ``by_env``.

        Raises ValueError, KeyError, TypeError or OverflowError, and changes nothing, where that is no state of such a
        sampler; so are the priorities of one without ``by_env`` for one with it, and those with an ``alpha`` of 0 for
        another.
        """
        samples, alpha = np.int64(int(facts["samples"])), checked_number("the stored alpha", facts["alpha"])
        masses = np.asarray(arrays[self._array], np.float64)
        if not ((masses == 0) | (masses >= LEAST_MASS) & (masses <= MOST_MASS)).all():
            raise ValueError(f"stored masses must be 0 or from {LEAST_MASS:.0e} to {MOST_MASS:.0e}")
        if facts["by_env"] and not self._by_env:
            runs = [{**run, "lanes": 1, "group": 0} for run in facts["streams"]]
            facts = {**facts, "streams": runs, "maxima": [max([1.0, *facts["maxima"]])]}
        elif self._by_env and not facts["by_env"]:
            raise ValueError("they are of all environments together, and not of each (by_env)")
        if alpha != self._alpha:
            if not alpha:
                raise ValueError("they were kept with alpha=0, which makes all equal")
            largest = max([1.0, *facts["maxima"]])
            with np.errstate(over="ignore"):
                priorities = np.minimum(masses ** (1 / alpha), largest)
            masses = np.where(masses > 0, np.clip(priorities**self._alpha, LEAST_MASS, MOST_MASS), 0.0)
            facts = {**facts, "maxima": [min(maximum, self._most) for maximum in facts["maxima"]]}
        maxima = np.array(facts["maxima"], np.float64)  # with their epsilon
        with np.errstate(over="ignore"):
            if not ((maxima <= 2 * self._most) & (maxima**self._alpha <= 2 * MOST_MASS)).all():
                raise ValueError(f"stored maxima must be at most {self._most:.0e}, got {facts['maxima']}")
        super().restore(facts, {**arrays, self._array: masses})
        self._counts[SAMPLES] = samples


def _checked_schedule(schedule: Any) -> tuple[float, int] | None:
    if schedule is None:
        return None
    try:
        final, calls = schedule
    except (TypeError, ValueError):
        raise InputError(f"beta_schedule must be (final_beta, calls) or None, got {schedule!r}") from None
    if not isinstance(calls, int | np.integer) or calls < 1:
        raise InputError(f"the calls of a beta_schedule must be a whole number above 0, got {calls!r}")
    return checked_number("the final beta of a beta_schedule", final), int(calls)
