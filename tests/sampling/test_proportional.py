"""Proportional prioritisation: beside the oracle, its distribution, its weights, and going on from a state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers import priority_machine
from helpers.effort import examples
from helpers.priority_machine import check_going_on, copied, same_state, wrong_waiting
from helpers.priority_model import chi_square
from hypothesis import settings

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.index.log import Standing
from diskreplay.sampling import registry
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.window import Window, refused_update


class ProportionalMachine(priority_machine.SamplerMachine):
    def make(self) -> Proportional:
        return Proportional(self.alpha, self.beta)


ProportionalMachine.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=40, deadline=None)
TestBesideOracle = ProportionalMachine.TestCase


class ByEnvironmentMachine(priority_machine.SamplerMachine):
    by_env = True

    def make(self) -> Proportional:
        return Proportional(self.alpha, self.beta, by_env=True)


ByEnvironmentMachine.TestCase.settings = ProportionalMachine.TestCase.settings
TestByEnvironmentBesideOracle = ByEnvironmentMachine.TestCase


def always(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), np.int8)


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


def test_by_environment_what_has_no_meaning_is_refused() -> None:
    sampler, rng = Proportional(by_env=True), np.random.default_rng(0)
    windows = [Window(0, 8, 8, 4), Window(1 << 48, 1 << 48 | 2, 2, 1), Window(2 << 48, 2 << 48, 9, 3)]
    with pytest.raises(InputError, match="a batch must be a multiple of the 5 environments, got 32"):
        sampler.sample(rng, windows, always, 32)
    sampler.clear()
    with pytest.raises(NotEnoughDataError, match="environment 2 of 5 has no transition yet"):
        sampler.sample(rng, windows, lambda ids: np.where(ids % 4 == 2, 0, 1).astype(np.int8), 30)
    with pytest.raises(InputError, match="capacity of a window must be a multiple of its environments"):
        sampler.sample(rng, [Window(0, 8, 9, 4)], always, 4)
    with pytest.raises(InputError, match="by_env must be True or False, got 1"):
        Proportional(by_env=1)  # type: ignore[arg-type]


def test_a_stream_of_another_shape_is_new_by_environment_too() -> None:
    sampler = Proportional(1.0, by_env=True)
    other = Window(1 << 48, 1 << 48 | 6, 6, 2)
    sampler.update([0, 1], [5.0, 9.0], [Window(0, 8, 8, 4), other], always)
    windows = [Window(0, 8, 8, 2), other]
    ids, _ = sampler.sample(np.random.default_rng(0), windows, always, 4 * 20)
    assert [set((part % 2).tolist()) for part in ids.reshape(4, 20)] == [{0}, {1}, {0}, {1}]
    assert (ids.reshape(2, 40) >> 48).tolist() == [[1] * 40, [0] * 40]
    np.testing.assert_allclose(sampler.maxima, 1.0)
    assert same_state(copied(sampler, Proportional(1.0, by_env=True)), sampler)


def test_clear_forgets_all_but_the_arguments() -> None:
    sampler, windows, _ = with_priorities(9, beta_schedule=(1.0, 10))
    sampler.sample(np.random.default_rng(0), windows, always, 4)
    sampler.update([1], [50.0], windows, always)
    sampler.clear()
    fresh = Proportional(beta_schedule=(1.0, 10))
    assert same_state(sampler, fresh)
    assert (sampler.maximum, sampler.ignored_updates, sampler.beta, sampler.total) == (1.0, 0, 0.4, 0.0)
    for each in (sampler, fresh):
        each.sample(np.random.default_rng(3), windows, always, 4)
    assert same_state(sampler, fresh)


def test_beta_can_be_set_where_no_schedule_sets_it() -> None:
    sampler, windows, priorities = with_priorities(37, alpha=1.0)
    sampler.beta = 1
    ids, weights = sampler.sample(np.random.default_rng(0), windows, always, 50)
    np.testing.assert_allclose(weights, (priorities.min() / priorities)[ids - 5], rtol=1e-6)
    assert sampler.to_json()["beta"] == 1.0
    with pytest.raises(InputError, match="beta must be a finite number of at least 0, got -1"):
        sampler.beta = -1
    with pytest.raises(InputError, match="beta follows its beta_schedule"):
        Proportional(beta_schedule=(1.0, 10)).beta = 0.5


@pytest.mark.long
@pytest.mark.parametrize("by_env", [False, True])
def test_going_on_from_a_state_gives_the_same_thousand_batches(by_env: bool) -> None:
    check_going_on(lambda: Proportional(beta_schedule=(1.0, 700), by_env=by_env))


def test_beta_goes_in_a_straight_line_and_then_stays() -> None:
    sampler = Proportional(beta=0.4, beta_schedule=(1.0, 4))
    betas = []
    for _ in range(7):
        betas.append(sampler.beta)
        sampler.sample(np.random.default_rng(0), [Window(0, 3, 3)], always, 2)
    np.testing.assert_allclose(betas, [0.4, 0.55, 0.7, 0.85, 1.0, 1.0, 1.0])


def test_a_window_that_went_back_is_new() -> None:
    sampler = Proportional(alpha=1.0)
    sampler.update([0, 1, 2], [5.0, 0.1, 0.1], [Window(0, 3, 8)], always)
    sampler.sample(np.random.default_rng(0), [Window(0, 2, 8)], always, 1)
    np.testing.assert_allclose(sampler.state()[1]["mass"], [5 + 1e-6, 5 + 1e-6])


def test_nothing_to_sample() -> None:
    sampler = Proportional(beta_schedule=(1.0, 10))
    for windows in ([], [Window(0, 0, 5)], [Window(0, 4, 5)]):
        with pytest.raises(NotEnoughDataError, match="nothing in the window can be drawn yet; add more steps"):
            sampler.sample(np.random.default_rng(0), windows, lambda ids: np.zeros(len(ids), np.int8), 3)
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
    sampler = Proportional(0.5, 0.3, (0.9, 100), 1e-3, by_env=True)
    assert repr(registry.from_json(sampler.to_json())) == repr(sampler)
    assert eval(repr(sampler)).to_json() == sampler.to_json()


def damaged(facts: dict[str, Any], arrays: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    run = facts["streams"][0]
    return [
        (facts | {"alpha": -0.1}, arrays),
        ({key: value for key, value in facts.items() if key != "by_env"}, arrays),
        (facts | {"maxima": [1.0, 1.0]}, arrays),
        (facts | {"maxima": [0.5]}, arrays),
        (facts | {"streams": [run | {"lanes": 3}]}, arrays),
        (facts | {"streams": [run | {"lanes": 0}]}, arrays),
        (facts | {"streams": [run | {"group": 1}]}, arrays),
        (facts, arrays | {"mass": arrays["mass"][:-1]}),
        (facts, arrays | {"mass": -arrays["mass"]}),
        (facts, arrays | {"mass": arrays["mass"] * np.nan}),
        (facts, arrays | {"waiting": np.array([1])}),
        (facts | {"streams": [run, run]}, arrays),
        (facts | {"streams": [run | {"stop": run["first"] - 1}]}, arrays),
        (facts | {"streams": [run | {"waiting": 1}]}, arrays | {"waiting": np.array([999])}),
        ({key: value for key, value in facts.items() if key != "maxima"}, arrays),
        (facts | {"maxima": [np.inf]}, arrays),
        (facts | {"maxima": [1.7e308]}, arrays),
        (facts | {"samples": 1 << 70}, arrays),
        (facts | {"ignored_updates": 1 << 70}, arrays),
        (facts | {"streams": [run | {"stream": -1}]}, arrays),
        *wrong_waiting(facts, arrays, "mass", 0.0),
        (facts, {}),
    ]


@pytest.mark.parametrize("case", range(24))
def test_a_damaged_state_is_refused_and_changes_nothing(case: int) -> None:
    sampler, _, _ = with_priorities(9)
    untouched, _, _ = with_priorities(9)
    with pytest.raises((ValueError, KeyError, TypeError, OverflowError)):
        sampler.restore(*damaged(*sampler.state())[case])
    assert same_state(sampler, untouched)


def test_a_row_is_asked_for_again_only_while_it_may_become_one() -> None:
    sampler, asked = Proportional(), []

    def standing(ids: np.ndarray) -> np.ndarray:
        asked.extend(ids.tolist())
        late = Standing.NOW if rows > 9 else Standing.LATER
        return np.select([ids == 3, ids == 5], [Standing.NEVER, late], Standing.NOW).astype(np.int8)

    for rows in range(1, 100):
        sampler.sample(np.random.default_rng(0), [Window(0, rows, 1000)], standing, 1)
    assert sorted(asked) == sorted([*range(99), 5, 5, 5, 5])


def test_a_refused_update_says_what_is_wrong() -> None:
    for priority in (np.nan, np.inf, 1.5):
        assert "finite and at most" in str(refused_update(7, priority, 1.0))
    for priority in (0.0, 1.0):
        assert "index 7 names no transition" in str(refused_update(7, priority, 1.0))
