"""The objects of a stream under its URL, as one push knows them: shards, bundles of them, documents of its arrays.

Every one is put on the condition that it is the one that this push knows. Where a put is refused, nothing is assumed
any more: ChangedError.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from diskreplay.errors import CorruptionError
from diskreplay.remote import bundles, documents
from diskreplay.remote.commit_record import ChangedError, RemoteRecord
from diskreplay.remote.objects import NEW, Objects, TakenError, find, put_over
from diskreplay.schema.columns import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, root, stream
from diskreplay.storage.column import ColumnReader, shard_name
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store


class Uploads:
    """The remote objects of a stream but for its record; not thread-safe.

    Args:
        store: the local one.
        name: the name of the stream.
        objects: the objects of the remote store.
        record: the record of the stream there.

    Attributes:
        prefix: the key of the stream's directory.
        complete: keys of shards that are remote and do not change any more.
    """

    def __init__(self, store: Store, name: str, objects: Objects, record: RemoteRecord) -> None:
        self.prefix = f"{STREAMS}/{name}"
        self.complete: set[str] = set()
        self._store = store
        self._files = store.files
        self._name = name
        self._objects = objects
        self._record = record
        self._tags: dict[str, str] = {}
        """The tags of all that is remote."""
        self._tails: dict[str, Tail] = {}
        self._documents: dict[str, bytes] = {}
        self._bundles = bundles.BundleWriter(name, self._replace)

    def look(self) -> None:
        """List what is there, and take nothing of it for whole."""
        self._tags = {one.key: one.tag for one in self._objects.list(f"{self.prefix}/") if one.key != self._record.key}
        self.complete, self._tails, self._documents = set(), {}, {}
        self._bundles.restart(self._tags)

    def adopt(self, remote: Commit, local: Commit) -> None:
        """Take the rows of a remote record for those here; raise RemoteConflictError if they are others."""
        self._check_prefix(local, remote)
        for path, tail in remote.tails.items():
            column, _ = self._column(path, local)
            keys = (f"{self.prefix}/{path}/{shard_name(shard, column.column)}" for shard in range(tail.shard))
            self.complete.update(key for key in keys if key in self._tags)
            self._tails[path] = tail

    def _check_prefix(self, local: Commit, remote: Commit) -> None:
        """Raise RemoteConflictError if the remote rows are not the beginning of the local ones."""
        for path, tail in remote.tails.items():
            column, directory = self._column(path, local)
            name = shard_name(tail.shard, column.column)
            try:
                data = self._read_local(os.path.join(directory, name))
            except FileNotFoundError:
                continue  # evicted here since
            found = find(self._objects, f"{self.prefix}/{path}/{name}")
            if found is None or len(data) < tail.size or found[1][: tail.size] != data[: tail.size]:
                raise self._record.conflict("its rows are others than the ones here")

    def forget(self) -> None:
        """Forget the remote shards before the stream goes back: they are to be replaced."""
        self.complete, self._tails = set(), {}
        self._bundles.forget()

    def drop_bundles(self) -> None:
        """Remove all bundles that are there."""
        prefix = f"{bundles.folder(self._name)}/{bundles.PREFIX}"
        old = [key for key in self._tags if key.startswith(prefix)]
        self._objects.delete(old)
        for key in old:
            del self._tags[key]

    def put_groups(self, there: bytes, number: int) -> None:
        """Put the documents of a stream that is new, and first a copy of the root ``there`` if its number is low."""
        if number < root.COPIES:
            with contextlib.suppress(TakenError):
                data = metadata.dump(documents.ours(there))
                put_over(self._objects, f"{self.prefix}/{stream.SCRATCH}/{root.COPY}", data, NEW)
        for key in (STREAMS, CHECKPOINTS, *(f"{self.prefix}/{group}" for group in stream.groups(self._store.schema))):
            with contextlib.suppress(TakenError):
                put_over(self._objects, f"{key}/{metadata.NAME}", metadata.dump(metadata.group_document()), NEW)
        for path in self._store.schema.arrays:
            self._put_array(path)

    def upload(self, newest: Commit, pins: Sequence[Commit]) -> None:
        """Upload the shards that the record, or a checkpoint, needs; raise FileNotFoundError if one was evicted."""
        context = self._store.schema.context
        for path, tail in newest.tails.items():
            column, directory = self._column(path, newest)
            below = f"{self.prefix}/{path}"
            spans = [commit.span(path, context) for commit in (newest, *pins) if path in commit.tails]
            rows = column.column.shard_rows
            wanted = {
                shard for span in spans if span.end > span.begin
                for shard in range(span.begin // rows, min(tail.shard, (span.end - 1) // rows + 1))
            }  # fmt: skip
            for shard in sorted(wanted):
                name = shard_name(shard, column.column)
                if f"{below}/{name}" not in self.complete:
                    self._put_complete(path, name, column, self._read_local(os.path.join(directory, name)))
            if self._tails.get(path) != tail:
                self._put_array(path)
                name = shard_name(tail.shard, column.column)
                self._replace(f"{below}/{name}", self._read_local(os.path.join(directory, name), tail.size))
                self._tails[path] = tail

    def _put_complete(self, path: str, name: str, column: ColumnReader, data: bytes) -> None:
        key = f"{self.prefix}/{path}/{name}"
        self._put_array(path)
        tag = self._replace(key, data)
        self.complete.add(key)
        whole = column.column.resident
        offset = 0 if whole else max(0, len(data) - column.index_bytes - 4)
        self._bundles.add(bundles.Entry(f"{path}/{name}", tag, offset, data[offset:]))

    def _put_array(self, path: str) -> None:
        """Put the documents of an array and of the groups that it is in."""
        for node in stream.parents(path):
            folder = os.path.join(self._store.stream_path(self._name), node)
            self._put_document(os.path.join(folder, metadata.NAME), f"{self.prefix}/{node}/{metadata.NAME}")

    def _put_document(self, path: str, key: str) -> None:
        data = self._files.read(path)
        if self._documents.get(key) != data:
            self._replace(key, data)
            self._documents[key] = data

    def _replace(self, key: str, data: bytes) -> str:
        """Replace the known object of this stream, and return the new tag."""
        self._record.fence()
        try:
            made = self._tags[key] = put_over(self._objects, key, data, self._tags.get(key, NEW))
        except TakenError:
            raise ChangedError(key) from None
        return made

    def _read_local(self, path: str, size: int | None = None) -> bytes:
        """Return the first ``size`` bytes of a local shard, or all; raise FileNotFoundError if it was evicted."""
        with fs.translate_reads(path):
            file = self._files.open(path)
            wanted = file.size() if size is None else size
            data = stream.read_first(file, wanted)
        if len(data) != wanted:
            raise CorruptionError(f"{path!r} ends before its {wanted} committed bytes", file=path)
        return data

    def _column(self, path: str, commit: Commit) -> tuple[ColumnReader, str]:
        directory = os.path.join(self._store.stream_path(self._name), path)
        schema: Schema = self._store.schema
        column = {**schema.arrays, **schema.logs}.get(path)
        if column is None:
            raise self._record.conflict(f"it has an array {path!r}")
        envs = commit.span(path, schema.context).num_envs
        return ColumnReader(self._files, directory, self._name, column, envs), directory
