"""Decoded chunks of large columns, kept in RAM under a byte budget.

Sampling touches chunks at random, so a chunk that is kept is worth the same as any other: the cache admits chunks
until its budget is full and then stays as it is, which saves the churn of replacement; room appears when rows leave
the window. Where the budget is below ``MIN_SHARE`` of the window, the memory serves better as the system's page
cache, and nothing is admitted. Arrays in the cache are never written to, so a reader may hold one without a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from diskreplay.storage.column import ColumnReader

MIN_SHARE = 0.25

Key = tuple[int, int]
"""Chunk and environment."""


class ChunkCache:
    """A cache over all large columns of a store.

    Args:
        budget_bytes: decoded bytes that may be held.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.window_bytes = 0
        self._chunks: dict[ColumnReader, dict[Key, NDArray[Any]]] = {}
        self._lock = threading.Lock()

    def of(self, column: ColumnReader) -> dict[Key, NDArray[Any]]:
        """The chunks held of one column; look, don't touch."""
        return self._chunks.setdefault(column, {})

    def resize_window(self, window_bytes: int) -> None:
        """Tells the decoded size of all that can be sampled; gives the memory back when the share is too small."""
        self.window_bytes = window_bytes
        if self.used_bytes and self.budget_bytes < MIN_SHARE * window_bytes:
            with self._lock:
                for held in self._chunks.values():
                    held.clear()
                self.used_bytes = 0

    def admit(self, column: ColumnReader) -> bool:
        """Whether a newly decoded chunk of the column should be kept."""
        size = column.column.item_bytes * column.column.chunk_rows
        return self.used_bytes + size <= self.budget_bytes and self.budget_bytes >= MIN_SHARE * self.window_bytes

    def put(self, column: ColumnReader, key: Key, values: NDArray[Any]) -> None:
        with self._lock:
            held = self.of(column)
            if key not in held and self.admit(column):
                held[key] = values
                self.used_bytes += values.nbytes

    def keep(self, column: ColumnReader, wanted: Callable[[Key], bool]) -> None:
        """Forgets the column's chunks that are not ``wanted``."""
        with self._lock:
            held = self.of(column)
            for key in [key for key in held if not wanted(key)]:
                self.used_bytes -= held.pop(key).nbytes

    def drop(self, column: ColumnReader, below: int = 1 << 62) -> None:
        """Forgets the column's chunks with a number below ``below``; all by default."""
        self.keep(column, lambda key: key[0] >= below)
