"""Trees as the core holds them, over streams of one lane each, stream k's being group k.

The windows of masses are full: each slot holds an id. They begin where the numbers of ids are as many as slots, so that
an id of a lower number has left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from diskreplay.index.ranks import Ranks
from diskreplay.index.slots import EVICTED, FIRST, STOP, to_slots
from diskreplay.native import core

Bounds = Sequence[tuple[int, int]]
"""The slots ``[start, stop)`` of each stream, ascending."""


def table_of(bounds: Bounds) -> np.ndarray:
    rows = [
        (stream, start, 1, stop - start, stop - start, 2 * (stop - start), stop - start, stream)
        for stream, (start, stop) in enumerate(bounds)
    ]
    return np.array(rows, np.int64).reshape(-1, 8)


def ids_of(table: np.ndarray, slots: Sequence[int] | np.ndarray) -> np.ndarray:
    """The ids in slots; of slot -1 one that has left the window of stream 0, of others an unknown one."""

    def id_of(slot: int) -> int:
        for stream, base, _, rows, first, *_ in table.tolist():
            if base <= slot < base + rows:
                return int((stream << 48) + first + slot - base)
        return 0 if slot == EVICTED else 1 << 47

    return np.array([id_of(int(slot)) for slot in slots], np.int64)


class HeldMasses:
    """Masses; ``power`` has alpha, epsilon, the least mass, and the largest priority."""

    def __init__(
        self, tree: core.Tree, bounds: Bounds, power: tuple[float, float, float, float] = (1.0, 0.0, 1e-280, 1e140),
        maxima: Sequence[float] = (),
    ) -> None:  # fmt: skip
        self.maxima = np.array(maxima) if maxima else np.zeros(max(1, len(bounds)))
        self.counts, self.table = np.zeros(2, np.int64), table_of(bounds)
        none = np.empty(0, np.int64)
        self.held = core.Masses(self.table, none, self.maxima, self.counts, tree, True, power)

    def draw(self, uniforms: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
        """Slots and weights."""
        ids, weights = self.held.draw(uniforms, len(uniforms), beta)
        return to_slots(self.table, ids), weights

    def update(self, slots: Sequence[int] | np.ndarray, priorities: Sequence[float] | np.ndarray) -> int:
        return self.held.update(ids_of(self.table, slots), np.asarray(priorities, np.float64))


class HeldRanks:
    """Ranks, all of the same mass; no slot has an entry at first, and the windows begin at number 0 and are empty."""

    def __init__(self, ranks: Ranks, bounds: Bounds, most: float) -> None:
        self.ranks, self.table = ranks, table_of(bounds)
        self.table[:, FIRST] = self.table[:, STOP] = 0
        self.maxima, self.counts = np.ones(len(bounds)), np.zeros(2, np.int64)
        masses = np.arange(1.0, len(ranks.nodes) + 1)
        none = np.empty(0, np.int64)
        self.held = core.Ranked(
            self.table, none, self.maxima, self.counts, ranks.nodes, ranks.head, masses, (0.0, 0, most)
        )

    def follow(self, stream: int, first: int, stop: int, now: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """Move a window; ``now`` tells which of its new ids get an entry, None that all do."""
        spans = self.table[:, FIRST : STOP + 1].copy()
        spans[stream] = first, stop
        self.held.follow(spans, lambda ids: (np.ones(len(ids), bool) if now is None else now(ids)).astype(np.int8))

    def ordered(self) -> list[int]:
        """The slots of all entries in the order of ranks, which are drawn one by one."""
        count = len(self.ranks)
        ids, _ = self.held.draw(np.full(count, 0.5), count, 0.0)
        return to_slots(self.table, ids).tolist()
