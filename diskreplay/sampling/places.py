"""Which ids have a place in a sampler's tree, and what changed since it last looked.

Every stream has a run of slots; the streams' runs stand one after another in the order in which they were first seen,
which is part of a sampler's state: the same draw then finds the same id. To catch up with the windows is, a stream:

1. Ids that left the window give their slots back.
2. Ids that are new, and older ones that were no transition but may have become one, are looked at once.
3. Those that are transitions get their slots. Of the others only the newest ``horizon`` ids are looked at again, when
   the window has grown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index import slots as slot_index
from diskreplay.index.log import STREAM_SHIFT
from diskreplay.sampling.window import Ids, IsTransition, Window, Windows

NONE: Ids = np.empty(0, np.int64)


@dataclasses.dataclass
class Run:
    """One stream's slots, and the window that they hold, as numbers in the stream."""

    stream: int
    base: int
    capacity: int
    first: int = 0
    stop: int = 0
    waiting: Ids = dataclasses.field(default_factory=lambda: NONE)
    """Numbers in ``[first, stop)`` of no transitions that may still become some."""

    @property
    def tag(self) -> int:
        return self.stream << STREAM_SHIFT

    def slots(self, start: int, stop: int) -> Ids:
        return self.base + np.arange(start, stop) % self.capacity

    def empty(self) -> Ids:
        """Forgets the window; the slots that it gives back."""
        vacated = self.slots(self.first, self.stop)
        self.first = self.stop = 0
        self.waiting = NONE
        return vacated


@dataclasses.dataclass(frozen=True)
class Changes:
    """Slots that hold nothing any more, then the ids that have become transitions and their slots."""

    vacated: Ids
    ids: Ids
    slots: Ids


class Places:
    """The runs of all streams ever seen."""

    def __init__(self) -> None:
        self._runs: dict[int, Run] = {}
        self._windows: list[Window] | None = None
        """As of the last call, to see that nothing changed."""
        self.slots = 0
        """Slots of all runs."""
        self._table = np.empty((0, 5), np.int64)

    def catch_up(self, windows: Windows, is_transition: IsTransition) -> Changes | None:
        """Takes over the windows; what changed since the last call, None for nothing."""
        listed = list(windows)
        if listed == self._windows:
            return None
        vacated: list[Ids] = []
        ids: list[Ids] = []
        slots: list[Ids] = []
        for window in listed:
            self._check(window)
        gone = self._runs.keys() - {window.first >> STREAM_SHIFT for window in listed}
        vacated.extend(self._runs[stream].empty() for stream in sorted(gone) if self._runs[stream].stop)
        for window in listed:
            run = self._run(window, vacated)
            added = self._follow(run, window, is_transition, vacated)
            if len(added):
                ids.append(added + run.tag)
                slots.append(run.base + added % run.capacity)
        self._windows = listed
        self._tabulate()
        return Changes(_joined(vacated), _joined(ids), _joined(slots))

    def _check(self, window: Window) -> None:
        if not 0 <= window.first <= window.stop <= window.first + window.capacity or window.capacity < 1:
            raise InputError(f"a window must hold at most its capacity of ids, got {window}")

    def _run(self, window: Window, vacated: list[Ids]) -> Run:
        """The window's run; a new one for a stream that is new or has another capacity."""
        stream = window.first >> STREAM_SHIFT
        run = self._runs.get(stream)
        if run is not None and run.capacity != window.capacity:
            vacated.append(run.empty())
            run = None
        if run is None:
            run = Run(stream, self.slots, window.capacity)
            self._runs[stream] = run
            self.slots += window.capacity
        return run

    def _follow(self, run: Run, window: Window, is_transition: IsTransition, vacated: list[Ids]) -> Ids:
        """Moves a run to its window; the numbers that have become transitions."""
        first, stop = window.first - run.tag, window.stop - run.tag
        if first < run.first or stop < run.stop:
            vacated.append(run.empty())
        if first > run.first:
            if run.stop > run.first:
                vacated.append(run.slots(run.first, min(first, run.stop)))
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
        good = is_transition(asked + run.tag)
        if good.all():
            run.waiting = NONE
            return asked
        run.waiting = asked[~good & (asked >= stop - window.horizon)]
        return asked[good]

    def _tabulate(self) -> None:
        rows = [(run.stream, run.base, run.capacity, run.first, run.stop) for run in self._runs.values()]
        self._table = np.array(sorted(rows, key=lambda row: row[1]), np.int64).reshape(-1, 5)

    def forget(self, stream: int) -> Ids:
        """Forgets a stream's window, so that the next call finds it new; the slots that it gives back."""
        run = self._runs.get(stream)
        if run is None:
            return NONE
        self._windows = None
        vacated = run.empty()
        self._tabulate()
        return vacated

    def to_slots(self, ids: Ids) -> Ids:
        """The slot of each id, or ``EVICTED`` or ``UNKNOWN`` of :mod:`diskreplay.index.slots`."""
        return slot_index.to_slots(self._table, ids)

    def to_ids(self, slots: Ids) -> Ids:
        """The id in each slot of a window."""
        return slot_index.to_ids(self._table, slots)

    def held(self) -> Ids:
        """The slots of all windows, stream by stream in the order of their runs, in the order of ids."""
        runs = sorted(self._runs.values(), key=lambda run: run.base)
        return _joined([run.slots(run.first, run.stop) for run in runs])

    def state(self) -> tuple[list[dict[str, int]], Ids]:
        """The runs, for JSON, and what waits in them, one after another."""
        runs = sorted(self._runs.values(), key=lambda run: run.base)
        kept = [
            {key: getattr(run, key) for key in ("stream", "base", "capacity", "first", "stop")}
            | {"waiting": len(run.waiting)}
            for run in runs
        ]
        return kept, _joined([run.waiting for run in runs])

    @classmethod
    def restored(cls, runs: list[Mapping[str, Any]], waiting: NDArray[Any]) -> Places:
        """What :meth:`state` described; ValueError or KeyError where that is no state."""
        places = cls()
        used = 0
        for row in runs:
            stream, base, capacity, first, stop, count = (
                int(row[key]) for key in ("stream", "base", "capacity", "first", "stop", "waiting")
            )
            if base < places.slots or capacity < 1 or not 0 <= first <= stop <= first + capacity or count < 0:
                raise ValueError(f"no place for stream {stream}: {row!r}")
            held = np.array(waiting[used : used + count], np.int64)
            if len(held) != count or (count and not first <= held.min() <= held.max() < stop):
                raise ValueError(f"rows of stream {stream} that wait are not in its window")
            places._runs[stream] = Run(stream, base, capacity, first, stop, held)
            places.slots = base + capacity
            used += count
        if len(places._runs) != len(runs) or used != len(waiting):
            raise ValueError("a stream twice, or rows that wait for no stream")
        places._tabulate()
        return places


def _joined(parts: list[Ids]) -> Ids:
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else NONE
