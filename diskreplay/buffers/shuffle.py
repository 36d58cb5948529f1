"""One pass over all transitions without replacement, reading each chunk once.

1. The windows of all streams and environments are cut into *segments* of equal length, as many as chunks fit in the
   pool twice; each has a cursor. Where the cuts fall is random.
2. A round moves every cursor on by one chunk, and takes all transitions that it passes; its last row waits for the next
   round, because its next observation is in the next chunk.
3. The chunks of the round are decoded into the pool, and those of the round before dropped, but for the last chunk of
   each cursor, which holds the context of its next rows. The round's transitions are permuted and given out.

So neighbours in time stand in one round, but each round mixes the whole log, and the memory is bounded.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.streams import beside_writers
from diskreplay.errors import CorruptionError
from diskreplay.index.log import NOW, STREAM_SHIFT
from diskreplay.reading import gather
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.reads import Reads
from diskreplay.reading.stream import StreamPart
from diskreplay.schema import Schema
from diskreplay.views.batch import Batch
from diskreplay.views.view import View

POOL_BYTES = 128 << 20
POOL_SLACK = 3
"""What a round may hold at most, over ``pool_bytes``: context and what is left of the round before."""
POOL_SPARE_BYTES = 64 << 20
"""Likewise, whatever ``pool_bytes`` is: the context of a small pool is large beside it."""
SMALL_CHUNK_ROWS = 1024
"""Rows that a cursor moves on by when no column is on disk alone."""

Ids = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Rows ``[row, stop)`` of one environment of a stream that are still to be given out."""

    stream: int
    num_envs: int
    env: int
    row: int
    stop: int

    def ids_to(self, row: int) -> Ids:
        """The ids up to a row."""
        rows = np.arange(self.row, row)
        return (self.stream << STREAM_SHIFT) + rows * self.num_envs + self.env

    def next_row(self, chunk_rows: int) -> int:
        """The row before the next chunk's last, or the end of the segment."""
        chunk_end = (self.row + 1) // chunk_rows * chunk_rows + chunk_rows
        return self.stop if chunk_end >= self.stop else chunk_end - 1


