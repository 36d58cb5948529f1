"""Arrays addressed by ids that only ever grow.

A :class:`Ring` holds the values of ids ``[begin, end)``, half-open, in arrays of one length: the value of ``id`` stands
at ``id % length``. It grows when the span no longer fits, so nothing is lost by a ring that was made too small.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Ring:
    """The values of ids ``[begin, end)``: ``ring.array[ids % ring.length]`` is ``(*ids.shape, *shape)``."""

    __slots__ = ("array", "begin", "end", "length")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, length: int = 1024) -> None:
        self.length = max(int(length), 1)
        self.array: NDArray[Any] = np.zeros((self.length, *shape), dtype)
        self.begin = 0
        self.end = 0

    def reserve(self, end: int) -> None:
        """Makes room for ids up to ``end``; their values are undefined until they are set."""
        if end - self.begin > self.length:
            length = max(end - self.begin, 2 * self.length)
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
