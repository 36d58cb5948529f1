"""Uniform draws, with replacement, from ranges of ids: the transitions of chosen episodes."""

from __future__ import annotations

import numpy as np

from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import NOW
from diskreplay.sampling.uniform import accepted
from diskreplay.sampling.window import Standings
from diskreplay.schema.ids import Ids

LISTED_IDS = 1 << 22
"""The most ids of ranges that are all listed at the first draw, 8 bytes each: the fastest to draw from."""


class Ranges:
    """Ids ``first[i] + stride[i] * k`` for ``k`` below ``length[i]``; arrays ``(n,)``, lengths of at least 1."""

    def __init__(self, first: Ids, stride: Ids, length: Ids) -> None:
        self.first, self.stride, self.length = first, stride, length
        self._ends = np.cumsum(length)
        self.count = int(self._ends[-1]) if len(length) else 0
        """The number of ids in all ranges."""
        self.least = int(first.min()) if len(first) else 0
        """The least of all ids."""
        self._base = first - (self._ends - length) * stride
        self._listed: Ids | None = None

    def at(self, numbers: Ids) -> Ids:
        """Return the ids of numbers ``(B,)`` in ``[0, count)``, which go through one range after another."""
        if self._listed is not None:
            return self._listed[numbers]
        which = np.searchsorted(self._ends, numbers, side="right")
        ids: Ids = self._base[which] + numbers * self.stride[which]
        return ids

    def items(self, standing: Standings) -> Ids:
        """Return all ids that can be sampled now, range by range."""
        every = self.at(np.arange(self.count))
        return every[standing(every) == NOW] if self.count else every

    def _list(self) -> None:
        if self._listed is None and self.count <= LISTED_IDS:
            self._listed = np.repeat(self._base, self.length) + np.arange(self.count) * np.repeat(
                self.stride, self.length
            )

    def sample(self, rng: np.random.Generator, standing: Standings, size: int) -> Ids:
        """Return ``size`` ids of those that can be sampled now, each with the same probability.

        Raises NotEnoughDataError where none can.
        """
        if not self.count:
            raise NotEnoughDataError("no transition is selected; select with another condition")
        self._list()

        def draw(count: int) -> Ids:
            return self.at(rng.integers(self.count, size=count))

        def listed(count: int) -> Ids:
            every = self.items(standing)
            if not len(every):
                raise NotEnoughDataError("what was selected has left the window, or cannot be sampled yet: select anew")
            some: Ids = every[rng.integers(len(every), size=count)]
            return some

        return accepted(draw, listed, standing, size, self.count)
