"""Integers of a generator: those of its own method, by compiled code if another part of the program has loaded numba.

numpy takes longer to look at its arguments than to draw a batch. Both ways draw the same integers and leave the
generator in the same state. That is looked at when the code is loaded: numpy may draw in another way some day.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types

import numpy as np

from diskreplay.loading import BackgroundImport
from diskreplay.schema.ids import Ids

MOST = (1 << 32) - 1
"""The widest range that 32 bits are drawn for."""


def integers(rng: np.random.Generator, low: int, high: int, size: int) -> Ids:
    """Return ``rng.integers(low, high, size)``, int64."""
    code = BOUNDED.code or (BOUNDED.begin() if "diskreplay.index.jit" in sys.modules else None)
    if code is None or not 1 < high - low <= MOST or type(rng) is not np.random.Generator:
        return rng.integers(low, high, size)
    return _drawn(code, rng, low, high, size)


def _drawn(code: types.ModuleType, rng: np.random.Generator, low: int, high: int, size: int) -> Ids:
    """Do as :func:`integers` by compiled code."""
    bits = rng.bit_generator
    with bits.lock:
        found: Ids = code.bounded(*_addresses(bits), low, high - low - 1, size)
    return found


@functools.lru_cache(maxsize=8)
def _addresses(bits: np.random.BitGenerator) -> tuple[int, int]:
    """Return where a bit generator's state is, and its function for 32 bits; they stay where they are."""
    found = bits.ctypes
    return found.state_address, ctypes.cast(found.next_uint32, ctypes.c_void_p).value or 0


def _load() -> types.ModuleType | None:
    from diskreplay.index import bounded

    ours, theirs = np.random.default_rng(0), np.random.default_rng(0)
    width = 3 << 30  # of which a quarter is drawn again
    same = np.array_equal(_drawn(bounded, ours, 0, width, 256), theirs.integers(0, width, 256))
    return bounded if same and ours.bit_generator.state == theirs.bit_generator.state else None


BOUNDED = BackgroundImport(_load)
"""The loading of :mod:`diskreplay.index.bounded`."""
