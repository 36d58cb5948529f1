"""`compat.notebook` against plain lists, with a stand-in for torch; the real one is in ``tests/interop``."""

from __future__ import annotations

import gc
import math
import pathlib
import random
import sys
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die

from diskreplay import ReplayBuffer
from diskreplay.compat import notebook
from diskreplay.compat.notebook import Proportion_Replay_Buffer, Rank_Replay_Buffer, Replay_Buffer, SumTree
from diskreplay.errors import InputError, NotEnoughDataError, SamplerWarning, StateError


class Tensor:
    """As much of a tensor as the module uses; ``made`` says that it was made of an array and converted."""

    def __init__(self, array: np.ndarray) -> None:
        assert isinstance(array, np.ndarray)
        assert array.flags["C_CONTIGUOUS"]
        self.array = array

    def float(self) -> np.ndarray:
        return self.array.astype(np.float32)

    def long(self) -> np.ndarray:
        return self.array.astype(np.int64)


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(0)  # which draws come from, where no seed is given
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(from_numpy=Tensor))


KINDS: dict[str, tuple[Any, Any]] = {
    "vectors": ((5,), ()), "as the notebook's": ((5,), (1,)), "rows": ((1, 5), (1, 1)), "numbers": ((), (2,)),
    "images": ((3, 4, 2), ()),
}  # fmt: skip


def transition(rng: np.random.Generator, kind: str, dtype: Any = np.float64) -> tuple[Any, ...]:
    shape, acted = KINDS[kind]
    states = [rng.integers(0, 256, shape).astype(dtype) for _ in range(2)]
    if dtype == np.float64:
        states = [state / 7 for state in states]
    reward = rng.normal() if kind == "vectors" else rng.normal(size=1)
    return states[0], rng.integers(0, 4, acted), reward, states[1], bool(rng.random() < 0.2)


def stacked(held: list[Any]) -> list[np.ndarray]:
    """Five arrays of transitions, as the notebook makes them."""
    columns: list[Any] = [np.vstack([each[at] for each in held]) for at in range(5)]
    types_ = (np.float32, np.int64, np.float32, np.float32, np.float32)
    return [column.astype(dtype) for column, dtype in zip(columns, types_, strict=True)]


