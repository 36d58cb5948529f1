"""The counts of what a push has sent."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from diskreplay.remote.objects import Object, Objects
from diskreplay.storage.commit import Commit


@dataclasses.dataclass
class Sent:
    """The counts of what was sent.

    Attributes:
        requests: puts, gets, listings and deletions.
        puts: the number of puts.
        sent_bytes: the bytes that were put.
        sequence, end: the numbers of the newest record that is remote; -1 and 0 before the first.
        timeline: the timeline of that record; -1 where it has no rows.
        begin: the first row that was here when this push was begun.
        lost_rows: rows that were evicted here before they could be sent, up to that record.
        taken: names of checkpoints here that another's checkpoint has there.
    """

    requests: int = 0
    puts: int = 0
    sent_bytes: int = 0
    sequence: int = -1
    end: int = 0
    timeline: int = -1
    begin: int = 0
    lost_rows: int = 0
    taken: tuple[str, ...] = ()

    def reached(self, newest: Commit) -> int:
        """Return the first row of a commit's timeline that waits, or would if it were not evicted."""
        return self.end if self.timeline == newest.timeline else self.begin


class Counted:
    """The objects of another :class:`diskreplay.remote.objects.Objects`, with requests counted."""

    def __init__(self, objects: Objects, sent: Sent) -> None:
        self._objects = objects
        self._sent = sent
        self.url = objects.url

    def get(self, key: str, span: tuple[int, int] | None = None) -> tuple[Object, Iterable[bytes]]:
        self._sent.requests += 1
        return self._objects.get(key, span)

    def head(self, key: str) -> Object | None:
        self._sent.requests += 1
        return self._objects.head(key)

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        self._sent.requests += 1
        self._sent.puts += 1
        made = self._objects.put(key, data, tag)
        self._sent.sent_bytes += len(data)
        return made

    def list(self, prefix: str) -> list[Object]:
        self._sent.requests += 1
        return self._objects.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        self._sent.requests += len(keys)
        self._objects.delete(keys)
