"""The episodes of a window, found from the resident columns.

An episode consists of consecutive transitions of one environment. It begins at a row that does not continue the row
before, or at the window's first row. It ends at a row with a flag, or before a row that does not continue it. An
environment's newest episode may still be going on.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.fact_values import FactValues, values_of
from diskreplay.index.facts import EpisodeFacts, Facts, copied
from diskreplay.index.log import StreamLog
from diskreplay.index.sliding import Sliding
from diskreplay.schema.columns import CONTINUES, CUT_START, REWARD, START, TERMINATED, TRUNCATED, VALID
from diskreplay.schema.ids import STREAM_SHIFT, Ids

CUT_OFF = "cut off"
ROW_BITS = 43
"""An int64 that holds a row and an environment has 43 bits for the row and 20 for the environment."""
LOOKED_ROWS = 1024
"""The number of rows that a search for an episode's begin or end looks at in one go."""
COLUMNS = (VALID, START, TERMINATED, TRUNCATED, REWARD)
"""The columns from which episodes are found."""
KEPT = "_facts"
MOST_VALUES = 16
"""`KeptEpisodes` keeps the values of at most this many facts; a fact takes 17 bytes for each episode."""


class _Copied:
    """An episode's attribute ``facts``; each access returns a copy, because several callers may hold the episode."""

    def __get__(self, episode: Episode | None, kind: type[Episode]) -> dict[str, Any]:
        kept = getattr(episode, KEPT, None)
        return copied(kept) if kept else {}

    def __set__(self, episode: Episode, facts: dict[str, Any] | _Copied) -> None:
        object.__setattr__(episode, KEPT, {} if isinstance(facts, _Copied) else facts)


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode, or those of its steps that are in the window.

    Attributes:
        stream, env: the numbers of the stream and the environment in which it was recorded.
        start, stop: its rows ``[start, stop)``.
        total_reward: the undiscounted sum of its rewards.
        terminated, truncated: the flags of its last step.
        complete_start: True if its first step is in the window, and was in that of a store from which it was copied.
        ended: True if it was terminated or truncated, or if the next step does not continue it.
        facts: a copy of the facts that the program gave, by name; see :meth:`ReplayBuffer.begin_episode`.
    """

    stream: int
    env: int
    start: int
    stop: int
    total_reward: float
    terminated: bool
    truncated: bool
    complete_start: bool
    ended: bool
    facts: _Copied = dataclasses.field(default=_Copied(), hash=False)

    @property
    def length(self) -> int:
        """The number of its steps in the window."""
        return self.stop - self.start


def ends(log: StreamLog) -> dict[str, int]:
    """Count a window's episodes by their end: "terminated", else "truncated", else "cut off" (without a flag)."""
    terminated, truncated, valid = (log.span(name, log.begin, log.end) for name in (TERMINATED, TRUNCATED, VALID))
    begins = log.span(START, log.begin + 1, log.end) != CONTINUES
    flagged = terminated | truncated
    return {
        TERMINATED: int(np.count_nonzero(terminated & valid)),
        TRUNCATED: int(np.count_nonzero(truncated & ~terminated & valid)),
        CUT_OFF: int(np.count_nonzero(begins & ~flagged[:-1] & valid[:-1])),
    }


