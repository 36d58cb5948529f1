"""Uniform sampling with replacement, over the windows of all streams.

Ids are drawn from all rows and environments of the windows; those that are no transition are drawn again, which leaves
the distribution over the others uniform. Where almost nothing is a transition, they are listed instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import NotEnoughDataError
from diskreplay.sampling.window import Ids, IsTransition, Windows

Spans = Sequence[tuple[int, int]]
"""Half-open ranges of ids, one a stream."""

MAX_REDRAWS = 20


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every transition of the window with the same probability, with replacement."""

    def sample(
        self, rng: np.random.Generator, windows: Windows, is_transition: IsTransition, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draws ``size`` ids, int64, and their importance weights, float32, which are all one.

        Raises NotEnoughDataError when nothing in the windows is a transition.
        """
        spans = [(window.first, window.stop) for window in windows if window.stop > window.first]
        if not spans:
            raise NotEnoughDataError("the window is empty; add some steps")
        lengths = [stop - start for start, stop in spans]
        ids = draw(rng, spans, lengths, size)
        bad = ~is_transition(ids)
        for _ in range(MAX_REDRAWS):
            if not bad.any():
                break
            ids[bad] = draw(rng, spans, lengths, int(bad.sum()))
            bad = ~is_transition(ids)
        if bad.any():
            all_ids = np.concatenate([np.arange(start, stop) for start, stop in spans])
            good = all_ids[is_transition(all_ids)]
            if not len(good):
                raise NotEnoughDataError("no row in the window is a transition yet; add more steps")
            ids[bad] = good[rng.integers(len(good), size=int(bad.sum()))]
        return ids, np.ones(size, np.float32)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Uniform"}


def draw(rng: np.random.Generator, spans: Spans, lengths: list[int], size: int) -> Ids:
    """``size`` ids of the spans, each with the same probability."""
    picks = rng.integers(sum(lengths), size=size)
    if len(spans) == 1:
        return picks + spans[0][0]
    ends = np.cumsum(lengths)
    which = np.searchsorted(ends, picks, side="right")
    ids: Ids = picks - (ends - lengths)[which] + np.array([start for start, _ in spans])[which]
    return ids


def from_json(stored: dict[str, Any]) -> Uniform:
    """The sampler of a document by ``to_json``."""
    if stored.get("kind") != "Uniform":
        raise ValueError(f"unknown sampler {stored!r}")
    return Uniform()
