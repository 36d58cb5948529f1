"""Sums and minima over many leaves: draw leaves in proportion to their mass, change masses, in batches.

1. A node has eight children, which lie side by side in one cache line: a million leaves are seven levels.
2. Level 0 are the leaves, the last level is a single group of eight; each level is padded with zeros to whole groups,
   so no number of leaves is special.
3. A leaf of mass 0 cannot be drawn and has no part in the minimum.
4. An inner sum is always computed anew from its eight children, in one fixed order, never corrected by a difference:
   it does not drift, and trees over the same leaves are equal bit by bit, however they came about.
5. A draw goes down from the last level: it subtracts the sums of the children that it passes and enters the first
   whose sum is above what is left. An empty child is never entered that way. Where rounding leaves it past all eight,
   it goes on to the last leaf under them that is not empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import kernel
from diskreplay.index.slots import EVICTED

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FANOUT = 8
SHIFT = 3


class SumTree:
    """Masses of ``slots`` leaves, all 0 at first; memory is touched as leaves are."""

    def __init__(self, slots: int) -> None:
        self._slots, self._offsets, total = layout(slots)
        self._sums = aligned_zeros(total)
        self._mins = aligned_zeros(total)
        """Least mass above 0 under each inner node; the part for the leaves is never touched."""

    def __len__(self) -> int:
        return self._slots

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(fold(self._sums, self._offsets[-1]))

    @property
    def leaves(self) -> Floats:
        """Masses, float64, padded with zeros; not to be written to."""
        return self._sums[: self._slots]

    def grow(self, slots: int) -> None:
        """Makes room for ``slots`` leaves; those there are keep their places and masses."""
        if slots > self._slots:
            larger = SumTree(max(slots, 2 * self._slots))
            used = np.flatnonzero(self.leaves)
            larger.fill(used, self.leaves[used])
            self.__dict__ = larger.__dict__

    def fill(self, slots: Ints, mass: float | Floats) -> None:
        """Sets the masses of leaves, each named once; quickest in ascending order."""
        self._sums[slots] = mass
        refresh(self._sums, self._mins, self._offsets, slots.copy())

    def update(
        self, slots: Ints, priorities: Floats, alpha: float, epsilon: float, bounds: tuple[float, float]
    ) -> tuple[float, int, int]:
        """Sets masses to ``(priority + epsilon) ** alpha``; where a slot is named twice the last one counts.

        Args:
            slots: int64 ``(B,)``; :data:`~diskreplay.index.slots.EVICTED` is left out.
            priorities: float64 ``(B,)``, at least 0.
            bounds: the least mass, which smaller ones are raised to, and the largest priority that is taken.

        Returns the largest ``priority + epsilon`` that counted, or 0; how many were left out; and the position of the
        first entry whose priority is above its bound or NaN or whose slot is unknown or has no mass, or -1. Where
        there is such an entry nothing is changed.
        """
        result: tuple[float, int, int] = update(
            self._sums, self._mins, self._offsets, slots, priorities, alpha, epsilon, *bounds
        )
        return result

    def draw(self, uniforms: Floats, beta: float) -> tuple[Ints, NDArray[np.float32]]:
        """One leaf from each of ``len(uniforms)`` equal slices of the total mass, in order of the slices.

        Args:
            uniforms: in [0, 1), float64 ``(B,)``: the place in each slice.
            beta: of the importance weights ``(N P)^-beta``, divided by the largest that any leaf with mass has.

        Returns leaves, int64 ``(B,)``, and weights, float32 ``(B,)``. The total must be above 0.
        """
        slots = np.empty(len(uniforms), np.int64)
        weights = np.empty(len(uniforms), np.float32)
        draw(self._sums, self._mins, self._offsets, uniforms, beta, slots, weights)
        return slots, weights


def layout(slots: int) -> tuple[int, Ints, int]:
    """Leaves in whole groups, where each level begins in one flat array, and the array's length."""
    offsets, size, groups = [0], 0, slots
    while True:
        groups = max(1, -(-groups // FANOUT))
        size += groups * FANOUT
        if groups == 1:
            return max(1, -(-slots // FANOUT)) * FANOUT, np.array(offsets), size
        offsets.append(size)


def aligned_zeros(count: int) -> Floats:
    """Zeros that begin at a cache line; pages are taken from the system when they are written."""
    line = 64 // 8
    whole = np.zeros(count + line, np.float64)
    start = -(whole.ctypes.data // 8) % line
    return whole[start : start + count]


@kernel
def fold(sums: Floats, at: int) -> float:
    left: float = (sums[at] + sums[at + 1]) + (sums[at + 2] + sums[at + 3])
    right: float = (sums[at + 4] + sums[at + 5]) + (sums[at + 6] + sums[at + 7])
    return left + right


@kernel
def least_of(values: Floats, at: int) -> float:
    """The least of eight values that is above 0, or 0."""
    least = np.inf
    for child in range(at, at + FANOUT):
        if 0.0 < values[child] < least:
            least = values[child]
    return least if least < np.inf else 0.0


@kernel
def refresh(sums: Floats, mins: Floats, offsets: Ints, nodes: Ints) -> None:
    """Computes all ancestors of leaves anew, level by level; ``nodes`` is overwritten."""
    count = len(nodes)
    for level in range(1, len(offsets)):
        below, here = offsets[level - 1], offsets[level]
        under = sums if level == 1 else mins
        kept, previous = 0, -1
        for k in range(count):
            node = nodes[k] >> SHIFT
            if node != previous:
                sums[here + node] = fold(sums, below + (node << SHIFT))
                mins[here + node] = least_of(under, below + (node << SHIFT))
                nodes[kept] = previous = node
                kept += 1
        count = kept


@kernel
def update(
    sums: Floats, mins: Floats, offsets: Ints, slots: Ints, priorities: Floats,
    alpha: float, epsilon: float, least: float, most: float,
) -> tuple[float, int, int]:  # fmt: skip
    left_out = 0
    for k in range(len(slots)):
        if not priorities[k] <= most or slots[k] < EVICTED or (slots[k] >= 0 and sums[slots[k]] == 0.0):
            return 0.0, 0, k
        left_out += slots[k] < 0
    for k in range(len(slots)):
        if slots[k] >= 0:
            sums[slots[k]] = -1.0 - k  # whoever comes last leaves its mark
    changed = np.empty(len(slots), np.int64)
    count, largest = 0, 0.0
    for k in range(len(slots)):
        slot = slots[k]
        if slot >= 0 and sums[slot] == -1.0 - k:
            priority = priorities[k] + epsilon
            sums[slot] = max(priority**alpha, least)
            largest = max(largest, priority)
            changed[count] = slot
            count += 1
    refresh(sums, mins, offsets, changed[:count])
    return largest, left_out, -1


@kernel
def draw(
    sums: Floats, mins: Floats, offsets: Ints, uniforms: Floats, beta: float, slots: Ints, weights: NDArray[np.float32]
) -> None:
    count = len(uniforms)
    top = len(offsets) - 1
    least = least_of(mins if top else sums, offsets[top])
    slice_mass = fold(sums, offsets[top]) / count
    rest = np.empty(count)
    for k in range(count):
        rest[k] = (k + uniforms[k]) * slice_mass
        slots[k] = 0
    # Level by level and not draw by draw: neighbours' loads do not wait for each other.
    for level in range(top, -1, -1):
        for k in range(count):
            first = offsets[level] + (slots[k] << SHIFT)
            left = rest[k]
            chosen = first
            while chosen < first + FANOUT and left >= sums[chosen]:
                left -= sums[chosen]
                chosen += 1
            if chosen == first + FANOUT:
                chosen -= 1
                while sums[chosen] == 0.0:
                    chosen -= 1
                left = np.inf
            slots[k] = chosen - offsets[level]
            rest[k] = left
    for k in range(count):
        weights[k] = (least / sums[slots[k]]) ** beta
