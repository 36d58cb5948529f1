"""The joining of batches of several stores into one, without copying what is large.

Each batch asks for its large arrays one after another. Those of the first are made long enough for all; the others are
given the places behind them. What was read that way is joined by looking at all of it at once. Small arrays, and large
ones that turn out not to lie behind one another, are copied together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from diskreplay.checks import Array
from diskreplay.reading import blocks
from diskreplay.reading.reads import Empty
from diskreplay.schema.ragged import Lists, Padded, joined
from diskreplay.views.batch import Batch


class Joint:
    """The arrays of a batch that is made of parts with ``counts`` items, in their order.

    ``left`` has the names of the arrays that are padded on the left, such as ``next_obs/a``.
    """

    def __init__(self, counts: Sequence[int], left: Collection[str]) -> None:
        self._left = left
        self._starts = list(itertools.accumulate(counts, initial=0))
        self._wholes: list[Array] = []
        """The large arrays with the items of all parts, in the order in which they are asked for."""

    def part(self, number: int) -> Empty:
        """Return a function that makes the large arrays of a part."""
        start, stop, size = self._starts[number], self._starts[number + 1], self._starts[-1]
        numbers = itertools.count()

        def empty(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            whole = (size, *shape[1:])
            if shape[0] != stop - start or math.prod(whole) * np.dtype(dtype).itemsize < blocks.LEAST_BYTES:
                return blocks.empty(shape, dtype)
            at = next(numbers)
            if at == len(self._wholes):
                self._wholes.append(blocks.empty(whole, dtype))
            if self._wholes[at].shape != whole or self._wholes[at].dtype != dtype:
                return blocks.empty(shape, dtype)
            return self._wholes[at][start:stop]

        return empty

    def join(self, batches: Sequence[Batch]) -> Batch:
        """Return the batches of the parts as one; all are of one class, and each field of one shape and dtype."""
        first = batches[0]
        if len(batches) == 1:
            return first
        parts = [vars(batch) for batch in batches]
        return type(first)(**{name: self._joined(name, [part[name] for part in parts]) for name in parts[0]})

    def _joined(self, name: str, values: Sequence[Any]) -> Any:
        first = values[0]
        if type(first) is np.ndarray and not self._wholes:  # nearly all of small batches: this is most of the time
            return np.concatenate(values)
        if first is None:
            return None
        if isinstance(first, Mapping):
            common = [key for key in first if all([key in value for value in values])]
            return {key: self._joined(f"{name}/{key}", [value[key] for value in values]) for key in common}
        if isinstance(first, Padded | Lists):
            return joined(list(values), name in self._left)
        if isinstance(first, tuple):
            members = enumerate(zip(*values, strict=True))
            return tuple(self._joined(f"{name}/{at}", member) for at, member in members)
        whole = self._whole(values) if self._wholes else None
        return np.concatenate(values) if whole is None else whole

    def _whole(self, arrays: Sequence[Array]) -> Array | None:
        """Return one array over all of these if they lie behind one another in a large one, else None."""
        first = arrays[0]
        owner = first.base
        if owner is None or not any(owner is (whole if whole.base is None else whole.base) for whole in self._wholes):
            return None
        step, expected = first.strides[0], _address(first)
        for array in arrays:
            if array.base is not owner or array.strides != first.strides or _address(array) != expected:
                return None
            expected += len(array) * step
        offset = _address(first) - _address(owner)
        return np.ndarray((self._starts[-1], *first.shape[1:]), first.dtype, owner, offset, first.strides)


def _address(array: Array) -> int:
    return int(array.ctypes.data)
