"""The map between ids and slots. A slot is the position of an id's entry in one array that all streams share.

Which id has which slot stands in native/ids.h.

A table of slots, int64 ``(S, 8)``, has one row for each stream, in the order of the streams' slots. Its columns are the
constants below.
"""

from __future__ import annotations

from diskreplay.native import core
from diskreplay.schema.ids import STREAM_SHIFT

COLUMNS = STREAM, BASE, LANES, ROWS, FIRST, STOP, CAPACITY, GROUP = range(8)
"""The columns of a table of slots.

- STREAM: the stream's number. BASE: its first slot.
- LANES: the number of its lanes. ROWS: the number of slots in each lane.
- FIRST, STOP: its window, the ids with numbers ``[FIRST, STOP)`` in the stream.
- CAPACITY: the most ids of the window for which its slots were chosen.
- GROUP: the number of the first lane's group; each of the others has the next number.
"""

EVICTED, UNKNOWN = -1, -2
LOCAL = (1 << STREAM_SHIFT) - 1

to_slots, to_ids = core.to_slots, core.to_ids
