"""The places of ids in a sampler's tree: a table of the slots of all streams.

Every stream has a run of slots; the streams' runs stand one after another in the order in which they were first seen,
which is part of a sampler's state: the same draw then finds the same id. A run has slots for what its window has held,
by powers of eight, and at most for the stream's capacity: a tree of eighths sums the same numbers in the same order
whatever empty slots follow. Where a window outgrows its run, all runs are laid out anew. A run holds the ids in their
order or, for a sampler that draws from each environment by itself, those of one environment after those of another.

The core moves the windows in the table (``follow`` of native/priorities.pxi), a stream at once:

1. Ids that left the window give their slots back.
2. Ids that are new, and older ones that were no transition but may have become one, are looked at once.
3. Those that are transitions get their slots. Of the others only those that may become one later are looked at again,
   when the window has moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index import slots as slot_index
from diskreplay.sampling.window import Window
from diskreplay.schema.ids import Ids, pack, stream_of

LEAST_ROWS = 8**6
"""The slots of a lane at the least, as far as the capacity goes."""
RUN_FACTS = "stream", "base", "capacity", "lanes", "group", "first", "stop"


class Shape(NamedTuple):
    """What a window wants of its run."""

    lanes: int
    """The number of lanes into which the slots are cut: 1, or the stream's environments."""
    rows: int
    """The number of slots of a lane."""
    capacity: int
    """The window's; -1 if it was not seen yet."""


class Run(NamedTuple):
    """One stream's slots, and the window that they hold: a row of the table of :mod:`diskreplay.index.slots`."""

    stream: int
    base: int
    lanes: int
    rows: int
    first: int
    stop: int
    capacity: int
    group: int

    @property
    def shape(self) -> Shape:
        return Shape(self.lanes, self.rows, self.capacity)


