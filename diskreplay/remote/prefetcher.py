"""The download of whole shards, beside batches that ask for parts of them.

Those of which most was read come first, a few at a time, as long as the mirror has room. A full mirror replaces its
least recently used copy only by a shard of which as many bytes were downloaded in parts as the whole has: so downloads
are at most twice the optimum. What fails is counted and said in ``stats``; a batch never waits for it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from diskreplay.errors import CorruptionError, DiskFullError
from diskreplay.process.locks import Lock
from diskreplay.remote.catalog import Shard
from diskreplay.remote.downloads import AfterDownload, CalledOffError, Download
from diskreplay.remote.mirror import Mirror

MOST_SHARDS = 4
"""The most shards that are downloaded at a time: the rest of the network is for batches."""


class ShardPrefetcher:
    """The downloads of whole shards in the background; thread-safe.

    Args:
        mirror: the mirror that takes the copies.
        begin: begins to download a shard, and calls its last argument when that is over; None if its copy is there.

    Attributes:
        running: the keys of the shards that are being downloaded.
    """

    def __init__(self, mirror: Mirror, begin: Callable[[Shard, AfterDownload], Download[str] | None]) -> None:
        self.running: set[str] = set()
        self._mirror = mirror
        self._begin = begin
        self._lock = Lock("the prefetcher of a mirror")
        self._wanted: dict[str, tuple[Shard, int]] = {}
        """The wanted shards, and the cost in bytes of the parts that were read of each, by key."""
        self._room: int | None = None
        """The bytes that may be taken without being worth another's place; None before the mirror was asked."""
        self._off = False
        """The disk was full: nothing more is downloaded."""
        self._shards = self._failures = 0
        self._error: BaseException | None = None

    def note(self, shard: Shard, cost: int) -> None:
        """Note that parts of a shard were asked for, at a cost in bytes."""
        with self._lock:
            known, before = self._wanted.get(shard.key, (shard, 0))
            self._wanted[shard.key] = shard, cost + (before if known == shard else 0)
            with contextlib.suppress(RuntimeError):  # the system has no more threads
                self._begin_due()

    def forget(self) -> None:
        """Begin no more downloads until something is noted again."""
        with self._lock:
            self._wanted.clear()

    def stats(self) -> dict[str, Any]:
        """Return as JSON the shards that were read ahead, what failed of them, and the last error."""
        error = self._error  # without the lock: a forked process may ask
        return {
            "ahead_shards": self._shards, "failures": self._failures, "error": None if error is None else str(error)
        }  # fmt: skip

    def _begin_due(self) -> None:
        """Begin downloads of the shards of which most was read; the caller holds the lock."""
        if self._room is None:
            self._room = self._mirror.room()
        while len(self.running) < MOST_SHARDS and not self._off:
            wanted = ((cost, shard.size, key) for key, (shard, cost) in self._wanted.items())
            due = [one for one in wanted if one[1] <= max(self._room, one[0])]
            if not due:
                return
            _, size, key = max(due)
            self._room -= size
            if self._begin(self._wanted.pop(key)[0], functools.partial(self._ended, key)) is not None:
                self.running.add(key)

    def _ended(self, key: str, download: Download[str]) -> None:
        room = self._mirror.room()
        with self._lock:
            self.running.discard(key)
            self._room = min(room, self._room or 0) if download.error is None else room
            if download.error is None:
                self._shards += 1
            # What left the store, or was replaced (CorruptionError), a batch that needs it says.
            elif not isinstance(download.error, CalledOffError | CorruptionError):
                self._failures += 1
                self._error = download.error
                self._off |= isinstance(download.error, DiskFullError)
            self._begin_due()
