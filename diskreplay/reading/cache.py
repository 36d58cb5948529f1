"""Decoded chunks of large columns, kept in RAM under a byte budget.

Sampling touches chunks at random, so a chunk that is kept is worth the same as any other: the cache admits chunks
until its budget is full and then stays as it is, which saves the churn of replacement; room appears when rows leave
the window. Where the budget is below ``MIN_SHARE`` of the window, the memory serves better as the system's page
cache, and nothing is admitted.

Each column has a *slab* of slots, one decoded chunk each; untouched slots take no memory. Slots are read and given
up under the buffer's lock, and filled without it, before anybody can find them. What an interrupt cuts short costs at
most room: a slot is found only when it is filled, and free only when nobody finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import Ids
from diskreplay.interrupts import Lock
from diskreplay.storage.column import ColumnReader

MIN_SHARE = 0.25
FIRST_SLOTS = 1024


class Slab:
    """The decoded chunks of one column: ``values`` is (slots, chunk_items, *shape)."""

    def __init__(self, column: ColumnReader, slots: int) -> None:
        self.values: NDArray[Any] = np.empty((slots, column.chunk_items, *column.column.shape), column.column.dtype)
        self.addresses = np.array([[self.values.ctypes.data, slots]], np.int64)
        self.chunk = np.full(min(slots, FIRST_SLOTS), -1, np.int64)
        """The chunk in each slot, -1 where there is none; it grows with the slots in use, as ``group`` does."""
        self.group = self.chunk.copy()
        self.used = 0
        """Slots below this number have been used at least once."""
        self.free: list[int] = []
        self.table = np.full((1, column.groups), -1, np.int64)
        """The slot that a chunk of a group may be in; replaced by a longer one when it grows."""

    def find(self, chunk: Ids, group: Ids) -> Ids:
        """The slot of each chunk, -1 where it is not here."""
        table = self.table  # a thread that enters slots may replace it
        slot = table[chunk % len(table), group]
        # Both are compared: a slot that was given up may hold the same chunk of another group by now.
        return np.where((self.chunk.take(slot) == chunk) & (self.group.take(slot) == group), slot, -1)

    def take_slot(self) -> int | None:
        """A slot for a chunk, or None when all are taken."""
        if self.free:
            return self.free.pop()
        if self.used == len(self.values):
            return None
        self.used += 1
        if self.used > len(self.chunk):
            more = np.full(min(len(self.chunk), len(self.values) - len(self.chunk)), -1, np.int64)
            self.chunk, self.group = np.append(self.chunk, more), np.append(self.group, more)
        return self.used - 1

    def enter(self, chunk: Ids, group: Ids, slot: Ids, span: int) -> None:
        """Makes filled slots findable; ``span`` is the number of chunks in the window, or more."""
        if len(self.table) < span:
            longer = np.full((2 * span, self.table.shape[1]), -1, np.int64)
            held = np.flatnonzero(self.chunk >= 0)
            longer[self.chunk[held] % len(longer), self.group[held]] = held
            self.table = longer
        self.group[slot] = group
        self.chunk[slot] = chunk
        self.table[chunk % len(self.table), group] = slot

    def drop(self, doomed: NDArray[np.bool_]) -> int:
        """Gives up the slots (a mask over all); how many were taken."""
        slots = np.flatnonzero(doomed & (self.chunk >= 0))
        self.chunk[slots] = -1
        self.free += slots.tolist()
        return len(slots)


class ChunkCache:
    """A cache over all large columns of a store.

    Args:
        budget_bytes: decoded bytes that may be held.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.window_bytes = 0
        self.used_bytes = 0
        """Decoded bytes that are held."""
        self._slabs: dict[ColumnReader, Slab] = {}
        self.lock = Lock("the cache of decoded chunks")

    def slab(self, column: ColumnReader) -> Slab | None:
        """The column's slab, if it has one."""
        return self._slabs.get(column)

    def resize_window(self, window_bytes: int) -> None:
        """Tells the decoded size of all that can be sampled; gives the memory back when the share is too small."""
        self.window_bytes = window_bytes
        if self._slabs and self.budget_bytes < MIN_SHARE * window_bytes:
            with self.lock:
                self._slabs.clear()
                self.used_bytes = 0

    def admits(self, column: ColumnReader) -> bool:
        """Whether a newly decoded chunk of the column should be kept."""
        if self.budget_bytes < MIN_SHARE * self.window_bytes:
            return False
        return self.used_bytes + column.decoded_bytes <= self.budget_bytes

    def put(self, column: ColumnReader, chunk: int, group: int, values: NDArray[Any]) -> None:
        """Keeps a copy of a complete chunk's values (chunk_items, *shape), if there is room."""
        self.fill(column, np.array([chunk]), np.array([group]), lambda _, slot: np.copyto(slot, values))

    def fill(self, column: ColumnReader, chunk: Ids, group: Ids, decode: Callable[[int, NDArray[Any]], None]) -> None:
        """Keeps complete chunks (n,), as far as there is room; ``decode(i, slot)`` fills a slot with the i-th."""
        if self.lock.owned:  # a finalizer came in the midst of a filling
            return
        with self.lock:
            slab = self._slabs.get(column)
            if slab is None:
                if column.decoded_bytes > self.budget_bytes:
                    return
                slab = self._slabs[column] = Slab(column, self.budget_bytes // column.decoded_bytes)
            missing = np.flatnonzero((slab.find(chunk, group) < 0) & (chunk >= column.entries.begin))
            slots: list[int] = []
            filled = 0
            try:
                for one in missing.tolist():
                    slot = slab.take_slot() if self.admits(column) else None
                    if slot is None:
                        break
                    slots.append(slot)
                    self.used_bytes += column.decoded_bytes
                    decode(one, slab.values[slot])
                    filled += 1
            finally:
                slab.free += slots[filled:]
                self.used_bytes -= len(slots[filled:]) * column.decoded_bytes
                entered = missing[:filled]
                slab.enter(chunk[entered], group[entered], np.array(slots[:filled], np.int64), column.entries.length)

    def drop(self, column: ColumnReader, below: int = 1 << 62) -> None:
        """Forgets the column's chunks with a number below ``below``, by default all. Needs the buffer's lock."""
        slab = self._slabs.get(column)
        if slab is not None:
            with self.lock:
                self.used_bytes -= slab.drop(slab.chunk < below) * column.decoded_bytes

    def forget(self, column: ColumnReader) -> None:
        """Gives the column's slab back. Needs the buffer's lock."""
        self.drop(column)
        with self.lock:
            self._slabs.pop(column, None)

    def drop_but(self, column: ColumnReader, chunk: Ids, group: Ids) -> None:
        """Forgets the column's chunks that are not among these. Needs the buffer's lock."""
        slab = self._slabs.get(column)
        if slab is not None:
            with self.lock:
                slots = slab.find(chunk, group)
                doomed = np.ones(len(slab.chunk), bool)
                doomed[slots[slots >= 0]] = False
                self.used_bytes -= slab.drop(doomed) * column.decoded_bytes
