"""Exact ranks of many priorities. A query or a change takes O(log n) expected steps.

How the tree works stands in native/ranks.h. New entries, removals, updates and draws are those of
:class:`diskreplay.native.core.Ranked`.
"""

from __future__ import annotations

import numpy as np

from diskreplay.checks import Floats, Ints
from diskreplay.native import core

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


class Ranks:
    """The ranks of priorities at up to ``slots`` slots.

    No slot has an entry at first. A slot takes memory once it has been written.

    Attributes:
        nodes: the nodes, one for each slot.
        head: the root and the number of entries.
    """

    def __init__(self, slots: int) -> None:
        self.nodes = np.zeros(slots, NODE)
        self.head = np.array([NOTHING, 0])

    def __len__(self) -> int:
        """Return the number of entries."""
        return int(self.head[1])

    def grown(self, slots: int) -> Ranks:
        """Return ranks with room for ``slots`` slots; entries keep their slots, all of which take memory then."""
        if slots <= len(self.nodes):
            return self
        larger = Ranks(max(slots, 2 * len(self.nodes)))
        larger.nodes[: len(self.nodes)] = self.nodes
        larger.head[:] = self.head
        return larger

    def fill(self, slots: Ints, ids: Ints, priorities: Floats) -> None:
        """Add entries, of which there are none yet."""
        self.nodes["priority"][slots] = priorities
        self.nodes["id"][slots] = ids
        core.build_ranks(self.nodes, self.head, slots[np.lexsort((-ids, -priorities))])

    def ranks(self, slots: Ints) -> Ints:
        """Return the ranks, counted from 0, of the entries at slots, or -1 for a slot without one."""
        return core.find_ranks(self.nodes, self.head, slots)

    def priorities(self, slots: Ints) -> Floats:
        """Return the priorities at slots, or -1 for a slot without an entry."""
        nodes = self.nodes  # indexing single fields copies fewer bytes than indexing whole nodes
        return np.where(nodes["height"][slots] > 0, nodes["priority"][slots], -1.0)
