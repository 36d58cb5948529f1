"""The bytes of a remote store's shards, as they are now.

A shard that was replaced since the listing has grown, or its stream has gone back to a checkpoint: then all is listed
again, and the timeline of its stream must be the one that it was when the shard was opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from diskreplay.errors import CorruptionError, RemoteError
from diskreplay.interrupts import Lock
from diskreplay.remote.catalog import Catalog
from diskreplay.remote.objects import Object
from diskreplay.remote.ranges import Span
from diskreplay.storage.stream import STREAMS

ATTEMPTS = 20
"""The most tries of a download, while writers replace the object."""
TRIES = 3
"""The most tries of a download that is cut short, or finds the disk full."""


class Shards:
    """The requests for shards; thread-safe.

    Args:
        catalog: the catalog of the store.

    Attributes:
        requests, received: the requests that were made, and the bytes that came.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._counting = Lock("the counts of a mirror")
        self.requests = self.received = 0

    def newest(self, known: Object, timeline: int | None) -> Object:
        """Return a shard as listed last if it has grown: its copy is named so, and no request finds it replaced."""
        listing = self._catalog.listing
        now = listing.there.get(known.key)
        same = now is not None and listing.timeline(known.key) == timeline
        return now if now is not None and same else known

    def get(self, known: Object, timeline: int | None, span: Span | None = None) -> tuple[Object, Iterable[bytes]]:
        """Return a shard, or bytes of it, as :meth:`Objects.get` does, of a newer version if it has grown."""
        for _ in range(ATTEMPTS):
            try:
                found, pieces = self._catalog.objects.get(known.key, span)
            except FileNotFoundError:
                self._catalog.refresh()
                raise self._gone(known.key, "the object is missing") from None
            except RemoteError:
                shorter = None if span is None else self._catalog.objects.head(known.key)
                if span is None or shorter is None or shorter.size > span[0]:
                    raise
                found, pieces = shorter, ()  # storage refuses bytes beyond the end, after a going back too
            if found.tag != known.tag:
                self._catalog.refresh()
                listing = self._catalog.listing
                if listing.timeline(known.key) != timeline:
                    raise self._gone(known.key, "the stream has gone back to a checkpoint; refresh")
                now = listing.there.get(known.key)
                if now is None or now.tag != found.tag:
                    continue  # replaced once more
            return found, self._counted(pieces)
        raise self._gone(known.key, "the object is replaced faster than it can be read")

    def part(self, known: Object, timeline: int | None, span: Span) -> bytes:
        """Download bytes of a shard."""
        for attempt in range(TRIES):
            _, pieces = self.get(known, timeline, span)
            try:
                data = b"".join(pieces)
                if len(data) == (size := span[1] - span[0]):
                    return data
                path = self._catalog.path(known.key)
                raise RemoteError(f"{path} gave {len(data):,} bytes instead of {size:,}; try again")
            except RemoteError:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        with self._counting:
            self.requests += 1
        for piece in pieces:
            with self._counting:
                self.received += len(piece)
            yield piece

    def _gone(self, key: str, what: str) -> CorruptionError:
        parts = key.split("/")
        stream, column = (parts[1], "/".join(parts[2:-1])) if parts[0] == STREAMS else (None, None)
        place, path = f" (stream {stream!r}, column {column!r})" if stream else "", self._catalog.path(key)
        return CorruptionError(f"{path!r}: {what}{place}", file=path, stream=stream, column=column)
