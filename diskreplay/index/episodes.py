"""The episodes of a window, found from the resident columns.

An episode is a run of transitions of one environment. It begins at a row that does not continue the row before, or at
the window's first row. It ends at a row with a flag, or before a row that does not continue it. An environment's newest
episode may still be going on.
"""

from __future__ import annotations

import bisect
import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import STREAM_SHIFT, Ids
from diskreplay.index.facts import EpisodeFacts, Facts, copied
from diskreplay.index.log import StreamLog
from diskreplay.schema import CONTINUES, REWARD, START, TERMINATED, TRUNCATED, VALID

CUT_OFF = "cut off"
ROW_BITS = 43
"""The bits for the row in a number that holds a row and an environment; there are at most 2^20 environments."""
LOOKED_ROWS = 1024
"""The number of rows that a search for an episode's begin or end looks at in one go."""
KEPT = "_facts"
START_OF: Callable[[Episode], int] = operator.attrgetter("start")
ENV_OF: Callable[[Episode], int] = operator.attrgetter("env")


class _Copied:
    """An episode's attribute ``facts``; each access returns a copy, because several callers may hold the episode."""

    def __get__(self, episode: Episode | None, kind: type[Episode]) -> dict[str, Any]:
        found: dict[str, Any] = {} if episode is None else copied(getattr(episode, KEPT))
        return found

    def __set__(self, episode: Episode, facts: dict[str, Any] | _Copied) -> None:
        object.__setattr__(episode, KEPT, {} if isinstance(facts, _Copied) else facts)


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode, or the part of it that is in the window.

    Attributes:
        stream, env: the numbers of the stream and the environment in which it was recorded.
        start, stop: its rows ``[start, stop)``.
        total_reward: the undiscounted sum of its rewards.
        terminated, truncated: the flags of its last step.
        complete_start: True if its first step is in the window.
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
    """Return how many episodes of a window ended "terminated", "truncated" and "cut off", that is without a flag."""
    rows = np.arange(log.begin, log.end)
    if not len(rows):
        return {TERMINATED: 0, TRUNCATED: 0, CUT_OFF: 0}
    terminated, truncated, valid = (log.table.take(name, rows) for name in (TERMINATED, TRUNCATED, VALID))
    begins = log.table.take(START, rows[1:]) != CONTINUES
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

    def only(self, wanted: NDArray[np.bool_]) -> EpisodeTable:
        """Return the table of only those episodes that the mask ``wanted`` selects."""
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
    """Return the episodes of a stream's window, or only those that begin at row ``since`` or later."""
    rows = np.arange(max(log.begin, since), log.end)
    valid, starts, terminated, truncated, reward = (
        log.table.take(name, rows) for name in (VALID, START, TERMINATED, TRUNCATED, REWARD)
    )
    parts = []
    for env in range(log.num_envs if len(rows) else 0):
        first = starts[:, env] != CONTINUES
        complete = bool(first[0])
        first[0] = True
        low = np.flatnonzero(first)
        high = np.append(low[1:], len(rows))
        totals = np.add.reduceat(reward[:, env].astype(np.float64), low)
        flags = terminated[high - 1, env], truncated[high - 1, env]
        found = (
            np.full(len(low), env), rows[0] + low, rows[0] + high, totals, *flags,
            (low > 0) | complete, flags[0] | flags[1] | (high < len(rows)),
        )  # fmt: skip
        kept = valid[low, env]
        kept[0] &= complete or rows[0] == log.begin
        parts.append([part[kept] for part in found])
    if not parts:
        none, no = np.empty(0, np.int64), np.empty(0, bool)
        return EpisodeTable(log.stream, log.num_envs, none, none, none, np.empty(0), no, no, no, no)
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    if len(parts) > 1:
        order = np.lexsort((columns[0], columns[1]))
        columns = [column[order] for column in columns]
    return EpisodeTable(log.stream, log.num_envs, *columns)


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


class KeptEpisodes:
    """The episodes of a stream's window, kept between calls.

    A call makes only the episodes that are new or have changed since the last call. Callers hold ``engine.lock``.
    """

    def __init__(self, log: StreamLog, facts: EpisodeFacts) -> None:
        self._log = log
        self._facts = facts
        self._made: tuple[list[Episode], tuple[int, int], int] = [], (0, 0), 0
        """The episodes, their window, and the first row of the episodes that may still change; replaced as a whole."""

    def __call__(self) -> list[Episode]:
        """Return all episodes, sorted by first row, then by environment; the caller must not change the list."""
        log, facts = self._log, self._facts
        held, window, since = self._made
        if (log.begin, log.end) == window and facts.changed is None:
            return held
        if facts.changed is not None:
            since = min(since, facts.changed)
        kept: list[Episode] = []
        if since > log.begin:
            first, stop = (bisect.bisect_left(held, row, key=START_OF) for row in (log.begin + 1, since))
            left = (one if one.start == log.begin else self._rest(one) for one in held[:first] if one.stop > log.begin)
            kept = held[first:stop]
            kept[:0] = sorted(left, key=ENV_OF)
        found = table(log, since)
        kept += listed(found, facts.find(found.start, found.env))
        open_ = found.start[~found.ended | (found.stop == log.end)]
        self._made = kept, (log.begin, log.end), int(open_.min(initial=log.end))
        facts.changed = None
        return kept

    def _rest(self, episode: Episode) -> Episode:
        """Return the part of an episode that is left in the window."""
        rows = np.arange(self._log.begin, episode.stop)
        rewards = self._log.take(REWARD, rows, np.full(len(rows), episode.env)).astype(np.float64)
        total = float(np.add.reduceat(rewards, [0])[0])  # rounds as `table` does
        return dataclasses.replace(episode, start=self._log.begin, total_reward=total, complete_start=False)


def around(log: StreamLog, row: int, env: int) -> tuple[int, int | None, bool]:
    """Return the first row of a row's episode, the first row of the next episode, and True if the former is exact.

    If the episode began before the window, the first value is the window's first row, and the third is False. The
    second value is None if the next episode has not begun yet.
    """
    start, complete = log.begin, False
    for high in range(row + 1, log.begin, -LOOKED_ROWS):
        rows = np.arange(max(log.begin, high - LOOKED_ROWS), high)
        first = np.flatnonzero(log.begins(rows, np.full(len(rows), env)))
        if len(first):
            start, complete = int(rows[first[-1]]), True
            break
    for low in range(row + 1, log.end, LOOKED_ROWS):
        rows = np.arange(low, min(low + LOOKED_ROWS, log.end))
        first = np.flatnonzero(log.begins(rows, np.full(len(rows), env)))
        if len(first):
            return start, int(rows[first[0]]), complete
    return start, None, complete


def newest(log: StreamLog, env: int) -> int | None:
    """Return the newest row of the window that is a transition in environment ``env``, or None if there is none."""
    for high in range(log.end, log.begin, -LOOKED_ROWS):
        rows = np.arange(max(log.begin, high - LOOKED_ROWS), high)
        there = np.flatnonzero(log.take(VALID, rows, np.full(len(rows), env)))
        if len(there):
            return int(rows[there[-1]])
    return None
