"""The spans of a window's rows, kept only if a view asks for them.

A span is the rows of one environment that belong to one episode. Its *stop* is one past its last row. For each
row and environment, :class:`Spans` holds the span's first row, and the stop once it is known. It catches up with the
log only when a view asks, so adding rows costs nothing. To catch up:

1. It handles all new rows at once. A running maximum forwards finds first rows; a running minimum backwards finds
   stops.
2. If a new row ends a span that was open, it writes the stop to the span's older rows.
3. The last assignment, to ``_end``, says that the new rows are done. If a call is interrupted before it, the next call
   repeats the work.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import StreamLog
from diskreplay.schema.columns import CONTINUES, START, TERMINATED, TRUNCATED, VALID
from diskreplay.schema.ids import Ids, pack
from diskreplay.schema.ring import Table

FIRST, STOP = "first", "stop"
OPEN = np.int64(1 << 62)
"""The stop of a span that has not ended."""


@dataclasses.dataclass(frozen=True)
class EpisodeSpan:
    """Rows ``[start, stop)`` of one environment of a stream, all of one span.

    Attributes:
        stream, num_envs, env: the stream's number, the number of its environments, and the environment.
        start, stop: the rows.
        episode: the number of the episode, as the caller counts.
        step: the number of the first row's step in its episode.
    """

    stream: int
    num_envs: int
    env: int
    start: int
    stop: int
    episode: int
    step: int

    def __len__(self) -> int:
        return self.stop - self.start

    def only(self, start: int, stop: int) -> EpisodeSpan:
        return dataclasses.replace(self, start=start, stop=stop, step=self.step + start - self.start)

    @property
    def ids(self) -> range:
        first, stop = (pack(self.stream, row, self.env, self.num_envs) for row in (self.start, self.stop))
        return range(first, stop, self.num_envs)


class Spans:
    """The spans of one stream. Callers hold ``engine.lock``."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        field = (log.num_envs,), np.int64
        self._table = Table.new({FIRST: field, STOP: field}, log.rows + log.context + 2)
        self._end = 0
        """One past the newest row that was caught up with; the log may have forgotten that row since."""

    def first(self, rows: Ids, envs: Ids) -> Ids:
        """Return each row's span's first row, or the window's first row if the span began before; int64 ``(B,)``."""
        return np.maximum(self._at(FIRST, rows, envs), self._log.begin)

    def stop(self, rows: Ids, envs: Ids) -> Ids:
        """Return one past the newest row of each row's span, int64 ``(B,)``."""
        return np.minimum(self._at(STOP, rows, envs), self._log.end)

    def is_cut(self, rows: Ids, envs: Ids) -> NDArray[np.bool_]:
        """Tell which rows' spans have ended, bool ``(B,)``."""
        cut: NDArray[np.bool_] = self._at(STOP, rows, envs) != OPEN
        return cut

    def _at(self, name: str, rows: Ids, envs: Ids) -> Ids:
        table = self._table
        return table.arrays[name][rows % table.length, envs]

    def catch_up(self) -> None:
        """Find the spans of the rows that were added since the last call."""
        log = self._log
        floor, end = log.floor, log.end
        start = self._end if floor <= self._end <= end else floor
        if start == end:
            self._end = end
            return
        self._table = self._table.with_room(floor, start, end)
        rows = np.arange(start, end)
        taken = {name: log.span(name, start, end) for name in (START, TERMINATED, TRUNCATED, VALID)}
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
        """For each span whose stop is now known, write the stop into the span's rows before row ``start``."""
        for env in np.flatnonzero(stops != OPEN).tolist():
            rows = np.arange(max(int(firsts[env]), self._log.floor), start)
            self._table.arrays[STOP][rows % self._table.length, env] = stops[env]
