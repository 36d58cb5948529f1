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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Floats, checked_number
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.ranks import Ranks
from diskreplay.native import core
from diskreplay.sampling.places import Places
from diskreplay.sampling.priorities import Priorities
from diskreplay.sampling.window import Standings, Windows
from diskreplay.schema.ids import Ids

MASS_BLOCK = 1024


class RankBased(Priorities[Ranks, core.Ranked]):
    """A sampler that draws transitions by the rank of their priority.

    The object holds the priorities of the one buffer that it is given to.

    Args:
        alpha: the exponent of the ranks; 0 is uniform.
        beta: the exponent of the importance weights; 1 takes back all of the bias.
        segments: into which the total mass is cut; as many as a batch has transitions if None. Where a batch is no
            multiple of it, which segments give one transition more is drawn too, each as likely as the others.

    Raises InputError where an argument is out of range.
    """

    _array, _nothing = "priority", -1.0

    def __init__(self, alpha: float = 0.7, beta: float = 0.5, segments: int | None = None) -> None:
        self._alpha = checked_number("alpha", alpha)
        if segments is not None and (
            not isinstance(segments, int | np.integer) or isinstance(segments, bool) or segments < 1
        ):
            raise InputError(f"segments must be a whole number above 0 or None, got {segments!r}")
        self._segments = None if segments is None else int(segments)
        self._masses = np.empty(0)
        """Entry r is the mass of the ranks 1 to r + 1."""
        super().__init__(beta, sys.float_info.max)

    def __repr__(self) -> str:
        return f"RankBased(alpha={self._alpha}, beta={self._beta}, segments={self._segments})"

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, and their importance weights, float32 in (0, 1].

        Raises NotEnoughDataError when nothing in the windows is a transition.
        """
        held = self._catch_up(windows, standing)
        count = len(self._tree)
        if not count:
            raise NotEnoughDataError("nothing in the window can be drawn yet; add more steps")
        held.weigh(self._mass_of_ranks(count))
        whole = not size % (self._segments or size or 1)
        return held.draw(rng.random(size if whole else size + 1), size, self.beta)

    def _mass_of_ranks(self, count: int) -> Floats:
        """Return the masses of the ranks 1 to r, for r from 1 to ``count`` or more."""
        if count > len(self._masses):
            # Whole blocks, so that an entry is the same, bit by bit, in tables of all lengths.
            blocks = -(-min(2 * count, self._places.slots) // MASS_BLOCK)
            self._masses = np.cumsum(np.arange(1.0, blocks * MASS_BLOCK + 1) ** -self._alpha)
        return self._masses

    # The tree

    def _new_tree(self, slots: int) -> Ranks:
        return Ranks(slots)

    def _given(self, places: Places, tree: Ranks, maxima: Floats, counts: Ids, waiting: Ids) -> core.Ranked:
        rule = self._alpha, self._segments or 0, self._most
        return core.Ranked(places.table, waiting, maxima, counts, tree.nodes, tree.head, self._masses, rule)

    def _chances(self, held: core.Ranked, slots: Ids) -> Floats:
        ranks, count = self._tree.ranks(slots), len(self._tree)
        whole = self._mass_of_ranks(count)[count - 1] if count else 1.0
        chances: Floats = np.where(ranks >= 0, (np.maximum(ranks, 0) + 1.0) ** -self._alpha, 0.0) / whole
        return chances

    def _values(self, tree: Ranks, slots: Ids) -> Floats:
        return tree.priorities(slots)

    def _restored(self, places: Places, slots: Ids, values: Floats) -> Ranks:
        if not ((values == -1) | (values >= 0) & (values <= self._most)).all():
            raise ValueError("stored priorities must be finite magnitudes, or -1")
        tree, present = self._new_tree(places.slots), values >= 0
        tree.fill(slots[present], places.to_ids(slots[present]), values[present])
        return tree

    # State

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments, beta as it was last set."""
        return {"kind": "RankBased", "alpha": self._alpha, "beta": self._beta, "segments": self._segments}
