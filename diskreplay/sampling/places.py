"""The places of ids in a sampler's tree, and what changed since it last looked.

Every stream has a run of slots; the streams' runs stand one after another in the order in which they were first seen,
which is part of a sampler's state: the same draw then finds the same id. A run has slots for what its window has held,
by powers of eight, and at most for the stream's capacity: a tree of eighths sums the same numbers in the same order
whatever empty slots follow. Where a window outgrows its run, all runs are laid out anew. A run holds the ids in their
order or, for a sampler that draws from each environment by itself, those of one environment after those of another. To
catch up with the windows is, a stream:

1. Ids that left the window give their slots back.
2. Ids that are new, and older ones that were no transition but may have become one, are looked at once.
3. Those that are transitions get their slots. Of the others only those that may become one later are looked at again,
   when the window has grown.

What it comes to is a new :class:`Places`; the one that was asked stays as it is, whatever a view's own code raises.

Nearly always a window has only gone forward, and all that is new are transitions (:meth:`Places.steps`). A tree can
follow that in one compiled call, which changes the table of these places as well: so where the windows stand is read
from the table alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index import slots as slot_index
from diskreplay.sampling.window import Standings, Window
from diskreplay.schema.ids import Ids, pack, stream_of

NONE: Ids = np.empty(0, np.int64)
LEAST_ROWS = 8**6
"""The slots of a lane at the least, as far as the capacity goes."""
RUN_FACTS = "stream", "base", "capacity", "lanes", "group", "first", "stop"


class SlotRange(NamedTuple):
    """One stream's slots, and the window that they hold, as numbers in the stream.

    The first six are its row of the table of :mod:`diskreplay.index.slots`, as it was when the run was made.
    """

    stream: int
    base: int
    lanes: int
    """The number of lanes into which the slots are cut: 1, or the stream's environments."""
    rows: int
    """The number of slots of a lane."""
    first: int
    stop: int
    group: int
    """The number of the first lane's group; each of the others has the next number."""
    waiting: Ids
    """The numbers in ``[first, stop)`` of what is not a transition and may still become one."""

    @property
    def tag(self) -> int:
        return int(pack(self.stream, 0, 0, 1))

    @property
    def capacity(self) -> int:
        """The number of its slots."""
        return self.lanes * self.rows

    def slots(self, start: int, stop: int) -> Ids:
        return slot_index.between(self.base, self.lanes, self.rows, start, stop)

    def holding(self, first: int, stop: int, waiting: Ids = NONE) -> SlotRange:
        """Return the run with another window."""
        return SlotRange(self.stream, self.base, self.lanes, self.rows, first, stop, self.group, waiting)


class Changes(NamedTuple):
    """Slots that hold nothing any more, then the ids that have become transitions and their slots."""

    vacated: Ids
    ids: Ids
    slots: Ids


class Step(NamedTuple):
    """A window that went forward."""

    row: int
    """The row of its stream in the table."""
    group: int
    """The number of the first lane's group."""
    start: int
    """The first id that is new; all up to the window's stop are."""
    window: Window