def same(found: Any, held: list[Any]) -> None:
    for mine, wanted in zip(found, stacked(held), strict=True):
        assert (mine.dtype, mine.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_array_equal(mine, wanted)


class Oracle:
    """Transitions in a list, errors in a dict; probabilities from their definitions."""

    def __init__(self, capacity: int, ranked: bool) -> None:
        self.capacity, self.ranked = capacity, ranked
        self.all: list[Any] = []
        self.errors: dict[int, float] = {}
        """By number, not by place."""
        self.largest = 1.0
        self.drawn: dict[int, int] = {}

    def remember(self, *given: Any) -> None:
        self.errors[len(self.all)] = self.largest if self.ranked else 1.0
        self.all.append(given)
        self.errors.pop(len(self.all) - 1 - self.capacity, None)

    def newest(self, place: int) -> int:
        return max(number for number in self.errors if number % self.capacity == place)

    def insert(self, error: float, place: int) -> None:
        number = self.drawn.get(place, self.newest(place))
        if number in self.errors:
            self.errors[number] = abs(error)
            self.largest = max(self.largest, abs(error))

    @property
    def order(self) -> list[int]:
        return sorted(self.errors, key=lambda number: (-self.errors[number], -number))

    def chances(self) -> dict[int, float]:
        """By place."""
        if self.ranked:
            weights = {number: (rank + 1.0) ** -0.5 for rank, number in enumerate(self.order)}
        else:
            weights = {number: (error + 0.05) ** 0.5 for number, error in self.errors.items()}
        total = math.fsum(weights.values())
        return {number % self.capacity: weight / total for number, weight in weights.items()}


CLASSES: dict[str, Any] = {"proportion": Proportion_Replay_Buffer, "rank": Rank_Replay_Buffer}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLASSES)
def test_priorities_like_lists(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    rng, capacity, size = np.random.default_rng(len(kind)), 11, 4

    def make() -> Any:
        return CLASSES[name](capacity, size, path=tmp_path / "s", chunk_rows=4)

    buffer, oracle = make(), Oracle(capacity, name == "rank")
    dtype = np.uint8 if kind == "images" else np.float64
    for number in range(120):
        given = transition(rng, kind, dtype)
        buffer.remember(*given)
        oracle.remember(*given)
        assert (len(buffer), buffer.ind_max) == (min(len(oracle.all), capacity), len(oracle.all))
        if len(buffer) < size:
            continue
        if rng.random() < 0.5:
            places, *found, probs = buffer.sample(size)
            assert isinstance(places, list)
            assert all(isinstance(place, int) for place in places)
            same(found, [oracle.all[oracle.newest(place)] for place in places])
            assert (probs.shape, probs.dtype) == ((size, 1), np.float32)
            chances = oracle.chances()
            np.testing.assert_allclose(probs[:, 0], [chances[place] for place in places], rtol=1e-5)
            oracle.drawn = {place: oracle.newest(place) for place in places}
            waits = int(rng.integers(0, 3)) if number < 100 else 0
            for _ in range(waits):
                late = transition(rng, kind, dtype)
                buffer.remember(*late)
                oracle.remember(*late)
            errors = rng.normal(size=size) * rng.choice([1.0, 3.0])
            for place, error in zip(places, errors, strict=True):
                buffer.insert(error if place % 2 else np.array([error]), place)
                oracle.insert(float(error), place)
        if rng.random() < 0.3:
            check(buffer, oracle)
        if number in (40, 77):
            if number == 40:
                buffer.close()
            else:
                del buffer
                gc.collect()
            buffer = make()
            oracle.drawn = {}
            check(buffer, oracle)
    buffer.close()


def check(buffer: Any, oracle: Oracle) -> None:
    capacity, chances = oracle.capacity, oracle.chances()
    if oracle.ranked:
        wanted = [(-oracle.errors[number], number % capacity) for number in oracle.order]
        assert buffer.errors == wanted
        places = [place for _, place in wanted]
        assert buffer.memory_to_rank == [places.index(at) if at in places else None for at in range(capacity)]
        assert buffer.total_weights == pytest.approx(sum((rank + 1) ** -0.5 for rank in range(len(wanted))))
        assert len(buffer.cumulated_weights) == len(wanted)
    else:
        leaves = np.array(buffer.weights.vals[capacity - 1 :])
        total = buffer.weights.vals[0]
        np.testing.assert_allclose(leaves / total, [chances.get(at, 0.0) for at in range(capacity)], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_uniform_like_a_list(kind: str, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(5)
    buffer = Replay_Buffer(7, path=tmp_path / "s")
    held: list[Any] = [None] * 7
    seen: set[bytes] = set()
    for number in range(60):
        given = transition(rng, kind)
        buffer.remember(*given)
        held[number % 7] = given
        assert (len(buffer), buffer.ind_max) == (min(number + 1, 7), number + 1)
        count = int(rng.integers(1, len(buffer) + 1))
        found = buffer.sample(count)
        assert isinstance(found, tuple)
        known = {stacked([each])[2].tobytes(): each for each in held if each is not None}
        drawn = [reward.tobytes() for reward in found[2]]
        assert len({*drawn}) == count
        same(found, [known[key] for key in drawn])
        seen.update(drawn)
        if number == 30:
            buffer.close()
            buffer = Replay_Buffer(7, path=tmp_path / "s")
    assert len(seen) >= 55
    memory: Any = buffer.memory
    for place, each in enumerate(held):
        state, action, reward, following, done = memory[place]
        np.testing.assert_array_equal(state, each[0].astype(np.float32))
        np.testing.assert_array_equal(action, each[1])
        np.testing.assert_array_equal(following, each[3].astype(np.float32))
        assert (reward, done) == (np.float32(each[2]), each[4])
    assert (len(buffer.memory), len(buffer.memory[-2:])) == (7, 2)
    buffer.close()


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.long
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("size", [1, 6])
def test_draws_follow_the_probabilities(name: str, size: int) -> None:
    rng = np.random.default_rng(3)
    buffer, oracle = CLASSES[name](24, size, seed=2), Oracle(24, name == "rank")
    for _ in range(40):
        given = transition(rng, "vectors")
        buffer.remember(*given)
        oracle.remember(*given)
    for place in range(0, 24, 2):
        error = float(rng.exponential(2.0)) * (-1) ** place
        buffer.insert(error, place)
        oracle.insert(error, place)
    draws = 12_000 // size
    counts = np.bincount(np.concatenate([buffer.sample(size)[0] for _ in range(draws)]), minlength=24)
    expected = np.array([oracle.chances()[place] for place in range(24)]) * draws * size
    # 23 degrees of freedom; slices only make counts steadier. 99.9 % of 23 is 49.7.
    assert chi_square(counts, expected) < 49.7
    assert counts.min() > 0


def test_uniform_draws_are_uniform() -> None:
    buffer = Replay_Buffer(10, seed=0)
    for number in range(13):
        buffer.remember([number], 0, number, [number], False)
    counts = np.bincount(np.concatenate([buffer.sample(3)[2][:, 0].astype(int) for _ in range(2000)]), minlength=13)
    assert not counts[:3].any()
    assert chi_square(counts[3:], np.full(10, 600.0)) < 27.9  # 99.9 % of 9


def test_the_same_seed_draws_the_same_and_goes_on(tmp_path: pathlib.Path) -> None:
    def play(path: Any, reopen: bool) -> list[list[int]]:
        buffer, found = Proportion_Replay_Buffer(16, seed=7, path=path), []
        for number in range(30):
            buffer.remember([number], 1, 0.0, [number + 1], False)
            found.append(buffer.sample(4)[0])
            if reopen and number == 20:
                buffer.close()
                buffer = Proportion_Replay_Buffer(16, path=path)
        buffer.close()
        return found

    assert play(tmp_path / "a", False) == play(tmp_path / "b", True) == play(None, False)


def test_late_errors_do_not_go_to_another_transition() -> None:
    buffer = Rank_Replay_Buffer(4, 4, seed=1)
    for number in range(4):
        buffer.remember([number], 0, number, [number], False)
    places = buffer.sample()[0]
    while 0 not in places:
        places = buffer.sample()[0]
    for place in range(4):
        buffer.insert(0.5, place)
    buffer.remember([4], 0, 4, [4], False)  # in place 0
    for place in places:
        buffer.insert(9.0, place)
    assert (-1.0, 0) in buffer.errors
    assert buffer.store is not None
    assert buffer.store.sampler.ignored_updates == 1  # type: ignore[attr-defined]
    while 0 not in buffer.sample()[0]:
        pass
    buffer.insert(0.25, 0)
    assert buffer.errors[-1] == (-0.25, 0)


def test_ranks_need_no_second_call() -> None:
    buffer = Rank_Replay_Buffer(6, 3)
    for number in range(6):
        buffer.remember([number], 0, number, [number], False)
    for _ in range(10):
        buffer.sample()
    assert len(buffer.errors) == 6
    buffer.insert(2.0, 3)
    buffer.insert(0.1, 3)
    buffer.pop(3)
    buffer.update_segments()
    assert buffer.errors[-1] == (-0.1, 3)
    assert len(buffer.errors) == 6


def test_the_largest_error_of_all_counts_for_new_transitions() -> None:
    buffer = Rank_Replay_Buffer(6, 3)
    for number in range(3):
        buffer.remember([number], 0, number, [number], False)
    buffer.insert(-3.0, 1)
    buffer.insert(0.5, 1)
    buffer.remember([3], 0, 3, [3], False)
    assert buffer.errors == [(-3.0, 3), (-1.0, 2), (-1.0, 0), (-0.5, 1)]


def test_segments() -> None:
    buffer = Rank_Replay_Buffer(7, 3)
    assert (buffer.segments, buffer.errors, buffer.total_weights) == ([-1, None, None, None], [], 0.0)
    for number in range(7):
        buffer.remember([number], 0, 0.0, [number], False)
        if number == 2:
            assert buffer.segments == [-1, 0, 1, 2]
    assert buffer.segments == [-1, 1, 3, 6]  # the notebook's own
    assert len(buffer.sample(99)[0]) == 3


def test_wrong_transitions_change_nothing() -> None:
    buffer = Proportion_Replay_Buffer(4)
    good: dict[str, Any] = {"state": [1.0, 2], "action": 1, "reward": 0, "next_state": [1.0, 2], "done": False}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"state": "x"}, "state must be numbers"),
        ({"next_state": True}, "the order is state, action, reward, next_state, done"),
        ({"state": [1e300, 2]}, r"state: 1e\+300 is too large for float32"),
        ({"next_state": [1.0, -1e39]}, r"next_state: -1e\+39 is too large for float32"),
        ({"action": 0.5}, "action must be whole"),
        ({"action": [math.nan]}, "action must be whole"),
        ({"action": 2.0**60}, "action must be whole"),
        ({"reward": math.inf}, "reward must be one finite"),
        ({"reward": [1, 2]}, "reward must be one finite"),
        ({"done": [0.0, 1.0]}, "done must be True or False"),
        ({"done": 2}, "done must be True or False"),
        ({"done": None}, "done must be True or False"),
    ]
    for first in (True, False):
        for change, message in wrong:
            with pytest.raises(InputError, match=message):
                buffer.remember(**{**good, **change})
            assert len(buffer) == (not first)
        assert (buffer.store is None) == first
        if first:
            buffer.remember(**good)
    with pytest.raises(InputError):
        buffer.remember([1.0], 1, 0, [1.0], False)
    with pytest.raises(InputError):
        buffer.remember([1.0, 2], [1, 1], 0, [1.0, 2], False)
    assert len(buffer) == 1
    images = Replay_Buffer(4)
    images.remember(np.zeros((2, 2), np.uint8), 0, 0, np.zeros((2, 2), np.uint8), True)
    with pytest.raises(InputError, match="must be uint8"):
        images.remember(np.zeros((2, 2)), 0, 0, np.zeros((2, 2), np.uint8), True)


