"""Integers by the core are those of numpy's generators, and leave these in the same state."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from diskreplay.native import core
from diskreplay.sampling import in_core

WIDTHS = [2, 3, 100, 1 << 20, 3 << 30, (1 << 32) - 1]
KINDS = [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_those_of_numpy(kind: type[np.random.BitGenerator]) -> None:
    ours, theirs, choice = kind(5), np.random.Generator(kind(5)), np.random.default_rng(0)
    for _ in range(40):
        for width in WIDTHS:
            low, size = int(choice.integers(1 << 60)), int(choice.integers(1, 50))
            found = core.draw_integers(ours.capsule, low, low + width, size)
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found, theirs.integers(low, low + width, size))
    assert repr(ours.state) == repr(theirs.bit_generator.state)


@pytest.mark.parametrize("width", [1, (1 << 32), -3])
def test_other_widths_are_refused(width: int) -> None:
    with pytest.raises(ValueError, match="2 to"):
        core.draw_integers(np.random.PCG64(0).capsule, 5, 5 + width, 1)


def test_code_that_draws_otherwise_is_not_used() -> None:
    assert in_core._is_same()
    with mock.patch.object(core, "draw_integers", lambda capsule, low, high, size: np.zeros(size, np.int64)):
        assert not in_core._is_same()
