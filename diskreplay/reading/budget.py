"""Budgets of RAM: for the columns that open stores hold whole, and for the chunks that their caches keep.

The buffers of a process share one budget, unless ``cache_bytes`` gives a buffer one of its own. What a store holds is
fixed when it is opened, and is taken from the budget as a whole then, though the memory is taken only as rows come.
What is left belongs to the caches: to whichever decodes a chunk first.
"""

from __future__ import annotations

import weakref
from typing import Protocol

from diskreplay.process import lifecycle

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
        forked_size: the most bytes of chunks in a child of a fork, which has the columns that its parent holds.

    Attributes:
        size: the bytes.
    """

    def __init__(self, size: int, forked_size: int = 1 << 62) -> None:
        self.size = size
        self._forked_size = forked_size
        self._process = lifecycle.process
        self._takers: list[weakref.ref[Taker]] = []
        """Threads look at a copy, and hold no lock."""

    def join(self, taker: Taker) -> None:
        """Have the bytes of a taker counted, as long as it exists."""
        self._takers.append(weakref.ref(taker, self._takers.remove))

    def _all(self) -> list[Taker]:
        return [taker for one in tuple(self._takers) if (taker := one()) is not None]

    def besides(self, taker: Taker) -> int:
        """Return the bytes that others than this taker leave."""
        others = sum(one.held_bytes + one.used_bytes for one in self._all() if one is not taker)
        return max(0, self.size - others)

    def to_hold(self, taker: Taker) -> int:
        """Return the bytes of columns that a taker may hold."""
        return int(HELD_SHARE * self.besides(taker))

    def left(self) -> int:
        """Return the bytes that chunks may still take; less than 0 if more are taken."""
        takers = self._all()
        used = sum(taker.used_bytes for taker in takers)
        if lifecycle.process != self._process:
            return min(self.size, self._forked_size) - used
        return self.size - used - sum(taker.held_bytes for taker in takers)
