"""The fixed shares of what is drawn: how many of a batch each part gives.

A part with the share ``w`` of ``n`` that were ever drawn has given ``floor(n w)`` or ``ceil(n w)``, after every batch
and for batches of any sizes: the quota of apportionment. Where a batch does not divide, the batches take turns. Shares
are whole numbers over a common denominator, so that no rounding adds up.

To cut a batch: each part gives at least what brings it to its floor; what is left goes, one each, to those parts that
must give their next one soonest (earliest deadline first), which is what keeps every later quota within reach.
"""

from __future__ import annotations

import dataclasses
import fractions
import math
from collections.abc import Sequence
from typing import Any

from diskreplay.checks import checked_number
from diskreplay.errors import InputError

MIXTURE = "mixture"
"""The part of a checkpoint's state that is a mixture's, with what follows."""
GIVEN, FRACTIONS, READ, KEEPER = "given", "fractions", "read", "keeper"


@dataclasses.dataclass(frozen=True)
class Shares:
    """The share of part ``k`` is ``weights[k] / sum(weights)``; made by :func:`of`."""

    weights: tuple[int, ...]

    def counts(self, given: Sequence[int], size: int) -> list[int]:
        """Return how many of the next ``size`` each part gives, after it has given ``given``."""
        whole, after = sum(self.weights), sum(given) + size
        upto, left = [], after
        for have, weight in zip(given, self.weights, strict=True):
            owed = after * weight // whole
            upto.append(owed if owed > have else have)
            left -= upto[-1]
        if left:
            open_parts = [k for k, weight in enumerate(self.weights) if upto[k] * whole < after * weight]
            for k in sorted(open_parts, key=lambda k: -(-(upto[k] + 1) * whole // self.weights[k]))[:left]:
                upto[k] += 1
        return [stop - start for start, stop in zip(given, upto, strict=True)]

    def checked(self, given: Any) -> list[int]:
        """Return stored counts of what each part has given; raise ValueError if :meth:`counts` cannot give them."""
        whole, parts = sum(self.weights), len(self.weights)
        numbers = isinstance(given, list) and all(type(each) is int and each >= 0 for each in given)
        if not numbers or len(given) != parts:
            raise ValueError(f"what was drawn must be {parts} whole numbers of at least 0, got {given!r}")
        drawn = sum(given)
        if any(abs(have * whole - drawn * weight) >= whole for have, weight in zip(given, self.weights, strict=True)):
            raise ValueError(f"of what was drawn, {given}, the parts have not given their shares, {self.weights}")
        return list(given)


def of(what: str, weights: Any, parts: int) -> Shares:
    """Return shares in proportion to weights, a number above 0 each; raise InputError, naming ``what``, otherwise.

    A float stands for the decimal number that Python prints for it: 0.1 is a tenth.
    """
    if isinstance(weights, str | bytes) or not hasattr(weights, "__len__") or len(weights) != parts:
        raise InputError(f"{what} must be {parts} numbers, one for each part, got {weights!r}")
    exact = [fractions.Fraction(repr(checked_number(what, weight, above=True))) for weight in weights]
    scale = math.lcm(*(each.denominator for each in exact))
    whole = [int(each * scale) for each in exact]
    common = math.gcd(*whole)
    return Shares(tuple(each // common for each in whole))
