"""The places to which rows are written: the write buffers of the columns, the log's table, and the patch table.

Given values have an axis of environments only if there are several. At the place of row ``end``, which was not added
yet, stands the *pending* observation: the newest ``next_obs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diskreplay.checks import Array, Mask
from diskreplay.engine.row_call import Place, RowCall
from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.native import core
from diskreplay.schema.columns import PLACE, Schema
from diskreplay.schema.ring import put
from diskreplay.storage.stream import StreamWriter

Bind = Callable[[Sequence[Place], Sequence[Place], Sequence[tuple[Array, int]]], RowCall]
"""A function of the places of rows and patches, and of the arrays of the table that have no value for a new row yet."""


class RowBuffers:
    """The places of one stream's rows.

    Callers hold ``engine.write_lock`` and, but for :meth:`pending`, ``engine.lock``.

    Args:
        bind: makes the calls of the core for the log's tables.

    Attributes:
        call: the calls of the core that write rows.
    """

    def __init__(self, schema: Schema, writer: StreamWriter, log: StreamLog, bind: Bind) -> None:
        self.writer = writer
        self.log = log
        self._bind = bind
        self._leaves = [column.name for column in schema.obs_columns]
        self._bind_tables()

    def _bind_tables(self) -> None:
        """Find the arrays of the log's tables, after others have replaced them."""
        self._table, self._patches = self.log.table, self.log.patches
        arrays, held = self._table.arrays, self.log.resident
        self._rows = [
            Place(column, arrays[name] if name in held else None) for name, column in self.writer.rows.items()
        ]
        self._unset = [(arrays[NEXT_PATCH], -1), *((arrays[name], 0) for name in self.log.later)]
        """The arrays that have no value for a new row yet, each with the number that says so."""
        patches = [Place(column, self._patches.arrays.get(name)) for name, column in self.writer.patches.items()]
        self.call = self._bind(self._rows, patches, self._unset)

    def write(
        self, values: list[Array], valid: Mask, starts: NDArray[np.uint8], in_place: bool, following: Sequence[Any]
    ) -> None:
        """Write a row with these start codes; ``in_place`` tells that its observation is the pending one."""
        self.added(self.call.row.write(values, valid, starts, in_place), following)

    def added(self, done: int, following: Sequence[Any]) -> bool:
        """Seal the chunks that ended with a row, whose next observation has the frames ``following``.

        Return True if the core has ``done`` something.
        """
        if done == core.ENDS_CHUNK:
            end = self.log.end
            for column, _ in self._rows:
                if end % column.buffer_rows:
                    column.end = end
                else:
                    column.advance(hurry=True, floor=self.log.floor)
            self.put_pending(following)
            self._follow()
        return done > 0

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` more rows, and for the pending observation after them."""
        self.log.reserve(rows)
        self._follow()

    def _follow(self) -> None:
        """Have the calls write to the log's arrays and the columns' write buffers as they are now."""
        if self.log.table is not self._table or self.log.patches is not self._patches:
            self._bind_tables()
        else:
            self.call.attach()

    def write_run(self, values: Sequence[Array], steps: slice) -> None:
        """Write some of the steps in ``values`` as rows from ``end`` on, and move ``end`` on."""
        log = self.log
        row, count = log.end, steps.stop - steps.start
        for (column, ring), value in zip(self._rows, values, strict=True):
            value = value[steps]
            column.append(value)
            if ring is not None:
                put(ring, row, value.reshape(count, *ring.shape[1:]))
        for ring, nothing in self._unset:
            put(ring, row, np.full_like(ring[:count], nothing))
        log.end = row + count
        self._follow()

    # The pending observation

    def put_pending(self, frames: Sequence[Any]) -> None:
        """Put frames ``([num_envs,] *shape)`` of a next observation to the place of row ``end``."""
        row = self.log.end
        for (column, ring), frame in zip(self._rows[: len(self._leaves)], frames, strict=True):
            column.slots[row % column.buffer_rows] = frame
            if ring is not None:
                ring[row % self._table.length] = frame

    def pending(self) -> list[Array]:
        """Return the frames at the place of row ``end``, ``(num_envs, *shape)``."""
        return [column.slots[self.log.end % column.buffer_rows] for column, _ in self._rows[: len(self._leaves)]]

    def patch_pending(self, envs: Iterable[int]) -> None:
        """Put the pending observations of these environments into the patch table, unless they stand there already."""
        row, known = self.log.end - 1, self.log.table.arrays[NEXT_PATCH]
        if new := [env for env in envs if known[row % len(known), env] < 0]:
            self.patch([(row, env, 1) for env in new], [frames[new] for frames in self.pending()])

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
        self._follow()
