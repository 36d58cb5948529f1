"""The copies of a remote store's shards in its mirror, and parts of the shards that have none.

Shards are downloaded whole where all of them is read. Of one that has no copy here a batch asks for its chunks alone,
and :mod:`diskreplay.remote.ahead` downloads the shard beside it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from diskreplay.errors import DiskFullError, RemoteError
from diskreplay.remote import ranges
from diskreplay.remote.ahead import STOP_SECONDS, Ahead, CalledOffError
from diskreplay.remote.bundles import Bundles
from diskreplay.remote.catalog import Catalog
from diskreplay.remote.downloads import Download, Downloads
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.needed import needed_shards
from diskreplay.remote.objects import Object
from diskreplay.remote.shards import ATTEMPTS, TRIES, Shards
from diskreplay.schema.columns import Schema
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFile

RANGE_THREADS = 64
"""The threads that ask for chunks at the same time: they wait for the network."""


class Copies:
    """The copies of shards; thread-safe.

    Args:
        catalog: the catalog of the store.
        mirror: the mirror, where the copies are kept.

    Attributes:
        bundles: the bundles of the store: a shard that is in one needs no copy.
    """

    def __init__(self, catalog: Catalog, mirror: Mirror) -> None:
        self._catalog = catalog
        self._mirror = mirror
        self.bundles = Bundles(catalog)
        self._shards = Shards(catalog)
        self._downloads: Downloads[str] = Downloads()
        self._ranges: Downloads[bytes] = Downloads(RANGE_THREADS)
        self._ahead = Ahead(mirror, self.begin)
        self._process = os.getpid()
        self._stops = 0
        """The number of times that everything was called off."""

    @contextlib.contextmanager
    def coming(self, schema: Schema, commits: Mapping[str, Commit]) -> Iterator[None]:
        """Download at once what is read first, while commits of streams, given by name, are read.

        What fails is left to whoever reads it. At the end what nobody has asked for is called off.
        """
        over = threading.Event()
        room = self._mirror.most_bytes // 2  # else copies would be taken away for others before they are read
        begun: list[Download[str]] = []

        def begin(stream: str, commit: Commit) -> str:
            nonlocal room
            listing = self._catalog.listing
            for key in needed_shards(schema, stream, commit):
                known = listing.there.get(key)
                if known is not None and not over.is_set() and self.bundles.find(known, listing) is None:
                    download = self.begin(known, listing.timelines.get(stream), over.is_set)
                    if download is not None:
                        begun.append(download)
                        room -= known.size
                if room < 0:
                    break
            return stream

        try:
            for stream, commit in commits.items():
                begun.append(self._downloads.begin(stream, functools.partial(begin, stream, commit)))
            yield
        finally:
            over.set()
            stop = time.monotonic() + STOP_SECONDS
            for download in begun:  # those of streams come first, and add the others
                download.wait(stop - time.monotonic())

    def begin(
        self, known: Object, timeline: int | None, called_off: Callable[[], bool] | None = None
    ) -> Download[str] | None:
        """Begin to download a shard of a timeline; return None if its copy is there.

        ``called_off``, by default whether :meth:`stop` was called since, is asked meanwhile: then it ends with
        CalledOffError.
        """
        stops = self._stops
        known = self._shards.newest(known, timeline)
        if self._mirror.find(known) is not None:
            return None
        self._catalog.check_process()
        name = f"{known.key}\n{known.tag}\n{timeline}"
        off = called_off or (lambda: self._stops != stops)
        return self._downloads.begin(name, lambda: self._download(known, timeline, off))

    def copy(self, known: Object, timeline: int | None) -> LocalFile:
        """Return the copy of a shard, downloaded if need be; raise CorruptionError if the shard is gone."""
        for _ in range(ATTEMPTS):
            known = self._shards.newest(known, timeline)
            download = self.begin(known, timeline)
            try:
                path = self._mirror.find(known) if download is None else download.result()
            except CalledOffError:
                continue  # it was one that was read ahead
            if path is not None:
                try:
                    return LocalFile(path, write=False)
                except FileNotFoundError:
                    continue  # another process took it away for room
        raise RemoteError(
            f"the copy of {self._catalog.path(known.key)!r} is taken away for room at once: raise mirror_bytes"
        )

    def fetch(self, known: Object, timeline: int | None, spans: Iterable[ranges.Span]) -> ranges.PartialShard | None:
        """Begin to download parts of a shard; return None if its copy is there, or is worth downloading whole."""
        known = self._shards.newest(known, timeline)
        if self._mirror.find(known) is not None:
            return None
        self._catalog.check_process()
        parts = ranges.joined(spans)
        cost = ranges.cost(parts)
        if known.size <= self._mirror.most_bytes and (known.size <= ranges.WHOLE_BYTES or 2 * cost >= known.size):
            self.begin(known, timeline)
            return None
        self._ahead.note(known, timeline, cost)
        return ranges.PartialShard(
            (begin, self._ranges.begin(f"{known.key}\n{known.tag}\n{timeline}\n{begin}-{end}", functools.partial(
                self._shards.part, known, timeline, (begin, end)
            ))) for begin, end in parts
        )  # fmt: skip

    def stop(self) -> None:
        """Stop reading ahead until something is asked for again, and wait for that, but not for ever."""
        if os.getpid() == self._process:  # a forked one has no threads, and may have their locks
            deadline = time.monotonic() + STOP_SECONDS
            self._stops += 1
            self._ahead.stop()
            for download in self._downloads.under_way():
                download.wait(deadline - time.monotonic())

    def stats(self) -> dict[str, Any]:
        """Return as JSON what was downloaded, and what of it was read ahead."""
        counted = {"requests": self._shards.requests, "received_bytes": self._shards.received}
        return {"url": self._catalog.url, **counted, **self._ahead.stats()}

    def forget(self, key: str) -> None:
        """Remove the copy of a shard whose bytes were found damaged, so that it is downloaded once more."""
        known = self._catalog.listing.there.get(key)
        if known is not None:
            self.bundles.suspect(key)
            self._mirror.drop(known)

    def _download(self, known: Object, timeline: int | None, called_off: Callable[[], bool]) -> str:
        """Download a shard, and return the path of its copy, which may be that of a newer version."""
        for attempt in range(TRIES):
            if called_off():
                raise CalledOffError(known.key)
            if (path := self._mirror.find(known)) is not None:
                return path  # it came between the look and the beginning of this download
            found, pieces = self._shards.get(known, timeline)
            try:
                return self._mirror.keep(found, _unless(called_off, pieces))
            except (RemoteError, DiskFullError):  # cut short; or there is room now
                if attempt == TRIES - 1 or found.size > self._mirror.most_bytes:
                    raise
        raise AssertionError("unreachable")


def _unless(called_off: Callable[[], bool], pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces; raise CalledOffError at the first that comes when nobody wants them any more."""
    for piece in pieces:
        if called_off():
            raise CalledOffError
        yield piece
