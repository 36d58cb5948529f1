"""The map between ids and slots. A slot is the position of an id's entry in one array that all streams share.

Each stream has consecutive slots, which are divided into lanes of ``rows`` slots each. The id with number ``n`` in its
stream has a slot in lane ``n % lanes``, at position ``n // lanes % rows`` of that lane. So a window that moves on
reuses the slots of the ids that left it. If each environment has its own lane, an environment's slots lie side by side.
If there is only one lane, it holds the ids in their order, as a ring.

A table of slots, int64 ``(S, 6)``, has one row for each stream, in the order of the streams' slots. Its columns are the
constants below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import kernel
from diskreplay.index.log import LATER, NOW
from diskreplay.schema.ids import STREAM_SHIFT

Ints = NDArray[np.int64]

COLUMNS = STREAM, BASE, LANES, ROWS, FIRST, STOP = range(6)
"""The columns of a table of slots.

- STREAM: the stream's number. BASE: its first slot.
- LANES: the number of its lanes. ROWS: the number of slots in each lane.
- FIRST, STOP: its window, the ids with numbers ``[FIRST, STOP)`` in the stream.
"""

EVICTED, UNKNOWN = -1, -2
LOCAL = (1 << STREAM_SHIFT) - 1


@kernel
def between(base: int, lanes: int, rows: int, start: int, stop: int) -> Ints:
    """Return the slots of the ids with numbers ``[start, stop)`` in one stream."""
    slots = np.empty(stop - start, np.int64)
    for number in range(start, stop):
        at, lane = divmod(number, lanes)
        slots[number - start] = base + lane * rows + at % rows
    return slots


@kernel
def sorted_out(
    base: int, lanes: int, rows: int, ids: Ints, standings: NDArray[np.int8]
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Sort ids of one stream by their standings.

    Return three arrays: the ids whose standing is NOW; their slots; and, for the ids whose standing is LATER, their
    numbers in the stream.
    """
    added, slots, later = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = waiting = 0
    for k in range(len(ids)):
        number = ids[k] & LOCAL
        if standings[k] == NOW:
            at, lane = divmod(number, lanes)
            added[count], slots[count] = ids[k], base + lane * rows + at % rows
            count += 1
        elif standings[k] == LATER:
            later[waiting] = number
            waiting += 1
    return added[:count], slots[:count], later[:waiting].copy()  # copied, so that it does not keep the whole array


@kernel
def to_slots(table: Ints, ids: Ints) -> Ints:
    """Return the slot of each id: EVICTED if it is below its stream's window, UNKNOWN if it does not exist."""
    slots = np.empty(len(ids), np.int64)
    row = 0
    for k in range(len(ids)):
        stream, local = ids[k] >> STREAM_SHIFT, ids[k] & LOCAL
        tried = 0
        while tried < len(table) and table[row, STREAM] != stream:
            row = row + 1 if row + 1 < len(table) else 0
            tried += 1
        if tried == len(table) or local >= table[row, STOP]:
            slots[k] = UNKNOWN
        elif local < table[row, FIRST]:
            slots[k] = EVICTED
        else:
            at, lane = divmod(local, table[row, LANES])
            slots[k] = table[row, BASE] + lane * table[row, ROWS] + at % table[row, ROWS]
    return slots


@kernel
def to_ids(table: Ints, slots: Ints) -> Ints:
    """Return the id in each slot, which must hold an id of its stream's window; ascending slots are quickest."""
    ids = np.empty(len(slots), np.int64)
    row = lane = low = high = first = turned = 0  # these describe the lane of the previous slot
    for k in range(len(slots)):
        slot = slots[k]
        if not low <= slot < high:
            while slot < table[row, BASE]:
                row -= 1
            while slot >= table[row, BASE] + table[row, LANES] * table[row, ROWS]:
                row += 1
            lane = (slot - table[row, BASE]) // table[row, ROWS]
            low = table[row, BASE] + lane * table[row, ROWS]
            high = low + table[row, ROWS]
            first = (table[row, FIRST] - lane + table[row, LANES] - 1) // table[row, LANES]  # the first in the window
            turned = first % table[row, ROWS]
        at = first + slot - low - turned
        if at < first:
            at += high - low
        ids[k] = (table[row, STREAM] << STREAM_SHIFT) + at * table[row, LANES] + lane
    return ids
