"""The map between ids and slots: where an id's entry stands in one array, shared by all streams.

Each stream has a run of slots, cut into lanes of ``rows`` slots. The id of number n in its stream stands in the lane
``n % lanes``, at ``n // lanes % rows``: a window that moves on reuses the slots of the ids that left it. With one lane
for each environment an environment's slots lie side by side; with a single lane all ids do, in their order. A table has
one row a stream, int64 ``(S, 6)``, in the order of their runs; its columns are the constants below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.ids import STREAM_SHIFT
from diskreplay.index.jit import kernel
from diskreplay.index.log import LATER, NOW

Ints = NDArray[np.int64]

COLUMNS = STREAM, BASE, LANES, ROWS, FIRST, STOP = range(6)
"""The columns: the stream's number, first slot, lanes, slots of each, and window as ids without the stream."""

EVICTED, UNKNOWN = -1, -2
LOCAL = (1 << STREAM_SHIFT) - 1


@kernel
def between(base: int, lanes: int, rows: int, start: int, stop: int) -> Ints:
    """Return the slots of the numbers ``[start, stop)`` of one stream."""
    slots = np.empty(stop - start, np.int64)
    for number in range(start, stop):
        at, lane = divmod(number, lanes)
        slots[number - start] = base + lane * rows + at % rows
    return slots


@kernel
def sorted_out(
    base: int, lanes: int, rows: int, ids: Ints, standings: NDArray[np.int8]
) -> tuple[Ints, Ints, Ints]:  # fmt: skip
    """Return the ids of one stream that stand at NOW, their slots, and the numbers in the stream of those at LATER."""
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
    return added[:count], slots[:count], later[:waiting].copy()  # which stays, and must not hold the others' memory


@kernel
def to_slots(table: Ints, ids: Ints) -> Ints:
    """Return the slot of each id, EVICTED below its stream's window, UNKNOWN if there is no such id."""
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
    """Return the id in each slot; each slot must hold an id of a window, and ascending slots are quickest."""
    ids = np.empty(len(slots), np.int64)
    row = lane = low = high = first = turned = 0  # of the lane of the slot before
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
            first = (table[row, FIRST] - lane + table[row, LANES] - 1) // table[row, LANES]  # the lane's in the window
            turned = first % table[row, ROWS]
        at = first + slot - low - turned
        if at < first:
            at += high - low
        ids[k] = (table[row, STREAM] << STREAM_SHIFT) + at * table[row, LANES] + lane
    return ids
