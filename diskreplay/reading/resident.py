"""One compiled call that copies the columns in RAM which transitions show.

numpy takes a microsecond or more for a column, however few its rows, which is most of the time of a small batch. The
compiled call needs numba, which takes half a second to load. So it is used only if another part of the program has
numba loaded, as samplers with priorities do, and only for small batches: a large one takes the time of its memory in
any case. numpy and the call give the same bits.

The arrays that the call fills are parts of one block of memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from diskreplay.checks import Array
from diskreplay.index.log import StreamLog, place_of
from diskreplay.reading import compiled
from diskreplay.schema.columns import START, VALID, Schema
from diskreplay.schema.ids import Ids
from diskreplay.schema.ring import Table

ALIGNED = 64
"""Each array of a block begins at a multiple of so many bytes."""
MOST_BYTES = 1 << 20
"""The bytes from which on a batch is copied column by column instead of in one call."""


PLACE = np.dtype(np.int64)
"""The dtype of the places of later values."""
NEXT = ".next "
"""The prefix of an observation's name for its next values; no column's name starts with a point."""


class BlockLayout(NamedTuple):
    """A block of memory for the rows of all columns of a batch."""

    size: int
    dtype: np.dtype[Any]
    """The dtype of the block; each of its fields is a column's array."""
    offsets: Ids


class Sources(NamedTuple):
    """The places in memory of the columns of a log, and of its patches."""

    table: Table
    patches: Table
    arrays: Ids
    patch_arrays: Ids


class Resident:
    """The columns in RAM that transitions of one step show, for one stream; without stacks of frames."""

    def __init__(self, schema: Schema, log: StreamLog) -> None:
        self.log = log
        self._schema = schema
        self._choose()

    def _choose(self) -> None:
        schema, log = self._schema, self.log
        held = log.held
        frames = {c.name: stack.frames for c, stack in zip(schema.obs_columns, schema.stacks, strict=True)}
        shown = [
            c for c in schema.columns
            if c.name in log.resident and c.name not in (START, VALID) and frames.get(c.name, 1) == 1
        ]  # fmt: skip
        observed = [c for c in shown if c.name in frames]
        later = [c for c in schema.later if c.name in log.later]
        places = [dataclasses.replace(c, name=place_of(c.name), shape=(), dtype=PLACE) for c in schema.later]
        shown += [*later, *places]
        self._columns = shown + observed
        self.names = [c.name for c in shown] + [NEXT + c.name for c in observed]
        self.following = np.arange(len(self._columns)) >= len(shown)
        self.row_bytes = np.array([math.prod(c.shape) * c.dtype.itemsize for c in self._columns], np.int64)
        self.all_row_bytes = int(self.row_bytes.sum())
        self._sources: Sources | None = None
        self._layout: BlockLayout | None = None
        self._held = held  # set last, so that a choice that was cut short is done again

    def catch_up(self) -> None:
        """Choose anew if the log was resized."""
        if self._held is not self.log.held:
            self._choose()

    def sources(self) -> Sources:
        """Return the sources for the log's present tables, which longer ones replace when they are full."""
        self.catch_up()
        table, patches, found = self.log.table, self.log.patches, self._sources
        if found is None or found.table is not table or found.patches is not patches:
            fields = [(column.name, bool(next)) for column, next in zip(self._columns, self.following, strict=True)]
            arrays = [table.arrays[name].ctypes.data for name, _ in fields]
            patched = [patches.arrays[name].ctypes.data if following else 0 for name, following in fields]
            found = Sources(table, patches, np.array(arrays, np.int64), np.array(patched, np.int64))
            self._sources = found
        return found

    def layout(self, size: int) -> BlockLayout:
        """Return the layout of a block for ``size`` rows."""
        if self._layout is None or self._layout.size != size:
            ends = np.cumsum(-(-self.row_bytes * size // ALIGNED) * ALIGNED)
            offsets = np.concatenate([[0], ends])
            fields = [(column.dtype, (size, *column.shape)) for column in self._columns]
            dtype = np.dtype(
                {
                    "names": self.names,
                    "formats": fields,
                    "offsets": offsets[:-1].tolist(),
                    "itemsize": int(offsets[-1]),
                }
            )
            self._layout = BlockLayout(size, dtype, offsets)
        return self._layout


class ResidentTable:
    """The columns in RAM of all streams of a store."""

    def __init__(self, residents: Sequence[Resident]) -> None:
        self._residents = residents
        self._choose()

    def _choose(self) -> None:
        first, count = self._residents[0], len(self._residents)
        first.catch_up()
        held = first.log.held
        self._known: list[Sources | None] = [None] * count
        self._alike = [False] * count
        self._arrays = np.zeros((count, len(first.names)), np.int64)
        self._patches = self._arrays.copy()
        self.held = held
        """The columns that the first stream's log holds; set last, so that a choice cut short is done again."""

    def _catch_up(self, drawn: Sequence[int]) -> bool:
        """Bring the streams up to date; return False if one of them holds other columns than the first."""
        if self._residents[0].log.held is not self.held:
            self._choose()
        for at in drawn:
            resident = self._residents[at]
            found = resident.sources()
            if found is not self._known[at]:
                self._alike[at] = resident.log.held == self.held
                if self._alike[at]:
                    self._arrays[at], self._patches[at] = found.arrays, found.patch_arrays
                self._known[at] = found  # set last, because compiled code follows these addresses
            if not self._alike[at]:
                return False
        return True

    def gather(
        self, streams: Ids, drawn: Sequence[int], ids: Ids, place: Ids, size: int, *, partial: bool
    ) -> dict[str, Array] | None:
        """Return the columns of rows, ``(size, *shape)`` by name, or None if numpy must copy.

        Args:
            streams: the table of streams of :mod:`diskreplay.index.addresses`, up to date.
            drawn: the positions of the streams to which the rows belong.
            ids: the ids of the rows.
            place: the place of each row in the arrays.
            size: the size of the arrays.
            partial: True if some places get no row, and are to be zeros.
        """
        planner = compiled.PLANNER.begin()
        if planner is None:
            return None
        first = self._residents[0]
        if not self._catch_up(drawn) or size * first.all_row_bytes >= MOST_BYTES:
            return None
        layout = first.layout(size)
        block = (np.zeros if partial else np.empty)(layout.dtype.itemsize, np.uint8)
        done = planner.gather(
            streams, self._arrays, self._patches, first.row_bytes, first.following, ids, place, block, layout.offsets
        )  # fmt: skip
        if not done:
            return None
        whole: Array = np.ndarray((), layout.dtype, block)
        return {name: whole[name] for name in first.names}
