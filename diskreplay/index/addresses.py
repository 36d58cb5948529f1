"""The addresses, as numbers, that compiled code looks up: of rings in RAM, and what they hold.

Whoever looks something up at an address keeps the log, its tables and its lock meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.ring import Table
from diskreplay.schema import START

(
    NUMBER, ENVS, LENGTH, FLOOR, END, STARTS, NEXT_PATCHES, PATCH_BEGIN, PATCH_END, PATCH_LENGTH,
    LOG_FACTS,
) = range(11)  # fmt: skip
"""The facts of a stream, in order.

These are its number and environments; the rows of the ring, and which it holds; the addresses of the start codes and of
the numbers of patches; the patches it holds, and how many its ring has room for; last the number of these facts.
"""

(
    ENTRIES, ENTRIES_LENGTH, FIRST_CHUNK, STOP_CHUNK, GROUPS, IN_RAM, FULL, SLOTS, SLOTS_LENGTH, CHUNKS, SLOT_GROUPS,
    HELD, COLUMN_FACTS,
) = range(13)  # fmt: skip
"""The facts of a column on disk, in order.

These are the address and length of the ring of places, and the chunks it holds; the groups of a chunk; the first chunk
that is in RAM, and the first that may change; the address and length of the table of its cached chunks, addresses of
the chunk and group in each slot, and the number of slots; last the number of these facts.
"""


def address(array: NDArray[Any]) -> int:
    """Return the address at which a contiguous array begins."""
    found: int = array.ctypes.data
    return found


class LogAddresses:
    """The facts of several logs, ``(s, 10)``."""

    def __init__(self, logs: list[StreamLog]) -> None:
        self.logs = logs
        self.facts = np.zeros((len(logs), LOG_FACTS), np.int64)
        self._tables: list[tuple[Table, int, int] | None] = [None] * len(logs)
        """The table of each log as it was looked at last, and the addresses of two of its arrays."""
        self._known: list[tuple[int, ...]] = [()] * len(logs)

    def catch_up(self, at: int) -> None:
        """Bring the facts of one log up to date; the caller holds the lock."""
        log, held = self.logs[at], self._tables[at]
        table = log.table
        if held is None or held[0] is not table:
            held = self._tables[at] = table, address(table.arrays[START]), address(table.arrays[NEXT_PATCH])
        now = (
            log.stream, log.num_envs, table.length, log.floor, log.end, held[1], held[2], log.patch_begin,
            log.patch_end, log.patches.length,
        )  # fmt: skip
        if now != self._known[at]:
            self.facts[at] = self._known[at] = now
