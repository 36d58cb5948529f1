"""What a damaged store still holds: its root, its records, and the arrays of its streams, with zeros for what is lost.

Damage is no error here. An index that cannot be read has no chunks, a chunk that cannot be read no rows, and a tail
those of its blocks before the first damaged one. :meth:`SparedColumn.known` tells what was read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Mask
from diskreplay.errors import CorruptionError, NotAStoreError, ReadFailedError
from diskreplay.schema.columns import INFO, Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, root, tail
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import ROWS, Commit, Stored, Table, table_of
from diskreplay.storage.stream import SCRATCH, STREAMS, StreamReader, identity

DAMAGE = (CorruptionError, ReadFailedError)
"""The errors of reading a damaged array."""
GONE = (*DAMAGE, FileNotFoundError, NotADirectoryError)
"""The errors of reading what may be lost."""
LOOKED_BYTES = 1 << 20
"""The bytes of a log that are looked through at once for the end of a line."""


class SparedColumn(ColumnReader):
    """An array of which all that can be read is read.

    Attributes:
        limit: the rows of the tail from this one on do not count.
        size: the bytes that the indexes name.
    """

    def __init__(self, *arguments: Any, still_current: Callable[[], bool]) -> None:
        super().__init__(*arguments)  # without asking: a record may be lost
        self.limit = 1 << 62
        self._first = 0
        self._whole: Mask = np.zeros((0, self.groups), bool)
        """Which chunks are whole, from chunk ``_first`` on, ``(n, groups)``."""
        self._told: list[tuple[int, int]] = []
        """The ranges of rows that the tail holds."""

    def load(self, stored: Stored | None, needed_from: int, end: int, *, again: bool = False) -> None:
        super().load(stored, needed_from, end, again=again)
        self._first = self.entries.begin
        self._whole = np.zeros((self.entries.end - self._first, self.groups), bool)

    def read_index(self, shard: int, size: int | None, end: int, *, ask: bool = True) -> NDArray[np.int64]:
        try:
            return super().read_index(shard, size, end, ask=ask)
        except DAMAGE:
            return np.full((self.shard_chunks, self.groups, 2), -1, np.int64)

    @property
    def size(self) -> int:
        return int(self.entries.span(self.entries.begin, self.entries.end)[:, :, 1].clip(0).sum())

    def scan(self) -> Iterator[int]:
        """Read every chunk that has a needed row, and yield the bytes of each that is whole."""
        scratch = np.empty(self.chunk_shape, self.column.dtype)
        places = self.entries.span(self._first, self.entries.end)
        needed = np.arange(self._first, self.entries.end) >= self.needed_from // self.column.chunk_rows
        for at, group in np.argwhere((places[:, :, 0] >= 0) & needed[:, None]).tolist():
            offset, size = places[at, group].tolist()
            chunk = self._first + at
            try:
                self.decode((self.handle(chunk // self.shard_chunks), offset, size), scratch, chunk)
            except DAMAGE:
                continue
            self._whole[at, group] = True
            yield size

    def put(self, first: int, values: NDArray[Any]) -> None:
        super().put(first, values)
        self._told.append((first, first + len(values)))

    def check_held(self, end: int) -> None:
        """Take what the tail holds."""

    def read_chunk(self, chunk: int, group: int, out: NDArray[Any]) -> None:
        if self._whole[chunk - self._first, group]:
            super().read_chunk(chunk, group, out)
        else:
            out[...] = 0

    def _read_stored(self, start: int, stop: int, out: NDArray[Any]) -> None:
        rows, scratch = self.column.chunk_rows, np.empty(self.chunk_shape, self.column.dtype)
        for chunk in range(start // rows, -(-stop // rows)):
            for group in range(self.groups):
                self.read_chunk(chunk, group, scratch)
                self._copy_chunk(chunk, group, scratch, start, stop, out)

    def known(self, start: int, stop: int) -> Mask:
        """Return which values of rows ``[start, stop)`` were read, ``(rows, num_envs)``."""
        out = np.zeros((stop - start, self.num_envs), bool)
        if (stored := min(stop, self.stored_rows)) > start:
            chunks = np.arange(start, stored) // self.column.chunk_rows - self._first
            inside = (chunks >= 0) & (chunks < len(self._whole))
            out[: stored - start][inside] = np.repeat(self._whole[chunks[inside]], self.group_envs, axis=1)
        for first, end in self._told:
            low, high = max(start, first, self.stored_rows), min(stop, end, self.limit)
            if low < high:
                out[low - start : high - start] = True
        return out

    def hold(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Mask:
        """Return of which ranges of needed rows everything was read, ``(n,)``, of an array of one environment."""
        rows, stored = self.column.chunk_rows, self.stored_rows
        lost_chunks = np.append(0, np.cumsum(~self._whole[:, 0]))
        lost_rows = np.append(0, np.cumsum(~self.known(stored, max(stored, self.end))[:, 0]))
        last = np.minimum(stops, stored)
        chunks = np.minimum(starts, stored) // rows - self._first, -(-last // rows) - self._first
        first, stop = (lost_rows[np.maximum(ends - stored, 0)] for ends in (starts, stops))
        whole: Mask = (starts >= last) | (lost_chunks[chunks[0]] == lost_chunks[chunks[1]])
        whole &= first == stop
        return whole

    def lost_until(self, begin: int) -> int:
        """Return one past the last row from ``begin`` on that was not read, or ``begin``."""
        for stop in range(self.end, begin, -LOOKED_BYTES):
            start = max(begin, stop - LOOKED_BYTES)
            if len(lost := np.flatnonzero(~self.known(start, stop).all(axis=1))):
                return start + int(lost[-1]) + 1
        return begin


class SparedStream(StreamReader):
    """A stream of which all that can be read is read, but for logs of bytes: of these, what is certain.

    Attributes:
        lost_logs: the paths of the logs of bytes that are not whole.
    """

    def __init__(self, files: fs.Files, path: str, schema: Schema, commit: Commit) -> None:
        super().__init__(files, path, schema, commit, commit.timeline, SparedColumn)
        self.lost_logs: list[str] = []

    def spared(self) -> dict[str, SparedColumn]:
        """Return the arrays by path."""
        return {path: column for path, column in self.columns.items() if isinstance(column, SparedColumn)}

    def _read_tail(self, commit: Commit) -> tail.Read:
        seal, scratch = identity(self.schema, commit, "tail"), os.path.join(self.path, SCRATCH)
        found, size = tail.read_whole(self.files, scratch, seal, commit.tail)
        if size < commit.tail.size:  # a later block may have said other next observations
            for name in self.rows:
                self.spared()[name].limit = json.loads(found.record)["tables"][ROWS][1] if size else 0
        return found

    def shorten_logs(self) -> None:
        """Leave out of each log of bytes what may have been replaced by bytes that are lost.

        Of the facts of episodes the last line counts: so those behind the last lost byte are certain. Values written
        later cannot be told apart behind a lost byte, and those before it may have been replaced.
        """
        for path in self.logs:
            begin, end, _ = self.commit_record.of(path)
            column = self.spared()[path]
            if (first := column.lost_until(begin)) > begin:
                self.drop_log(path, _next_line(column, first, end) if path == INFO else end)

    def drop_log(self, path: str, first: int) -> None:
        """Leave out the bytes of a log before byte ``first``."""
        end = self.commit_record.of(path).end
        tables = {**self.commit_record.tables, table_of(path): Table(first, end, first)}
        self.commit_record = dataclasses.replace(self.commit_record, tables=tables)
        self.lost_logs.append(path)


def _next_line(column: ColumnReader, first: int, end: int) -> int:
    """Return the byte behind the first end of a line from byte ``first`` of a log on."""
    for start in range(first, end, LOOKED_BYTES):
        data = column.read_rows(start, min(start + LOOKED_BYTES, end)).tobytes()
        if (at := data.find(b"\n")) >= 0:
            return start + at + 1
    return end


def read_root(files: fs.Files, path: str) -> tuple[root.Attributes, str | None]:
    """Return what :func:`.root.read` does; where copies differ, that whose identity seals most of the tails."""
    try:
        return root.read_document(files, path), None
    except (NotAStoreError, *DAMAGE):
        found = {file: ours for file, ours in root.copies(files, path).items() if ours is not None}
        if not found:
            raise
    streams = os.path.join(path, STREAMS)
    scratches = [os.path.join(streams, name, SCRATCH) for name in metadata.nodes(files, streams)]

    def sealed(file: str) -> int:
        identity = str(found[file]["schema"]["identity"])
        return sum(_tail_record(files, scratch, identity) is not None for scratch in scratches)

    taken = max(found, key=sealed)
    return found[taken], taken


def _tail_record(files: fs.Files, scratch: str, identity: str) -> tuple[dict[str, Any], Any] | None:
    with contextlib.suppress(*GONE):
        return tail.newest_record(files, scratch, identity)
    return None


def read_record(files: fs.Files, path: str, schema: Schema, cuts: Iterable[Commit]) -> tuple[Commit | None, str | None]:
    """Return the commit record of the stream at ``path``, and where it was read.

    That is "stream", else "tail", else "checkpoint" for the first one of ``cuts``, else None.
    """
    with contextlib.suppress(*GONE):
        return Commit.from_json(metadata.read_attributes(files, path), path), "stream"
    found = _tail_record(files, os.path.join(path, SCRATCH), schema.identity)
    if found is not None:
        with contextlib.suppress(CorruptionError):
            return dataclasses.replace(Commit.from_json(found[0], path), tail=found[1]), "tail"
    cut = next(iter(cuts), None)
    return cut, None if cut is None else "checkpoint"