class Pass(Iterator[Batch]):
    """The batches of one pass; see the module's docstring. Takes the buffer's lock for each batch.

    ``parts`` gives the streams, which a refresh may replace; ``caught_up`` is as of :func:`beside_writers`. What left
    the window is left out.
    """

    def __init__(
        self, schema: Schema, parts: Callable[[], Sequence[StreamPart]], view: View, rng: np.random.Generator,
        batch_size: int, pool_bytes: int, drop_last: bool, lock: contextlib.AbstractContextManager[object],
        caught_up: Callable[[bool], bool],
    ) -> None:  # fmt: skip
        self._schema = schema
        self._pool = ChunkCache(POOL_SLACK * pool_bytes + POOL_SPARE_BYTES)
        self._streams = parts
        self._seen: Sequence[StreamPart] = ()
        self._over_pool: Sequence[StreamPart] = ()
        self._view = view
        self._rng = rng
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._lock = lock
        self._caught_up = caught_up
        wide = [column for column in schema.columns if not column.resident]
        self._chunk_rows = max((column.chunk_rows for column in wide), default=SMALL_CHUNK_ROWS)
        chunk_bytes = max(1, sum(column.item_bytes for column in wide)) * self._chunk_rows
        with lock:
            cursors = _cut(parts(), rng, max(1, pool_bytes // (2 * chunk_bytes)), self._chunk_rows)
        self._left: tuple[Sequence[Cursor], Ids] = cursors, np.empty(0, np.int64)
        """The cursors with rows that are left, and the ids of rounds that wait to be given out."""

    def __next__(self) -> Batch:
        while True:
            cursors, waiting = self._left
            if cursors and len(waiting) < self._batch_size:
                self._left = self._round(cursors, waiting)
                continue
            if not len(waiting) or (self._drop_last and len(waiting) < self._batch_size):
                raise StopIteration
            batch = self._batch(waiting[: self._batch_size])
            self._left = cursors, waiting[self._batch_size :]
            if len(batch):
                return batch

    def _parts(self) -> Sequence[StreamPart]:
        """The streams with the pool as their cache. Needs the lock."""
        seen = self._streams()
        if list(seen) != list(self._seen):
            self._over_pool = [part.with_cache(self._pool) for part in seen]
            self._seen = seen
        return self._over_pool

    def _round(self, cursors: Sequence[Cursor], waiting: Ids) -> tuple[Sequence[Cursor], Ids]:
        """Moves every cursor on; those that are left, and the ids that wait with the round's among them."""
        rows = [cursor.next_row(self._chunk_rows) for cursor in cursors]
        with self._lock:
            parts = self._parts()
            ids = np.concatenate([cursor.ids_to(row) for cursor, row in zip(cursors, rows, strict=True)])
            waiting = np.concatenate([waiting, _shuffled(parts, ids, self._view, self._rng)])
            with contextlib.suppress(CorruptionError):  # the batch that needs it will say so
                _load(self._pool, parts, waiting, self._schema.context, self._view.reach)
        moved = [dataclasses.replace(cursor, row=row) for cursor, row in zip(cursors, rows, strict=True)]
        return [cursor for cursor in moved if cursor.row < cursor.stop], waiting

    def _batch(self, ids: Ids) -> Batch:
        """The batch of those of the ids that have not left the window."""

        def batch() -> Batch:
            reads = Reads()
            with self._lock:
                parts = self._parts()
                present = ids[_present(parts, ids)]
                weight = np.ones(len(present), np.float32)
                drafted = self._view.draft(self._schema, parts, present, weight, self._rng, reads)
            reads.finish()
            return drafted

        return beside_writers(batch, self._caught_up)


def _cut(parts: Sequence[StreamPart], rng: np.random.Generator, count: int, chunk_rows: int) -> list[Cursor]:
    """About ``count`` cursors over all lanes (stream and environment), of equal length, cut at chunk borders."""
    total = sum((part.log.end - part.log.begin) * part.log.num_envs for part in parts)
    length = max(1, -(-total // count) // chunk_rows) * chunk_rows
    cursors = []
    for part in parts:
        for env in range(part.log.num_envs):
            first = (part.log.begin // chunk_rows - int(rng.integers(length // chunk_rows))) * chunk_rows
            for low in range(first, part.log.end, length):
                row, stop = max(low, part.log.begin), min(low + length, part.log.end)
                if row < stop:
                    cursors.append(Cursor(part.log.stream, part.log.num_envs, env, row, stop))
    return cursors


def _shuffled(parts: Sequence[StreamPart], ids: Ids, view: View, rng: np.random.Generator) -> Ids:
    """Those of the ids that are transitions of the window, permuted."""
    ids = ids[_present(parts, ids)]
    for part in parts:
        here = np.flatnonzero(ids >> STREAM_SHIFT == part.log.stream)
        good = view.standing(part, ids[here]) == NOW
        ids = np.delete(ids, here[~good])
    return rng.permutation(ids)


def _present(parts: Sequence[StreamPart], ids: Ids) -> NDArray[np.bool]:
    """Which ids have not left their window since."""
    present = np.zeros(len(ids), bool)
    for part in parts:
        present |= (ids >= part.log.first_id) & (ids < part.log.stop_id)
    return present


def _load(pool: ChunkCache, parts: Sequence[StreamPart], ids: Ids, context: int, reach: int) -> None:
    """Decodes the chunks of a round's rows, of the context before and the next observation after them, into the pool.

    Chunks that no row of this round needs are dropped first; the last of the round before is still needed.
    """
    for part in parts:
        rows, envs = part.log.locate(ids[ids >> STREAM_SHIFT == part.log.stream])
        for column in part.stream.patches.values():
            pool.drop(column)
        for column in part.large_columns():
            chunk_rows = column.column.chunk_rows
            steps = np.append(np.arange(-context, reach, chunk_rows), reach)
            wanted = np.clip(rows[:, None] + steps, part.log.floor, part.log.end - 1) // chunk_rows
            lanes = np.unique(wanted * part.log.num_envs + envs[:, None])
            chunk, group = np.divmod(lanes, part.log.num_envs)
            pool.drop_but(column, chunk, group)
            on_disk = chunk < column.committed // chunk_rows
            gather.load(column, chunk[on_disk], group[on_disk], pool)
