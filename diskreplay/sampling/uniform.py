"""Uniform sampling with replacement, over the windows of all streams.

Ids are drawn from all rows and environments of the windows, and those that are no transition are passed over, which
leaves the distribution over the others uniform. As many more are drawn as the share of transitions so far makes likely
to be enough. Where half as many were drawn as the windows hold, the transitions are listed instead.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import NOW
from diskreplay.sampling.integers import integers
from diskreplay.sampling.window import Standings, Windows
from diskreplay.schema.ids import Ids, checked_ids

MAX_DRAWN_SHARE = 0.5
"""The share of the windows, in ids drawn, after which the transitions are listed instead."""

Spans = Sequence[tuple[int, int]]
"""The ranges of ids ``[first, stop)``, one for each stream."""


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A sampler that draws every transition of the window with the same probability, with replacement."""

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, and their importance weights, float32, which are all one.

        Raises NotEnoughDataError when nothing in the windows is a transition.
        """
        spans = _spans(windows)
        if not spans:
            raise NotEnoughDataError("the window is empty; add some steps")
        lengths = [stop - start for start, stop in spans]

        def listed(count: int) -> Ids:
            every = transitions(windows, standing)
            if not len(every):
                raise NotEnoughDataError("nothing in the window can be drawn yet; add more steps")
            return every[rng.integers(len(every), size=count)]

        ids = accepted(functools.partial(draw, rng, spans, lengths), listed, standing, size, sum(lengths))
        return ids, ones(size)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> NDArray[np.float64]:
        """Return one over the number of transitions for ids ``(B,)`` of transitions, 0 for others, float64 ``(B,)``.

        Looks at all ids of the windows.
        """
        listed = transitions(windows, standing)
        return np.isin(checked_ids(ids), listed) / max(1, len(listed))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Uniform"}


def ones(size: int) -> NDArray[np.float32]:
    """Return the weights of ids that are drawn without a bias, in a third of the time of ``np.ones``."""
    weights = np.empty(size, np.float32)
    weights.fill(1.0)
    return weights


def draw(rng: np.random.Generator, spans: Spans, lengths: list[int], size: int) -> Ids:
    """Return ``size`` ids of the spans, each with the same probability."""
    if len(spans) == 1:
        return integers(rng, *spans[0], size)
    picks = integers(rng, 0, sum(lengths), size)
    ends = np.cumsum(lengths)
    which = np.searchsorted(ends, picks, side="right")
    ids: Ids = picks - (ends - lengths)[which] + np.array([start for start, _ in spans])[which]
    return ids


def _spans(windows: Windows) -> Spans:
    return [(window.first, window.stop) for window in windows if window.stop > window.first]


def transitions(windows: Windows, standing: Standings) -> Ids:
    """Return the ids of all that are transitions, window by window."""
    every = [np.arange(start, stop) for start, stop in _spans(windows)]
    held = np.concatenate(every) if every else np.empty(0, np.int64)
    return held[standing(held) == NOW] if len(held) else held


@functools.lru_cache(maxsize=8)
def _all_now(size: int) -> bytes:
    return np.full(size, NOW, np.int8).tobytes()


def accepted(
    draw: Callable[[int], Ids], listed: Callable[[int], Ids], standing: Standings, size: int, held: int
) -> Ids:
    """Return ``size`` ids of a distribution over ``held`` ids, given that they are transitions.

    Args:
        draw: a function that draws as many ids of the distribution as it is asked for.
        listed: a function that does so of its transitions alone, by listing them; called where too many were drawn in
            vain.
    """
    ids = draw(size)
    standings = standing(ids)
    if standings.tobytes() == _all_now(size):  # in a third of the time of a comparison
        return ids
    good = standings == NOW
    found: Ids = ids[good]
    drawn, most = size, int(MAX_DRAWN_SHARE * held)
    while len(found) < size and drawn < most:
        missing = size - len(found)
        more = draw(min(missing + missing * drawn // max(1, len(found)), most - drawn))
        drawn += len(more)
        found = np.concatenate([found, more[standing(more) == NOW]])
    if len(found) < size:
        found = np.concatenate([found, listed(size - len(found))])
    return found[:size]
