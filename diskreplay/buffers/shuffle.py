"""One pass over all transitions without replacement, reading each chunk once.

1. The windows of all streams and environments are cut into *segments* of equal length, as many as chunks fit in the
   pool twice; each has a cursor. Where the cuts fall is random.
2. A round moves every cursor on by one chunk, and takes all transitions that it passes; its last row waits for the next
   round, because its next observation is in the next chunk.
3. The chunks of the round are decoded into the pool, and those of the round before dropped, but for the last chunk of
   each cursor, which holds the context of its next rows. The system is told of the next round's chunks, and reads them
   while this round's transitions, permuted, are given out.

So neighbours in time stand in one round, but each round mixes the whole log, and the memory is bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.engine import Engine
from diskreplay.errors import CorruptionError
from diskreplay.index.log import NOW
from diskreplay.reading import gather
from diskreplay.reading.addresses import Addresses
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.schema.columns import Schema
from diskreplay.schema.ids import Ids, pack, stream_of
from diskreplay.storage.column import ColumnReader
from diskreplay.views.batch import SomeBatch
from diskreplay.views.view import Scattered, View

POOL_BYTES = 128 << 20
POOL_SLACK = 3
"""The size to which a round may grow, over ``pool_bytes``: context and what is left of the round before."""
POOL_SPARE_BYTES = 64 << 20
"""The size that a round may always have: the context of a small pool is large beside it."""
SMALL_CHUNK_ROWS = 1024
"""The number of rows that a cursor moves on by when no column is on disk alone."""


class Cursor(NamedTuple):
    """Rows ``[row, stop)`` of one environment of a stream that are still to be given out."""

    stream: int
    num_envs: int
    env: int
    row: int
    stop: int

    def ids_to(self, row: int) -> Ids:
        """Return the ids up to a row."""
        ids: Ids = pack(self.stream, np.arange(self.row, row), self.env, self.num_envs)
        return ids

    def next_row(self, chunk_rows: int) -> int:
        """Return the row before the next chunk's last, or the end of the segment."""
        chunk_end = (self.row + 1) // chunk_rows * chunk_rows + chunk_rows
        return self.stop if chunk_end >= self.stop else chunk_end - 1


