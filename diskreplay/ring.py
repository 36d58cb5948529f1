"""Arrays addressed by ids that only ever grow.

A :class:`Ring` holds the values of ids ``[begin, end)``, half-open: the value of ``id`` stands at ``id % length``. It
grows when they no longer fit, so it takes memory for what it holds, and nothing is lost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

FIRST_LENGTH = 1024
FIRST_VALUES = 1 << 22
"""Numbers in a new ring, at most, as long as that is room for a few ids."""


class Ring:
    """The values of ids ``[begin, end)``: ``ring.array[ids % ring.length]`` is ``(*ids.shape, *shape)``."""

    __slots__ = ("array", "begin", "end", "length", "most")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, most: int = 1 << 62) -> None:
        """``most`` is the number of ids that will be held at a time, as far as is known; more is no error."""
        self.length = min(FIRST_LENGTH, max(most, 1), max(4, FIRST_VALUES // max(1, math.prod(shape))))
        self.most = most
        self.array: NDArray[Any] = np.zeros((self.length, *shape), dtype)
        self.begin = 0
        self.end = 0

    def reserve(self, end: int) -> None:
        """Makes room for ids up to ``end``; their values are undefined until they are set."""
        needed = end - self.begin
        if needed > self.length:
            length = max(needed, min(2 * self.length, self.most))
            array = np.zeros((length, *self.array.shape[1:]), self.array.dtype)
            ids = np.arange(self.begin, self.end)
            array[ids % length] = self.array[ids % self.length]
            self.array, self.length = array, length
        self.end = max(self.end, end)

    def extend(self, values: NDArray[Any]) -> None:
        """Appends ``values`` (n, *shape) at ``end``."""
        start = self.end
        self.reserve(start + len(values))
        self.array[np.arange(start, self.end) % self.length] = values

    def trim(self, begin: int) -> None:
        """Forgets the ids below ``begin``."""
        self.begin = max(self.begin, begin)
        self.end = max(self.end, self.begin)

    def restart(self, at: int) -> None:
        """Forgets everything; the next id is ``at``."""
        self.begin = self.end = at

    def take(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        """A copy of the values of ``ids``."""
        return self.array[ids % self.length]

    def span(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of the values of ``[start, stop)``."""
        return self.array[np.arange(start, stop) % self.length]
