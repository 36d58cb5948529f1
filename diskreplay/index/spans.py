"""The episodes that the rows of a window belong to, kept only if a view asks for them.

A span is a run of rows of one environment from a row that does not continue the one before it to a cut. Like a sampler,
the index catches up with the log when it is asked, so that adding rows costs nothing. For each row and environment it
holds the span's first row, and its stop as soon as it is known:

1. New rows are looked at together: firsts are a running maximum forwards, stops a running minimum backwards.
2. A span that was open before and is cut now has its stop written to its older rows.
3. New rows become valid with the last assignment. If a call is interrupted before it, the next call repeats the work.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids
from diskreplay.index.log import StreamLog
from diskreplay.ring import Table
from diskreplay.schema import CONTINUES, START, TERMINATED, TRUNCATED, VALID

FIRST, STOP = "first", "stop"
OPEN = np.int64(1 << 62)
"""The stop of a span that is not cut yet."""


class Spans:
    """The spans of one stream; the lock of the buffer that owns it guards every call."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        field = (log.num_envs,), np.int64
        self._table = Table.new({FIRST: field, STOP: field}, log.rows + log.context + 2)
        self._end = 0
        """One past the newest row that is taken in; rows below the log's floor do not count."""

    def first(self, rows: Ids, envs: Ids) -> Ids:
        """Return the first row of each row's span, as far as it is in the window, ``(B,)``."""
        found: Ids = np.maximum(self._at(FIRST, rows, envs), self._log.begin)
        return found

    def stop(self, rows: Ids, envs: Ids) -> Ids:
        """Return one past the last row of each row's span, as far as it has been added, ``(B,)``."""
        found: Ids = np.minimum(self._at(STOP, rows, envs), self._log.end)
        return found

    def is_cut(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows' spans have come to their end, ``(B,)``."""
        cut: NDArray[np.bool_] = self._at(STOP, rows, envs) != OPEN
        return cut

    def _at(self, name: str, rows: Ids, envs: Ids) -> Ids:
        table = self._table
        found: Ids = table.arrays[name][rows % table.length, envs]
        return found

    def catch_up(self) -> None:
        """Take in the rows added since the last call."""
        log = self._log
        floor, end = log.floor, log.end
        start = self._end if floor <= self._end <= end else floor
        if start == end:
            self._end = end
            return
        self._table = self._table.with_room(floor, start, end)
        rows = np.arange(start, end)
        taken = {name: log.table.take(name, rows) for name in (START, TERMINATED, TRUNCATED, VALID)}
        fresh = taken[START] != CONTINUES
        cut = taken[TERMINATED] | taken[TRUNCATED] | ~taken[VALID]
        cut[:-1] |= fresh[1:]
        held = start > floor
        older = self._table.span(FIRST, start - 1, start)[0] if held else np.full(log.num_envs, start)
        firsts = np.where(fresh, rows[:, None], 0)
        firsts[0] = np.maximum(firsts[0], np.where(fresh[0], start, older))
        stops = np.where(cut, rows[:, None] + 1, OPEN)
        stops = np.minimum.accumulate(stops[::-1], axis=0)[::-1]
        if held:
            self._close(older, np.where(fresh[0], start, stops[0]), start)
        at = rows % self._table.length
        self._table.arrays[FIRST][at] = np.maximum.accumulate(firsts, axis=0)
        self._table.arrays[STOP][at] = stops
        self._end = end

    def _close(self, firsts: Ids, stops: Ids, start: int) -> None:
        """Write the stops, now known, of spans that were open at row ``start`` to their rows before it."""
        for env in np.flatnonzero(stops != OPEN).tolist():
            rows = np.arange(max(int(firsts[env]), self._log.floor), start)
            self._table.arrays[STOP][rows % self._table.length, env] = stops[env]
