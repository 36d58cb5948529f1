"""Exact ranks of many priorities. A query or a change takes O(log n) expected steps.

1. Entries stand in a binary search tree, the largest priority first. Of equal priorities the larger id comes first; in
   one stream this is the newer one. So no two entries have the same rank.
2. The tree is a treap: each node has a random number, here a hash of its id, and no parent's number is smaller than its
   child's. So the expected depth is logarithmic, whatever the priorities are and in whatever order they come.
3. Each node counts the nodes in its left subtree. With these counts a walk down from the root finds the k-th entry.
4. To insert a node, go down to where its random number belongs, and split the subtree there into the nodes before and
   the nodes after the new one. To remove a node, join its two subtrees. Both change counts only along one path.
5. Each entry has a slot (:mod:`.slots`). Its node stands at that position of one array, so inserting allocates nothing.
   A node has 32 bytes, half a cache line.
6. To add many entries at once, sort all entries and build a new tree, which takes linear time after the sort.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import kernel
from diskreplay.index.slots import EVICTED

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NODE = np.dtype(
    [
        ("priority", np.float64),
        ("id", np.int64),
        ("left", np.int32),
        ("right", np.int32),
        ("before", np.int32),  # the number of nodes in the left subtree
        ("height", np.int32),  # the random number; 0 for a slot without an entry
    ]
)
NOTHING = -1
REBUILD_SHARE = 8
"""The tree is built anew if it gets at least one new entry for every ``REBUILD_SHARE`` that it holds."""


class Ranks:
    """The ranks of priorities at up to ``slots`` slots.

    No slot has an entry at first. A slot takes memory once it has been written. After a call of :meth:`grow` all old
    slots take memory, because it copies them to a longer array.
    """

    def __init__(self, slots: int) -> None:
        self._nodes = np.zeros(slots, NODE)
        self._head = np.array([NOTHING, 0])
        """The root and the number of entries."""

    def __len__(self) -> int:
        """Return the number of entries."""
        return int(self._head[1])

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` slots; entries keep their slots."""
        if slots > len(self._nodes):
            larger = np.zeros(max(slots, 2 * len(self._nodes)), NODE)
            larger[: len(self._nodes)] = self._nodes
            self._nodes = larger

    def add(self, slots: Ints, ids: Ints, priorities: float | Floats) -> None:
        """Add entries at slots that have none."""
        values = np.broadcast_to(np.asarray(priorities, np.float64), slots.shape)
        if len(slots) * REBUILD_SHARE < len(self):
            insert_all(self._nodes, self._head, slots, ids, values.copy())
            return
        held = np.empty(len(self), np.int64)
        walk(self._nodes, self._head, held)
        nodes = self._nodes
        nodes["priority"][slots] = values
        nodes["id"][slots] = ids
        # Stable sorts are fast where much is in order: `held` is sorted already, and many priorities are equal.
        order = np.concatenate([slots[np.argsort(ids, kind="stable")[::-1]], held])
        build(nodes, self._head, order[np.lexsort((-nodes["id"][order], -nodes["priority"][order]))])

    def remove(self, slots: Ints) -> None:
        """Remove the entries at slots; skip the slots without one."""
        remove_all(self._nodes, self._head, slots)

    def update(self, maxima: Floats, left_out: Ints, slots: Ints, priorities: Floats, most: float) -> int:
        """Change the priorities of entries; if a slot is named twice, its last priority counts.

        Args:
            maxima: float64 ``(1,)``; this call raises it to the largest priority that it sets.
            left_out: int64 ``(1,)``; this call adds to it the number of evicted slots.
            slots: the slots of the entries, int64 ``(B,)``; :data:`~diskreplay.index.slots.EVICTED` is skipped.
            priorities: their new priorities, float64 ``(B,)``.
            most: the largest priority that is allowed.

        Returns -1 if every entry is good. Otherwise nothing changes, and it returns the position of the first bad
        entry: its priority is NaN or above ``most``, or its slot is unknown or has no entry.
        """
        return int(update(self._nodes, self._head, maxima, left_out, slots, priorities, most))

    def at(self, ranks: Ints) -> Ints:
        """Return the slots of the entries with these ranks, which count from 0 and must be below ``len``."""
        slots: Ints = select(self._nodes, self._head, ranks)
        return slots

    def ranks(self, slots: Ints) -> Ints:
        """Return the ranks, counted from 0, of the entries at slots, or -1 for a slot without one."""
        found: Ints = find(self._nodes, self._head, slots)
        return found

    def priorities(self, slots: Ints) -> Floats:
        """Return the priorities at slots, or -1 for a slot without an entry."""
        nodes = self._nodes  # indexing single fields copies fewer bytes than indexing whole nodes
        return np.where(nodes["height"][slots] > 0, nodes["priority"][slots], -1.0)


