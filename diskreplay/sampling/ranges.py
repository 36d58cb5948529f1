"""Uniform draws, with replacement, from ranges of ids: those of the windows, or of chosen episodes.

Ids that are no transition are passed over, which leaves the distribution over the others as it is. As many more are
drawn as the share of transitions so far makes likely to be enough. Where half as many were drawn as the ranges hold,
the transitions are listed instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np

from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import NOW
from diskreplay.sampling.window import Standings, Windows
from diskreplay.schema.ids import Ids

MAX_DRAWN_SHARE = 0.5
"""The share of the ranges, in ids drawn, after which the transitions are listed instead."""


class Ranges:
    """Ids ``first[i] + stride[i] * k`` for ``k`` below ``length[i]``; arrays ``(n,)``, lengths of at least 1."""

    def __init__(self, first: Ids, stride: Ids, length: Ids) -> None:
        self.first, self.stride, self.length = first, stride, length
        self._ends = np.cumsum(length)
        self.count = int(self._ends[-1]) if len(length) else 0
        """The number of ids in all ranges."""
        self._base = first - (self._ends - length) * stride

    @classmethod
    def of(cls, windows: Windows) -> Self:
        """Return the ids of the windows."""
        held = [(window.first, 1, window.stop - window.first) for window in windows if window.stop > window.first]
        return cls(*np.array(held, np.int64).reshape(-1, 3).T)

    @property
    def least(self) -> int:
        """The least of all ids, 0 if there is none."""
        return int(self.first.min()) if len(self.first) else 0

    def at(self, numbers: Ids) -> Ids:
        """Return the ids of numbers ``(B,)`` in ``[0, count)``, which go through one range after another."""
        which = np.searchsorted(self._ends, numbers, side="right")
        ids: Ids = self._base[which] + numbers * self.stride[which]
        return ids

    def items(self, standing: Standings) -> Ids:
        """Return all ids that can be sampled now, range by range."""
        every = self.at(np.arange(self.count))
        return every[standing(every) == NOW] if self.count else every

    def sample(self, rng: np.random.Generator, standing: Standings, size: int, lacking: str) -> Ids:
        """Return ``size`` ids of those that can be sampled now, each with the same probability.

        Raises NotEnoughDataError, with the text ``lacking``, where none can; there must be ids.
        """

        def draw(count: int) -> Ids:
            return self.at(rng.integers(self.count, size=count))

        def listed(count: int) -> Ids:
            every = self.items(standing)
            if not len(every):
                raise NotEnoughDataError(lacking)
            return every[rng.integers(len(every), size=count)]

        return accepted(draw, listed, standing, size, self.count)


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
    found: Ids = ids[standing(ids) == NOW]
    drawn, most = size, int(MAX_DRAWN_SHARE * held)
    while len(found) < size and drawn < most:
        missing = size - len(found)
        more = draw(min(missing + missing * drawn // max(1, len(found)), most - drawn))
        drawn += len(more)
        found = np.concatenate([found, more[standing(more) == NOW]])
    if len(found) < size:
        found = np.concatenate([found, listed(size - len(found))])
    return found[:size]