def test_wrong_errors_change_nothing() -> None:
    for kind in CLASSES.values():
        buffer = kind(4, 1)
        with pytest.raises(InputError, match="index must be"):
            buffer.insert(0.5, 0)
        buffer.remember([0.0], 1, 0.0, [0.0], False)
        for error in (math.nan, math.inf, -math.inf, [1.0, 2.0], "x", None):
            with pytest.raises(InputError, match="error must be"):
                buffer.insert(error, 0)
        for index in (1, -1, 4, 0.0, None):
            with pytest.raises(InputError, match="index must be"):
                buffer.insert(0.5, index)
        assert buffer.sample(1)[-1].tolist() == [[1.0]]


def test_not_enough() -> None:
    for kind in (Replay_Buffer, Proportion_Replay_Buffer, Rank_Replay_Buffer):
        buffer: Any = kind(8, 4)
        with pytest.raises(NotEnoughDataError):
            buffer.sample(1)
        assert (len(buffer), buffer.ind_max, buffer.memory[3], buffer.store) == (0, 0, None, None)
        with pytest.raises(StateError):
            buffer.commit()
        buffer.close()
    uniform, ranked, proportion = Replay_Buffer(8), Rank_Replay_Buffer(8, 4), Proportion_Replay_Buffer(8)
    for buffer in (uniform, ranked, proportion):
        for _ in range(3):
            buffer.remember([0.0], 1, 0.0, [0.0], False)
    with pytest.raises(NotEnoughDataError, match="3 transitions"):
        uniform.sample(4)
    with pytest.raises(NotEnoughDataError, match="3 transitions"):
        ranked.sample(2)
    assert len(proportion.sample(5)[0]) == 5


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for kind in (Replay_Buffer, Proportion_Replay_Buffer, Rank_Replay_Buffer):
        buffer: Any = kind(8, 1)
        buffer.remember([0.0], 1, 0.0, [0.0], False)
        with pytest.raises(ModuleNotFoundError, match=r"diskreplay\[torch\]"):
            buffer.sample(1)


