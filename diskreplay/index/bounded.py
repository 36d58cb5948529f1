"""Integers in a range, drawn by compiled code from a bit generator of numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import INT, LONG, foreign, kernel

Int = Any
"""A compiled int64."""

_next = foreign(INT, LONG)  # takes the address of the state, returns the next 32 bits


@kernel
def bounded(state: Int, next_uint32: Int, low: Int, most: Int, size: Int) -> NDArray[np.int64]:
    """Return integers ``(size,)`` in ``[low, low + most]``, as ``Generator.integers`` of numpy 1.17 to 2.4 draws them.

    The method is that of Lemire, "Fast Random Integer Generation in an Interval" (2019). Random 32 bits are multiplied
    by ``most + 1``, and the upper half of the product is the integer. If the lower half is below the remainder of
    ``2**32 / (most + 1)``, it draws again: otherwise some integers would come more often than others.

    Args:
        state, next_uint32: addresses, as ``BitGenerator.ctypes`` names them; the caller holds the bit generator's lock.
        low: the least integer.
        most: from 1 to ``2**32 - 2``.
        size: how many.
    """
    found = np.empty(size, np.int64)
    half, count = np.uint64(0xFFFFFFFF), np.uint64(most + 1)
    too_many = np.uint64(1 << 32) % count
    for k in range(size):
        product = (np.uint64(_next(next_uint32, (state,))) & half) * count
        while product & half < too_many:
            product = (np.uint64(_next(next_uint32, (state,))) & half) * count
        found[k] = low + np.int64(product >> np.uint64(32))
    return found