class Places:
    """The runs of all streams ever seen.

    Args:
        by_env: True if each environment's slots lie side by side and are a group of their own; else all slots are one.
        runs: in the order of their slots.

    Attributes:
        table: the table of the runs, in which the core moves the windows.
        slots, groups: the numbers of slots and of groups of all runs.
    """

    def __init__(self, by_env: bool = False, runs: Sequence[Run] = ()) -> None:
        self._by_env = by_env
        self.table: Ids = np.array(runs, np.int64).reshape(-1, len(slot_index.COLUMNS))
        self._shapes = {run.stream: run.shape for run in runs}
        self._row = {run.stream: row for row, run in enumerate(runs)}
        self.slots = runs[-1].base + runs[-1].lanes * runs[-1].rows if runs else 0
        self.groups = max((run.group + run.lanes for run in runs), default=0 if by_env else 1)

    @property
    def runs(self) -> list[Run]:
        """The runs with their windows of now."""
        return [Run(*row) for row in self.table.tolist()]

    def laid_out(self, windows: Sequence[Window]) -> Places:
        """Return places with room for these windows: these, if they have it."""
        wanted = {int(stream_of(window.first)): self._shape(window) for window in windows}
        if all(self._shapes.get(stream) == shape for stream, shape in wanted.items()):
            return self
        before = [run for run in self.runs if wanted.get(run.stream, run.shape).lanes == run.lanes]
        shapes = [wanted.get(run.stream, run.shape) for run in before]
        stay = all(run.rows == shape.rows for run, shape in zip(before, shapes, strict=True))
        runs: list[Run] = []
        slots = groups = 0
        for run, (lanes, rows, capacity) in zip(before, shapes, strict=True):
            first = max(run.first, run.stop - lanes * rows)
            runs.append(run._replace(base=run.base if stay else slots, rows=rows, first=first, capacity=capacity))
            slots, groups = runs[-1].base + lanes * rows, run.group + lanes
        for stream, (lanes, rows, capacity) in wanted.items():
            if all(run.stream != stream for run in before):
                runs.append(Run(stream, slots, lanes, rows, 0, 0, capacity, groups if self._by_env else 0))
                slots, groups = slots + lanes * rows, groups + lanes
        return Places(self._by_env, runs)

    def _shape(self, window: Window) -> Shape:
        first, stop, capacity, num_envs = window
        if not 0 <= first <= stop <= first + capacity or capacity < 1:
            raise InputError(f"a window must hold at most its capacity of ids, got {window}")
        if num_envs < 1 or capacity % num_envs:
            raise InputError(f"the capacity of a window must be a multiple of its environments, got {window}")
        lanes, rows = num_envs if self._by_env else 1, LEAST_ROWS
        while rows * lanes < stop - first:
            rows *= 8
        return Shape(lanes, min(rows, capacity // lanes), capacity)

    def spans(self, windows: Sequence[Window]) -> Ids:
        """Return the numbers that each run is to hold, int64 ``(S, 2)``; those of a stream without a window none."""
        spans = np.zeros((len(self.table), 2), np.int64)
        for window in windows:
            first = window.first & slot_index.LOCAL
            spans[self._row[int(stream_of(window.first))]] = first, first + window.stop - window.first
        return spans

    def spans_without(self, stream: int) -> Ids:
        """Return the numbers that each run holds, but of this stream none."""
        spans = self.table[:, slot_index.FIRST : slot_index.STOP + 1].copy()
        spans[[row for known, row in self._row.items() if known == stream]] = 0
        return spans

    def groups_in(self, stream: int) -> slice:
        """Return the groups of a stream, one for each of its environments, none if it was never seen."""
        row = self._row.get(stream)
        if row is None:
            return slice(0)
        run = self.runs[row]
        return slice(run.group, run.group + run.lanes)

    def to_slots(self, ids: Ids) -> Ids:
        """Return the slot of each id, or ``EVICTED`` or ``UNKNOWN`` of :mod:`diskreplay.index.slots`."""
        return slot_index.to_slots(self.table, ids)

    def to_ids(self, slots: Ids) -> Ids:
        """Return the id in each slot of a window."""
        return slot_index.to_ids(self.table, slots)

    def held(self) -> Ids:
        """Return the ids of all windows, stream by stream in the order of their runs."""
        starts = [(int(pack(run.stream, 0, 0, 1)), run) for run in self.runs]
        return np.concatenate([np.empty(0, np.int64), *(np.arange(run.first, run.stop) + tag for tag, run in starts)])

    def waiting(self, late: Ids) -> list[Ids]:
        """Return the numbers, in each run's stream, of ids that wait and that its window holds."""
        numbers = [late[stream_of(late) == run.stream] & slot_index.LOCAL for run in self.runs]
        return [each[each >= run.first] for each, run in zip(numbers, self.runs, strict=True)]

    def state(self, late: Ids) -> tuple[list[dict[str, int]], Ids]:
        """Return the runs, for JSON, and what waits in them, one after another; ``late`` are the ids that wait."""
        waiting, kept = self.waiting(late), []
        for run, waits in zip(self.runs, waiting, strict=True):
            facts = run._asdict() | {"capacity": run.lanes * run.rows, "waiting": len(waits)}
            kept.append({key: facts[key] for key in (*RUN_FACTS, "waiting")})
        return kept, np.concatenate([np.empty(0, np.int64), *waiting])

    @classmethod
    def restored(cls, by_env: bool, kept: list[Mapping[str, Any]], waiting: NDArray[Any]) -> tuple[Places, Ids]:
        """Return the places that :meth:`state` described, and the ids that wait.

        Raises ValueError or KeyError if that is not a state.
        """
        runs: list[Run] = []
        late: list[Ids] = []
        slots, groups, used = 0, 0 if by_env else 1, 0
        for row in kept:
            stream, base, capacity, lanes, group, first, stop, count = (
                int(row[key]) for key in (*RUN_FACTS, "waiting")
            )
            if stream < 0 or base < slots or not 0 <= first <= stop <= first + capacity or count < 0:
                raise ValueError(f"no place for stream {stream}: {row!r}")
            if lanes < 1 or capacity < lanes or capacity % lanes:
                raise ValueError(f"no lanes for stream {stream}: {row!r}")
            if group < groups if by_env else (group, lanes) != (0, 1):
                raise ValueError(f"no group for stream {stream}: {row!r}")
            waits = np.array(waiting[used : used + count], np.int64)
            inside = not len(waits) or first <= waits[0] <= waits[-1] < stop
            if len(waits) != count or not inside or (np.diff(waits) < 1).any():
                raise ValueError(f"rows of stream {stream} that wait are not in its window, in their order")
            runs.append(Run(stream, base, lanes, capacity // lanes, first, stop, -1, group))
            late.append(waits + pack(stream, 0, 0, 1))
            slots, groups, used = base + capacity, group + lanes, used + count
        if len({run.stream for run in runs}) != len(runs) or used != len(waiting):
            raise ValueError("a stream twice, or rows that wait for no stream")
        return cls(by_env, runs), np.concatenate([np.empty(0, np.int64), *late])
