"""The parts of a shard: which bytes are asked for, and those that come.

A request costs its latency beside its bytes. So what lies close together is one request, and what is most of a shard,
or a small shard, is better downloaded whole.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from diskreplay.remote.downloads import Download
from diskreplay.storage.files import Readable

Span = tuple[int, int]
"""The bytes of a shard from the first number on, below the second."""

REQUEST_BYTES = 64 << 10
"""The bytes that cost as much time as one more request: spans as close as that are one request."""
WHOLE_BYTES = 256 << 10
"""The largest shard that is always downloaded whole."""


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the requests by which spans are asked for, ascending."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= REQUEST_BYTES:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def cost(spans: Iterable[Span]) -> int:
    """Return the cost of requests, in bytes."""
    return sum(end - begin + REQUEST_BYTES for begin, end in spans)


class PartialShard(Readable):
    """A shard of which parts are being downloaded: a file that has nothing else.

    Args:
        parts: the first byte of each part, ascending, and its download.
    """

    def __init__(self, parts: Iterable[tuple[int, Download[bytes]]]) -> None:
        self._parts = list(parts)
        self._begins = [begin for begin, _ in self._parts]

    def pread(self, size: int, offset: int, /) -> bytes:
        """Wait for the part, and return it or raise what its download raised."""
        begin, download = self._parts[bisect.bisect_right(self._begins, offset) - 1]
        return download.result()[offset - begin : offset - begin + size]
