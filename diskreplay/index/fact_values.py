"""The values of one fact for many episodes, kept so that numpy compares all of them with a number at once.

Numbers and flags stand in an array of float64. Python compares the others one by one: texts, lists, objects, null, and
integers above 2**53 or below -2**53, since float64 holds not all of those exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Mask

MISSING: Any = object()
"""The value of a fact that an episode does not have."""
NONE, NUMBER, FLAG, OTHER = range(4)
"""The kinds of values.

NONE: the fact is missing. NUMBER, FLAG: the value is in the array. OTHER, such as null: Python compares the value.
"""
MOST_EXACT = 1 << 53
"""float64 holds every integer from 0 to this one exactly."""
_KINDS = {type(MISSING): NONE, int: NUMBER, float: NUMBER, bool: FLAG}


def kind_of(value: Any) -> int:
    kind = _KINDS.get(type(value), OTHER)
    return OTHER if kind == NUMBER and type(value) is int and abs(value) > MOST_EXACT else kind


class FactValues(NamedTuple):
    """The values ``(n,)`` of one fact, :data:`MISSING` where an episode does not have it.

    Attributes:
        values: object: the values themselves.
        kinds: uint8, what each is: NONE, NUMBER, FLAG or OTHER.
        numbers: float64, those of NUMBER and FLAG; NaN for others.
    """

    values: NDArray[Any]
    kinds: NDArray[np.uint8]
    numbers: NDArray[np.float64]

    @classmethod
    def of(cls, values: Sequence[Any]) -> FactValues:
        count = len(values)
        kinds = np.fromiter(map(kind_of, values), np.uint8, count)
        plain = (kinds == NUMBER) | (kinds == FLAG)
        found = np.fromiter(values, object, count)
        numbers = np.full(count, np.nan)
        numbers[plain] = found[plain].astype(np.float64)
        return cls(found, kinds, numbers)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays, in the order of the attributes."""
        return self.values, self.kinds, self.numbers

    def told(self, plain: Mask, others: Callable[[list[Any]], list[bool]]) -> Mask:
        """Return ``plain``, with the entries of kind OTHER replaced by what ``others`` returns for their values."""
        at = np.flatnonzero(self.kinds == OTHER)
        if len(at):
            plain[at] = others(self.values[at].tolist())
        return plain

    def compared(
        self, test: Callable[[Any, Any], Any], literal: Any, unlike: bool, others: Callable[[list[Any]], list[bool]]
    ) -> Mask:
        """Tell which values match, which means that ``test(value, literal)`` holds.

        If ``unlike`` is True, numbers and flags of another kind than the literal match, too. ``others`` decides about
        the values that Python compares. A missing fact never matches.
        """
        kind = kind_of(literal)
        if kind == OTHER and type(literal) is int:  # numpy would round this literal to a float64
            there: Mask = self.kinds != NONE
            there[there] = others(self.values[there].tolist())
            return there
        plain = (self.kinds == NUMBER) | (self.kinds == FLAG)
        alike = self.kinds == kind
        found = plain & ~alike if unlike else np.zeros(len(plain), bool)
        if kind != OTHER:
            found |= alike & test(self.numbers, literal)
        return self.told(found, others)


def part_of(facts: Any, path: Sequence[str]) -> Any:
    """Return a fact by its name, or a value inside a nested fact by a path of names."""
    for name in path:
        if type(facts) is not dict:
            return MISSING
        facts = facts.get(name, MISSING)
    return facts


def values_of(known: Sequence[dict[str, Any]], name: str) -> FactValues:
    """Return, for each episode, a fact's value (``name``), or a value inside it (``name.part``)."""
    if "." in name:
        path = name.split(".")
        return FactValues.of([part_of(facts, path) for facts in known])
    none = [] if name == "tags" else MISSING  # an episode without tags has an empty list
    return FactValues.of([facts.get(name, none) for facts in known])
