"""Rank-based prioritisation: beside the oracle, its distribution, its weights, and going on from a state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import priority_machine
from helpers.effort import examples, stride
from helpers.priority_machine import check_going_on, same_state, wrong_waiting
from helpers.priority_model import Oracle, chi_square, moved_on
from hypothesis import settings

from diskreplay.errors import InputError
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


@pytest.mark.long
@pytest.mark.usefixtures("both_thresholds")
def test_going_on_from_a_state_gives_the_same_thousand_batches() -> None:
    check_going_on(lambda: RankBased(segments=12))


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
        (facts | {"maxima": [np.inf]}, arrays),
        (facts | {"ignored_updates": 1 << 70}, arrays),
        (facts | {"streams": [facts["streams"][0] | {"stream": 1 << 16}]}, arrays),
        *wrong_waiting(facts, arrays, "priority", -1.0),
        (facts, {}),
    ]


@pytest.mark.parametrize("case", range(12))
def test_a_damaged_state_is_refused_and_changes_nothing(case: int) -> None:
    sampler, _, _ = with_priorities(9)
    untouched, _, _ = with_priorities(9)
    with pytest.raises((ValueError, KeyError, TypeError, OverflowError)):
        sampler.restore(*damaged(*sampler.state())[case])
    assert same_state(sampler, untouched)
