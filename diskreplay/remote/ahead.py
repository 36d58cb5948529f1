"""The download of whole shards, beside batches that ask for parts of them.

Those of which most was read come first, a few at a time, as long as the mirror has room. Where it is full, a copy takes
the place of the one that was used least recently, and only when as much of its shard was downloaded in parts as the
whole has: so a mirror that is smaller than the store costs twice at the most what would have been best.

What fails is counted and said in ``stats``; a batch never waits for it. :meth:`Ahead.stop` calls it off: what is under
way ends with the next bytes that come, and leaves nothing in the mirror.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

from diskreplay.errors import CorruptionError, DiskFullError
from diskreplay.interrupts import Lock
from diskreplay.remote.downloads import Download
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Object

MOST_THREADS = 4
"""The most shards that are downloaded at a time: the rest of the network is for batches."""
STOP_SECONDS = 5.0
"""The longest that :meth:`Ahead.stop` waits, in seconds: on a silent network, what is under way ends later."""


class CalledOffError(Exception):
    """Raised in a download that nobody wants any more."""


@dataclasses.dataclass
class WantedShard:
    """A shard of a timeline, and the cost in bytes of the parts that were read of it."""

    known: Object
    timeline: int | None
    cost: int


class Ahead:
    """The downloads of whole shards in the background; thread-safe.

    Threads are made when there is something to do, and end when there is not. They are daemons, as those of
    :class:`~.downloads.Downloads`.

    Args:
        mirror: the mirror that takes the copies.
        begin: begins to download a shard of a timeline, and asks its last argument, meanwhile too, whether that is
            called off (CalledOffError); None where the shard's copy is there.
    """

    def __init__(
        self, mirror: Mirror, begin: Callable[[Object, int | None, Callable[[], bool]], Download[str] | None]
    ) -> None:
        self._mirror = mirror
        self._begin = begin
        self._lock = Lock("the downloads ahead of a mirror")
        self._wanted: dict[str, WantedShard] = {}
        """The wanted shards by key."""
        self._threads: set[threading.Thread] = set()
        self._stops = 0
        """The number of times that everything was called off."""
        self._full = False
        """The mirror had no room: from then on, only what is worth another's place is downloaded."""
        self._off = False
        """The disk was full: nothing more is downloaded."""
        self._shards = self._failures = 0
        self._error: Exception | None = None

    def note(self, known: Object, timeline: int | None, cost: int) -> None:
        """Note that parts of a shard were asked for, at a cost in bytes."""
        with self._lock:
            before = self._wanted.get(known.key)
            if before is not None and (before.known.tag, before.timeline) == (known.tag, timeline):
                cost += before.cost
            one = self._wanted[known.key] = WantedShard(known, timeline, cost)
            if len(self._threads) < MOST_THREADS and self._is_due(one):
                thread = threading.Thread(target=self._run, args=(self._stops,), name="diskreplay-ahead", daemon=True)
                with contextlib.suppress(RuntimeError):  # the system has no more threads
                    thread.start()
                    self._threads.add(thread)

    def stop(self) -> None:
        """Call off all there is to do, until something is noted again, and wait for it, but not for ever."""
        with self._lock:
            self._wanted.clear()
            self._stops += 1
            threads = list(self._threads)
        deadline = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stats(self) -> dict[str, Any]:
        """Return as JSON the shards that were read ahead, what failed of them, and the last error."""
        error = self._error  # without the lock: a forked process may ask
        return {
            "ahead_shards": self._shards, "failures": self._failures, "error": None if error is None else str(error)
        }  # fmt: skip

    def _is_due(self, one: WantedShard) -> bool:
        fits = one.known.size <= self._mirror.most_bytes and not self._off
        return fits and (not self._full or one.cost >= one.known.size)

    def _run(self, stops: int) -> None:
        while (one := self._next(stops)) is not None:
            download, error = None, None
            try:
                download = self._begin(one.known, one.timeline, lambda: self._stops != stops)
                if download is not None:
                    download.result()
            except (CalledOffError, CorruptionError):
                continue  # what left the store, or was replaced, a batch that needs it says
            except Exception as caught:
                error = caught
            with self._lock:
                self._shards += download is not None and error is None
                self._failures += error is not None
                self._error = error or self._error
                self._off |= isinstance(error, DiskFullError)

    def _next(self, stops: int) -> WantedShard | None:
        """Return the shard that is due and of which most was read, or None, which ends the thread."""
        try:
            room = self._mirror.room()
        except OSError:  # somebody took the directory away
            room = 0
        with self._lock:
            while True:
                due = [one for one in self._wanted.values() if self._is_due(one)]
                if not due or self._stops != stops:
                    self._threads.discard(threading.current_thread())
                    return None
                one = max(due, key=lambda one: one.cost)
                if one.known.size > room and not self._full:
                    self._full = True
                    continue
                del self._wanted[one.known.key]
                return one
