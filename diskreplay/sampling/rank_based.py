"""Rank-based prioritisation after Schaul et al., "Prioritized Experience Replay" (2016), section 3.3.

1. The transition with the r-th largest ``|TD error|`` is drawn with ``P = r^-alpha / sum_{k=1..N} k^-alpha``. Ranks are
   exact at every draw; of equal errors the newer transition comes first.
2. A new transition has the largest priority so far, which is 1 at first.
3. The total is cut into segments of equal mass, and a batch takes equally many transitions from each.
4. Weights are ``(N P)^-beta``, divided by the largest of all N transitions, which is that of rank N: ``(r / N)^(alpha
   beta)``.
"""

from __future__ import annotations

import sys
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
    from diskreplay.index.ranks import Ranks
    from diskreplay.sampling.places import Places

MOST = sys.float_info.max
MASS_BLOCK = 1024


class RankBased:
    """Draws transitions by the rank of their priority.

    The object holds the priorities of the one buffer that it is given to.

    Args:
        alpha: how much ranks count; 0 is uniform.
        beta: how much of the bias the weights take back; 1 is all of it.
        segments: into which the total mass is cut; as many as a batch has transitions if None. Where a batch is no
            multiple of it, which segments give one transition more is drawn too, each as likely as the others.

    Raises InputError where an argument is out of range.
    """

    def __init__(self, alpha: float = 0.7, beta: float = 0.5, segments: int | None = None) -> None:
        self._alpha = checked_number("alpha", alpha)
        self._beta = checked_number("beta", beta)
        if segments is not None and (
            not isinstance(segments, int | np.integer) or isinstance(segments, bool) or segments < 1
        ):
            raise InputError(f"segments must be a whole number above 0 or None, got {segments!r}")
        self._segments = None if segments is None else int(segments)
        self._maximum = 1.0
        self._ignored_updates = 0
        self._masses = np.empty(0)
        """Entry r is the mass of the ranks 1 to r + 1."""
        self._places: Places | None = None
        self._ranks: Ranks | None = None

    def __repr__(self) -> str:
        return f"RankBased(alpha={self._alpha}, beta={self._beta}, segments={self._segments})"

    @property
    def beta(self) -> float:
        """How much of the bias the weights take back."""
        return self._beta

    @property
    def maximum(self) -> float:
        """The largest priority so far: that of new transitions."""
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
        places, ranks = self._catch_up(windows, is_transition)
        count = len(ranks)
        if not count:
            raise NotEnoughDataError("no row in the window is a transition yet; add more steps")
        masses = self._mass_of_ranks(places, count)
        drawn = np.searchsorted(masses, self._shares(rng, size) * masses[-1], side="right")
        drawn = np.minimum(drawn, count - 1)
        weights = ((drawn + 1) / count) ** (self._alpha * self._beta)
        return places.to_ids(ranks.at(drawn)), weights.astype(np.float32)

    def _shares(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """Shares of the total mass in [0, 1], in ascending order of their segments."""
        segments = self._segments or size
        segment = np.arange(size)
        if size != segments:
            shift = rng.random() if size % segments else 0.0
            segment = np.minimum(((segment + shift) * segments / size).astype(np.int64), segments - 1)
        shares: NDArray[np.float64] = (segment + rng.random(size)) / segments
        return shares

    def _mass_of_ranks(self, places: Places, count: int) -> NDArray[np.float64]:
        """The masses of the ranks 1 to r, for r from 1 to ``count``."""
        if count > len(self._masses):
            # Whole blocks, so that an entry is the same, bit by bit, in tables of all lengths.
            blocks = -(-min(2 * count, places.slots) // MASS_BLOCK)
            self._masses = np.cumsum(np.arange(1.0, blocks * MASS_BLOCK + 1) ** -self._alpha)
        return self._masses[:count]

    def update(self, ids: Any, priorities: Any, windows: Windows, is_transition: IsTransition) -> None:
        """Takes over TD errors, or their magnitudes, ``(B,)``, of ids ``(B,)``; of a repeated id the last one counts.

        Ids that have left the window are ignored and counted. Raises InputError, and changes no priority, where an id
        is that of no transition or a priority is not finite.
        """
        ids, priorities = checked_updates(ids, priorities)
        places, ranks = self._catch_up(windows, is_transition)
        largest, ignored, wrong = ranks.update(places.to_slots(ids), priorities, MOST)
        if wrong >= 0:
            raise refused_update(ids[wrong], priorities[wrong], MOST)
        self._maximum = max(self._maximum, largest)
        self._ignored_updates += ignored

    def forget(self, stream: int) -> None:
        """Forgets the priorities of a stream whose rows were taken back; they count as new from now on."""
        if self._places is not None and self._ranks is not None:
            self._ranks.remove(self._places.forget(stream))

    def _parts(self) -> tuple[Places, Ranks]:
        if self._places is None or self._ranks is None:
            from diskreplay.index.ranks import Ranks
            from diskreplay.sampling.places import Places

            self._places, self._ranks = Places(), Ranks(0)
        return self._places, self._ranks

    def _catch_up(self, windows: Windows, is_transition: IsTransition) -> tuple[Places, Ranks]:
        places, ranks = self._parts()
        changes = places.catch_up(windows, is_transition)
        if changes is not None:
            ranks.grow(places.slots)
            if len(changes.vacated):
                ranks.remove(changes.vacated)
            if len(changes.slots):
                ranks.add(changes.slots, changes.ids, self._maximum)
        return places, ranks

    # State

    def to_json(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"kind": "RankBased", "alpha": self._alpha, "beta": self._beta, "segments": self._segments}

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """All that the next draws depend on but the windows: facts for JSON, and arrays.

        ``priority`` float64: magnitudes, -1 for no transitions, of all windows one after another; ``waiting`` int64:
        the numbers, in their streams, of rows that may still become transitions.
        """
        places, ranks = self._parts()
        runs, waiting = places.state()
        facts = {"maximum": self._maximum, "ignored_updates": self._ignored_updates, "streams": runs}
        return facts, {"priority": ranks.priorities(places.held()), "waiting": waiting}

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Goes on from what :meth:`state` gave; what the windows hold now is seen by the next call.

        Raises ValueError, KeyError or TypeError, and changes nothing, where that is no state.
        """
        from diskreplay.index.ranks import Ranks
        from diskreplay.sampling.places import Places

        places = Places.restored(facts["streams"], arrays["waiting"])
        held, priority = places.held(), np.asarray(arrays["priority"], np.float64)
        if priority.shape != held.shape or not ((priority == -1) | (priority >= 0) & (priority <= MOST)).all():
            raise ValueError(f"stored priorities must be {len(held)} finite magnitudes, got {priority.shape}")
        maximum, ignored = float(facts["maximum"]), int(facts["ignored_updates"])
        ranks = Ranks(places.slots)
        present = priority >= 0
        ranks.add(held[present], places.to_ids(held[present]), priority[present])
        self._maximum, self._ignored_updates = maximum, ignored
        self._places, self._ranks = places, ranks


def from_json(stored: dict[str, Any]) -> RankBased:
    """The sampler of a document by ``to_json``, without priorities."""
    if stored.get("kind") != "RankBased":
        raise ValueError(f"unknown sampler {stored!r}")
    return RankBased(**{key: value for key, value in stored.items() if key != "kind"})
