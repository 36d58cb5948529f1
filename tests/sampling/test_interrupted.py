"""Samplers that run out of memory at each line while they follow the windows: the next draw is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.priority_machine import copied, same_state
from helpers.testing import Interrupts

from diskreplay.index.log import Standing
from diskreplay.sampling.priorities import SAMPLES
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.window import Window

STREAM = 1 << 48
SAMPLERS: list[Any] = [Proportional, lambda: Proportional(by_env=True), RankBased]


def windows_at(step: int) -> list[Window]:
    """Of two streams, which both have left rows behind; the second goes on at every other step."""
    rows, later = 4 * step, 2 * (step // 2)
    return [Window(40 + rows, 60 + rows, 20, 2), Window(STREAM + later, STREAM + 7 + later, 9)]


def now(ids: np.ndarray) -> np.ndarray:
    return np.full(len(ids), Standing.NOW, np.int8)


def mixed(ids: np.ndarray) -> np.ndarray:
    local = ids % STREAM
    return np.select([local % 5 == 2, local % 7 == 3], [Standing.NEVER, Standing.LATER], Standing.NOW).astype(np.int8)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize(("standing", "steps"), [(now, 1), (now, 2), (mixed, 1)])
def test_the_next_draw_is_right(
    make: Callable[[], Any], standing: Callable[[np.ndarray], np.ndarray], steps: int
) -> None:
    def begun() -> Any:
        sampler = make()
        ids = np.concatenate([np.arange(window.first, window.stop) for window in windows_at(0)])
        there = ids[standing(ids) == Standing.NOW]
        sampler.update(there, np.linspace(0.1, 3, len(there)), windows_at(0), standing)
        return sampler

    def moved(sampler: Any, step: int) -> Any:
        return sampler.sample(np.random.default_rng(step), windows_at(step), standing, 9)

    twin = begun()
    moved(twin, steps)
    moved(twin, steps + 1)
    tool = Interrupts(MemoryError)
    count = tool.count(lambda: moved(begun(), steps)) - tool.count(begun)
    assert count > 20
    for number in range(count):
        sampler = begun()
        place = tool.interrupt(number, lambda sampler=sampler: moved(sampler, steps))
        assert place is not None
        moved(sampler, steps + 1)
        sampler._counts[SAMPLES] = twin._counts[SAMPLES] = 2  # an interrupted draw counts, or not
        assert same_state(sampler, twin), place
        anew = copied(sampler, make())
        ids = np.concatenate([np.arange(window.first, window.stop) for window in windows_at(steps + 1)])
        chances = [each.probability(ids, windows_at(steps + 1), standing).tobytes() for each in (sampler, anew, twin)]
        assert len(set(chances)) == 1, place
        if isinstance(sampler, Proportional):
            assert sampler.total == anew.total == twin.total, place


@pytest.mark.parametrize("make", SAMPLERS)
def test_a_step_forward_after_an_error_is_right(make: Callable[[], Any]) -> None:
    """What waited in the draw that was interrupted waits no more, and all has left the window meanwhile."""
    windows = [[Window(0, 10, 60, 2)], [Window(2, 14, 60, 2)], [Window(16, 24, 60, 2)]]

    def late(ids: np.ndarray) -> np.ndarray:
        return np.where(ids == 13, Standing.LATER, Standing.NOW).astype(np.int8)

    def begun() -> Any:
        sampler = make()
        sampler.update(np.arange(10), np.linspace(0.1, 3, 10), windows[0], now)
        return sampler

    def drawn(sampler: Any) -> Any:
        return sampler.sample(np.random.default_rng(0), windows[1], late, 8)

    tool = Interrupts(MemoryError)
    for number in range(tool.count(lambda: drawn(begun())) - tool.count(begun)):
        sampler = begun()
        place = tool.interrupt(number, lambda sampler=sampler: drawn(sampler))
        ids, _ = sampler.sample(np.random.default_rng(0), windows[2], now, 64)
        assert ids.min() >= 16, place
        assert set(ids.tolist()) == set(range(16, 24)), place
        np.testing.assert_allclose(sampler.probability(np.arange(16, 24), windows[2], now).sum(), 1)
