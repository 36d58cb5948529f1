"""The facts of a stream's episodes in RAM: seeds, tags, outcomes, whatever a program says of them.

On disk they are a log of lines of JSON, ``[row, stop, env, {facts}]``; of those with one row and environment the last
one counts. They are the facts of the episode in which that row stands: the first one of environment ``env`` below
``stop``, which is null as long as no other episode was seen to begin. So it is known of each line, without a look at
the rows, which episodes of a window it can belong to, and when it belongs to none any more.

Facts of an episode without a step wait; the step that begins it takes them along (:meth:`FactLog.begins`).
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

from diskreplay.index.where import NAME

SLACK_BYTES = 64 << 10
"""By which the log may grow, beside doubling, before it is looked at what of it is dead."""
SLACK_EPISODES = 1024
"""By which the episodes in RAM may grow, beside doubling, before the dead are looked for."""
MAX_LINE = 8192
"""Bytes of a line: the facts of an episode have half of it at most."""
MAX_NAME = 64
"""Characters of a fact's name."""
MAX_SEED = (1 << 64) - 1
SHARED_LENGTH = 64
"""Characters of a text that is shared by all facts that have it."""
NOWHERE = -1

Facts = dict[str, Any]


class Noted(NamedTuple):
    """The facts of one episode."""

    row: int
    env: int
    stop: int | None
    facts: Facts
    at: int
    """The first byte of its newest line; :data:`NOWHERE` before it has one."""
    size: int

    def line(self) -> bytes:
        text = json.dumps([self.row, self.stop, self.env, self.facts], separators=(",", ":"), allow_nan=False)
        return text.encode() + b"\n"


NOTHING = Noted(0, 0, None, {}, NOWHERE, 0)
"""Of an episode of which nothing is noted."""
FACTS_OF: Callable[[Noted], Facts] = operator.attrgetter("facts")


class Lines(NamedTuple):
    """What a commit writes.

    Attributes:
        data: the lines.
        begin: the first byte of the log that is needed; -1 for ``data``'s own first.
        noted: what the lines are of, in order: key and bytes.
    """

    data: bytes
    begin: int
    noted: list[tuple[int, Noted, int]]


