"""The table of cuts: which rows begin a run, and which are no transitions, to be known without reading rows.

An entry is row, environment and code, for each row and environment whose start code is not 0, in the order of rows and
environments. A row that is no transition always has such a code; its entry's code has :data:`INVALID` added.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import StreamLog
from diskreplay.schema.columns import START, VALID

INVALID = 16
"""What is added to the code of a row that is no transition."""

Places = NDArray[np.int64]


def of_rows(starts: NDArray[np.uint8], valid: NDArray[np.bool_], first: int) -> Places:
    """Return the entries ``(n, 3)`` of rows from ``first`` on, given by ``(rows, num_envs)``."""
    rows, envs = np.nonzero(starts)
    codes = starts[rows, envs].astype(np.int64) + INVALID * ~valid[rows, envs]
    return np.stack([rows + first, envs, codes], axis=1)


class Cuts:
    """The table of cuts of a stream that is written.

    Args:
        log: the rows of the stream.
        known: the entries ``(n, 3)`` of the last commit, from ``first`` on.
        end: the rows of that commit.
    """

    def __init__(self, log: StreamLog, known: Places, first: int, end: int) -> None:
        self._log = log
        self._rows = known[:, 0]
        """The row of each entry from ``begin`` on."""
        self.begin = first
        """The first entry that a row of the window or its context needs."""
        self._end = end

    def new(self) -> Places:
        """Return the entries ``(n, 3)`` of the rows since the last call, and move :attr:`begin` on."""
        log, floor = self._log, self._log.floor
        first = min(max(self._end, floor), log.end)
        found = of_rows(log.span(START, first, log.end), log.span(VALID, first, log.end), first)
        gone = int(np.searchsorted(self._rows, floor))
        self._rows, self._end = np.concatenate([self._rows[gone:], found[:, 0]]), log.end
        self.begin += gone
        return found
