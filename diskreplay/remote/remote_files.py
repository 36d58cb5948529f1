"""A remote store as a read-only file system: :class:`diskreplay.storage.files.Files` over objects and a mirror.

Paths are URLs, so that every error names the object. :mod:`diskreplay.remote.catalog` knows what is there, and
:mod:`diskreplay.remote.shards` has the bytes of shards.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from diskreplay.remote.catalog import Catalog, Shard
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import Objects, connect
from diskreplay.remote.shards import PartialShard, Shards, Span
from diskreplay.schema.columns import Schema
from diskreplay.storage import files as fs
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFile


class RemoteFile(fs.File):
    """A shard: its index until the rest is asked for, then its copy in the mirror, if that takes one."""

    def __init__(self, shards: Shards, shard: Shard) -> None:
        self._shards = shards
        self._shard = shard
        self._local: LocalFile | None = None

    def pread(self, size: int, offset: int, /) -> bytes:
        if self._local is not None and offset + size > self._local.size():
            self._local = None  # the shard has grown since
        index = self._shards.index(self._shard, size, offset) if self._local is None else None
        if index is not None:
            return index
        copy = self._copy()
        return self._shards.part(self._shard, size, offset) if copy is None else copy.pread(size, offset)

    def size(self) -> int:
        return self._shards.newest(self._shard).size

    def begin(self) -> None:
        if self._local is None:
            self._shards.begin(self._shard)

    @property
    def absent(self) -> bool:
        return self._local is None

    def fetch(self, spans: Iterable[Span]) -> PartialShard | None:
        return self._shards.fetch(self._shard, spans)

    def will_need(self, offset: int, size: int, /) -> None:
        self.begin()

    def descriptor(self) -> int | None:
        """Wait for the copy in the mirror, and return its descriptor, or None where it takes none."""
        copy = self._copy()
        return None if copy is None else copy.descriptor()

    def _copy(self) -> LocalFile | None:
        if self._local is None:
            self._local = self._shards.copy(self._shard)
        return self._local

    def _refuse(self, *_: object) -> NoReturn:
        raise _read_only(self._shard.key)

    pwrite = truncate = sync = _refuse


class RemoteFiles(fs.Files):
    """The files of one store under a URL, as the module's docstring says.

    Args:
        objects: the objects of the store.
        mirror: the mirror, where copies of shards are kept.
    """

    def __init__(self, objects: Objects, mirror: Mirror) -> None:
        self.objects = objects
        self.url = objects.url
        self.mirror = mirror
        self.catalog = Catalog(objects)
        self.shards = Shards(self.catalog, mirror)

    @property
    def remote(self) -> bool:
        return True

    def refresh(self) -> None:
        self.catalog.refresh()

    def stop(self) -> None:
        self.shards.stop()

    def stats(self) -> dict[str, Any]:
        return self.shards.stats()

    def coming(self, schema: Schema, commits: Mapping[str, Commit]) -> AbstractContextManager[None]:
        return self.shards.coming(schema, commits)

    def forget(self, path: str) -> bool:
        self.shards.forget(self._key(path))
        return True

    def zarr(self, path: str) -> Any:
        import zarr

        return zarr.storage.ObjectStore(connect(path), read_only=True)

    def elsewhere(self) -> dict[str, Any] | None:
        return {"mirror": self.mirror.directory, "mirror_bytes": self.mirror.most_bytes}

    def open(self, path: str, *, write: bool = False) -> fs.File:
        if write:
            raise _read_only(path)
        shard = self.catalog.listing.shard(self._key(path))
        if shard is None:
            self.refresh()  # what is missing may have been evicted, which the newer record says
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return RemoteFile(self.shards, shard)

    def read(self, path: str) -> bytes:
        data = self.catalog.read(self._key(path))
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return data

    def list(self, path: str) -> list[str]:
        return sorted(self.catalog.listing.children.get(self._key(path), ()))

    def size(self, path: str) -> int | None:
        known = self.catalog.listing.there.get(self._key(path))
        return None if known is None else known.size

    def kind(self, path: str) -> fs.Kind | None:
        key, listing = self._key(path), self.catalog.listing
        if key in listing.there:
            return "file"
        return "directory" if key in listing.children else None

    def _refuse(self, path: str) -> NoReturn:
        raise _read_only(path)

    mkdir = unlink = rmdir = sync_dir = lock = _refuse

    def rename(self, source: str, target: str) -> None:
        raise _read_only(target)

    def lock_holder(self, path: str) -> str:
        return "another process"

    def _key(self, path: str) -> str:
        if path != self.url and not path.startswith(f"{self.url}/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return path[len(self.url) + 1 :]


def _read_only(path: str) -> OSError:
    return OSError(errno.EROFS, "a remote store is read only; add rows to a local one with remote=url", path)
