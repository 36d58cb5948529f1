"""Integers by compiled code are those of numpy's generators, and leave these in the same state."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from diskreplay.index import bounded
from diskreplay.index.log import NOW
from diskreplay.sampling import integers as module
from diskreplay.sampling.integers import BOUNDED, integers
from diskreplay.sampling.recent import Recent
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler, Window

WIDTHS = [1, 2, 3, 100, 1 << 20, 3 << 30, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 1 << 47]
KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
SAMPLERS = [Uniform(), Recent(newest=777), Recent(fraction=0.3), Recent(half_life=500)]


@pytest.fixture(autouse=True)
def loaded() -> Iterator[None]:
    assert BOUNDED.now() is not None
    with mock.patch.object(bounded, "bounded", wraps=bounded.bounded):
        yield


def states(*rngs: np.random.Generator) -> list[str]:
    return [repr(rng.bit_generator.state) for rng in rngs]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_those_of_numpy(kind: type[np.random.BitGenerator]) -> None:
    ours, theirs, choice = (np.random.Generator(kind(seed)) for seed in (5, 5, 0))
    for _ in range(40):
        for width in WIDTHS:
            low, size = int(choice.integers(1 << 60)), int(choice.integers(1, 50))
            found = integers(ours, low, low + width, size)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, theirs.integers(low, low + width, size))
    ours_after, theirs_after = states(ours, theirs)
    assert ours_after == theirs_after
    assert bounded.bounded.call_count == 40 * 6  # type: ignore[attr-defined]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@pytest.mark.parametrize("streams", [1, 3])
def test_samplers_draw_the_same_both_ways(sampler: Sampler, streams: int) -> None:
    def standing(ids: np.ndarray) -> np.ndarray:
        return np.where(ids % 7 == 3, NOW - 1, NOW).astype(np.int8)

    windows = [Window((k << 48) + 64 * k, (k << 48) + 4096, 8192, 2) for k in range(streams)]
    ours, theirs = np.random.default_rng(1), np.random.default_rng(1)
    for size in (1, 32, 500, 9000):
        ids, weights = sampler.sample(ours, windows, standing, size)
        with mock.patch.object(module, "BOUNDED", mock.Mock(code=None, begin=lambda: None)):
            expected = sampler.sample(theirs, windows, standing, size)
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_array_equal(weights, expected[1])
        assert states(ours) == states(theirs)


def test_code_that_draws_otherwise_is_not_used() -> None:
    with mock.patch.object(bounded, "bounded", lambda state, function, low, most, size: np.zeros(size, np.int64)):
        assert module._load() is None
