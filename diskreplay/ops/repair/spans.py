"""The spans of ragged columns in a stream that is repaired: which of them have lost items, and what takes their place.

A span that is right and whose items are lost stays: zeros are read there, by nobody. One that cannot be read, or names
items that there are not, becomes empty. A span of a video column becomes empty, too, if it lost packets, because verify
reads the packets of every span. An empty span must not begin before the items that a commit needs when its row is the
oldest one, nor keep that commit from needing what later rows name. So it begins where the first of these does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay import video
from diskreplay.ops.repair.column_repair import ColumnRepair
from diskreplay.ops.verify_rows import by_group
from diskreplay.reading import ragged_reads
from diskreplay.schema.columns import RaggedColumn
from diskreplay.video import Video

Spans = NDArray[np.int64]
Mask = NDArray[np.bool_]


def outside(spans: Spans, column: RaggedColumn, items: ColumnRepair) -> Mask:
    """Return which spans ``(..., 2)`` a reader would refuse."""
    return ragged_reads.is_wrong(column, spans, items.first, items.end)


def unfit(spans: Spans, column: RaggedColumn, items: ColumnRepair) -> Mask:
    """Return which spans ``(..., 2)`` become empty."""
    return outside(spans, column, items) if column.video is None else lost(spans, column, items)


def lost(spans: Spans, column: RaggedColumn, items: ColumnRepair) -> Mask:
    """Return which spans ``(..., 2)`` a reader would refuse, or have items that cannot be read; of video, packets."""
    starts, stops = spans[..., 0], spans[..., 1]
    holes = np.array(sorted(hole for hole, _ in items.lost_rows()), np.int64).reshape(-1, 2)
    found = outside(spans, column, items)
    if len(holes):
        at = np.minimum(np.searchsorted(holes[:, 1], starts, side="right"), len(holes) - 1)
        found |= (starts < stops) & (holes[at, 0] < stops) & (holes[at, 1] > starts)
    if column.video is not None:
        found[~found] = _no_packets(spans[~found], column.video, items)
    return found


def _no_packets(spans: Spans, facts: Video, items: ColumnRepair) -> Mask:
    """Return which spans ``(n, 2)`` are not of whole packets of one group."""
    found = np.zeros(len(spans), bool)
    for group in by_group(spans):
        start, stop = spans[group[-1]].tolist()
        ends = video.ends(facts, items.values(start, stop)[:, 0]) if start < stop else []
        found[group] = ~np.isin(spans[group, 1] - start, [0, *ends])
    return found


def emptied(spans: Spans, unknown: Mask, following: int) -> Spans:
    """Return the spans ``(rows, num_envs, 2)`` of all rows, empty where they are ``unknown``.

    ``following`` is the first item that is needed once all of these rows are evicted.
    """
    starts = np.where(unknown, following, spans[..., 0]).min(axis=1, initial=following)
    first = np.minimum.accumulate(starts[::-1])[::-1]
    return np.where(unknown[..., None], first[:, None, None], spans)
