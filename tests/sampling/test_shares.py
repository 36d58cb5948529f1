"""Fixed shares: exact over any run of batches, whatever their sizes, beside rational numbers."""

from __future__ import annotations

import fractions
import itertools
from typing import Any

import numpy as np
import pytest

from diskreplay.errors import InputError
from diskreplay.sampling import shares

WEIGHTS = [(1,), (0.5, 0.5), (0.1, 0.7, 0.2), (3, 1), (1 / 3, 1 / 3, 1 / 3), (0.3333, 0.6667), (1e-6, 1), (7, 2, 2, 9)]
MANY = [tuple(np.random.default_rng(seed).integers(1, 40, 2 + seed % 9).tolist()) for seed in range(40)]


@pytest.mark.long(quick=42)
@pytest.mark.parametrize("most", [2, 5, 300])
@pytest.mark.parametrize("weights", [*WEIGHTS, *MANY])
def test_every_part_has_given_its_share_to_less_than_one(weights: Any, most: int) -> None:
    rng, found = np.random.default_rng(0), shares.of("weights", weights, len(weights))
    exact = [fractions.Fraction(str(weight)) for weight in weights]
    totals, drawn = [0] * len(weights), 0
    for size in rng.integers(1, most, 300).tolist():
        counts = found.counts(totals, size)
        assert sum(counts) == size
        assert min(counts) >= 0
        drawn += size
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        for total, weight in zip(totals, exact, strict=True):
            assert abs(total - drawn * weight / sum(exact)) < 1


def cut(weights: Any, sizes: list[int]) -> list[list[int]]:
    """Batches of these sizes, one after another."""
    found, given, counts = shares.of("weights", weights, len(weights)), [0] * len(weights), []
    for size in sizes:
        counts.append(found.counts(given, size))
        given = [have + more for have, more in zip(given, counts[-1], strict=True)]
    return counts


def test_sizes_that_divide_are_cut_alike_each_time() -> None:
    assert set(map(tuple, cut((0.1, 0.7, 0.2), [10] * 1000))) == {(1, 7, 2)}
    assert set(map(tuple, cut((0.5, 0.5), [256] * 100))) == {(128, 128)}


def test_sizes_that_do_not_divide_take_turns() -> None:
    assert cut((0.5, 0.5), [3] * 4) == [[2, 1], [1, 2], [2, 1], [1, 2]]
    assert list(itertools.accumulate(rest for _, rest in cut((0.9, 0.1), [1] * 20)))[9::10] == [1, 2]


@pytest.mark.parametrize(
    "weights", [(0.5,), (0.5, 0), (0.5, -1), (0.5, np.nan), (0.5, np.inf), ("a", "b"), "ab", 0.5, None, (1, 1, 1)]
)
def test_bad_weights(weights: Any) -> None:
    with pytest.raises(InputError, match="fractions must be"):
        shares.of("fractions", weights, 2)


@pytest.mark.parametrize("value", [[-1, 0], [1.0, 0], None, "12", [True, 1], [1], [1, 2, 3], {}])
def test_counts_that_are_none(value: Any) -> None:
    with pytest.raises(ValueError, match="2 whole numbers"):
        shares.of("weights", (1, 1), 2).checked(value)


def test_counts_of_other_shares_are_refused() -> None:
    assert shares.of("weights", (1, 3), 2).checked([25, 75]) == [25, 75]
    with pytest.raises(ValueError, match="have not given their shares"):
        shares.of("weights", (1, 2), 2).checked([25, 75])
