"""The push of what is new of a local stream to its remote store.

A push takes the newest commit record from the disk, opens the tail, and uploads, in this order: documents of arrays
that grew; shards that do not change any more; the committed bytes of the growing ones; those of the tail; and then the
record, on the condition that the remote one is still the one that this writer put there. That is the remote commit:
until then a reader sees the one before, whose shards and tail are prefixes of the new ones. Then checkpoints, each when
all that it needs is remote. Then it removes the tails below the record's ``oldest`` that no checkpoint names. The
remote record has an ``oldest`` of its own: who reads may be behind, so what remote records left just now stays.

Whose a stream is, and what keeps an old process or a copy of the directory from changing it, is the subject of
:mod:`diskreplay.remote.commit_record`. Every object of a stream is put on the condition that it is the one that this
writer knows. If a put is refused, and after every failure, the push lists the remote objects again. Remote data that is
not a prefix of the local data is a conflict, and is left alone.

Going back to a checkpoint replaces rows: the remote stream is made empty on a new timeline first, so that no reader
takes rows of both, and uploaded anew; refused where another's checkpoint needs them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import time

from diskreplay.errors import CorruptionError, RemoteError
from diskreplay.remote import documents, numbers
from diskreplay.remote.checkpoint_push import CheckpointPush
from diskreplay.remote.commit_record import ChangedError, RemoteRecord
from diskreplay.remote.membership import check_root, put_root
from diskreplay.remote.objects import Objects, find
from diskreplay.remote.sent import Counted, Sent
from diskreplay.remote.uploads import Uploads
from diskreplay.storage import metadata, stream
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.store import Store

ATTEMPTS = 10
KEPT_SECONDS = 600.0
"""How long a tail stays that no record names any more."""


class LeftTails:
    """The tails that remote records have left, for readers that are behind."""

    def __init__(self) -> None:
        self._left: collections.deque[tuple[float, int]] = collections.deque()
        """Their numbers, ascending, and since when by the monotonic clock."""

    def take_over(self, tail: Tail) -> None:
        """Note what an earlier process may have left just now, if nothing else is known."""
        if not self._left and tail.oldest < tail.number:
            self.leave(tail.oldest)

    def leave(self, number: int) -> None:
        """Note that a tail is left now."""
        self._left.append((time.monotonic(), number))

    def oldest(self, newest: int) -> int:
        """Return the least number of a tail to keep, if the record names the ``newest`` one."""
        while self._left and time.monotonic() - self._left[0][0] > KEPT_SECONDS:
            self._left.popleft()
        return self._left[0][1] if self._left else newest


class Push:
    """One stream of a local store on its way to a URL; not thread-safe.

    Args:
        store: the local one; whoever pushes holds the stream's lock, or is its writer.
        name: the name of the stream.
        objects: the objects of the remote store.

    Attributes:
        url: the URL of the remote store.
        sent: the counts of what was sent so far.
    """

    def __init__(self, store: Store, name: str, objects: Objects) -> None:
        self.url = objects.url
        self._store = store
        self._name = name
        self.sent = Sent(begin=self._commit().begin)
        self._objects = Counted(objects, self.sent)
        self._record = RemoteRecord(store, name, self._objects)
        self._uploads = Uploads(self._record)
        self._checkpoints = CheckpointPush(self._record, self._uploads)
        self._begun = False
        self._left = LeftTails()
        self._pins: list[Commit] = []
        """The commits of checkpoints, whose shards are remote."""

    def run(self) -> None:
        """Bring the remote store up to the newest local commit.

        Raises RemoteError, after which it can be run again, and RemoteConflictError, after which it cannot.
        """
        self._record.written = False
        for _ in range(ATTEMPTS):
            begun, self._begun = self._begun, False  # what fails half-way looks again at everything
            with contextlib.suppress(ChangedError):
                if not begun:
                    self._begin()
                self._push_rows()
                self.sent.taken = self._checkpoints.run()
                self._begun = True
                return
        raise RemoteError(f"{self.url}/{self._uploads.prefix}: others change it again and again; try again")

    def check_going_back(self, timeline: int) -> None:
        """Raise what a push would, once the stream went back to a checkpoint, and so to this new timeline.

        That is RemoteConflictError where another's checkpoint may need the rows that would be given up, or the remote
        stream is another's; and RemoteError where it is not known, as the URL does not answer.
        """
        found = find(self._objects, metadata.NAME)
        if found is not None:
            check_root(self._store, found[1], self.url)
            if find(self._objects, self._record.key) is not None:
                self._begin()
                self._checkpoints.check_not_needed(timeline)

    def _begin(self) -> None:
        """Look what is there, and whose it is."""
        document = json.loads(self._store.files.read(os.path.join(self._store.path, metadata.NAME)))
        there = put_root(self._objects, document, self._name)
        check_root(self._store, there, self.url)
        first = numbers.first(documents.attributes(there))
        local, known = self._commit(), self._record.commit is not None
        remote = self._record.look()
        self._uploads.look()
        self._pins = []
        if remote is None:
            numbers.claim(self._objects, first, self._name, local.stream, self._record.origin)
            self._uploads.put_groups(there, local.stream)
            self._put_record(_empty(local, 0))
            return
        if remote.timeline > local.timeline or remote.sequence > local.sequence:
            raise self._record.conflict("it is ahead of this directory, which holds files of an older copy")
        self._is_remote(remote, known)
        self._left.take_over(remote.tail)
        if local.timeline == remote.timeline:
            self._uploads.adopt(remote, self._store.cuts(self._name))

    def _is_remote(self, record: Commit, ours: bool = True) -> None:
        """Note a record that is remote, and the rows that were lost before it if this push put it."""
        lost = max(0, record.begin - self.sent.reached(record)) if record.tail.number and ours else 0
        self.sent.sequence, self.sent.end = record.sequence, record.end
        self.sent.timeline = record.timeline if record.tail.number else -1
        self.sent.lost_rows += lost

    def _push_rows(self) -> None:
        before = None
        for _ in range(ATTEMPTS):
            newest, pins = self._commit(), self._store.cuts(self._name)
            remote = self._record.commit
            new = remote is None or newest != _keeping(remote, newest.tail.oldest)
            if not new and pins == self._pins:
                return
            if remote is None or newest.timeline != remote.timeline:
                self._go_back(newest)
            elif newest.timeline and not remote.tail.number:
                self._checkpoints.give_up(newest.timeline)  # it was interrupted when it went back
            try:
                self._uploads.upload(newest, pins)
            except FileNotFoundError as error:
                if before == (newest, pins):
                    file = str(error.filename)
                    raise CorruptionError(f"{file!r} is missing, and cannot be pushed", file=file) from error
                before = newest, pins
                continue  # a shard was evicted meanwhile, or the tail was left, which the newer record says
            if new:
                self._put_record(_keeping(newest, self._oldest(newest)))
            self._pins = pins
            return
        raise RemoteError(
            f"the stream {self._name!r} evicts rows faster than {self.url} takes them; give it a larger capacity"
        )

    def _go_back(self, newest: Commit) -> None:
        """Make the remote stream empty on the new timeline, so that its shards may be replaced."""
        self._checkpoints.check_not_needed(newest.timeline)
        self._uploads.known = {}
        self._put_record(_empty(newest, self.sent.sequence + 1))
        self._checkpoints.give_up(newest.timeline)

    def _put_record(self, record: Commit) -> None:
        """Replace the remote record, which is the remote commit."""
        self._record.put(record)
        self._is_remote(record)

    def _oldest(self, newest: Commit) -> int:
        """Return the least number of a tail to keep under the URL, once a record is there that is newer."""
        before = self._record.commit
        if before is not None and before.tail.number not in (0, newest.tail.number):
            self._left.leave(before.tail.number)
        return self._left.oldest(newest.tail.number)

    def _commit(self) -> Commit:
        return stream.read_commit(self._store.files, self._store.stream_path(self._name))


def _keeping(record: Commit, oldest: int) -> Commit:
    """Return a record with another least number of a tail that is kept."""
    return dataclasses.replace(record, tail=record.tail._replace(oldest=oldest))


def _empty(of: Commit, sequence: int) -> Commit:
    """Return a record without rows, on the timeline of another one."""
    first = Commit.first(of.stream, of.num_envs, of.capacity)
    return dataclasses.replace(first, sequence=sequence, timeline=of.timeline)
