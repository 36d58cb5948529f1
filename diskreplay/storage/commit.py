"""The commit record, one small JSON object that says what of a stream is durable, and is replaced atomically.

It stands in the ``zarr.json`` of the stream's group, under ``attributes["diskreplay"]``. It says which rows of each
table there are, which of them the shards of each array hold, and which file, the tail, holds all others. Readers trust
it for the last shard and for the tail, never a file's length; the shards before the last do not change.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from diskreplay.checks import check_count, check_flag, checked_number
from diskreplay.errors import CorruptionError, FormatVersionError, InputError
from diskreplay.schema.columns import (
    CUTS,
    INFO,
    ITEMS,
    LATER_TABLE,
    MAX_SET_ROWS,
    PATCH_TABLE,
    Codec,
    Column,
    StoredColumn,
)
from diskreplay.schema.layout import laid_out

MAX_ENVS = 1 << 20
MAX_STREAMS = 1 << 15
MAX_IDS = 1 << 48
"""The limit of rows times environments, so that the ids of transitions, int64, can name them all."""
MAX_ITEMS = 1 << 48
"""The items of a ragged column after which it takes no more rows."""
MAX_SAMPLED = 1 << 62
MAX_NUMBER = 1 << 48
"""The largest number of a checkpoint; those after it share it."""
MAX_SHARD_CHUNKS = 1 << 24
"""The most chunks of a shard that a record may have, of each group of environments."""
OPTIONAL = {"sampled": MAX_SAMPLED, "last_checkpoint": MAX_NUMBER}
"""The counts that a record lacks if they are 0, and the most that each may be."""


class LimiterStart(NamedTuple):
    """What the store had counted when a rate limiter began; of several of a store, the greatest counts."""

    number: int
    inserts: int
    samples: int
    min_size: int
    samples_per_insert: float


NO_START = LimiterStart(0, 0, 0, 0, 0.0)
"""Of a stream whose writer has no rate limiter."""


class Table(NamedTuple):
    """The part of one table that a commit has: of the rows, the patches, a log of bytes, or the items of a column.

    Attributes:
        begin, end: its rows, half-open; of the table of rows, the window's.
        needed_from: the first one that has to be there; of the table of rows, the first row of the context.
    """

    begin: int
    end: int
    needed_from: int


class Stored(NamedTuple):
    """What the shards of one array hold, and how.

    Attributes:
        shard, size: the last shard, and how many of its bytes are committed, the index last.
        rows: one past the last row that the shards hold; rows from it on stand in the tail.
        chunk_rows, shard_rows, chunk_envs: rows of a chunk and of a shard, and environments of a chunk.
        codec: the compression of the chunks, as text.
    """

    shard: int
    size: int
    rows: int
    chunk_rows: int
    shard_rows: int
    chunk_envs: int
    codec: str

    @classmethod
    def of(cls, column: StoredColumn, shard: int, size: int, rows: int) -> Stored:
        """Return what shards hold of a column with its layout."""
        return cls(shard, size, rows, column.chunk_rows, column.shard_rows, column.chunk_envs, str(column.codec))

    def column(self, column: Column) -> StoredColumn:
        """Return a column with this layout."""
        return StoredColumn.of(column, self.chunk_rows, self.shard_rows, self.chunk_envs, Codec.parse(self.codec))


class Tail(NamedTuple):
    """The tail of a stream: the log of rows that no shard holds yet.

    Attributes:
        number: the number in the file's name; 0 as long as there is none.
        size: how many bytes of the file are committed.
        oldest: the least number of a tail that may still be there without a checkpoint that names it.
    """

    number: int
    size: int
    oldest: int


NO_TABLE = Table(0, 0, 0)
NO_TAIL = Tail(0, 0, 0)
ROWS = "rows"
"""The name of the table of rows."""
TABLES = PATCH_TABLE, CUTS, INFO, LATER_TABLE
"""The other tables, but for the items of each ragged column."""


def table_of(path: str) -> str:
    """Return the name of the table of an array, by the array's path below the stream's group."""
    first = path.partition("/")[0]
    return path if first == ITEMS else first if first in TABLES else ROWS


@dataclasses.dataclass(frozen=True)
class Commit:
    """A durable point of one stream.

    Attributes:
        stream: its number, part of every transition's id.
        num_envs: environments in lockstep, the second axis of its arrays.
        capacity: transitions its window holds; a stream can be resized.
        sequence: grows by one with each commit.
        timeline: grows by one when the stream returns to a checkpoint: rows from there on are other rows.
        tables: the tables that have entries, by name.
        arrays: what the shards of each array that has some hold, by the array's path below the stream's group.
        tail: where the rows are that no shard holds.
        time: seconds since the epoch, for people; nothing depends on it.
        sampled: transitions that the process which writes the stream has drawn, as it counts them; for a rate limiter.
        last_checkpoint: greatest number of a checkpoint that the stream's writer began to make; 0 before the first.
        limiter: where the rate limiter by which that process draws began.
        back: True while the stream goes back to a checkpoint.
    """

    stream: int
    num_envs: int
    capacity: int
    sequence: int = 0
    timeline: int = 0
    tables: dict[str, Table] = dataclasses.field(default_factory=lambda: {ROWS: NO_TABLE})
    arrays: dict[str, Stored] = dataclasses.field(default_factory=dict)
    tail: Tail = NO_TAIL
    time: float = 0.0
    sampled: int = 0
    last_checkpoint: int = 0
    limiter: LimiterStart = NO_START
    back: bool = False

    @classmethod
    def first(cls, stream: int, num_envs: int, capacity: int) -> Commit:
        """Return the record that a new stream begins with."""
        return cls(stream, num_envs, capacity, sequence=-1).next()

    def next(self, **changes: Any) -> Commit:
        """Return the record that follows this one, with these changes, at this moment of the clock."""
        now = time.time()  # noqa: TID251  `inspect` shows it
        return dataclasses.replace(self, sequence=self.sequence + 1, time=now, **{"back": False, **changes})

    @property
    def begin(self) -> int:
        """The first row of the window."""
        return self.tables[ROWS].begin

    @property
    def end(self) -> int:
        """One past the last row."""
        return self.tables[ROWS].end

    def table(self, name: str) -> Table:
        """Return a table by its name; one without entries is there, too."""
        return self.tables.get(name, NO_TABLE)

    def of(self, path: str) -> Table:
        """Return the table of an array."""
        return self.table(table_of(path))

    def envs(self, path: str) -> int:
        """Return the environments of an array."""
        return self.num_envs if table_of(path) == ROWS else 1

    def stored_rows(self, path: str) -> int:
        """Return one past the last row of an array that shards hold."""
        stored = self.arrays.get(path)
        return 0 if stored is None else stored.rows

    def without_tail(self, arrays: Iterable[str], context: int) -> Commit:
        """Return what shards alone hold of the commit; the last row of all columns is the newest next observation.

        ``arrays`` are the paths of all that the stream has.
        """
        stored: dict[str, int] = {}
        for path in arrays:
            name = table_of(path)
            stored[name] = min(stored.get(name, self.stored_rows(path)), self.stored_rows(path))
        stored[ROWS] = max(0, stored[ROWS] - 1)
        tables = {name: _from_on(name, self.table(name).begin, end, context) for name, end in stored.items()}
        return dataclasses.replace(self, tables=tables, tail=NO_TAIL)

    def kept_by(self, newer: Commit, context: int) -> Commit:
        """Return the same commit without the entries, and shards, that a newer one does not need any more."""
        begins = {name: max(table.begin, newer.table(name).begin) for name, table in self.tables.items()}
        tables = {name: _from_on(name, begins[name], table.end, context) for name, table in self.tables.items()}
        kept = dataclasses.replace(self, tables=tables, capacity=newer.capacity)
        arrays = {path: stored for path, stored in self.arrays.items() if stored.rows > kept.of(path).needed_from}
        return dataclasses.replace(kept, arrays=arrays)

    def is_said_by(self, record: bytes, file: str) -> bool:
        """Tell whether a record, JSON of which ``file`` has, says the same rows; raise CorruptionError."""
        try:
            said = Commit.from_json(json.loads(record), file)
        except (ValueError, RecursionError) as error:
            raise _unreadable(file, error) from error
        return (said.to_json()["tables"], said.arrays) == (self.to_json()["tables"], self.arrays)

    def column(self, path: str, column: Column) -> StoredColumn:
        """Return a column of the schema as the array at ``path`` has it, or would have it now."""
        stored = self.arrays.get(path)
        if stored is not None:
            return stored.column(column)
        rows = table_of(path) == ROWS
        window = self.rows if rows else self.of(path).end * self.rows // max(1, self.end)
        return laid_out(column, rows, self.envs(path), window)

    def resized(self, capacity: int, context: int) -> Commit:
        """Return the same commit with a window of another capacity; a smaller one drops the oldest rows."""
        resized = dataclasses.replace(self, capacity=check_size(self.num_envs, capacity))
        begin = max(self.begin, self.end - resized.rows)
        return dataclasses.replace(resized, tables={**self.tables, ROWS: rows_table(begin, self.end, context)})

    def says_the_same(self, other: Commit) -> bool:
        """Tell whether another commit differs at most in where the rows stand: closing a stream moves them."""
        moved = dataclasses.replace(
            self, arrays=other.arrays, tail=other.tail, sequence=other.sequence, time=other.time
        )
        return moved == other

    def evicted_since(self, older: Commit) -> bool:
        """Tell whether what an older commit needed may be gone."""
        tail = older.tail.number
        return 0 < tail < self.tail.oldest or any(
            table.needed_from > older.table(name).needed_from for name, table in self.tables.items()
        )

    def outlasts(self, other: Commit) -> bool:
        """Tell whether going back to another commit would give up entries of this one, or shards that it needs."""
        if any(table.end > other.table(name).end for name, table in self.tables.items()):
            return True
        further = any(stored.rows > other.stored_rows(path) for path, stored in self.arrays.items())
        return (
            further
            and self.end == other.end
            and any(table.needed_from > other.table(name).needed_from for name, table in self.tables.items())
        )

    @property
    def rows(self) -> int:
        """The most rows that the window holds."""
        return max(1, self.capacity // self.num_envs)

    def to_json(self) -> dict[str, Any]:
        stored = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in (*OPTIONAL, "limiter", "back"):
            if stored[name] in (0, NO_START):
                del stored[name]
        tables = {name: table for name, table in self.tables.items() if name == ROWS or any(table)}
        return {"needs": [], **stored, "tables": tables}

    @functools.cached_property
    def text(self) -> str:
        """The canonical JSON of the record: of most of many streams nothing is new from checkpoint to checkpoint."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, stored: Any, file: str) -> Commit:
        """Return the commit of a record; raise CorruptionError, naming ``file``, if it breaks an invariant."""
        try:
            if stored["needs"] != []:
                raise needs_more(stored["needs"], file)
            counts = {name: check_count(name, stored[name], least=0) for name in ("stream", "sequence", "timeline")}
            for name, most in OPTIONAL.items():
                if name in stored:
                    counts[name] = check_count(name, stored[name], least=0, most=most)
            counts["num_envs"] = check_count("num_envs", stored["num_envs"], most=MAX_ENVS)
            counts["capacity"] = check_count("capacity", stored["capacity"])
            tables = {str(name): Table(*_counts(name, table, 3)) for name, table in stored["tables"].items()}
            arrays = {str(path): _stored(path, array) for path, array in stored["arrays"].items()}
            tail = Tail(*_counts("tail", stored.get("tail", NO_TAIL), 3))
            seconds = stored["time"]
            if not isinstance(seconds, int | float) or not math.isfinite(seconds):
                raise ValueError(f"time must be finite, got {seconds!r}")
            *whole, ratio = stored.get("limiter", NO_START)
            numbers = (check_count("limiter", each, least=0, most=MAX_SAMPLED) for each in whole)
            limiter = LimiterStart(*numbers, checked_number("limiter", ratio))  # type: ignore[call-arg]
            back = check_flag("back", stored.get("back", False))
            found = cls(
                **counts, tables=tables, arrays=arrays, tail=tail, time=float(seconds), limiter=limiter, back=back
            )
            if found.stream >= MAX_STREAMS or found.end * found.num_envs > MAX_IDS:
                raise ValueError(f"there are at most {MAX_STREAMS} streams of {MAX_IDS} transitions")
            if any(not table.needed_from <= table.begin <= table.end for table in tables.values()):
                raise ValueError("of each table, needed_from must not pass begin, nor begin end")
            if found.end - found.begin > found.rows:
                raise ValueError(f"the window must not hold more than {found.rows} rows, got {found.end - found.begin}")
            for path, array in arrays.items():
                if (
                    not array.shard * array.shard_rows
                    < array.rows
                    <= min((array.shard + 1) * array.shard_rows, found.of(path).end)
                ):
                    raise ValueError(f"{path!r} cannot have rows to {array.rows} in shards to {array.shard}")
                if found.envs(path) % array.chunk_envs:
                    raise ValueError(f"{path!r} cannot have chunks of {array.chunk_envs} environments")
        except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
            raise _unreadable(file, error) from error
        return found


