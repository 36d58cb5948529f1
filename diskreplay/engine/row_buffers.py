"""The places to which rows are written: the write buffers of the columns, the log's table, and the patch table.

Given values have an axis of environments only if there are several. At the place of row ``end``, which was not added
yet, stands the *pending* observation: the newest ``next_obs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from diskreplay.checks import Array
from diskreplay.engine import compiled_row
from diskreplay.engine.arguments import Row
from diskreplay.engine.compiled_row import CompiledRow
from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.schema.columns import PLACE, Schema
from diskreplay.storage.stream import StreamWriter

NEVER = 1 << 62


class RowBuffers:
    """The places of one stream's rows.

    Callers hold ``engine.write_lock`` and, but for :meth:`load` and :meth:`pending`, ``engine.lock``.

    Attributes:
        load_at: the row from which on :meth:`load` is to be called.
    """

    def __init__(self, schema: Schema, writer: StreamWriter, log: StreamLog) -> None:
        self.writer = writer
        self.log = log
        self._several = log.num_envs > 1
        self._leaves = [column.name for column in schema.obs_columns]
        self._opened_at = log.end
        self.load_at = log.end + compiled_row.LOOK_EVERY
        self._kernel: ModuleType | None = None
        self._compiled: CompiledRow | None = None
        self._bind_table()

    def _bind_table(self) -> None:
        """Find the arrays of the log's table, after another table has replaced it."""
        self._table = self.log.table
        self._columns = [
            (column, column.column.chunk_rows, self._ring(name) if name in self.log.resident else None)
            for name, column in self.writer.rows.items()
        ]
        """For each column: the column, the rows of its chunks, and its array of the table, or None if it has none."""
        self._obs = self._columns[: len(self._leaves)]
        self._unset = [(self._ring(NEXT_PATCH), -1), *((self._ring(name), 0) for name in self.log.later)]
        """The arrays that have no value for a new row yet, each with the number that says so."""
        self._compile()

    def _ring(self, name: str) -> Array:
        array = self._table.arrays[name]
        return array if self._several else array[:, 0]

    def load(self) -> None:
        """Load the compiled call that adds rows, if it is worth it by now; call it without ``engine.lock``."""
        end = self.log.end
        self._kernel = compiled_row.load(end - self._opened_at)
        self.load_at = end + compiled_row.LOOK_EVERY if self._kernel is None else NEVER
        self._compile()

    def _compile(self) -> None:
        if self._kernel is not None:
            self._compiled = CompiledRow(self._kernel, self._columns, len(self._leaves), self._unset)

    def add(self, row: Row) -> bool:
        """Add a row, and make its next observation pending, if its observation is the pending one.

        Return False, and change nothing, if the compiled call cannot add the row.
        """
        compiled, end = self._compiled, self.log.end
        if compiled is None or not compiled.add(row, end):
            return False
        self.log.end = end + 1
        if not compiled.ends_chunk(end):
            for column, _, _ in self._columns:
                column.end = end + 1
            return True
        for column, rows, _ in self._columns:
            if end % rows + 1 == rows:
                column.advance(hurry=True)
            else:
                column.end = end + 1
        self.put_pending(row.next_obs)
        return True

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` more rows, and for the pending observation after them."""
        self.log.reserve(rows)
        if self.log.table is not self._table:
            self._bind_table()

    def write(self, values: Sequence[Any], in_place: int) -> None:
        """Write row ``end``, and move ``end`` on; the first ``in_place`` values were pending, and are there already."""
        log = self.log
        row, position = log.end, log.end % self._table.length
        for number, ((column, rows, ring), value) in enumerate(zip(self._columns, values, strict=True)):
            at = row % rows
            if number >= in_place:
                column.single[at] = value
                if ring is not None:
                    ring[position] = value
            if at + 1 == rows:
                column.advance(hurry=True)
            else:
                column.end = row + 1
        for ring, nothing in self._unset:
            ring[position] = nothing
        log.end = row + 1

    def write_run(self, values: Sequence[Array], steps: slice) -> None:
        """Write some of the steps in ``values`` as rows from ``end`` on, and move ``end`` on."""
        log = self.log
        row, length, count = log.end, self._table.length, steps.stop - steps.start
        first = row % length
        head = min(count, length - first)
        for (column, _, ring), value in zip(self._columns, values, strict=True):
            value = value[steps]
            column.append(value)
            if ring is not None:
                ring[first : first + head] = value[:head]
                ring[: count - head] = value[head:]
        for ring, nothing in self._unset:
            ring[first : first + head] = nothing
            ring[: count - head] = nothing
        log.end = row + count

    # The pending observation

    def put_pending(self, frames: Sequence[Any]) -> None:
        """Put frames of a next observation to the place of row ``end``."""
        row = self.log.end
        position = row % self._table.length
        for (column, rows, ring), frame in zip(self._obs, frames, strict=True):
            column.single[row % rows] = frame
            if ring is not None:
                ring[position] = frame

    def pending(self) -> list[Any]:
        """Return the frames at the place of row ``end``, for all environments."""
        row = self.log.end
        return [column.single[row % rows] for column, rows, _ in self._obs]

    def patch_pending(self, envs: Iterable[int]) -> None:
        """Put the pending observations of these environments into the patch table, unless they stand there already."""
        row, known = self.log.end - 1, self.log.table.arrays[NEXT_PATCH]
        if new := [env for env in envs if known[row % len(known), env] < 0]:
            self.patch([(row, env, 1) for env in new], [column.slots[(row + 1) % n, new] for column, n, _ in self._obs])

    def patch(self, places: ArrayLike, frames: Sequence[Array]) -> None:
        """Add patches.

        Args:
            places: row, environment and offset of each, ``(n, 3)``.
            frames: for each leaf the frames, ``(n, *shape)``.
        """
        values = {PLACE: np.asarray(places, np.int64), **dict(zip(self._leaves, frames, strict=True))}
        for name, column in self.writer.patches.items():
            column.append(values[name])
        self.log.add_patches(values)
