"""The append-only log of bytes beside a stream's rows: what it holds, what of it is dead, what no commit has yet.

The bytes are records, one behind another. What they say, and which of them count, is the business of a
:class:`Content`; :data:`CONTENTS` has the kinds. All that follows from being a log is done here, once:

1. To write is to append records: they wait here until a commit has the log's column take them.
2. To catch up, with a commit of another writer or with what was appended just now, is to enter into the content the
   records behind the last one that it knows.
3. If the log exceeds twice what still counts in it (and some slack), each commit looks through some of its oldest
   records, and writes again at the log's end what still counts. So a commit costs in proportion to what it writes, and
   the log stays below about three times what still counts.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError, ReadFailedError
from diskreplay.ids import Ids
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.later_values import LaterValues
from diskreplay.index.log import StreamLog
from diskreplay.schema import INFO, LATER, Schema
from diskreplay.storage.column import ColumnReader, ColumnWriter

LOOK_SHARE = 4
"""The share of old records that a commit looks through: so many times the bytes that came, a part of the slack."""
READ_BYTES = 1 << 22
"""The bytes of a log that are read at once, unless a record has more."""

Bytes = NDArray[np.uint8]


class Content(Protocol):
    """The content in RAM of the records of a log; a record is an object whose ``after`` is one past its last byte.

    Attributes:
        what: it is, for messages.
        slack: bytes by which the log may exceed twice what still counts, before it is cleaned up.
        log: the rows that it belongs to.
        unwritten: True if :meth:`news` has something.
    """

    what: str
    slack: int
    log: StreamLog

    @property
    def unwritten(self) -> bool: ...

    def restart(self) -> None:
        """Forget what came from the log."""

    def records(self, data: Bytes, at: int) -> Iterator[Any]:
        """Yield the whole records at byte ``at`` of the log; raise ValueError for what is not a record."""

    def take(self, record: Any) -> None:
        """Enter the next record of the log; entering it twice does no harm."""

    def news(self, at: int) -> tuple[Bytes, Sequence[Any] | None]:
        """Return bytes for byte ``at`` of the log that no record has yet, and their records if at hand."""

    def again(self, record: Any) -> bytes:
        """Return the part of a record that still counts, as records."""

    def living_bytes(self) -> int:
        """Return the bytes of the records that count; what is in RAM of others may be forgotten."""

    def problems(self) -> Iterator[str]:
        """Yield what the records say and no writer may."""


CONTENTS: dict[str, Callable[[Schema, StreamLog], Content]] = {
    INFO: lambda schema, log: EpisodeFacts(log),
    LATER: lambda schema, log: LaterValues(schema.later, log),
}
"""The function that makes the content of each kind of log, by path of :data:`~diskreplay.schema.LOGS`."""


def read_records(
    content: Content, column: ColumnReader, start: int, stop: int, size: int | None = None
) -> Iterator[Any]:
    """Yield the committed records of bytes ``[start, stop)``, read ``size`` at a time; raise ValueError for others."""
    size = READ_BYTES if size is None else size
    while start < stop:
        data = column.read_rows(start, min(stop, start + size)).reshape(-1)
        after = start
        for record in content.records(data, start):
            yield record
            after = record.after
        if after == start:
            if start + len(data) == stop:
                raise ValueError(f"the record at byte {start} is cut off at the log's last, {stop}")
            size *= 2
        start = after


class ByteLog:
    """One log of a stream; the lock of the buffer that owns it guards every call.

    Attributes:
        content: what the records say.
        column: has the bytes that a commit holds.
        begin, end: the bytes that are needed, and have been entered by the content.
        waiting: the newest records, which no commit holds: where each run of them begins, and its bytes, in order.
    """

    def __init__(self, content: Content, column: ColumnReader) -> None:
        self.content = content
        self.column = column
        self.begin = self.end = 0
        self.waiting: list[tuple[int, Bytes]] = []
        self._looked = 0, content.log.begin, 0
        """The log's end and the window's begin when living bytes were counted, and their number."""

    def catch_up(self, begin: int, end: int) -> None:
        """Enter the records of a commit, whose log has bytes ``[begin, end)``; raise ValueError for anything else."""
        # The log of a writer that does not know of it is gone; the one that comes after begins anew.
        if begin > self.end or begin < self.begin or end < self.end:
            if self.end:
                self.content.restart()
            self._looked = begin, self.content.log.begin, 0
            self.begin = self.end = begin
        self._take(read_records(self.content, self.column, self.end, end))
        self.begin = begin
        self._living()

    def _take(self, records: Iterable[Any]) -> None:
        for record in records:
            self.content.take(record)
            self.end = record.after

    # Writing

    @property
    def unwritten(self) -> bool:
        """True if a commit has something to write."""
        return bool(self.waiting) or self.content.unwritten

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes in RAM that wait for a commit."""
        return self.end - self.waiting[0][0] if self.waiting else 0

    def append(self, data: Bytes, records: Sequence[Any] | None = None) -> None:
        """Put records behind the others, and have the content take them over."""
        if len(data):
            self.waiting.append((self.end, data))
            self._take(self.content.records(data, self.end) if records is None else records)

    def put(self, column: ColumnWriter) -> int:
        """Have the log's column take what waits, for a commit, and return the log's first byte that is needed.

        What the content knows and no record says is appended before, and what is dead is looked for.
        """
        self.durable()  # a commit may have been interrupted when it had happened
        self.append(*self.content.news(self.end))
        # Where the log cannot be read, it only goes on growing: what is written next is not lost by that.
        with contextlib.suppress(CorruptionError, ReadFailedError, ValueError):
            self._clean()
        column.rewind(column.committed)
        for _, data in self.waiting:
            column.append(data)
        return self.begin

    def durable(self) -> None:
        """Forget the bytes that waited and that a commit holds."""
        self.waiting = [one for one in self.waiting if one[0] >= self.column.committed]

    def take_waiting(self, at: Ids, place: Ids, out: Bytes) -> NDArray[np.bool_]:
        """Copy what no commit holds, of the bytes from ``at`` (n,) on, to rows ``place`` of ``out``.

        Which ones these are, ``(n,)``.
        """
        first = self.waiting[0][0] if self.waiting else self.end
        found: NDArray[np.bool_] = at >= first
        for byte, row in zip(at[found].tolist(), place[found].tolist(), strict=True):
            begin, data = self.waiting[bisect.bisect_right(self.waiting, byte, key=operator.itemgetter(0)) - 1]
            out[row] = data[byte - begin : byte - begin + out.shape[1]]
        return found

    # What is dead

    def _living(self) -> int:
        """Return the bytes that count, counted anew after the log has grown by as much, or the window moved on."""
        end, begin, living = self._looked
        log = self.content.log
        if self.end - end > max(self.content.slack, living) or log.begin - begin > log.rows:
            living = self.content.living_bytes()
            self._looked = self.end, log.begin, living
        return living

    def _clean(self) -> None:
        """Look through some of the oldest records, if much of the log is dead."""
        content, committed = self.content, self.column.committed
        most = 2 * self._living() + content.slack
        left = LOOK_SHARE * (self.end - committed) + content.slack // LOOK_SHARE
        begin, last, kept = self.begin, self.begin + left, bytearray()
        records = read_records(content, self.column, begin, committed, min(left, READ_BYTES))
        while begin < last and self.end + len(kept) - begin > most and (record := next(records, None)) is not None:
            kept += content.again(record)
            begin = record.after
        self.append(np.frombuffer(kept, np.uint8))
        self.begin = begin
