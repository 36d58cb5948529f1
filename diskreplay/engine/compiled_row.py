"""A row that goes on is added in one compiled call, from when on that is worth it.

Loading numba and the kernel takes a processor as long as adding some hundred thousand rows in Python, and some ten
thousand where another part has loaded numba. So a thread loads it (:mod:`diskreplay.loading`) when a writer has added
so many: whoever adds less never pays for it. Both ways write the same bits. A row that begins an episode somewhere goes
the way of Python, and so does the next observation of a row that ends a chunk, and all if the kernel cannot be loaded
or frames are given as stacks.

What ``add`` was given is first copied into a place of its own, *staged*, whose address is known: to ask numpy for an
address takes longer than the copy, unless that is a large one.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.arguments import Row
from diskreplay.loading import Late
from diskreplay.schema import START, VALID
from diskreplay.storage.column import ColumnWriter

Array = NDArray[Any]
Written = tuple[ColumnWriter, int, Array | None]
"""A column, rows of its chunks, and its array of the log's table."""

LOAD_AFTER = 100_000
"""The rows that a writer adds before it loads numba and the kernel."""
LOOK_EVERY = 10_000
"""The rows after which a writer looks whether another part of the program has loaded numba."""
STAGED_BYTES = 1 << 14
"""The bytes of the largest value of a row that is staged."""


def _load() -> types.ModuleType:
    from diskreplay.index import row_writes

    row_writes.compile_now()
    return row_writes


KERNEL = Late(_load)


def load(rows: int) -> types.ModuleType | None:
    """Return the kernel if it is worth it after so many rows, or None if it is not, or is not loaded (yet)."""
    worth = rows >= LOAD_AFTER or "diskreplay.index.jit" in sys.modules
    return KERNEL.begin() if worth else None


class CompiledRow:
    """The compiled call for one table of a log.

    Args:
        kernel: :mod:`diskreplay.index.row_writes`.
        columns: the columns of the rows; the leaves of the observation come first.
        leaves: the number of leaves of the observation.
        unset: the arrays of the table for what a new row does not have yet, each with the number that stands for that.
    """

    def __init__(
        self, kernel: types.ModuleType, columns: Sequence[Written], leaves: int, unset: Sequence[tuple[Array, int]]
    ) -> None:
        self._go_on = kernel.go_on
        self._leaves = leaves
        self._columns = columns
        self._buffers: list[Array | None] = [None] * len(columns)
        self._until = -1
        """The first row that ends a chunk."""
        self._length = len(unset[0][0])
        self._facts = np.zeros((len(columns) + len(unset), kernel.FACTS), np.int64)
        self._buffer = self._facts[:, kernel.BUFFER]
        self._constants: list[Array] = []
        given: list[tuple[Array | None, Any]] = []
        following: list[tuple[Array | None, Any]] = []
        for number, (column, rows, ring) in enumerate(columns):
            facts = self._facts[number]
            parts, size = column.groups, column.group_envs * column.column.item_bytes
            facts[[kernel.PART, kernel.PARTS, kernel.CHUNK_ROWS, kernel.ROW_STEP]] = size, parts, rows, size
            facts[kernel.PART_STEP] = rows * size
            facts[kernel.RING] = 0 if ring is None else ring.ctypes.data
            value = column.single[0]
            if column.column.name in (VALID, START):
                self._constant(facts, kernel.GIVEN, np.full_like(value, column.column.name == VALID))
            else:
                given.append(self._staged(facts, kernel.GIVEN, np.empty_like(value)))
            if number < leaves:
                following.append(self._staged(facts, kernel.FOLLOWING, np.empty_like(value)))
        for number, (ring, nothing) in enumerate(unset, len(columns)):
            value = np.full_like(ring[0], nothing)
            self._constant(self._facts[number], kernel.GIVEN, value)
            self._facts[number, [kernel.PART, kernel.PARTS, kernel.RING]] = value.nbytes, 1, ring.ctypes.data
        self._places = [*given, *following]
        """The array in which each value is staged, and the index of all of it; or None, and where its address goes."""

    def _constant(self, facts: Array, where: int, value: Array) -> None:
        self._constants.append(value)
        facts[where] = value.ctypes.data

    @staticmethod
    def _staged(facts: Array, where: int, place: Array) -> tuple[Array | None, Any]:
        if place.nbytes > STAGED_BYTES:
            return None, facts[where : where + 1]
        facts[where] = place.ctypes.data
        return (place, ...) if place.ndim else (place.reshape(1), 0)

    def add(self, row: Row, end: int) -> bool:
        """Add the row ``end``, a transition, if its observation is the pending one; tell whether that was so.

        If not, nothing is changed. If so, its next observation is pending now, unless :meth:`ends_chunk`: then the
        caller must write it, once the row is there.
        """
        if end > self._until:
            self._attach(end)
        values = [*row.obs, *row.actions, row.reward, row.terminated, row.truncated, *row.extras, *row.next_obs]
        kept = []
        for (place, where), value in zip(self._places, values, strict=True):
            if place is None:
                kept.append(np.ascontiguousarray(value))
                where[0] = kept[-1].ctypes.data
            else:
                place[where] = value
        added: bool = self._go_on(self._facts, self._leaves, end, self._length, end == self._until)
        return added

    def ends_chunk(self, row: int) -> bool:
        """Tell whether a row that was added ends a chunk."""
        return row == self._until

    def _attach(self, row: int) -> None:
        """Look where the write buffers stand now, and which row is the next that ends a chunk."""
        self._until = min([row - row % rows + rows - 1 for _, rows, _ in self._columns])
        for number, (column, _, _) in enumerate(self._columns):
            if self._buffers[number] is not column.buffer:
                self._buffers[number] = column.buffer
                self._buffer[number] = column.buffer.ctypes.data
