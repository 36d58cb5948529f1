"""The calls of the core that write rows, and what they have to know of a log and its columns.

Python converts arguments, says what a row brings that begins an episode in some environment, and takes frames out of
stacks, and items out of ragged rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diskreplay.checks import Array, Mask
from diskreplay.engine.arguments import Arguments
from diskreplay.engine.inputs import AnySlot, Slot
from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.native import core
from diskreplay.schema.columns import CONTINUES, START, VALID, ZEROS, Schema
from diskreplay.storage.column import ColumnWriter
from diskreplay.storage.commit import MAX_IDS

GIVEN, FOLLOWING, PART, PARTS, BUFFER, CHUNK_ROWS, ROW_STEP, PART_STEP, RING, FACTS = range(10)
"""The numbers of a column, as native/row.h names them, and their number."""


class Place(NamedTuple):
    """Where the rows of a column go.

    Attributes:
        column: the column.
        ring: its array of the log's table, or None if it has none.
    """

    column: ColumnWriter
    ring: Array | None


class Places:
    """The places of one table's rows, as the core takes them.

    Args:
        places: the columns.
        unset: the arrays of the table that have no value for a new row yet, each with the number that says so.

    Attributes:
        written: what the core takes.
    """

    def __init__(self, places: Sequence[Place], unset: Sequence[tuple[Array, int]] = ()) -> None:
        self._columns = [column for column, _ in places]
        self._until = -1
        constants: list[Array] = []
        facts = np.zeros((len(places) + len(unset), FACTS), np.int64)
        for number, (column, ring) in enumerate(places):
            rows, size = column.buffer_rows, column.group_envs * column.column.item_bytes
            facts[number, [PART, PARTS, CHUNK_ROWS, ROW_STEP]] = size, column.groups, rows, size
            facts[number, PART_STEP] = rows * size
            facts[number, RING] = 0 if ring is None else ring.ctypes.data
        for number, (ring, nothing) in enumerate(unset, len(places)):
            constants.append(np.full_like(ring[0], nothing))
            given = constants[-1].ctypes.data
            facts[number, [GIVEN, PART, PARTS, RING]] = given, constants[-1].nbytes, 1, ring.ctypes.data
        self.written = core.Written(tuple(self._columns), facts, (places, unset, constants))

    def attach(self) -> None:
        """Once a chunk has ended, find the write buffers, and the next row that ends a chunk."""
        end = self._columns[0].end
        if end > self._until:
            self._until = min([end - end % rows + rows - 1 for rows in [one.buffer_rows for one in self._columns]])
            self.written.attach(self._until, [column.buffer for column in self._columns])


class RowCall:
    """The calls for the tables of a log.

    Args:
        schema: the columns.
        arguments: the rules for the arguments of ``add``, if they are what columns hold; None if some are stacks of
            frames, or ragged.
        log: the log.
        ended: a mask ``(num_envs,)`` of the environments whose episode has ended, which the calls keep up to date.
        gate: what bars the store from use.
        signs: what is counted of rows that begin episodes.
        opened_at: the first row that this writer adds.
        rows, patches: the places of rows, those of the observation's leaves first, and of patches, likewise behind
            those of their places.
        unset: the arrays of the table that have no value for a new row yet, each with the number that says so.

    Attributes:
        row: the calls. Its ``add`` takes the arguments of a buffer's ``add``, the others those that were checked: of a
            single environment without an axis for it, if there are rules, else with one.
    """

    def __init__(
        self, schema: Schema, arguments: Arguments | None, log: StreamLog, ended: Mask, gate: core.Gate,
        signs: core.Signs, opened_at: int, rows: Sequence[Place], patches: Sequence[Place],
        unset: Sequence[tuple[Array, int]],
    ) -> None:  # fmt: skip
        self._rows, self._patches = Places(rows, unset), Places(patches)
        number_of = {column.column.name: number for number, (column, _) in enumerate(rows)}
        leaves = len(schema.obs_columns)
        given = [number for name, number in number_of.items() if name not in (VALID, START)] + list(range(leaves))
        targets = [*given, number_of[VALID], number_of[START]]
        columns = [rows[number].column.column for number in given]
        self._dtypes = [column.dtype for column in columns]
        if arguments is None:
            rules = [_anything(column.dtype, (log.num_envs, *column.shape)) for column in columns]
        else:
            rules = list(map(_argument, arguments.slots()))
        numbers = leaves, MAX_IDS // log.num_envs, opened_at, log.patches.length, schema.continuity == "flags"
        self.row = core.Row(
            gate, log, signs, ended, self._rows.written, self._patches.written, log.table.arrays[VALID],
            log.table.arrays[NEXT_PATCH], tuple(rules), np.array(targets, np.int64),
            (schema.obs_tree, schema.action_tree, tuple(column.name for column in schema.extra_columns)), numbers,
            (CONTINUES, schema.padding, ZEROS),
        )  # fmt: skip
        self.attach()

    def exact(self, values: Sequence[Any]) -> list[Array]:
        """Return checked values as arrays of the columns' dtypes."""
        return [np.asarray(value, dtype) for value, dtype in zip(values, self._dtypes, strict=True)]

    def attach(self) -> None:
        """Once chunks have ended, find the write buffers."""
        self._rows.attach()
        self._patches.attach()


def _anything(dtype: np.dtype[Any], shape: tuple[int, ...]) -> core.Argument:
    return core.Argument(dtype, shape, False, False, 0, 0, None, False)


def _argument(slot: AnySlot) -> core.Argument:
    assert isinstance(slot, Slot)  # ragged rows do not come here
    low, high = slot.bounds.get(float if slot.dtype.kind == "f" else int, (0, 0))
    if slot.dtype.kind != "f":
        low, high = max(low, 1 - 2**63), min(high, 2**63 - 1)  # the core's numbers
    most = None if slot.unsigned is None else np.broadcast_to(slot.most, slot.shape).copy()
    single = slot.choices is not None and slot.unsigned is None
    finite = slot.finite or slot.lossy
    return core.Argument(slot.dtype, slot.shape, finite, slot.lossy, low, high, most, single)