@dataclasses.dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a stream's window as arrays ``(n,)``, with the names of :class:`Episode`'s attributes.

    They are sorted by first row, then by environment.
    """

    stream: int
    num_envs: int
    env: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    total_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    complete_start: NDArray[np.bool_]
    ended: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.start)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, in the order of :class:`Episode`'s attributes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)[2:]}

    def only(self, wanted: Any) -> EpisodeTable:
        """Return some of the episodes; ``wanted`` is a mask, a slice or positions."""
        return EpisodeTable(self.stream, self.num_envs, *(values[wanted] for values in self.arrays().values()))

    def hold(self, ids: Ids) -> NDArray[np.bool_]:
        """Tell which ids of the stream belong to these episodes, bool ``(B,)``."""
        if not len(self):
            return np.zeros(len(ids), bool)
        order = np.lexsort((self.start, self.env))
        rows, envs = np.divmod(ids - (self.stream << STREAM_SHIFT), self.num_envs)
        lanes = (self.env << ROW_BITS) + self.start
        at = np.searchsorted(lanes[order], (envs << ROW_BITS) + rows, side="right") - 1
        found = order[np.maximum(at, 0)]
        held: NDArray[np.bool_] = (at >= 0) & (self.env[found] == envs) & (rows < self.stop[found])
        return held


def table(log: StreamLog, since: int = 0) -> EpisodeTable:
    """Return the episodes of a window, or only those that begin at row ``since`` or later."""
    rows = np.arange(max(log.begin, since), log.end)
    count = len(rows)
    if not count:
        none, no = np.empty(0, np.int64), np.empty(0, bool)
        return EpisodeTable(log.stream, log.num_envs, none, none, none, np.empty(0), no, no, no, no)
    # One environment after the other, each from its first row on.
    valid, starts, terminated, truncated, reward = (log.span(name, rows[0], log.end).T.ravel() for name in COLUMNS)
    begins = starts != CONTINUES
    first = begins.copy()
    first[::count] = True
    low = np.flatnonzero(first)
    env, at = np.divmod(low, count)
    high = np.append(low[1:], len(first))
    start, stop = rows[0] + at, rows[0] + high - env * count
    totals = np.add.reduceat(reward.astype(np.float64), low)
    flags = terminated[high - 1], truncated[high - 1]
    complete = begins[low] & (starts[low] < CUT_START)
    columns = env, start, stop, totals, *flags, complete, flags[0] | flags[1] | (stop <= rows[-1])
    order = np.lexsort((env, start))
    order = order[valid[low][order] & (begins[low][order] | (rows[0] == log.begin))]
    return EpisodeTable(log.stream, log.num_envs, *(column[order] for column in columns))


def episodes(log: StreamLog, facts: EpisodeFacts | None = None) -> list[Episode]:
    """Return the episodes of a window, sorted by first row, then by environment, with their ``facts`` if given."""
    found = table(log)
    return listed(found, facts.find(found.start, found.env) if facts else None)


def listed(found: EpisodeTable, known: Sequence[Facts] | None) -> list[Episode]:
    """Return the episodes of a table, with their facts if these are given."""
    columns = [values.tolist() for values in found.arrays().values()]
    if known:
        columns.append(known)
    return [Episode(found.stream, *values) for values in zip(*columns, strict=True)]


@dataclasses.dataclass
class _EpisodesMade:
    """The episodes of a window, and what was computed for them; each array and list has one entry for each episode."""

    columns: Sliding
    """The arrays of the table, and an array of objects with the episodes' facts."""
    values: dict[str, Sliding] = dataclasses.field(default_factory=dict)
    listed: list[Episode] | None = None
    window: tuple[int, int] = 0, 0
    since: int = 0
    """The lowest first row among the episodes that may still change; the window's end if there is none."""


