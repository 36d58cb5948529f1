"""How a :class:`~diskreplay.index.where.Where` selects episodes from a stream's window, or from a list."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import MisuseWarning
from diskreplay.index.episodes import Episode, EpisodeTable
from diskreplay.index.facts import EpisodeFacts, Facts
from diskreplay.index.where import MISSING, OWN, WORDS, Where, part_of

End = Literal["terminated", "truncated", "both", "cut", "running"]
ENDS: tuple[End, ...] = ("running", "cut", "truncated", "terminated", "both")

TOLD = frozenset(("seed", "success", "tags"))
"""The facts whose meaning is known; a condition that names one of them gets no warning if no episode has it."""
LIKENESS = 0.7
"""The least similarity, 1 for equal, at which a name counts as a misspelling of another."""
MOST_NAMES = 16
"""The most names that a message lists."""


def end_of(episode: Episode) -> End:
    """Return how an episode ends: as its last step's flags say, else "cut" or "running"."""
    if episode.terminated and episode.truncated:
        return "both"
    if episode.terminated:
        return "terminated"
    if episode.truncated:
        return "truncated"
    return "cut" if episode.ended else "running"


def chosen_rows(
    where: Where, table: EpisodeTable, facts: EpisodeFacts, stream: str
) -> tuple[NDArray[np.bool_], list[Facts] | None]:
    """Return a mask ``(n,)`` of the episodes of a table that a condition selects, and the facts of all its episodes.

    Instead of the facts it returns None if the condition names no fact. ``stream`` is the stream's name.
    """
    known: list[Facts] | None = None

    def column(name: str) -> Sequence[Any] | NDArray[Any]:
        nonlocal known
        if name == "return":
            return table.total_reward
        if name == "length":
            return table.stop - table.start
        if name == "environment":
            return table.env
        if name == "stream":
            return [stream] * len(table)
        if name == "end":
            numbers = np.where(table.terminated, 3 + table.truncated, np.where(table.truncated, 2, 1 * table.ended))
            return [ENDS[number] for number in numbers.tolist()]
        if known is None:
            known = facts.find(table.start, table.env)
        return _of_facts(known, name)

    return where.matches(column, len(table)), known


def chosen(where: Where, episodes: Sequence[Episode], streams: Mapping[int, str]) -> list[bool]:
    """Tell which episodes of a list are selected; ``streams`` has the streams' names by their numbers."""

    def column(name: str) -> Sequence[Any] | NDArray[Any]:
        if name == "return":
            return np.array([episode.total_reward for episode in episodes])
        if name == "length":
            return np.array([episode.length for episode in episodes], np.int64)
        if name == "environment":
            return np.array([episode.env for episode in episodes], np.int64)
        if name == "stream":
            return [streams[episode.stream] for episode in episodes]
        if name == "end":
            return [end_of(episode) for episode in episodes]
        return _of_facts([episode.facts for episode in episodes], name)

    _warn_of_unknown(where, episodes)
    found: list[bool] = where.matches(column, len(episodes)).tolist()
    return found


def _warn_of_unknown(where: Where, episodes: Sequence[Episode]) -> None:
    """Warn, by MisuseWarning, of each fact that a condition names and no episode has."""
    known = {name for episode in episodes for name in episode.facts}
    for name in sorted(where.facts - known - TOLD) if episodes else ():
        near = difflib.get_close_matches(name, sorted(known | OWN.difference(WORDS) | TOLD), 1, LIKENESS)
        there = f"there are {', '.join(map(repr, sorted(known)[:MOST_NAMES]))}" if known else "they have none"
        warnings.warn(
            f"no episode has a fact {name!r}; " + (f"did you mean {near[0]!r}?" if near else there), MisuseWarning,
            stacklevel=3,
        )  # fmt: skip


def _of_facts(known: Sequence[dict[str, Any]], name: str) -> list[Any]:
    if "." in name:
        path = name.split(".")
        return [part_of(facts, path) for facts in known]
    if name == "tags":  # every episode has a list of tags, which may be empty
        none: list[str] = []
        return [facts.get(name, none) for facts in known]
    return [facts.get(name, MISSING) for facts in known]