def rows_table(begin: int, end: int, context: int) -> Table:
    """Return the table of rows; ``context`` rows before the window are needed, or before an empty one's newest row."""
    return Table(begin, end, max(0, min(begin, end - 1) - context))


def _from_on(name: str, begin: int, end: int, context: int) -> Table:
    """Return a table of which the entries from ``begin`` on are needed, if there are any before ``end``."""
    first = min(begin, end)
    return rows_table(first, end, context) if name == ROWS else Table(first, end, first)


def _counts(what: str, given: Any, length: int) -> list[int]:
    found = [check_count(what, each, least=0, most=2 * MAX_ITEMS) for each in given]
    if len(found) != length:
        raise ValueError(f"{what} must be {length} numbers, got {given!r}")
    return found


def _stored(path: str, given: Any) -> Stored:
    *numbers, codec = given
    shard, size, rows, chunk_rows, shard_rows, chunk_envs = _counts(path, numbers, 6)
    found = Stored(shard, size, rows, chunk_rows, shard_rows, chunk_envs, str(Codec.parse(codec)))
    if (
        not min(found.size, found.rows, found.chunk_rows, found.chunk_envs)
        or found.chunk_rows > MAX_SET_ROWS
        or found.shard_rows % found.chunk_rows
        or found.shard_rows // found.chunk_rows > MAX_SHARD_CHUNKS
    ):
        raise ValueError(f"{path!r} cannot have shards like {given!r}")
    return found


