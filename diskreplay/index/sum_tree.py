"""A tree of sums and minima: it draws slots in proportion to their masses, and changes masses, many at once.

1. Each node has eight children, which lie side by side in one cache line. A million slots have seven levels of nodes
   above them.
2. Level 0 holds the masses of the slots, and the last level the root. Each level is padded with zeros to a multiple of
   eight nodes, so the tree works for any number of slots.
3. A slot of mass 0 is never drawn, and does not count for the minimum.
4. The tree always computes an inner sum anew from eight children, in one fixed order. It never adds a difference to a
   sum. So sums do not drift, and two trees of the same masses are equal bit by bit, whatever their histories.
5. Each draw is from a range of slots. The tree first finds the few nodes that together have just these slots under
   them, at most seven at each end of each level. From these nodes it computes the range's total and minimum. So the
   precision of a draw depends only on the masses in its range.
6. A draw begins with a number between 0 and the range's total. It walks along the nodes of point 5, in the order of
   their slots, and subtracts their sums until the rest is smaller than the next sum. It enters that next node, and
   walks along the node's eight children in the same way, down to a slot. So it never enters a child whose sum is 0. If
   rounding takes it past all eight, it goes on to the last slot under them whose mass is not 0.
7. A draw spends its time waiting for memory, and for branches that the processor guessed wrong. So all draws go down a
   level together. Each draw prefetches its next eight children, and chooses among them without a branch.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import kernel, prefetch
from diskreplay.index.log import NOW
from diskreplay.index.slots import BASE, EVICTED, LANES, LOCAL, ROWS
from diskreplay.index.slots import FIRST as FIRST_ID
from diskreplay.index.slots import STOP as STOP_ID

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FANOUT = 8
SHIFT = 3
_1, _2, _3, _4, _5, _6, _7 = np.arange(1, FANOUT, dtype=np.uint64)

START, STOP, GROUP = range(3)
"""The columns of a table of ranges, int64 ``(R, 3)``: slots ``[START, STOP)``, and the range's index in ``maxima``."""


NO_SLOTS: Ints = np.empty(0, np.int64)


class WideSumTree:
    """The masses of ``slots`` slots, all 0 at first.

    Only slots that were written take memory.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._offsets, total = layout(slots)
        self._sums = aligned_zeros(total)
        self._mins = aligned_zeros(total)
        """The least mass above 0 under each inner node; the entries at level 0 are never used."""

    def __len__(self) -> int:
        return self._slots

    @property
    def total(self) -> float:
        """The sum of all masses."""
        return float(self._sums[self._offsets[-1]])

    @property
    def leaves(self) -> Floats:
        """The masses, float64; callers must not write to them."""
        return self._sums[: self._slots]

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` slots, no fewer than there are; slots keep their masses."""
        if slots > self._offsets[1]:
            larger = WideSumTree(max(slots, 2 * self._slots))
            used = np.flatnonzero(self.leaves)
            larger.fill(used, self.leaves[used])
            self.__dict__ = larger.__dict__
        self._slots = slots

    def fill(self, slots: Ints, mass: float | Floats, emptied: Ints = NO_SLOTS) -> None:
        """Set the masses of the slots ``emptied`` to 0, then those of ``slots`` to ``mass``.

        Args:
            slots, emptied: int64 ``(n,)``, each slot at most once; ascending ones are quickest.
            mass: one mass for all ``slots``, or one for each, float64 ``(n,)``.
        """
        masses = mass if isinstance(mass, np.ndarray) else np.array([mass], np.float64)
        fill(self._sums, self._mins, self._offsets, emptied, slots, masses)

    def advance(
        self, table: Ints, row: int, first: int, stop: int, standings: NDArray[np.int8], masses: Floats
    ) -> bool:
        """Move a stream's window forward, in the tree and in the table of slots (:mod:`.slots`).

        Ids that leave the window get mass 0. Ids that are new in it get the mass of their lane.

        Args:
            table, row: the table of slots, and the stream's row in it.
            first, stop: the new window ``[first, stop)`` as ids.
            standings: the standings of the new ids, int8. An id is new if it is not in the window that the table has.
            masses: the mass of a new id in each lane, float64 ``(lanes,)`` or longer.

        Returns True if the window has moved. It returns False and changes nothing if a new id's standing is not NOW, if
        there are not exactly as many ``standings`` as new ids, or if the window would move back.
        """
        done = advance(self._sums, self._mins, self._offsets, table, row, first, stop, standings, masses)
        return bool(done)

    def update(
        self,
        ranges: Ints,
        maxima: Floats,
        left_out: Ints,
        slots: Ints,
        priorities: Floats,
        alpha: float,
        epsilon: float,
        bounds: tuple[float, float],
    ) -> int:
        """Set masses to ``(priority + epsilon) ** alpha``; if a slot is named twice, its last priority counts.

        Args:
            ranges: int64 ``(R, 3)``, ascending; each slot lies in one of the ranges.
            maxima: float64; this call raises a range's entry to the largest ``priority + epsilon`` that it uses there.
            left_out: int64 ``(1,)``; this call adds to it the number of evicted slots.
            slots: the slots of the entries, int64 ``(B,)``; :data:`~diskreplay.index.slots.EVICTED` is skipped.
            priorities: their new priorities, float64 ``(B,)``, at least 0.
            alpha, epsilon: the numbers in the formula.
            bounds: the least mass, to which smaller ones are raised, and the largest priority that is allowed.

        Returns -1 if every entry is good. Otherwise nothing changes, and it returns the position of the first bad
        entry: its priority is NaN or too large, or its slot is unknown or has no mass.
        """
        wrong = update(
            self._sums, self._mins, self._offsets, ranges, maxima, left_out, slots, priorities, alpha, epsilon, *bounds
        )
        return int(wrong)

    def totals(self, ranges: Ints) -> Floats:
        """Return the sum of the masses in each range, float64 ``(R,)``."""
        sums: Floats = totals(self._sums, self._mins, self._offsets, ranges)
        return sums

    def draw(self, ranges: Ints, uniforms: Floats, beta: float) -> tuple[Ints, NDArray[np.float32]]:
        """Divide each range's total mass into equal slices, and return one slot from each slice, in order.

        Args:
            ranges: int64 ``(R, 3)``; the total of each must be above 0.
            uniforms: where in each slice to draw, float64 ``(B,)`` in [0, 1). Each range has B / R slices, so B
                must be a multiple of R.
            beta: the exponent of the importance weights. The weight of a slot is ``(least / mass) ** beta``: ``mass``
                is its own mass, ``least`` the smallest positive mass in its range.

        Returns the slots, int64 ``(B,)``, and their weights, float32 ``(B,)``, one range after another.
        """
        slots = np.empty(len(uniforms), np.int64)
        weights = np.empty(len(uniforms), np.float32)
        draw(self._sums, self._mins, self._offsets, ranges, uniforms, beta, slots, weights)
        return slots, weights


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


