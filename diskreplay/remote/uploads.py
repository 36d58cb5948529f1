"""The objects of a stream under its URL but for its record: which are put, and in which order.

:func:`shards` says which local bytes stand under which keys. :class:`Uploads` puts those that are not there yet, each
array's documents first, on the condition that the object there is the one that this push knows. Where a put is refused,
nothing is assumed any more: ChangedError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from diskreplay.remote import documents
from diskreplay.remote.commit_record import ChangedError, RemoteRecord
from diskreplay.remote.needed import needed_arrays
from diskreplay.remote.objects import NEW, TakenError, find, put_over
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, root, stream
from diskreplay.storage.column import shard_name
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store


class Shard(NamedTuple):
    """The first ``size`` bytes of a local shard that grows, or the whole of one that does not (None)."""

    key: str
    path: str
    size: int | None


def shards(store: Store, name: str, newest: Commit, pins: Sequence[Commit]) -> Iterator[tuple[str, list[Shard]]]:
    """Yield the arrays of a stream, and the shards of each that the newest record, or a checkpoint's, needs."""
    context = store.schema.context
    for path, column in needed_arrays(store.schema, newest).items():
        tail, rows = newest.tails[path], column.shard_rows
        spans = [commit.span(path, context) for commit in (newest, *pins) if path in commit.tails]
        full = {
            shard for span in spans if span.end > span.begin
            for shard in range(span.begin // rows, min(tail.shard, (span.end - 1) // rows + 1))
        }  # fmt: skip
        sizes = {**dict.fromkeys(sorted(full)), tail.shard: tail.size}
        key, folder = f"{STREAMS}/{name}/{path}", os.path.join(store.stream_path(name), path)
        names = {shard_name(shard, column): size for shard, size in sizes.items()}
        yield path, [Shard(f"{key}/{file}", os.path.join(folder, file), size) for file, size in names.items()]


class Uploads:
    """The remote objects of a stream but for its record; not thread-safe.

    Args:
        record: the record of the stream there.

    Attributes:
        prefix: the key of the stream's directory.
        known: the shards and documents that are remote, by key, as this push put them or found them whole.
    """

    def __init__(self, record: RemoteRecord) -> None:
        self.prefix = f"{STREAMS}/{record.name}"
        self.known: dict[str, Shard | bytes] = {}
        self._store, self._name, self._objects = record.store, record.name, record.objects
        self._record = record
        self._tags: dict[str, str] = {}
        """The tags of all that is remote."""

    def look(self) -> None:
        """List what is there, and take nothing of it for whole."""
        self._tags = {one.key: one.tag for one in self._objects.list(f"{self.prefix}/") if one.key != self._record.key}
        self.known = {}

    def adopt(self, remote: Commit, pins: Sequence[Commit]) -> None:
        """Take the rows of a remote record for those here; raise RemoteConflictError if they are others."""
        for _, there in shards(self._store, self._name, remote, pins):
            for shard in there:
                if shard.size is not None:
                    self._check_prefix(shard, shard.size)
            self.known.update((shard.key, shard) for shard in there if shard.key in self._tags)

    def _check_prefix(self, shard: Shard, size: int) -> None:
        """Raise RemoteConflictError if a remote shard is not the beginning of the local one."""
        try:
            data = self._read(shard._replace(size=None))
        except FileNotFoundError:
            return  # evicted here since
        found = find(self._objects, shard.key)
        if found is None or len(data) < size or found[1][:size] != data[:size]:
            raise self._record.conflict("its rows are others than the ones here")

    def put_groups(self, there: bytes, number: int) -> None:
        """Put the documents of a stream that is new, and first a copy of the root ``there`` if its number is low."""
        if number < root.COPIES:
            with contextlib.suppress(TakenError):
                data = metadata.dump(documents.ours(there))
                put_over(self._objects, f"{self.prefix}/{stream.SCRATCH}/{root.COPY}", data, NEW)
        for key in (STREAMS, CHECKPOINTS):
            with contextlib.suppress(TakenError):
                put_over(self._objects, f"{key}/{metadata.NAME}", metadata.dump(metadata.group_document()), NEW)
        self._put_documents((*stream.groups(self._store.schema), *self._store.schema.arrays))

    def upload(self, newest: Commit, pins: Sequence[Commit]) -> None:
        """Upload the shards that the record, or a checkpoint, needs; raise FileNotFoundError if one was evicted."""
        for path, needed in shards(self._store, self._name, newest, pins):
            new = [shard for shard in needed if self.known.get(shard.key) != shard]
            self._put_documents(stream.parents(path) if new else ())
            for shard in new:
                self._put(shard.key, self._read(shard))
                self.known[shard.key] = shard

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

    def _read(self, shard: Shard) -> bytes:
        """Return the bytes of a local shard; raise FileNotFoundError if it was evicted."""
        with fs.translate_reads(shard.path):
            file = self._store.files.open(shard.path)
            return stream.read_first(file, file.size() if shard.size is None else shard.size)
