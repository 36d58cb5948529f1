"""One stream as a view sees it: rows on disk, an index in RAM, chunks in a cache; its writer may go on meanwhile."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Collection, Iterator, Mapping
from typing import cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, DamageWarning, EvictedError, warn_outside
from diskreplay.index import rewards
from diskreplay.index.episodes import COLUMNS, KeptEpisodes
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.log import StreamLog
from diskreplay.index.spans import Spans
from diskreplay.process.locks import Lock
from diskreplay.reading import gather, observations, ragged_reads
from diskreplay.reading.addresses import Addresses
from diskreplay.reading.bytelog import CONTENTS, ByteLog
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.reads import Reads
from diskreplay.reading.target import Target
from diskreplay.schema.columns import INFO, LATER, PATCH_TABLE, PLACE, START, Schema
from diskreplay.schema.ids import Ids, pack
from diskreplay.storage import tail
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import ROWS, Commit
from diskreplay.storage.store import Store
from diskreplay.storage.stream import StreamReader, StreamWriter

TAKEN_ROWS, TAKEN_BYTES = 1 << 18, 64 << 20
"""The rows that are read into the index in one go, and their bytes."""
OUTRUN_SECONDS = 60.0
"""The seconds for which a reader tries to open a stream whose writer replaces the window faster than it is read."""


class OpenStream:
    """One stream of a store. Callers hold ``engine.lock``."""

    def __init__(
        self, schema: Schema, disk: StreamReader | StreamWriter, cache: ChunkCache, held: Collection[str] | None = None,
        *, spared: bool = False,
    ) -> None:  # fmt: skip
        """Read the index of the stream, with the columns ``held``; raise CorruptionError for what no writer writes.

        Where rows are ``spared``, for others cannot be read, what these say of them is not looked at.
        """
        commit = disk.commit_record
        self.schema = schema
        self._spared = spared
        self.disk = disk
        self.cache = cache
        self.log = StreamLog(
            commit.stream, schema.columns, schema.patch_columns, commit.num_envs, commit.capacity, schema.context,
            schema.later, schema.held(commit.capacity) if held is None else held,
        )  # fmt: skip
        self.log.without_tail = commit.end > 0 and not commit.tail.number
        self.logs = {path: ByteLog(CONTENTS[path](schema, self.log), column) for path, column in disk.logs.items()}
        """The logs of bytes beside the rows, by path."""
        self.facts = cast(EpisodeFacts, self.logs[INFO].content)
        """The facts of the episodes."""
        self.episodes = KeptEpisodes(self.log, self.facts)
        self._spans = Spans(self.log)
        self._restart(commit)
        self.catch_up()

    def resize(self, capacity: int) -> None:
        """Set the capacity of the window, in transitions."""
        self.log.resize(capacity)
        self._spans = Spans(self.log)

    def _restart(self, commit: Commit) -> None:
        rows, patches = commit.table(ROWS), commit.table(PATCH_TABLE)
        self.log.restart(rows.begin, rows.needed_from, patches.begin)

    def catch_up(self) -> None:
        """Read into the index what is committed and not yet in RAM."""
        commit, log = self.disk.commit_record, self.log
        if commit.capacity != log.capacity:
            self.resize(commit.capacity)
        if commit.table(ROWS).needed_from > log.end:
            self._restart(commit)
        if commit.end > log.end:
            log.slide(commit.begin)
            log.reserve(commit.end - log.end + 1)
            row_bytes = sum(self.disk.rows[name].column.item_bytes for name in log.resident) * log.num_envs
            most = min(TAKEN_ROWS, max(1, TAKEN_BYTES // row_bytes))

            def read(name: str, start: int, out: Array) -> None:
                if self._spared:
                    out[:] = self.disk.rows[name].read_rows(start, start + len(out))
                else:
                    gather.read_rows(self.disk.rows[name], start, out)
                self._check_spans({name: out}, commit)

            while log.end < commit.end:
                log.extend(min(most, commit.end - log.end), commit.begin, read)
        if commit.end:
            held = [self.disk.rows[c.name] for c in self.schema.obs_columns if c.name in log.resident]
            newest = {column.column.name: column.read_rows(commit.end, commit.end + 1)[0] for column in held}
            self._check_spans(newest, commit)
            log.put_pending(newest)
        stored = commit.table(PATCH_TABLE)
        if stored.begin > log.patch_end:  # those between are of rows that left the window, and may be gone
            log.skip_patches(stored.begin)
        if stored.end > log.patch_end:
            span = log.patch_end, stored.end
            patches = {name: self.disk.patches[name].read_rows(*span)[:, 0] for name in log.patches.arrays}
            following = patches[PLACE][:, 2] == 1  # a ragged leaf, which is not stacked, needs no other
            self._check_spans({name: values[following] for name, values in patches.items()}, commit)
            log.add_patches(patches)
        log.slide(commit.begin)
        log.drop_patches()
        for path, written in self.logs.items():
            try:
                written.catch_up(commit.of(path).begin, commit.of(path).end)
            except ValueError as error:
                raise CorruptionError(
                    f"stream {self.disk.path!r}: {written.content.what} cannot be read: {error}; run 'diskreplay "
                    "verify'", stream=self.disk.name, column=path,
                ) from error  # fmt: skip
        wrong = log.inconsistency()
        for column in self._held():
            column.close_files()  # read, and from now on in RAM
        if wrong and not self._spared:
            raise CorruptionError(f"stream {self.disk.path!r}: {wrong}; run 'diskreplay verify'", stream=self.disk.name)

    def _check_spans(self, values: Mapping[str, Array], commit: Commit) -> None:
        for name, ragged in () if self._spared else self.schema.ragged.items():
            if name in values and (
                wrong := ragged_reads.wrong(ragged, values[name], *commit.of(ragged.items.name)[:2])
            ):
                raise CorruptionError(
                    f"stream {self.disk.path!r}: {wrong}; run 'diskreplay verify'", stream=self.disk.name, column=name
                )

    def read_span(self, name: str, span: tuple[int, int], lock: Lock) -> Array:
        """Return the items of one span; the lock is held while they are looked up, and not while they are read."""
        reads = Reads()
        with lock:
            spans = np.array([span], np.int64)
            found = ragged_reads.read(reads, self.schema.ragged[name], spans, [(self, np.arange(1))], "lists")
        reads.finish()
        values: Array = found.values
        return values

    def spans(self) -> Spans:
        """Return the episodes of the window, up to date."""
        self._spans.catch_up()
        return self._spans

    def _held(self) -> Iterator[ColumnReader]:
        """Yield the columns whose values are in RAM."""
        yield from (self.disk.rows[name] for name in self.log.resident)
        yield from (self.disk.patches[name] for name in self.log.patches.arrays)
        yield self.disk.columns[INFO]

    def large_columns(self) -> list[ColumnReader]:
        """Return the columns that are not held in RAM."""
        return [column for name, column in self.disk.rows.items() if name not in self.log.resident]

    def pending(self) -> list[Array] | None:
        """Return the newest next stacks, ``(num_envs, frames, *shape)`` for each leaf, or None if there is no row."""
        log = self.log
        if log.end == log.floor:
            return None
        envs, where, found = np.arange(log.num_envs), Addresses([self]), []
        ids = pack(log.stream, log.end - 1, envs, log.num_envs)
        for column, stack in zip(self.schema.obs_columns, self.schema.stacks, strict=True):
            out, reads = np.empty((log.num_envs, stack.frames, *column.shape), column.dtype), Reads()
            observations.fill_next(reads, where, column.name, stack, Target(out), ids, envs)
            reads.finish()
            found.append(out)
        return found

    def with_cache(self, cache: ChunkCache) -> OpenStream:
        """Return the same stream with another cache for its chunks."""
        other = copy.copy(self)
        other.cache = cache
        return other

    def window_bytes(self) -> int:
        """Return the number of decoded bytes of the large columns in the window."""
        wide = sum(column.column.item_bytes for column in self.large_columns())
        held = all(column.name in self.log.later for column in self.schema.later)
        later = 0 if held else self.logs[LATER].end - self.logs[LATER].begin
        record = self.disk.commit_record
        tables = [(column.column, record.of(column.column.name)) for column in self.disk.items.values()]
        items = sum((table.end - table.begin) * column.item_bytes for column, table in tables)
        return wide * (self.log.end - self.log.begin) * self.log.num_envs + later + items


def open_stream(
    store: Store, name: str, cache: ChunkCache, cut: Commit | None = None, newest: Commit | None = None,
    held: Collection[str] | None = None,
) -> OpenStream:  # fmt: skip
    """Return the stream at its newest commit, or at the commit ``cut`` of a checkpoint, with its index in RAM.

    Where the caller has just read the ``newest`` one, it is not read again. The columns ``held`` are read whole, and
    held in RAM; the small ones if None.

    Shards are opened one after another. So the stream's writer may evict a shard, or go back, before the shard was
    read. Then a newer commit does not need that shard, and the stream is read anew.

    Of a stream whose tail is lost it returns, with a warning, what the shards hold, or the tail before the damage.

    Raises CorruptionError if there is no newer commit that explains what cannot be read, or if two commits need it.
    Raises EvictedError if the writer goes on replacing what is being read for a minute.
    """
    began, before = time.monotonic(), None
    tried = store.newest_commit(name) if newest is None else newest
    while True:
        try:
            return OpenStream(store.schema, store.read_stream(name, cut or tried, tried.timeline), cache, held)
        except CorruptionError as error:
            newest = store.newest_commit(name)
            place = error.file, tried.timeline
            if newest.sequence == tried.sequence or place == before:
                if cut is None and tail.is_tail(error.file):
                    return _without_tail(store, name, tried, newest.timeline, cache, held)
                raise
            if time.monotonic() - began > OUTRUN_SECONDS:
                raise EvictedError(
                    f"the writer of the stream {name!r} of {store.path!r} replaces its window, rows {newest.begin} to "
                    f"{newest.end}, faster than it can be read: open a checkpoint, or give the stream a larger capacity"
                ) from error
            before, tried = place, newest


def _without_tail(
    store: Store, name: str, commit: Commit, timeline: int, cache: ChunkCache, held: Collection[str] | None
) -> OpenStream:
    """Return a stream whose tail is lost, with a warning; raise CorruptionError for other damage.

    It stands at the commit before the damage, or, if they hold more, as its shards have it.
    """
    schema, found = store.schema, None
    kept = commit.without_tail({**schema.arrays, **schema.logs}, schema.context)
    older = store.commit_before_damage(name, commit)
    if older is not None and older.end >= kept.end:
        with contextlib.suppress(CorruptionError):  # a shard that only the older commit needs may be gone
            found = OpenStream(schema, store.read_stream(name, older, timeline), cache, held)
            lost: float = commit.end - older.end
    if found is None:
        found = OpenStream(schema, store.read_stream(name, kept, timeline), cache, held)
        following = found.disk.rows[START].read_rows(kept.end, kept.end + 1)[0]
        lost = commit.end - kept.end + found.log.drop_unexplained(following) / commit.num_envs
    warn_outside(
        f"the tail of the stream {name!r} of {store.path!r} is missing or damaged: the newest {lost:g} rows are not "
        "shown; 'diskreplay verify' says what can be done", DamageWarning,
    )  # fmt: skip
    return found


def check_rewards(store: Store, name: str, commits: Mapping[str, Commit], pinned: bool) -> None:
    """Raise InputError, with their number, if transitions of streams have no reward in the column ``name``.

    The streams stand at their newest ``commits``, or at those that a checkpoint has ``pinned``.
    """

    def places() -> Iterator[tuple[StreamLog, Ids, Ids]]:
        for stream, commit in commits.items():
            cut, newest = (commit, None) if pinned else (None, commit)
            log = open_stream(store, stream, ChunkCache(0), cut, newest, (*COLUMNS, name)).log
            for start in range(log.begin, log.end, TAKEN_ROWS):
                at = np.arange(start * log.num_envs, min(start + TAKEN_ROWS, log.end) * log.num_envs)
                yield log, *np.divmod(at, log.num_envs)

    with store.files.coming(store.schema, commits):
        rewards.check(name, places())
