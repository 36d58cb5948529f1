"""A remote store as a file system that is read only: :class:`diskreplay.storage.files.Files` over objects and a mirror.

Paths are URLs, so that every error names the object. What is there is known from a listing, taken at the beginning
and at every :meth:`RemoteFiles.refresh`; the streams' commit records belong to it. They are read before the listing
that counts, and so name no shard that it lacks; and once more after it, where something of a stream is new: a stream
that went back to a checkpoint meanwhile replaces its shards, and then all is read anew.

Shards are downloaded whole where all of them is read. Of one that has no copy here a batch asks for its chunks alone,
and :mod:`diskreplay.remote.ahead` downloads the shard beside it.

A shard that was replaced since the listing has grown, or its stream has gone back to a checkpoint: then all is listed
again, and the timeline of its stream must be the one that it was when the shard was opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from diskreplay.errors import CorruptionError, DiskFullError, RemoteConflictError, RemoteError, StoreNotFoundError
from diskreplay.interrupts import Lock
from diskreplay.remote import bundles, ranges
from diskreplay.remote.ahead import STOP_SECONDS, Ahead, CalledOffError
from diskreplay.remote.downloads import Download, Downloads
from diskreplay.remote.listing import alike, is_plain
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.needed import shards
from diskreplay.remote.objects import Object, Objects, read
from diskreplay.schema import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit
from diskreplay.storage.stream import STREAMS

ATTEMPTS = 20
"""Of a listing, while streams go back; of a download, while writers replace the object."""
TRIES = 3
"""Of a download that is cut short, or finds the disk full."""
RANGE_THREADS = 64
"""That ask for chunks at the same time: what they wait for is the network."""


@dataclasses.dataclass(frozen=True)
class Listing:
    """What is there.

    Attributes:
        there: objects by key.
        children: names below each folder, by its key.
        records: commit records by the names of their streams.
        timelines: of the records; None where one cannot be read.
    """

    there: dict[str, Object]
    children: dict[str, set[str]]
    records: dict[str, bytes]
    timelines: dict[str, int | None]


class RemoteFile:
    """A shard: parts of it that a bundle had, until the rest is asked for; then its copy in the mirror."""

    def __init__(self, files: RemoteFiles, known: Object, timeline: int | None, part: bundles.Part | None) -> None:
        self._files = files
        self._known = known
        self._timeline = timeline
        self._part = part
        self._local: fs.LocalFile | None = None

    def pread(self, size: int, offset: int, /) -> bytes:
        if self._part is not None and offset >= self._part.offset:
            at = offset - self._part.offset
            return bytes(self._part.data[at : at + size])
        return self._copy().pread(size, offset)

    def size(self) -> int:
        return self._known.size if self._local is None else self._local.size()

    def begin(self) -> None:
        """Begins to download what is not there yet."""
        if self._local is None:
            self._files.begin(self._known, self._timeline)

    @property
    def absent(self) -> bool:
        """Whether no copy of it is open."""
        return self._local is None

    def fetch(self, spans: Iterable[ranges.Span]) -> ranges.Ranges | None:
        """These bytes, which begin to be downloaded; None where they are here, or come with the whole shard."""
        spans = list(spans)
        if self._part is not None and all(begin >= self._part.offset for begin, _ in spans):
            return None
        return self._files.fetch(self._known, self._timeline, spans)

    def descriptor(self) -> int:
        """Of the copy in the mirror."""
        return self._copy().fileno()

    def _copy(self) -> fs.LocalFile:
        if self._local is None:
            self._local = self._files.copy(self._known, self._timeline)
        return self._local

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        raise _read_only(self._known.key)

    def truncate(self, size: int, /) -> None:
        raise _read_only(self._known.key)

    def sync(self) -> None:
        raise _read_only(self._known.key)


class RemoteFiles:
    """The objects of one store; see the module's docstring.

    Args:
        objects: of the store.
        mirror: where copies of shards are kept.
    """

    def __init__(self, objects: Objects, mirror: Mirror) -> None:
        self.objects = objects
        self.mirror = mirror
        self.url = objects.url
        self._process = os.getpid()
        self._refreshing = Lock(f"the store at {self.objects.url!r}")
        self._listing = Listing({}, {}, {}, {})
        """Replaced as a whole: who reads it waits for nobody."""
        self.alike: list[str] = []
        """Keys that are no store's and look as if they were, as of the first listing."""
        self._documents: dict[str, tuple[str, bytes]] = {}
        """Tag and bytes of those that were read, by key."""
        self._bundles: dict[str, bundles.Bundles] = {}
        self._suspect: set[str] = set()
        """Keys of shards whose bytes were found damaged: those of bundles are not used any more."""
        self._downloads: Downloads[str] = Downloads()
        self._ranges: Downloads[bytes] = Downloads(RANGE_THREADS)
        self._ahead = Ahead(mirror, self.begin)
        self._stops = 0
        """So often everything was called off."""
        self._counting = Lock("the counts of a mirror")
        self._requests = self._received = 0
        self.refresh()

    # What is there

    def refresh(self) -> None:
        """Looks again at what is there.

        Raises RemoteError where that fails, StoreNotFoundError where the store was removed, RemoteConflictError where
        another is in its place; what was known before stays.
        """
        self._check_process()
        with self._refreshing:
            before = self._listing
            listed = self._list()
            if listed.items() == before.there.items():
                return
            self._check_same(before.there, listed)
            moved = _moved(before.there, listed)
            records = {**before.records, **self._read_records(moved, listed)}
            for _ in range(ATTEMPTS):
                again = self._list()
                moved |= _moved(listed, again)
                listed = again
                later = self._read_records(moved, listed)
                if all(_timeline(later.get(name)) == _timeline(records.get(name)) for name in moved):
                    break
                records |= later
            else:
                raise RemoteError(f"streams of {self.url} go back to checkpoints again and again; try again")
            self._listing = _listing(listed, records)
            documents = self._documents.copy()  # at once: another thread may read one more meanwhile
            self._documents = {key: found for key, found in documents.items() if key in listed}

    def _check_same(self, before: dict[str, Object], listed: dict[str, Object]) -> None:
        """That the store under the URL is still the one that was opened."""
        was, now = before.get(metadata.NAME), listed.get(metadata.NAME)
        if was is None or was == now:
            return
        if now is None:
            raise StoreNotFoundError(f"there is no store at {self.url!r} any more: it was removed since it was opened")
        known = self._documents.get(metadata.NAME)
        if known is not None and _schema(known[1]) != _schema(self._get(metadata.NAME)):
            raise RemoteConflictError(f"at {self.url!r} is another store than the one that was opened: open it anew")

    @property
    def holds_streams(self) -> bool:
        """Whether a first stream was pushed."""
        return bool(self._listing.records)

    def _list(self) -> dict[str, Object]:
        found = self.objects.list("")
        if not self._listing.there:
            self.alike = alike(one.key for one in found)
        return {one.key: one for one in found if is_plain(one.key)}

    def _read_records(self, names: Iterable[str], listed: dict[str, Object]) -> dict[str, bytes]:
        """The records of those streams that have one, several at a time."""
        downloads: Downloads[bytes] = Downloads()
        keys = {name: f"{STREAMS}/{name}/{metadata.NAME}" for name in names}
        begun = {
            name: downloads.begin(key, functools.partial(self._get, key)) for name, key in keys.items() if key in listed
        }
        found = {}
        for name, download in begun.items():
            with contextlib.suppress(FileNotFoundError):  # removed since
                found[name] = download.result()
        return found

    def _get(self, key: str) -> bytes:
        return read(self.objects, key, metadata.MAX_BYTES)[1]

    # Files

    def open(self, path: str, *, write: bool = False) -> fs.File:
        if write:
            raise _read_only(path)
        key, listing = self._key(path), self._listing
        known = listing.there.get(key)
        if known is None:
            self.refresh()  # what is missing may have been evicted, which the newer record says
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        name = _stream(key)
        return RemoteFile(self, known, listing.timelines.get(name or ""), self._bundled(known, listing))

    def read(self, path: str) -> bytes:
        key, listing = self._key(path), self._listing
        known = listing.there.get(key)
        if known is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if _is_record(key):
            return listing.records[key.split("/")[1]]
        found = self._documents.get(key)
        if found is None or found[0] != known.tag:
            now, data = read(self.objects, key, metadata.MAX_CHECKPOINT_BYTES)
            found = self._documents[key] = now.tag, data
        return found[1]

    def list(self, path: str) -> list[str]:
        return sorted(self._listing.children.get(self._key(path), ()))

    def size(self, path: str) -> int | None:
        known = self._listing.there.get(self._key(path))
        return None if known is None else known.size

    def kind(self, path: str) -> fs.Kind | None:
        key, listing = self._key(path), self._listing
        if key in listing.there:
            return "file"
        return "directory" if key in listing.children else None

    def listed(self) -> dict[str, Object]:
        """All objects by their keys, as of the last refresh."""
        return dict(self._listing.there)

    def stored_bytes(self) -> int:
        """Of all objects."""
        return sum(one.size for one in self._listing.there.values())

    def mkdir(self, path: str) -> None:
        raise _read_only(path)

    def rename(self, source: str, target: str) -> None:
        raise _read_only(target)

    def unlink(self, path: str) -> None:
        raise _read_only(path)

    def rmdir(self, path: str) -> None:
        raise _read_only(path)

    def sync_dir(self, path: str) -> None:
        raise _read_only(path)

    def lock(self, path: str) -> fs.Lock | None:
        raise _read_only(path)

    def lock_holder(self, path: str) -> str:
        return "another process"

    # Shards

    @contextlib.contextmanager
    def coming(self, schema: Schema, commits: Mapping[str, Commit]) -> Iterator[None]:
        """While commits of streams, by their names, are read: what is read first of all of them comes at once.

        What fails is left to whoever reads it. At the end what nobody has asked for is called off.
        """
        over = threading.Event()
        room = self.mirror.most_bytes // 2  # else copies would be taken away for others before they are read
        begun: list[Download[str]] = []

        def begin(stream: str, commit: Commit) -> str:
            nonlocal room
            listing = self._listing
            for key in shards(schema, stream, commit):
                known = listing.there.get(key)
                if known is not None and not over.is_set() and self._bundled(known, listing) is None:
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
        """Begins to download a shard of a timeline; None where its copy is there.

        ``called_off``, by default whether :meth:`stop` was called since, is asked meanwhile: then it ends with
        CalledOffError.
        """
        stops = self._stops
        known = self._newest(known, timeline)
        if self.mirror.find(known) is not None:
            return None
        self._check_process()
        name = f"{known.key}\n{known.tag}\n{timeline}"
        off = called_off or (lambda: self._stops != stops)
        return self._downloads.begin(name, lambda: self._download(known, timeline, off))

    def copy(self, known: Object, timeline: int | None) -> fs.LocalFile:
        """The copy of a shard, downloaded if need be; CorruptionError where there is no such shard any more."""
        for _ in range(ATTEMPTS):
            known = self._newest(known, timeline)
            download = self.begin(known, timeline)
            try:
                path = self.mirror.find(known) if download is None else download.result()
            except CalledOffError:
                continue  # it was one that was read ahead
            if path is not None:
                try:
                    return fs.LocalFile(path, write=False)
                except FileNotFoundError:
                    continue  # another process took it away for room
        raise RemoteError(f"the copy of {self._path(known.key)!r} is taken away for room at once: raise mirror_bytes")

    def fetch(self, known: Object, timeline: int | None, spans: Iterable[ranges.Span]) -> ranges.Ranges | None:
        """Begins to download parts of a shard; None where its copy is there, or comes, since it is worth it."""
        known = self._newest(known, timeline)
        if self.mirror.find(known) is not None:
            return None
        self._check_process()
        parts = ranges.joined(spans)
        cost = ranges.cost(parts)
        if known.size <= self.mirror.most_bytes and (known.size <= ranges.WHOLE_BYTES or 2 * cost >= known.size):
            self.begin(known, timeline)
            return None
        self._ahead.note(known, timeline, cost)
        return ranges.Ranges(
            (begin, self._ranges.begin(f"{known.key}\n{known.tag}\n{timeline}\n{begin}-{end}", functools.partial(
                self._get_part, known, timeline, (begin, end)
            ))) for begin, end in parts
        )  # fmt: skip

    def stop(self) -> None:
        """Reads nothing more ahead, until something is asked for again; waits for it, but not for ever."""
        if os.getpid() == self._process:  # a forked one has no threads, and may have their locks
            deadline = time.monotonic() + STOP_SECONDS
            self._stops += 1
            self._ahead.stop()
            for download in self._downloads.under_way():
                download.wait(deadline - time.monotonic())

    def stats(self) -> dict[str, Any]:
        """What was downloaded, and what of it was read ahead: JSON."""
        counted = {"url": self.url, "requests": self._requests, "received_bytes": self._received}
        return {**counted, **self._ahead.stats()}

    def forget(self, path: str) -> None:
        """Removes the copy of a shard whose bytes were found damaged, so that it is downloaded once more."""
        known = self._listing.there.get(self._key(path))
        if known is not None:
            self._suspect.add(known.key)
            self.mirror.drop(known)

    def _download(self, known: Object, timeline: int | None, called_off: Callable[[], bool]) -> str:
        """Downloads a shard; the path of its copy, which may be that of a newer version."""
        for attempt in range(TRIES):
            if called_off():
                raise CalledOffError(known.key)
            if (path := self.mirror.find(known)) is not None:
                return path  # it came between the look and the beginning of this download
            found, pieces = self._get_shard(known, timeline)
            try:
                return self.mirror.keep(found, _unless(called_off, pieces))
            except (RemoteError, DiskFullError):  # cut short; or there is room now
                if attempt == TRIES - 1 or found.size > self.mirror.most_bytes:
                    raise
        raise AssertionError("unreachable")

    def _get_part(self, known: Object, timeline: int | None, span: ranges.Span) -> bytes:
        """Downloads bytes of a shard."""
        for attempt in range(TRIES):
            _, pieces = self._get_shard(known, timeline, span)
            try:
                data = b"".join(pieces)
                if len(data) != span[1] - span[0]:
                    raise RemoteError(
                        f"{self._path(known.key)} gave {len(data):,} bytes instead of {span[1] - span[0]:,}; try again"
                    )
                return data
            except RemoteError:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _get_shard(
        self, known: Object, timeline: int | None, span: ranges.Span | None = None
    ) -> tuple[Object, Iterable[bytes]]:
        """A shard, or bytes of it, as :meth:`Objects.get` gives them; of a newer version where it has grown."""
        for _ in range(ATTEMPTS):
            try:
                found, pieces = self.objects.get(known.key, span)
            except FileNotFoundError:
                self.refresh()
                raise self._gone(known.key, "the object is missing") from None
            except RemoteError:
                shorter = None if span is None else self.objects.head(known.key)
                if span is None or shorter is None or shorter.size > span[0]:
                    raise
                found, pieces = shorter, ()  # storage refuses bytes beyond the end, after a going back too
            if found.tag != known.tag:
                self.refresh()
                listing = self._listing
                if listing.timelines.get(_stream(known.key) or "") != timeline:
                    raise self._gone(known.key, "the stream has gone back to a checkpoint; refresh")
                now = listing.there.get(known.key)
                if now is None or now.tag != found.tag:
                    continue  # replaced once more
            return found, self._counted(pieces)
        raise self._gone(known.key, "the object is replaced faster than it can be read")

    def _newest(self, known: Object, timeline: int | None) -> Object:
        """A shard as it was listed last, where it has grown: its copy is named so, and no request finds it replaced."""
        listing = self._listing
        now = listing.there.get(known.key)
        same = now is not None and listing.timelines.get(_stream(known.key) or "") == timeline
        return now if now is not None and same else known

    def _counted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        with self._counting:
            self._requests += 1
        for piece in pieces:
            with self._counting:
                self._received += len(piece)
            yield piece

    def _bundled(self, known: Object, listing: Listing) -> bundles.Part | None:
        """What a bundle has of a shard."""
        parts = known.key.split("/")
        if len(parts) < 4 or parts[0] != STREAMS or known.key in self._suspect:
            return None
        folder = bundles.folder(parts[1])
        names = sorted(name for name in listing.children.get(folder, ()) if name.startswith(bundles.PREFIX))
        there = [listing.there[key] for name in names if (key := f"{folder}/{name}") in listing.there]
        if not there:
            return None
        self._check_process()
        of = self._bundles.setdefault(parts[1], bundles.Bundles())
        return of.find("/".join(parts[2:]), known, there, lambda key: read(self.objects, key, bundles.MOST_BYTES))

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise RemoteError(
                f"{self.url}: a forked process has none of the threads that requests need; start it with "
                "multiprocessing's 'spawn' or 'forkserver', or open the store in it"
            )

    def _gone(self, key: str, what: str) -> CorruptionError:
        parts = key.split("/")
        stream, column = (parts[1], "/".join(parts[2:-1])) if parts[0] == STREAMS else (None, None)
        place = f" (stream {stream!r}, column {column!r})" if stream else ""
        return CorruptionError(
            f"{self._path(key)!r}: {what}{place}", file=self._path(key), stream=stream, column=column
        )

    # Names

    def _key(self, path: str) -> str:
        if path != self.url and not path.startswith(f"{self.url}/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path[len(self.url) + 1 :]

    def _path(self, key: str) -> str:
        return f"{self.url}/{key}"


def _unless(called_off: Callable[[], bool], pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces; CalledOffError at the first that comes when nobody wants them any more."""
    for piece in pieces:
        if called_off():
            raise CalledOffError
        yield piece


def _listing(listed: dict[str, Object], records: dict[str, bytes]) -> Listing:
    records = {name: record for name, record in records.items() if f"{STREAMS}/{name}/{metadata.NAME}" in listed}
    # A stream that has no record yet is being made.
    there = {key: one for key, one in listed.items() if (name := _stream(key)) is None or name in records}
    children: dict[str, set[str]] = {}
    for key in there:
        parts = key.split("/")
        for depth in range(len(parts)):
            children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return Listing(there, children, records, {name: _timeline(record) for name, record in records.items()})


def _moved(before: dict[str, Object], now: dict[str, Object]) -> set[str]:
    """The streams of which something is new."""
    new = (key for key, one in now.items() if key not in before or before[key].tag != one.tag)
    return {name for name in map(_stream, new) if name is not None}


def _timeline(record: bytes | None) -> int | None:
    try:
        found = json.loads(record or b"null")["attributes"][metadata.KEY]["timeline"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return found if type(found) is int else None


def _schema(document: bytes) -> Any:
    """What says which store it is, of a store's own document."""
    try:
        return json.loads(document)["attributes"][metadata.KEY]["schema"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _is_record(key: str) -> bool:
    parts = key.split("/")
    return len(parts) == 3 and parts[0] == STREAMS and parts[2] == metadata.NAME


def _stream(key: str) -> str | None:
    """The stream that an object belongs to."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == STREAMS else None


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "a remote store is read only; add rows to a local one with remote=url", path)
