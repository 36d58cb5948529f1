"""The uniform distribution: flat over transitions, nothing else ever drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import Leaf
from helpers.priority_model import chi_square
from helpers.recording import Recording, recorded_in, reopen

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.log import Standing
from diskreplay.sampling.window import Window


def surprise(counts: np.ndarray) -> float:
    """How many standard deviations Pearson's statistic is above what a uniform draw gives, about."""
    expected = counts.sum() / len(counts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (len(counts) - 1)) / math.sqrt(2 * (len(counts) - 1))


def test_the_statistic_tells_uniform_from_not() -> None:
    rng = np.random.default_rng(0)
    assert abs(surprise(np.bincount(rng.integers(100, size=50_000)))) < 4
    assert surprise(np.bincount(np.minimum(rng.integers(103, size=50_000), 99))) > 10


@pytest.mark.long
@pytest.mark.parametrize("special", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n_step", [1, 4])
def test_flat_over_transitions(path: str, special: float, n_step: int) -> None:
    """With steps that are none, several environments, and rows that have left the window."""
    config = Config("uniform", Leaf((2,)), num_envs=3, capacity=90, n_step=n_step)
    with recorded_in(config, path, 50, special=special, seed=3) as (buffer, recording):
        expected = recording.log.ids(n_step)
        size = min(64, len(buffer))
        drawn = np.concatenate([buffer.sample(size).index for _ in range(60_000 // size)])
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == expected
        assert abs(surprise(counts)) < 4


@pytest.mark.long
def test_flat_over_streams_of_different_size(path: str) -> None:
    config = Config("uniform", Leaf((2,)), num_envs=2, capacity=200)
    with recorded_in(config, path, 70, special=0.3) as (buffer, _):
        with reopen(config, path, stream="b", num_envs=1, capacity=20) as other:
            Recording(Config("b", Leaf((2,)), capacity=20)).add(other, 35, 0.3)
        buffer.refresh()
        drawn = np.concatenate([buffer.sample(64).index for _ in range(1500)])
        values, counts = np.unique(drawn, return_counts=True)
        assert (len(values), set((values >> 48).tolist())) == (len(buffer), {0, 1})
        assert abs(surprise(counts)) < 4


@pytest.mark.long
def test_almost_nothing_is_a_transition(path: str) -> None:
    config = Config("rare", Leaf((2,)), capacity=2000)
    obs = np.zeros(2, np.uint8)
    with config.create(path) as buffer:
        for row in range(2000):
            buffer.add(obs, 0, 0.0, obs, False, False, valid=row in (700, 701, 1999))
        assert len(buffer) == 3
        drawn = np.concatenate([buffer.sample(3).index for _ in range(examples(2000, "draws", least=700))])
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == [700, 701, 1999]
        assert abs(surprise(counts)) < 4


class Sparse:
    """Two windows of which one id in ``every`` is a transition; counts how many ids it is asked for."""

    def __init__(self, held: int, every: int) -> None:
        self.windows = [Window(40, 40 + held // 4, held), Window(7 << 48, (7 << 48) + held - held // 4, held)]
        self.every, self.asked = every, 0
        self.ids = [each for w in self.windows for each in range(w.first, w.stop) if each % every == 0]

    def standing(self, ids: np.ndarray) -> np.ndarray:
        self.asked += len(ids)
        return np.where(ids % self.every == 0, Standing.NOW, Standing.NEVER).astype(np.int8)


@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize(("held", "every", "size"), [(4000, 40, 32), (800, 40, 256), (20_000, 1000, 8), (900, 3, 400)])
def test_flat_where_items_are_sparse(held: int, every: int, size: int) -> None:
    """Where drawing again is enough, where it never is, and where half of a batch is listed."""
    sparse, rng = Sparse(held, every), np.random.default_rng(5)
    calls = 40 * len(sparse.ids) // size + 400
    drawn = [dr.Uniform().sample(rng, sparse.windows, sparse.standing, size)[0] for _ in range(calls)]
    assert {each.shape for each in drawn} == {(size,)}
    assert chi_square(np.concatenate(drawn), dict.fromkeys(sparse.ids, 1 / len(sparse.ids))) <= 1
    assert sparse.asked <= calls * (1.5 * held + size)


@pytest.mark.own_thresholds
def test_a_thousandth_of_a_window_is_found_without_a_list() -> None:
    sparse, rng = Sparse(1 << 20, 1000), np.random.default_rng(0)
    for _ in range(20):
        sparse.asked = 0
        ids, _ = dr.Uniform().sample(rng, sparse.windows, sparse.standing, 32)
        assert (ids % 1000 == 0).all()
        assert sparse.asked < 1 << 18


def test_probability() -> None:
    sparse = Sparse(4000, 40)
    asked = [40, 41, sparse.ids[-1], sparse.ids[-1] + 1, 0, 40_000, 5 << 48]
    found = dr.Uniform().probability(asked, sparse.windows, sparse.standing)
    assert found.tolist() == [1 / len(sparse.ids), 0, 1 / len(sparse.ids), 0, 0, 0, 0]
    with pytest.raises(InputError, match="index must be integers"):
        dr.Uniform().probability([0.5], sparse.windows, sparse.standing)
    assert dr.Uniform().probability([3], [], sparse.standing).tolist() == [0.0]


@pytest.mark.parametrize("windows", [[], [Window(3, 3, 6)], [Window(3, 9, 6)]])
def test_nothing_is_a_transition(windows: list[Window]) -> None:
    with pytest.raises(NotEnoughDataError, match=r"nothing in the window can be drawn|the window is empty"):
        dr.Uniform().sample(np.random.default_rng(0), windows, lambda ids: np.zeros(len(ids), np.int8), 4)


def test_weights_are_one(path: str) -> None:
    config = Config("uniform", Leaf((2,)))
    with recorded_in(config, path, 20) as (buffer, _):
        weight = buffer.sample(9).weight
    assert (weight.dtype, weight.tolist()) == (np.float32, [1.0] * 9)
