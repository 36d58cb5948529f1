"""The large output arrays, whose memory is used again once no caller holds it.

Fresh memory from the system costs a page fault every few kB, which is a good part of the time of a batch of frames. So
blocks are kept. A block is given out again once its reference count says that every array, view and tensor over it is
gone. So the batches of a loader go round, however many wait, and each is the caller's as long as he holds it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST_BYTES = 1 << 17
KEPT = 8
"""The most blocks that are kept although nobody holds them."""
MOST = 64
"""The most blocks that are looked at; what else is given out is freed when it is no longer held."""

_blocks: list[NDArray[np.uint8]] = []
"""The blocks, the one that was given out last at the end."""
# Without the global interpreter lock a count may be out of date: then every block is fresh.
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array as ``numpy.empty``: uninitialised, and referred to by nobody else."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST_BYTES or not _counted:
        return np.empty(shape, dtype)
    blocks, found, unused = _blocks, None, 0
    for _ in range(len(blocks)):
        # Taken out of the list meanwhile, because a signal's handler or another thread may ask for a block, too.
        try:
            block = blocks.pop()
        except IndexError:
            break
        if sys.getrefcount(block) == 2:  # this name and the argument
            if found is None and block.nbytes == size:
                found = block
                continue
            unused += 1
            if unused > KEPT:
                continue
        blocks.insert(0, block)
    if found is None:
        found = np.empty(size, np.uint8)
    made: NDArray[Any] = np.ndarray(shape, dtype, found)  # from here on the block's count says that it is in use
    if len(blocks) >= MOST:
        del blocks[: len(blocks) + 1 - MOST]
    blocks.append(found)
    return made
