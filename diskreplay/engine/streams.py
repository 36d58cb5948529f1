"""All streams of a store as one window: the stream that is written here, and those of other writers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError, EvictedError, InputError, ReadFailedError
from diskreplay.index.log import NEVER, NOW
from diskreplay.native import core
from diskreplay.reading import in_core
from diskreplay.reading.addresses import Addresses
from diskreplay.reading.budget import Budget
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import OpenStream, open_stream
from diskreplay.sampling.window import Window, WindowsWithFacts
from diskreplay.schema.columns import PATCH_TABLE, REWARD
from diskreplay.schema.ids import Ids, stream_of
from diskreplay.storage.commit import Commit
from diskreplay.storage.paths import is_url
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.storage.stream import StreamWriter, read_commit
from diskreplay.views.view import View


def held_columns(store: Store, commits: Mapping[str, Commit], written: str | None, budget_bytes: int) -> dict[str, int]:
    """Return the columns whose windows are held in RAM, and how many bytes of a budget each takes.

    The stream that is ``written`` is going to fill its window; of others counts what is there. Of a store under a URL
    only small columns are held, as what is held is read when the store is opened.
    """
    entries = 0
    for name, commit in commits.items():
        patches = commit.table(PATCH_TABLE)
        rows = commit.rows if name == written else commit.end - commit.begin
        entries += rows * commit.num_envs + patches.end - patches.begin
    window = max((commit.capacity for commit in commits.values()), default=0)
    return store.schema.held(window, entries, 0 if is_url(store.path) else budget_bytes)


class Streams:
    """The open streams, in the order of their numbers; none before :meth:`open`. Callers hold ``engine.lock``.

    Args:
        store: the store of the streams.
        budget: the RAM for columns that are held, and for the cache that all streams share.
        forget: a function, called with the number of a stream whose rows were taken back.
        only_written: True to open only the stream that is written. The commit records of the others are read when
            :attr:`commits` is needed.
        reward: the name of the column that batches show as rewards.
        gate: what bars the store from use. It is ``stale`` if a stream of another writer is only partly up to date;
            then all such streams must be read anew.
    """

    def __init__(
        self, store: Store, budget: Budget, forget: Callable[[int], None], only_written: bool = False,
        reward: str = REWARD, *, gate: core.Gate,
    ) -> None:  # fmt: skip
        self.store = store
        self.gate = gate
        self.reward = reward
        self.only_written = only_written
        self._records: dict[str, Commit] | None = None
        """The newest commits of all streams, by name, with ``only_written``; None before they were read."""
        self._forget = forget
        self.cache = ChunkCache(budget)
        self.held: dict[str, int] | None = None
        """The columns that all streams hold in RAM, with their bytes of the budget; None before that is decided."""
        self.writer: StreamWriter | None = None
        self._open: dict[str, OpenStream] = {}
        self.all: list[OpenStream] = []
        """The open streams, in their order; a new list replaces it when a stream is added."""
        self._addresses: Addresses | None = None
        self.rows: core.Rows | None = None
        """What one call a batch shows; None before ``addresses`` was asked for, or if there is no such call."""
        self._held: frozenset[str] | None = None
        """The columns in RAM when that was found."""

    def open(
        self, written: str | None, checkpoint: Checkpoint | None, may_go_back: Callable[[int], None] | None,
        capacity: int | None,
    ) -> None:  # fmt: skip
        """Open all streams; if that fails, :meth:`release` gives back what was opened.

        Args:
            written: the name of the stream to write, None for none.
            checkpoint: the checkpoint to go back to; the newest commits if None.
            may_go_back, capacity: as in :meth:`Store.write_stream`.
        """
        if written is not None:
            self.writer = self.store.write_stream(written, checkpoint, may_go_back, capacity)
            self.writer.gate = self.gate
            self._hold({written: self.writer.commit_record})
            self._show({written: OpenStream(self.store.schema, self.writer, self.cache, self.held)})
        self.open_readers(checkpoint)

    def __iter__(self) -> Iterator[OpenStream]:
        return iter(self.all)

    def __len__(self) -> int:
        """Return the number of transitions in all windows."""
        return sum([len(stream.log) for stream in self.all])

    @property
    def addresses(self) -> Addresses | None:
        """Where the core finds what all streams hold, or None if there is no stream."""
        if not self.all:
            return None
        if self._addresses is None:
            self._addresses = Addresses(self.all)
        held = self.all[0].log.held
        if held is not self._held:
            self.rows = self._addresses.rows = in_core.rows(self.store.schema, self._addresses)
            self._held = held
        return self._addresses

    def resize(self, capacity: int) -> None:
        """Set the capacity of the written stream's window, in transitions; let go of columns that fit no more."""
        assert self.writer is not None
        assert self.written is not None
        self.written.resize(capacity)
        records = {name: stream.disk.commit_record for name, stream in self._open.items()}
        self._hold(records | {self.writer.name: dataclasses.replace(self.writer.commit_record, capacity=capacity)})

    def _hold(self, commits: Mapping[str, Commit]) -> None:
        """Decide which columns are held in RAM, and let go of others; streams stand at these commits, or soon will."""
        written = None if self.writer is None else self.writer.name
        fitting = held_columns(self.store, commits, written, self.cache.budget.to_hold(self.cache)) | {self.reward: 0}
        before = fitting if self.held is None else self.held
        for stream in self.all:
            stream.log.let_go(before.keys() - fitting.keys())
        self.held = {name: size for name, size in fitting.items() if name in before}
        self.cache.held_bytes = sum(self.held.values())

    @property
    def newest(self) -> int:
        """The largest number of an open stream."""
        return self.all[-1].log.stream

    @property
    def written(self) -> OpenStream | None:
        """The stream that is written here, or None."""
        return self._open[self.writer.name] if self.writer else None

    @property
    def shown(self) -> OpenStream:
        """The stream that is written here, or the first stream if none is."""
        return self.written or self.all[0]

    @property
    def commits(self) -> dict[str, Commit]:
        """The commit at which each stream stands, by the stream's name."""
        if self.only_written and self._records is None:
            self._records = self.store.newest_commits()
        return {**(self._records or {}), **{name: stream.disk.commit_record for name, stream in self._open.items()}}

    def open_readers(self, checkpoint: Checkpoint | None) -> None:
        """Open the streams of other writers, or bring them up to date.

        If an error ends this half-way, the list of streams stays as it is, and the next call does the rest.
        """
        if self.only_written:
            self._records = None
            self.size_cache()
            return
        commits = checkpoint.cut if checkpoint else self.store.newest_commits(self.writer)
        stands = {name: stream.disk.commit_record for name, stream in self._open.items()}
        new = {name: now for name, now in commits.items() if (was := stands.get(name)) is not now and was != now}
        if new or self.held is None or self.gate.stale:
            self._hold({**commits, **{name: stands[name] for name in stands.keys() - commits.keys()}})
            with self.store.files.coming(self.store.schema, new):
                self._open_each(commits, checkpoint)
        self.size_cache()
        self.gate.stale = False

    def _open_each(self, commits: Mapping[str, Commit], checkpoint: Checkpoint | None) -> None:
        streams = dict(self._open)
        for name, newest in commits.items():
            if self.writer is not None and name == self.writer.name:
                continue
            stream = streams.get(name)
            if stream is not None and not self.gate.stale and not checkpoint and self._caught_up(stream, newest):
                continue
            cut, read = (newest, None) if checkpoint else (None, newest)
            opened = open_stream(self.store, name, self.cache, cut, read, self.held)
            if stream is not None:
                for column in stream.disk.columns.values():
                    self.cache.forget(column)
                if opened.disk.commit_record.timeline != stream.disk.commit_record.timeline:
                    self._forget(stream.log.stream)
            streams[name] = opened
        self._show(dict(sorted(streams.items(), key=lambda item: item[1].log.stream)))

    def _show(self, streams: dict[str, OpenStream]) -> None:
        self._open, self.all = streams, list(streams.values())
        self._addresses = self.rows = self._held = None

    def _caught_up(self, stream: OpenStream, newest: Commit) -> bool:
        """Read the rows up to a newer commit; return False if the stream must be read anew."""
        ours = stream.disk.commit_record
        if newest.timeline != ours.timeline:
            return False
        if newest == ours:
            return True
        self.gate.stale = True
        try:
            stream.disk.load(newest)
            stream.catch_up()
        except (CorruptionError, ReadFailedError):
            return False  # evicted or replaced meanwhile, or damaged: reading it anew will tell
        self.gate.stale = False
        return True

    def size_cache(self) -> None:
        """Tell the cache how many bytes can be cached, and drop from it the chunks that left the window."""
        if large := [stream for stream in self.all if stream.disk.items or not stream.log.holds_all]:
            self.cache.resize_window(sum(stream.window_bytes() for stream in large))
        for stream in large:
            for column in stream.large_columns():
                self.cache.drop(column, stream.log.floor // column.column.chunk_rows)
            for column in stream.disk.patches.values():
                self.cache.drop(column, stream.log.patch_begin // column.column.chunk_rows)
            for path, log in stream.disk.logs.items():
                self.cache.drop(log, stream.logs[path].begin // log.column.chunk_rows)
            for items in stream.disk.items.values():
                begin = stream.disk.commit_record.of(items.column.name).begin
                self.cache.drop(items, begin // items.column.chunk_rows)

    def windows(self) -> WindowsWithFacts:
        """Return the window of every stream, also of empty ones, as samplers see it."""
        logs = [stream.log for stream in self.all]
        windows = [Window(log.first_id, log.stop_id, log.window, log.num_envs) for log in logs]
        return WindowsWithFacts(windows, [stream.episodes for stream in self.all])

    def standing(self, view: View, ids: Ids) -> NDArray[np.int8]:
        """Return the standing of ids, which are in the windows, as items of a view."""
        streams = self.all
        if len(streams) == 1:
            return view.standing(streams[0], ids)
        found = np.full(len(ids), NEVER, np.int8)
        numbers = stream_of(ids)
        named = set(numbers.tolist())  # a batch has rows of few of a thousand streams
        for stream in streams:
            if stream.log.stream in named:
                here = np.flatnonzero(numbers == stream.log.stream)
                found[here] = view.standing(stream, ids[here])
        return found

    def check(self, view: View, ids: Ids) -> None:
        """Raise EvictedError if an id has left the window, InputError if it is no item."""
        known = np.zeros(len(ids), bool)
        for stream in self:
            log = stream.log
            here = (stream_of(ids) == log.stream) & (ids < log.stop_id)
            gone = here & (ids < log.first_id)
            if gone.any():
                raise EvictedError(f"transition {ids[gone][0]} has left the window, which begins at {log.first_id}")
            known |= here
        bad = ids[~known] if not known.all() else ids[self.standing(view, ids) != NOW]
        if len(bad):
            raise InputError(f"index {bad[0]} names no transition that can be sampled")

    def check_given(self, view: View, ids: Ids) -> None:
        """Raise the errors of :meth:`check`, but accept ids that have left the window."""
        gone = np.zeros(len(ids), bool)
        for stream in self:
            gone |= (stream_of(ids) == stream.log.stream) & (ids < stream.log.first_id)
        self.check(view, ids[~gone])

    def outrun(self) -> bool:
        """Tell whether another writer evicted or rewrote rows of a window here."""
        for stream in self:
            if stream.disk is not self.writer:
                newest, ours = read_commit(self.store.files, stream.disk.path), stream.disk.commit_record
                if newest.evicted_since(ours) or newest.timeline != ours.timeline:
                    return True
        return False

    def release(self) -> None:
        """Close the files, give back the lock of the written stream, and forget everything."""
        if self.writer is not None:
            self.writer.close_files()
            self.writer.release()
        for stream in self:
            stream.disk.close_files()
            stream.log.let_go([name for name, size in (self.held or {}).items() if size])  # a program may keep it
        self._show({})
        self.cache.close()
