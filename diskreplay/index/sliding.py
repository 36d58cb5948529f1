"""Arrays that lose entries at the front and get new ones at the back; the entries between stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Sequence[NDArray[Any]]


class Sliding:
    """Arrays ``(n,)``; when they reach the end of their memory, they move to memory for twice as many entries."""

    def __init__(self, arrays: Arrays) -> None:
        self._held = list(arrays)
        self._low, self._high = 0, len(arrays[0])

    def arrays(self) -> list[NDArray[Any]]:
        """Return the arrays; what they show changes with the next :meth:`replace`."""
        return [array[self._low : self._high] for array in self._held]

    def replace(self, first: int, stop: int, lead: Arrays, tail: Arrays) -> None:
        """Keep entries ``[first, stop)``; put ``lead`` before them and ``tail`` after.

        ``lead`` may have at most ``first`` entries.
        """
        low, kept = self._low + first - len(lead[0]), stop - first
        at = len(lead[0])
        count = at + kept + len(tail[0])
        held = self._held
        if low + count > len(held[0]):
            low, held = 0, [np.empty(2 * count, array.dtype) for array in held]
            for array, old in zip(held, self.arrays(), strict=True):
                array[at : at + kept] = old[first:stop]
        for array, before, after in zip(held, lead, tail, strict=True):
            if array.dtype == object and held is self._held:
                array[self._low : low] = None  # so that nothing keeps these objects alive
            array[low : low + at] = before
            array[low + at + kept : low + count] = after
        self._held, self._low, self._high = held, low, low + count