@kernel
def fold(sums: Floats, at: int) -> float:
    one = np.uint64(at)  # numba looks at each signed index whether it counts from the end
    left: float = (sums[one] + sums[one + _1]) + (sums[one + _2] + sums[one + _3])
    right: float = (sums[one + _4] + sums[one + _5]) + (sums[one + _6] + sums[one + _7])
    return left + right


@kernel
def counted(mass: float) -> float:
    return mass if mass > 0.0 else np.inf


@kernel
def least_of(values: Floats, at: int) -> float:
    """Return the least positive one of eight values, or 0 if none is positive."""
    one = np.uint64(at)
    left = min(
        min(counted(values[one]), counted(values[one + _1])), min(counted(values[one + _2]), counted(values[one + _3]))
    )
    right = min(
        min(counted(values[one + _4]), counted(values[one + _5])),
        min(counted(values[one + _6]), counted(values[one + _7])),
    )
    least: float = min(left, right)
    return least if least < np.inf else 0.0


@kernel
def refresh(sums: Floats, mins: Floats, offsets: Ints, nodes: Ints) -> None:
    """Compute all ancestors of the slots ``nodes`` anew, level by level; this overwrites ``nodes``."""
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
def fill(sums: Floats, mins: Floats, offsets: Ints, emptied: Ints, slots: Ints, masses: Floats) -> None:
    changed = np.concatenate((emptied, slots))  # allocated before the first change, because it may fail
    for k in range(len(emptied)):
        sums[emptied[k]] = 0.0
    for k in range(len(slots)):
        sums[slots[k]] = masses[k if len(masses) > 1 else 0]
    refresh(sums, mins, offsets, changed)


@kernel
def advance(
    sums: Floats, mins: Floats, offsets: Ints, table: Ints, row: int, first: int, stop: int,
    standings: NDArray[np.int8], masses: Floats,
) -> bool:  # fmt: skip
    first, stop = first & LOCAL, stop & LOCAL
    start = max(first, table[row, STOP_ID])
    if first < table[row, FIRST_ID] or stop < table[row, STOP_ID] or len(standings) != stop - start:
        return False
    for k in range(len(standings)):
        if standings[k] != NOW:
            return False
    base, lanes, rows = table[row, BASE], table[row, LANES], table[row, ROWS]
    gone = min(first, table[row, STOP_ID]) - table[row, FIRST_ID]
    changed = np.empty(gone + len(standings), np.int64)  # allocated before the first change, because it may fail
    for k in range(gone):
        at, lane = divmod(table[row, FIRST_ID] + k, lanes)
        changed[k] = base + lane * rows + at % rows
        sums[changed[k]] = 0.0
    for k in range(len(standings)):
        at, lane = divmod(start + k, lanes)
        changed[gone + k] = base + lane * rows + at % rows
        sums[changed[gone + k]] = masses[lane]
    refresh(sums, mins, offsets, changed)
    table[row, FIRST_ID], table[row, STOP_ID] = first, stop
    return True


