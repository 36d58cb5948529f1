"""The memory into which chunks are decoded. It is used again and again, so it stays in the processor's cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MOST_ROOMS = 4
"""The rooms that are kept: a thread uses one for what is encoded, and one for what is decoded."""

_rooms: list[NDArray[np.uint8]] = []


@contextlib.contextmanager
def scratch(size: int) -> Iterator[NDArray[np.uint8]]:
    """Yield uninitialised room for ``size`` bytes or more, which only the block may use."""
    room = None
    with contextlib.suppress(IndexError):
        room = _rooms.pop()
    if room is None or len(room) < size:
        room = np.empty(size, np.uint8)
    try:
        yield room
    finally:
        if len(_rooms) < MOST_ROOMS:
            _rooms.append(room)
