"""Exact ranks beside a sorted list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.index.ranks import NOTHING, Ranks

MOST = 1e300


class Naive:
    """Slot -> (priority, id)."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[float, int]] = {}

    def ranked(self) -> list[int]:
        return sorted(self.entries, key=lambda slot: (-self.entries[slot][0], -self.entries[slot][1]))


def check(ranks: Ranks, naive: Naive) -> int:
    """Order, counts and shape of the tree; its depth."""
    assert len(ranks) == len(naive.entries)
    assert ranks.at(np.arange(len(ranks))).tolist() == naive.ranked()
    places = {slot: rank for rank, slot in enumerate(naive.ranked())}
    slots = np.arange(len(ranks._nodes))
    assert ranks.ranks(slots).tolist() == [places.get(slot, -1) for slot in slots.tolist()]
    nodes = ranks._nodes

    def size(at: int, above: int) -> tuple[int, int]:
        if at == NOTHING:
            return 0, 0
        assert 0 < nodes["height"][at] <= above
        left, depth = size(nodes["left"][at], nodes["height"][at])
        right, other_depth = size(nodes["right"][at], nodes["height"][at])
        assert nodes["before"][at] == left
        return left + right + 1, 1 + max(depth, other_depth)

    count, depth = size(int(ranks._head[0]), 1 << 31)
    assert count == len(ranks)
    return depth


@settings(max_examples=examples(150), deadline=None)
@given(slots=st.sampled_from([1, 2, 3, 10, 60, 200]), seed=st.integers(0, 2**32 - 1), ties=st.booleans())
def test_random_changes(slots: int, seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    ranks, naive, next_id = Ranks(slots), Naive(), 0
    for _ in range(25):
        free = np.setdiff1d(np.arange(slots), list(naive.entries))
        held = np.array(sorted(naive.entries), np.int64)
        kind = rng.integers(3)
        if kind == 0 and len(free):
            chosen = rng.choice(free, rng.integers(1, len(free) + 1), replace=False)
            ids = rng.permutation(len(chosen)) + next_id
            next_id += len(chosen)
            priorities = values(rng, len(chosen), ties)
            if rng.random() < 0.5:
                ranks.add(chosen, ids, priorities)
            else:
                priorities[:] = priorities[0]
                ranks.add(chosen, ids, float(priorities[0]))
            added = zip(chosen.tolist(), priorities.tolist(), ids.tolist(), strict=True)
            naive.entries.update({slot: (p, each) for slot, p, each in added})
        elif kind == 1:
            chosen = rng.choice(slots, rng.integers(0, slots // 2 + 1), replace=False)
            ranks.remove(chosen)
            naive.entries = {slot: entry for slot, entry in naive.entries.items() if slot not in chosen}
        elif kind == 2 and len(held):
            chosen = np.where(rng.random(9) < 0.1, -1, rng.choice(held, 9))
            priorities = values(rng, 9, ties)
            last = {slot: p for slot, p in zip(chosen.tolist(), priorities.tolist(), strict=True) if slot >= 0}
            largest, left_out = np.zeros(1), np.zeros(1, np.int64)
            assert ranks.update(largest, left_out, chosen, priorities, MOST) == -1
            assert (largest[0], left_out[0]) == (max(last.values(), default=0), (chosen < 0).sum())
            naive.entries.update({slot: (p, naive.entries[slot][1]) for slot, p in last.items()})
        check(ranks, naive)
    kept = [naive.entries[slot][0] if slot in naive.entries else -1.0 for slot in range(slots)]
    assert ranks.priorities(np.arange(slots)).tolist() == kept


def values(rng: np.random.Generator, count: int, ties: bool) -> np.ndarray:
    return rng.integers(3, size=count) / 2 if ties else rng.exponential(size=count)


@pytest.mark.parametrize("pattern", ["equal", "ascending", "descending", "random"])
@pytest.mark.parametrize("at_once", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_depth_is_logarithmic_whatever_the_order(pattern: str, at_once: bool) -> None:
    count = 20_000
    patterns = {
        "equal": np.ones(count),
        "ascending": np.arange(count, dtype=float),
        "descending": -np.arange(count, dtype=float) + count,
        "random": np.random.default_rng(0).random(count),
    }
    ranks, naive = Ranks(count), Naive()
    priorities = patterns[pattern]
    steps = [np.arange(count)] if at_once else np.split(np.arange(count), np.arange(100, count, 11))
    for slots in steps:
        ranks.add(slots, slots, priorities[slots])
    naive.entries = {slot: (float(p), slot) for slot, p in enumerate(priorities)}
    assert check(ranks, naive) < 4 * math.log2(count)


@pytest.mark.parametrize(("slot", "priority"), [(-2, 1.0), (3, 1.0), (1, np.nan), (1, np.inf), (1, 2e300)])
def test_an_update_with_one_wrong_entry_changes_nothing(slot: int, priority: float) -> None:
    ranks = Ranks(5)
    ranks.add(np.arange(3), np.arange(3), np.array([1.0, 2.0, 3.0]))
    before = ranks._nodes.tobytes()
    largest, left_out = np.zeros(1), np.zeros(1, np.int64)
    wrong = ranks.update(largest, left_out, np.array([0, -1, slot, 2]), np.array([9.0, 1.0, priority, 9.0]), MOST)
    assert (wrong, largest[0], left_out[0]) == (2, 0, 0)
    assert ranks._nodes.tobytes() == before


def test_growing_keeps_entries() -> None:
    ranks, naive = Ranks(0), Naive()
    for slots in (3, 4, 100):
        ranks.grow(slots)
        new = np.arange(len(naive.entries), slots)
        ranks.add(new, new, new / 7)
        naive.entries.update({slot: (slot / 7, slot) for slot in new.tolist()})
        check(ranks, naive)
