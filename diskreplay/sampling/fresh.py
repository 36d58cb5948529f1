"""The ids of episodes by a number that was told of them: those that are not far below the largest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from diskreplay.checks import checked_number
from diskreplay.errors import InputError
from diskreplay.ids import pack, row_of, stream_of
from diskreplay.index.fact_runs import LEAST_KNOWN
from diskreplay.index.fact_values import NUMBER, kind_of
from diskreplay.index.facts import is_name
from diskreplay.index.where import OWN
from diskreplay.sampling.selected import Ranges
from diskreplay.sampling.window import Sampler, Window, Windows, told_windows


def numbers() -> Callable[[Any], float]:
    """Return a function that gives a fact's value if it is a number that float64 holds, else NaN."""
    return lambda value: float(value) if kind_of(value) == NUMBER else math.nan


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
    every = [facts.runs(by, numbers) for facts in told.facts]
    newest = max(runs.largest(*span) for runs, span in zip(every, told.spans(), strict=True))
    if newest == LEAST_KNOWN:
        raise told.unknown(by, "a number", sampler)
    cut = {stream_of(window.first): window for window in held}
    parts = []
    for window, runs, span in zip(told, every, told.spans(), strict=True):
        stream, envs = stream_of(window.first), window.num_envs
        if stream in cut:
            found = runs.within(*span, newest - within)
            start = np.maximum(found.start, row_of(cut[stream].first, envs))
            some = start < found.stop
            first = pack(stream, start, found.env, envs)[some]
            parts.append((first, np.full(len(first), envs), (found.stop - start)[some]))
    return Ranges(*(np.concatenate(each) for each in zip(*parts, strict=True)))
