"""What is new of a local stream goes to its remote store.

A push takes the newest commit record from the disk and uploads, in this order: documents of arrays that grew; shards
that do not change any more; the committed bytes of the growing ones; bundles of them; and then the record, on the condition
that the remote one is still the one that this writer put there. That is the remote commit: until then a reader sees the
one before, whose shards are prefixes of the new ones. Then checkpoints, each when the records reach it.

Each record carries a *write id*. Where a put is refused, the id of the record that is there tells the put whose answer
was lost from another writer's. A stream has one writer for its whole life: the directory that made it, which holds the
stream's *origin*, a random name that every record repeats.

Going back to a checkpoint replaces rows: the remote stream is made empty on a new timeline first, so that no reader
takes rows of both, and uploaded anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

from diskreplay.errors import CorruptionError, InputError, RemoteConflictError, RemoteError
from diskreplay.remote import bundles, numbers
from diskreplay.remote.objects import NEW, Object, Objects, TakenError
from diskreplay.schema import INFO, Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, stream
from diskreplay.storage.column import ColumnReader, shard_name
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Checkpoint, Store

ORIGIN_FILE = "__remote.json"
"""In the directory of the array ``start``: what this stream is called where it was pushed to."""
KEY = "diskreplay_remote"
"""Beside ``attributes["diskreplay"]``: what the remote store adds to records and checkpoints."""
BUNDLE_SHARDS = 16
"""New shards before the last bundle is written again."""
BUNDLE_MOST = 128
"""Shards of a bundle, before the next is begun."""
ATTEMPTS = 10


@dataclasses.dataclass
class Sent:
    """What was sent, counted.

    Attributes:
        requests: puts, gets, listings and deletions.
        puts: of them.
        sent_bytes: of puts.
        sequence, end: of the newest record that is remote; -1 and 0 before the first.
        lost_rows: rows that were evicted here before they could be sent.
    """

    requests: int = 0
    puts: int = 0
    sent_bytes: int = 0
    sequence: int = -1
    end: int = 0
    lost_rows: int = 0


class Push:
    """One stream of a local store on its way to a URL; not thread-safe.

    Args:
        store: the local one; whoever pushes holds the stream's lock, or is its writer.
        name: of the stream.
        objects: of the remote store.
    """

    def __init__(self, store: Store, name: str, objects: Objects) -> None:
        self._store = store
        self._files = store.files
        self._name = name
        self._objects = objects
        self._prefix = f"{STREAMS}/{name}"
        self.url = objects.url
        self.sent = Sent()
        self._begun = False
        self._origin = ""
        self._tag = NEW
        self._remote: Commit | None = None
        self._shards: dict[str, Object] = {}
        """Shards that are remote and do not change any more, by their keys."""
        self._tails: dict[str, Tail] = {}
        self._documents: dict[str, int] = {}
        self._bundle = 0
        self._bundled: list[bundles.Entry] = []
        self._unbundled: list[bundles.Entry] = []

    def run(self) -> None:
        """Brings the remote store up to the newest local commit.

        Raises RemoteError, after which it can be run again, and RemoteConflictError, after which it cannot.
        """
        if not self._begun:
            self._begin()
            self._begun = True
        for _ in range(ATTEMPTS):
            newest = stream.read_commit(self._files, self._store.stream_path(self._name))
            if newest == self._remote:
                break
            if self._remote is not None and newest.timeline != self._remote.timeline:
                self._go_back(newest)
            try:
                self._upload(newest)
            except FileNotFoundError:
                continue  # a shard was evicted meanwhile, which the newer record says
            self._put_record(newest)
            break
        else:
            raise RemoteError(f"the stream {self._name!r} evicts rows faster than {self._objects.url} takes them")
        self._push_checkpoints()

    # The beginning

    def _begin(self) -> None:
        self._claim_root()
        self._origin = self._read_origin()
        key = f"{self._prefix}/{metadata.NAME}"
        found = self._head(key)
        self._tag = found.tag if found else NEW
        if found is None:
            numbers.claim(self, self._name, self._commit().stream, self._origin)
            self._groups()
            return
        remote, ours = self._read_record()
        if ours.get("origin") != self._origin:
            raise self._conflict("another writer made it")
        self._remote = remote
        self.sent.sequence, self.sent.end = remote.sequence, remote.end
        local = self._commit()
        if local.timeline == remote.timeline:
            self._check_prefix(local, remote)
            self._take_stock(local, remote)

    def _claim_root(self) -> None:
        """Makes the store's own document, or finds it; RemoteConflictError where it is another store's."""
        path = os.path.join(self._store.path, metadata.NAME)
        data = self._files.read(path)
        with contextlib.suppress(TakenError):
            if self._head(metadata.NAME) is None:
                self.put(metadata.NAME, data, NEW)
                return
        document = json.loads(self.get(metadata.NAME))
        ours = document.get("attributes", {}).get(metadata.KEY, {}) if isinstance(document, dict) else {}
        if not isinstance(ours, dict) or ours.get("schema") != self._store.schema.to_json():
            raise RemoteConflictError(
                f"{self._objects.url!r} holds another store than {self._store.path!r}; push to another URL"
            )

    def _groups(self) -> None:
        for key in (STREAMS, CHECKPOINTS, *(f"{self._prefix}/{group}" for group in stream.groups(self._store.schema))):
            with contextlib.suppress(TakenError):
                self.put(f"{key}/{metadata.NAME}", metadata.dump(metadata.group_document()), NEW)

    def _read_origin(self) -> str:
        path = os.path.join(self._store.stream_path(self._name), stream.SCRATCH, ORIGIN_FILE)
        try:
            return str(json.loads(self._files.read(path))["origin"])
        except FileNotFoundError:
            origin = secrets.token_hex(16)
            with fs.translate("noting the origin of", path):
                fs.replace(self._files, path, json.dumps({"origin": origin}).encode())
            return origin
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError(f"{path!r} cannot be read: {error!r}", file=path) from error

    def _check_prefix(self, local: Commit, remote: Commit) -> None:
        """RemoteConflictError where what is remote is not the beginning of what is here."""
        if remote.sequence > local.sequence or remote.end > local.end:
            raise self._conflict("it is ahead of this directory, which is an older copy")
        for path, tail in remote.tails.items():
            column, directory = self._column(path, local)
            try:
                file = self._files.open(os.path.join(directory, shard_name(tail.shard, column.column)))
            except FileNotFoundError:
                continue  # evicted here since
            key = f"{self._prefix}/{path}/{shard_name(tail.shard, column.column)}"
            if file.size() >= tail.size and self.get(key)[: tail.size] != stream._read(file, tail.size):
                raise self._conflict("its rows are others than the ones here")

    def _take_stock(self, local: Commit, remote: Commit) -> None:
        """Finds the shards that were sent already."""
        there = {one.key: one for one in self.list(f"{self._prefix}/")}
        self._bundle = sum(key.rpartition("/")[2].startswith(bundles.PREFIX) for key in there)
        for path, tail in remote.tails.items():
            column, _ = self._column(path, local)
            for shard in range(tail.shard):
                name = shard_name(shard, column.column)
                if (found := there.get(f"{self._prefix}/{path}/{name}")) is not None:
                    self._shards[found.key] = found
            self._tails[path] = tail

    def _go_back(self, newest: Commit) -> None:
        """Makes the remote stream empty on the new timeline, so that its shards may be replaced."""
        self._drop_checkpoints()
        for one in self.list(f"{CHECKPOINTS}/"):
            if one.key.count("/") == 2 and one.key.endswith(f"/{metadata.NAME}"):
                document = json.loads(self.get(one.key))
                attributes = document.get("attributes", {})
                if self._name in attributes.get(metadata.KEY, {}).get("cut", {}) and not self._is_mine(attributes):
                    raise RemoteConflictError(
                        f"the stream {self._name!r} went back to a checkpoint, and {one.key.split('/')[1]!r} of "
                        f"{self._objects.url} needs the rows that it gave up; go on in a new stream (stream=...)"
                    )
        empty = Commit(
            newest.stream, newest.num_envs, newest.capacity, newest.sequence, newest.timeline, time=time.time()
        )
        self._put_record(dataclasses.replace(empty, sequence=min(newest.sequence, self.sent.sequence + 1)))
        self.delete([one.key for one in self.list(f"{bundles.folder(self._name)}/{bundles.PREFIX}")])
        self._shards, self._tails, self._bundle, self._bundled, self._unbundled = {}, {}, 0, [], []

    # Rows

    def _upload(self, newest: Commit) -> None:
        """Uploads the shards that the record, or a checkpoint, needs; FileNotFoundError where one was evicted."""
        context = self._store.schema.context
        pins = self._store.cuts(self._name)
        for path, tail in newest.tails.items():
            column, directory = self._column(path, newest)
            self._put_document(os.path.join(directory, metadata.NAME), f"{self._prefix}/{path}/{metadata.NAME}")
            spans = [commit.span(path, context) for commit in (newest, *pins) if path in commit.tails]
            rows = column.column.shard_rows
            wanted = {
                shard for span in spans if span.end > span.begin
                for shard in range(span.begin // rows, min(tail.shard, (span.end - 1) // rows + 1))
            }  # fmt: skip
            for shard in sorted(wanted):
                key = f"{self._prefix}/{path}/{shard_name(shard, column.column)}"
                if key not in self._shards:
                    self._put_shard(key, path, column, directory, shard)
            if self._tails.get(path) != tail:
                file = self._files.open(os.path.join(directory, shard_name(tail.shard, column.column)))
                name = shard_name(tail.shard, column.column)
                self.put(f"{self._prefix}/{path}/{name}", stream._read(file, tail.size))
                self._tails[path] = tail

    def _put_shard(self, key: str, path: str, column: ColumnReader, directory: str, shard: int) -> None:
        name = shard_name(shard, column.column)
        file = self._files.open(os.path.join(directory, name))
        size = file.size()
        data = stream._read(file, size)
        tag = self.put(key, data)
        self._shards[key] = Object(key, size, tag, 0.0)
        whole = column.column.resident or path == INFO
        offset = 0 if whole else max(0, size - column.index_bytes - 4)
        self._unbundled.append(bundles.Entry(f"{path}/{name}", tag, offset, data[offset:]))
        if len(self._unbundled) >= BUNDLE_SHARDS:
            self._put_bundle()

    def _put_bundle(self) -> None:
        """Writes the last bundle again, with what came since."""
        entries = [*self._bundled, *self._unbundled]
        self.put(f"{bundles.folder(self._name)}/{bundles.name(self._bundle)}", bundles.encode(entries))
        self._unbundled = []
        self._bundled = entries if len(entries) < BUNDLE_MOST else []
        self._bundle += len(entries) >= BUNDLE_MOST

    def _put_document(self, path: str, key: str) -> None:
        data = self._files.read(path)
        if self._documents.get(key) != hash(data):
            self.put(key, data)
            self._documents[key] = hash(data)

    def _put_record(self, record: Commit) -> None:
        """Replaces the remote record: the remote commit."""
        write = secrets.token_hex(16)
        document = metadata.group_document(record.to_json(), self._prefix)
        document["attributes"][KEY] = {"origin": self._origin, "write": write}
        key = f"{self._prefix}/{metadata.NAME}"
        for _ in range(ATTEMPTS):
            try:
                self._tag = self.put(key, metadata.dump(document), self._tag)
            except TakenError:
                found = self._head(key)
                if found is None:
                    if self._tag != NEW:
                        raise self._conflict("its record was removed") from None
                    continue  # refused for a conflict with a put that was not done either
                _, ours = self._read_record()
                if ours.get("write") != write:
                    if found.tag == self._tag:
                        continue  # a conflict, and nothing was done
                    raise self._conflict("another writer has replaced its record") from None
                self._tag = found.tag
            self._remote = record
            self.sent.sequence, self.sent.end = record.sequence, record.end
            return
        raise RemoteError(f"{self._objects.url}/{key}: the storage refuses the put again and again; try again")

    # Checkpoints

    def _push_checkpoints(self) -> None:
        self._drop_checkpoints()
        there = {one.key for one in self.list(f"{CHECKPOINTS}/")}
        for checkpoint in self._store.checkpoints():
            key = f"{CHECKPOINTS}/{checkpoint.name}/{metadata.NAME}"
            if key not in there and self._reached(checkpoint):
                folder = os.path.join(self._store.path, CHECKPOINTS, checkpoint.name)
                self._put_checkpoint(folder, checkpoint)

    def _reached(self, checkpoint: Checkpoint) -> bool:
        """Whether the remote records are as far as the checkpoint's cut."""
        for name, cut in checkpoint.cut.items():
            if name == self._name:
                remote = self._remote
            else:
                try:
                    remote, _ = self._read_record(name)
                except FileNotFoundError:
                    return False
            if remote is None or remote.sequence < cut.sequence:
                return False
        return True

    def _put_checkpoint(self, folder: str, checkpoint: Checkpoint) -> None:
        put_checkpoint(self, self._files, folder, checkpoint.name, list(checkpoint.arrays), {"origin": self._origin})

    def _drop_checkpoints(self) -> None:
        """Removes the remote checkpoints that this stream's writer made and has dropped."""
        here = set(self._store.checkpoint_names())
        there = [one.key for one in self.list(f"{CHECKPOINTS}/")]
        for key in there:
            parts = key.split("/")
            if len(parts) == 3 and parts[2] == metadata.NAME and parts[1] not in here:
                with contextlib.suppress(FileNotFoundError, ValueError):
                    if self._is_mine(json.loads(self.get(key)).get("attributes", {})):
                        self.delete([key, *(one for one in there if one.startswith(f"{CHECKPOINTS}/{parts[1]}/"))])

    def _is_mine(self, attributes: dict[str, Any]) -> bool:
        ours = attributes.get(KEY)
        return isinstance(ours, dict) and ours.get("origin") == self._origin

    # Requests, counted

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        self.sent.requests += 1
        self.sent.puts += 1
        made = self._objects.put(key, data, tag)
        self.sent.sent_bytes += len(data)
        return made

    def get(self, key: str) -> bytes:
        self.sent.requests += 1
        return b"".join(self._objects.get(key)[1])

    def list(self, prefix: str) -> list[Object]:
        self.sent.requests += 1
        return self._objects.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self.sent.requests += len(keys)
        self._objects.delete(keys)

    def _head(self, key: str) -> Object | None:
        self.sent.requests += 1
        return self._objects.head(key)

    # Inside

    def _commit(self) -> Commit:
        return stream.read_commit(self._files, self._store.stream_path(self._name))

    def _read_record(self, name: str | None = None) -> tuple[Commit, dict[str, Any]]:
        """A remote record, and what stands beside it."""
        key = f"{STREAMS}/{name or self._name}/{metadata.NAME}"
        where = f"{self._objects.url}/{key}"
        try:
            attributes = json.loads(self.get(key))["attributes"]
            metadata.check(attributes[metadata.KEY], f"{STREAMS}/{name or self._name}", where)
            beside = attributes.get(KEY)
            return Commit.from_json(attributes[metadata.KEY], where), beside if isinstance(beside, dict) else {}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptionError(f"the record {where!r} cannot be read: {error!r}", file=where) from error

    def _column(self, path: str, commit: Commit) -> tuple[ColumnReader, str]:
        directory = os.path.join(self._store.stream_path(self._name), path)
        schema: Schema = self._store.schema
        column = schema.info_column if path == INFO else schema.arrays[path]
        envs = commit.span(path, schema.context).num_envs
        return ColumnReader(self._files, directory, self._name, column, envs), directory

    def _conflict(self, what: str) -> RemoteConflictError:
        return RemoteConflictError(
            f"the stream {self._name!r} of {self._objects.url} is not the one of {self._store.path!r}: {what}. Write a "
            "stream of another name (stream=...), or push to another URL"
        )


def put_checkpoint(
    requests: Any, files: fs.Files, folder: str, name: str, arrays: list[str], beside: dict[str, Any]
) -> None:
    """Uploads a checkpoint that stands in a local directory: its arrays, then its document.

    ``requests`` has a ``put``. TakenError where there is one of that name.
    """
    for array in arrays:
        for file in files.list(os.path.join(folder, array)):
            requests.put(f"{CHECKPOINTS}/{name}/{array}/{file}", files.read(os.path.join(folder, array, file)))
    document = json.loads(files.read(os.path.join(folder, metadata.NAME)))
    document["attributes"][KEY] = beside
    requests.put(f"{CHECKPOINTS}/{name}/{metadata.NAME}", metadata.dump(document), NEW)


def check_pushable(store: Store) -> None:
    """InputError where the store's shards are not sealed: older ones, whose copies could not be told apart."""
    if not store.schema.identity:
        raise InputError(f"{store.path!r} is of an older version without identity; 'diskreplay convert' it first")
