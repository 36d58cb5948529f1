"""The draws of this package's samplers that the core makes, in one call with the rest of a batch.

It makes integers of a generator's bits as numpy does, and leaves the generator in the same state. That is looked at
when this is imported: numpy may draw in another way some day.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from diskreplay.native import core
from diskreplay.sampling import ranges
from diskreplay.sampling.proportional import Proportional
from diskreplay.sampling.rank_based import RankBased
from diskreplay.sampling.recent import Recent
from diskreplay.sampling.uniform import Uniform
from diskreplay.sampling.window import Sampler

MOST = (1 << 32) - 1
"""The widest range that 32 bits are drawn for."""


def _is_same() -> bool:
    ours, theirs = np.random.PCG64(0), np.random.PCG64(0)
    width = 3 << 30  # of which a quarter is drawn again
    same = np.array_equal(
        core.draw_integers(ours.capsule, 0, width, 256), np.random.Generator(theirs).integers(0, width, 256)
    )
    return same and ours.state == theirs.state


SAME = _is_same()


def draws(sampler: Sampler, rng: np.random.Generator) -> core.Draw | None:
    """Return the draws that ``sampler.sample`` makes of a generator, or None if only Python makes them."""
    kind = type(sampler)  # a class of the user's own over one of these draws in its own way
    if kind is Uniform and SAME:
        return core.Uniform(rng, ranges.MAX_DRAWN_SHARE)
    if isinstance(sampler, Recent) and kind is Recent and SAME:
        return _recent(sampler, rng)
    return core.Prioritized(sampler, rng) if kind in (Proportional, RankBased) else None


def _recent(sampler: Recent, rng: np.random.Generator) -> core.Draw | None:
    share = Fraction(0) if sampler.fraction is None else Fraction(repr(sampler.fraction))
    if sampler.half_life is not None or sampler.by is not None or max(sampler.newest or 0, share.denominator) > MOST:
        return None
    return core.Uniform(rng, ranges.MAX_DRAWN_SHARE, sampler.newest or 0, share.numerator, share.denominator)
