"""The values that are written after their rows: a log of blocks, and where the newest value of a row stands.

A block is the values of one column that one call gave: the column's number and how many values, uint32 each; their
places, ``row * num_envs + env``, int64; the values, one after another. All is little-endian, without a gap. Of several
values of one place the last one counts; those of places below the window are dead.

The table of the stream's log (:class:`~diskreplay.index.log.StreamLog`) has, for each row of the window, the byte of
the log at which its value begins, and the value itself where the column is small enough. A value of a block is dead if
the table has another byte for its row. Commits look through the oldest blocks, some at a time, and write again at the
log's end the values that still count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids
from diskreplay.index.log import StreamLog, place_of
from diskreplay.schema import Column

SLACK_BYTES = 1 << 20
"""The bytes by which the log may exceed twice what still counts, before its oldest blocks are cleaned up."""
BLOCK_BYTES = 1 << 20
"""The most bytes of values in a block that is written; a block of a single value may have more."""
MOST_BYTES = 1 << 24
"""The most bytes of values in a block that is read; a block of a single value may have more."""
HEADER_BYTES, PLACE_BYTES = 8, 8

Bytes = NDArray[np.uint8]


class ValueBlock(NamedTuple):
    """The values of one column in one block.

    Attributes:
        number: of the column, in their order.
        places: int64 ``(n,)``.
        values: uint8 ``(n, item_bytes)``.
        at: the byte of the log at which the values begin.
        after: one past the block's last byte.
    """

    number: int
    places: Ids
    values: Bytes
    at: int
    after: int


def encode(number: int, places: Ids, values: Bytes) -> Bytes:
    """Return the blocks that hold values ``(n, item_bytes)`` of a column at places ``(n,)``."""
    most = max(1, BLOCK_BYTES // values.shape[1])
    data: list[Bytes] = []
    for start in range(0, len(places), most):
        here, given = places[start : start + most], values[start : start + most]
        header = np.array([number, len(here)], "<u4")
        data += [header.view(np.uint8), here.astype("<i8").view(np.uint8), given.reshape(-1)]
    return np.concatenate(data) if data else np.empty(0, np.uint8)


class LaterValues:
    """The columns of one stream that are written later, the content of a :class:`~diskreplay.reading.bytelog.ByteLog`.

    The lock of the buffer that owns it guards every call.
    """

    what = "what was written later"
    unwritten = False
    """False: values become a record as soon as they are written."""

    def __init__(self, columns: Sequence[Column], log: StreamLog) -> None:
        self.columns = columns
        self.log = log
        self.slack = SLACK_BYTES

    def restart(self) -> None:
        """Forget all values."""
        for name in self.log.later:
            self.log.table.arrays[name][:] = 0

    def records(self, data: Bytes, at: int) -> Iterator[ValueBlock]:
        """Yield the whole blocks at byte ``at`` of the log; raise ValueError for what is not a block."""
        while len(data) >= HEADER_BYTES:
            number, count = data[:HEADER_BYTES].view("<u4").tolist()
            if number >= len(self.columns) or not count:
                raise ValueError(f"byte {at} begins no block: column {number}, {count} values")
            size, first = self.columns[number].item_bytes * count, HEADER_BYTES + PLACE_BYTES * count
            if count > 1 and size > MOST_BYTES:
                raise ValueError(f"the block at byte {at} has {size:,} bytes of values, above {MOST_BYTES:,}")
            if first + size > len(data):
                return
            places = data[HEADER_BYTES:first].view("<i8").astype(np.int64)
            if int(places.min()) < 0 or int(places.max()) >= self.log.end * self.log.num_envs:
                raise ValueError(f"the block at byte {at} is of rows that are not there")
            values = data[first : first + size].reshape(count, -1)
            yield ValueBlock(number, places, values, at + first, at + first + size)
            data, at = data[first + size :], at + first + size

    def take(self, block: ValueBlock) -> None:
        """Enter the next block; entering it twice does no harm."""
        column, table, places = self.columns[block.number], self.log.table, block.places
        here = places >= self.log.begin * self.log.num_envs
        positions, at = self._positions(places[here]), self._begins(block)[here]
        if column.name in self.log.later:
            held = table.arrays[column.name].reshape(-1, *column.shape)
            held[positions] = block.values[here].view(column.dtype).reshape(-1, *column.shape)
        table.arrays[place_of(column.name)].reshape(-1)[positions] = at

    def _begins(self, block: ValueBlock) -> Ids:
        """Return the bytes of the log at which a block's values begin."""
        found: Ids = block.at + self.columns[block.number].item_bytes * np.arange(len(block.places))
        return found

    def _positions(self, places: Ids) -> Ids:
        """Return the positions of places in the table's arrays, with the axes of rows and environments flattened."""
        found: Ids = places % (self.log.table.length * self.log.num_envs)
        return found

    def news(self, at: int) -> tuple[Bytes, None]:
        """Return no bytes: values become a record as soon as they are written."""
        return np.empty(0, np.uint8), None

    def again(self, block: ValueBlock) -> bytes:
        """Return those values of a block that count, as blocks."""
        standing = self.log.table.arrays[place_of(self.columns[block.number].name)].reshape(-1)
        lives = standing[self._positions(block.places)] == self._begins(block)
        lives &= block.places >= self.log.begin * self.log.num_envs
        return encode(block.number, block.places[lives], block.values[lives]).tobytes()

    def living_bytes(self) -> int:
        """Return the bytes of all values that count, with their places."""
        known = counts(self.columns, self.log)
        return sum(known[column.name] * (PLACE_BYTES + column.item_bytes) for column in self.columns)

    def problems(self) -> Iterator[str]:
        """Yield nothing: any value may be written."""
        return iter(())


def counts(columns: Iterable[Column], log: StreamLog) -> dict[str, int]:
    """Return by column how many transitions of the window have a value that was written later."""
    spans = {column.name: log.span(place_of(column.name), log.begin, log.end) for column in columns}
    return {name: int(np.count_nonzero(places)) for name, places in spans.items()}
