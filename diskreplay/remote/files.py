"""A remote store as a file system that is read only: :class:`diskreplay.storage.files.Files` over objects and a mirror.

Paths are URLs, so that every error names the object. What is there is known from a listing, taken at the beginning and
at every :meth:`RemoteFiles.refresh`; the streams' commit records belong to it. They are read before the listing that
counts, and so name no shard that it lacks. Shards are downloaded whole, when one of their chunks is asked for.

A shard that was replaced since the listing has grown, or its stream has gone back to a checkpoint: then the records are
read again, and the timeline of its stream must be the one that it was.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from diskreplay.errors import CorruptionError
from diskreplay.remote import bundles
from diskreplay.remote.downloads import Download, Downloads
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Object, Objects
from diskreplay.storage import files as fs
from diskreplay.storage import metadata

STREAMS = "streams"
ATTEMPTS = 20
"""Of a listing, while writers replace records; of a download, while they replace the object."""


class RemoteFile:
    """A shard: parts of it that a bundle had, until the rest is asked for; then its copy in the mirror."""

    def __init__(self, files: RemoteFiles, key: str, known: Object) -> None:
        self._files = files
        self._key = key
        self._known = known
        self._part = files.bundled(key, known)
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
            self._files.begin(self._known)

    def descriptor(self) -> int:
        """Of the copy in the mirror."""
        return self._copy().fileno()

    def _copy(self) -> fs.LocalFile:
        if self._local is None:
            self._local = self._files.copy(self._known)
        return self._local

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        raise _read_only(self._key)

    def truncate(self, size: int, /) -> None:
        raise _read_only(self._key)

    def sync(self) -> None:
        raise _read_only(self._key)


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
        self._lock = threading.RLock()
        self._there: dict[str, Object] = {}
        self._children: dict[str, set[str]] = {}
        self._documents: dict[str, tuple[str, bytes]] = {}
        """Tag and bytes of those that were read, by key."""
        self._bundles: dict[str, bundles.Bundles] = {}
        self._downloads: Downloads[str] = Downloads()
        self.refresh()

    # What is there

    def refresh(self) -> None:
        """Looks again at what is there. RemoteError where that fails; what was known before stays."""
        listed = self._list()
        known = {key: tag for key, (tag, _) in self._documents.items()}
        changed = [one for one in listed.values() if _is_record(one.key) and known.get(one.key) != one.tag]
        documents = dict(self._documents)
        if changed:
            documents |= self._read_all(changed)
            listed = self._list()
        # A stream that has no record yet is being made.
        whole = {key.split("/")[1] for key in documents if _is_record(key)}
        listed = {key: one for key, one in listed.items() if _stream(key) is None or _stream(key) in whole}
        children: dict[str, set[str]] = {}
        for key in listed:
            parts = key.split("/")
            for depth in range(len(parts)):
                children.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
        with self._lock:
            self._there, self._children = listed, children
            self._documents = {key: found for key, found in documents.items() if key in listed}

    def _list(self) -> dict[str, Object]:
        return {one.key: one for one in self.objects.list("")}

    def _read_all(self, objects: Iterable[Object]) -> dict[str, tuple[str, bytes]]:
        downloads: Downloads[tuple[str, bytes]] = Downloads()
        begun = {one.key: downloads.begin(one.key, lambda key=one.key: self._get(key)) for one in objects}  # type: ignore[misc]
        found = {}
        for key, download in begun.items():
            try:
                found[key] = download.result()
            except FileNotFoundError:
                continue  # removed since
        return found

    def _get(self, key: str) -> tuple[str, bytes]:
        found, pieces = self.objects.get(key)
        return found.tag, b"".join(pieces)

    # Files

    def open(self, path: str, *, write: bool = False) -> fs.File:
        if write:
            raise _read_only(path)
        known = self._known(path)
        if known is None:
            self.refresh()  # what is missing may have been evicted, which the newer record says
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return RemoteFile(self, known.key, known)

    def read(self, path: str) -> bytes:
        key = self._key(path)
        known = self._known(path)
        if known is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self._lock:
            found = self._documents.get(key)
        if found is None or (found[0] != known.tag and not _is_record(key)):
            found = self._get(key)
            with self._lock:
                self._documents[key] = found
        return found[1]

    def list(self, path: str) -> list[str]:
        with self._lock:
            return sorted(self._children.get(self._key(path), ()))

    def size(self, path: str) -> int | None:
        known = self._known(path)
        return None if known is None else known.size

    def kind(self, path: str) -> fs.Kind | None:
        key = self._key(path)
        with self._lock:
            if key in self._there:
                return "file"
            return "directory" if key in self._children else None

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

    def begin(self, known: Object) -> Download[str] | None:
        """Begins to download an object; None where its copy is there."""
        if self.mirror.find(known) is not None:
            return None
        return self._downloads.begin(f"{known.key}\n{known.tag}", lambda: self._download(known))

    def copy(self, known: Object) -> fs.LocalFile:
        """The copy of a shard, downloaded if need be; CorruptionError where there is no such shard any more."""
        for _ in range(ATTEMPTS):
            download = self.begin(known)
            path = self.mirror.find(known) if download is None else download.result()
            if path is not None:
                try:
                    return fs.LocalFile(path, write=False)
                except FileNotFoundError:
                    continue  # another process took it away for room
        raise CorruptionError(
            f"{self._path(known.key)!r} cannot be kept: raise mirror_bytes", file=self._path(known.key)
        )

    def _download(self, known: Object) -> str:
        """Downloads an object; the path of its copy, which may be that of a newer version."""
        timeline = self._timeline(known.key)
        for _ in range(ATTEMPTS):
            try:
                found, pieces = self.objects.get(known.key)
            except FileNotFoundError:
                self.refresh()
                raise self._gone(known.key, "the object is missing") from None
            if found.tag != known.tag:
                self.refresh()
                if self._timeline(known.key) != timeline:
                    raise self._gone(known.key, "the stream has gone back to a checkpoint; refresh")
                now = self._known(self._path(known.key))
                if now is None or now.tag != found.tag:
                    continue  # replaced once more
            return self.mirror.keep(found, pieces)
        raise self._gone(known.key, "the object is replaced faster than it can be read")

    def bundled(self, key: str, known: Object) -> bundles.Part | None:
        """What a bundle has of a shard."""
        parts = key.split("/")
        if len(parts) < 4 or parts[0] != STREAMS:
            return None
        with self._lock:
            of = self._bundles.setdefault(parts[1], bundles.Bundles())
            there = [self._there[f"{bundles.folder(parts[1])}/{name}"] for name in sorted(self._bundle_names(parts[1]))]
        return of.find("/".join(parts[2:]), known, there, self._get)

    def _bundle_names(self, stream: str) -> Iterable[str]:
        return [name for name in self._children.get(bundles.folder(stream), ()) if name.startswith(bundles.PREFIX)]

    def _timeline(self, key: str) -> Any:
        """The timeline of the stream that a shard belongs to; None for an array of a checkpoint."""
        parts = key.split("/")
        if parts[0] != STREAMS:
            return None
        with self._lock:
            found = self._documents.get(f"{STREAMS}/{parts[1]}/{metadata.NAME}")
        try:
            return json.loads(found[1])["attributes"][metadata.KEY]["timeline"] if found else None
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

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

    def _known(self, path: str) -> Object | None:
        with self._lock:
            return self._there.get(self._key(path))


def _is_record(key: str) -> bool:
    parts = key.split("/")
    return len(parts) == 3 and parts[0] == STREAMS and parts[2] == metadata.NAME


def _stream(key: str) -> str | None:
    """The stream that an object belongs to."""
    parts = key.split("/")
    return parts[1] if len(parts) > 2 and parts[0] == STREAMS else None


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "a remote store is read only; add rows to a local one with remote=url", path)
