"""The rows of a store, environment by environment in the order of its log, as exports need them.

1. A :class:`LogRows` is one stream as of its last commit, opened beside a possible writer.
2. :meth:`LogRows.blocks` walks the window of one environment from its first row to its last: blocks of whole chunks,
   each read by :class:`~diskreplay.reading.samples.Samples`.
3. Rows that are no transition (``valid`` is false) are left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import NoReturn, cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.engine.continuity import same_rows
from diskreplay.errors import CorruptionError, StateError
from diskreplay.formats.core.transitions import BLOCK_BYTES, Transitions
from diskreplay.index import rewards
from diskreplay.index.episodes import Episode, episodes
from diskreplay.index.log import NEXT_PATCH, StreamLog, place_of
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import OpenStream, open_stream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.remote import open_store
from diskreplay.schema.columns import RECORDED, REWARD, TERMINATED, TRUNCATED, VALID, Column, Schema
from diskreplay.schema.ids import pack
from diskreplay.schema.ragged import PADDED, Forms
from diskreplay.storage import stream
from diskreplay.storage.store import Store

LOOKED_AT = 256
"""The number of rows by which it is estimated how many bytes of items a row has."""
COMPARED_ROWS = 256
"""The number of rows whose next observations are compared at once."""
STACKED_ROWS = 256
"""The number of rows that are read at once if observations are wanted stacked."""


class LogRows:
    """One stream as of its last commit, read in the order of its rows."""

    def __init__(
        self, store: Store, name: str, reward: str = REWARD, opened: tuple[OpenStream, StreamLog] | None = None
    ) -> None:
        """Open the stream; raise CorruptionError when an index or a resident column is damaged.

        Args:
            store: the store.
            name: the stream's name.
            reward: the column whose values are given as rewards.
            opened: the stream, where it is open, and a log that says which of its rows are transitions, and where
                episodes begin; None to open the stream, and to go by its own log.
        """
        self.store = store
        self.name = name
        self.schema: Schema = store.schema
        self.reward = reward
        if opened is not None:
            self.stream, self.log = opened
            return
        commit = store.newest_commit(name)
        with store.files.coming(store.schema, {name: commit}):
            self.stream = open_stream(store, name, ChunkCache(0), held={*store.schema.held(commit.capacity), reward})
        self.log = self.stream.log

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return len(self.log)

    @property
    def episodes(self) -> list[Episode]:
        """The episodes of the window, by first row, then environment."""
        return episodes(self.log, self.stream.facts)

    def blocks(
        self, env: int, spans: Sequence[tuple[int, int]] | None = None, *, stacked: bool = False
    ) -> Iterator[Transitions]:
        """Yield transitions of one environment in order, a few MB at a time.

        Args:
            env: its number.
            spans: the ranges of rows ``(start, stop)`` in the window, in order; the whole window if None.
            stacked: True to give observations as they were added, False to give single frames.

        Raises CorruptionError for a damaged chunk, StateError when a live writer evicted a row before it was read.
        """
        row_bytes = sum(column.item_bytes for column in self.schema.columns) + self._row_items_bytes()
        step = max((c.column.chunk_rows for c in self.stream.large_columns()), default=1)
        size = STACKED_ROWS if stacked else max(1, BLOCK_BYTES // row_bytes // step) * step
        for begin, end in [(self.log.begin, self.log.end)] if spans is None else spans:
            for start in range(begin // size * size, end, size):
                rows = self.valid_rows(env, [(max(start, begin), min(start + size, end))])
                if len(rows):
                    yield self._transitions(env, rows, stacked)

    def _row_items_bytes(self) -> int:
        """Return about how many bytes of items a row of one environment has; those that rows share count for each."""
        if not len(self.log):
            return 0
        rows = np.unique(np.linspace(self.log.begin, self.log.end - 1, LOOKED_AT).astype(np.int64))
        ragged = [(self.log.take(one.name, rows, np.zeros_like(rows)), one) for one in self.schema.ragged.values()]
        return sum(int(np.diff(spans).mean()) * one.items.item_bytes for spans, one in ragged)

    def valid_rows(self, env: int, spans: Sequence[tuple[int, int]]) -> Array:
        """Return the rows of the spans that are transitions, int64: those that :meth:`blocks` gives."""
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        return cast(Array, rows[self.log.take(VALID, rows, np.full(len(rows), env))])

    def written_later(self, env: int, spans: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Return by column how many rows of the spans have a value that was written later."""
        rows = self.valid_rows(env, spans)
        envs = np.full(len(rows), env)
        taken = {column.name: self.log.take(place_of(column.name), rows, envs) for column in self.schema.later}
        return {name: int(np.count_nonzero(places)) for name, places in taken.items()}

    def own_next_obs(self, env: int, episodes: Sequence[tuple[int, int]], names: Sequence[str]) -> Iterator[int]:
        """Count rows, but for the last ones of episodes, whose next observation is not the next row's ``obs``.

        Args:
            env: its number.
            episodes: the ranges of rows ``(start, stop)``, in order.
            names: the names of the observation leaves that are compared.

        Yields a count for every few hundred rows; raises what :meth:`blocks` raises.
        """
        if self.schema.continuity != "flags":
            return  # a row with another next observation ends its episode
        inner = [np.arange(start, stop - 1) for start, stop in episodes]
        rows = np.concatenate(inner) if inner else np.empty(0, np.int64)
        rows = rows[self.log.take(NEXT_PATCH, rows, np.full_like(rows, env)) >= 0]
        for begin in range(0, len(rows), COMPARED_ROWS):
            part = rows[begin : begin + COMPARED_ROWS]
            differ = np.zeros(len(part), bool)
            for name in names:
                differ |= ~same_rows(self._stored(name, env, part, 1), self._stored(name, env, part + 1))
            yield int(np.count_nonzero(differ))

    def frames(self, column: Column, env: int, rows: Array) -> Iterator[Array]:
        """Yield the frames ``(*shape)`` of rows of a column, one by one; a few MB are decoded at a time."""
        step = max(1, BLOCK_BYTES // column.item_bytes)
        for at in range(0, len(rows), step):
            yield from self.values(column, env, rows[at : at + step])

    def values(self, column: Column, env: int, rows: Array, step: int = 0) -> Array:
        """Return the values ``(n, *shape)`` of rows, transitions or not; with step 1 their true next observations.

        Raises what :meth:`blocks` raises. Those of video columns are frames, those of other ragged columns spans.
        """
        return self._stored(column.name, env, rows, step, shown=self.schema.videos)

    def _stored(self, name: str, env: int, rows: Array, step: int = 0, shown: Collection[str] = ()) -> Array:
        """Return values of rows or single frames of their next observations; of ragged columns not ``shown`` spans."""
        if name in self.log.resident and name not in shown:
            at = self.log.positions(rows, np.full_like(rows, env))
            return self.log.next_at(name, at) if step else self.log.at(name, at)
        with self._read(env, rows) as samples:
            leaves = [column.name for column in self.schema.obs_columns]
            return samples.next_values(leaves.index(name)) if step else samples.values(self.schema.column(name))

    @contextlib.contextmanager
    def _read(self, env: int, rows: Array, forms: Forms = PADDED) -> Iterator[Samples]:
        """Yield samples of rows; the arrays that they return are complete at the end of the block."""
        ids = pack(self.log.stream, rows, env, self.log.num_envs)
        samples = Samples(self.schema, [self.stream], ids, reads=Reads(np.empty, forms=forms, reward=self.reward))
        try:
            yield samples
            samples.reads.finish()
        except CorruptionError as error:
            self.explain(error)

    def refresh(self) -> bool:
        """Go on to the stream's last commit, and return True if there was a newer one.

        Raises StateError where only opening the stream anew helps: its writer went back to a checkpoint.
        """
        disk = self.stream.disk
        newest = stream.read_commit(self.store.files, disk.path)
        if newest == disk.commit_record:
            return False
        if newest.timeline != disk.commit_record.timeline or not isinstance(disk, stream.StreamReader):
            raise StateError(f"the stream {self.name!r} went back to a checkpoint: open it anew")
        disk.load(newest)
        self.stream.catch_up()
        return True

    def explain(self, error: CorruptionError) -> NoReturn:
        """Raise StateError if a live writer evicted the rows, else the error itself, for a shard is damaged."""
        newest = stream.read_commit(self.store.files, self.store.stream_path(self.name))
        ours = self.stream.disk.commit_record
        if (newest.begin, newest.timeline) != (ours.begin, ours.timeline):
            raise StateError(
                f"the stream {self.name!r} evicted rows while they were read; close its writer, or read a copy"
            ) from error
        raise error

    def _transitions(self, env: int, rows: Array, stacked: bool) -> Transitions:
        schema, names = self.schema, [column.name for column in self.schema.obs_columns]
        with self._read(env, rows, "lists") as samples:
            pairs = [samples.observe(leaf, stacked) for leaf in range(len(names))]
            extra = {column.name: samples.values(column) for column in schema.extra_columns}
            return Transitions(
                obs={name: obs for name, (obs, _) in zip(names, pairs, strict=True)},
                next_obs={name: following for name, (_, following) in zip(names, pairs, strict=True)},
                action={column.name: samples.values(column) for column in schema.action_columns},
                extra={RECORDED: samples.resident(REWARD), **extra},
                reward=samples.rewards(),
                terminated=samples.resident(TERMINATED),
                truncated=samples.resident(TRUNCATED),
                last=self.log.is_cut(rows, np.full_like(rows, env)) | (rows + 1 == self.log.end),
            )


def open_rows(path: str, reward_column: str | None = None) -> list[LogRows]:
    """Return all streams of the store at ``path``, for reading; nothing is changed.

    Raises StoreNotFoundError, NotAStoreError, FormatVersionError or CorruptionError, and InputError for a
    ``reward_column`` that does not give rewards.
    """
    store = open_store(path)
    if reward_column is not None:
        rewards.check_column(store.schema, reward_column)
    return [LogRows(store, name, reward_column or REWARD) for name in store.stream_names()]
