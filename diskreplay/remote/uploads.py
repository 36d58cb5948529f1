"""The objects of a stream under its URL but for its record: which are put, and in which order.

:func:`shards` says which local bytes stand under which keys. :class:`Uploads` puts those that are not there yet, each
array's documents first, the tail last, on the condition that the object there is the one that this push knows. Where a
put is refused, nothing is assumed any more: ChangedError.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from diskreplay.remote import documents
from diskreplay.remote.commit_record import ChangedError, RemoteRecord
from diskreplay.remote.needed import needed_arrays, tail_key, tail_number
from diskreplay.remote.objects import NEW, TakenError, find, put_over
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, root, stream
from diskreplay.storage.column import shard_name
from diskreplay.storage.commit import Commit, Tail, needed_shards
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store


class Local(NamedTuple):
    """The first ``size`` bytes of a local shard or tail that grows, or the whole of a shard that does not (None)."""

    key: str
    path: str
    size: int | None


def shards(store: Store, name: str, newest: Commit, pins: Sequence[Commit]) -> Iterator[tuple[str, list[Local]]]:
    """Yield the arrays of a stream, and the shards of each that the newest record, or a checkpoint's, needs."""
    for path, column in needed_arrays(store.schema, newest).items():
        stored = newest.arrays[path]
        full = (shard for shard in sorted(needed_shards((newest, *pins), path)) if shard < stored.shard)
        sizes = {**dict.fromkeys(full), stored.shard: stored.size}
        key, folder = f"{STREAMS}/{name}/{path}", os.path.join(store.stream_path(name), path)
        names = {shard_name(shard, column): size for shard, size in sizes.items()}
        yield path, [Local(f"{key}/{file}", os.path.join(folder, file), size) for file, size in names.items()]


class Uploads:
    """The remote objects of a stream but for its record; not thread-safe.

    Args:
        record: the record of the stream there.

    Attributes:
        prefix: the key of the stream's directory.
        known: the shards, tails and documents that are remote, by key, as this push put them or found them whole.
    """

    def __init__(self, record: RemoteRecord) -> None:
        self.prefix = f"{STREAMS}/{record.name}"
        self.known: dict[str, Local | bytes] = {}
        self._store, self._name, self._objects = record.store, record.name, record.objects
        self._record = record
        self._tags: dict[str, str] = {}
        """The tags of all that is remote."""

    def look(self) -> None:
        """List what is there, and take nothing of it for whole."""
        there = [one for one in self._objects.list(f"{self.prefix}/") if one.key != self._record.key]
        self._tags = {one.key: one.tag for one in there}
        self.known = {}

    def adopt(self, remote: Commit, pins: Sequence[Commit]) -> None:
        """Take the rows of a remote record for those here; raise RemoteConflictError if they are others."""
        arrays = [there for _, there in shards(self._store, self._name, remote, pins)]
        for one in itertools.chain(*arrays, [self._tail(remote.tail)] if remote.tail.number else []):
            if one.size is not None:
                self._check_prefix(one, one.size)
            if one.key in self._tags:
                self.known[one.key] = one

    def _check_prefix(self, local: Local, size: int) -> None:
        """Raise RemoteConflictError if a remote shard or tail is not the beginning of the local one."""
        try:
            data = _read(local._replace(size=None), self._open(local))
        except FileNotFoundError:
            return  # evicted here since
        if not self._begins(local.key, data[:size]) or len(data) < size:
            raise self._record.conflict("its rows are others than the ones here")

    def _begins(self, key: str, data: bytes) -> bool:
        """Tell whether a remote object begins with these bytes."""
        found = find(self._objects, key)
        return found is not None and found[1][: len(data)] == data

    def put_groups(self, there: bytes, number: int) -> None:
        """Put the documents of a stream that is new, and first a copy of the root ``there`` if its number is low."""
        if number < root.COPIES:
            with contextlib.suppress(TakenError):
                data = metadata.dump(documents.ours(there))
                put_over(self._objects, f"{self.prefix}/{stream.SCRATCH}/{root.COPY}", data, NEW)
        for key in (STREAMS, CHECKPOINTS):
            with contextlib.suppress(TakenError):
                put_over(self._objects, f"{key}/{metadata.NAME}", metadata.dump(metadata.group_document()), NEW)
        columns = [column.name for column in self._store.schema.columns]
        self._put_documents((*stream.groups(columns), *columns))

    def upload(self, newest: Commit, pins: Sequence[Commit]) -> None:
        """Upload what the record needs, and the shards of checkpoints; FileNotFoundError if something is gone here."""
        # While shards are put, the tail may be left, and its file go.
        tail = self._open(self._tail(newest.tail)) if newest.tail.number else None
        for path, needed in shards(self._store, self._name, newest, pins):
            new = [shard for shard in needed if self.known.get(shard.key) != shard]
            self._put_documents(stream.parents(path) if new else ())
            for shard in new:
                self._put(shard.key, _read(shard, self._open(shard)))
                self.known[shard.key] = shard
        if tail is not None:
            self._put_tail(newest.tail, tail)

    def put_tail(self, tail: Tail) -> None:
        """Upload the tail of a checkpoint; raise FileNotFoundError if it is gone here."""
        if tail.number:
            self._put_tail(tail, self._open(self._tail(tail)))

    def _put_tail(self, tail: Tail, file: fs.File) -> None:
        """Upload the bytes of a tail that a record names, whole, if not all of them are known to be there."""
        local = self._tail(tail)
        known = self.known.get(local.key)
        if isinstance(known, Local) and known.size is not None and known.size >= tail.size:
            return
        data = _read(local, file)
        # More of it may be there, which a checkpoint of another names, or a push put that ended then.
        if known is not None or local.key not in self._tags or not self._begins(local.key, data):
            self._put(local.key, data)
        self.known[local.key] = local

    def _tail(self, tail: Tail) -> Local:
        key = tail_key(self._name, tail.number)
        return Local(key, os.path.join(self._store.path, *key.split("/")), tail.size)

    def tails_below(self, oldest: int) -> dict[int, str]:
        """Return the keys of the remote tails with lower numbers, by number."""
        numbers = {number: key for key in self._tags if (number := tail_number(self._name, key)) is not None}
        return {number: key for number, key in numbers.items() if number < oldest}

    def remove(self, keys: Sequence[str]) -> None:
        self._objects.delete(keys)
        for key in keys:
            del self._tags[key]
            self.known.pop(key, None)

    def _put_documents(self, nodes: Iterable[str]) -> None:
        """Put the documents of arrays and groups that changed."""
        for node in nodes:
            data = self._store.files.read(os.path.join(self._store.stream_path(self._name), node, metadata.NAME))
            key = f"{self.prefix}/{node}/{metadata.NAME}"
            if self.known.get(key) != data:
                self._put(key, data)
                self.known[key] = data

    def _put(self, key: str, data: bytes) -> None:
        """Replace the known object of this stream."""
        self._record.fence()
        try:
            self._tags[key] = put_over(self._objects, key, data, self._tags.get(key, NEW))
        except TakenError:
            raise ChangedError(key) from None

    def _open(self, local: Local) -> fs.File:
        """Open a local shard or tail; raise FileNotFoundError if it is gone."""
        with fs.translate_reads(local.path):
            return self._store.files.open(local.path)


def _read(local: Local, file: fs.File) -> bytes:
    with fs.translate_reads(local.path):
        return stream.read_first(file, file.size() if local.size is None else local.size)
