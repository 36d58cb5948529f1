"""The values of one fact for many episodes, so that a comparison with a number is one of whole arrays.

Numbers and flags stand in an array of float64; what an array cannot hold is compared in Python, value by value: texts,
lists, objects, null, and integers that float64 does not hold exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING: Any = object()
"""The value of a fact that an episode does not have."""
NONE, NUMBER, FLAG, OTHER = range(4)
"""The kinds of values: none, a number of the array, true or false, and what Python compares."""
MOST_EXACT = 1 << 53
"""The largest integer up to which float64 holds all of them."""
_KINDS = {type(MISSING): NONE, int: NUMBER, float: NUMBER, bool: FLAG}

Mask = NDArray[np.bool_]


def kind_of(value: Any) -> int:
    """Return the kind of a fact's value."""
    kind = _KINDS.get(type(value), OTHER)
    return OTHER if kind == NUMBER and type(value) is int and abs(value) > MOST_EXACT else kind


@dataclasses.dataclass(frozen=True)
class FactValues:
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
        """Return given values."""
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
        """Return ``plain``, with the answers of a function of values put in where Python compares."""
        at = np.flatnonzero(self.kinds == OTHER)
        if len(at):
            plain[at] = others(self.values[at].tolist())
        return plain

    def compared(
        self, test: Callable[[Any, Any], Any], literal: Any, unlike: bool, others: Callable[[list[Any]], list[bool]]
    ) -> Mask:
        """Tell which values are to a literal as ``test`` says, with ``unlike`` also all those of another kind."""
        kind = kind_of(literal)
        if kind == OTHER and type(literal) is int:  # no number of the array can be compared with it exactly
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
    """Return the values of a fact by its name, or of a part of it by its path with points, of the facts of episodes."""
    if "." in name:
        path = name.split(".")
        return FactValues.of([part_of(facts, path) for facts in known])
    if name == "tags":  # every episode has them, if none
        none: list[str] = []
        return FactValues.of([facts.get(name, none) for facts in known])
    return FactValues.of([facts.get(name, MISSING) for facts in known])