class KeptEpisodes:
    """The episodes of a stream's window, kept between calls.

    Callers hold ``engine.lock``. They must not change what is returned. The returned list and arrays may change at the
    next call after the window or the facts have changed.
    """

    def __init__(self, log: StreamLog, facts: EpisodeFacts) -> None:
        self._log = log
        self._facts = facts
        self._made: _EpisodesMade | None = None

    def __call__(self) -> list[Episode]:
        """Return all episodes, by first row, then environment."""
        made = self._caught_up()
        if made.listed is None:
            made.listed = listed(self.table(), self.facts().tolist())
        return made.listed

    def table(self) -> EpisodeTable:
        """Return all episodes as arrays, in the same order."""
        return EpisodeTable(self._log.stream, self._log.num_envs, *self._caught_up().columns.arrays()[:-1])

    def facts(self) -> NDArray[Any]:
        """Return the facts of all episodes, an array of objects ``(n,)``."""
        return self._caught_up().columns.arrays()[-1]

    def values(self, name: str) -> FactValues:
        """Return for all episodes the value of one fact.

        ``name`` is a fact, or a dotted path into one, such as ``scene.floor``.
        """
        made = self._caught_up()
        found = made.values.pop(name, None) or Sliding(values_of(self.facts().tolist(), name).arrays())
        for oldest in list(made.values)[: max(0, len(made.values) + 1 - MOST_VALUES)]:
            del made.values[oldest]
        made.values[name] = found
        return FactValues(*found.arrays())

    def _caught_up(self) -> _EpisodesMade:
        log, facts, made = self._log, self._facts, self._made
        if made is not None and (log.begin, log.end) == made.window and facts.changed is None:
            return made
        self._made = None  # if this is cut short, or another call comes in meanwhile, all are made anew
        if made is None:
            made = _EpisodesMade(Sliding([*table(log, log.end).arrays().values(), _objects([])]))
        since = made.since if facts.changed is None else min(made.since, facts.changed)
        found = table(log, since)
        known = facts.find(found.start, found.env)
        before, told = made.columns.arrays()[:-1], made.columns.arrays()[-1]
        old = EpisodeTable(log.stream, log.num_envs, *before)
        left, first, stop = np.empty(0, np.int64), 0, 0
        if since > log.begin:
            first, stop = np.searchsorted(old.start, (log.begin + 1, since)).tolist()
            left = np.flatnonzero(old.stop[:first] > log.begin)
            left = left[np.argsort(old.env[left], kind="stable")]
        moved, rest = old.start[left] < log.begin, self._rest(old.only(left))
        if made.listed is not None:
            shorter = iter(listed(rest.only(moved), told[left[moved]].tolist()))
            made.listed[stop:] = listed(found, known)
            made.listed[:first] = [
                next(shorter) if cut else made.listed[at] for at, cut in zip(left.tolist(), moved.tolist(), strict=True)
            ]
        for name, values in made.values.items():
            lead = [array[left] for array in values.arrays()]
            values.replace(first, stop, lead, values_of(known, name).arrays())
        made.columns.replace(
            first, stop, [*rest.arrays().values(), told[left]], [*found.arrays().values(), _objects(known)]
        )
        open_ = found.start[~found.ended | (found.stop == log.end)]
        made.window, made.since = (log.begin, log.end), int(open_.min(initial=log.end))
        facts.changed = None
        self._made = made
        return made

    def _rest(self, left: EpisodeTable) -> EpisodeTable:
        """From these episodes, drop the rows that are below the window.

        The caller passes only episodes that begin at the window's first row or before.
        """
        begin = self._log.begin
        for at in np.flatnonzero(left.start < begin).tolist():
            rows = np.arange(begin, left.stop[at])
            rewards = self._log.take(REWARD, rows, np.full(len(rows), left.env[at])).astype(np.float64)
            left.total_reward[at] = np.add.reduceat(rewards, [0])[0]  # rounds as `table` does
            left.start[at], left.complete_start[at] = begin, False
        return left


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    return np.fromiter(values, object, len(values))


def around(log: StreamLog, row: int, env: int) -> tuple[int, int | None, bool]:
    """Return the first row of the episode that contains ``row``, its stop, and a flag.

    The flag is False if the episode began before the window; the first value is then the window's first row. The stop
    is the first row after ``row`` that does not continue the row before it, whether it is a transition or not; it is
    None if there is none yet.
    """
    first = _newest(log, row + 1, env, log.begins)
    start, complete = (log.begin, False) if first is None else (first, True)
    for low in range(row + 1, log.end, LOOKED_ROWS):
        rows = np.arange(low, min(low + LOOKED_ROWS, log.end))
        there = np.flatnonzero(log.begins(rows, np.full(len(rows), env)))
        if len(there):
            return start, int(rows[there[0]]), complete
    return start, None, complete


def newest(log: StreamLog, env: int) -> int | None:
    """Return the newest row of the window that is a transition in environment ``env``, or None if there is none."""
    return _newest(log, log.end, env, functools.partial(log.take, VALID))


def _newest(log: StreamLog, stop: int, env: int, test: Callable[[Ids, Ids], NDArray[Any]]) -> int | None:
    """Return the newest row of the window below ``stop`` for which ``test(rows, envs)`` is true, or None."""
    for high in range(stop, log.begin, -LOOKED_ROWS):
        rows = np.arange(max(log.begin, high - LOOKED_ROWS), high)
        there = np.flatnonzero(test(rows, np.full(len(rows), env)))
        if len(there):
            return int(rows[there[-1]])
    return None
