"""Which ids have a place in a sampler's tree, and what changed since it last looked.

Every stream has a run of slots; the streams' runs stand one after another in the order in which they were first seen,
which is part of a sampler's state: the same draw then finds the same id. A run holds the ids in their order or, for a
sampler that draws from each environment by itself, those of one environment after those of another. To catch up with
the windows is, a stream:

1. Ids that left the window give their slots back.
2. Ids that are new, and older ones that were no transition but may have become one, are looked at once.
3. Those that are transitions get their slots. Of the others only those that may become one later are looked at again,
   when the window has grown.

What it comes to is a new :class:`Places`; the one that was asked stays as it is, and counts until the sampler has
changed its tree and puts the new one in its place, by one assignment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index import slots as slot_index
from diskreplay.index.log import LATER, NOW, STREAM_SHIFT
from diskreplay.sampling.window import Ids, Standings, Window, Windows

Copied = TypeVar("Copied")

NONE: Ids = np.empty(0, np.int64)
RUN_FACTS = "stream", "base", "capacity", "lanes", "group", "first", "stop"


@dataclasses.dataclass
class Run:
    """One stream's slots, and the window that they hold, as numbers in the stream."""

    stream: int
    base: int
    capacity: int
    lanes: int
    """Into which the slots are cut: 1, or the stream's environments."""
    group: int
    """Of its first lane; each of the others has the next number."""
    first: int = 0
    stop: int = 0
    waiting: Ids = dataclasses.field(default_factory=lambda: NONE)
    """Numbers in ``[first, stop)`` of no transitions that may still become some."""

    @property
    def tag(self) -> int:
        return self.stream << STREAM_SHIFT

    @property
    def rows(self) -> int:
        return self.capacity // self.lanes

    def slots_of(self, numbers: Ids) -> Ids:
        if self.lanes == 1:
            return self.base + numbers % self.capacity
        at, lane = np.divmod(numbers, self.lanes)
        slots: Ids = self.base + lane * self.rows + at % self.rows
        return slots

    def slots(self, start: int, stop: int) -> Ids:
        return self.slots_of(np.arange(start, stop))

    def empty(self) -> Ids:
        """Forgets the window; the slots that it gives back."""
        vacated = self.slots(self.first, self.stop)
        self.first = self.stop = 0
        self.waiting = NONE
        return vacated


class Changes(NamedTuple):
    """Slots that hold nothing any more, then the ids that have become transitions and their slots."""

    vacated: Ids
    ids: Ids
    slots: Ids