class Pass(Iterator[SomeBatch]):
    """The batches of one pass, as the module's docstring says; the engine's lock is taken for each batch.

    What left the window is left out; so is what ``among`` says no to. ``check`` is called with the lock held, before
    rows are looked at; it raises an error if the pass may not go on.
    """

    def __init__(
        self, engine: Engine, view: View[SomeBatch], batch_size: int, pool_bytes: int, drop_last: bool,
        among: Callable[[Ids], NDArray[np.bool_]] | None = None, check: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._check = check
        self._pool = ChunkCache(POOL_SLACK * pool_bytes + POOL_SPARE_BYTES)
        self._seen: Sequence[OpenStream] = ()
        self._over_pool: Sequence[OpenStream] = ()
        self._addresses: Addresses | None = None
        self._view = view
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._among = among
        with engine.lock:
            streams = self._streams()
            wide = {reader.column for stream in streams for reader in stream.large_columns()}
            self._chunk_rows = max((column.chunk_rows for column in wide), default=SMALL_CHUNK_ROWS)
            chunk_bytes = max(1, sum(column.item_bytes for column in wide)) * self._chunk_rows
            cursors = _cut(streams, engine.rng, max(1, pool_bytes // (2 * chunk_bytes)), self._chunk_rows)
        self._left: tuple[Sequence[Cursor], Ids] = cursors, np.empty(0, np.int64)
        """The cursors with rows that are left, and the ids of rounds that wait to be given out."""

    def __next__(self) -> SomeBatch:
        while True:
            cursors, waiting = self._left
            if cursors and len(waiting) < self._batch_size:
                self._left = self._round(cursors, waiting)
                continue
            if not len(waiting) or (self._drop_last and len(waiting) < self._batch_size):
                raise StopIteration
            batch = self._engine.read(self._draft, waiting[: self._batch_size])
            self._left = cursors, waiting[self._batch_size :]
            if len(batch):
                return batch

    def _streams(self) -> list[OpenStream]:
        """Return the streams as they are open now, which a refresh may replace; the caller holds the lock."""
        self._engine.check_open()
        self._check()
        return self._engine.streams.all

    def _pooled(self) -> Sequence[OpenStream]:
        """Return the streams with the pool as their cache; the caller holds the lock."""
        seen = self._streams()
        if list(seen) != list(self._seen):
            self._pool = ChunkCache(self._pool.budget.size)  # the old chunks of streams opened anew would stay in it
            self._over_pool = [stream.with_cache(self._pool) for stream in seen]
            self._addresses = Addresses(self._over_pool)
            self._seen = seen
        return self._over_pool

    def _round(self, cursors: Sequence[Cursor], waiting: Ids) -> tuple[Sequence[Cursor], Ids]:
        """Move every cursor on; return the cursors with rows left, and the ids that wait, the round's among them."""
        rows = [cursor.next_row(self._chunk_rows) for cursor in cursors]
        engine = self._engine
        with engine.lock:
            streams = self._pooled()
            ids = np.concatenate([cursor.ids_to(row) for cursor, row in zip(cursors, rows, strict=True)])
            if self._among is not None:
                ids = ids[self._among(ids)]
            ids = ids[in_windows(streams, ids)]
            items = ids[engine.streams.standing(self._view, ids) == NOW]
            waiting = np.concatenate([waiting, engine.rng.permutation(items)])
            with contextlib.suppress(CorruptionError):  # the batch that needs it will say so
                _load(self._pool, streams, waiting, engine.schema, self._view)
        moved = [cursor._replace(row=row) for cursor, row in zip(cursors, rows, strict=True)]
        return [cursor for cursor in moved if cursor.row < cursor.stop], waiting

    def _draft(self, ids: Ids, reads: Reads) -> SomeBatch:
        """Return the batch of those of the ids that have not left the window."""
        streams, reads.addresses = self._pooled(), self._addresses
        present = ids[in_windows(streams, ids)]
        weight = np.ones(len(present), np.float32)
        return self._view.draft(self._engine.schema, streams, present, weight, self._engine.rng, reads)


def _cut(streams: Sequence[OpenStream], rng: np.random.Generator, count: int, chunk_rows: int) -> list[Cursor]:
    """Return about ``count`` cursors over all lanes (stream and environment), of equal length, cut at chunk borders."""
    total = sum((stream.log.end - stream.log.begin) * stream.log.num_envs for stream in streams)
    length = max(1, -(-total // count) // chunk_rows) * chunk_rows
    cursors = []
    for stream in streams:
        for env in range(stream.log.num_envs):
            first = (stream.log.begin // chunk_rows - int(rng.integers(length // chunk_rows))) * chunk_rows
            for low in range(first, stream.log.end, length):
                row, stop = max(low, stream.log.begin), min(low + length, stream.log.end)
                if row < stop:
                    cursors.append(Cursor(stream.log.stream, stream.log.num_envs, env, row, stop))
    return cursors


def in_windows(streams: Sequence[OpenStream], ids: Ids) -> NDArray[np.bool_]:
    """Tell which ids have not left their window since."""
    present = np.zeros(len(ids), bool)
    for stream in streams:
        present |= (ids >= stream.log.first_id) & (ids < stream.log.stop_id)
    return present


def _load(pool: ChunkCache, streams: Sequence[OpenStream], ids: Ids, schema: Schema, view: View) -> None:
    """Decode the chunks of a round's rows, their context and the next observation after them, into the pool.

    First, chunks that no row of this round needs are dropped in all streams, so that every stream has their room. The
    last of the round before is still needed. The next round reads the chunk after each that is read now.
    """
    needed: list[tuple[ColumnReader, Ids]] = []
    shown = view.rows_shown(schema) if isinstance(view, Scattered) else {}
    context, reach = schema.context, view.reach
    for stream in streams:
        rows, envs = stream.log.locate(ids[stream_of(ids) == stream.log.stream])
        for column in (*stream.disk.patches.values(), *stream.disk.items.values()):
            pool.drop(column)
        for column in stream.large_columns():
            chunk_rows, groups = column.column.chunk_rows, column.groups
            steps = np.append(np.arange(-context, reach, chunk_rows), reach)
            if (own := shown.get(column.column.name)) is not None:
                steps = np.add.outer(own, np.append(np.arange(-context, 0, chunk_rows), 0)).ravel()
            wanted = np.clip(rows[:, None] + steps, stream.log.floor, stream.log.end - 1) // chunk_rows
            lanes = np.unique(wanted * groups + envs[:, None] // column.group_envs)
            pool.drop_but(column, *np.divmod(lanes, groups))
            needed.append((column, lanes))
    for column, lanes in needed:
        stored, groups = column.in_ram, column.groups
        chunk, group = np.divmod(lanes, groups)
        on_disk = chunk < stored
        gather.load(column, chunk[on_disk], group[on_disk], pool)
        chunk, group = np.divmod(np.setdiff1d(lanes + groups, lanes), groups)
        on_disk = chunk < stored
        gather.advise(column, chunk[on_disk], group[on_disk])
