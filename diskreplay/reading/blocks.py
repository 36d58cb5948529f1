"""Large output arrays, used again when nobody holds them any more.

Memory that is fresh from the system costs a page fault every few kB, which for a batch of frames is a good part of the
time that sampling takes. So each thread keeps its last few blocks, and gives one out again once its reference count
says that every array, view and tensor over it is gone.
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

_local = threading.local()
# Without the global interpreter lock a count may be out of date: then every block is fresh.
_counted = getattr(sys, "_is_gil_enabled", lambda: True)()


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """As ``numpy.empty``: uninitialised, and referred to by nobody else."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LEAST_BYTES or not _counted:
        return np.empty(shape, dtype)
    blocks: list[NDArray[np.uint8]] = _local.__dict__.setdefault("blocks", [])
    for position in range(len(blocks)):
        # Two references: the list's and the argument's.
        if blocks[position].nbytes == size and sys.getrefcount(blocks[position]) == 2:
            return blocks[position].view(dtype).reshape(shape)
    if len(blocks) == KEPT:
        del blocks[0]
    blocks.append(np.empty(size, np.uint8))
    return blocks[-1].view(dtype).reshape(shape)
