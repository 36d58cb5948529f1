"""Which rows a store holds under another library's buffer: asked of the store each time, and counted nowhere else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.stored import StoredBuffer
from diskreplay.index.log import StreamLog
from diskreplay.reading.samples import Samples
from diskreplay.schema import VALID

Ids = NDArray[np.int64]


class Window(NamedTuple):
    """Rows ``[begin, end)``."""

    begin: int
    end: int


def written(buffer: StoredBuffer) -> StreamLog:
    """The log that a buffer writes; needs its lock. ClosedError where the buffer is closed."""
    buffer._check_open()
    part = buffer._streams.written
    assert part is not None, "compat buffers write their store"
    return part.log


def window(buffer: StoredBuffer) -> Window:
    """The rows that are held; ClosedError where the buffer is closed."""
    with buffer._lock:
        log = written(buffer)
        return Window(log.begin, log.end)


def transitions(buffer: StoredBuffer) -> int:
    """How many are held; ClosedError where the buffer is closed."""
    with buffer._lock:
        return len(written(buffer))


def invalid_rows(buffer: StoredBuffer) -> Ids:
    """The rows of a buffer of one environment that are no transition, ascending."""
    with buffer._lock:
        log = written(buffer)
        if not log.invalid:
            return np.empty(0, np.int64)
        return log.begin + np.flatnonzero(~log.span(VALID, log.begin, log.end)[:, 0])


def column(buffer: StoredBuffer, name: str, start: int, stop: int) -> NDArray[Any]:
    """A column of rows ``[start, stop)``, ``(rows, num_envs, *shape)``: from disk where it is too large for RAM."""
    with buffer._lock:
        log, envs = written(buffer), buffer.num_envs
        if name in log.resident:
            return log.span(name, start, stop)
        ids = np.arange(start * envs, stop * envs)
        samples = Samples(buffer.schema, buffer._streams.parts, ids)
        values = samples.values(next(column for column in buffer.schema.columns if column.name == name))
    samples.reads.finish()
    return values.reshape(stop - start, envs, *values.shape[1:])


class Ring:
    """Positions of a ring that is as long as the window: what other libraries call ``pos`` and ``full``.

    An empty ring begins at position 0. So does one that was just opened: its oldest row is at 0.

    Args:
        buffer: whose rows.
        pos: of the next row, where the ring of a buffer that was opened is full; 0 if None.
    """

    def __init__(self, buffer: StoredBuffer, pos: int | None = None) -> None:
        self._buffer = buffer
        with buffer._lock:
            self._size = written(buffer).rows
        begin, end = window(buffer)
        self._origin = begin if pos is None or end - begin < self._size else end - pos
        """A row of position 0, or where one would be."""

    def look(self) -> tuple[Window, int, bool]:
        """The rows, the position of the next one, and whether all positions are taken.

        Must be called before a row is added: it is what sees that the window was emptied.
        """
        begin, end = window(self._buffer)
        if begin == end:
            self._origin = end
        return Window(begin, end), (end - self._origin) % self._size, end - begin == self._size

    @property
    def pos(self) -> int:
        """The position of the next row."""
        return self.look()[1]

    @property
    def full(self) -> bool:
        """Whether all positions are taken."""
        return self.look()[2]

    def rows(self, positions: Ids) -> tuple[Ids, Ids]:
        """The newest rows at positions, and which of them are held: places among the positions."""
        (begin, end), pos, _ = self.look()
        rows = end - 1 - (pos - 1 - positions) % self._size
        return rows, np.flatnonzero(rows >= begin)
