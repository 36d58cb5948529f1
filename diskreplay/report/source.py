"""A store that is looked at: its streams, opened beside a possible writer, and what of them cannot be read.

1. :class:`Snapshot` opens every stream that can be opened; ``inspect`` names the others in ``health``.
2. An episode is found by its number, as ``diskreplay episodes`` counts, or by where it begins, which stays the same
   while a writer adds and evicts.
3. :func:`read` gives values of rows piece by piece, and says which pieces are damaged instead of failing.
4. Of a value of a ragged column its length is shown: the number of its items.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, DiskReplayError
from diskreplay.formats.core.log_rows import LogRows
from diskreplay.index.episodes import Episode
from diskreplay.ops.inspect import Facts, inspect
from diskreplay.ops.problems import DAMAGE
from diskreplay.remote import open_store
from diskreplay.schema.columns import Column
from diskreplay.storage.paths import PathLike, named
from diskreplay.storage.store import Store

PIECE_BYTES = 4 << 20
"""The decoded bytes that are read at a time."""


@dataclasses.dataclass(frozen=True)
class Found:
    """An episode of the store: its number, and the rows that it is in."""

    number: int
    rows: LogRows
    episode: Episode

    @property
    def key(self) -> str:
        """The stream, environment and first row of the episode, which stay while rows are added and evicted."""
        return f"{self.episode.stream}.{self.episode.env}.{self.episode.start}"


@dataclasses.dataclass(frozen=True)
class Damage:
    """The rows ``[start, stop)`` that cannot be read, and why."""

    start: int
    stop: int
    what: str


class Snapshot:
    """The store at ``path`` as of the last commits; one thread at a time.

    Raises StoreNotFoundError, NotAStoreError, FormatVersionError, or CorruptionError when not even its schema can be
    read.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = named(path)
        self._read(open_store(self.path))

    def _read(self, store: Store) -> None:
        self.facts: Facts = inspect(self.path)
        self.store = store
        self.schema = store.schema
        self._open: dict[str, LogRows] = {}
        self._found: list[Found] | None = None
        self._by_key: dict[str, Found] = {}
        self._catch_up()

    @property
    def streams(self) -> list[LogRows]:
        return list(self._open.values())

    @property
    def unread(self) -> list[str]:
        return [one.name for one in self.facts.streams if one.name not in self._open]

    @property
    def stamp(self) -> str:
        """A text that changes with every commit that :meth:`refresh` has seen."""
        commits = [f"{one.name}.{one.timeline}.{one.sequence}" for one in self.facts.streams]
        return " ".join([self.schema.identity, *commits])

    def refresh(self) -> bool:
        """Go on to the newest commits, and return True if there were any."""
        before = {one.name: (one.timeline, one.sequence) for one in self.facts.streams}
        try:
            self.store.files.refresh()
            store = Store(self.path, self.store.files)
            if store.schema.identity != self.schema.identity:  # removed, and made anew
                self._read(store)
                return True
            commits = self.store.newest_commits()
        except DiskReplayError:
            commits = {}  # a damaged record: inspect says so
        if commits and {name: (one.timeline, one.sequence) for name, one in commits.items()} == before:
            return False
        self.facts = inspect(self.path)
        self._catch_up()
        return True

    def _catch_up(self) -> None:
        self._found = None
        opened = {}
        for facts in self.facts.streams:
            try:
                rows = self._open.get(facts.name)
                if rows is None or not _refreshed(rows):
                    rows = LogRows(self.store, facts.name)
            except DAMAGE:
                continue  # its health is in the facts
            opened[facts.name] = rows
        self._open = opened

    @property
    def episodes(self) -> list[Found]:
        if self._found is None:
            every = [(rows, episode) for rows in self.streams for episode in rows.episodes]
            self._found = [Found(number, rows, episode) for number, (rows, episode) in enumerate(every)]
            self._by_key = {found.key: found for found in self._found}
        return self._found

    def shape(self, column: Column) -> tuple[int, ...]:
        """Return the shape of what is shown of a value."""
        return () if column.name in self.schema.ragged else column.shape

    def shown(self, column: Column, values: Array) -> Array:
        """Return what is shown of values ``(n, *shape)``, or of spans: real numbers ``(n, *self.shape(column))``."""
        return values[:, 1] - values[:, 0] if column.name in self.schema.ragged else to_real(values)

    def by_key(self, key: str) -> Found | None:
        """Return the episode with a key, or None if there is none, or none any more."""
        return self._by_key.get(key) if self.episodes else None


def _refreshed(rows: LogRows) -> bool:
    """Tell whether the stream could go on to its last commit; if not, it is opened anew."""
    try:
        rows.refresh()
    except DiskReplayError:
        return False
    return True


def read(
    rows: LogRows, column: Column, env: int, start: int, stop: int, damaged: list[Damage], every: int = 1,
    chunks: int | None = None,
) -> Iterator[tuple[int, Array]]:  # fmt: skip
    """Yield values of every ``every``-th row of ``[start, stop)``, a few MB at a time: the first row, ``(n, *shape)``.

    Chunks that are damaged are left out and noted in ``damaged``. Raises StateError when a live writer evicted them.
    ``chunks`` are read at a time, as many as make a few MB if None.
    """
    chunk_rows = 1 if column.name in rows.schema.videos else rows.stream.disk.rows[column.name].column.chunk_rows
    chunks = max(1, PIECE_BYTES // max(1, column.item_bytes * chunk_rows)) if chunks is None else chunks
    size, at = chunks * chunk_rows, start
    while at < stop:
        end = min(stop, (at // size + 1) * size)
        try:
            yield at, rows.values(column, env, np.arange(at, end, every))
        except CorruptionError as error:
            if chunks == 1:
                damaged.append(Damage(at, end, str(error)))
            else:
                yield from read(rows, column, env, at, end, damaged, every, 1)
        at += -(-(end - at) // every) * every


def read_all(rows: LogRows, column: Column, env: int, start: int, stop: int, damaged: list[Damage]) -> Array:
    """Return values of rows ``[start, stop)`` as float64 ``(n, elements)``, NaN where they are damaged."""
    out = np.full((stop - start, int(np.prod(column.shape, dtype=np.int64))), np.nan)
    for at, values in read(rows, column, env, start, stop, damaged):
        out[at - start : at - start + len(values)] = to_real(values).reshape(len(values), -1)
    return out


def to_real(values: Array) -> Array:
    """Return complex numbers as their magnitudes, everything else as it is."""
    return np.abs(values) if values.dtype.kind == "c" else values
