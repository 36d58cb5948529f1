"""Where the core finds what the streams of a store hold: their logs, and the values of each of their columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np

from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.native import core
from diskreplay.reading.cache import ChunkCache
from diskreplay.schema.columns import START
from diskreplay.schema.ids import Ids, stream_of
from diskreplay.storage.stream import StreamReader, StreamWriter


class Stream(Protocol):
    """The parts of an open stream that have values."""

    log: StreamLog
    disk: StreamReader | StreamWriter
    cache: ChunkCache


SomeStream = TypeVar("SomeStream", bound=Stream)
Group = tuple[SomeStream, Ids, Ids, Ids]
"""A stream, and the samples from it: their places in the batch, their rows, and their environments."""


class Addresses:
    """What the core has seen of the streams of a store, in the order of their numbers."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self.streams = streams
        self.logs = core.Logs([stream.log for stream in streams], START, NEXT_PATCH)
        self.rows: core.Rows | None = None
        """The columns of transitions, if one call can copy them."""
        self._chunks: dict[tuple[str, bool], core.Chunks] = {}

    def chunks(self, name: str, patches: bool = False) -> core.Chunks:
        """Return where the values of a column are, or of its patches."""
        found = self._chunks.get((name, patches))
        if found is None:
            columns = [(stream.disk.patches if patches else stream.disk.rows)[name] for stream in self.streams]
            found = core.Chunks(self.streams[0].cache, columns, self.logs, patches)
            self._chunks[name, patches] = found
        return found


def by_stream(streams: Sequence[SomeStream], ids: Ids, place: Ids) -> list[Group[SomeStream]]:
    """Return samples, grouped by stream."""
    if len(streams) == 1 or not len(ids):
        return [(streams[0], place, *streams[0].log.locate(ids))]
    groups = []
    numbers = stream_of(ids)
    drawn = set(numbers.tolist())  # a batch has rows of few of a thousand streams
    for stream in streams:
        if stream.log.stream in drawn:
            here = np.flatnonzero(numbers == stream.log.stream)
            groups.append((stream, place[here], *stream.log.locate(ids[here])))
    return groups