@kernel
def level_of(offsets: Ints, node: int) -> int:
    """Return the level of a node, which is given by its position in the flat array."""
    level = len(offsets) - 1
    while node < offsets[level]:
        level -= 1
    return level


@kernel
def cover(sums: Floats, mins: Floats, offsets: Ints, start: int, stop: int, nodes: Ints) -> tuple[int, float, float]:
    """Write to ``nodes`` the positions of the nodes that together have just the slots ``[start, stop)`` under them.

    Empty nodes are left out. Returns the number of nodes, the sum of their masses, and the least mass of a slot.
    """
    front, back, level = 0, len(nodes), 0
    while start < stop:
        while start < stop and start % FANOUT:
            nodes[front] = offsets[level] + start
            start, front = start + 1, front + 1
        while start < stop and stop % FANOUT:
            stop, back = stop - 1, back - 1
            nodes[back] = offsets[level] + stop
        start, stop, level = start >> SHIFT, stop >> SHIFT, level + 1
    count, total, least = 0, 0.0, np.inf
    for k in range(front + len(nodes) - back):
        node = nodes[k] if k < front else nodes[back + k - front]
        if sums[node] > 0.0:
            nodes[count] = node
            count += 1
            total += sums[node]
            least = min(least, sums[node] if node < offsets[1] else mins[node])
    return count, total, least


@kernel
def totals(sums: Floats, mins: Floats, offsets: Ints, ranges: Ints) -> Floats:
    found = np.empty(len(ranges))
    nodes = np.empty(2 * FANOUT * len(offsets), np.int64)
    for k in range(len(ranges)):
        _, found[k], _ = cover(sums, mins, offsets, ranges[k, START], ranges[k, STOP], nodes)
    return found


@kernel
def update(
    sums: Floats, mins: Floats, offsets: Ints, ranges: Ints, maxima: Floats, left_out: Ints, slots: Ints,
    priorities: Floats, alpha: float, epsilon: float, least: float, most: float,
) -> int:  # fmt: skip
    for k in range(len(slots)):
        if not priorities[k] <= most or slots[k] < EVICTED or (slots[k] >= 0 and sums[slots[k]] == 0.0):
            return k
    changed = np.empty(len(slots), np.int64)  # allocated before the first change, because it may fail
    for k in range(len(slots)):
        if slots[k] >= 0:
            sums[slots[k]] = -1.0 - k  # the last entry for a slot leaves its number there
    count, at = 0, 0
    for k in range(len(slots)):
        slot = slots[k]
        if slot < 0:
            left_out[0] += 1
        elif sums[slot] == -1.0 - k:
            priority = priorities[k] + epsilon
            sums[slot] = max(priority**alpha, least)
            while slot < ranges[at, START]:
                at -= 1
            while slot >= ranges[at, STOP]:
                at += 1
            maxima[ranges[at, GROUP]] = max(maxima[ranges[at, GROUP]], priority)
            changed[count] = slot
            count += 1
    refresh(sums, mins, offsets, changed[:count])
    return -1


@kernel
def draw(
    sums: Floats, mins: Floats, offsets: Ints, ranges: Ints, uniforms: Floats, beta: float,
    slots: Ints, weights: NDArray[np.float32],
) -> None:  # fmt: skip
    count = len(uniforms) // len(ranges)
    rest = np.empty(len(uniforms))
    levels = np.empty(len(uniforms), np.int64)
    least = np.empty(len(ranges))
    nodes = np.empty(2 * FANOUT * len(offsets), np.int64)
    top = 0
    for k in range(len(ranges)):
        found, total, least[k] = cover(sums, mins, offsets, ranges[k, START], ranges[k, STOP], nodes)
        at, passed, level = 0, 0.0, level_of(offsets, nodes[0])
        for j in range(count):
            share = (j + uniforms[k * count + j]) * (total / count)
            while at + 1 < found and share - passed >= sums[nodes[at]]:  # shares ascend
                passed += sums[nodes[at]]
                at += 1
                level = level_of(offsets, nodes[at])
            rest[k * count + j] = max(share - passed, 0.0)
            slots[k * count + j] = nodes[at] - offsets[level]
            levels[k * count + j] = level
            top = max(top, level)
    for level in range(top, 0, -1):
        for k in range(len(slots)):
            if levels[k] < level:
                continue
            first = offsets[level - 1] + (slots[k] << SHIFT)
            children, chosen, left = np.uint64(first), first, rest[k]
            after = left
            for child in range(FANOUT):
                after -= sums[children + np.uint64(child)]  # below 0 from the chosen child on
                left = after if after >= 0.0 else left
                chosen += after >= 0.0
            if chosen == first + FANOUT:
                chosen -= 1
                while sums[chosen] == 0.0:
                    chosen -= 1
                left = np.inf
            slots[k] = chosen - offsets[level - 1]
            rest[k] = left
            if level > 1:
                prefetch(np.int64(sums.ctypes.data) + 8 * (offsets[level - 2] + (slots[k] << SHIFT)))
    for k in range(len(slots)):
        weights[k] = (least[k // count] / sums[slots[k]]) ** beta