class Places:
    """The runs of all streams ever seen.

    Args:
        by_env: True if each environment's slots lie side by side and are a group of their own; else all slots are one.
    """

    def __init__(self, by_env: bool = False) -> None:
        self._by_env = by_env
        self._runs: dict[int, SlotRange] = {}
        """The runs by stream, in the order of their slots."""
        self.windows: list[Window] | None = None
        """The windows of the last call, to see what changed."""
        self.slots = 0
        """The number of slots of all runs."""
        self.groups = 0 if by_env else 1
        """The number of groups of all runs."""
        self.ranges: Ids = np.empty((0, 3), np.int64)
        """The groups of the windows that hold something, ascending: first slot, one past the last, number."""
        self._row: dict[int, int] = {}
        """The row of each stream in the table."""
        self._ranged: list[int] = []
        """The first slots of runs, or the number of all slots, that ``ranges`` was made of."""
        self.table = _table_of([])
        """A table of :mod:`diskreplay.index.slots`; a compiled call may move windows in it, see :meth:`steps`."""

    def caught_up(self, listed: list[Window], standing: Standings) -> tuple[Places, Changes]:
        """Return the places as of these windows, and what changes in the tree by that."""
        moved = self._copy()
        return moved, moved._catch_up(listed, standing)

    def steps(self, listed: list[Window]) -> list[Step] | None:
        """Return what is new if all windows are as before or went forward, and no id waits, else None."""
        known = self.windows
        if known is None or len(listed) != len(known):
            return None
        found = []
        for old, new in zip(known, listed, strict=True):
            if new == old:
                continue
            forward = old.first <= new.first < new.stop <= new.first + new.capacity and old.first < old.stop <= new.stop
            stream = stream_of(new.first)
            if not forward or stream != stream_of(old.first) or new[2:] != old[2:]:
                return None
            run = self._runs[stream]
            if len(run.waiting) or new.stop - new.first > run.capacity:
                return None
            found.append(Step(self._row[stream], run.group, max(old.stop, new.first), new))
        return found

    def _runs_now(self) -> dict[int, SlotRange]:
        spans = self.table[:, slot_index.FIRST :].tolist()
        return {
            run.stream: run.holding(first, stop, run.waiting)
            for run, (first, stop) in zip(self._runs.values(), spans, strict=True)
        }

    def _copy(self) -> Places:
        other = object.__new__(Places)
        other.__dict__.update(self.__dict__)
        other._runs = self._runs_now()
        return other

    def resized(self, listed: list[Window]) -> tuple[Places, Ids] | None:
        """Return the places after windows outgrew their slots, or lost them, and the slots that were left, or None.

        The slots are in the order of :meth:`held` of the new places. None where all runs are as large as they were.
        """
        for window in listed:
            self._check(window)
        windows = {stream_of(window.first): window for window in listed}
        runs = [
            (run, self._rows(windows[run.stream]) if run.stream in windows else run.rows)
            for run in self._runs_now().values()
        ]
        if all(most == run.rows for run, most in runs):
            return None
        moved, left = Places(self._by_env), []
        for run, most in runs:
            first = max(run.first, run.stop - run.lanes * most)
            left.append(run.slots(first, run.stop))
            waiting = run.waiting[run.waiting >= first]
            moved._append(SlotRange(run.stream, moved.slots, run.lanes, most, first, run.stop, run.group, waiting))
        moved._tabulate()
        return moved, _joined(left)

    def _catch_up(self, listed: list[Window], standing: Standings) -> Changes:
        vacated: list[Ids] = []
        ids: list[Ids] = []
        slots: list[Ids] = []
        for window in listed:
            self._check(window)
        for stream in sorted(self._runs.keys() - {stream_of(window.first) for window in listed}):
            self._empty(self._runs[stream], vacated)
        for window in listed:
            self._follow(self._run(window, vacated), window, standing, vacated, ids, slots)
        self.windows = listed
        self._tabulate()
        return Changes(_joined(vacated), _joined(ids), _joined(slots))

    def _check(self, window: Window) -> None:
        first, stop, capacity, num_envs = window
        if not 0 <= first <= stop <= first + capacity or capacity < 1:
            raise InputError(f"a window must hold at most its capacity of ids, got {window}")
        if num_envs < 1 or capacity % num_envs:
            raise InputError(f"the capacity of a window must be a multiple of its environments, got {window}")

    def _rows(self, window: Window) -> int:
        lanes = window.num_envs if self._by_env else 1
        rows = LEAST_ROWS
        while rows * lanes < window.stop - window.first:
            rows *= 8
        return min(rows, window.capacity // lanes)

    def _run(self, window: Window, vacated: list[Ids]) -> SlotRange:
        """Return the window's run, a new one for a stream that is new or has another shape."""
        stream = stream_of(window.first)
        lanes = window.num_envs if self._by_env else 1
        run = self._runs.get(stream)
        rows = self._rows(window)
        if run is not None and (run.rows, run.lanes) != (rows, lanes):
            self._empty(run, vacated)
            del self._runs[stream]  # the new one stands after all others
            run = None
        if run is None:
            run = SlotRange(stream, self.slots, lanes, rows, 0, 0, self.groups if self._by_env else 0, NONE)
            self._append(run)
        return run

    def _append(self, run: SlotRange) -> None:
        self._runs[run.stream] = run
        self.slots = run.base + run.capacity
        if self._by_env:
            self.groups = run.group + run.lanes

    def _empty(self, run: SlotRange, vacated: list[Ids]) -> SlotRange:
        if run.stop > run.first:
            vacated.append(run.slots(run.first, run.stop))
        self._runs[run.stream] = run = run.holding(0, 0)
        return run

    def _follow(
        self, run: SlotRange, window: Window, standing: Standings, vacated: list[Ids], ids: list[Ids], slots: list[Ids]
    ) -> None:
        """Move a run to its window, and list the slots that are given back, and what has become a transition."""
        tag = run.tag
        first, stop = window.first - tag, window.stop - tag
        if first < run.first or stop < run.stop:
            run = self._empty(run, vacated)
        elif first > run.first and run.stop > run.first:
            vacated.append(run.slots(run.first, min(first, run.stop)))
        waiting = run.waiting
        if len(waiting) and first > run.first:
            waiting = waiting[waiting >= first]
        if stop > run.stop:
            asked = np.arange(max(window.first, run.stop + tag), window.stop)
            if len(waiting):
                asked = np.concatenate([waiting + tag, asked])
            if len(asked):
                standings = np.ascontiguousarray(standing(asked), np.int8)
                added, taken, waiting = slot_index.sorted_out(run.base, run.lanes, run.rows, asked, standings)
                if len(added):
                    ids.append(added)
                    slots.append(taken)
        self._runs[run.stream] = run.holding(first, stop, waiting)

    def _tabulate(self) -> None:
        self.table = _table_of(self._runs.values())
        self._row = {stream: row for row, stream in enumerate(self._runs)}
        held = [run for run in self._runs.values() if run.stop > run.first]
        ranged = [run.base for run in held] if self._by_env else [self.slots]
        if ranged == self._ranged:
            return
        ranges = [(0, self.slots, 0)]
        if self._by_env:
            ranges = [
                (run.base + lane * run.rows, run.base + (lane + 1) * run.rows, run.group + lane)
                for run in held
                for lane in range(run.lanes)
            ]
        self.ranges, self._ranged = np.array(ranges, np.int64).reshape(-1, 3), ranged

    def forgotten(self, stream: int) -> tuple[Places, Changes | None]:
        """Return the places without a stream's window, so that the next call finds it new, and what changes by that."""
        if stream not in self._runs:
            return self, None
        moved = self._copy()
        moved.windows = None
        vacated: list[Ids] = []
        moved._empty(moved._runs[stream], vacated)
        moved._tabulate()
        return moved, Changes(_joined(vacated), NONE, NONE)

    def to_slots(self, ids: Ids) -> Ids:
        """Return the slot of each id, or ``EVICTED`` or ``UNKNOWN`` of :mod:`diskreplay.index.slots`."""
        return slot_index.to_slots(self.table, ids)

    def to_ids(self, slots: Ids) -> Ids:
        """Return the id in each slot of a window."""
        return slot_index.to_ids(self.table, slots)

    def groups_of(self, slots: Ids) -> Ids:
        """Return the group of each slot of a window."""
        groups: Ids = self.ranges[np.searchsorted(self.ranges[:, 0], slots, side="right") - 1, 2]
        return groups

    def groups_in(self, stream: int) -> slice:
        """Return the groups of a stream that was seen, one for each of its environments."""
        run = self._runs[stream]
        return slice(run.group, run.group + run.lanes)

    def held(self) -> Ids:
        """Return the slots of all windows, stream by stream in the order of their runs, in the order of ids."""
        return _joined([run.slots(run.first, run.stop) for run in self._runs_now().values()])

    def state(self) -> tuple[list[dict[str, int]], Ids]:
        """Return the runs, for JSON, and what waits in them, one after another."""
        runs = self._runs_now().values()
        kept = [{key: getattr(run, key) for key in RUN_FACTS} | {"waiting": len(run.waiting)} for run in runs]
        return kept, _joined([run.waiting for run in runs])

    @classmethod
    def restored(cls, by_env: bool, runs: list[Mapping[str, Any]], waiting: NDArray[Any]) -> Places:
        """Return the places that :meth:`state` described; raise ValueError or KeyError if that is not a state."""
        places = cls(by_env)
        used = 0
        for row in runs:
            stream, base, capacity, lanes, group, first, stop, count = (
                int(row[key]) for key in (*RUN_FACTS, "waiting")
            )
            if base < places.slots or not 0 <= first <= stop <= first + capacity or count < 0:
                raise ValueError(f"no place for stream {stream}: {row!r}")
            if lanes < 1 or capacity < lanes or capacity % lanes:
                raise ValueError(f"no lanes for stream {stream}: {row!r}")
            if group < places.groups if by_env else (group, lanes) != (0, 1):
                raise ValueError(f"no group for stream {stream}: {row!r}")
            waits = np.array(waiting[used : used + count], np.int64)
            if len(waits) != count or (count and not first <= waits.min() <= waits.max() < stop):
                raise ValueError(f"rows of stream {stream} that wait are not in its window")
            places._append(SlotRange(stream, base, lanes, capacity // lanes, first, stop, group, waits))
            used += count
        if len(places._runs) != len(runs) or used != len(waiting):
            raise ValueError("a stream twice, or rows that wait for no stream")
        places._tabulate()
        return places


def _table_of(runs: Iterable[SlotRange]) -> Ids:
    width = len(slot_index.COLUMNS)
    return np.array([fact for run in runs for fact in run[:width]], np.int64).reshape(-1, width)


def _joined(parts: list[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NONE
