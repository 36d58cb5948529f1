"""The facts of a stream's episodes in RAM: what a program says of them, such as seeds, tags and outcomes.

On disk the facts are in a log of bytes: lines of JSON, ``[row, stop, env, {facts}]``. A line describes the episode of
environment ``env`` that contains ``row``. Its ``stop`` is one past the episode's last row, or null if no row had been
added after the episode when the line was written. If several lines have the same row and environment, the last one
counts. A line is dead if its episode has left the window: its ``stop`` is not above the window's first row. A line
whose ``stop`` is null is not dead, even if the window is empty.

A program may give facts before an episode's first step. They wait until the row of that step is added; then
:meth:`EpisodeFacts.begins` notes them.
"""

from __future__ import annotations

import itertools
import json
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Bytes
from diskreplay.index.log import StreamLog
from diskreplay.index.where import NAME

SLACK_BYTES = 64 << 10
"""A commit cleans up once the log of bytes is longer than twice the bytes that still count, plus this."""
MAX_LINE = 8192
"""The most bytes of a line. It is twice the most bytes that a program may give as an episode's facts."""
MAX_NAME = 64
"""The most characters of a fact's name."""
MAX_SEED = (1 << 64) - 1
SHARED_LENGTH = 64
"""Equal texts of at most this many characters share one object; equal texts that are longer need not."""
NOWHERE = -1

Facts = dict[str, Any]


