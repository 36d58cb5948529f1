"""How a :class:`~diskreplay.index.where.Where` selects episodes from a stream's window, or from a list."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError, MisuseWarning, warn_outside
from diskreplay.index.episodes import Episode, KeptEpisodes
from diskreplay.index.fact_values import values_of
from diskreplay.index.where import OWN, WORDS, Where

End = Literal["terminated", "truncated", "both", "cut", "running"]
OwnColumns = dict[str, Callable[[], Sequence[Any] | NDArray[Any]]]
"""By name, what gives the values that every episode has, for all episodes."""

TOLD = frozenset(("seed", "success", "tags"))
"""The facts whose meaning is known; a condition that names one of them gets no warning if no episode has it."""
LIKENESS = 0.7
"""A name that is at least this similar to another counts as a misspelling of it; equal names have similarity 1."""
MOST_NAMES = 16
"""The most names that a message lists."""


def end_of(episode: Episode) -> End:
    """Return how an episode ends: as its last step's flags say, else "cut" or "running"."""
    if episode.terminated:
        return "both" if episode.truncated else "terminated"
    if episode.truncated:
        return "truncated"
    return "cut" if episode.ended else "running"


def chosen_rows(where: Where, episodes: KeptEpisodes, stream: str) -> NDArray[np.bool_]:
    """Return which episodes of a stream's window are selected, bool ``(n,)``; ``stream`` is the stream's name."""
    table = episodes.table()
    flags = [table.terminated & table.truncated, table.terminated, table.truncated, table.ended]
    own: OwnColumns = {
        "return": lambda: table.total_reward,
        "length": lambda: table.stop - table.start,
        "environment": lambda: table.env,
        "stream": lambda: [stream] * len(table),
        "end": lambda: np.select(flags, ["both", "terminated", "truncated", "cut"], "running").tolist(),
    }
    return where.matches(lambda name: own[name]() if name in own else episodes.values(name), len(table))


def refuse_columns(where: Where, columns: Collection[str], every: Sequence[KeptEpisodes]) -> None:
    """Raise InputError if a condition names a column of the rows, and no episode has a fact of that name."""
    for name in sorted(where.facts.intersection(columns)):
        if any(name in facts for episodes in every for facts in episodes.facts()):
            continue
        known = sorted({fact for episodes in every for facts in episodes.facts() for fact in facts} | TOLD)
        raise InputError(
            f"where: {name!r} is a column of the rows, and no episode has a fact of that name. Select by return, "
            f"length, end, stream or environment, or by a fact of episodes ({', '.join(map(repr, known[:MOST_NAMES]))})"
            f"; or tell a fact of that name: rb.annotate_episode({name}=...)"
        )


def chosen(where: Where, episodes: Sequence[Episode], streams: Mapping[int, str]) -> list[bool]:
    """Tell for each episode of a list whether a condition selects it; ``streams`` has streams' names by number."""
    facts = [episode.facts for episode in episodes]
    own: OwnColumns = {
        "return": lambda: np.array([episode.total_reward for episode in episodes]),
        "length": lambda: np.array([episode.length for episode in episodes], np.int64),
        "environment": lambda: np.array([episode.env for episode in episodes], np.int64),
        "stream": lambda: [streams[episode.stream] for episode in episodes],
        "end": lambda: [end_of(episode) for episode in episodes],
    }
    warn_of_unknown(where, facts)
    found = where.matches(lambda name: own[name]() if name in own else values_of(facts, name), len(episodes))
    return [bool(one) for one in found]


def warn_of_unknown(where: Where, every: Sequence[Mapping[str, Any]]) -> None:
    """Warn, by MisuseWarning, of each name in a condition that is no fact of any episode; ``every`` has their facts.

    The facts in :data:`TOLD` get no warning. If there are no episodes, no fact gets one.
    """
    asked = where.facts - TOLD
    if not asked or not every or asked <= every[-1].keys():
        return
    known = {name for facts in every for name in facts}
    for name in sorted(asked - known):
        more = OWN.difference(WORDS) | TOLD
        warn_outside(f"no episode has a fact {name!r}; {instead(name, known, more)}", MisuseWarning)


def instead(name: str, known: Collection[str], more: Collection[str] = ()) -> str:
    """Return a hint for a name that is no fact, or no fact of the wanted kind.

    It is a similar name out of ``known`` and ``more``; if there is none, the names in ``known``.
    """
    near = difflib.get_close_matches(name, sorted({*known, *more} - {name}), 1, LIKENESS)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(map(repr, sorted(known)[:MOST_NAMES]))}" if known else "they have none"
