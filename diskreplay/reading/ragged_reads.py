"""The items of ragged rows, from their spans: each row is one run of consecutive items of one array."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from diskreplay.checks import Array
from diskreplay.reading.addresses import Stream
from diskreplay.reading.reads import Reads
from diskreplay.reading.target import Target
from diskreplay.schema.columns import RaggedColumn
from diskreplay.schema.ids import Ids
from diskreplay.schema.ragged import Form, Lists, Padded, offsets_of


def read(
    reads: Reads, column: RaggedColumn, spans: Array, streams: Iterable[tuple[Stream, Ids]], form: Form
) -> Padded | Lists:
    """Return the items of spans ``(n, 2)``; ``streams`` gives for each stream the positions of its spans.

    The caller holds ``engine.lock``. The arrays are complete once ``reads`` is finished.
    """
    first, length = spans[:, 0], spans[:, 1] - spans[:, 0]
    items = column.items
    if form == "lists":
        offsets = offsets_of(length)
        values = reads.empty((1, int(offsets[-1]), *items.shape), items.dtype)
        found: Padded | Lists = Lists(values[0], offsets)
        place, base = np.zeros_like(first), first - offsets[:-1]
    else:
        width = form.width(length)
        length = np.minimum(length, width)
        mask = form.mask(length, width)
        values = reads.empty((*mask.shape, *items.shape), items.dtype)
        if int(length.min(initial=width)) < width:
            values[~mask] = 0
        found = Padded(values, mask, length)
        place, base = np.arange(len(first)), first if form.side == "right" else first - (width - length)
    for stream, here in streams:
        here = here[length[here] > 0]
        if len(here):
            begin = first[here]
            runs = np.array([place[here], np.zeros_like(begin), begin, begin + (length[here] - 1), base[here]])
            reads.fetch(stream.disk.items[column.name], runs, Target(values), stream.cache)
    return found


def wrong(column: RaggedColumn, spans: Array, begin: int, end: int) -> str | None:
    """Return what is wrong with spans ``(..., 2)`` of an array of items ``[begin, end)``, or None."""
    starts, stops = spans[..., 0], spans[..., 1]
    bad = (starts < begin) | (stops > end) | (stops < starts) | (stops - starts > column.most)
    if not bad.any():
        return None
    start, stop = spans[bad][0].tolist()
    return (
        f"a span of the ragged column {column.name!r} is {start} to {stop}; its items are {begin} to {end}, at most "
        f"{column.most} a row"
    )