class Noted(NamedTuple):
    """The facts of one episode."""

    row: int
    env: int
    stop: int | None
    facts: Facts
    at: int
    """The byte of the log of bytes at which the episode's newest line begins; :data:`NOWHERE` if it has none."""
    size: int

    @property
    def after(self) -> int:
        return self.at + self.size

    def line(self) -> bytes:
        text = json.dumps([self.row, self.stop, self.env, self.facts], separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"


NOTHING = Noted(0, 0, None, {}, NOWHERE, 0)
"""The entry of an episode without facts."""
FACTS_OF: Callable[[Noted], Facts] = operator.attrgetter("facts")


class EpisodeFacts:
    """The facts of one stream's episodes: the content of a :class:`~diskreplay.reading.bytelog.ByteLog`.

    Callers hold ``engine.lock``.
    """

    what = "the facts of its episodes"

    def __init__(self, log: StreamLog) -> None:
        self.log = log
        self.num_envs = log.num_envs
        self.slack = SLACK_BYTES
        self._noted: dict[int, Noted] = {}
        """The noted facts, by row and environment in one number (:meth:`key`)."""
        self._open: dict[int, int] = {}
        """By environment: the :meth:`key` of its newest noted episode, if that has no stop yet."""
        self._waiting: dict[int, Facts] = {}
        """By environment: the facts that were told of an episode whose first step was not added yet.

        If `begin_episode` was called without facts, the entry is an empty dict.
        """
        self._unwritten: dict[int, None] = {}
        """By :meth:`key`: episodes that changed since their last line was written; some may be forgotten by now."""
        self.changed: int | None = None
        """The lowest row of the episodes whose facts have changed since a caller set this to None.

        The method :meth:`begins` does not change this number. It changes no facts of older episodes, and whoever reads
        the number looks at all new rows anyway.
        """

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def unwritten(self) -> bool:
        """True if noted facts are not yet written to the log of bytes."""
        return bool(self._unwritten)

    def key(self, row: int, env: int) -> int:
        return row * self.num_envs + env

    # Giving

    def wait(self, envs: Sequence[int], facts: Facts) -> None:
        """Have ``facts`` wait for the next episode of each of these environments; they replace those that wait."""
        self._waiting = {**self._waiting, **dict.fromkeys(envs, facts)}
        self._tell_log()

    def waiting(self, env: int) -> Facts | None:
        return self._waiting.get(env)

    def noted(self, row: int, env: int, complete: bool) -> Noted | None:
        """Return the noted facts of the episode whose first row in the window is ``row``, or None.

        ``complete`` says that the episode begins at this row. If it begins before the window, its line may name an
        earlier row.
        """
        found = self._noted.get(self.key(row, env))
        return found if found is not None or complete else self._reaching({env}, row).get(env)

    def _reaching(self, envs: Set[int], row: int) -> dict[int, Noted]:
        return {
            one.env: one
            for one in self._noted.values()
            if one.row <= row and one.env in envs and (one.stop is None or one.stop > row)
        }

    def note(self, before: Noted | None, row: int, env: int, stop: int | None, facts: Facts) -> None:
        """Set an episode's facts and its stop.

        ``before`` is the episode's present entry, or None. The new entry keeps the row of ``before``; without
        ``before`` it gets ``row``.
        """
        one = before or Noted(row, env, stop, {}, NOWHERE, 0)
        self._change(one.row)
        key = self.key(one.row, env)
        self._unwritten[key] = None
        if stop is None:
            self._open[env] = key
        self._noted[key] = one._replace(stop=stop, facts=shared(facts))
        self._tell_log()

    def _tell_log(self) -> None:
        """Tell the log whether rows may begin or end episodes that have facts."""
        self.log.noted = bool(self._open or self._waiting)

    def _change(self, row: int) -> None:
        self.changed = row if self.changed is None else min(self.changed, row)

    # A row that begins episodes

    def begins(self, row: int, envs: Iterable[int], valid: NDArray[np.bool_] | Sequence[bool]) -> None:
        """Enter a row that, in the environments ``envs``, does not continue the row before it.

        The open episodes of these environments stop at this row. Facts that were waiting are noted for the episodes
        that begin at it.

        ``valid`` tells for each environment whether the row is a transition.
        """
        if not self._open and not self._waiting:
            return
        for env in envs:
            old = self._open.pop(env, None)
            if old is not None and (before := self._noted.get(old)) is not None:
                self._unwritten[old] = None
                self._noted[old] = before._replace(stop=row)
            if valid[env] and (given := self._waiting.pop(env, None)):
                key = self.key(row, env)
                self._unwritten[key] = None
                self._noted[key] = Noted(row, env, None, shared(given), NOWHERE, 0)
                self._open[env] = key
        self._tell_log()

    # The log of bytes

    def restart(self) -> None:
        """Forget all noted facts, written or not; facts that wait are kept."""
        self._change(0)
        self._noted, self._open, self._unwritten = {}, {}, {}
        self._tell_log()

    def records(self, data: Bytes, at: int) -> Iterator[Noted]:
        """Yield the complete lines in ``data``, whose first byte is byte ``at`` of the log of bytes.

        Raises ValueError for a bad line.
        """
        *lines, rest = data.tobytes().split(b"\n")
        if any(len(line) > MAX_LINE for line in (*lines, rest)):
            raise ValueError(f"a line has more than {MAX_LINE:,} bytes")
        try:
            found = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_no_number, parse_float=_finite)
            if len(found) != len(lines):
                raise ValueError("a line is not one value")
            for line, stored in zip(lines, found, strict=True):
                row, stop, env, facts = self._checked(stored)
                yield Noted(row, env, stop, shared(facts), at, len(line) + 1)
                at += len(line) + 1
        except (TypeError, RecursionError) as error:
            raise ValueError(str(error)) from error

    def _checked(self, stored: Any) -> tuple[int, int | None, int, Facts]:
        row, stop, env, facts = stored
        numbers = (row, env) if stop is None else (row, env, stop)
        if any(type(number) is not int or number < 0 for number in numbers) or not isinstance(facts, dict):
            raise ValueError(f"{stored!r} are no facts of an episode")
        tags = facts.get("tags")
        if tags is not None and not _MEANINGS["tags"](tags):
            raise ValueError(f"tags must be texts, got {tags!r:.100}")
        if env >= self.num_envs or (stop is not None and stop <= row):
            raise ValueError(f"there is no episode from row {row} to {stop} of environment {env}")
        return row, stop, env, facts

    def take(self, one: Noted) -> None:
        """Note the facts of the next line; ignore the line if its row does not exist."""
        if one.row >= self.log.end:
            return
        if one.stop is not None and one.stop > self.log.end:
            one = one._replace(stop=self.log.end)
        key = self.key(one.row, one.env)
        known = self._noted.get(key)
        # 1 == True, but a condition tells them apart.
        if known is None or repr(known.facts) != repr(one.facts):
            self._change(one.row)
        self._noted[key] = one
        if one.stop is None:
            self._open[one.env] = key
        elif self._open.get(one.env) == key:
            del self._open[one.env]
        self._tell_log()
        self._unwritten.pop(key, None)

    def news(self, at: int) -> tuple[Bytes, list[Noted]]:
        """Return lines for the facts that are not yet written, and the records of these lines.

        The records are those that :meth:`records` yields once the lines have been appended at byte ``at``.
        """
        # An episode that has left the window gets a line only if it already has one, because that one may not say where
        # the episode stopped.
        known = {key: one for key in self._unwritten if (one := self._noted.get(key)) is not None}
        known = {key: one for key, one in known.items() if one.at != NOWHERE or self._lives(one)}
        self._unwritten = dict.fromkeys(known)
        lines = [one.line() for one in known.values()]
        begins = itertools.accumulate(map(len, lines), initial=at)
        records = [
            one._replace(at=begin, size=len(line))
            for one, line, begin in zip(known.values(), lines, begins, strict=False)
        ]
        return np.frombuffer(b"".join(lines), np.uint8), records

    def again(self, one: Noted) -> bytes:
        """Return the line of a record if it still counts, else no bytes.

        It counts if it is the newest line of its episode, and that episode has rows in the window, or no known stop.
        """
        newest = self._noted.get(self.key(one.row, one.env))
        lives = newest is not None and newest.at == one.at and self._lives(one)
        return one.line() if lives else b""

    def living_bytes(self) -> int:
        """Forget the facts of episodes that have left the window; return the size of the others' newest lines.

        The size is in bytes.
        """
        self._noted = {key: one for key, one in self._noted.items() if self._lives(one)}
        return sum(one.size for one in self._noted.values())

    def _lives(self, one: Noted) -> bool:
        """Tell whether an episode has rows in the window, or has no known stop."""
        return one.stop is None or one.stop > self.log.begin

    # Reading

    def problems(self) -> Iterator[str]:
        """Yield a message for each overlap of episodes, each bad name of a fact, and each value of a wrong kind."""
        places = sorted((one.env, one.row, one.stop) for one in self._noted.values())
        for (before, _, stop), (env, row, _) in itertools.pairwise(places):
            if before == env and (stop is None or stop > row):
                yield f"the facts of row {row} of environment {env} are of an episode that others are of, too"
        for one in self._noted.values():
            for name, value in one.facts.items():
                place = f"the facts of row {one.row} of environment {one.env}"
                if not is_name(name):
                    yield f"{place}: {name!r:.100} is no name of a fact"
                elif value is not None and not _MEANINGS.get(name, lambda _: True)(value):
                    yield f"{place}: {name} cannot be {value!r:.100}"

    def find(self, starts: NDArray[np.int64], envs: NDArray[np.int64]) -> list[Facts]:
        """Return the facts of the episodes whose first rows in the window are ``starts``, ``(n,)``.

        An episode without facts has an empty dict.
        """
        if not self._noted or not len(starts):
            return [NOTHING.facts] * len(starts)
        get, nothing = self._noted.get, NOTHING
        found = [get(key, nothing) for key in (starts * self.num_envs + envs).tolist()]
        # An episode that lost its first rows now starts at the window's first row.
        begin = self.log.begin
        late = [at for at in np.flatnonzero(starts == begin).tolist() if found[at] is nothing]
        if late:
            reaching = self._reaching({int(envs[at]) for at in late}, begin)
            for at in late:
                found[at] = reaching.get(int(envs[at]), nothing)
        return list(map(FACTS_OF, found))


def is_name(name: Any) -> bool:
    """Tell whether a value can be the name of a fact."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and len(name) <= MAX_NAME


_MEANINGS: dict[str, Callable[[Any], bool]] = {
    "seed": lambda value: type(value) is int and 0 <= value <= MAX_SEED,
    "success": lambda value: type(value) is bool,
    "tags": lambda value: type(value) is list and all(type(tag) is str for tag in value),
}
"""For each fact whose meaning is known, the test that its values must pass, unless they are null."""


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def shared(value: Any) -> Any:
    """Return a copy of a value in which equal short texts are one object, because episodes repeat names and tags."""
    kind = type(value)
    if kind is str:
        return sys.intern(value) if len(value) <= SHARED_LENGTH else value
    if kind is dict:
        return {sys.intern(name): shared(part) for name, part in value.items()}
    return [shared(part) for part in value] if kind is list else value


def copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value
