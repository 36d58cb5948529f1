"""The tables of numbers for compiled code: where rings in RAM are, and which rows they hold.

Whoever looks something up at an address holds the lock, and keeps the log and its tables alive meanwhile.
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

- NUMBER, ENVS: the stream's number, and how many environments it has.
- LENGTH: the rows for which the ring has room; FLOOR, END: the rows ``[FLOOR, END)`` that it holds.
- STARTS, NEXT_PATCHES: the addresses of the rows' start codes, and of the numbers of their next patches.
- PATCH_BEGIN, PATCH_END: the patches that their ring holds; PATCH_LENGTH: those for which it has room.
- LOG_FACTS: the number of these facts.
"""

(
    ENTRIES, ENTRIES_LENGTH, FIRST_CHUNK, STOP_CHUNK, GROUPS, IN_RAM, FULL, SLOTS, SLOTS_LENGTH, CHUNKS, SLOT_GROUPS,
    HELD, COLUMN_FACTS,
) = range(13)  # fmt: skip
"""The facts of a column on disk, in order. A chunk number stands for one chunk of each group of environments.

- ENTRIES, ENTRIES_LENGTH: the address and length of the ring of chunks' places in shards.
- FIRST_CHUNK, STOP_CHUNK: the chunks ``[FIRST_CHUNK, STOP_CHUNK)`` that this ring holds.
- GROUPS: the number of groups of environments.
- IN_RAM, FULL: the first chunk that waits for a commit in RAM, and the first that may still change.
- SLOTS, SLOTS_LENGTH: the address and length of the table of the slots in which chunks are cached.
- CHUNKS, SLOT_GROUPS, HELD: the addresses of the chunk and of the group in each slot, and the number of slots.
- COLUMN_FACTS: the number of these facts.
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
        """The table of each log at the last look, and the addresses of two of its arrays."""
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