class Places:
    """The runs of all streams ever seen.

    Args:
        by_env: whether each environment's slots lie side by side and are a group of their own; else all slots are one.
    """

    def __init__(self, by_env: bool = False) -> None:
        self._by_env = by_env
        self._runs: dict[int, Run] = {}
        """By stream, in the order of their slots."""
        self._windows: list[Window] | None = None
        """As of the last call, to see that nothing changed."""
        self.slots = 0
        """Slots of all runs."""
        self.groups = 0 if by_env else 1
        """Groups of all runs."""
        self.ranges: Ids = np.empty((0, 3), np.int64)
        """The groups of the windows that hold something, ascending: first slot, one past the last, number."""
        self._ranged: list[int] = []
        """First slots of the runs that ``ranges`` was made of."""
        self._table: Ids = np.empty((0, 6), np.int64)

    def caught_up(self, windows: Windows, standing: Standings) -> tuple[Places, Changes | None]:
        """The places as of these windows, and what changes in the tree by that; None for nothing."""
        listed = list(windows)
        if listed == self._windows:
            return self, None
        moved = self._copy()
        return moved, moved._catch_up(listed, standing)

    def _copy(self) -> Places:
        other = _copy_of(self)
        other._runs = {stream: _copy_of(run) for stream, run in self._runs.items()}
        return other

    def _catch_up(self, listed: list[Window], standing: Standings) -> Changes:
        vacated: list[Ids] = []
        ids: list[Ids] = []
        slots: list[Ids] = []
        for window in listed:
            self._check(window)
        gone = self._runs.keys() - {window.first >> STREAM_SHIFT for window in listed}
        vacated.extend(self._runs[stream].empty() for stream in sorted(gone) if self._runs[stream].stop)
        for window in listed:
            run = self._run(window, vacated)
            added = self._follow(run, window, standing, vacated)
            if len(added):
                ids.append(added + run.tag)
                slots.append(run.slots_of(added))
        self._windows = listed
        self._tabulate()
        return Changes(_joined(vacated), _joined(ids), _joined(slots))

    def _check(self, window: Window) -> None:
        if not 0 <= window.first <= window.stop <= window.first + window.capacity or window.capacity < 1:
            raise InputError(f"a window must hold at most its capacity of ids, got {window}")
        if window.num_envs < 1 or window.capacity % window.num_envs:
            raise InputError(f"the capacity of a window must be a multiple of its environments, got {window}")

    def _run(self, window: Window, vacated: list[Ids]) -> Run:
        """The window's run; a new one for a stream that is new or has another shape."""
        stream = window.first >> STREAM_SHIFT
        lanes = window.num_envs if self._by_env else 1
        run = self._runs.get(stream)
        if run is not None and (run.capacity, run.lanes) != (window.capacity, lanes):
            vacated.append(run.empty())
            del self._runs[stream]  # the new one stands after all others
            run = None
        if run is None:
            run = Run(stream, self.slots, window.capacity, lanes, self.groups if self._by_env else 0)
            self._runs[stream] = run
            self._count(run)
        return run

    def _count(self, run: Run) -> None:
        self.slots = run.base + run.capacity
        if self._by_env:
            self.groups = run.group + run.lanes

    def _follow(self, run: Run, window: Window, standing: Standings, vacated: list[Ids]) -> Ids:
        """Moves a run to its window; the numbers that have become transitions."""
        first, stop = window.first - run.tag, window.stop - run.tag
        if first < run.first or stop < run.stop:
            vacated.append(run.empty())
        if first > run.first:
            if run.stop > run.first:
                vacated.append(run.slots(run.first, min(first, run.stop)))
            if len(run.waiting):
                run.waiting = run.waiting[run.waiting >= first]
        start = max(run.stop, first)
        run.first = first
        if stop == run.stop:
            return NONE
        run.stop = stop
        asked = np.arange(start, stop)
        if len(run.waiting):
            asked = np.concatenate([run.waiting, asked])
        if not len(asked):
            return NONE
        standings = standing(asked + run.tag)
        added: Ids = asked[standings == NOW]
        run.waiting = asked[standings == LATER] if len(added) < len(asked) else NONE
        return added

    def _tabulate(self) -> None:
        runs = self._runs.values()
        rows = [(run.stream, run.base, run.lanes, run.rows, run.first, run.stop) for run in runs]
        self._table = np.array(rows, np.int64).reshape(-1, 6)
        if not self._by_env:
            self.ranges = np.array([[0, self.slots, 0]])
            return
        held = [run for run in runs if run.stop > run.first]
        if [run.base for run in held] != self._ranged:
            self._ranged = [run.base for run in held]
            ranges = [
                (run.base + lane * run.rows, run.base + (lane + 1) * run.rows, run.group + lane)
                for run in held
                for lane in range(run.lanes)
            ]
            self.ranges = np.array(ranges, np.int64).reshape(-1, 3)

    def forgotten(self, stream: int) -> tuple[Places, Changes | None]:
        """The places without a stream's window, so that the next call finds it new, and what changes by that."""
        if stream not in self._runs:
            return self, None
        moved = self._copy()
        moved._windows = None
        vacated = moved._runs[stream].empty()
        moved._tabulate()
        return moved, Changes(vacated, NONE, NONE)

    def to_slots(self, ids: Ids) -> Ids:
        """The slot of each id, or ``EVICTED`` or ``UNKNOWN`` of :mod:`diskreplay.index.slots`."""
        return slot_index.to_slots(self._table, ids)

    def to_ids(self, slots: Ids) -> Ids:
        """The id in each slot of a window."""
        return slot_index.to_ids(self._table, slots)

    def groups_of(self, slots: Ids) -> Ids | int:
        """The group of each slot of a window; the one number where there is only one."""
        if not self._by_env:
            return 0
        groups: Ids = self.ranges[np.searchsorted(self.ranges[:, 0], slots, side="right") - 1, 2]
        return groups

    def held(self) -> Ids:
        """The slots of all windows, stream by stream in the order of their runs, in the order of ids."""
        return _joined([run.slots(run.first, run.stop) for run in self._runs.values()])

    def state(self) -> tuple[list[dict[str, int]], Ids]:
        """The runs, for JSON, and what waits in them, one after another."""
        runs = self._runs.values()
        kept = [{key: getattr(run, key) for key in RUN_FACTS} | {"waiting": len(run.waiting)} for run in runs]
        return kept, _joined([run.waiting for run in runs])

    @classmethod
    def restored(cls, by_env: bool, runs: list[Mapping[str, Any]], waiting: NDArray[Any]) -> Places:
        """What :meth:`state` described; ValueError or KeyError where that is no state."""
        places = cls(by_env)
        used = 0
        for row in runs:
            stream, base, capacity, lanes, group, first, stop, count = (
                int(row[key]) for key in (*RUN_FACTS, "waiting")
            )
            run = Run(stream, base, capacity, lanes, group, first, stop)
            if run.base < places.slots or not 0 <= run.first <= run.stop <= run.first + run.capacity or count < 0:
                raise ValueError(f"no place for stream {run.stream}: {row!r}")
            if run.lanes < 1 or run.rows < 1 or run.capacity % run.lanes:
                raise ValueError(f"no lanes for stream {run.stream}: {row!r}")
            if run.group < places.groups if by_env else (run.group, run.lanes) != (0, 1):
                raise ValueError(f"no group for stream {run.stream}: {row!r}")
            run.waiting = np.array(waiting[used : used + count], np.int64)
            if len(run.waiting) != count or (
                count and not run.first <= run.waiting.min() <= run.waiting.max() < run.stop
            ):
                raise ValueError(f"rows of stream {run.stream} that wait are not in its window")
            places._runs[run.stream] = run
            places._count(run)
            used += count
        if len(places._runs) != len(runs) or used != len(waiting):
            raise ValueError("a stream twice, or rows that wait for no stream")
        places._tabulate()
        return places


def _copy_of(given: Copied) -> Copied:
    """As ``copy.copy``, several times faster: a copy is made whenever a row was added before a sample."""
    other = object.__new__(type(given))
    other.__dict__.update(given.__dict__)
    return other


def _joined(parts: list[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NONE
