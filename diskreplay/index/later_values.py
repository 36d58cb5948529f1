"""The values that are written after their rows: blocks in a log of bytes, and where each row's newest value stands.

A block holds values that one call wrote to one column. It has, little-endian and without gaps:

- the column's number and the number of values, uint32 each,
- for each value a number, called its *place*: ``row * num_envs + env``, int64 each,
- the values.

For each row of the window, the stream's table (:class:`~diskreplay.index.log.StreamLog`) holds the byte at which the
row's newest value begins in this log of bytes. If the column is small enough for RAM, the table also holds the value.

A value is dead if its row is below the window, or if the table names another byte for its row. If the log of bytes is
longer than twice the bytes that still count plus some slack, each commit looks through some of the oldest blocks, and
appends again the values that still count.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from diskreplay.checks import Bytes
from diskreplay.index.log import StreamLog, place_of
from diskreplay.schema.columns import Column
from diskreplay.schema.ids import Ids

SLACK_BYTES = 1 << 20
"""A commit cleans up once the log of bytes is longer than twice the bytes that still count, plus this."""
BLOCK_BYTES = 1 << 20
"""The most bytes of values that are written as one block; a single value may have more."""
MOST_BYTES = 1 << 24
"""The most bytes of values that are accepted in one block; a single value may have more."""
HEADER_BYTES, PLACE_BYTES = 8, 8


class ValueBlock(NamedTuple):
    """The values of one column in one block.

    Attributes:
        number: the column's number, in the order of the schema.
        places: the values' places, int64 ``(n,)``.
        values: their bytes, uint8 ``(n, item_bytes)``.
        at: the byte of the log of bytes at which the values begin.
        after: one past the block's last byte.
    """

    number: int
    places: Ids
    values: Bytes
    at: int
    after: int


def encode(number: int, places: Ids, values: Bytes) -> Bytes:
    """Return values ``(n, item_bytes)`` of column ``number`` at places ``(n,)``, encoded as blocks."""
    most = max(1, BLOCK_BYTES // values.shape[1])
    data: list[Bytes] = []
    for start in range(0, len(places), most):
        here, given = places[start : start + most], values[start : start + most]
        header = np.array([number, len(here)], "<u4")
        data += [header.view(np.uint8), here.astype("<i8").view(np.uint8), given.reshape(-1)]
    return np.concatenate(data) if data else np.empty(0, np.uint8)


class LaterValues:
    """The later columns of one stream: the content of a :class:`~diskreplay.reading.bytelog.ByteLog`.

    Callers hold ``engine.lock``.
    """

    what = "what was written later"
    unwritten = False
    """Always False, because values become a record as soon as they are written."""

    def __init__(self, columns: Sequence[Column], log: StreamLog) -> None:
        self.columns = columns
        self.log = log
        self.slack = SLACK_BYTES

    def restart(self) -> None:
        for name in self.log.later:
            self.log.table.arrays[name][:] = 0

    def records(self, data: Bytes, at: int) -> Iterator[ValueBlock]:
        """Yield the complete blocks in ``data``, whose first byte is byte ``at`` of the log of bytes.

        Raises ValueError for a bad block.
        """
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
            beyond = int(places.max()) >= self.log.end * self.log.num_envs and not self.log.without_tail
            if int(places.min()) < 0 or beyond:
                raise ValueError(f"the block at byte {at} is of rows that are not there")
            values = data[first : first + size].reshape(count, -1)
            yield ValueBlock(number, places, values, at + first, at + first + size)
            data, at = data[first + size :], at + first + size

    def take(self, block: ValueBlock) -> None:
        """Enter into the stream's table where the next block's values begin; of a small column also the values."""
        column, table, places = self.columns[block.number], self.log.table, block.places
        here = (places >= self.log.begin * self.log.num_envs) & (places < self.log.end * self.log.num_envs)
        positions, at = self._positions(places[here]), self._begins(block)[here]
        if column.name in self.log.later:
            held = table.arrays[column.name].reshape(-1, *column.shape)
            held[positions] = block.values[here].view(column.dtype).reshape(-1, *column.shape)
        table.arrays[place_of(column.name)].reshape(-1)[positions] = at

    def _begins(self, block: ValueBlock) -> Ids:
        """Return, for each value of a block, the byte of the log of bytes at which it begins."""
        return block.at + self.columns[block.number].item_bytes * np.arange(len(block.places))

    def _positions(self, places: Ids) -> Ids:
        """Return the positions of places in the table's arrays, as if rows and environments were one axis."""
        return places % (self.log.table.length * self.log.num_envs)

    def news(self, at: int) -> tuple[Bytes, None]:
        """Return no bytes, because values become a record as soon as they are written."""
        return np.empty(0, np.uint8), None

    def again(self, block: ValueBlock) -> bytes:
        """Return the values of a block that still count, encoded as new blocks."""
        standing = self.log.table.arrays[place_of(self.columns[block.number].name)].reshape(-1)
        lives = standing[self._positions(block.places)] == self._begins(block)
        lives &= block.places >= self.log.begin * self.log.num_envs
        return encode(block.number, block.places[lives], block.values[lives]).tobytes()

    def living_bytes(self) -> int:
        """Return the size in bytes of all values that still count, their places included."""
        known = counts(self.columns, self.log)
        return sum(known[column.name] * (PLACE_BYTES + column.item_bytes) for column in self.columns)

    def problems(self) -> Iterator[str]:
        """Yield nothing, because a program may write any value."""
        return iter(())


def counts(columns: Iterable[Column], log: StreamLog) -> dict[str, int]:
    """Return, by column, how many transitions of the window have a value that was written later."""
    spans = {column.name: log.span(place_of(column.name), log.begin, log.end) for column in columns}
    return {name: int(np.count_nonzero(places)) for name, places in spans.items()}
