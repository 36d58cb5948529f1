"""Budgets of RAM: for the columns that open stores hold whole, and for the chunks that their caches keep.

The buffers of a process share one budget, unless ``cache_bytes`` gives a buffer one of its own. What a store holds is
fixed when it is opened, and is taken from the budget as a whole then, though the memory is taken only as rows come.
What is left belongs to the caches: to whichever decodes a chunk first.
"""

from __future__ import annotations

import weakref
from typing import Protocol

HELD_SHARE = 1.0
"""The part of a budget that columns may be held in."""


class Taker(Protocol):
    """What takes bytes of a budget."""

    held_bytes: int
    used_bytes: int


class Budget:
    """A number of bytes, and who takes of them.

    Args:
        size: the bytes.

    Attributes:
        size: the bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._takers: list[weakref.ref[Taker]] = []
        """Threads look at a copy, and hold no lock."""

    def join(self, taker: Taker) -> None:
        """Have the bytes of a taker counted, as long as it exists."""
        self._takers.append(weakref.ref(taker, self._takers.remove))

    def taken(self, besides: Taker | None = None) -> int:
        """Return the bytes that all take, or all but one."""
        takers = [taker for one in tuple(self._takers) if (taker := one()) is not None and taker is not besides]
        return sum(taker.held_bytes + taker.used_bytes for taker in takers)

    def to_hold(self, taker: Taker) -> int:
        """Return the bytes of columns that a taker may hold."""
        return max(0, int(HELD_SHARE * (self.size - self.taken(taker))))
