"""Ids to slots and back: where in one array, shared by all streams, an id's entry stands.

Each stream has a run of slots, cut into lanes of ``rows`` slots. The id of number n in its stream stands in the lane
``n % lanes``, at ``n // lanes % rows``: a window that moves on reuses the slots of the ids that left it. With one lane
for each environment an environment's slots lie side by side; with a single lane all ids do, in their order. A table has
one row a stream, int64 ``(S, 6)``, in the order of their runs; its columns are the constants below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import kernel
from diskreplay.index.log import STREAM_SHIFT

Ints = NDArray[np.int64]

STREAM, BASE, LANES, ROWS, FIRST, STOP = range(6)
"""The stream's number, its first slot, lanes and slots of each, and its window as ids without the stream."""

EVICTED, UNKNOWN = -1, -2
LOCAL = (1 << STREAM_SHIFT) - 1


@kernel
def to_slots(table: Ints, ids: Ints) -> Ints:
    """The slot of each id; EVICTED below its stream's window, UNKNOWN where there is no such id."""
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
    """The id in each slot, which must be that of a window; quickest in ascending order."""
    ids = np.empty(len(slots), np.int64)
    row = 0
    for k in range(len(slots)):
        while slots[k] < table[row, BASE]:
            row -= 1
        while slots[k] >= table[row, BASE] + table[row, LANES] * table[row, ROWS]:
            row += 1
        lanes, rows = table[row, LANES], table[row, ROWS]
        lane, at = divmod(slots[k] - table[row, BASE], rows)
        first = (table[row, FIRST] - lane + lanes - 1) // lanes  # the lane's first in the window
        ahead = at - first % rows
        if ahead < 0:
            ahead += rows
        ids[k] = (table[row, STREAM] << STREAM_SHIFT) + (first + ahead) * lanes + lane
    return ids
