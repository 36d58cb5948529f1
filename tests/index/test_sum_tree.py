"""The sum tree beside a plain array of masses."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from helpers.effort import examples
from helpers.held_trees import HeldMasses
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.index.slots import EVICTED
from diskreplay.index.sum_tree import WideSumTree

SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 100, 511, 513, 4097]
JUST_BELOW_1 = np.nextafter(1.0, 0.0)


def filled(size: int, masses: np.ndarray) -> WideSumTree:
    tree = WideSumTree(size)
    tree.fill(np.arange(size), masses)
    return tree


def whole(tree: WideSumTree, size: int, alpha: float = 1.0, epsilon: float = 0.0) -> HeldMasses:
    return HeldMasses(tree.core, [(0, size)], (alpha, epsilon, 1e-280, 1e140))


def masses_of(size: int, seed: int, zeros: float) -> np.ndarray:
    rng = np.random.default_rng(seed)
    masses = rng.exponential(size=size) * 10.0 ** rng.integers(-8, 8, size)
    masses[rng.random(size) < zeros] = 0
    masses[rng.integers(size)] = 1.0
    return masses


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("zeros", [0.0, 0.5, 0.99])
def test_draws_find_the_leaf_in_which_a_share_falls(size: int, zeros: float) -> None:
    masses = masses_of(size, size, zeros)
    tree = filled(size, masses)
    uniforms = np.random.default_rng(1).random(200)
    slots, weights = whole(tree, size).draw(uniforms, 0.4)
    ends = np.cumsum(masses)
    shares = (np.arange(200) + uniforms) / 200 * ends[-1]
    low, high = (np.searchsorted(ends, shares + nudge * ends[-1], side="right") for nudge in (-1e-12, 1e-12))
    assert ((low <= slots) & (slots <= high)).all()
    assert (masses[slots] > 0).all()
    np.testing.assert_allclose(weights, (masses[masses > 0].min() / masses[slots]) ** 0.4, rtol=1e-6)
    np.testing.assert_allclose(tree.total, ends[-1])


@settings(max_examples=examples(300), deadline=None)
@given(size=st.integers(1, 700), seed=st.integers(0, 2**32 - 1), zeros=st.sampled_from([0.0, 0.3, 0.9, 0.999]))
def test_the_ends_of_slices_never_give_an_empty_leaf(size: int, seed: int, zeros: float) -> None:
    masses = masses_of(size, seed, zeros)
    held = whole(filled(size, masses), size)
    with_mass = np.flatnonzero(masses)
    for count in (1, 3, 256):
        first, _ = held.draw(np.zeros(count), 0.0)
        last, _ = held.draw(np.full(count, JUST_BELOW_1), 0.0)
        past, _ = held.draw(np.full(count, 1.0 + 1e-9), 0.0)  # what no generator gives, but rounding might
        assert (masses[np.concatenate([first, last, past])] > 0).all()
        assert first[0] == with_mass[0]
        assert past[-1] == with_mass[-1]


@settings(max_examples=examples(200), deadline=None)
@given(size=st.sampled_from(SIZES), seed=st.integers(0, 2**32 - 1), zeros=st.sampled_from([0.0, 0.5, 0.97]))
def test_draws_from_ranges_are_those_of_trees_of_their_own(size: int, seed: int, zeros: float) -> None:
    """Whatever stands beside them: here masses of 1e200, in whose sums all others are lost."""
    rng = np.random.default_rng(seed)
    masses = masses_of(size, seed, zeros)
    cuts = np.unique(np.concatenate([[0, size], rng.integers(size, size=6)]))
    bounds = [pair for pair in itertools.pairwise(cuts) if rng.random() < 0.7 and masses[slice(*pair)].any()]
    inside = np.zeros(size, bool)
    for start, stop in bounds:
        inside[start:stop] = True
    masses[~inside] = 1e200
    tree, uniforms = filled(size, masses), rng.random((len(bounds), 40))
    uniforms[:, 0], uniforms[:, -1] = 0.0, JUST_BELOW_1
    ranges = np.array([(*pair, 9) for pair in bounds], np.int64).reshape(-1, 3)
    np.testing.assert_allclose(tree.totals(ranges), [masses[slice(*pair)].sum() for pair in bounds], rtol=1e-12)
    if not bounds:
        return
    slots, weights = HeldMasses(tree.core, bounds).draw(uniforms.ravel(), 0.7)
    slots, weights = slots.reshape(-1, 40), weights.reshape(-1, 40)
    for k, (start, stop) in enumerate(bounds):
        own = masses[start:stop]
        ends, shares = np.cumsum(own), (np.arange(40) + uniforms[k]) / 40 * own.sum()
        low, high = (np.searchsorted(ends, shares + nudge * ends[-1], side="right") for nudge in (-1e-12, 1e-12))
        assert ((low <= slots[k] - start) & (slots[k] - start <= high)).all()
        assert (masses[slots[k]] > 0).all()
        np.testing.assert_allclose(weights[k], (own[own > 0].min() / masses[slots[k]]) ** 0.7, rtol=1e-6)


def test_an_update_raises_the_maximum_of_each_range() -> None:
    tree = filled(20, np.ones(20))
    held = HeldMasses(tree.core, [(0, 4), (4, 11), (15, 20)], (1.0, 0.25, 1e-280, 1e140), [3.0, 5.0, 0.5])
    assert held.update([16, 0, 10, 3, -1, 4, 3, 19], [0.25, 4, 2, 90, 99, 5.5, 1, 0.75]) == -1
    assert held.counts.tolist() == [1, 0]
    assert held.maxima.tolist() == [4.25, 5.75, 1.0]


def test_masses_of_very_different_size() -> None:
    masses = np.array([1e-280, 0, 1e280, 0, 1e-280, 0, 0, 0, 0, 1e-280])
    held = whole(filled(10, masses), 10)
    assert set(held.draw(np.full(8, JUST_BELOW_1), 0.0)[0].tolist()) == {2, 9}, "rounding leads past the large one"
    assert (masses[held.draw(np.random.default_rng(0).random(100), 0.0)[0]] > 0).all()


@settings(max_examples=examples(100), deadline=None)
@given(size=st.sampled_from(SIZES), seed=st.integers(0, 2**32 - 1))
def test_changes_in_any_order_make_the_tree_that_its_leaves_make(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, masses = WideSumTree(size), np.zeros(size)
    for _ in range(12):
        if rng.random() < 0.5:
            slots = rng.choice(size, rng.integers(1, size + 1), replace=False)
            values = rng.exponential(size=len(slots)) * (rng.random(len(slots)) < 0.8)
            tree.fill(slots, values)
            masses[slots] = values
        else:
            known = np.flatnonzero(masses)
            slots = rng.choice(known, rng.integers(1, 40)) if len(known) else np.empty(0, np.int64)
            slots[rng.random(len(slots)) < 0.1] = EVICTED
            priorities = np.round(rng.exponential(size=len(slots)), 2)
            held = whole(tree, size, 0.7, 0.01)
            wrong = held.update(slots, priorities)
            last = {int(slot): p for slot, p in zip(slots, priorities, strict=True) if slot >= 0}
            for slot, p in last.items():
                masses[slot] = (p + 0.01) ** 0.7
            assert (held.counts[0], wrong) == ((slots < 0).sum(), -1)
            assert held.maxima[0] == max([p + 0.01 for p in last.values()], default=0)
        np.testing.assert_allclose(tree.leaves[:size], masses, rtol=1e-14)
        fresh = filled(size, tree.leaves[:size].copy())
        assert fresh._sums.tobytes() == tree._sums.tobytes()
        assert fresh._mins.tobytes() == tree._mins.tobytes()


@pytest.mark.parametrize(("slot", "priority"), [(-2, 1.0), (3, 1.0), (1, np.nan), (1, np.inf), (1, 2e140)])
def test_an_update_with_one_wrong_entry_changes_nothing(slot: int, priority: float) -> None:
    tree = filled(5, np.array([1.0, 2.0, 3.0, 0.0, 5.0]))
    before, held = (tree._sums.tobytes(), tree._mins.tobytes()), whole(tree, 5)
    assert held.update([0, -1, slot, 2], [9.0, 1.0, priority, 9.0]) == 2
    assert (tree._sums.tobytes(), tree._mins.tobytes(), held.maxima[0], held.counts[0]) == (*before, 0, 0)


@pytest.mark.parametrize("sizes", [(0, 1), (0, 9), (5, 6), (8, 600), (600, 601)])
def test_growing_keeps_leaves_and_draws(sizes: tuple[int, int]) -> None:
    small, large = sizes
    tree = filled(small, masses_of(max(small, 1), 4, 0.2)[:small])
    uniforms = np.random.default_rng(0).random(50)
    before = whole(tree, small).draw(uniforms, 0.5) if small else None
    tree = tree.grown(large)
    assert len(tree.leaves) >= large
    if before is not None:
        after = whole(tree, small).draw(uniforms, 0.5)
        assert [part.tobytes() for part in before] == [part.tobytes() for part in after]
    tree.fill(np.array([large - 1]), np.array([1e20]))
    assert whole(tree, large).draw(uniforms, 0.5)[0][-1] == large - 1


@pytest.mark.parametrize("way", [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))], ids=["copy", "pickle"])
def test_a_copy_goes_on_by_itself(way: Callable[[WideSumTree], WideSumTree]) -> None:
    """Regression: a dataset over a sampler with priorities could not be pickled for a loader's processes."""
    tree = filled(100, masses_of(100, 3, 0.0))
    before = tree.leaves.copy()
    other = way(tree)
    other.fill(np.arange(50), np.full(50, 2.0))
    np.testing.assert_array_equal(tree.leaves, before)
    np.testing.assert_array_equal(other.leaves, [*[2.0] * 50, *before[50:]])
    assert other.total == filled(100, other.leaves[:100]).total
    np.testing.assert_array_equal(other.totals(np.array([[0, 100, 0]])), [other.total])
