"""The places of the chunks of all streams of a store, as tables of numbers for the compiled plan of a batch.

No other code reports changes to the tables. Before each batch they compare a few attributes of each stream in it with
what they know. They keep the arrays behind their addresses alive until the next comparison.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from diskreplay.checks import Array
from diskreplay.index.addresses import COLUMN_FACTS, LogAddresses, address
from diskreplay.index.log import StreamLog
from diskreplay.reading.cache import CachedColumn, ChunkCache
from diskreplay.reading.resident import Resident, ResidentTable
from diskreplay.schema.ids import Ids, stream_of
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.stream import StreamReader, StreamWriter


class Stream(Protocol):
    """The parts of an open stream that the tables look at."""

    log: StreamLog
    disk: StreamReader | StreamWriter
    cache: ChunkCache
    resident: Resident


class ColumnTable:
    """One column of all streams.

    Attributes:
        columns: the column of each stream.
        facts: the table of numbers ``(s, COLUMN_FACTS)``, a row for each stream; see :mod:`diskreplay.index.addresses`.
        cache: the cache of all streams.
        cached: the cached chunks of each stream; None if there never were any.
        slabs: ``(s, 2)``, the address and length of each stream's array of slots; see :func:`.kernel.take`.
    """

    def __init__(self, columns: Sequence[ColumnReader], cache: ChunkCache) -> None:
        self.columns = columns
        self.facts = np.zeros((len(columns), COLUMN_FACTS), np.int64)
        self.cached: list[CachedColumn | None] = [None] * len(columns)
        self.slabs = np.zeros((len(columns), 2), np.int64)
        self.cache = cache
        self._counts: list[tuple[int, ...]] = [()] * len(columns)
        self._arrays: list[tuple[Array, ...]] = [()] * len(columns)

    def catch_up(self, at: int) -> None:
        """Bring the numbers of one stream up to date; the caller holds the lock."""
        column = self.columns[at]
        entries, cached = column.entries, self.cache.column(column)
        arrays: tuple[Array, ...] = (entries.array,)
        if cached is not None:
            arrays = entries.array, cached.table, cached.chunk, cached.group, cached.blocks
        counts = entries.begin, entries.end, column.end, column.stored_rows
        known = self._arrays[at]
        if counts == self._counts[at] and len(arrays) == len(known) and all(map(operator.is_, arrays, known)):
            return
        slots = [0] * 5
        if cached is not None:
            _, table, chunk, group, blocks = arrays
            slots = [address(table), len(table), address(chunk), address(group), min(len(chunk), len(group))]
            self.cached[at] = cached
            self.slabs[at] = address(blocks), len(blocks)
        self.facts[at] = [
            column.column.chunk_rows, column.group_envs, column.shard_chunks, address(entries.array), entries.length,
            entries.begin, entries.end, column.groups, column.in_ram, column.end // column.column.chunk_rows, *slots,
        ]  # fmt: skip
        self._counts[at], self._arrays[at] = counts, arrays

    def alike(self, drawn: Sequence[int]) -> bool:
        """Tell whether the chunks of these streams have as many values, and the same codec."""
        columns = [self.columns[at] for at in drawn]
        return len(columns) == 1 or len({(column.chunk_items, column.column.codec) for column in columns}) == 1


class Tables:
    """The tables of the streams of a store, in the order of their numbers."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self.logs = LogAddresses([stream.log for stream in streams])
        self._at = {stream.log.stream: at for at, stream in enumerate(streams)}
        self.resident = ResidentTable([stream.resident for stream in streams])
        self._columns: dict[tuple[str, bool], ColumnTable] = {}

    def column(self, name: str, patches: bool = False) -> ColumnTable:
        """Return the table of a column, or of its patches."""
        found = self._columns.get((name, patches))
        if found is None:
            columns = [(stream.disk.patches if patches else stream.disk.rows)[name] for stream in self.streams]
            found = ColumnTable(columns, self.streams[0].cache)
            self._columns[name, patches] = found
        return found

    def drawn(self, ids: Ids) -> Sequence[int]:
        """Return the positions of the streams to which ids belong, after bringing their numbers up to date."""
        drawn: Sequence[int] = (0,)
        if len(self.streams) > 1:
            numbers = set(stream_of(ids).tolist())
            drawn = [self._at[number] for number in numbers if number in self._at]
        for at in drawn:
            self.logs.catch_up(at)
        return drawn
