"""Which episode each row of a window belongs to; kept only where a view asks for it.

A span is a run of rows of one environment from a row that does not continue the one before it to a cut. Like a sampler,
the index catches up with the log when it is asked, so that adding rows costs nothing. For each row and environment it
holds the span's first row, and its stop as soon as it is known:

1. New rows are looked at together: firsts are a running maximum forwards, stops a running minimum backwards.
2. A span that was open before and is cut now has its stop written to its older rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import StreamLog
from diskreplay.ring import Ring
from diskreplay.schema import START, TERMINATED, TRUNCATED, VALID, Start

Ids = NDArray[np.int64]

OPEN = np.int64(1 << 62)
"""Stop of a span that is not cut yet."""


class Spans:
    """Spans of one stream; the lock of the buffer that owns it guards every call."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        length = log.rows + log.context + 2
        self._first = Ring((log.num_envs,), np.int64, length)
        self._stop = Ring((log.num_envs,), np.int64, length)

    def first(self, rows: Ids, envs: Ids) -> Ids:
        """First row of each row's span, as far as it is in the window: ``(B,)``."""
        found: Ids = np.maximum(self._first.array[rows % self._first.length, envs], self._log.begin)
        return found

    def stop(self, rows: Ids, envs: Ids) -> Ids:
        """One past the last row of each row's span, as far as it has been added: ``(B,)``."""
        found: Ids = np.minimum(self._stop.array[rows % self._stop.length, envs], self._log.end)
        return found

    def is_cut(self, rows: Ids, envs: Ids) -> NDArray[np.bool]:
        """Whether each row's span has come to its end: ``(B,)``."""
        cut: NDArray[np.bool] = self._stop.array[rows % self._stop.length, envs] != OPEN
        return cut

    def catch_up(self) -> None:
        """Takes in the rows added since the last call."""
        log = self._log
        if self._first.end > log.end or self._first.end < log.floor:
            for ring in (self._first, self._stop):
                ring.restart(log.floor)
        start, end = self._first.end, log.end
        for ring in (self._first, self._stop):
            ring.begin = log.floor
        if start == end:
            return
        rows = np.arange(start, end)
        fresh = log.rings[START].take(rows) != Start.CONTINUES
        cut = log.rings[TERMINATED].take(rows) | log.rings[TRUNCATED].take(rows) | ~log.rings[VALID].take(rows)
        cut[:-1] |= fresh[1:]
        held = start > log.floor
        older = self._first.take(rows[:1] - 1)[0] if held else np.full(log.num_envs, start)
        firsts = np.where(fresh, rows[:, None], 0)
        firsts[0] = np.maximum(firsts[0], np.where(fresh[0], start, older))
        stops = np.where(cut, rows[:, None] + 1, OPEN)
        stops = np.minimum.accumulate(stops[::-1], axis=0)[::-1]
        if held:
            self._close(older, np.where(fresh[0], start, stops[0]), start)
        self._first.extend(np.maximum.accumulate(firsts, axis=0))
        self._stop.extend(stops)

    def _close(self, firsts: Ids, stops: Ids, start: int) -> None:
        """Writes the stops, now known, of spans that were open at row ``start`` to their rows before it."""
        for env in np.flatnonzero(stops != OPEN).tolist():
            rows = np.arange(max(int(firsts[env]), self._log.floor), start)
            self._stop.array[rows % self._stop.length, env] = stops[env]
