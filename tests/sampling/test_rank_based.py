"""Rank-based prioritisation: beside the oracle, its distribution, its weights, and going on from a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import priority_machine
from helpers.effort import examples, stride
from helpers.priority_machine import check_going_on, same_state
from helpers.priority_model import Oracle, chi_square, moved_on
from hypothesis import settings

from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling import registry
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.window import Window


class RankMachine(priority_machine.SamplerMachine):
    by_rank = True

    def make(self) -> RankBased:
        return RankBased(self.alpha, self.beta)


RankMachine.TestCase.settings = settings(max_examples=examples(70), stateful_step_count=40, deadline=None)
TestBesideOracle = RankMachine.TestCase
DRAWS = 40_000 // stride(3, "draws")


@pytest.mark.usefixtures("small_thresholds")
class TestBesideOracleWithSmallThresholds(RankMachine.TestCase):
    pass


def always(ids: np.ndarray) -> np.ndarray:
    return np.ones(len(ids), np.int8)


def with_priorities(count: int, **arguments: Any) -> tuple[RankBased, list[Window], list[int]]:
    """A sampler whose window of an odd capacity has moved on, and its ids by rank."""
    sampler, windows = RankBased(**arguments), [Window(5, 5 + count, count)]
    errors = np.random.default_rng(3).normal(size=count)
    sampler.update(np.arange(5, 5 + count), errors, windows, always)
    return sampler, windows, (np.argsort(-np.abs(errors)) + 5).tolist()


def chances(ranked: list[int], alpha: float) -> dict[int, float]:
    masses = np.arange(1, len(ranked) + 1) ** -alpha
    return dict(zip(ranked, (masses / masses.sum()).tolist(), strict=True))


@pytest.mark.long(quick=7)
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("size", "segments"), [(1, None), (1, 8), (5, 8), (32, None), (32, 8), (33, 8), (32, 64)])
def test_draws_have_the_probabilities_of_the_paper(alpha: float, size: int, segments: int | None) -> None:
    sampler, windows, ranked = with_priorities(37, alpha=alpha, segments=segments)
    rng = np.random.default_rng(1)
    drawn = np.concatenate([sampler.sample(rng, windows, always, size)[0] for _ in range(DRAWS // size)])
    assert chi_square(drawn, chances(ranked, alpha)) <= 1
    if alpha:
        assert chi_square(drawn, chances(ranked, alpha + 0.3)) > 1, "the test would not see another distribution"


@pytest.mark.parametrize("segments", [None, 8])
def test_draws_after_evictions_and_updates(segments: int | None) -> None:
    sampler = RankBased(segments=segments)
    world, (expected,) = moved_on(sampler, Oracle(0.0), 0.7, by_rank=True)
    rng = np.random.default_rng(1)
    drawn = [sampler.sample(rng, world.windows(), world.standing, 20)[0] for _ in range(1000)]
    assert chi_square(np.concatenate(drawn), expected) <= 1
    assert chi_square(np.concatenate(drawn), dict.fromkeys(expected, 1 / len(expected))) > 1


def test_clear_forgets_all_but_the_arguments() -> None:
    sampler, windows, _ = with_priorities(9, segments=4)
    sampler.update([1, 9], [50.0, 50.0], windows, always)
    assert (sampler.maximum, sampler.ignored_updates) == (50.0, 1)
    sampler.clear()
    assert same_state(sampler, RankBased(segments=4))
    assert (sampler.maximum, sampler.ignored_updates) == (1.0, 0)
    assert sampler.to_json() == RankBased(segments=4).to_json()


def test_weights_are_those_of_the_paper() -> None:
    sampler, windows, ranked = with_priorities(37, alpha=0.7, beta=0.5)
    ids, weights = sampler.sample(np.random.default_rng(0), windows, always, 500)
    p = chances(ranked, 0.7)
    largest = max((37 * each) ** -0.5 for each in p.values())
    np.testing.assert_allclose(weights, [(37 * p[each]) ** -0.5 / largest for each in ids.tolist()], rtol=1e-6)


@pytest.mark.parametrize(("size", "per_segment"), [(8, {1}), (24, {3}), (20, {2, 3}), (5, {0, 1})])
def test_segments_give_equally_many(size: int, per_segment: set[int]) -> None:
    sampler, windows, ranked = with_priorities(64, alpha=0.0, segments=8)
    rank = {each: k for k, each in enumerate(ranked)}
    seen = np.zeros(8, int)
    for seed in range(200):
        ids, _ = sampler.sample(np.random.default_rng(seed), windows, always, size)
        counts = np.bincount([rank[each] // 8 for each in ids.tolist()], minlength=8)
        assert set(counts.tolist()) <= per_segment
        seen += counts
    assert (abs(seen - 25 * size) <= 25).all()


def test_a_draw_takes_nothing_away() -> None:
    sampler, windows, _ = with_priorities(37)
    _, arrays = sampler.state()
    sampler.sample(np.random.default_rng(0), windows, always, 500)
    assert arrays["priority"].tobytes() == sampler.state()[1]["priority"].tobytes()


def test_of_equal_priorities_the_newer_comes_first() -> None:
    sampler, windows = RankBased(alpha=1e3), [Window(0, 20, 20)]
    assert set(sampler.sample(np.random.default_rng(0), windows, always, 9)[0].tolist()) == {19}
    sampler.update([19], [0.5], windows, always)
    assert set(sampler.sample(np.random.default_rng(0), windows, always, 9)[0].tolist()) == {18}


@pytest.mark.long
@pytest.mark.usefixtures("both_thresholds")
def test_going_on_from_a_state_gives_the_same_thousand_batches() -> None:
    check_going_on(lambda: RankBased(segments=12))


def test_late_and_repeated_priorities() -> None:
    sampler = RankBased()
    sampler.sample(np.random.default_rng(0), [Window(0, 4, 4)], always, 1)
    sampler.update([0, 4, 1, 4, 5, 5], [100.0, 50.0, 100.0, -0.5, 9.0, 2.0], [Window(2, 6, 4)], always)
    assert sampler.state()[1]["priority"].tolist() == [1, 1, 0.5, 2]
    assert (sampler.ignored_updates, sampler.maximum) == (2, 2.0)


def test_nothing_to_sample() -> None:
    sampler = RankBased()
    for windows in ([], [Window(0, 0, 5)], [Window(0, 4, 5)]):
        with pytest.raises(NotEnoughDataError, match="nothing in the window can be drawn yet; add more steps"):
            sampler.sample(np.random.default_rng(0), windows, lambda ids: np.zeros(len(ids), np.int8), 3)


@pytest.mark.parametrize("segments", [0, -1, 2.0, True, "8"])
def test_segments_out_of_range_are_refused(segments: Any) -> None:
    with pytest.raises(InputError, match="segments must be a whole number above 0 or None"):
        RankBased(segments=segments)


def test_json_makes_the_same_sampler() -> None:
    sampler = RankBased(0.5, 0.3, 100)
    assert repr(registry.from_json(sampler.to_json())) == repr(sampler)
    assert eval(repr(sampler)).to_json() == sampler.to_json()


def damaged(facts: dict[str, Any], arrays: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [
        (facts, arrays | {"priority": arrays["priority"][:-1]}),
        (facts, arrays | {"priority": -2 - arrays["priority"]}),
        (facts, arrays | {"priority": arrays["priority"] * np.nan}),
        (facts | {"streams": facts["streams"] * 2}, arrays),
        (facts | {"maxima": None}, arrays),
        (facts, {}),
    ]


@pytest.mark.parametrize("case", range(6))
def test_a_damaged_state_is_refused_and_changes_nothing(case: int) -> None:
    sampler, _, _ = with_priorities(9)
    untouched, _, _ = with_priorities(9)
    with pytest.raises((ValueError, KeyError, TypeError)):
        sampler.restore(*damaged(*sampler.state())[case])
    assert same_state(sampler, untouched)
