"""How values for rows that exist already are written: checked before anything changes, then appended to a log.

:class:`LaterWriter` makes blocks of the checked values, and one change appends these to a log of the stream. From then
on batches show the values. The blocks wait in RAM, and the next commit compresses them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.inputs import Slot
from diskreplay.errors import InputError
from diskreplay.index.later_values import encode
from diskreplay.process.locks import Block
from diskreplay.reading.open_stream import OpenStream
from diskreplay.schema.columns import LATER, VALID, Schema
from diskreplay.schema.ids import STREAM_SHIFT, Ids, checked_ids, stream_of


class LaterWriter:
    """The writer of later values of one stream. Callers hold ``engine.write_lock``."""

    def __init__(self, schema: Schema, stream: OpenStream, change: Block) -> None:
        self._stream = stream
        self._change = change
        self._finite = schema.finite
        self._columns = {column.name: (number, column) for number, column in enumerate(schema.later)}
        self._slots = {column.name: Slot(column.name, column.shape, column.dtype, 1) for column in schema.later}

    def write(self, name: str, index: Any, values: Any) -> None:
        """Write values of a column for the ids ``index``; raise InputError, before any change, for wrong arguments."""
        places, given = self.checked(name, index, values)
        if len(places):
            flat = np.ascontiguousarray(given).reshape(len(places), -1).view(np.uint8)
            with self._change:
                self._stream.logs[LATER].append(encode(self._columns[name][0], places, flat))

    def checked(self, name: str, index: Any, values: Any) -> tuple[Ids, NDArray[Any]]:
        """Return the places and values of those ids that are in the window; raise InputError for wrong arguments."""
        if name not in self._columns:
            known = ", ".join(map(repr, self._columns)) or "none: create(..., later={name: dtype}) declares them"
            raise InputError(f"write: there is no column {name!r} that is written later; there are {known}")
        _, column = self._columns[name]
        ids = checked_ids(index)
        none = not len(ids) and isinstance(values, list | tuple) and not values  # an empty list has no shape to check
        given = self._slots[name].check_steps(np.empty((0, *column.shape), column.dtype) if none else values, len(ids))
        if self._finite and column.dtype.kind in "fc" and not np.isfinite(given).all():
            row = np.argwhere(~np.isfinite(given))[0].tolist()
            raise InputError(
                f"{name}: must be finite, as the store was made with finite=True, got {given[tuple(row)]} at {row}; "
                "nothing was written"
            )
        ids, given = self._present(ids, given)
        return ids - (self._stream.log.stream << STREAM_SHIFT), given

    def _present(self, ids: Ids, values: NDArray[Any]) -> tuple[Ids, NDArray[Any]]:
        """Return the ids that are in the window, with their values; raise InputError for ids that never existed."""
        log = self._stream.log
        least, most = (int(ids.min()), int(ids.max())) if len(ids) else (log.first_id, -1)
        if least < log.first_id or most >= log.stop_id:
            wrong = ids[(stream_of(ids) != log.stream) | (ids >= log.stop_id)]
            if len(wrong) and wrong[0] >= 0 and stream_of(wrong[0]) != log.stream:
                raise InputError(
                    f"index {wrong[0]} is of the stream number {stream_of(wrong[0])}; this buffer writes the stream "
                    f"{self._stream.disk.name!r}, number {log.stream}, and can write values for rows of that alone"
                )
            if len(wrong):
                raise InputError(f"index {wrong[0]} names no transition: it was never given")
            here = ids >= log.first_id
            ids, values = ids[here], values[here]
        if log.invalid and len(ids):
            rows, envs = log.locate(ids)
            valid = log.take(VALID, rows, envs)
            if not valid.all():
                raise InputError(f"index {ids[~valid][0]} names no transition: its row is none (valid=False)")
        return ids, values
