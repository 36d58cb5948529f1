"""Exact ranks beside a sorted list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.effort import examples
from helpers.held_trees import HeldRanks
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.index.ranks import NOTHING, Ranks
from diskreplay.index.slots import FIRST, LOCAL, STOP

MOST = 1e300


class Naive:
    """Slot -> (priority, id)."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[float, int]] = {}

    def ranked(self) -> list[int]:
        return sorted(self.entries, key=lambda slot: (-self.entries[slot][0], -self.entries[slot][1]))


def check(held: HeldRanks, naive: Naive) -> int:
    """Order, counts and shape of the tree; its depth."""
    ranks = held.ranks
    assert len(ranks) == len(naive.entries)
    assert held.ordered() == naive.ranked()
    places = {slot: rank for rank, slot in enumerate(naive.ranked())}
    slots = np.arange(len(ranks.nodes))
    assert ranks.ranks(slots).tolist() == [places.get(slot, -1) for slot in slots.tolist()]
    nodes = ranks.nodes

    def size(at: int, above: int) -> tuple[int, int]:
        if at == NOTHING:
            return 0, 0
        assert 0 < nodes["height"][at] <= above
        left, depth = size(nodes["left"][at], nodes["height"][at])
        right, other_depth = size(nodes["right"][at], nodes["height"][at])
        assert nodes["before"][at] == left
        return left + right + 1, 1 + max(depth, other_depth)

    count, depth = size(int(ranks.head[0]), 1 << 31)
    assert count == len(ranks)
    return depth


@settings(max_examples=examples(150), deadline=None)
@given(slots=st.sampled_from([1, 2, 3, 10, 60, 200]), seed=st.integers(0, 2**32 - 1), ties=st.booleans())
def test_random_changes(slots: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    bounds = [(k * slots, (k + 1) * slots) for k in range(3)]
    held, naive = HeldRanks(Ranks(3 * slots), bounds, MOST), Naive()
    for _ in range(25):
        stream = int(rng.integers(3))
        first, stop = held.table[stream, [FIRST, STOP]].tolist()
        kind = rng.integers(3)
        if kind < 2:
            back, share = rng.random() < 0.1, rng.random()
            now_first = int(rng.integers(slots + 1)) if back else first + int(rng.integers(slots // 2 + 1))
            now_stop = int(rng.integers(now_first if back else max(stop, now_first), now_first + slots + 1))
            anew = now_first < first or now_stop < stop

            def now(ids: np.ndarray, share: float = share) -> np.ndarray:
                return ids % 101 / 101 <= share

            held.follow(stream, now_first, now_stop, now)
            known = range(0) if anew else range(now_first, stop)
            for slot in [slot for slot in naive.entries if slot // slots == stream]:
                if naive.entries[slot][1] & LOCAL not in known:
                    del naive.entries[slot]
            for number in range(now_first if anew else max(now_first, stop), now_stop):
                each = (stream << 48) + number
                if now(np.array([each]))[0]:
                    naive.entries[stream * slots + number % slots] = float(held.maxima[0]), each
        elif naive.entries:
            chosen = rng.choice(sorted(naive.entries), 9)
            ids = np.array([naive.entries[slot][1] for slot in chosen.tolist()])
            evicted = rng.random(9) < 0.1
            windows = held.table[ids >> 48, FIRST]
            ids = np.where(evicted & (windows > 0), ids >> 48 << 48, ids)
            chosen = np.where(evicted & (windows > 0), -1, chosen)
            priorities = values(rng, 9, ties)
            last = {slot: p for slot, p in zip(chosen.tolist(), priorities.tolist(), strict=True) if slot >= 0}
            before, left_out = held.maxima[0], held.counts[0]
            assert held.held.update(ids, priorities) == -1
            assert held.maxima[0] == max([before, *last.values()])
            assert held.counts[0] == left_out + (chosen < 0).sum()
            naive.entries.update({slot: (p, naive.entries[slot][1]) for slot, p in last.items()})
        check(held, naive)
    kept = [naive.entries[slot][0] if slot in naive.entries else -1.0 for slot in range(3 * slots)]
    assert held.ranks.priorities(np.arange(3 * slots)).tolist() == kept


def values(rng: np.random.Generator, count: int, ties: bool) -> np.ndarray:
    return rng.integers(3, size=count) / 2 if ties else rng.exponential(size=count)


@pytest.mark.parametrize("pattern", ["equal", "ascending", "descending", "random"])
@pytest.mark.parametrize("way", ["filled", "updated", pytest.param("entered", marks=pytest.mark.long)])
def test_the_depth_is_logarithmic_whatever_the_order(pattern: str, way: str) -> None:
    count = 20_000
    patterns = {
        "equal": np.ones(count),
        "ascending": np.arange(count, dtype=float),
        "descending": -np.arange(count, dtype=float) + count,
        "random": np.random.default_rng(0).random(count),
    }
    ranks, naive, slots = Ranks(count), Naive(), np.arange(count)
    priorities = patterns[pattern]
    held = HeldRanks(ranks, [(0, count)], MOST)
    if way == "filled":
        held.table[:, STOP] = count
        ranks.fill(slots, slots, priorities)
    else:
        for stop in [count] if way == "updated" else range(100, count + 1, 100):
            held.follow(0, 0, stop)
        assert held.held.update(slots, priorities) == -1
    naive.entries = {slot: (float(p), slot) for slot, p in enumerate(priorities)}
    assert check(held, naive) < 4 * math.log2(count)


@pytest.mark.parametrize(("each", "priority"), [(9, 1.0), (3, 1.0), (1, np.nan), (1, np.inf), (1, 2e300)])
def test_an_update_with_one_wrong_entry_changes_nothing(each: int, priority: float) -> None:
    ranks = Ranks(5)
    held = HeldRanks(ranks, [(0, 5)], MOST)
    held.follow(0, 0, 4, lambda ids: ids < 3)
    assert held.held.update(np.arange(3), np.array([1.0, 2.0, 3.0])) == -1
    before = ranks.nodes.tobytes(), held.maxima.tolist(), held.counts.tolist()
    assert held.held.update(np.array([0, 2, each, 2]), np.array([9.0, 1.0, priority, 9.0])) == 2
    assert (ranks.nodes.tobytes(), held.maxima.tolist(), held.counts.tolist()) == before


def test_growing_keeps_entries() -> None:
    ranks, naive = Ranks(3), Naive()
    priorities = np.array([2.0, 3.0, 1.0])
    ranks.fill(np.arange(3), np.arange(3), priorities)
    naive.entries.update({slot: (float(p), slot) for slot, p in enumerate(priorities)})
    for slots in (3, 4, 100):
        larger = ranks.grown(slots)
        held = HeldRanks(larger, [(0, slots)], MOST)
        held.table[:, STOP] = 3
        check(held, naive)
        held.follow(0, 0, min(slots, 9))
        assert (len(ranks), len(larger)) == (3, min(slots, 9))
