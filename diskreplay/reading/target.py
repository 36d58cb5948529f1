"""The arrays that the steps of sampled rows fill: observations and next observations at once, in separate memory.

A stack of ``k`` frames and the next stack are ``k + 1`` consecutive steps, of which ``k - 1`` are in both. Each step is
read once and written to both arrays. A program may change one array in place, and must not find the other one changed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array


@dataclasses.dataclass(frozen=True)
class Target:
    """The arrays for the consecutive steps of each sample, all of one shape and dtype.

    Attributes:
        first: the array for the steps from 0 on, ``(batch, frames, *shape)``.
        following: the array for the steps from 1 on, of the same shape; None if it is not wanted.
    """

    first: Array
    following: Array | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays to fill."""
        return (self.first,) if self.following is None else (self.first, self.following)

    @property
    def bytes(self) -> list[NDArray[np.uint8]]:
        """The arrays, which are contiguous and not empty, as bytes, ``(batch, frames * row_bytes)``."""
        return [np.ndarray((len(array), array.nbytes // len(array)), np.uint8, array) for array in self.arrays]

    def put(self, place: int, step: int, values: Array, places: int = 1) -> None:
        """Put consecutive steps ``(n, *shape)`` of one sample, or of samples that are a run, one step each."""
        for shift, array in enumerate(self.arrays):
            low = max(step, shift)
            high = max(low, min(step + len(values), shift + array.shape[1] + places - 1))
            steps = array[place] if places == 1 else array[place : place + places, 0]
            steps[low - shift : high - shift] = values[low - step : high - step]

    def repeat(self, place: int, count: int) -> None:
        """Set the first ``count`` steps of a sample to the value of the next step."""
        self.put(place, 0, np.broadcast_to(self.first[place, count], (count, *self.first.shape[2:])))
