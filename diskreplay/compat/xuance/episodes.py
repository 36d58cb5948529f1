"""The finished episodes in the rows of a store for one environment, each of whose rows knows its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.compat.rows import RowWindow, column, window
from diskreplay.schema.ids import Ids

STEP = "step"
"""The name of the column that holds a row's step in its episode."""


class FinishedEpisodes:
    """The finished episodes, counted as they are found in the rows; halves left by a crash are passed over.

    Args:
        engine: the store.
        most: episodes that are held; older ones are passed over, too.
        ended: a mask of the rows ``[start, stop)``, True for the last row of an episode.
    """

    def __init__(self, engine: SampledBuffer[Any], most: int, ended: Callable[[int, int], NDArray[np.bool_]]) -> None:
        self._engine, self._most, self._ended = engine, most, ended
        self._found = RowWindow(0, 0), 0, np.empty((0, 2), np.int64)
        """The rows that were looked at, how many episodes were found, and the first rows and lengths of those held."""

    def held(self) -> RowWindow:
        """Return the numbers of the episodes that are held."""
        count, held = self._look()
        return RowWindow(count - len(held), count)

    def at(self, numbers: Any) -> tuple[Any, Any]:
        """Return the first rows, and the numbers of steps, of episodes that are held."""
        count, held = self._look()
        found = held[numbers - (count - len(held))]
        return found[..., 0], found[..., 1]

    def _look(self) -> tuple[int, Ids]:
        rows, (seen, count, held) = window(self._engine), self._found
        if rows != seen:
            start = max(seen.end, rows.begin)
            last = np.flatnonzero(self._ended(start, rows.end))
            steps = column(self._engine, STEP, start, rows.end)[last, 0].astype(np.int64)
            newer = np.stack([start + last - steps, steps + 1], axis=1)
            newer = newer[newer[:, 0] >= rows.begin]
            held = np.concatenate([held[held[:, 0] >= rows.begin], newer])[-self._most :]
            count += len(newer)
            self._found = rows, count, held
        return count, held
