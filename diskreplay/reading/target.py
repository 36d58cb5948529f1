"""The arrays that the steps of sampled rows fill: observations and next observations at once, in separate memory.

A stack of ``k`` frames and the next stack are ``k + 1`` consecutive steps, of which ``k - 1`` are in both. Each step is
read once and written to both arrays. A program may change one array in place, and must not find the other one changed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.schema.ids import Ids


@dataclasses.dataclass(frozen=True)
class Target:
    """The arrays for the consecutive steps of each sample, all of one shape and dtype.

    Attributes:
        first: the array for the steps from 0 on, ``(batch, frames, *shape)``.
        following: the array for the steps from 1 on, of the same shape; None if it is not wanted.
    """

    first: Array
    following: Array | None = None

    def __len__(self) -> int:
        return len(self.first)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays to fill."""
        return (self.first,) if self.following is None else (self.first, self.following)

    @property
    def steps(self) -> int:
        """The number of steps of a sample, those of both arrays together."""
        return int(self.first.shape[1]) + len(self.arrays) - 1

    @property
    def bytes(self) -> list[NDArray[np.uint8]] | None:
        """The arrays as bytes, ``(batch, frames * row_bytes)``, or None if they are not contiguous."""
        found = []
        for array in self.arrays:
            if not array.flags.c_contiguous or not array.size:
                return None
            count = len(array)
            found.append(np.ndarray((count, array.nbytes // count), np.uint8, array))  # half of `view`
        return found

    def holds(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Tell whether the steps have this dtype and shape."""
        return self.first.dtype == dtype and self.first.shape[2:] == shape

    def put(self, place: int, step: int, values: Array) -> None:
        """Put consecutive steps ``(n, *shape)`` of one sample."""
        for shift, array in enumerate(self.arrays):
            low = max(step, shift)
            high = max(low, min(step + len(values), shift + array.shape[1]))
            array[place, low - shift : high - shift] = values[low - step : high - step]

    def put_each(self, place: Any, step: int | Ids, values: Array) -> None:
        """Put one step ``(n, *shape)`` of some samples, the same step for all, or one for each."""
        for shift, array in enumerate(self.arrays):
            if isinstance(step, int):
                if 0 <= step - shift < array.shape[1]:
                    array[place, step - shift] = values
                continue
            here = (step >= shift) & (step - shift < array.shape[1])
            array[place[here], step[here] - shift] = values[here]

    def repeat(self, place: int, count: int) -> None:
        """Set the first ``count`` steps of a sample to the value of the next step."""
        self.put(place, 0, np.broadcast_to(self.first[place, count], (count, *self.first.shape[2:])))