@kernel
def height_of(identity: int) -> int:
    """Return a number from 1 to 2^31 - 1 that looks random."""
    mixed = (identity ^ (identity >> 31)) * 0x7FB5D329728EA185
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * 0x01DADEF4BC2DD44D
    return ((mixed >> 32) & 0x7FFFFFFF) | 1


@kernel
def precedes(priority: float, identity: int, node: Any) -> bool:
    return bool(priority > node.priority or (priority == node.priority and identity > node.id))


@kernel
def link(nodes: Any, head: Ints, parent: int, leftwards: bool, child: int) -> None:
    if parent == NOTHING:
        head[0] = child
    elif leftwards:
        nodes[parent].left = child
    else:
        nodes[parent].right = child


@kernel
def insert(nodes: Any, head: Ints, slot: int, identity: int, priority: float) -> None:
    height = height_of(identity)
    parent, leftwards, at = NOTHING, False, head[0]
    while at != NOTHING and nodes[at].height >= height:
        parent = at
        leftwards = precedes(priority, identity, nodes[at])
        if leftwards:
            nodes[at].before += 1
            at = nodes[at].left
        else:
            at = nodes[at].right
    link(nodes, head, parent, leftwards, slot)
    split = at
    before = 0
    while at != NOTHING:
        if precedes(priority, identity, nodes[at]):
            at = nodes[at].left
        else:
            before += nodes[at].before + 1
            at = nodes[at].right
    node = nodes[slot]
    node.priority, node.id, node.height, node.before = priority, identity, height, before
    # Each node on the path goes to the left spine of the new right subtree, or to the right spine of the new left one.
    low, high, at = slot, slot, split
    while at != NOTHING:
        if precedes(priority, identity, nodes[at]):
            nodes[at].before -= before  # `before` nodes of its left subtree precede the new node
            link(nodes, head, high, high != slot, at)
            high, at = at, nodes[at].left
        else:
            before -= nodes[at].before + 1
            link(nodes, head, low, low == slot, at)
            low, at = at, nodes[at].right
    link(nodes, head, low, low == slot, NOTHING)
    link(nodes, head, high, high != slot, NOTHING)
    head[1] += 1


@kernel
def remove(nodes: Any, head: Ints, slot: int) -> None:
    priority, identity = nodes[slot].priority, nodes[slot].id
    parent, leftwards, at = NOTHING, False, head[0]
    while at != slot:
        parent = at
        leftwards = precedes(priority, identity, nodes[at])
        if leftwards:
            nodes[at].before -= 1
            at = nodes[at].left
        else:
            at = nodes[at].right
    low, high, before = nodes[slot].left, nodes[slot].right, nodes[slot].before
    while low != NOTHING and high != NOTHING:
        if nodes[low].height >= nodes[high].height:
            link(nodes, head, parent, leftwards, low)
            before -= nodes[low].before + 1
            parent, leftwards, low = low, False, nodes[low].right
        else:
            link(nodes, head, parent, leftwards, high)
            nodes[high].before += before  # the rest of the left subtree comes before it
            parent, leftwards, high = high, True, nodes[high].left
    link(nodes, head, parent, leftwards, high if low == NOTHING else low)
    nodes[slot].height = 0
    head[1] -= 1


