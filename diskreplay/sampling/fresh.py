"""The ids of episodes by a number that was told of them: those that are not far below the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from diskreplay.checks import Mask, checked_number
from diskreplay.errors import InputError
from diskreplay.index.fact_values import NUMBER, OTHER, FactValues
from diskreplay.index.facts import is_name
from diskreplay.index.where import OWN
from diskreplay.sampling.ranges import Ranges
from diskreplay.sampling.window import Sampler, Window, Windows, windows_with_facts
from diskreplay.schema.ids import pack, row_of, stream_of


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
    told = windows_with_facts(windows, sampler)
    near = _near([episodes.values(by) for episodes in told.episodes], within)
    if near is None:
        raise told.unknown(by, "a number", sampler)
    cut = {stream_of(window.first): row_of(window.first, window.num_envs) for window in held}
    parts = []
    for episodes, mask in zip(told.episodes, near, strict=True):
        at, table = np.flatnonzero(mask), episodes.table()
        stop, envs = table.stop[at], table.num_envs
        start = np.maximum(table.start[at], cut.get(table.stream, 0))
        some = start < stop
        first = pack(table.stream, start, table.env[at], envs)[some]
        parts.append((first, np.full(len(first), envs), (stop - start)[some]))
    return Ranges(*map(np.concatenate, zip(*parts, strict=True)))


def _near(every: Sequence[FactValues], within: float) -> list[Mask] | None:
    """Tell which values are numbers at most ``within`` below the largest of all; None if none is a number."""
    if any(type(value) is int for one in every for value in one.values[one.kinds == OTHER].tolist()):
        return _near_exactly(every, within)
    numbers = [np.where(one.kinds == NUMBER, one.numbers, -np.inf) for one in every]
    newest = max(one.max(initial=-np.inf) for one in numbers)
    return None if newest == -np.inf else [one >= newest - within for one in numbers]


def _near_exactly(every: Sequence[FactValues], within: float) -> list[Mask]:
    """Do as :func:`_near`, with integers that float64 does not hold, such as those of ``time.time_ns()``."""
    numbers = [[value if type(value) in (int, float) else -math.inf for value in one.values.tolist()] for one in every]
    newest = max(value for one in numbers for value in one)
    bound = Fraction(newest) - Fraction(within)
    least = int(bound) if bound.denominator == 1 else bound  # Python compares integers far faster
    return [np.array([value >= least for value in one], bool) for one in numbers]
