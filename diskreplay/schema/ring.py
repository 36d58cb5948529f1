"""Arrays addressed by ids that only ever grow: the value of ``id`` stands at ``id % length``.

They grow when the ids that are held no longer fit, so they take memory for what they hold, and nothing is lost. What
grows is a copy, which takes the place of the old arrays by one assignment: whatever interrupts it leaves either.

A :class:`Table` is several arrays of one length, which belong together; a :class:`Ring` is a single array that knows
which ids it holds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.checks import Array

FIRST_LENGTH = 1024
FIRST_VALUES = 1 << 22
"""The most numbers in a new array, as long as that is room for a few ids."""
NO_LIMIT = 1 << 62
WHOLE_FROM = 1 << 14
WHOLE_BYTES = 128 << 20
"""The ids from which on arrays do not grow by and by, and the most bytes that they then have in the end."""

Ids = NDArray[np.int64]


def first_length(shapes: list[tuple[int, ...]], most: int) -> int:
    """Return how many ids new arrays have room for: those of the widest value decide for all."""
    widest = max([1, *(math.prod(shape) for shape in shapes)])
    return min(FIRST_LENGTH, max(most, 1), max(4, FIRST_VALUES // widest))


def grown(array: Array, length: int, begin: int, end: int) -> Array:
    """Return a longer copy that holds the values of ids ``[begin, end)``; the others are undefined."""
    longer = np.zeros((length, *array.shape[1:]), array.dtype)
    while begin < end:  # runs that neither array goes round in
        old, new = begin % len(array), begin % length
        count = min(end - begin, len(array) - old, length - new)
        longer[new : new + count] = array[old : old + count]
        begin += count
    return longer


def longer_length(length: int, needed: int, most: int, id_bytes: int) -> int:
    """Return the next length of arrays for ``needed`` ids: twice the old one, as far as that is of use.

    Arrays of :data:`WHOLE_FROM` ids or more become as long as they will ever be, unless they are large then. The system
    gives memory only for what is written, and nothing is copied again.
    """
    whole = length >= WHOLE_FROM and most * id_bytes <= WHOLE_BYTES
    return max(needed, most if whole else min(2 * length, most))


def span_of(array: Array, start: int, stop: int) -> Array:
    """Return a copy of the values of ids ``[start, stop)``, which an array holds."""
    first = start % len(array)
    end = max(first, first + stop - start)
    return np.concatenate([array[first:end], array[: max(0, end - len(array))]])


def put(array: Array, start: int, values: Any) -> None:
    """Set the values of ids from ``start`` on in an array that has room for them, to values ``(n, *shape)``."""
    first = start % len(array)
    head = len(array) - first
    array[first : first + len(values)] = values[:head]
    if len(values) > head:
        array[: len(values) - head] = values[head:]


class Table(NamedTuple):
    """The arrays ``(length, *shape)`` by name, all of one length.

    It does not know which ids it holds: that stands where they are counted. It is never changed but replaced, by
    :meth:`with_room`, so arrays of different lengths cannot come to stand together.
    """

    length: int
    arrays: dict[str, Array]
    most: int = NO_LIMIT
    """The number of ids that will be held at a time, as far as is known; more is no error."""

    @classmethod
    def new(cls, fields: Mapping[str, tuple[tuple[int, ...], DTypeLike]], most: int = NO_LIMIT) -> Table:
        """Return an empty table of arrays with these shapes and dtypes."""
        length = first_length([shape for shape, _ in fields.values()], most)
        return cls(length, {name: np.zeros((length, *shape), dtype) for name, (shape, dtype) in fields.items()}, most)

    def with_room(self, begin: int, end: int, stop: int) -> Table:
        """Return this table, or a longer one with the values of ids ``[begin, end)`` and room for ``[begin, stop)``."""
        if stop - begin <= self.length:
            return self
        id_bytes = max(array.nbytes // self.length for array in self.arrays.values())
        length = longer_length(self.length, stop - begin, self.most, id_bytes)
        return Table(length, {name: grown(array, length, begin, end) for name, array in self.arrays.items()}, self.most)

    def without(self, names: Collection[str]) -> Table:
        """Return this table without some of its arrays."""
        return self._replace(arrays={name: array for name, array in self.arrays.items() if name not in names})

    def span(self, name: str, start: int, stop: int) -> Array:
        """Return a copy of the values of ``[start, stop)``."""
        return span_of(self.arrays[name], start, stop)


class Ring:
    """The values of ids ``[begin, end)`` in one array: those of ``ids`` are ``ring.array[ids % ring.length]``."""

    __slots__ = ("array", "begin", "end", "length", "most")

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, most: int = NO_LIMIT) -> None:
        """Make an empty ring; ``most`` ids will be held at a time, as far as is known, and more is no error."""
        self.most = most
        self.length = first_length([shape], most)
        """The number of ids that there is room for."""
        self.array: Array = np.zeros((self.length, *shape), dtype)
        self.begin = 0
        self.end = 0

    def extend(self, values: Array) -> None:
        """Append ``values`` (n, *shape) at ``end``."""
        self.write(self.end, values)

    def write(self, start: int, values: Array) -> None:
        """Set the values (n, *shape) of ids from ``start``, at most ``end``, on: nothing is held after them."""
        stop = start + len(values)
        if stop - self.begin > self.length:
            length = longer_length(self.length, stop - self.begin, self.most, self.array.nbytes // self.length)
            self.array, self.length = grown(self.array, length, self.begin, self.end), length
        put(self.array, start, values)
        self.end = stop

    def trim(self, begin: int) -> None:
        """Forget the ids below ``begin``."""
        self.end = max(self.end, begin)
        self.begin = max(self.begin, begin)

    def restart(self, at: int) -> None:
        """Forget everything; the next id is ``at``."""
        self.begin = self.end = at

    def take(self, ids: Ids) -> Array:
        """Return a copy of the values of ``ids``."""
        return self.array[ids % self.length]

    def span(self, start: int, stop: int) -> Array:
        """Return a copy of the values of ``[start, stop)``."""
        return span_of(self.array, start, stop)
