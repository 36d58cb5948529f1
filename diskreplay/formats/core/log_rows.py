"""The rows of a store, environment by environment in the order of its log, as exports need them.

1. A :class:`LogRows` is one stream as of its last commit, opened beside a possible writer.
2. :meth:`LogRows.blocks` walks the window of one environment from its first row to its last, decoding each chunk once.
3. A row's next observation is the next row's, except where the patch table holds another one.
4. Rows that are no transition (``valid`` is false) are left out.

Frames are given as they are stored: single, however many of them an observation stacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, StateError
from diskreplay.formats.core.transitions import BLOCK_BYTES, Transitions
from diskreplay.index import rewards
from diskreplay.index.episodes import Episode, episodes
from diskreplay.index.log import place_of
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import OpenStream, open_stream
from diskreplay.remote import open_store
from diskreplay.schema.columns import RECORDED, REWARD, TERMINATED, TRUNCATED, VALID, Column, Schema
from diskreplay.storage import stream
from diskreplay.storage.store import Store

LOOKED_AT = 256
"""The number of rows by which it is estimated how many bytes of items a row has."""
COMPARED_ROWS = 256
"""The number of rows whose next observations are compared at once."""


class Walk:
    """A reader of the rows of one environment and column, forwards.

    Those of a column in RAM are copied; else the chunk at hand is kept, so that none is decoded twice.
    """

    def __init__(self, stream: OpenStream, name: str, env: int) -> None:
        self._log, self._name, self._env = stream.log, name, env
        self._column = stream.disk.rows[name]
        self._at = -1
        self._values = np.empty(self._column.chunk_shape, self._column.column.dtype)

    def read(self, start: int, stop: int) -> Array:
        """Return rows ``[start, stop)`` as ``(rows, *shape)``."""
        if self._name in self._log.resident:
            return self._log.span(self._name, start, stop)[:, self._env]
        column = self._column
        out = np.empty((stop - start, *column.column.shape), column.column.dtype)
        rows = column.column.chunk_rows
        group, env = (0, self._env) if column.column.resident else (self._env, 0)
        for chunk in range(start // rows, -(-stop // rows)):
            if chunk != self._at:
                self._at = -1
                column.read_chunk(chunk, group, self._values)
                self._at = chunk
            low, high = max(start, chunk * rows), min(stop, (chunk + 1) * rows)
            out[low - start : high - start] = self._values[low - chunk * rows : high - chunk * rows, env]
        return out


class LogRows:
    """One stream as of its last commit, read in the order of its rows."""

    def __init__(self, store: Store, name: str, reward: str = REWARD) -> None:
        """Open the stream; raise CorruptionError when an index or a resident column is damaged.

        The values of the column ``reward`` are given as rewards.
        """
        self.store = store
        self.name = name
        self.schema: Schema = store.schema
        self.reward = reward
        with store.files.coming(store.schema, {name: store.newest_commit(name)}):
            self.stream = open_stream(store, name, ChunkCache(0), reward=reward)
        self.log = self.stream.log

    def __len__(self) -> int:
        """Return the number of transitions in the window."""
        return len(self.log)

    @property
    def episodes(self) -> list[Episode]:
        """The episodes of the window, by first row, then environment."""
        return episodes(self.log, self.stream.facts)

    def blocks(self, env: int, spans: Sequence[tuple[int, int]] | None = None) -> Iterator[Transitions]:
        """Yield transitions of one environment in order, a few MB at a time.

        Args:
            env: its number.
            spans: the ranges of rows ``(start, stop)`` in the window, in order; the whole window if None.

        Raises CorruptionError for a damaged chunk, StateError when a live writer evicted a row before it was read.
        """
        row_bytes = sum(column.item_bytes for column in self.schema.columns) + self._row_items_bytes()
        step = max((c.column.chunk_rows for c in self.stream.large_columns()), default=1)
        size = max(1, BLOCK_BYTES // row_bytes // step) * step
        walks = {name: Walk(self.stream, name, env) for name in self.stream.disk.rows}
        try:
            for begin, end in [(self.log.begin, self.log.end)] if spans is None else spans:
                for start in range(begin // size * size, end, size):
                    steps = self._steps(walks, env, max(start, begin), min(start + size, end))
                    if len(steps):
                        yield steps
        except CorruptionError as error:
            self.explain(error)

    def _row_items_bytes(self) -> int:
        """Return about how many bytes of items a row of one environment has; those that rows share count for each."""
        if not len(self.log):
            return 0
        rows = np.unique(np.linspace(self.log.begin, self.log.end - 1, LOOKED_AT).astype(np.int64))
        found = 0
        for one in self.schema.ragged.values():
            spans = self.log.take(one.name, rows, np.zeros_like(rows))
            found += int(np.diff(spans).mean()) * one.items.item_bytes
        return found

    def valid_rows(self, env: int, spans: Sequence[tuple[int, int]]) -> Array:
        """Return the rows of the spans that are transitions, int64: those that :meth:`blocks` gives."""
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        kept: Array = rows[self.log.take(VALID, rows, np.full(len(rows), env))]
        return kept

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
        walks = {name: Walk(self.stream, name, env) for name in names}
        inner = [np.arange(start, stop - 1) for start, stop in episodes]
        rows = np.concatenate(inner) if inner else np.empty(0, np.int64)
        numbers = self.log.patch_numbers(rows, np.full_like(rows, env))
        patched = np.flatnonzero(numbers >= 0)
        try:
            for begin in range(0, len(patched), COMPARED_ROWS):
                part = patched[begin : begin + COMPARED_ROWS]
                places = list(zip(rows[part].tolist(), numbers[part].tolist(), strict=True))
                yield sum(
                    any(
                        self._patch(name, patch).tobytes() != walk.read(row + 1, row + 2).tobytes()
                        for name, walk in walks.items()
                    )
                    for row, patch in places
                )
        except CorruptionError as error:
            self.explain(error)

    def frames(self, column: Column, env: int, rows: Array) -> Iterator[Array]:
        """Yield the frames ``(*shape)`` of rows of a column, one by one; video is decoded a few MB at a time."""
        walk = Walk(self.stream, column.name, env)
        step = max(1, BLOCK_BYTES // column.item_bytes) if column.name in self.schema.videos else 1
        try:
            for at in range(0, len(rows), step):
                part = rows[at : at + step]
                yield from self._shown(column, part, np.concatenate([walk.read(row, row + 1) for row in part.tolist()]))
        except CorruptionError as error:
            self.explain(error)

    def values(self, column: Column, env: int, start: int, stop: int, every: int = 1) -> Array:
        """Return the values ``(n, *shape)`` of every ``every``-th row of ``[start, stop)``, transitions or not.

        Raises what :meth:`blocks` raises. Those of video columns are frames.
        """
        try:
            found = Walk(self.stream, column.name, env).read(start, stop)[::every]
            return self._shown(column, np.arange(start, stop, every), found)
        except CorruptionError as error:
            self.explain(error)

    def _shown(self, column: Column, rows: Array, values: Array) -> Array:
        return self.stream.read_frames(column.name, values, rows) if column.name in self.schema.videos else values

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

    def final_frame(self, column: Column, env: int, row: int) -> Array:
        """Return the true next observation of a row, ``(*shape)``."""
        column = self.schema.column(column.name)
        walk = Walk(self.stream, column.name, env)
        following = self._next(column, walk, env, row, np.empty((0, *column.shape), column.dtype), row + 1)
        found: Array = self._shown(column, np.array([row]), following)[0]
        return found

    def explain(self, error: CorruptionError) -> NoReturn:
        """Raise StateError if a live writer evicted the rows, else the error itself, for a shard is damaged."""
        newest = stream.read_commit(self.store.files, self.store.stream_path(self.name))
        ours = self.stream.disk.commit_record
        if (newest.begin, newest.timeline) != (ours.begin, ours.timeline):
            raise StateError(
                f"the stream {self.name!r} evicted rows while they were read; close its writer, or read a copy"
            ) from error
        raise error

    def _steps(self, walks: dict[str, Walk], env: int, start: int, stop: int) -> Transitions:
        schema, values = self.schema, {name: walk.read(start, stop) for name, walk in walks.items()}
        obs = {column.name: values[column.name] for column in schema.obs_columns}
        following = {
            c.name: self._next(c, walks[c.name], env, start, obs[c.name][1:], stop) for c in schema.obs_columns
        }
        kept: Any = values[VALID]
        rows = np.arange(start, stop)
        if kept.all():
            kept = slice(None)

        def shown(column: Column, given: Array) -> Any:
            ragged = column.name in schema.ragged
            return self.stream.read_items(column.name, given[kept]) if ragged else given[kept]

        return Transitions(
            obs={c.name: shown(c, obs[c.name]) for c in schema.obs_columns},
            next_obs={c.name: shown(c, following[c.name]) for c in schema.obs_columns},
            action={c.name: shown(c, values[c.name]) for c in schema.action_columns},
            extra={RECORDED: values[REWARD][kept], **{c.name: shown(c, values[c.name]) for c in schema.extra_columns}},
            reward=rewards.rewards(self.log, self.reward, rows[kept], np.full_like(rows, env)[kept]),
            terminated=values[TERMINATED][kept],
            truncated=values[TRUNCATED][kept],
            last=self._last(rows, env)[kept],
        )

    def _last(self, rows: Array, env: int) -> Array:
        envs = np.full(len(rows), env)
        last: Array = self.log.is_cut(rows, envs) | (rows + 1 == self.log.end)
        return last

    def _next(self, column: Column, walk: Walk, env: int, start: int, known: Array, stop: int) -> Array:
        """Return next observations of rows ``[start, stop)``; ``known`` are the observations from ``start + 1`` on."""
        out = np.empty((stop - start, *column.shape), column.dtype)
        out[: len(known)] = known
        if stop < self.log.end:
            out[-1] = walk.read(stop, stop + 1)[0]
        rows = np.arange(start, stop)
        patches = self.log.patch_numbers(rows, np.full_like(rows, env))
        for at in np.flatnonzero(patches >= 0).tolist():
            out[at] = self._patch(column.name, int(patches[at]))
        return out

    def _patch(self, name: str, patch: int) -> Array:
        if name in self.log.patches.arrays:
            held: Array = self.log.patches.span(name, patch, patch + 1)[0]
            return held
        values: Array = self.stream.disk.patches[name].read_rows(patch, patch + 1)[0, 0]
        return values


def open_rows(path: str, reward_column: str | None = None) -> list[LogRows]:
    """Return all streams of the store at ``path``, for reading; nothing is changed.

    Raises StoreNotFoundError, NotAStoreError, FormatVersionError or CorruptionError, and InputError for a
    ``reward_column`` that does not give rewards.
    """
    store = open_store(path)
    if reward_column is not None:
        rewards.check_column(store.schema, reward_column)
    return [LogRows(store, name, reward_column or REWARD) for name in store.stream_names()]
