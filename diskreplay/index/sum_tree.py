"""A tree of sums and minima: it draws slots in proportion to their masses, and changes masses, many at once.

How it works stands in native/sum_tree.h. Draws and updates, and what enters and leaves, are those of
:class:`diskreplay.native.core.Masses`.
"""

from __future__ import annotations

import numpy as np

from diskreplay.checks import Floats, Ints
from diskreplay.native import core

FANOUT = 8

START, STOP, GROUP = range(3)
"""The columns of a table of ranges, int64 ``(R, 3)``: slots ``[START, STOP)``, and the range's index in ``maxima``."""


class WideSumTree:
    """The masses of ``slots`` slots, all 0 at first.

    Only slots that were written take memory.

    Attributes:
        core: the kernels over the tree.
    """

    def __init__(self, slots: int) -> None:
        self._offsets, total = layout(slots)
        self._sums = aligned_zeros(total)
        self._mins = aligned_zeros(total)
        """The least mass above 0 under each inner node; the entries at level 0 are never used."""
        self.core = core.Tree(self._sums, self._mins, self._offsets)

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._sums[self._offsets[-1]])

    @property
    def leaves(self) -> Floats:
        """The masses, float64, and zeros behind them; callers must not write to them."""
        return self._sums[: self._offsets[1]]

    def grown(self, slots: int) -> WideSumTree:
        """Return a tree with room for ``slots`` slots; slots keep their masses."""
        room = int(self._offsets[1])
        if slots <= room:
            return self
        larger = WideSumTree(max(slots, 2 * room))
        used = np.flatnonzero(self.leaves)
        larger.fill(used, self.leaves[used])
        return larger

    def fill(self, slots: Ints, masses: Floats) -> None:
        """Set the masses of slots, int64 ``(n,)``, each at most once; ascending ones are quickest."""
        self.core.fill(slots, masses)

    def totals(self, ranges: Ints) -> Floats:
        """Return the sum of the masses in each range, float64 ``(R,)``."""
        return self.core.totals(ranges)


def layout(slots: int) -> tuple[Ints, int]:
    """Return the position of each level's first node in one flat array, and the array's length."""
    offsets, size, nodes = [0], 0, slots
    while True:
        groups = max(1, -(-nodes // FANOUT))
        size += groups * FANOUT
        if nodes <= 1 and len(offsets) > 1:
            return np.array(offsets), size
        offsets.append(size)
        nodes = groups


def aligned_zeros(count: int) -> Floats:
    """Return zeros that begin at a cache line; the system gives memory for a page only when it is first written."""
    line = 64 // 8
    whole = np.zeros(count + line, np.float64)
    start = -(whole.ctypes.data // 8) % line
    return whole[start : start + count]
