"""Tables of numbers that tell compiled code where arrays in RAM are, and which rows they hold.

The code that reads memory at such an address holds ``engine.lock``, and keeps the arrays alive meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.schema.columns import START
from diskreplay.schema.ring import Table

(
    NUMBER, ENVS, LENGTH, FLOOR, END, STARTS, NEXT_PATCHES, PATCH_BEGIN, PATCH_END, PATCH_LENGTH,
    LOG_FACTS,
) = range(11)  # fmt: skip
"""The positions of a stream's numbers in its row of the table.

- NUMBER: the stream's number. ENVS: its number of environments.
- LENGTH: the number of rows for which the log has room. FLOOR, END: the rows ``[FLOOR, END)`` that it holds.
- STARTS: the address of the array of start codes. NEXT_PATCHES: the address of the array with the number of the patch
  that holds each row's next observation.
- PATCH_LENGTH: the number of patches for which the log has room. PATCH_BEGIN, PATCH_END: the patches
  ``[PATCH_BEGIN, PATCH_END)`` that it holds.
- LOG_FACTS: the number of all these.
"""

(
    CHUNK_ROWS, CHUNK_ENVS, SHARD_CHUNKS, ENTRIES, ENTRIES_LENGTH, FIRST_CHUNK, STOP_CHUNK, GROUPS, IN_RAM, FULL, SLOTS,
    SLOTS_LENGTH, CHUNKS, SLOT_GROUPS, HELD, COLUMN_FACTS,
) = range(16)  # fmt: skip
"""The positions of a column's numbers in its row of the table, for a column on disk.

The environments may be divided into sets, each with chunks of its own. Then one chunk number stands for one chunk of
each set.

- CHUNK_ROWS, CHUNK_ENVS, SHARD_CHUNKS: the rows and the environments of a chunk, and the chunks of a shard.
- GROUPS: the number of sets of environments.
- ENTRIES, ENTRIES_LENGTH: the address and length of the array that says where each chunk lies in its shard.
- FIRST_CHUNK, STOP_CHUNK: the chunks ``[FIRST_CHUNK, STOP_CHUNK)`` whose positions in shards are in this array.
- IN_RAM: the first chunk that waits in RAM for a commit. FULL: the number of full chunks; the chunk of this
  number is the first that may still change.
- SLOTS, SLOTS_LENGTH: the address and length of the array that says in which slot of the cache a chunk is.
- CHUNKS, SLOT_GROUPS: the addresses of two arrays that say for each slot which chunk, and of which set, it holds.
- HELD: the number of slots.
- COLUMN_FACTS: the number of all these.
"""


def address(array: NDArray[Any]) -> int:
    """Return the address at which a contiguous array begins."""
    found: int = array.ctypes.data
    return found


class LogAddresses:
    """The table ``facts`` with the numbers of several streams, int64 ``(S, LOG_FACTS)``.

    The name ``facts`` here has nothing to do with the facts of episodes.
    """

    def __init__(self, logs: list[StreamLog]) -> None:
        self.logs = logs
        self.facts = np.zeros((len(logs), LOG_FACTS), np.int64)
        self._tables: list[tuple[Table, int, int] | None] = [None] * len(logs)
        """Each log's table when it was last looked at, with the addresses of two of the table's arrays."""
        self._known: list[tuple[int, ...]] = [()] * len(logs)

    def catch_up(self, at: int) -> None:
        """Bring the numbers of log ``at`` up to date."""
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