@kernel
def insert_all(nodes: Any, head: Ints, slots: Ints, ids: Ints, priorities: Floats) -> None:
    for k in range(len(slots)):
        insert(nodes, head, slots[k], ids[k], priorities[k])


@kernel
def remove_all(nodes: Any, head: Ints, slots: Ints) -> None:
    for k in range(len(slots)):
        if nodes[slots[k]].height:
            remove(nodes, head, slots[k])


@kernel
def update(nodes: Any, head: Ints, maxima: Floats, left_out: Ints, slots: Ints, priorities: Floats, most: float) -> int:
    for k in range(len(slots)):
        slot = slots[k]
        if not priorities[k] <= most or slot < EVICTED or (slot >= 0 and not nodes[slot].height):
            return k
    for k in range(len(slots)):
        slot = slots[k]
        if slot >= 0 and nodes[slot].priority != priorities[k]:
            remove(nodes, head, slot)
            insert(nodes, head, slot, nodes[slot].id, priorities[k])
    for k in range(len(slots)):
        if slots[k] < 0:
            left_out[0] += 1
        elif nodes[slots[k]].priority == priorities[k]:  # this priority was the last for its slot
            maxima[0] = max(maxima[0], priorities[k])
    return -1


@kernel
def select(nodes: Any, head: Ints, ranks: Ints) -> Ints:
    slots = np.empty(len(ranks), np.int64)
    for k in range(len(ranks)):
        rank, at = ranks[k], head[0]
        while rank != nodes[at].before:
            if rank < nodes[at].before:
                at = nodes[at].left
            else:
                rank -= nodes[at].before + 1
                at = nodes[at].right
        slots[k] = at
    return slots


@kernel
def find(nodes: Any, head: Ints, slots: Ints) -> Ints:
    ranks = np.full(len(slots), NOTHING)
    for k in range(len(slots)):
        slot = slots[k]
        if nodes[slot].height:
            rank, at = nodes[slot].before, head[0]
            while at != slot:
                if precedes(nodes[slot].priority, nodes[slot].id, nodes[at]):
                    at = nodes[at].left
                else:
                    rank += nodes[at].before + 1
                    at = nodes[at].right
            ranks[k] = rank
    return ranks


@kernel
def walk(nodes: Any, head: Ints, slots: Ints) -> None:
    """Write the slots of all entries to ``slots``, in the order of ranks."""
    path = np.empty(len(slots), np.int64)
    depth, count, at = 0, 0, head[0]
    while depth or at != NOTHING:
        while at != NOTHING:
            path[depth] = at
            depth += 1
            at = nodes[at].left
        depth -= 1
        slots[count] = path[depth]
        count += 1
        at = nodes[path[depth]].right


@kernel
def build(nodes: Any, head: Ints, slots: Ints) -> None:
    """Build the tree of all entries; ``slots`` has their slots in the order of ranks."""
    path = np.empty(len(slots), np.int64)  # the right spine from the root down, as positions in `slots`
    depth = 0
    for k in range(len(slots)):
        node = nodes[slots[k]]
        node.height = height_of(node.id)
        below = NOTHING
        while depth and nodes[slots[path[depth - 1]]].height < node.height:
            depth -= 1
            below = slots[path[depth]]
        node.left, node.right = below, NOTHING
        node.before = k - (path[depth - 1] + 1 if depth else 0)
        link(nodes, head, slots[path[depth - 1]] if depth else NOTHING, False, slots[k])
        path[depth] = k
        depth += 1
    if not len(slots):
        head[0] = NOTHING
    head[1] = len(slots)
