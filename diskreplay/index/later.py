"""Values that are written to rows after these were added: a log of blocks, and where the newest value of a row stands.

A block is the values of one column that one call gave: the column's number and how many values, uint32 each; their
places, ``row * num_envs + env``, int64; the values, one after another. All is little-endian, without a gap. Of several
values of one place the last one counts; those of places below the window are dead.

The table of the stream's log (:class:`~diskreplay.index.log.StreamLog`) has, for each row of the window, the byte of
the log at which its value begins, and the value itself where the column is small enough. What is dead is found by that:
the oldest blocks are looked through, a part with each commit, and what lives in them is written again behind the log.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids
from diskreplay.index.log import StreamLog, place_of
from diskreplay.schema import Column

SLACK_BYTES = 1 << 20
"""By which the log may exceed twice what lives, before the oldest blocks are looked through."""
LOOK_BYTES = 1 << 18
LOOK_SHARE = 4
"""So many bytes, and so many times those that the log has grown by, are looked through with a commit."""
BLOCK_BYTES = 1 << 20
"""Of the values of a block, at most, unless it has only one; also how much of the log is read at once."""
MOST_BYTES = 1 << 24
"""Of the values of a block that is read, unless it has only one."""
HEADER = np.dtype([("column", "<u4"), ("count", "<u4")])
PLACE_BYTES = 8

Bytes = NDArray[np.uint8]
Read = Callable[[int, int], Bytes]
"""Bytes ``[start, stop)`` of the log."""


class Block(NamedTuple):
    """The values of one column in one block.

    Attributes:
        number: of the column, in their order.
        places: int64 ``(n,)``.
        values: uint8 ``(n, item_bytes)``; None where they were not read.
        at: the byte of the log at which the values begin.
        stop: one past the block's last byte.
    """

    number: int
    places: Ids
    values: Bytes | None
    at: int
    stop: int


class Encoded(NamedTuple):
    """A block, and its bytes."""

    data: Bytes
    block: Block


def encode(number: int, places: Ids, values: Bytes, begin: int) -> list[Encoded]:
    """The blocks, from byte ``begin`` on, that hold values ``(n, item_bytes)`` of a column at places ``(n,)``."""
    most = max(1, BLOCK_BYTES // values.shape[1])
    found = []
    for start in range(0, len(places), most):
        here, given = places[start : start + most], values[start : start + most]
        at = HEADER.itemsize + PLACE_BYTES * len(here)
        data = np.empty(at + given.size, np.uint8)
        data[: HEADER.itemsize].view("<u4")[:] = number, len(here)
        data[HEADER.itemsize : at].view("<i8")[:] = here
        kept = data[at:].reshape(given.shape)
        kept[:] = given
        found.append(Encoded(data, Block(number, here, kept, begin + at, begin + len(data))))
        begin += len(data)
    return found


class LaterLog:
    """The columns of one stream that are written later; the lock of the buffer that owns it guards every call.

    Attributes:
        begin, end: the bytes of the log that are needed, and were taken over.
        waiting: blocks that no commit holds, in their order: the newest bytes of the log.
    """

    def __init__(self, columns: Sequence[Column], log: StreamLog) -> None:
        self.columns = columns
        self.log = log
        self.begin = self.end = 0
        self.waiting: list[Encoded] = []
        self._looked = 0, 0, 0
        """The log's end and the window's begin when it was counted what of it lives, and the bytes of that."""

    def restart(self, begin: int) -> None:
        """Forgets all values; the log is taken over from byte ``begin`` on."""
        for name in self.log.later if self.end else ():
            self.log.table.arrays[name][:] = 0
        self._looked = begin, 0, 0
        self.begin = self.end = begin

    # Reading the log

    def blocks(
        self, start: int, stop: int, read: Read, *, whole: bool, ahead: int | None = None
    ) -> Iterator[Block]:  # fmt: skip
        """The blocks of bytes ``[start, stop)``, of which ``ahead`` are read at once, if it is given.

        ``whole`` reads the values of columns that are not in RAM, too. Raises ValueError for what are no blocks.
        """
        window = _Window(start, stop, read, BLOCK_BYTES if ahead is None else ahead)
        while start < stop:
            number, count = window.take(start, start + HEADER.itemsize).view(HEADER)[0].tolist()
            if number >= len(self.columns) or not count:
                raise ValueError(f"byte {start} begins no block: column {number}, {count} values")
            column = self.columns[number]
            places = start + HEADER.itemsize
            at = places + PLACE_BYTES * count
            end = at + column.item_bytes * count
            if count > 1 and end - at > MOST_BYTES:
                raise ValueError(f"the block at byte {start} has {end - at:,} bytes of values, above {MOST_BYTES:,}")
            if end > stop:
                raise ValueError(f"the block at byte {start} ends at byte {end}, behind the log's last, {stop}")
            needed = whole or column.resident
            data = window.take(places, end if needed else at)
            values = data[at - places :].reshape(count, -1) if needed else None
            yield Block(number, data[: at - places].view("<i8").astype(np.int64), values, at, end)
            start = end

    def catch_up(self, begin: int, end: int, end_row: int, read: Read) -> None:
        """Takes over what was committed; ``read`` gives the log's bytes, ``end_row`` is that of the commit.

        Raises ValueError for what is no such log.
        """
        # The log of a writer that does not know of it is gone; the one that comes after begins anew.
        if begin > self.end or begin < self.begin or end < self.end:
            self.restart(begin)
        for block in self.blocks(self.end, end, read, whole=False):
            self.check(block, end_row)
            self.take(block)
        self.begin = begin

    def check(self, block: Block, end_row: int) -> None:
        """ValueError where a block that a commit of rows below ``end_row`` holds is not of such rows."""
        if int(block.places.min()) < 0 or int(block.places.max()) >= end_row * self.log.num_envs:
            raise ValueError(f"the block that ends at byte {block.stop} is of rows that are not there")

    def take(self, block: Block) -> None:
        """Takes over a block that begins at the log's end; done twice, it is as done once."""
        column, table, first = self.columns[block.number], self.log.table, self.log.begin * self.log.num_envs
        places, values, at = block.places, block.values, block.at + column.item_bytes * np.arange(len(block.places))
        if int(places.min()) < first:
            here = places >= first
            places, at, values = places[here], at[here], None if values is None else values[here]
        positions = self._positions(places)
        if column.resident and values is not None:
            held = table.arrays[column.name]
            held.reshape(-1, *column.shape)[positions] = values.view(column.dtype).reshape(-1, *column.shape)
        table.arrays[place_of(column.name)].reshape(-1)[positions] = at
        self.end = block.stop

    def _positions(self, places: Ids) -> Ids:
        """Where places stand in arrays of the table whose axes of rows and environments are one."""
        found: Ids = places % (self.log.table.length * self.log.num_envs)
        return found

    def take_waiting(self, column: Column, at: Ids, place: Ids, out: Bytes) -> NDArray[np.bool_]:
        """Copies the values that no commit holds, of those at bytes ``at`` of the log, to rows ``place`` of ``out``.

        Which ones these are, ``(n,)``.
        """
        if not self.waiting:
            return np.zeros(len(at), bool)
        found: NDArray[np.bool_] = at >= self.waiting[0].block.at
        for byte, row in zip(at[found].tolist(), place[found].tolist(), strict=True):
            block = self.waiting[bisect.bisect_right(self.waiting, byte, key=_begin) - 1].block
            assert block.values is not None
            out[row] = block.values[(byte - block.at) // column.item_bytes]
        return found

    # What is dead

    def cleaned(self, committed: int, grown: int, read: Read) -> Iterator[tuple[int, Ids, Bytes]]:
        """Looks through some of the oldest blocks, where much of the log is dead.

        Yields column, places and values that live there, to be written again behind the log; then :attr:`begin` moves.

        Args:
            committed: one past the log's last byte that a commit holds.
            grown: bytes that were appended since the last commit.
            read: gives the log's bytes.
        """
        end, begin, living = self._looked
        if self.end - end > max(SLACK_BYTES, living) or self.log.begin - begin > self.log.rows:
            living = self.living_bytes()
            self._looked = self.end, self.log.begin, living
        left = LOOK_SHARE * grown + LOOK_BYTES
        if self.end - self.begin <= 2 * living + SLACK_BYTES:
            return
        last = self.begin + left
        for block in self.blocks(self.begin, committed, read, whole=True, ahead=min(left, BLOCK_BYTES)):
            here = np.flatnonzero(self._lives(block))
            if len(here) and block.values is not None:
                yield block.number, block.places[here], block.values[here]
            self.begin = block.stop
            if self.begin >= last or self.end - self.begin <= 2 * living + SLACK_BYTES:
                return

    def living_bytes(self) -> int:
        """Bytes of all values that count, with their places."""
        log, found = self.log, 0
        rows = np.arange(log.begin, log.end) % log.table.length
        for column in self.columns:
            known = int(np.count_nonzero(log.table.arrays[place_of(column.name)][rows]))
            found += known * (PLACE_BYTES + column.item_bytes)
        return found

    def _lives(self, block: Block) -> NDArray[np.bool_]:
        """Which values of a block are those that count."""
        column, log = self.columns[block.number], self.log
        at = block.at + column.item_bytes * np.arange(len(block.places))
        standing = log.table.arrays[place_of(column.name)].reshape(-1)[self._positions(block.places)] == at
        lives: NDArray[np.bool_] = standing & (block.places >= log.begin * log.num_envs)
        return lives

    def known(self) -> dict[str, int]:
        """How many transitions of the window have a value, by column."""
        rows = np.arange(self.log.begin, self.log.end) % self.log.table.length
        return {
            column.name: int(np.count_nonzero(self.log.table.arrays[place_of(column.name)][rows]))
            for column in self.columns
        }


def _begin(encoded: Encoded) -> int:
    return encoded.block.at


class _Window:
    """Bytes of a log, read some way ahead."""

    def __init__(self, start: int, stop: int, read: Read, ahead: int) -> None:
        self._stop = stop
        self._ahead = ahead
        self._read = read
        self._at = start
        self._data: Bytes = np.empty(0, np.uint8)

    def take(self, start: int, stop: int) -> Bytes:
        """Bytes ``[start, stop)``; ValueError where the log does not have them."""
        if stop > self._stop:
            raise ValueError(f"the block at byte {start} is cut off at byte {self._stop}")
        if start < self._at or stop > self._at + len(self._data):
            self._at, ahead = start, min(self._stop, max(stop, start + self._ahead))
            self._data = self._read(start, ahead)
        return self._data[start - self._at : stop - self._at]
