"""Values for rows that are already there: checked before anything changes, logged, and shown from then on.

To write is one change: blocks for the log are made first, and noted by one assignment, after which it has happened.
What is left to do, to take them over, is done again by the next call where an interrupt cut it short. The blocks wait
as they are, and the next commit appends and compresses them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.inputs import Slot
from diskreplay.errors import CorruptionError, InputError
from diskreplay.ids import STREAM_SHIFT, Ids, checked_ids, stream_of
from diskreplay.index.later import Bytes, Encoded, encode
from diskreplay.reading.stream import OpenStream
from diskreplay.schema import VALID, Schema
from diskreplay.storage.column import ColumnWriter
from diskreplay.storage.stream import StreamWriter


class LaterWriter:
    """Writes values of one stream's rows; the buffer's lock guards every call."""

    def __init__(self, schema: Schema, stream: OpenStream, writer: StreamWriter) -> None:
        self._stream = stream
        self._finite = schema.finite
        self._columns = {column.name: (number, column) for number, column in enumerate(schema.later)}
        self._slots = {column.name: Slot(column.name, column.shape, column.dtype, 1) for column in schema.later}
        self._disk: ColumnWriter | None = writer.later
        self._giving: tuple[int, list[Encoded]] | None = None
        """How many blocks waited, and those that come behind them."""
        if self._disk is not None and self._disk.end != stream.later.end:  # behind shards that checkpoints pin
            stream.later.restart(self._disk.end)

    @property
    def torn(self) -> bool:
        """Whether a change was begun and not ended."""
        return self._giving is not None

    @property
    def waiting_bytes(self) -> int:
        """Bytes in RAM that wait for a commit."""
        return self._stream.later.end - self._disk.committed if self._disk is not None else 0

    @property
    def unwritten(self) -> bool:
        """Whether a commit has something to write."""
        waiting = self._stream.later.waiting
        return bool(waiting) and self._disk is not None and waiting[-1].block.stop > self._disk.committed

    def write(self, name: str, index: Any, values: Any) -> None:
        """Values of a column for the rows that ``index`` names; InputError, before any change, for what is wrong."""
        places, given = self.checked(name, index, values)
        if len(places):
            flat = np.ascontiguousarray(given).reshape(len(places), -1).view(np.uint8)
            self._give(self._columns[name][0], places, flat)

    def checked(self, name: str, index: Any, values: Any) -> tuple[Ids, NDArray[Any]]:
        """Places and values of those rows that are in the window; InputError for what is wrong."""
        if name not in self._columns:
            known = ", ".join(map(repr, self._columns)) or "none: create(..., later={name: dtype}) declares them"
            raise InputError(f"write: there is no column {name!r} that is written later; there are {known}")
        _, column = self._columns[name]
        ids = checked_ids(index)
        none = not len(ids) and isinstance(values, list | tuple) and not values  # which has no shape to be checked
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
        """The ids that are in the window, with their values; InputError for those that were never given."""
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

    def _give(self, number: int, places: Ids, values: Bytes) -> None:
        later = self._stream.later
        self._giving = len(later.waiting), encode(number, places, values, later.end)
        self.settle()

    def settle(self) -> None:
        """Does what is left of a change that was begun; interrupted, it can be done again."""
        if self._giving is None:
            return
        later, (count, blocks) = self._stream.later, self._giving
        for _, block in blocks:
            later.take(block)
        later.waiting[count:] = blocks
        self._giving = None

    def before_commit(self) -> int:
        """Looks for what is dead in the log, and appends what waits; the log's first byte that is needed."""
        disk, later = self._disk, self._stream.later
        if disk is None:
            return 0
        self.written()  # a commit may have been interrupted when it had happened
        committed = disk.committed
        # Where the log is damaged, it only goes on growing: what is written next is not lost by that.
        with contextlib.suppress(CorruptionError, ValueError):
            for living in later.cleaned(committed, later.end - committed, self._stream.read_later):
                self._give(*living)
        disk.rewind(committed)
        for data, _ in later.waiting:
            disk.append(data)
        return later.begin

    def written(self) -> None:
        """Forgets what waited and is durable."""
        later = self._stream.later
        if self._disk is not None:
            committed = self._disk.committed
            later.waiting = [encoded for encoded in later.waiting if encoded.block.stop > committed]
