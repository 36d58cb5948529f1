"""The ids of episodes by a number that was told of them: those that are not far below the largest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diskreplay.errors import InputError
from diskreplay.ids import pack, row_of, stream_of
from diskreplay.index.fact_runs import LEAST_KNOWN
from diskreplay.index.fact_values import NUMBER, kind_of
from diskreplay.index.selecting import instead
from diskreplay.sampling.selected import Ranges
from diskreplay.sampling.window import Sampler, Window, Windows, told_windows


def exact_number(value: Any) -> float:
    """Return a fact's value if it is a number that float64 holds, else NaN."""
    return float(value) if kind_of(value) == NUMBER else np.nan


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
    spans = [(row_of(window.first, window.num_envs), row_of(window.stop, window.num_envs)) for window in told]
    every = told.runs(by, exact_number)
    newest = max(runs.largest(*span) for runs, span in zip(every, spans, strict=True))
    if newest == LEAST_KNOWN:
        raise InputError(
            f"{sampler}: no episode of the windows has a number as its fact {by!r}, which begin_episode({by}=...) "
            f"tells; {instead(by, told.names())}"
        )
    cut = {stream_of(window.first): window for window in held}
    parts = []
    for window, runs, span in zip(told, every, spans, strict=True):
        stream, envs = stream_of(window.first), window.num_envs
        if stream in cut:
            found = runs.within(*span, newest - within)
            start = np.maximum(found.start, row_of(cut[stream].first, envs))
            some = start < found.stop
            first = pack(stream, start, found.env, envs)[some]
            parts.append((first, np.full(len(first), envs), (found.stop - start)[some]))
    return Ranges(*(np.concatenate(each) for each in zip(*parts, strict=True)))
