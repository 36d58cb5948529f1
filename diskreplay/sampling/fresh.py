"""The ids of episodes by a number that was told of them: those that are not far below the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diskreplay.checks import checked_number
from diskreplay.errors import InputError
from diskreplay.ids import pack, row_of, stream_of
from diskreplay.index.fact_values import NUMBER
from diskreplay.index.facts import is_name
from diskreplay.index.where import OWN
from diskreplay.sampling.selected import Ranges
from diskreplay.sampling.window import Sampler, Window, Windows, told_windows


def check_by(what: str, name: Any, within: Any = 0) -> float:
    """Raise InputError if a sampler cannot draw by a fact of this name; return ``within`` as a number of Python's."""
    if not is_name(name) or name in OWN:
        raise InputError(f"{what} must be the name of a fact of episodes, such as 'version', got {name!r:.100}")
    number = checked_number("within", within)
    return int(number) if number.is_integer() else number


def fresh(windows: Windows, held: Sequence[Window], by: str, within: float, sampler: Sampler) -> Ranges:
    """Return the ids of episodes whose fact ``by`` is at most ``within`` below the largest one in all windows.

    Args:
        windows: of the store, which know facts.
        held: those of them that are not empty, cut to the rows that count.
        by, within: as of :class:`~diskreplay.Recent`.
        sampler: who asks, for messages.

    Raises InputError if no episode has a number under this name.
    """
    told = told_windows(windows, sampler)
    every = [episodes.values(by) for episodes in told.episodes]
    numbers = [np.where(one.kinds == NUMBER, one.numbers, -np.inf) for one in every]
    newest = max(one.max(initial=-np.inf) for one in numbers)
    if newest == -np.inf:
        raise told.unknown(by, "a number", sampler)
    cut = {stream_of(window.first): row_of(window.first, window.num_envs) for window in held}
    parts = []
    for episodes, number in zip(told.episodes, numbers, strict=True):
        at, table = np.flatnonzero(number >= newest - within), episodes.table()
        stop, envs = table.stop[at], table.num_envs
        start = np.maximum(table.start[at], cut.get(table.stream, 0))
        some = start < stop
        first = pack(table.stream, start, table.env[at], envs)[some]
        parts.append((first, np.full(len(first), envs), (stop - start)[some]))
    return Ranges(*map(np.concatenate, zip(*parts, strict=True)))
