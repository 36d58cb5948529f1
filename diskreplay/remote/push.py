"""What is new of a local stream goes to its remote store.

A push takes the newest commit record from the disk and uploads, in this order: documents of arrays that grew; shards
that do not change any more; bundles of them; the committed bytes of the growing ones; and then the record, on the
condition that the remote one is still the one that this writer put there. That is the remote commit: until then a
reader sees the one before, whose shards are prefixes of the new ones. Then checkpoints, each when all that it needs
is remote.

Whose a stream is, and what keeps an old process or a copy of the directory from changing it, is the subject of
:mod:`diskreplay.remote.record`. Every object of a stream is put on the condition that it is the one that this writer
knows. Where a put is refused, and after every failure, nothing is assumed: the push lists the remote objects again.
Remote data that is not the beginning of what is here is a conflict, and stays as it is.

Going back to a checkpoint replaces rows: the remote stream is made empty on a new timeline first, so that no reader
takes rows of both, and uploaded anew; refused where another's checkpoint needs them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diskreplay.errors import CorruptionError, RemoteConflictError, RemoteError
from diskreplay.remote import bundles, conditions, ledger, numbers
from diskreplay.remote import objects as storage
from diskreplay.remote.needed import shards
from diskreplay.remote.objects import MOST_BYTES, NEW, Object, Objects, TakenError, put_over
from diskreplay.remote.record import KEY, ChangedError, RemoteRecord, of_this_directory
from diskreplay.remote.record import attributes as _attributes
from diskreplay.remote.sent import Counted, Sent
from diskreplay.schema import Schema
from diskreplay.storage import files as fs
from diskreplay.storage import metadata, stream
from diskreplay.storage.column import ColumnReader, shard_name
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Checkpoint, Store, checkpoint_files

BUNDLE_SHARDS = 16
"""New shards before the last bundle is written again."""
BUNDLE_MOST = 128
"""Shards of a bundle, before the next is begun."""
ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class Made:
    """Number and id of a checkpoint that is remote: 0 and empty in older ones."""

    number: int
    id: str


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
        self._prefix = f"{STREAMS}/{name}"
        self.url = objects.url
        self.sent = Sent(begin=self._commit().begin)
        self._objects = Counted(objects, self.sent)
        self._record = RemoteRecord(store, name, self._objects)
        self._begun = False
        self._tags: dict[str, str] = {}
        """Of the stream's objects that are remote, its record excepted."""
        self._complete: set[str] = set()
        """Keys of shards that are remote and do not change any more."""
        self._tails: dict[str, Tail] = {}
        self._documents: dict[str, bytes] = {}
        self._pins: list[Commit] = []
        """Of checkpoints, whose shards are remote."""
        self._bundle = 0
        self._bundled: list[bundles.Entry] = []
        self._unbundled: list[bundles.Entry] = []
        self._made: dict[tuple[str, str], Made | None] = {}
        """Remote checkpoints by key and tag; None for another's."""

    def run(self) -> None:
        """Brings the remote store up to the newest local commit.

        Raises RemoteError, after which it can be run again, and RemoteConflictError, after which it cannot.
        """
        self._record.begin()
        for _ in range(ATTEMPTS):
            try:
                if not self._begun:
                    self._begin()
                    self._begun = True
                self._push_rows()
                self._push_checkpoints()
                return
            except ChangedError:
                self._begun = False
            except BaseException:
                self._begun = False
                raise
        raise RemoteError(f"{self._objects.url}/{self._prefix}: others change it again and again; try again")

    def check_going_back(self, timeline: int) -> None:
        """Raises what a push would, once the stream went back to a checkpoint, and so to this new timeline.

        That is RemoteConflictError where another's checkpoint may need the rows that would be given up, or the remote
        stream is another's; and RemoteError where it is not known, as the URL does not answer.
        """
        root = self._look(metadata.NAME)
        if root is not None:
            self._checked_root(root[1])
            if self._look(self._record.key) is not None:
                self._begin()
                self._check_not_needed(timeline)

    # The beginning

    def _begin(self) -> None:
        """Looks what is there, and whose it is."""
        first = self._claim_root()
        local, known = self._commit(), self._remote is not None
        remote = self._record.look()
        self._tags = {one.key: one.tag for one in self.list(f"{self._prefix}/") if one.key != self._record.key}
        self._complete, self._tails, self._documents, self._pins, self._bundled = set(), {}, {}, [], []
        self._bundle = bundles.free(self._tags)
        if remote is None:
            numbers.claim(self._objects, first, self._name, local.stream, self._origin)
            self._groups()
            self._put_record(_empty(local, 0))
            return
        if remote.timeline > local.timeline or remote.sequence > local.sequence:
            raise self._record.conflict("it is ahead of this directory, which holds files of an older copy")
        self._is_remote(remote, known)
        if local.timeline == remote.timeline:
            self._check_prefix(local, remote)
            for path, tail in remote.tails.items():
                column, _ = self._column(path, local)
                keys = (f"{self._prefix}/{path}/{shard_name(shard, column.column)}" for shard in range(tail.shard))
                self._complete.update(key for key in keys if key in self._tags)
                self._tails[path] = tail

    def _claim_root(self) -> str:
        """Makes the store's own document, or finds it; the stream beside which numbers are claimed.

        RemoteConflictError where another store is there.
        """
        document = json.loads(self._files.read(os.path.join(self._store.path, metadata.NAME)))
        for _ in range(ATTEMPTS):
            found = self._look(metadata.NAME)
            if found is not None:
                break
            conditions.check(self._objects, self._name)
            with contextlib.suppress(TakenError):
                self._objects.put(metadata.NAME, numbers.root(document, self._name), NEW)
                return self._name
        else:
            raise RemoteError(f"{self._objects.url}/{metadata.NAME}: the put is refused again and again; try again")
        return numbers.first(self._checked_root(found[1]))

    def _checked_root(self, document: bytes) -> dict[str, Any]:
        """The attributes of the remote store's own document; RemoteConflictError where it is another store's."""
        there = _attributes(document)
        ours = there.get(metadata.KEY)
        if not isinstance(ours, dict) or ours.get("schema") != self._store.schema.to_json():
            raise RemoteConflictError(
                f"{self._objects.url!r} holds another store than {self._store.path!r}; push to another URL"
            )
        return there

    def _groups(self) -> None:
        for key in (STREAMS, CHECKPOINTS, *(f"{self._prefix}/{group}" for group in stream.groups(self._store.schema))):
            with contextlib.suppress(TakenError):
                put_over(self._objects, f"{key}/{metadata.NAME}", metadata.dump(metadata.group_document()), NEW)
        for path in self._store.schema.arrays:
            self._put_array(path)

    def _origins(self) -> set[str]:
        """Of this stream, and of those others of the local store that no other directory has pushed to."""
        found = {self._origin}
        for name in self._store.stream_names():
            if name != self._name and self._read_record(name) is not None:
                found.add(ledger.read(self._files, ledger.path(self._store.stream_path(name))).origin)
        return found

    def _check_prefix(self, local: Commit, remote: Commit) -> None:
        """RemoteConflictError where what is remote is not the beginning of what is here."""
        for path, tail in remote.tails.items():
            column, directory = self._column(path, local)
            name = shard_name(tail.shard, column.column)
            try:
                data = self._read_local(os.path.join(directory, name))
            except FileNotFoundError:
                continue  # evicted here since
            found = self._look(f"{self._prefix}/{path}/{name}")
            if found is None or len(data) < tail.size or found[1][: tail.size] != data[: tail.size]:
                raise self._record.conflict("its rows are others than the ones here")

    def _is_remote(self, record: Commit, ours: bool = True) -> None:
        """Notes a record that is remote; rows that are lost are those of the records that this push put."""
        lost = max(0, record.begin - self.sent.reached(record)) if record.tails and ours else 0
        self.sent.sequence, self.sent.end = record.sequence, record.end
        self.sent.timeline = record.timeline if record.tails else -1
        self.sent.lost_rows += lost

    # Rows

    def _push_rows(self) -> None:
        before = None
        for _ in range(ATTEMPTS):
            newest, pins = self._commit(), self._store.cuts(self._name)
            remote = self._remote
            if newest == remote and pins == self._pins:
                return
            if remote is None or newest.timeline != remote.timeline:
                self._go_back(newest)
            elif newest.timeline and not remote.tails:
                self._give_up(newest.timeline)  # it was interrupted when it went back
            try:
                self._upload(newest, pins)
            except FileNotFoundError as error:
                if before == (newest, pins):
                    file = str(error.filename)
                    raise CorruptionError(f"{file!r} is missing, and cannot be pushed", file=file) from error
                before = newest, pins
                continue  # a shard was evicted meanwhile, which the newer record says
            if newest != self._remote:
                self._put_record(newest)
            self._pins = pins
            return
        raise RemoteError(f"the stream {self._name!r} evicts rows faster than {self._objects.url} takes them")

    def _go_back(self, newest: Commit) -> None:
        """Makes the remote stream empty on the new timeline, so that its shards may be replaced."""
        self._check_not_needed(newest.timeline)
        self._complete, self._tails, self._bundled, self._unbundled = set(), {}, [], []
        self._put_record(_empty(newest, self.sent.sequence + 1))
        self._give_up(newest.timeline)
        prefix = f"{bundles.folder(self._name)}/{bundles.PREFIX}"
        old = [key for key in self._tags if key.startswith(prefix)]
        self.delete(old)
        for key in old:
            del self._tags[key]

    def _give_up(self, timeline: int) -> None:
        """Removes the checkpoints of rows that were given up for a timeline, whose record is there.

        Another's checkpoint that is made from now on finds the new timeline; one that was made before is found here.
        """
        self._check_not_needed(timeline)
        there = self._checkpoints_there()
        self._remove(self._dropped(self._checkpoints_here(), there), there)

    def _check_not_needed(self, timeline: int) -> None:
        """RemoteConflictError where another's checkpoint may need rows that this stream gives up for a new timeline."""
        for one in self._checkpoints_there().values():
            if _checkpoint_name(one.key) is not None and self._made_here(one) is None:
                found = self._look(one.key, metadata.MAX_CHECKPOINT_BYTES)
                ours = _attributes(found[1]).get(metadata.KEY) if found else None
                cut = ours.get("cut") if isinstance(ours, dict) else None
                of = cut.get(self._name) if isinstance(cut, dict) else None
                if isinstance(of, dict) and of.get("timeline") != timeline:
                    raise RemoteConflictError(
                        f"the stream {self._name!r} goes back to a checkpoint, and {_checkpoint_name(one.key)!r} of "
                        f"{self._objects.url} may need the rows that it gives up; drop that one, or go on in a new "
                        "stream (stream=...)"
                    )

    def _upload(self, newest: Commit, pins: list[Commit]) -> None:
        """Uploads the shards that the record, or a checkpoint, needs; FileNotFoundError where one was evicted."""
        context = self._store.schema.context
        for path, tail in newest.tails.items():
            column, directory = self._column(path, newest)
            below = f"{self._prefix}/{path}"
            spans = [commit.span(path, context) for commit in (newest, *pins) if path in commit.tails]
            rows = column.column.shard_rows
            wanted = {
                shard for span in spans if span.end > span.begin
                for shard in range(span.begin // rows, min(tail.shard, (span.end - 1) // rows + 1))
            }  # fmt: skip
            for shard in sorted(wanted):
                name = shard_name(shard, column.column)
                if f"{below}/{name}" not in self._complete:
                    self._put_complete(path, name, column, self._read_local(os.path.join(directory, name)))
            if self._tails.get(path) != tail:
                self._put_array(path)
                name = shard_name(tail.shard, column.column)
                self._replace(f"{below}/{name}", self._read_local(os.path.join(directory, name), tail.size))
                self._tails[path] = tail

    def _put_complete(self, path: str, name: str, column: ColumnReader, data: bytes) -> None:
        key = f"{self._prefix}/{path}/{name}"
        self._put_array(path)
        tag = self._replace(key, data)
        self._complete.add(key)
        whole = column.column.resident
        offset = 0 if whole else max(0, len(data) - column.index_bytes - 4)
        self._unbundled.append(bundles.Entry(f"{path}/{name}", tag, offset, data[offset:]))
        if len(self._unbundled) >= BUNDLE_SHARDS:
            self._put_bundle()

    def _put_bundle(self) -> None:
        """Writes the last bundle again, with what came since."""
        entries = [*self._bundled, *self._unbundled]
        self._replace(f"{bundles.folder(self._name)}/{bundles.name(self._bundle)}", bundles.encode(entries))
        self._unbundled = []
        self._bundled = entries if len(entries) < BUNDLE_MOST else []
        self._bundle += len(entries) >= BUNDLE_MOST

    def _put_array(self, path: str) -> None:
        """Puts the documents of an array and of the groups that it is in."""
        for node in stream.parents(path):
            folder = os.path.join(self._store.stream_path(self._name), node)
            self._put_document(os.path.join(folder, metadata.NAME), f"{self._prefix}/{node}/{metadata.NAME}")

    def _put_document(self, path: str, key: str) -> None:
        data = self._files.read(path)
        if self._documents.get(key) != data:
            self._replace(key, data)
            self._documents[key] = data

    def _replace(self, key: str, data: bytes) -> str:
        """Puts an object of this stream in the place of the one that is known; its tag."""
        self._record.fence()
        try:
            made = self._tags[key] = put_over(self._objects, key, data, self._tags.get(key, NEW))
        except TakenError:
            raise ChangedError(key) from None
        return made

    def _put_record(self, record: Commit) -> None:
        """Replaces the remote record: the remote commit."""
        self._record.put(record)
        self._is_remote(record)

    # Checkpoints

    def _push_checkpoints(self) -> None:
        """Brings them up to date.

        New ones first; and while one of them waits for its rows, the newest that was dropped stays. So a program that
        drops the one before when it has a new one has one there at any time.
        """
        there, here = self._checkpoints_there(), self._checkpoints_here()
        dropped = self._dropped(here, there)
        new = [one for one in here if document_key(one.name) not in there]
        if not all([self._put_checkpoint(one, there) for one in new]):
            dropped = dropped[:-1]
        self._remove(dropped, there)
        for one in here:
            if one.name in dropped:  # and made again
                self._put_checkpoint(one, there)
        documents = {one.name: there[key] for one in here if (key := document_key(one.name)) in there}
        self.sent.taken = tuple(name for name, document in documents.items() if self._made_here(document) is None)

    def _put_checkpoint(self, checkpoint: Checkpoint, there: dict[str, Object]) -> bool:
        """Uploads one, where all that it needs is remote; whether one of its name is there now.

        One of another, which was made meanwhile, is added to ``there``.
        """
        if not self._reached(checkpoint):
            return False
        self._record.hold()
        folder = os.path.join(self._store.path, CHECKPOINTS, checkpoint.name)
        try:
            beside = {"origin": self._origin}
            made = put_checkpoint(self._objects, self._files, folder, checkpoint, beside, there)
        except FileNotFoundError:  # dropped meanwhile
            return False
        except TakenError:
            there.update((one.key, one) for one in self.list(f"{CHECKPOINTS}/{checkpoint.name}/"))
            return True
        self._check_checkpoint(checkpoint, made)
        return True

    def _check_checkpoint(self, checkpoint: Checkpoint, made: Mapping[str, str]) -> None:
        """Takes a checkpoint back where what it needs was removed or replaced while it was put."""
        there = {one.key: one.tag for one in self.list(f"{CHECKPOINTS}/{checkpoint.name}/")}
        replaced = any(there.get(key) != tag for key, tag in made.items())
        if replaced or not self._reached(checkpoint) or not self._record.stands():
            self.delete(in_order_of_removal(checkpoint.name, there))
            raise ChangedError(checkpoint.name)

    def _reached(self, checkpoint: Checkpoint) -> bool:
        """Whether everything that the checkpoint needs is remote."""
        for name, cut in checkpoint.cut.items():
            remote = self._remote if name == self._name else self._read_record(name)
            if remote is None or remote.sequence < cut.sequence:
                return False
            there = {one.key for one in self.list(f"{STREAMS}/{name}/")}
            missing = set(shards(self._store.schema, name, cut)) - there
            if missing & self._complete:
                raise ChangedError(missing)  # removed since
            if missing:
                return False
        return True

    def _checkpoints_there(self) -> dict[str, Object]:
        """The objects of all remote checkpoints, by key."""
        return {one.key: one for one in self.list(f"{CHECKPOINTS}/")}

    def _checkpoints_here(self) -> list[Checkpoint]:
        """All of one moment, oldest first: one that is dropped while they are read may have a successor."""
        while True:
            names, here = self._checkpoint_names(), self._store.checkpoints()
            if {one.name for one in here} == names == self._checkpoint_names():
                return here

    def _checkpoint_names(self) -> set[str]:
        return set(self._files.list(os.path.join(self._store.path, CHECKPOINTS))) - {metadata.NAME}

    def _dropped(self, here: Iterable[Checkpoint], there: Mapping[str, Object]) -> list[str]:
        """Names of the remote checkpoints that this store's writers made and that are not here, the oldest first."""
        kept, found = {one.name: one.id for one in here}, []
        for one in there.values():
            name = _checkpoint_name(one.key)
            made = self._made_here(one) if name is not None else None
            if name is not None and made is not None and made.id != kept.get(name):  # it may have been made again
                found.append((made.number, name))
        return [name for _, name in sorted(found)]

    def _remove(self, names: Sequence[str], there: dict[str, Object]) -> None:
        """Removes remote checkpoints, also from what is known to be there."""
        if names:
            self._record.hold()
        for name in names:
            keys = in_order_of_removal(name, there)
            self.delete(keys)
            for key in keys:
                del there[key]

    def _made_here(self, document: Object) -> Made | None:
        """A remote checkpoint that this store's writers made; None where it is another's."""
        known = document.key, document.tag
        if known not in self._made:
            found = self._look(document.key, metadata.MAX_CHECKPOINT_BYTES)
            attributes = _attributes(found[1]) if found else {}
            ours, beside = attributes.get(metadata.KEY), attributes.get(KEY)
            mine = isinstance(ours, dict) and isinstance(beside, dict) and beside.get("origin") in self._origins()
            self._made[known] = Made(_count(ours.get("number")), str(ours.get("id", ""))) if ours and mine else None
        return self._made[known]

    # Requests, counted

    def list(self, prefix: str) -> list[Object]:
        return self._objects.list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        self._objects.delete(keys)

    def _look(self, key: str, most: int = MOST_BYTES) -> tuple[Object, bytes] | None:
        """An object and its bytes; None where there is none."""
        try:
            return storage.read(self._objects, key, most)
        except FileNotFoundError:
            return None

    # Inside

    @property
    def _origin(self) -> str:
        return self._record.origin

    @property
    def _remote(self) -> Commit | None:
        """The remote commit."""
        return self._record.commit

    def _commit(self) -> Commit:
        return stream.read_commit(self._files, self._store.stream_path(self._name))

    def _read_local(self, path: str, size: int | None = None) -> bytes:
        """The first ``size`` bytes of a local shard, or all; FileNotFoundError where it was evicted."""
        with fs.translate_reads(path):
            file = self._files.open(path)
            wanted = file.size() if size is None else size
            data = stream._read(file, wanted)
        if len(data) != wanted:
            raise CorruptionError(f"{path!r} ends before its {wanted} committed bytes", file=path)
        return data

    def _read_record(self, name: str) -> Commit | None:
        """The remote record of another stream of the local store; None where this directory did not put it."""
        return of_this_directory(self._store, name, self._objects)

    def _column(self, path: str, commit: Commit) -> tuple[ColumnReader, str]:
        directory = os.path.join(self._store.stream_path(self._name), path)
        schema: Schema = self._store.schema
        column = {**schema.arrays, **schema.logs}.get(path)
        if column is None:
            raise self._record.conflict(f"it has an array {path!r}")
        envs = commit.span(path, schema.context).num_envs
        return ColumnReader(self._files, directory, self._name, column, envs), directory


def _empty(of: Commit, sequence: int) -> Commit:
    """A record without rows, on the timeline of another one."""
    first = Commit.first(of.stream, of.num_envs, of.capacity)
    return dataclasses.replace(first, sequence=sequence, timeline=of.timeline)


def _count(value: object) -> int:
    """An integer of a remote document; 0 for what is none."""
    return value if type(value) is int else 0


def document_key(name: str) -> str:
    """Of a checkpoint."""
    return f"{CHECKPOINTS}/{name}/{metadata.NAME}"


def in_order_of_removal(name: str, there: Iterable[str]) -> list[str]:
    """The keys of a checkpoint among others: its document first, without which there is none."""
    document = document_key(name)
    return [document, *(key for key in there if key.startswith(f"{CHECKPOINTS}/{name}/") and key != document)]


def _checkpoint_name(key: str) -> str | None:
    """The checkpoint whose document has this key."""
    parts = key.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == CHECKPOINTS and parts[2] == metadata.NAME else None


def put_checkpoint(
    objects: Objects, files: fs.Files, folder: str, checkpoint: Checkpoint, beside: dict[str, Any],
    there: Mapping[str, Object],
) -> dict[str, str]:  # fmt: skip
    """Uploads a checkpoint that stands in a local directory: its arrays and files, then its document; their tags.

    Args:
        objects: where it is put.
        files, folder: where the checkpoint is.
        checkpoint: that stands there.
        beside: what stands beside its attributes.
        there: what is known to be there: what a maker left that died is replaced, and nothing else.

    TakenError where there is one of that name, or another is making it.
    """
    made = {}
    for file in checkpoint_files(files, folder, checkpoint):
        key, data = f"{CHECKPOINTS}/{checkpoint.name}/{file}", files.read(os.path.join(folder, file))
        made[key] = put_over(objects, key, data, there[key].tag if key in there else NEW)
    document = json.loads(files.read(os.path.join(folder, metadata.NAME)))
    document["attributes"][KEY] = beside
    put_over(objects, document_key(checkpoint.name), metadata.dump(document), NEW)
    return made