def test_constants_count_when_a_buffer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (notebook.EPSILON, notebook.ALPHA, notebook.TD_INIT) == (0.05, 0.5, 1)
    for name, value in (("EPSILON", 0.5), ("ALPHA", 1.0), ("TD_INIT", 3)):
        monkeypatch.setattr(notebook, name, value)
    buffer = Proportion_Replay_Buffer(4)
    buffer.remember([0.0], 1, 0.0, [0.0], False)
    assert buffer.weights.vals[3] == 3.5
    with pytest.raises(AttributeError):
        buffer.alpha = 0.3  # type: ignore[misc]


def test_other_stores_are_refused(tmp_path: pathlib.Path) -> None:
    buffer = Rank_Replay_Buffer(8, 2, path=tmp_path / "s")
    buffer.remember([0.0], 1, 0.0, [0.0], False)
    buffer.close()
    for kind, capacity in ((Replay_Buffer, 8), (Proportion_Replay_Buffer, 8), (Rank_Replay_Buffer, 9)):
        with pytest.raises(InputError, match="choose another path"):
            kind(capacity, path=tmp_path / "s")
    assert len(Rank_Replay_Buffer(8, 2, path=tmp_path / "s")) == 1
    box, acted = spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)
    ReplayBuffer.create(tmp_path / "mine", box, acted, capacity=8, num_envs=2).close()
    with pytest.raises(InputError, match="choose another path"):
        Replay_Buffer(8, path=tmp_path / "mine")


