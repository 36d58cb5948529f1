"""The append-only log of bytes beside a stream's rows: its records, which of them are dead, which wait for a commit.

The bytes are records, one after another. A :class:`Content` knows what they mean and which of them still count;
:data:`CONTENTS` has the kinds. This module does what all logs have in common:

1. Writing appends records. They wait here until a commit puts them into the log's column.
2. Catching up enters new records into the content: those of another writer's commit, or those that were just appended.
3. If the log is longer than twice the bytes that still count, and some slack, each commit looks through some of the
   oldest records, and appends again those that still count. So a commit costs in proportion to what it writes, and the
   log stays below about three times the bytes that count.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Bytes
from diskreplay.errors import CorruptionError, ReadFailedError
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.later_values import LaterValues
from diskreplay.index.log import StreamLog
from diskreplay.schema.columns import INFO, LATER, Schema
from diskreplay.schema.ids import Ids
from diskreplay.storage.column import ColumnReader, ColumnWriter

LOOK_SHARE = 4
"""A commit looks through this many times the bytes that it adds, and through the slack divided by this number."""
READ_BYTES = 1 << 22
"""The most bytes of a log that are read in one go, unless a record has more."""


class Content(Protocol):
    """What the records of a log say, in RAM. A record is an object whose ``after`` is one past the record's last byte.

    Attributes:
        what: the words for the content, for messages.
        slack: the bytes by which the log may exceed twice the bytes that still count before it is cleaned up.
        log: the rows to which the content belongs.
        unwritten: True if :meth:`news` has bytes.
    """

    what: str
    slack: int
    log: StreamLog

    @property
    def unwritten(self) -> bool: ...

    def restart(self) -> None:
        """Forget all that came from the log."""

    def records(self, data: Bytes, at: int) -> Iterator[Any]:
        """Yield the complete records of ``data``, from byte ``at`` of the log on; raise ValueError for a bad one."""

    def take(self, record: Any) -> None:
        """Enter the next record of the log; entering it twice has the same effect as once."""

    def news(self, at: int) -> tuple[Bytes, Sequence[Any] | None]:
        """Return bytes to append at byte ``at`` for what no record says yet, and their records or None."""

    def again(self, record: Any) -> bytes:
        """Return the bytes of new records with the part of a record that still counts."""

    def living_bytes(self) -> int:
        """Return how many bytes the records that still count take; this may forget what the other records said."""

    def problems(self) -> Iterator[str]:
        """Yield a message for each thing that the records say and no writer may say."""


CONTENTS: dict[str, Callable[[Schema, StreamLog], Content]] = {
    INFO: lambda schema, log: EpisodeFacts(log),
    LATER: lambda schema, log: LaterValues(schema.later, log),
}
"""The function that makes the content of each kind of log, by path of :data:`~diskreplay.schema.columns.LOGS`."""


def read_records(
    content: Content, column: ColumnReader, start: int, stop: int, size: int | None = None
) -> Iterator[Any]:
    """Yield the committed records in bytes ``[start, stop)``, read ``size`` at a time; raise ValueError for others."""
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
    """One log of bytes of a stream. Callers hold ``engine.lock``.

    Attributes:
        content: the content of the records.
        column: the column with the committed bytes.
        begin, end: the bytes ``[begin, end)`` that are needed and that the content knows.
        waiting: the newest bytes, which no commit holds, in runs: the first byte of each run, and its bytes.
    """

    def __init__(self, content: Content, column: ColumnReader) -> None:
        self.content = content
        self.column = column
        self.begin = self.end = 0
        self.waiting: list[tuple[int, Bytes]] = []
        self._looked = 0, content.log.begin, 0
        """The log's end and the window's begin when the bytes that count were last counted, and their number."""

    def catch_up(self, begin: int, end: int) -> None:
        """Enter the records of a commit, whose log has bytes ``[begin, end)``; raise ValueError for a bad one."""
        # An older version, which does not know this log, drops it when it writes. A later one then begins a new log.
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
        """The number of bytes in RAM that no commit has taken."""
        return self.end - self.column.end

    def append(self, data: Bytes, records: Sequence[Any] | None = None) -> None:
        """Append records, and enter them into the content."""
        if len(data):
            self.waiting.append((self.end, data))
            self._take(self.content.records(data, self.end) if records is None else records)

    def put(self, column: ColumnWriter) -> int:
        """Put the waiting bytes into the log's column, for a commit, and return the first byte that is needed.

        Before that, append what no record says yet, and clean up.
        """
        self.durable()  # a commit may have been interrupted after it had happened
        self.append(*self.content.news(self.end))
        # A log that cannot be read goes on growing, but no new record is lost.
        with contextlib.suppress(CorruptionError, ReadFailedError, ValueError):
            self._clean()
        column.rewind(column.committed)
        for _, data in self.waiting:
            column.append(data)
        return self.begin

    def durable(self) -> None:
        """Drop the waiting bytes that a commit holds by now."""
        self.waiting = [one for one in self.waiting if one[0] >= self.column.committed]

    def take_waiting(self, at: Ids, place: Ids, out: Bytes) -> NDArray[np.bool_]:
        """Copy those values that wait for a commit, from bytes ``at`` ``(n,)``, to rows ``place`` of ``out``.

        Returns which values these are, bool ``(n,)``.
        """
        first = self.waiting[0][0] if self.waiting else self.end
        found: NDArray[np.bool_] = at >= first
        for byte, row in zip(at[found].tolist(), place[found].tolist(), strict=True):
            begin, data = self.waiting[bisect.bisect_right(self.waiting, byte, key=operator.itemgetter(0)) - 1]
            out[row] = data[byte - begin : byte - begin + out.shape[1]]
        return found

    # What is dead

    def _living(self) -> int:
        """Return the bytes that still count; count anew if the log has grown by as many, or the window is all new."""
        end, begin, living = self._looked
        log = self.content.log
        if self.end - end > max(self.content.slack, living) or log.begin - begin > log.rows:
            living = self.content.living_bytes()
            self._looked = self.end, log.begin, living
        return living

    def _clean(self) -> None:
        """Look through some of the oldest records if much of the log is dead, and append again those that count."""
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
