"""Proportional prioritisation: beside the oracle, its distribution, its weights, and going on from a state."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import priority_machine
import pytest
from configs import examples
from hypothesis import settings
from priority_machine import copied, same_state
from priority_model import chi_square

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling import proportional
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.window import Window


class ProportionalMachine(priority_machine.SamplerMachine):
    def make(self) -> Proportional:
        return Proportional(self.alpha, self.beta)


ProportionalMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestBesideOracle = ProportionalMachine.TestCase


def always(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), bool)


def with_priorities(count: int, **arguments: Any) -> tuple[Proportional, list[Window], np.ndarray]:
    """A sampler whose window of an odd capacity has moved on, and its priorities by id."""
    sampler, windows = Proportional(**arguments), [Window(5, 5 + count, count)]
    errors = np.random.default_rng(3).exponential(size=count) + 0.2
    sampler.update(np.arange(5, 5 + count), errors, windows, always)
    return sampler, windows, errors + 1e-6


def chances(priorities: np.ndarray, alpha: float, first: int = 5) -> dict[int, float]:
    masses = priorities**alpha
    return dict(enumerate((masses / masses.sum()).tolist(), first))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 1.7])
@pytest.mark.parametrize("size", [1, 32])
def test_draws_have_the_probabilities_of_the_paper(alpha: float, size: int) -> None:
    sampler, windows, priorities = with_priorities(37, alpha=alpha)
    rng = np.random.default_rng(1)
    drawn = np.concatenate([sampler.sample(rng, windows, always, size)[0] for _ in range(40_000 // size)])
    assert chi_square(drawn, chances(priorities, alpha)) <= 1
    if alpha:
        assert chi_square(drawn, chances(priorities, alpha + 0.2)) > 1, "the test would not see another distribution"


def test_weights_are_those_of_the_paper() -> None:
    sampler, windows, priorities = with_priorities(37, alpha=0.6, beta=0.4)
    ids, weights = sampler.sample(np.random.default_rng(0), windows, always, 500)
    p = np.array(list(chances(priorities, 0.6).values()))
    expected = (37 * p) ** -0.4 / ((37 * p) ** -0.4).max()
    np.testing.assert_allclose(weights, expected[ids - 5], rtol=1e-6)
    assert weights.max() <= 1


def test_each_slice_of_the_total_gives_one_draw() -> None:
    sampler, windows, _ = with_priorities(64, alpha=0.0)
    ids, _ = sampler.sample(np.random.default_rng(0), windows, always, 16)
    slots = np.sort(ids % 64)
    assert (slots // 4).tolist() == list(range(16))


def test_going_on_from_a_state_gives_the_same_thousand_batches() -> None:
    """With rows added meanwhile, two streams, and beta on its way."""
    sampler = Proportional(beta_schedule=(1.0, 700))
    other: Proportional | None = None

    def incomplete(ids: np.ndarray) -> np.ndarray:
        return (ids & 0xFFFF) % 11 != 3

    rng, draws = np.random.default_rng(0), np.random.default_rng(7)
    twin = np.random.default_rng(7)
    for step in range(2000):
        rows = 4 * step + 4
        windows = [Window(max(0, rows - 401), rows, 401, 8), Window(3 << 48, 3 << 48 | step, 9999)]
        ids, weights = sampler.sample(draws, windows, incomplete, 32)
        if step == 999:
            other = copied(sampler, Proportional(beta_schedule=(1.0, 700)))
            twin.bit_generator.state = draws.bit_generator.state
        elif other is not None:
            other_ids, other_weights = other.sample(twin, windows, incomplete, 32)
            assert ids.tobytes() == other_ids.tobytes()
            assert weights.tobytes() == other_weights.tobytes()
        errors = rng.normal(size=32).astype(np.float32) * 3
        for each in (sampler, other):
            if each is not None:
                each.update(ids, errors, windows, incomplete)
    assert other is not None
    assert same_state(sampler, other)


def test_beta_goes_in_a_straight_line_and_then_stays() -> None:
    sampler = Proportional(beta=0.4, beta_schedule=(1.0, 4))
    betas = []
    for _ in range(7):
        betas.append(sampler.beta)
        sampler.sample(np.random.default_rng(0), [Window(0, 3, 3)], always, 2)
    np.testing.assert_allclose(betas, [0.4, 0.55, 0.7, 0.85, 1.0, 1.0, 1.0])


def test_the_last_of_a_repeated_id_counts_for_the_maximum_too() -> None:
    sampler, windows = Proportional(alpha=1.0), [Window(0, 3, 3)]
    sampler.update([1, 1, 2], [9.0, 2.0, 3.0], windows, always)
    assert sampler.maximum == 3.0 + 1e-6
    np.testing.assert_allclose(sampler.state()[1]["mass"], [1, 2 + 1e-6, 3 + 1e-6])


def test_a_priority_that_comes_late_is_counted_and_goes_nowhere() -> None:
    sampler = Proportional(alpha=1.0)
    sampler.sample(np.random.default_rng(0), [Window(0, 4, 4)], always, 1)
    sampler.update([0, 1, 4], [100.0, 100.0, 0.5], [Window(2, 6, 4)], always)
    np.testing.assert_allclose(sampler.state()[1]["mass"], [1, 1, 0.5 + 1e-6, 1])
    assert (sampler.ignored_updates, sampler.maximum) == (2, 1.0)


def test_a_window_that_went_back_is_new() -> None:
    sampler = Proportional(alpha=1.0)
    sampler.update([0, 1, 2], [5.0, 0.1, 0.1], [Window(0, 3, 8)], always)
    sampler.sample(np.random.default_rng(0), [Window(0, 2, 8)], always, 1)
    np.testing.assert_allclose(sampler.state()[1]["mass"], [5 + 1e-6, 5 + 1e-6])


def test_another_capacity_of_a_stream_is_a_new_stream() -> None:
    sampler = Proportional(alpha=1.0)
    sampler.update([0, 1, 2], [5.0, 0.1, 0.1], [Window(0, 3, 3)], always)
    ids, _ = sampler.sample(np.random.default_rng(0), [Window(0, 9, 20)], always, 90)
    assert set(ids.tolist()) == set(range(9))
    assert same_state(copied(sampler, Proportional(alpha=1.0)), sampler)


def test_nothing_to_sample() -> None:
    sampler = Proportional(beta_schedule=(1.0, 10))
    for windows in ([], [Window(0, 0, 5)], [Window(0, 4, 5)]):
        with pytest.raises(NotEnoughDataError, match="no row in the window is a transition yet; add more steps"):
            sampler.sample(np.random.default_rng(0), windows, lambda ids: np.zeros(len(ids), bool), 3)
    assert sampler.beta == 0.4


def test_extreme_priorities_lose_no_transition() -> None:
    sampler, windows = Proportional(alpha=2.0, epsilon=1e-300), [Window(0, 3, 3)]
    sampler.update([0, 1, 2], [0.0, 1e139, 1.0], windows, always)
    ids, weights = sampler.sample(np.random.default_rng(0), windows, always, 64)
    assert set(ids.tolist()) == {1}
    assert np.isfinite(weights).all()
    sampler.update([1], [0.0], windows, always)
    sampler.update([2], [0.0], windows, always)
    ids, _ = sampler.sample(np.random.default_rng(0), windows, always, 64)
    assert set(ids.tolist()) == {0, 1, 2}
    with pytest.raises(InputError, match=r"priorities must be finite and at most 1e\+140, got 1e\+141 for index 1"):
        sampler.update([1], [1e141], windows, always)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -0.1}, "alpha must be a finite number of at least 0, got -0.1"),
        ({"alpha": math.nan}, "alpha must be a finite number"),
        ({"beta": math.inf}, "beta must be a finite number of at least 0, got inf"),
        ({"beta": True}, "beta must be a finite number"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0, got 0"),
        ({"beta_schedule": 3}, r"beta_schedule must be \(final_beta, calls\) or None, got 3"),
        ({"beta_schedule": (1.0, 0)}, "calls of a beta_schedule must be a whole number above 0, got 0"),
        ({"beta_schedule": ("1", 3)}, "final beta of a beta_schedule must be a finite number"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Proportional(**arguments)


@pytest.mark.parametrize(
    ("ids", "priorities", "message"),
    [
        ([0.0], [1.0], r"index must be integers of shape \(B,\), got float64 \(1,\)"),
        ([[0]], [[1.0]], r"index must be integers of shape \(B,\), got int64 \(1, 1\)"),
        ([0], [[1.0]], r"priorities must be real numbers of the index's shape \(1,\), got float64 \(1, 1\)"),
        ([0], ["a"], "priorities must be real numbers"),
        ([0], [math.nan], "priorities must be finite"),
        ([3], [1.0], "index 3 names no transition that can be sampled"),
        ([1 << 48], [1.0], "names no transition"),
    ],
)
def test_updates_that_make_no_sense_are_refused(ids: Any, priorities: Any, message: str) -> None:
    sampler, windows = Proportional(), [Window(0, 3, 3)]
    with pytest.raises(InputError, match=message):
        sampler.update(ids, priorities, windows, always)
    assert sampler.state()[1]["mass"].tolist() in ([], [1, 1, 1])


def test_json_makes_the_same_sampler() -> None:
    sampler = Proportional(0.5, 0.3, (0.9, 100), 1e-3)
    assert repr(proportional.from_json(sampler.to_json())) == repr(sampler)
    assert eval(repr(sampler)).to_json() == sampler.to_json()
    with pytest.raises(ValueError, match="unknown sampler"):
        proportional.from_json({"kind": "Uniform"})


def damaged(facts: dict[str, Any], arrays: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    run = facts["streams"][0]
    return [
        (facts | {"alpha": 0.1}, arrays),
        (facts, arrays | {"mass": arrays["mass"][:-1]}),
        (facts, arrays | {"mass": -arrays["mass"]}),
        (facts, arrays | {"mass": arrays["mass"] * np.nan}),
        (facts, arrays | {"waiting": np.array([1])}),
        (facts | {"streams": [run, run]}, arrays),
        (facts | {"streams": [run | {"stop": run["first"] - 1}]}, arrays),
        (facts | {"streams": [run | {"waiting": 1}]}, arrays | {"waiting": np.array([999])}),
        ({key: value for key, value in facts.items() if key != "maximum"}, arrays),
        (facts, {}),
    ]


@pytest.mark.parametrize("case", range(10))
def test_a_damaged_state_is_refused_and_changes_nothing(case: int) -> None:
    sampler, _, _ = with_priorities(9)
    untouched, _, _ = with_priorities(9)
    with pytest.raises((ValueError, KeyError, TypeError)):
        sampler.restore(*damaged(*sampler.state())[case])
    assert same_state(sampler, untouched)


def test_a_row_that_never_is_a_transition_is_not_asked_for_for_ever() -> None:
    sampler, asked = Proportional(), []

    def all_but_3(ids: np.ndarray) -> np.ndarray:
        asked.extend(ids.tolist())
        return ids != 3

    for rows in range(1, 100):
        sampler.sample(np.random.default_rng(0), [Window(0, rows, 1000, 4)], all_but_3, 1)
    assert sorted(asked) == sorted([*range(99), 3, 3, 3, 3])


def test_numba_is_loaded_only_by_those_who_sample_with_priorities() -> None:
    code = (
        "import sys; from diskreplay.sampling.proportional import Proportional; Proportional().to_json();"
        "from diskreplay.sampling.rank_based import RankBased; RankBased(); sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
