"""The commit record, one small JSON object that says what of a stream is durable, and is replaced atomically.

It stands in the ``zarr.json`` of the stream's group, under ``attributes["diskreplay"]``. Readers trust it for the last
shard of each array, never the file's length; the shards before it are complete and do not change.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from diskreplay.checks import check_count, checked_number
from diskreplay.errors import CorruptionError, FormatVersionError, InputError
from diskreplay.schema.columns import ITEMS, LOGS, PATCH_TABLE, Column

MAX_ENVS = 1 << 20
MAX_STREAMS = 1 << 15
MAX_IDS = 1 << 48
"""The limit of rows times environments, so that the ids of transitions, int64, can name them all."""
MAX_ITEMS = 1 << 48
"""The items of a ragged column after which it takes no more rows."""
MAX_SAMPLED = 1 << 62
MAX_NUMBER = 1 << 48
"""The largest number of a checkpoint; those after it share it."""
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


@dataclasses.dataclass(frozen=True)
class Tail:
    """The last shard of an array: its number and how many of its bytes are committed, the index last."""

    shard: int
    size: int


@dataclasses.dataclass(frozen=True)
class Span:
    """The part of one array that a commit needs.

    Attributes:
        begin, end: its rows, half-open; of the patch table's arrays, its patches; of the logs, bytes.
        num_envs: environments that each of them holds.
        tail: the last shard; of size 0 where the record names none.
    """

    begin: int
    end: int
    num_envs: int
    tail: Tail

    def ends_in_tail(self, column: Column) -> bool:
        """Tell whether the last row is in the shard that the record names as the last."""
        return self.tail.size > 0 and self.tail.shard == (self.end - 1) // column.shard_rows


@dataclasses.dataclass(frozen=True)
class Commit:
    """A durable point of one stream.

    Attributes:
        stream: its number, part of every transition's id.
        num_envs: environments in lockstep, the second axis of its arrays.
        capacity: transitions its window holds; a stream can be resized.
        sequence: grows by one with each commit.
        timeline: grows by one when the stream returns to a checkpoint: rows from there on are other rows.
        begin, end: the window's rows, half-open.
        patch_begin, patch_end: the patches ``[patch_begin, patch_end)`` of the window.
        logs: likewise the bytes of each log of :data:`~diskreplay.schema.columns.LOGS`, and the items of each ragged
            column, that ``tails`` names, by its path.
        tails: the tail of each array that has rows, by the array's path below the stream's group.
        time: seconds since the epoch, for people; nothing depends on it.
        sampled: transitions that the process which writes the stream has drawn, as it counts them; for a rate limiter.
        last_checkpoint: greatest number of a checkpoint that the stream's writer began to make; 0 before the first.
        limiter: where the rate limiter by which that process draws began.
    """

    stream: int
    num_envs: int
    capacity: int
    sequence: int = 0
    timeline: int = 0
    begin: int = 0
    end: int = 0
    patch_begin: int = 0
    patch_end: int = 0
    tails: dict[str, Tail] = dataclasses.field(default_factory=dict)
    time: float = 0.0
    sampled: int = 0
    last_checkpoint: int = 0
    limiter: LimiterStart = NO_START
    logs: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def first(cls, stream: int, num_envs: int, capacity: int) -> Commit:
        """Return the record that a new stream begins with."""
        return cls(stream, num_envs, capacity, sequence=-1).next()

    def next(self, **changes: Any) -> Commit:
        """Return the record that follows this one, with these changes, at this moment of the clock."""
        now = time.time()  # noqa: TID251  `inspect` shows it
        return dataclasses.replace(self, sequence=self.sequence + 1, time=now, **changes)

    def resized(self, capacity: int) -> Commit:
        """Return the same commit with a window of another capacity; a smaller one drops the oldest rows."""
        resized = dataclasses.replace(self, capacity=check_size(self.num_envs, capacity))
        return dataclasses.replace(resized, begin=max(self.begin, self.end - resized.rows))

    def floor(self, context: int) -> int:
        """Return the first row needed: ``context`` rows before the window, or before the newest row if it is empty."""
        return max(0, min(self.begin, self.end - 1) - context)

    def span(self, path: str, context: int) -> Span:
        """Return what is needed of the array at ``path``, with ``context`` as for :meth:`floor`."""
        tail = self.tails.get(path, Tail(0, 0))
        if is_patch(path):
            return Span(self.patch_begin, self.patch_end, 1, tail)
        if spans_itself(path):
            return Span(*self.log_span(path), 1, tail)
        return Span(self.floor(context), self.end, self.num_envs, tail)

    def log_span(self, path: str) -> tuple[int, int]:
        """Return the bytes of a log, or the items, that are needed, half-open; (0, 0) if there are none."""
        return self.logs.get(path, (0, 0))

    def evicted_since(self, older: Commit) -> bool:
        """Tell whether what an older commit needed may be gone: rows, or the first bytes of a log."""
        return self.begin > older.begin or any(
            begin > older.log_span(path)[0] for path, (begin, _) in self.logs.items()
        )

    def with_log(self, path: str, begin: int, end: int) -> Commit:
        """Return the commit with another span of a log, or of items."""
        return dataclasses.replace(self, logs={**self.logs, path: (begin, end)})

    @property
    def rows(self) -> int:
        """The most rows that the window holds."""
        return max(1, self.capacity // self.num_envs)

    def to_json(self) -> dict[str, Any]:
        stored = dataclasses.asdict(self)
        tails = {name: [tail.shard, tail.size] for name, tail in self.tails.items()}
        del stored["logs"]
        for path, name in LOGS.items():
            if path in tails:  # apart from the others, whose names older programs know all of
                begin, end = self.log_span(path)
                stored[name] = {"begin": begin, "end": end, "tail": tails.pop(path)}
        for name in (*OPTIONAL, "limiter"):
            if stored[name] in (0, NO_START):
                del stored[name]
        spans = {_of_items(path): span for path, span in self.logs.items() if path not in LOGS}
        if spans:
            stored["ragged"] = {name: {"begin": begin, "end": end} for name, (begin, end) in spans.items()}
        return {"needs": [], **stored, "tails": tails}

    @classmethod
    def from_json(cls, stored: Any, file: str) -> Commit:
        """Return the commit of a record; raise CorruptionError, naming ``file``, if it breaks an invariant."""
        try:
            if stored["needs"] != []:
                raise needs_more(stored["needs"], file)
            counts = {
                name: check_count(name, stored[name], least=0)
                for name in ("stream", "sequence", "timeline", "begin", "end", "patch_begin", "patch_end")
            }
            for name, most in OPTIONAL.items():
                if name in stored:
                    counts[name] = check_count(name, stored[name], least=0, most=most)
            counts["num_envs"] = check_count("num_envs", stored["num_envs"], most=MAX_ENVS)
            counts["capacity"] = check_count("capacity", stored["capacity"])
            tails = {
                str(name): Tail(check_count("shard", shard, 0), check_count("size", size, 0))
                for name, (shard, size) in stored["tails"].items()
            }
            logs = {}
            for path, field in LOGS.items():
                if (log := stored.get(field)) is not None:
                    shard, size = log["tail"]
                    tails[path] = Tail(check_count("shard", shard, 0), check_count("size", size))
                    logs[path] = check_count("begin", log["begin"], least=0), check_count("end", log["end"], least=0)
            for name, span in stored.get("ragged", {}).items():
                begin, end = (check_count(key, span[key], least=0, most=2 * MAX_ITEMS) for key in ("begin", "end"))
                logs[f"{ITEMS}/{name}"] = begin, end
            seconds = stored["time"]
            if not isinstance(seconds, int | float) or not math.isfinite(seconds):
                raise ValueError(f"time must be finite, got {seconds!r}")
            if counts["stream"] >= MAX_STREAMS or counts["end"] * counts["num_envs"] > MAX_IDS:
                raise ValueError(f"there are at most {MAX_STREAMS} streams of {MAX_IDS} transitions")
            *whole, ratio = stored.get("limiter", NO_START)
            numbers = (check_count("limiter", each, least=0, most=MAX_SAMPLED) for each in whole)
            limiter = LimiterStart(*numbers, checked_number("limiter", ratio))  # type: ignore[call-arg]
            found = cls(**counts, tails=tails, time=float(seconds), limiter=limiter, logs=logs)
            spans = [(found.begin, found.end), (found.patch_begin, found.patch_end), *logs.values()]
            if any(begin > end for begin, end in spans):
                raise ValueError("begin must not pass end")
            if found.end - found.begin > found.rows:
                raise ValueError(f"the window must not hold more than {found.rows} rows, got {found.end - found.begin}")
        except (KeyError, TypeError, ValueError, AttributeError, InputError) as error:
            raise _unreadable(file, error) from error
        return found


def is_patch(path: str) -> bool:
    """Tell whether an array, by its path below the stream's group, is one of the patch table, not a column."""
    return path.startswith(f"{PATCH_TABLE}/")