def test_after_a_crash_the_committed_transitions_are_there(tmp_path: pathlib.Path) -> None:
    buffer = Rank_Replay_Buffer(8, 2, path=tmp_path / "s")
    for number in range(5):
        buffer.remember([number], 1, number, [0], False)
    buffer.insert(0.2, 1)
    buffer.commit()
    assert buffer.store is not None
    buffer.remember([5], 1, 5, [0], False)
    buffer.store.commit()
    die(buffer.store)
    with pytest.warns(SamplerWarning, match="rows were committed since they were kept"):
        buffer = Rank_Replay_Buffer(8, 2, path=tmp_path / "s")
    assert len(buffer) == 6
    assert [error for error, _ in buffer.errors] == [-1.0] * 6  # as new


# SumTree


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 8, 13])
def test_sum_tree_like_a_list(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, weights = SumTree(capacity), np.zeros(capacity)
    assert tree.vals == [0] * (2 * capacity - 1)
    for _ in range(300):
        at = int(rng.integers(capacity))
        weight = float(rng.choice([0.0, rng.exponential()]))
        tree.update(weight - tree.vals[capacity - 1 + at], at)
        weights[at] = weight
        np.testing.assert_allclose(tree.vals[capacity - 1 :], weights, atol=1e-15)
        for inner in range(capacity - 1):
            assert tree.vals[inner] == tree.vals[2 * inner + 1] + tree.vals[2 * inner + 2]
        if not weights.any():
            continue
        cumulated = np.cumsum(weights)
        for num in rng.random(5) * cumulated[-1]:
            if np.abs(cumulated - num).min() > 1e-9:
                assert tree.retrive(num) == np.searchsorted(cumulated, num)
        positive = np.flatnonzero(weights)
        assert [tree.retrive(num) for num in (-1.0, 0.0, 1e9)] == [positive[0], positive[0], positive[-1]]


def test_sum_tree_does_not_drift() -> None:
    tree, rng = SumTree(5), np.random.default_rng(0)
    for _ in range(5000):
        at = int(rng.integers(5))
        tree.update(float(rng.choice([1e9, 1e-3, 0.3])) - tree.vals[4 + at], at)
    for at in range(5):
        tree.update(0.1 - tree.vals[4 + at], at)
    assert tree.vals[0] == pytest.approx(0.5, rel=1e-6)


def test_sum_tree_errors() -> None:
    tree = SumTree(3)
    with pytest.raises(NotEnoughDataError):
        tree.retrive(0.0)
    tree.update(1.0, 2)
    for ind in (-1, 3):
        with pytest.raises(InputError, match="ind must be"):
            tree.update(1.0, ind)
    for delta in (-1.5, math.nan, math.inf):
        with pytest.raises(InputError, match="at least 0"):
            tree.update(delta, 2)
    with pytest.raises(InputError, match="NaN"):
        tree.retrive(math.nan)
    assert tree.vals == [1.0, 0, 1.0, 0, 1.0] or tree.vals[-3:] == [0, 0, 1.0]
    with pytest.raises(InputError):
        SumTree(0)