def needed_shards(commits: Iterable[Commit], path: str) -> set[int]:
    """Return the shards of an array that commits of one stream need."""
    spans = {(min(commit.of(path).needed_from, stored.rows - 1), stored.rows, stored.shard_rows)
             for commit in commits if (stored := commit.arrays.get(path)) is not None}  # fmt: skip
    found: set[int] = set()
    reached = 0
    for begin, end, rows in sorted(spans):
        found.update(range(max(begin, reached) // rows, -(-end // rows)))
        reached = max(reached, end)
    return found


def needs_more(needs: Any, path: str) -> FormatVersionError:
    """Return the error for a root or a record that needs anything: nothing is known that it could."""
    return FormatVersionError(f"{path!r} needs {needs!r:.200}: a newer diskreplay wrote the store; update diskreplay")


def check_size(num_envs: int, capacity: Any) -> int:
    """Return ``capacity``; raise InputError if no window of so many environments can have it."""
    if check_count("capacity", capacity) < num_envs:
        raise InputError(f"capacity must hold one row of {num_envs} environments, got {capacity}")
    return int(capacity)


def _unreadable(file: str, error: Exception) -> CorruptionError:
    message = f"the commit record of {file!r} cannot be read: {type(error).__name__}: {error}"
    return CorruptionError(message, file=file)
