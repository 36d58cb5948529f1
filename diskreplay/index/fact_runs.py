"""For each episode that has a fact: its rows, and a number made of the fact's value, for samplers that draw by it.

There is one entry for each episode, in the order in which facts were first noted; it is changed when the facts change.
Entries of episodes that left the window are skipped, and removed once they are the majority.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

OPEN = 1 << 62
"""The stop of an episode after which no other has begun."""
SPARE = 1024
"""Entries are cleaned up once there are more than this plus twice those in the window."""
LEAST_KNOWN = -math.inf

Numbers = NDArray[np.int64]


class RowRuns(NamedTuple):
    """Episodes, cut to the window, sorted by first row, then environment; arrays ``(n,)``."""

    start: Numbers
    stop: Numbers
    env: Numbers
    number: NDArray[np.float64]
    open: NDArray[np.bool_]
    """True if the environment's next episode has not begun."""
    whole: NDArray[np.bool_]
    """True if the row under which the episode's facts are noted is in the window."""


class FactRuns:
    """The episodes of a stream that have a fact.

    Args:
        kind: makes the function that returns the number of a fact's value, or NaN if the episode is to be skipped.

    Attributes:
        number_of: the function that ``kind`` made last; each clean-up of the entries has it make a new one.
        behind: the keys of episodes that have changed since the last call of :meth:`catch_up`; None for all.
    """

    def __init__(self, kind: Callable[[], Callable[[Any], float]]) -> None:
        self._kind = kind
        self.behind: dict[int, None] | None = None
        self._restart()

    def _restart(self) -> None:
        self.number_of = self._kind()
        self._at: dict[int, int] = {}
        self._rows, self._envs, self._stops = array.array("q"), array.array("q"), array.array("q")
        self._numbers = array.array("d")
        self._last: tuple[tuple[int, int, float], RowRuns] | None = None

    def catch_up(self, every: Iterable[int], entry: Callable[[int], tuple[int, int, int | None, Any] | None]) -> None:
        """Bring the entries up to date.

        Args:
            every: the keys of all episodes with facts.
            entry: returns row, environment, stop and value of an episode by its key, or None if it has no noted facts.
        """
        keys, self.behind = self.behind, None  # if this is cut short, the next call looks at all of them
        if keys is None or len(keys) > SPARE + len(self._at):
            self._restart()
            keys = dict.fromkeys(every)
        for key in keys:
            self._put(key, entry(key))
        if keys:
            self._last = None
        self.behind = {}

    def _put(self, key: int, found: tuple[int, int, int | None, Any] | None) -> None:
        at = self._at.get(key)
        number = math.nan if found is None else self.number_of(found[3])
        if found is None or math.isnan(number):
            if at is not None:
                self._numbers[at] = math.nan
            return
        row, env, stop, _ = found
        stop = OPEN if stop is None else stop
        if at is not None:
            self._stops[at], self._numbers[at] = stop, number
            return
        self._rows.append(row)
        self._envs.append(env)
        self._stops.append(stop)
        self._numbers.append(number)
        self._at[key] = len(self._at)

    def largest(self, begin: int, end: int) -> float:
        """Return the largest number of the episodes in a window, or minus infinity if there is none."""
        if not self._at or begin == end:
            return LEAST_KNOWN
        numbers, living = np.frombuffer(self._numbers), np.frombuffer(self._stops, np.int64) > begin
        return float(np.fmax.reduce(numbers, where=living, initial=LEAST_KNOWN))

    def within(self, begin: int, end: int, least: float = LEAST_KNOWN) -> RowRuns:
        """Return the episodes of a window whose number is at least ``least``; callers must not change the arrays."""
        asked = begin, end, least
        if self._last is not None and self._last[0] == asked:
            return self._last[1]
        rows, envs, stops = (_numbers(part, np.int64) for part in (self._rows, self._envs, self._stops))
        numbers = _numbers(self._numbers, np.float64)
        living = stops > begin
        held = np.flatnonzero(living & (numbers >= least) & (begin < end))
        if len(self._at) > SPARE + 2 * np.count_nonzero(living):
            self.behind = None
        held = held[np.lexsort((envs[held], np.maximum(rows[held], begin)))]
        rows, envs, stops = rows[held], envs[held], stops[held]
        found = RowRuns(
            np.maximum(rows, begin), np.minimum(stops, end), envs, numbers[held], stops == OPEN, rows >= begin
        )
        self._last = asked, found
        return found


def _numbers(values: array.array[Any], dtype: Any) -> NDArray[Any]:
    return np.frombuffer(values, dtype) if values else np.empty(0, dtype)
