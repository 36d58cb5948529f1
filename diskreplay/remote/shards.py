"""The bytes of a remote store's shards: from whole copies in the mirror, or parts of those that have none.

A request costs its latency beside its bytes. So what lies close together is one request, and what is most of a shard,
or a small shard, is downloaded whole. Of another one a batch asks for its chunks alone, and
:mod:`diskreplay.remote.prefetcher` downloads the shard beside it. A shard that grew is downloaded from where its older
copy ends. One that is larger than half the mirror has no copy: all reads of it are requests.

The bytes under a key and a tag never change. A shard that was replaced since the listing has grown, or its stream has
gone back to a checkpoint: then all is listed again, and the timeline of its stream must be the one that it was when the
shard was opened.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from diskreplay.errors import CorruptionError, DiskFullError, RemoteError
from diskreplay.process.locks import Lock
from diskreplay.remote.catalog import Catalog, Shard, stream_of
from diskreplay.remote.downloads import AfterDownload, CalledOffError, Download, Downloads, call_off
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.needed import needed_objects
from diskreplay.remote.objects import Object
from diskreplay.remote.prefetcher import ShardPrefetcher
from diskreplay.schema.columns import Schema
from diskreplay.storage.commit import Commit
from diskreplay.storage.files import Readable
from diskreplay.storage.local_files import LocalFile

Span = tuple[int, int]
"""The bytes of a shard from the first number on, below the second."""
Taken = TypeVar("Taken")

RANGE_THREADS = 64
"""The threads that ask for chunks at the same time: they wait for the network."""
REQUEST_BYTES = 64 << 10
"""The bytes that cost as much time as one more request: spans as close as that are one request."""
WHOLE_BYTES = 256 << 10
"""The largest shard that is always downloaded whole."""
ATTEMPTS = 20
"""The most tries for a copy, while it is called off or taken away for room."""
TRIES = 3
"""The most tries of a download that is cut short, or finds the disk full."""
STOP_SECONDS = 5.0
"""The longest that :meth:`Shards.stop` waits, in seconds: on a silent network, what is under way ends later."""


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the requests by which spans are asked for, ascending."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= REQUEST_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def cost(spans: Iterable[Span]) -> int:
    return sum(end - begin + REQUEST_BYTES for begin, end in spans)


class PartialShard(Readable):
    """A shard of which parts are being downloaded: a file that has nothing else.

    Args:
        parts: the first byte of each part, ascending, and its download.
    """

    def __init__(self, parts: Iterable[tuple[int, Download[bytes]]]) -> None:
        self._parts = list(parts)
        self._begins = [begin for begin, _ in self._parts]

    def pread(self, size: int, offset: int, /) -> bytes:
        """Wait for the part, and return it or raise what its download raised."""
        begin, download = self._parts[bisect.bisect_right(self._begins, offset) - 1]
        return download.result()[offset - begin : offset - begin + size]


class Shards:
    """The reads of shards; thread-safe.

    Args:
        catalog: the catalog of the store.
        mirror: the mirror, where the copies are kept.

    Attributes:
        downloads: the downloads of whole shards.
        prefetcher: what begins downloads of shards of which batches ask for parts.
    """

    def __init__(self, catalog: Catalog, mirror: Mirror) -> None:
        self.downloads: Downloads[str] = Downloads()
        self.prefetcher = ShardPrefetcher(mirror, self.begin)
        self._catalog = catalog
        self._mirror = mirror
        self._parts: Downloads[bytes] = Downloads(RANGE_THREADS)
        self._indexes: dict[Shard, tuple[int, Download[bytes]]] = {}
        """The first byte of the index of each shard that is being opened, and the download of what is behind it."""
        self._kept: dict[str, Shard] = {}
        """The versions of shards that were downloaded last, by key."""
        self._process = os.getpid()
        self._counting = Lock("the counts of a mirror")
        self._requests = self._received = 0

    @contextlib.contextmanager
    def coming(self, schema: Schema, commits: Mapping[str, Commit]) -> Iterator[None]:
        """Download at once what is read first, while commits of streams, given by name, are read.

        What fails is left to whoever reads it. At the end what was begun here, and not before, is called off.
        """
        before, listing = self.downloads.under_way(), self._catalog.listing
        room = self._mirror.most_bytes // 2  # else copies would be taken away for others before they are read
        begun: list[Download[Any]] = []
        try:
            for stream, commit in commits.items():
                with contextlib.suppress(CorruptionError):
                    for one in needed_objects(schema, stream, commit):
                        shard = listing.shard(one.key)
                        if shard is None:  # it is damaged, and names any number of them
                            break
                        if one.end is not None:
                            begun += self._begin_index(shard, max(0, shard.size - one.end))
                        elif room >= 0 and (download := self.begin(shard)) is not None and download not in before:
                            begun.append(download)
                            room -= shard.size
            yield
        finally:
            self._indexes = {}
            call_off(begun, STOP_SECONDS)

    def _begin_index(self, shard: Shard, first: int) -> list[Download[bytes]]:
        """Begin to download what is from a byte on; return the download, or none if there is a copy of the shard."""
        if self._mirror.find(shard) is not None:
            return []
        download = self._begin_part(shard, (first, shard.size))
        self._indexes[shard] = first, download
        return [download]

    def index(self, shard: Shard, size: int, offset: int) -> bytes | None:
        """Return bytes of the index of a shard that is being opened, or None for other bytes."""
        first, download = self._indexes.get(shard, (shard.size, None))
        return download.result()[offset - first :][:size] if download is not None and offset >= first else None

    def part(self, shard: Shard, size: int, offset: int) -> bytes:
        """Return bytes of a shard that has no copy, fewer only where it ends."""
        shard = self.newest(shard)
        return self._begin_part(shard, (offset, min(offset + size, shard.size))).result()

    def begin(self, shard: Shard, then: AfterDownload | None = None) -> Download[str] | None:
        """Begin to download a shard, with ``then`` called after it; return None if its copy is there, or never is."""
        shard = self.newest(shard)
        if not self._mirror.takes(shard) or self._mirror.find(shard) is not None:
            return None
        self._catalog.check_process()
        return self.downloads.begin(shard, functools.partial(self._download, shard), then)

    def copy(self, shard: Shard) -> LocalFile | None:
        """Return the copy of a shard, downloaded if need be, or None if it is too large for one.

        Raises CorruptionError if the shard is gone.
        """
        for _ in range(ATTEMPTS):
            if not self._mirror.takes(self.newest(shard)):
                return None
            download = self.begin(shard)
            try:
                path = self._mirror.path(self.newest(shard)) if download is None else download.result()
            except CalledOffError:
                continue  # it was one that was read ahead
            with contextlib.suppress(FileNotFoundError):  # another process took it away for room
                return LocalFile(path, write=False)
        raise RemoteError(
            f"the copy of {self._catalog.path(shard.key)!r} is taken away for room at once: raise mirror_bytes"
        )

    def fetch(self, shard: Shard, spans: Iterable[Span]) -> PartialShard | None:
        """Begin to download parts of a shard; return None if its copy is there, or is worth downloading whole."""
        shard = self.newest(shard)
        if self._mirror.find(shard) is not None:
            return None
        self._catalog.check_process()
        parts = joined(spans)
        if self._mirror.takes(shard):
            if shard.size <= max(WHOLE_BYTES, 2 * cost(parts)):
                self.begin(shard)
                return None
            self.prefetcher.note(shard, cost(parts))
        return PartialShard((span[0], self._begin_part(shard, span)) for span in parts)

    def stop(self) -> None:
        """Stop reading ahead until something is asked for again, and wait for that, but not for ever."""
        if os.getpid() == self._process:  # a forked one has no threads, and may have their locks
            self.prefetcher.forget()
            call_off(self.downloads.under_way(), STOP_SECONDS)

    def stats(self) -> dict[str, Any]:
        """Return as JSON what was downloaded, and what of it was read ahead."""
        counted = {"requests": self._requests, "received_bytes": self._received}
        return {"url": self._catalog.url, **counted, **self.prefetcher.stats()}

    def forget(self, key: str) -> None:
        """Remove the copy of a shard whose bytes were found damaged, so that it is downloaded once more."""
        known = self._catalog.listing.there.get(key)
        if known is not None:
            self._mirror.drop(known)
            self._kept.pop(key, None)

    def newest(self, shard: Shard) -> Shard:
        """Return a shard as listed last if it has grown: its copy is named so, and no request finds it replaced."""
        now = self._catalog.listing.shard(shard.key)
        return now if now is not None and now.timeline == shard.timeline else shard

    def _download(self, shard: Shard, download: Download[str]) -> str:
        """Download a shard, and return the path of its copy, which may be that of a newer version."""
        if (path := self._mirror.find(shard)) is not None:
            return path  # it came between the look and the beginning of this download
        take: Callable[[Object, Iterable[bytes]], str] = self._mirror.keep
        span, older = None, self._kept.get(shard.key, shard)
        if older.timeline == shard.timeline and older.size < shard.size and (path := self._mirror.find(older)):
            with contextlib.suppress(FileNotFoundError):  # another process took it away for room
                beginning, span = LocalFile(path, write=False).pread(older.size, 0), (older.size, shard.size)
                take = lambda _, pieces: self._mirror.keep(shard, itertools.chain([beginning], pieces))  # noqa: E731
        path = self._taken(take, shard, span, download)
        self._kept[shard.key] = shard
        return path

    def _begin_part(self, shard: Shard, span: Span) -> Download[bytes]:
        return self._parts.begin((shard, span), functools.partial(self._part, shard, span))

    def _part(self, shard: Shard, span: Span, download: Download[bytes]) -> bytes:
        def take(_: Object, pieces: Iterable[bytes]) -> bytes:
            data, size = b"".join(pieces), span[1] - span[0]
            if len(data) != size:
                path = self._catalog.path(shard.key)
                raise RemoteError(f"{path} gave {len(data):,} bytes instead of {size:,}; try again")
            return data

        return self._taken(take, shard, span, download)

    def _taken(
        self, take: Callable[[Object, Iterable[bytes]], Taken], shard: Shard, span: Span | None, download: Download[Any]
    ) -> Taken:
        """Return what ``take`` makes of a shard's bytes, which are asked for again if they are cut short."""
        for attempt in range(TRIES):
            found, pieces = self._get(shard, span)
            try:
                return take(found, self._counted(pieces, download))
            except (RemoteError, DiskFullError):  # cut short; or there is room now
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _get(self, shard: Shard, span: Span | None) -> tuple[Object, Iterable[bytes]]:
        """Return a shard, or bytes of it, as :meth:`Objects.get` does, of a newer version if it has grown."""
        objects = self._catalog.objects
        try:
            found, pieces = objects.get(shard.key, span)
        except FileNotFoundError:
            self._catalog.refresh()
            raise self._gone(shard.key, "the object is missing") from None
        except RemoteError:
            shorter = None if span is None else objects.head(shard.key)
            if span is None or shorter is None or shorter.size > span[0]:
                raise
            found, pieces = shorter, ()  # storage refuses bytes beyond the end, after a going back too
        if found.tag != shard.tag:
            self._catalog.refresh()
            if self._catalog.listing.timeline(shard.key) != shard.timeline:
                raise self._gone(shard.key, "the stream has gone back to a checkpoint; refresh")
        return found, pieces

    def _counted(self, pieces: Iterable[bytes], download: Download[Any]) -> Iterator[bytes]:
        """Yield the pieces of a download; raise CalledOffError at the first that comes after it was called off."""
        with self._counting:
            self._requests += 1
        for piece in pieces:
            download.check()
            with self._counting:
                self._received += len(piece)
            yield piece

    def _gone(self, key: str, what: str) -> CorruptionError:
        path, stream = self._catalog.path(key), stream_of(key)
        column = None if stream is None else "/".join(key.split("/")[2:-1])
        place = f" (stream {stream!r}, column {column!r})" if stream else ""
        return CorruptionError(f"{path!r}: {what}{place}", file=path, stream=stream, column=column)
