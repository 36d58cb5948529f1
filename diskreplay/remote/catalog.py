"""The catalog of a remote store as of the last look: its objects, and the commit records of its streams.

It is known from a listing, taken at the beginning and at every :meth:`Catalog.refresh`; the streams' commit records
belong to it. They are read before the listing that counts, and so name no shard that it lacks; and once more after it,
where something of a stream is new: a stream that went back to a checkpoint meanwhile replaces its shards, and then all
is read anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterable
from typing import Any

from diskreplay.errors import RemoteConflictError, RemoteError, StoreNotFoundError
from diskreplay.process.locks import Lock
from diskreplay.remote import documents
from diskreplay.remote.downloads import Downloads
from diskreplay.remote.listing import alike, is_plain
from diskreplay.remote.objects import Object, Objects, read
from diskreplay.storage import metadata
from diskreplay.storage.stream import STREAMS

ATTEMPTS = 20
"""The most tries of a listing, while streams go back."""


@dataclasses.dataclass(frozen=True)
class Shard(Object):
    """A shard as it was listed, and the timeline of its stream then."""

    timeline: int | None


@dataclasses.dataclass(frozen=True)
class Listing:
    """The objects and commit records of one look.

    Attributes:
        there: objects by key.
        children: names below each folder, by its key.
        records: commit records by their keys, each with its tag when it was read: a newer one may be listed.
        timelines: the timelines of the records, by stream; None where one cannot be read.
    """

    there: dict[str, Object]
    children: dict[str, set[str]]
    records: dict[str, tuple[str, bytes]]
    timelines: dict[str, int | None]

    def shard(self, key: str) -> Shard | None:
        found = self.there.get(key)
        return None if found is None else Shard(**vars(found), timeline=self.timeline(key))

    def timeline(self, key: str) -> int | None:
        """Return the timeline of the stream to which an object belongs."""
        return self.timelines.get(stream_of(key) or "")


class Catalog:
    """The catalog of a store, which looks again when it is asked to; thread-safe.

    Args:
        objects: the objects of the store.

    Attributes:
        url: the URL of the store.
        listing: the newest listing; it is replaced as a whole, so a thread that reads it waits for nobody.
        alike: keys that are no store's and look as if they were, as of the first listing.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self.url = objects.url
        self.listing = Listing({}, {}, {}, {})
        self.alike: list[str] = []
        self._process = os.getpid()
        self._refreshing = Lock(f"the store at {self.url!r}")
        self._documents: dict[str, tuple[str, bytes]] = {}
        """The tag and bytes of the documents that were read, by key."""
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is there.

        Raises RemoteError where that fails, StoreNotFoundError where the store was removed, RemoteConflictError where
        another is in its place; what was known before stays.
        """
        self.check_process()
        with self._refreshing:
            before = self.listing
            listed = self._list()
            behind = {key for key, (tag, _) in before.records.items() if key in listed and listed[key].tag != tag}
            if listed.items() == before.there.items() and not behind:
                return
            self._check_same(before.there, listed)
            moved = _moved(before.there, listed) | behind
            records = {**before.records, **self._read_records(moved, listed)}
            for _ in range(ATTEMPTS):
                again = self._list()
                moved |= _moved(listed, again)
                listed = again
                later = self._read_records(moved, listed)
                if all(_timeline(later.get(key)) == _timeline(records.get(key)) for key in moved):
                    break
                records |= later
            else:
                raise RemoteError(f"streams of {self.url} go back to checkpoints again and again; try again")
            self.listing = _listing(listed, records)
            known = self._documents.copy()  # at once: another thread may read one more meanwhile
            self._documents = {key: found for key, found in known.items() if key in listed}

    def _check_same(self, before: dict[str, Object], listed: dict[str, Object]) -> None:
        """Check that the store under the URL is still the one that was opened."""
        was, now = before.get(metadata.NAME), listed.get(metadata.NAME)
        if was is None or was == now:
            return
        if now is None:
            raise StoreNotFoundError(f"there is no store at {self.url!r} any more: it was removed since it was opened")
        known = self._documents.get(metadata.NAME)
        if known is not None and _schema(known[1]) != _schema(self._get(metadata.NAME)[1]):
            raise RemoteConflictError(f"at {self.url!r} is another store than the one that was opened: open it anew")

    def _list(self) -> dict[str, Object]:
        found = self.objects.list("")
        if not self.listing.there:
            self.alike = alike(one.key for one in found)
        return {one.key: one for one in found if is_plain(one.key)}

    def _read_records(self, keys: Iterable[str], listed: dict[str, Object]) -> dict[str, tuple[str, bytes]]:
        """Return the records that are there, read several at a time."""
        downloads: Downloads[tuple[str, bytes]] = Downloads()
        begun = {key: downloads.begin(key, functools.partial(self._get, key)) for key in keys if key in listed}
        found = {}
        for key, download in begun.items():
            with contextlib.suppress(FileNotFoundError):  # removed since
                found[key] = download.result()
        return found

    def _get(self, key: str, _: object = None) -> tuple[str, bytes]:
        found, data = read(self.objects, key, metadata.MAX_BYTES)
        return found.tag, data

    def read(self, key: str) -> bytes | None:
        """Return the bytes of a document as it was listed, or None if there is none."""
        listing = self.listing
        known = listing.there.get(key)
        if known is None:
            return None
        if key in listing.records:
            return listing.records[key][1]
        found = self._documents.get(key)
        if found is None or found[0] != known.tag:
            found = self._documents[key] = self._get(key)
        return found[1]

    def path(self, key: str) -> str:
        return f"{self.url}/{key}"

    def check_process(self) -> None:
        """Raise RemoteError in a forked process."""
        if os.getpid() != self._process:
            raise RemoteError(
                f"{self.url}: a forked process has none of the threads that requests need; start it with "
                "multiprocessing's 'spawn' or 'forkserver', or open the store in it"
            )


def _listing(listed: dict[str, Object], records: dict[str, tuple[str, bytes]]) -> Listing:
    records = {key: record for key, record in records.items() if key in listed}
    timelines = {stream_of(key) or "": _timeline(record) for key, record in records.items()}
    # A stream that has no record yet is being made.
    there = {key: one for key, one in listed.items() if (name := stream_of(key)) is None or name in timelines}
    children: dict[str, set[str]] = {}
    for key in there:
        parts = key.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return Listing(there, children, records, timelines)


def _moved(before: dict[str, Object], now: dict[str, Object]) -> set[str]:
    """Return the keys of the records of streams of which something is new."""
    new = (key for key, one in now.items() if key not in before or before[key].tag != one.tag)
    return {f"{STREAMS}/{name}/{metadata.NAME}" for name in map(stream_of, new) if name is not None}


def _timeline(record: tuple[str, bytes] | None) -> int | None:
    found = documents.ours(record[1] if record else b"").get("timeline")
    return found if type(found) is int else None


def _schema(document: bytes) -> Any:
    """Return the schema in a store's own document, which says which store it is."""
    return documents.ours(document).get("schema")


def stream_of(key: str) -> str | None:
    """Return the stream that an object belongs to, or None."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == STREAMS else None
