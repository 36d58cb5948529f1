"""The commit record of a stream under its URL, and who may replace it: the stream's one owner.

The owner is the directory that put the newest record.

1. The id of a record is noted in the directory's :mod:`~diskreplay.remote.ledger` before the record is put.
2. A record whose id the ledger lacks was put by another directory, whatever its numbers say: RemoteConflictError.
3. Before a push changes anything it puts the record once more, under an id of its own: the *fence*. An older push may
   still put a shard whose tag it knows; the newer one finds that shard changed, and looks again at everything. But no
   record of the older one is put any more, since each is put on the condition that the record there is the known one.
4. A push that changes checkpoints alone puts the record once more, too: a copy of the directory that was made before
   is told from the owner by it.

A copy of a directory that knows the newest record is the owner's equal: whoever pushes first owns the stream from then
on, and the other one is refused.
"""

from __future__ import annotations

from typing import Any

from diskreplay.errors import CorruptionError, RemoteConflictError
from diskreplay.remote import documents, ledger
from diskreplay.remote.objects import MOST_BYTES, NEW, Objects, TakenError, find, put_over, read
from diskreplay.storage import metadata
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import STREAMS, Store


class ChangedError(Exception):
    """Raised when the remote state is not what this push knew."""


class RemoteRecord:
    """The record of one stream under a URL, as one push knows it; not thread-safe.

    Args:
        store: the local one.
        name: the name of the stream.
        objects: the objects of the remote store.

    Attributes:
        store, name, objects: as they were given.
        commit: the content of the record; None before it was looked at, or where there is none.
        origin: the origin of the stream; "" before it was looked at.
        written: True if the push has put the record in its present round, whose beginning makes it False.
    """

    def __init__(self, store: Store, name: str, objects: Objects) -> None:
        self.key = f"{STREAMS}/{name}/{metadata.NAME}"
        self.commit: Commit | None = None
        self.origin = ""
        self.written = False
        self.store = store
        self.name = name
        self.objects = objects
        self._ledger = ledger.path(store.stream_path(name))
        self._tag = NEW
        self._own: set[str] = set()
        """The write ids of this push."""
        self._owned = False
        """True if the record there was put by this push."""

    def look(self) -> Commit | None:
        """Read the record that is there, or return None; raise RemoteConflictError if it is another's."""
        there = find(self.objects, self.key)
        known = ledger.start(self.store.files, self._ledger)  # after the record, whose id was noted before it was put
        self.origin = known.origin
        if there is None:
            if self.commit is not None:
                raise self.conflict("its record was removed")
            self._tag = NEW
            return None
        commit, beside = decode(self.key, there[1], self.objects.url)
        if beside.get("origin") != known.origin:
            raise self.conflict("another writer made it")
        write = beside.get("write")
        if write not in known.writes:
            raise self.conflict(
                "another directory, which holds the same origin, has pushed to it; one of the two is a copy of the "
                "other, or a backup"
            )
        self.commit, self._tag, self._owned = commit, there[0].tag, write in self._own
        return commit

    def put(self, commit: Commit) -> None:
        """Replace the record, which is the remote commit; raise ChangedError if the one there is not the known one."""
        write = ledger.note(self.store.files, self._ledger)
        self._own.add(write)
        document = metadata.group_document(commit.to_json(), self.key.removesuffix(f"/{metadata.NAME}"))
        document["attributes"][documents.KEY] = {"origin": self.origin, "write": write}
        try:
            self._tag = put_over(self.objects, self.key, metadata.dump(document), self._tag)
        except TakenError:
            raise ChangedError(self.key) from None
        self.commit, self._owned, self.written = commit, True, True

    def fence(self) -> None:
        """Make the stream this push's own before the first change."""
        if self.commit is not None and not self._owned:
            self.put(self.commit)

    def hold(self) -> None:
        """Make sure that what was listed just now may be changed: no other directory has pushed since.

        The record is put once more where that was not done in this round. ChangedError where another has put one.
        """
        if self.commit is not None and not self.written:
            self.put(self.commit)
        elif not self.stands():
            raise ChangedError(self.key)

    def stands(self) -> bool:
        """Ask whether the record there is still the known one."""
        found = self.objects.head(self.key)
        return found is not None and found.tag == self._tag

    def conflict(self, what: str) -> RemoteConflictError:
        """Return the error that says what keeps this directory from pushing to the stream."""
        return RemoteConflictError(
            f"the stream {self.name!r} of {self.objects.url} is not the one of {self.store.path!r}: {what}. Write a "
            "stream of another name (stream=...), or push to another URL"
        )


def of_this_directory(store: Store, name: str, objects: Objects) -> Commit | None:
    """Return the remote record of a stream of the local store, or None if this directory did not put it."""
    key = f"{STREAMS}/{name}/{metadata.NAME}"
    try:
        commit, beside = decode(key, read(objects, key, MOST_BYTES)[1], objects.url)
        known = ledger.read(store.files, ledger.path(store.stream_path(name)))
    except (FileNotFoundError, CorruptionError):
        return None
    return commit if beside.get("origin") == known.origin and beside.get("write") in known.writes else None


def decode(key: str, data: bytes, url: str) -> tuple[Commit, dict[str, Any]]:
    """Return a remote record, and what stands beside it; raise CorruptionError if it cannot be read."""
    where = f"{url}/{key}"
    if not (ours := documents.ours(data)):
        raise CorruptionError(f"the record {where!r} cannot be read", file=where)
    metadata.check(ours, key.rpartition("/")[0], where)
    return Commit.from_json(ours, where), documents.beside(data)
