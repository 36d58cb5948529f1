"""Draws of recent experience: the newest rows alone, or all rows with a probability that halves with their age.

1. The age of a row is counted in its own stream, as capacity is, in rows x environments: ids say nothing of the time
   between streams. All environments of a row have the same age, so that none is preferred.
2. With ``newest`` or ``fraction`` each stream's window is cut to its newest rows, and transitions are drawn from what
   is left with equal probability.
3. With ``half_life`` a row of age ``a`` has the mass ``2 ** (-a / half_life)``; ages are drawn by the inverse of their
   distribution, which is a geometric one that ends with the window.
4. With ``by`` only rows of episodes count whose fact of that name is new enough; the other arguments choose among
   these.
5. Ids that are no transition are passed over, as in :mod:`diskreplay.sampling.ranges`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Floats, check_count, check_share, checked_number
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.fresh import check_by, fresh
from diskreplay.sampling.ranges import Ranges, accepted
from diskreplay.sampling.window import Standings, Window, Windows
from diskreplay.schema.ids import Ids, checked_ids

Draw = Callable[[int], Ids]
"""A function that draws so many ids."""

LEAST_HALF_LIFE = 1e-280
MOST_HALF_LIFE = 1e280
"""The largest half-life: decays of ages up to 2^48 rows of 2^20 environments keep all digits of float64."""


@dataclasses.dataclass(frozen=True, repr=False)
class Recent:
    """A sampler of recent transitions, with replacement: by the age of rows, by a fact of episodes, or by both.

    Rows are counted as capacity is, in rows x environments, those among them that are no transition included, and in
    each stream by itself. The importance weights are all one: what is drawn is biased towards the present on purpose.

    Args:
        newest: only so many of the newest of each stream, rounded up to whole rows; each with the same probability.
        fraction: only this share of what each stream's window holds, in (0, 1], rounded up to whole rows; likewise.
        half_life: all of the window; the probability halves with so many that are newer; 1e-280 to 1e280.
        by: the name of a fact of :meth:`ReplayBuffer.begin_episode`, a number such as the version of the policy: only
            transitions of episodes in which it is at most ``within`` below the largest one in all windows, each with
            the same probability, or with that of one of the arguments above, which then choose among these.
        within: how far below the largest one, at least 0; given together with ``by``.

    Raises InputError where none or several of the first three are given without ``by``, or one is out of range. A draw
    raises it where episodes are there, and the fact is a number in none of them.

    >>> import diskreplay as dr
    >>> dr.Recent(by="version", within=2)
    Recent(by='version', within=2)
    """

    newest: int | None = None
    fraction: float | None = None
    half_life: float | None = None
    by: str | None = None
    within: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in self._arguments() if name not in ("by", "within")]
        if len(given) > 1 or (not given and self.by is None):
            raise InputError(
                f"Recent takes one of newest, fraction and half_life, got {' and '.join(given) or 'none'}; with by, "
                "one or none of them"
            )
        if (self.by is None) != (self.within is None):
            raise InputError("Recent takes by and within together, as in Recent(by='version', within=2)")
        if self.by is not None:
            object.__setattr__(self, "within", check_by("by", self.by, self.within))
        if self.newest is not None:
            object.__setattr__(self, "newest", check_count("newest", self.newest))
        if self.fraction is not None:
            object.__setattr__(self, "fraction", check_share("fraction", self.fraction))
            if not self.fraction:
                raise InputError("fraction must be above 0")
        if self.half_life is not None:
            half_life = checked_number("half_life", self.half_life, above=True)
            if not LEAST_HALF_LIFE <= half_life <= MOST_HALF_LIFE:
                raise InputError(
                    f"half_life must be from {LEAST_HALF_LIFE:.0e} to {MOST_HALF_LIFE:.0e}, got {half_life}: the decay "
                    "of others is no number that a float can hold"
                )
            object.__setattr__(self, "half_life", half_life)

    def __repr__(self) -> str:
        return f"Recent({', '.join(f'{name}={value!r}' for name, value in self._arguments().items())})"

    def _arguments(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def sample(
        self, rng: np.random.Generator, windows: Windows, standing: Standings, size: int
    ) -> tuple[Ids, NDArray[np.float32]]:
        """Draw ``size`` ids, int64, and their importance weights, float32, which are all one.

        Raises NotEnoughDataError when none of the rows that may be drawn is a transition.
        """
        held = self._narrowed(windows)
        if not held:
            raise NotEnoughDataError("the window is empty; add some steps")
        ranges = self._fresh(windows, held)
        if ranges is None:
            draw, count = self._draws(rng, held), sum(window.stop - window.first for window in held)
        else:
            draw, count = self._draws_fresh(rng, ranges, held), ranges.count

        def listed(count: int) -> Ids:
            ids = self._items(windows, held, standing)
            if not len(ids):
                raise NotEnoughDataError(
                    f"none of the rows that {self} draws from is a transition yet; add more steps, or draw from more"
                )
            logs = self._log_masses(ids, held)
            reached = np.cumsum(np.exp(logs - logs.max()))
            at = np.searchsorted(reached, rng.random(count) * reached[-1], side="right")
            found: Ids = ids[np.minimum(at, len(ids) - 1)]
            return found

        ids = accepted(draw, listed, standing, size, count) if count else listed(size)
        return ids, np.ones(size, np.float32)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> Floats:
        """Return the probability of ids ``(B,)`` in the next draw, float64 ``(B,)``, 0 for what cannot be drawn.

        Looks at all ids of the windows.
        """
        held, asked = self._narrowed(windows), checked_ids(ids)
        listed = self._items(windows, held, standing)
        found = np.zeros(len(asked))
        here = np.isin(asked, listed)
        if here.any():
            logs = self._log_masses(listed, held)
            most = logs.max()
            found[here] = np.exp(self._log_masses(asked[here], held) - most) / np.exp(logs - most).sum()
        return found

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Recent", **self._arguments()}

    def _narrowed(self, windows: Windows) -> list[Window]:
        """Return the windows that hold rows, cut to those that may be drawn."""
        held = [window for window in windows if window.stop > window.first]
        if self.newest is None and self.fraction is None:
            return held
        narrowed = []
        for window in held:
            envs = window.num_envs
            rows = (window.stop - window.first) // envs
            wanted = (
                math.ceil(Fraction(repr(self.fraction)) * rows)
                if self.fraction is not None
                else -(-(self.newest or 0) // envs)
            )
            narrowed.append(window._replace(first=window.stop - min(rows, wanted) * envs))
        return narrowed

    def _fresh(self, windows: Windows, held: list[Window]) -> Ranges | None:
        """Return the ids of the episodes that are new enough by a fact; None where all are, or there is no row."""
        if self.by is None or self.within is None or not held:
            return None
        return fresh(windows, held, self.by, self.within, self)

    def _items(self, windows: Windows, held: list[Window], standing: Standings) -> Ids:
        ranges = self._fresh(windows, held)
        return (Ranges.of(held) if ranges is None else ranges).items(standing)

    def _draws_fresh(self, rng: np.random.Generator, ranges: Ranges, held: list[Window]) -> Draw:
        if self.half_life is None:
            return lambda count: ranges.at(rng.integers(ranges.count, size=count))
        stride, length = ranges.stride, ranges.length
        rate, last = self._rate(stride), ranges.first + stride * (length - 1)
        logs = self._log_masses(last, held) + np.log(np.expm1(-rate * length) / np.expm1(-rate))
        ends = np.cumsum(np.exp(logs - logs.max(initial=-np.inf)))

        def draw(count: int) -> Ids:
            at = np.minimum(np.searchsorted(ends, rng.random(count) * ends[-1], side="right"), len(ends) - 1)
            ages = np.floor(np.log1p(rng.random(count) * np.expm1(-rate[at] * length[at])) / -rate[at])
            ids: Ids = last[at] - np.minimum(ages.astype(np.int64), length[at] - 1) * stride[at]
            return ids

        return draw

    def _draws(self, rng: np.random.Generator, held: list[Window]) -> Draw:
        masses = np.array([self._total(window) for window in held])
        ends = np.cumsum(masses) / masses.sum()

        def draw(count: int) -> Ids:
            if len(held) == 1:
                return self._draw(rng, held[0], count)
            which = np.minimum(np.searchsorted(ends, rng.random(count), side="right"), len(held) - 1)
            ids = np.empty(count, np.int64)
            for number, window in enumerate(held):
                here = np.flatnonzero(which == number)
                ids[here] = self._draw(rng, window, len(here))
            return ids

        return draw

    def _draw(self, rng: np.random.Generator, window: Window, count: int) -> Ids:
        first, stop, _, envs = window
        if self.half_life is None:
            return rng.integers(first, stop, count)
        rows, rate = (stop - first) // envs, self._rate(envs)
        ages = np.floor(np.log1p(rng.random(count) * math.expm1(-rate * rows)) / -rate).astype(np.int64)
        ids: Ids = stop - (np.minimum(ages, rows - 1) + 1) * envs
        return ids + rng.integers(envs, size=count) if envs > 1 else ids

    def _rate(self, envs: Any) -> Any:
        """Return the rate of decay from a row to the next older one: its mass falls by ``exp(-rate)``."""
        assert self.half_life is not None
        return math.log(2) * envs / self.half_life

    def _total(self, window: Window) -> float:
        first, stop, _, envs = window
        if self.half_life is None:
            return float(stop - first)
        rate = self._rate(envs)
        return envs * math.expm1(-rate * ((stop - first) // envs)) / math.expm1(-rate)

    def _log_masses(self, ids: Ids, held: list[Window]) -> Floats:
        """Return the logarithms of the masses of ids of the windows, the newest row's being 0."""
        found = np.zeros(len(ids))
        if self.half_life is not None:
            for first, stop, _, envs in held:
                here = (ids >= first) & (ids < stop)
                found[here] = -self._rate(envs) * ((stop - 1 - ids[here]) // envs)
        return found
