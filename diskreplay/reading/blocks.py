"""The large output arrays, whose memory is used again once no caller holds it.

Fresh memory from the system costs a page fault every few kB, which is a good part of the time of a batch of frames. So
each thread keeps its last few blocks. It gives a block out again once the block's reference count says that every
array, view and tensor over it is gone.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LEAST_BYTES = 1 << 17
KEPT = 8


class _OfThread(threading.local):
    """The blocks of a thread, the one that was given out last at the end."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.uint8]] = []


_local = _OfThread()
# Without the global interpreter lock a count may be out of date: then every block is fresh.
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array as ``numpy.empty``: uninitialised, and referred to by nobody else."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < LEAST_BYTES or not _counted:
        return np.empty(shape, dtype)
    blocks = _local.blocks
    found = None
    for _ in range(len(blocks)):
        # Taken out of the list meanwhile, because a signal's handler may ask for a block, too.
        block = blocks.pop(0) if blocks else None
        # Two references: this name and the argument.
        if block is not None and block.nbytes == size and sys.getrefcount(block) == 2:
            found = block
            break
        if block is not None:
            blocks.append(block)
    if found is None:
        found = np.empty(size, np.uint8)
    made: NDArray[Any] = np.ndarray(shape, dtype, found)  # from here on the block's count says that it is in use
    if len(blocks) >= KEPT:
        del blocks[: len(blocks) + 1 - KEPT]
    blocks.append(found)
    return made
