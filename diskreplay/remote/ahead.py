"""Shards that are downloaded whole, beside batches that ask for parts of them.

Those of which most was read come first, a few at a time, as long as the mirror has room. Where it is full, a copy takes
the place of the one that was used least recently, and only when as much of its shard was downloaded in parts as the
whole has: so a mirror that is smaller than the store costs twice at the most what would have been best.

What fails is counted and said in ``stats``; a batch never waits for it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from diskreplay.errors import CorruptionError, DiskFullError
from diskreplay.interrupts import held_back
from diskreplay.remote.downloads import Download
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Object

MOST_THREADS = 4
"""Shards at a time: the rest of the network is for batches."""


@dataclasses.dataclass
class Wanted:
    """A shard of a timeline, and what the parts that were read of it cost, in bytes."""

    known: Object
    timeline: int | None
    cost: int


class Ahead:
    """Downloads of whole shards in the background; thread-safe.

    Threads are made when there is something to do, and end when there is not. They are daemons, as those of
    :class:`~.downloads.Downloads`.

    Args:
        mirror: that takes the copies.
        begin: begins to download a shard of a timeline; None where its copy is there.
    """

    def __init__(self, mirror: Mirror, begin: Callable[[Object, int | None], Download[str] | None]) -> None:
        self._mirror = mirror
        self._begin = begin
        self._lock = threading.Lock()
        self._wanted: dict[str, Wanted] = {}
        """By key."""
        self._threads = 0
        self._full = False
        """The mirror had no room: from then on, only what is worth another's place is downloaded."""
        self._off = False
        """The disk was full: nothing more is downloaded."""
        self._shards = self._failures = 0
        self._error: Exception | None = None

    def note(self, known: Object, timeline: int | None, cost: int) -> None:
        """Parts of a shard were asked for, at a cost in bytes."""
        with held_back(), self._lock:
            before = self._wanted.get(known.key)
            if before is not None and (before.known.tag, before.timeline) == (known.tag, timeline):
                cost += before.cost
            one = self._wanted[known.key] = Wanted(known, timeline, cost)
            if self._threads < MOST_THREADS and self._is_due(one):
                try:
                    threading.Thread(target=self._run, name="diskreplay-ahead", daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # the system has no more threads
                    pass

    def stop(self) -> None:
        """Forgets what is wanted."""
        with held_back(), self._lock:
            self._wanted.clear()

    def stats(self) -> dict[str, Any]:
        """Shards that were read ahead, what failed of them, and the last error: JSON."""
        with held_back(), self._lock:
            error = None if self._error is None else str(self._error)
            return {"ahead_shards": self._shards, "failures": self._failures, "error": error}

    def _is_due(self, one: Wanted) -> bool:
        fits = one.known.size <= self._mirror.most_bytes and not self._off
        return fits and (not self._full or one.cost >= one.known.size)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            download, error = None, None
            try:
                download = self._begin(one.known, one.timeline)
                if download is not None:
                    download.result()
            except CorruptionError:
                continue  # it left the store, or its stream went back: a batch that needs it says so
            except Exception as caught:
                error = caught
            with self._lock:
                self._shards += download is not None and error is None
                self._failures += error is not None
                self._error = error or self._error
                self._off |= isinstance(error, DiskFullError)

    def _next(self) -> Wanted | None:
        """The shard that is due and of which most was read; None where there is none, and the thread ends."""
        try:
            room = self._mirror.room()
        except OSError:  # somebody took the directory away
            room = 0
        with self._lock:
            while True:
                due = [one for one in self._wanted.values() if self._is_due(one)]
                if not due:
                    self._threads -= 1
                    return None
                one = max(due, key=lambda one: one.cost)
                if one.known.size > room and not self._full:
                    self._full = True
                    continue
                del self._wanted[one.known.key]
                return one
