"""The uniform distribution: flat over transitions, nothing else ever drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from configs import Config
from model import Leaf
from recording import Recording, reopen

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError
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


@pytest.mark.parametrize("special", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("n_step", [1, 4])
def test_flat_over_transitions(path: str, special: float, n_step: int) -> None:
    """With steps that are none, several environments, and rows that have left the window."""
    config = Config("uniform", Leaf((2,)), num_envs=3, capacity=90, n_step=n_step)
    recording = Recording(config, seed=3)
    with config.create(path) as buffer:
        recording.add(buffer, 50, special)
        expected = recording.log.ids(n_step)
        size = min(64, len(buffer))
        drawn = np.concatenate([buffer.sample(size).index for _ in range(60_000 // size)])
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == expected
        assert abs(surprise(counts)) < 4


def test_flat_over_streams_of_different_size(path: str) -> None:
    config = Config("uniform", Leaf((2,)), num_envs=2, capacity=200)
    with config.create(path) as buffer:
        Recording(config).add(buffer, 70, 0.3)
        with reopen(config, path, stream="b", num_envs=1, capacity=20) as other:
            Recording(Config("b", Leaf((2,)), capacity=20)).add(other, 35, 0.3)
        buffer.refresh()
        drawn = np.concatenate([buffer.sample(64).index for _ in range(1500)])
        values, counts = np.unique(drawn, return_counts=True)
        assert len(values) == len(buffer)
        assert set((values >> 48).tolist()) == {0, 1}
        assert abs(surprise(counts)) < 4


def test_almost_nothing_is_a_transition(path: str) -> None:
    config = Config("rare", Leaf((2,)), capacity=2000)
    obs = np.zeros(2, np.uint8)
    with config.create(path) as buffer:
        for row in range(2000):
            buffer.add(obs, 0, 0.0, obs, False, False, valid=row in (700, 701, 1999))
        assert len(buffer) == 3
        drawn = np.concatenate([buffer.sample(3).index for _ in range(2000)])
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == [700, 701, 1999]
        assert abs(surprise(counts)) < 4


def test_nothing_is_a_transition() -> None:
    with pytest.raises(NotEnoughDataError, match="no row in the window is a transition"):
        dr.Uniform().sample(np.random.default_rng(0), [Window(3, 9, 6)], lambda ids: np.zeros(len(ids), bool), 4)


def test_weights_are_one(path: str) -> None:
    config = Config("uniform", Leaf((2,)))
    with config.create(path) as buffer:
        Recording(config).add(buffer, 20)
        weight = buffer.sample(9).weight
    assert weight.dtype == np.float32
    assert weight.tolist() == [1.0] * 9