class FactLog:
    """The facts of one stream; the lock of the buffer that owns it guards every call.

    Every change of what is here is one assignment, or can be done again, so that an interrupt leaves nothing between.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.begin = self.end = 0
        """The bytes of the log that were taken over from disk, or written."""
        self._noted: dict[int, Noted] = {}
        """By row and environment in one number."""
        self._open: dict[int, int] = {}
        """The newest one of each environment of which no end is known."""
        self._waiting: dict[int, Facts] = {}
        """By environment, of the episode that its next step begins; empty where one was begun without facts."""
        self._unwritten: dict[int, None] = {}
        """What no commit holds as it is; may name what is gone."""
        self._looked = 0, 0, 0
        """The log's end when its dead lines were counted, and the bytes and number of the others then."""
        self._undo: list[tuple[int, int | None, Noted | None, Facts | None, int]] = []

    def __len__(self) -> int:
        return len(self._noted)

    @property
    def unwritten(self) -> bool:
        """Whether a commit has something to write."""
        return bool(self._unwritten)

    def key(self, row: int, env: int) -> int:
        return row * self.num_envs + env

    # Giving

    def wait(self, envs: Sequence[int], facts: Facts) -> None:
        """The facts of the episodes that the next steps of environments begin, in the place of what waited."""
        self._waiting = {**self._waiting, **dict.fromkeys(envs, facts)}

    def waiting(self, env: int) -> Facts | None:
        return self._waiting.get(env)

    def noted(self, row: int, env: int, complete: bool) -> Noted | None:
        """What is noted of an episode; ``row`` is its first one in the window, and of all if it is ``complete``."""
        found = self._noted.get(self.key(row, env))
        return found if found is not None or complete else self._reaching({env}, row).get(env)

    def _reaching(self, envs: Set[int], row: int) -> dict[int, Noted]:
        """What is noted, by environment, of episodes that began before a row and have not ended there."""
        return {
            one.env: one
            for one in self._noted.values()
            if one.row <= row and one.env in envs and (one.stop is None or one.stop > row)
        }

    def note(self, before: Noted | None, row: int, env: int, stop: int | None, facts: Facts) -> None:
        """Takes the facts of an episode in the place of those ``before``; ``row`` and ``stop`` as of its line."""
        one = before or Noted(row, env, stop, {}, NOWHERE, 0)
        key = self.key(one.row, env)
        self._unwritten[key] = None
        if stop is None:
            self._open[env] = key
        self._noted[key] = one._replace(stop=stop, facts=shared(facts))  # the last: now it has happened

    # A row that begins episodes

    def mark(self) -> None:
        """Before a row is added: what :meth:`take_back` takes back begins here."""
        if self._undo:
            self._undo = []

    def begins(self, row: int, envs: Iterable[int], valid: NDArray[np.bool_]) -> None:
        """A row that does not continue the one before it in these environments; ``valid`` where it is a transition."""
        if not self._open and not self._waiting:
            return
        for env in envs:
            given = self._waiting.get(env) if valid[env] else None
            old, key = self._open.get(env), self.key(row, env)
            if old is None and given is None:
                continue
            before = self._noted.get(old) if old is not None else None
            self._undo.append((env, old, before, given, key))
            if old is not None:
                if before is not None:
                    self._unwritten[old] = None
                    self._noted[old] = before._replace(stop=row)
                self._open.pop(env, None)
            if given:
                self._unwritten[key] = None
                self._noted[key] = Noted(row, env, None, shared(given), NOWHERE, 0)
                self._open[env] = key
            if given is not None:
                self._waiting.pop(env, None)

    def take_back(self) -> None:
        """Takes back what :meth:`begins` did since :meth:`mark`; interrupted, it can be done again."""
        for env, old, before, given, key in reversed(self._undo):
            if given is not None:
                self._waiting[env] = given
                self._noted.pop(key, None)
            if old is None:
                self._open.pop(env, None)
                continue
            if before is not None:
                self._noted[old] = before
            self._open[env] = old
        self._undo = []

    # The log

    def restart(self, begin: int) -> None:
        """Forgets what came from the log; lines are taken over from byte ``begin`` on."""
        self._noted, self._open, self._unwritten, self._looked = {}, {}, {}, (begin, 0, 0)
        self.begin = self.end = begin

    def take_over(self, data: bytes, first_row: int, end_row: int) -> None:
        """Takes over lines read from disk, from byte ``end`` on; ``[first_row, end_row)`` is the window.

        Raises ValueError for what are no such lines.
        """
        if not data.endswith(b"\n") and data:
            raise ValueError("the last line has no end")
        lines = data.split(b"\n")[:-1]
        if any(len(line) > MAX_LINE for line in lines):
            raise ValueError(f"a line has more than {MAX_LINE:,} bytes")
        found = json.loads(b"[" + b",".join(lines) + b"]", parse_constant=_no_number, parse_float=_finite)
        if len(found) != len(lines):
            raise ValueError("a line is not one value")
        at = self.end
        for line, stored in zip(lines, found, strict=True):
            row, stop, env, facts = self._checked(stored)
            if row < end_row:
                stop = None if stop is None else min(stop, end_row)
                self._take(Noted(row, env, stop, shared(facts), at, len(line) + 1))
            at += len(line) + 1
        self.end = at
        if self._due:
            self._forget(first_row)

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

    def _take(self, one: Noted) -> None:
        key = self.key(one.row, one.env)
        self._noted[key] = one
        if one.stop is None:
            self._open[one.env] = key
        elif self._open.get(one.env) == key:
            del self._open[one.env]

    def lines(self, first_row: int) -> Lines:
        """What a commit has to write; ``first_row`` is the window's."""
        first = self.begin
        if self._due:
            first, held = self._forget(first_row)
            if self.end - first > 2 * held + SLACK_BYTES:  # most of it is dead: what lives is written again
                self._unwritten = dict.fromkeys(self._noted)
                first = NOWHERE
        looked, held, count = self._looked
        if len(self._noted) - count > max(SLACK_EPISODES, count):  # those that died before they had a line
            self._noted = {k: one for k, one in self._noted.items() if one.at != NOWHERE or _alive(one, first_row)}
            self._looked = looked, held, len(self._noted)
        written = []
        for key in self._unwritten:
            one = self._noted.get(key)
            # Of one that is dead, a line must say where it stopped if an older one does not.
            if one is not None and (one.at != NOWHERE or _alive(one, first_row)):
                written.append((key, one, one.line()))
        data = b"".join(line for _, _, line in written)
        return Lines(data, first, [(key, one, len(line)) for key, one, line in written])

    def written(self, lines: Lines, at: int) -> None:
        """The lines are durable, and the first stands at byte ``at``."""
        begin = at if lines.begin == NOWHERE else lines.begin
        for key, one, size in lines.noted:
            self._noted[key] = one._replace(at=at, size=size)
            at += size
        self._unwritten = {}
        self.begin, self.end = begin, at

    @property
    def _due(self) -> bool:
        """Whether the log has grown by what it held when it was looked at what of it is dead."""
        looked, held, _ = self._looked
        return self.end - looked > max(SLACK_BYTES, held)

    def _forget(self, first_row: int) -> tuple[int, int]:
        """Forgets the dead; the first byte of the log that is needed, and the bytes of those lines that are."""
        kept = {
            key: one
            for key, one in self._noted.items()
            if _alive(one, first_row) or (one.at != NOWHERE and key in self._unwritten)
        }
        held = sum(one.size for one in kept.values())
        self._noted = kept
        self._looked = self.end, held, len(kept)
        return min((one.at for one in kept.values() if one.at != NOWHERE), default=self.end), held

    # Reading

    def living_bytes(self, first_row: int) -> int:
        """Bytes of the lines that count, of episodes in a window from ``first_row`` on."""
        return sum(one.size for one in self._noted.values() if _alive(one, first_row))

    def overlapping(self) -> list[tuple[int, int]]:
        """Row and environment of what is noted of an episode that others are noted of, too."""
        places = sorted((one.env, one.row, one.stop) for one in self._noted.values())
        return [
            (row, env)
            for (before, _, stop), (env, row, _) in itertools.pairwise(places)
            if before == env and (stop is None or stop > row)
        ]

    def wrong(self) -> Iterator[tuple[int, int, str]]:
        """Row and environment of what is noted and no writer may give, and what is wrong with it."""
        for one in self._noted.values():
            for name, value in one.facts.items():
                if not is_name(name):
                    yield one.row, one.env, f"{name!r:.100} is no name of a fact"
                elif value is not None and not _MEANINGS.get(name, _anything)(value):
                    yield one.row, one.env, f"{name} cannot be {value!r:.100}"

    def find(self, starts: NDArray[np.int64], envs: NDArray[np.int64]) -> list[Facts]:
        """The facts of the episodes that begin, in the window, at these rows ``(n,)``; empty where there are none."""
        if not self._noted or not len(starts):
            return [NOTHING.facts] * len(starts)
        get, nothing = self._noted.get, NOTHING
        found = [get(key, nothing) for key in (starts * self.num_envs + envs).tolist()]
        # The first rows of an episode can have left the window only where it begins.
        late = [at for at in np.flatnonzero(starts == starts.min()).tolist() if found[at] is nothing]
        if late:
            reaching = self._reaching({int(envs[at]) for at in late}, int(starts[late[0]]))
            for at in late:
                found[at] = reaching.get(int(envs[at]), nothing)
        return list(map(FACTS_OF, found))


