"""The memory into which a thread decodes chunks. It is used again and again, so it stays in the processor's cache."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_local = threading.local()


@contextlib.contextmanager
def scratch(size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield uninitialised room for ``size`` bytes or more, which only the block may use.

    A signal's handler that reads a batch meanwhile, in the same thread, gets other memory.
    """
    rooms: list[NDArray[np.uint8]] = _local.__dict__.setdefault("rooms", [])
    room = rooms.pop() if rooms else np.empty(size, np.uint8)
    if len(room) < size:
        room = np.empty(size, np.uint8)
    try:
        yield room
    finally:
        if len(rooms) < 2:  # encoded and decoded
            rooms.append(room)