def spans_itself(path: str) -> bool:
    """Tell whether a record has a span of its own for an array: a log, or the items of a ragged column."""
    return path in LOGS or path.startswith(f"{ITEMS}/")


def needed_shards(commits: Iterable[Commit], arrays: Mapping[str, int], context: int) -> dict[str, set[int]]:
    """Return the shards that commits need of each array, by its path below the stream's group.

    Args:
        commits: commits of one stream.
        arrays: the rows of a shard of each array.
        context: the context of the schema, in rows.
    """
    held, spans, found = list(commits), dict[str, list[tuple[int, int]]](), {}
    for path, shard_rows in arrays.items():
        alike = path if spans_itself(path) else f"{PATCH_TABLE}/" if is_patch(path) else ""  # all rows have one span
        if alike not in spans:
            each = (commit.span(alike, context) for commit in held)
            spans[alike] = sorted({(span.begin, span.end) for span in each})
        found[path] = _shards(spans[alike], shard_rows)
    return found


def _shards(spans: Iterable[tuple[int, int]], shard_rows: int) -> set[int]:
    """Return the shards of ascending spans of rows, half-open; an empty span needs the shard that it lies within."""
    found: set[int] = set()
    reached = 0
    for begin, end in spans:
        found.update(range(max(begin, reached) // shard_rows, -(-end // shard_rows)))
        reached = max(reached, end)
    return found


def _of_items(path: str) -> str:
    """Return the ragged column whose items stand in an array."""
    return path.removeprefix(f"{ITEMS}/")


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