def is_name(name: Any) -> bool:
    """Whether it can be the name of a fact."""
    return isinstance(name, str) and NAME.fullmatch(name) is not None and len(name) <= MAX_NAME


def _anything(value: Any) -> bool:
    return True


_MEANINGS: dict[str, Callable[[Any], bool]] = {
    "seed": lambda value: type(value) is int and 0 <= value <= MAX_SEED,
    "success": lambda value: type(value) is bool,
    "tags": lambda value: type(value) is list and all(type(tag) is str for tag in value),
}
"""Of the facts whose meaning is known: whether a value is one that they can have."""


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large for a number")
    return number


def _alive(one: Noted, first_row: int) -> bool:
    """Whether it is an episode's that is in a window from ``first_row`` on, or may come to be."""
    return one.stop is None or one.stop > first_row


def shared(value: Any) -> Any:
    """The same, with one text for all that are equal: names, tags and the like come again with each episode."""
    kind = type(value)
    if kind is str:
        return sys.intern(value) if len(value) <= SHARED_LENGTH else value
    if kind is dict:
        return {sys.intern(name): shared(part) for name, part in value.items()}
    return [shared(part) for part in value] if kind is list else value


def copied(value: Any) -> Any:
    """A copy of what JSON can hold."""
    if isinstance(value, Mapping):
        return {name: copied(part) for name, part in value.items()}
    return [copied(part) for part in value] if isinstance(value, list) else value
