"""Iterators over batches that go on after an interrupt, where a generator would be over.

What an iterator has come to is one value, replaced by one assignment when a batch is ready. Interrupted before that,
the next call reads the same batch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Item = TypeVar("Item")


class Passes(Iterator[Item], Generic[Item]):
    """The items of several passes, one after another; ``begin`` makes the iterator of each when it is its turn."""

    def __init__(self, begin: Callable[[], Iterator[Item]], epochs: int) -> None:
        self._begin = begin
        self._at: tuple[int, Iterator[Item] | None] = epochs, None
        """The number of passes that are left, with the present one, and the present one."""

    def __next__(self) -> Item:
        while True:
            left, present = self._at
            if not left:
                raise StopIteration
            if present is None:
                present = self._begin()
                self._at = left, present
            try:
                return next(present)
            except StopIteration:
                self._at = left - 1, None


class Slices(Iterator[Item], Generic[Item]):
    """The results of ``read`` for slices of ``batch_size`` ids of ``order`` ``(n,)``, one after another."""

    def __init__(
        self, order: NDArray[np.int64], batch_size: int, drop_last: bool, read: Callable[[NDArray[Any]], Item]
    ) -> None:
        self._order = order
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._read = read
        self._start = 0

    def __next__(self) -> Item:
        chosen = self._order[self._start : self._start + self._batch_size]
        if not len(chosen) or (self._drop_last and len(chosen) < self._batch_size):
            raise StopIteration
        batch = self._read(chosen)
        self._start += len(chosen)
        return batch
