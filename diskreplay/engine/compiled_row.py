"""The compiled call that adds a row which continues the row before, for writers that add many rows.

Loading numba and the kernel takes as long as adding some hundred thousand rows in Python, or some ten thousand if
another part of the program has loaded numba. So a thread loads the kernel (:mod:`diskreplay.loading`) once a writer has
added so many rows. A program that adds fewer rows never pays for it.

Python and the kernel write the same bits. Python still writes rows that begin an episode in some environment, and the
next observation of a row that ends a chunk. If the kernel cannot be loaded, or frames are given as stacks, Python
writes all rows.

Each argument of ``add`` is first *staged*: copied to a place whose address is known. Asking numpy for the argument's
address would take longer than this copy, unless the argument is large.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.engine.arguments import Row
from diskreplay.loading import BackgroundImport
from diskreplay.schema.columns import START, VALID
from diskreplay.storage.column import ColumnWriter

Written = tuple[ColumnWriter, int, Array | None]
"""A column, the rows of its chunks, and its array of the log's table, or None if it has none."""

LOAD_AFTER = 100_000
"""The rows that a writer adds before it has numba and the kernel loaded."""
LOOK_EVERY = 10_000
"""The rows after which a writer looks whether another part of the program has loaded numba."""
STAGED_BYTES = 1 << 14
"""The most bytes of a value that is staged; for a larger one numpy is asked for the address."""


def _load() -> types.ModuleType:
    from diskreplay.index import row_writes

    row_writes.compile_now()
    return row_writes


KERNEL = BackgroundImport(_load)


def load(rows: int) -> types.ModuleType | None:
    """Return the kernel if it is worth it after ``rows`` rows, and is loaded, else None.

    If it is worth it, this begins to load the kernel.
    """
    worth = rows >= LOAD_AFTER or "diskreplay.index.jit" in sys.modules
    return KERNEL.begin() if worth else None


class CompiledRow:
    """The compiled call for one table of a log.

    Args:
        kernel: :mod:`diskreplay.index.row_writes`.
        columns: the columns of the rows; the leaves of the observation come first.
        leaves: the number of leaves of the observation.
        unset: the arrays of the table that have no value for a new row yet, each with the number that says so.
    """

    def __init__(
        self, kernel: types.ModuleType, columns: Sequence[Written], leaves: int, unset: Sequence[tuple[Array, int]]
    ) -> None:
        self._add_continuing = kernel.add_continuing
        self._leaves = leaves
        self._columns = columns
        self._buffers: list[Array | None] = [None] * len(columns)
        self._until = -1
        """The next row that ends a chunk."""
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
        """For each value the array in which it is staged, and an index of all of that array.

        For a value that is too large, instead, None and the place for its address.
        """

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
        """Add the row ``end``, a transition, if its observation is the pending one; else change nothing.

        Return True if the row was added. Its next observation is then pending, unless the row :meth:`ends_chunk`: then
        the caller must write this observation.
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
        added: bool = self._add_continuing(self._facts, self._leaves, end, self._length, end == self._until)
        return added

    def ends_chunk(self, row: int) -> bool:
        """Tell whether a row that was added ends a chunk."""
        return row == self._until

    def _attach(self, row: int) -> None:
        """Find where the write buffers are now, and which row is the next that ends a chunk."""
        self._until = min([row - row % rows + rows - 1 for _, rows, _ in self._columns])
        for number, (column, _, _) in enumerate(self._columns):
            if self._buffers[number] is not column.buffer:
                self._buffers[number] = column.buffer
                self._buffer[number] = column.buffer.ctypes.data
