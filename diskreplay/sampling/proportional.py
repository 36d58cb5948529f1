"""Proportional prioritisation after Schaul et al., "Prioritized Experience Replay" (2016), section 3.3.

1. Transition i has priority ``p_i = |TD error| + epsilon`` and is drawn with ``P(i) = p_i^alpha / sum_k p_k^alpha``.
   ``alpha`` is applied once, when a priority enters the tree.
2. A new transition has the largest priority so far, which is 1 at first.
3. A batch of B takes one transition from each of B equal slices of the total.
4. Its weights are ``(N P(i))^-beta``, divided by the largest of all N transitions, so that they only scale down. N and
   the total cancel in that: a weight is ``(least p^alpha / p_i^alpha)^beta``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.window import (
    Ids,
    IsTransition,
    Windows,
    checked_number,
    checked_updates,
    refused_update,
)

if TYPE_CHECKING:  # both load numba, which only those pay for who sample with priorities
    from diskreplay.index.sum_tree import SumTree
    from diskreplay.sampling.places import Places

LEAST_MASS = 1e-280
MOST_MASS = 1e280
"""So far from the ends of float64 that no transition is lost to underflow and no total overflows."""


class Proportional:
    """Draws transitions in proportion to a power of their priority.

    The object holds the priorities of the one buffer that it is given to.

    Args:
        alpha: how much priorities count; 0 is uniform.
        beta: how much of the bias the weights take back; 1 is all of it.
        beta_schedule: ``(final_beta, calls)``: beta goes in a straight line from ``beta`` to ``final_beta`` over the
            first ``calls`` calls of ``sample``, and stays there; None keeps it.
        epsilon: added to every TD error, above 0, so that each transition can be drawn.

    Raises InputError where an argument is out of range.
    """

    def __init__(
        self,
        alpha: float = 0.6,
        beta: float = 0.4,
        beta_schedule: tuple[float, int] | None = None,
        epsilon: float = 1e-6,
    ) -> None:
        self._alpha = checked_number("alpha", alpha)
        self._first_beta = checked_number("beta", beta)
        self._schedule = _checked_schedule(beta_schedule)
        self._epsilon = checked_number("epsilon", epsilon, above=True)
        largest = 10.0 ** min(300.0, np.log10(MOST_MASS) / self._alpha if self._alpha else 300.0)
        self._bounds = LEAST_MASS, float(largest)
        self._maximum = 1.0
        self._samples = 0
        self._ignored_updates = 0
        self._places: Places | None = None
        self._tree: SumTree | None = None

    def __repr__(self) -> str:
        return (
            f"Proportional(alpha={self._alpha}, beta={self._first_beta}, beta_schedule={self._schedule}, "
            f"epsilon={self._epsilon})"
        )

    @property
    def beta(self) -> float:
        """Of the next sample."""
        if self._schedule is None:
            return self._first_beta
        final, calls = self._schedule
        return self._first_beta + (final - self._first_beta) * min(1.0, self._samples / calls)

    @property
    def maximum(self) -> float:
        """The largest priority so far, epsilon included: that of new transitions."""
        return self._maximum

    @property
    def ignored_updates(self) -> int:
        """Priorities that came after their transition had left the window."""
        return self._ignored_updates

    def sample(
        self, rng: np.random.Generator, windows: Windows, is_transition: IsTransition, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draws ``size`` ids, int64, and their importance weights, float32 in (0, 1].

        Raises NotEnoughDataError when nothing in the windows is a transition.
        """
        places, tree = self._catch_up(windows, is_transition)
        if not tree.total > 0:
            raise NotEnoughDataError("no row in the window is a transition yet; add more steps")
        slots, weights = tree.draw(rng.random(size), self.beta)
        self._samples += 1
        return places.to_ids(slots), weights

    def update(self, ids: Any, priorities: Any, windows: Windows, is_transition: IsTransition) -> None:
        """Takes over TD errors, or their magnitudes, ``(B,)``, of ids ``(B,)``; of a repeated id the last one counts.

        Ids that have left the window are ignored and counted. Raises InputError, and changes no priority, where an id
        is that of no transition or a priority is not finite.
        """
        ids, priorities = checked_updates(ids, priorities)
        places, tree = self._catch_up(windows, is_transition)
        slots = places.to_slots(ids)
        largest, ignored, wrong = tree.update(slots, priorities, self._alpha, self._epsilon, self._bounds)
        if wrong >= 0:
            raise refused_update(ids[wrong], priorities[wrong], self._bounds[1])
        self._maximum = max(self._maximum, largest)
        self._ignored_updates += ignored

    def forget(self, stream: int) -> None:
        """Forgets the priorities of a stream whose rows were taken back; they count as new from now on."""
        if self._places is not None and self._tree is not None:
            self._tree.fill(self._places.forget(stream), 0.0)

    def _parts(self) -> tuple[Places, SumTree]:
        if self._places is None or self._tree is None:
            from diskreplay.index.sum_tree import SumTree
            from diskreplay.sampling.places import Places

            self._places, self._tree = Places(), SumTree(0)
        return self._places, self._tree

    def _catch_up(self, windows: Windows, is_transition: IsTransition) -> tuple[Places, SumTree]:
        places, tree = self._parts()
        changes = places.catch_up(windows, is_transition)
        if changes is not None:
            tree.grow(places.slots)
            if len(changes.vacated):
                tree.fill(changes.vacated, 0.0)
            if len(changes.slots):
                tree.fill(changes.slots, max(self._maximum**self._alpha, LEAST_MASS))
        return places, tree

    # State

    def to_json(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "kind": "Proportional",
            "alpha": self._alpha,
            "beta": self._first_beta,
            "beta_schedule": list(self._schedule) if self._schedule else None,
            "epsilon": self._epsilon,
        }

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """All that the next draws depend on but the windows: facts for JSON, and arrays.

        ``mass`` float64: priorities to the power of alpha, 0 for no transitions, of all windows one after another;
        ``waiting`` int64: the numbers, in their streams, of rows that may still become transitions.
        """
        places, tree = self._parts()
        runs, waiting = places.state()
        facts = {
            "alpha": self._alpha,
            "maximum": self._maximum,
            "samples": self._samples,
            "ignored_updates": self._ignored_updates,
            "streams": runs,
        }
        return facts, {"mass": tree.leaves[places.held()], "waiting": waiting}

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Goes on from what :meth:`state` gave; what the windows hold now is seen by the next call.

        Raises ValueError, KeyError or TypeError, and changes nothing, where that is no state, or one with another
        alpha.
        """
        from diskreplay.index.sum_tree import SumTree
        from diskreplay.sampling.places import Places

        if facts["alpha"] != self._alpha:
            raise ValueError(f"the stored priorities have alpha {facts['alpha']!r}, this sampler has {self._alpha!r}")
        places = Places.restored(facts["streams"], arrays["waiting"])
        held, mass = places.held(), np.asarray(arrays["mass"], np.float64)
        if mass.shape != held.shape or not ((mass == 0) | (mass >= LEAST_MASS) & (mass <= MOST_MASS)).all():
            raise ValueError(f"stored priorities must be {len(held)} masses, got {mass.shape}")
        maximum, samples, ignored = (facts[key] for key in ("maximum", "samples", "ignored_updates"))
        tree = SumTree(places.slots)
        tree.fill(held, mass)
        self._maximum, self._samples, self._ignored_updates = float(maximum), int(samples), int(ignored)
        self._places, self._tree = places, tree


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


def from_json(stored: dict[str, Any]) -> Proportional:
    """The sampler of a document by ``to_json``, without priorities."""
    if stored.get("kind") != "Proportional":
        raise ValueError(f"unknown sampler {stored!r}")
    return Proportional(**{key: value for key, value in stored.items() if key != "kind"})
