"""The commit record that a stream should have, where its numbers and the files disagree.

A writer that was interrupted and went on could commit a record that names older tails than those of its rows, or a
window above its capacity. Nothing is lost by that: every index in a shard file is sealed with the rows that it knows,
so the files say what the record should.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from diskreplay.ops.patch_frames import MAX_MISSING
from diskreplay.ops.quarantine import Quarantine
from diskreplay.ops.repair_column import ColumnRepair
from diskreplay.ops.repair_index import ShardIndex, index_at, indexes
from diskreplay.schema import PLACES, is_patch
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit, Span, Tail


def settled(columns: Mapping[str, ColumnReader], record: Commit, context: int, quarantine: Quarantine) -> Commit:
    """The record with the rows and patches that the files have; its tails are left as they are.

    Args:
        columns: all of the stream's, as :meth:`Store.readers` gives them.
        quarantine: that :class:`ColumnRepair` needs; nothing is put there.
    """
    rows = {path: reader for path, reader in columns.items() if not is_patch(path)}
    end = _row_end(rows, record)
    least = max(0, end - record.rows)
    begin = record.begin
    if begin > end:  # nobody knows any more: all that is there
        first = _first_row(rows, end)
        begin = first + context if first else 0
    settled = dataclasses.replace(record, begin=min(max(begin, least), end), end=end)
    patch_end = _patch_end(columns[PLACES], settled, quarantine)
    settled = dataclasses.replace(settled, patch_end=patch_end)
    if record.begin > end or record.patch_begin > patch_end:
        settled = dataclasses.replace(settled, patch_begin=0)
    elif record.begin >= least:
        return settled
    return _without_older_patches(columns[PLACES], settled, context, quarantine)


def _without_older_patches(place: ColumnReader, record: Commit, context: int, quarantine: Quarantine) -> Commit:
    """The record, beginning at the first of its patches that belongs to a row that it keeps."""
    tail = record.tails.get(PLACES, Tail(0, 0))
    places = _places(place, record.patch_begin, record.patch_end, tail, quarantine)
    needed = np.flatnonzero(places.values(places.first, places.end)[:, 0, 0] >= record.floor(context))
    return dataclasses.replace(record, patch_begin=places.first + (int(needed[0]) if len(needed) else 0))


def _all(reader: ColumnReader, end: int, tail: Tail) -> Iterator[ShardIndex]:
    """The indexes of the shards that rows up to ``end`` may be in, the newest first."""
    rows = reader.column.shard_rows
    for shard in sorted({max(0, end - 1) // rows, max(0, end - 2) // rows, end // rows, tail.shard}, reverse=True):
        yield from indexes(reader, shard, end, tail.size if shard == tail.shard else 0)


def _row_end(rows: Mapping[str, ColumnReader], record: Commit) -> int:
    """One past the last row.

    That is what the record says, unless the indexes that its tails name all end at one other row: at a later one, or at
    an earlier one where no column has an index that ends at the record's.
    """
    named = {
        found.end if (found := index_at(reader, tail.shard, tail.size, record.end)) else None
        for path, reader in rows.items()
        for tail in [record.tails.get(path, Tail(0, 0))]
    }
    (agreed,) = named if len(named) == 1 else (None,)
    if agreed is not None and agreed >= record.end:
        return agreed
    for path, reader in rows.items():
        tail = record.tails.get(path, Tail(0, 0))
        shard = max(0, record.end - 1) // reader.column.shard_rows
        known = indexes(reader, shard, record.end, tail.size if tail.shard == shard else 0)
        if not reader.identity or any(found.end == record.end for found in known):
            return record.end
    return record.end if agreed is None else agreed


def patch_span(reader: ColumnReader, path: str, span: Span) -> tuple[int, int]:
    """The range of an array of the patch table that holds the patches of a span.

    An interrupted writer may have left out frames of a leaf: then it has fewer than there are places, and the range
    begins and ends earlier.
    """
    begin, end, tail = span.begin, span.end, span.tail
    last = max(0, end - 1) // reader.column.shard_rows
    if path == PLACES or not reader.identity or not end:
        return begin, end
    named = index_at(reader, tail.shard, tail.size, end)
    if named is not None and named.end == end:
        return begin, end
    if any(found.end == end for found in indexes(reader, last, end, tail.size if tail.shard == last else 0)):
        return begin, end
    there = [shard for shard, _ in reader.shards_on_disk()]
    newest = max(there, default=0)
    at_end = index_at(reader, newest, reader.files.size(reader.shard_path(newest)) or 0, end)
    known = [found.end for found in (named, at_end) if found is not None and found.end is not None and found.end < end]
    if not known or end - max(known) > MAX_MISSING:
        return begin, end
    return max(begin - (end - max(known)), min(there) * reader.column.shard_rows, 0), max(known)


def _first_row(rows: Mapping[str, ColumnReader], end: int) -> int:
    """The first row from which on every shard of every column is there."""
    first = 0
    for reader in rows.values():
        there = {shard for shard, _ in reader.shards_on_disk()}
        shard = max(0, end - 1) // reader.column.shard_rows
        while shard - 1 in there:
            shard -= 1
        first = max(first, shard * reader.column.shard_rows)
    return first


def _patch_end(place: ColumnReader, record: Commit, quarantine: Quarantine) -> int:
    """One past the last patch: every commit ends with those that hold the next observations of its last row."""
    tail = record.tails.get(PLACES, Tail(0, 0))
    named = index_at(place, tail.shard, tail.size, record.patch_end)
    if not record.end or not place.identity:
        return record.patch_end
    if named is not None and named.end == record.patch_end and _covers(place, record, named.end, tail, quarantine):
        return record.patch_end
    ends = [found.end for found in _all(place, record.patch_end, tail) if found.end is not None]
    for end in sorted(set(ends), key=lambda end: (end != record.patch_end, -end)):
        if _covers(place, record, end, tail, quarantine):
            return end
    return record.patch_end


def _covers(place: ColumnReader, record: Commit, end: int, tail: Tail, quarantine: Quarantine) -> bool:
    """Whether the last of ``end`` patches belong to the last row, and every environment's next observation is there.

    Not those that a repair wrote behind a damaged table, and died before its commit: it left holes in the table, or
    goes back to its first rows.
    """
    first = max(0, end - place.column.chunk_rows)
    if end > record.patch_end:
        first = min(first, record.patch_begin)
    places = _places(place, first, end, tail, quarantine).values(first, end)[:, 0]
    if end > record.patch_end:
        table = places[record.patch_begin - first :]
        if not table[:, 2].all() or (np.diff(table[:, 0]) < 0).any():
            return False
    newest = places[(places[:, 0] == record.end - 1) & (places[:, 2] == 1)]
    return bool(len(places)) and places[-1, 0] < record.end and len(np.unique(newest[:, 1])) == record.num_envs


def _places(place: ColumnReader, first: int, end: int, tail: Tail, quarantine: Quarantine) -> ColumnRepair:
    """The places of patches from ``first`` on, or of those that are on disk."""
    there = [shard for shard, _ in place.shards_on_disk()]
    first = max(first, min(there, default=0) * place.column.shard_rows)
    found = ColumnRepair(place, min(first, end), end, tail, quarantine, {}, None, newer=False)
    found.scan()
    return found


def mended_cut(
    columns: Mapping[str, ColumnReader], recorded: Commit, context: int, quarantine: Quarantine
) -> Commit:  # fmt: skip
    """A checkpoint's cut with a window that fits its capacity, and tails that end with the indexes of its rows.

    Where one of these indexes cannot be found, all tails stay as they are.
    """
    cut = dataclasses.replace(recorded, begin=max(recorded.begin, recorded.end - recorded.rows))
    cut = _with_tails(columns, cut, context)
    return cut if cut.begin == recorded.begin else _without_older_patches(columns[PLACES], cut, context, quarantine)


def _with_tails(columns: Mapping[str, ColumnReader], cut: Commit, context: int) -> Commit:
    tails = dict(cut.tails)
    for path, reader in columns.items():
        span = cut.span(path, context)
        end, tail = span.end, span.tail
        shard = max(0, end - 1) // reader.column.shard_rows
        if not end or not reader.identity:
            continue
        named = index_at(reader, shard, tail.size, end) if tail.shard == shard else None
        if named is not None and named.end == end:
            continue
        stops = [found.stop for found in indexes(reader, shard, end, tail.size) if found.end == end]
        if not stops:
            return cut
        tails[path] = Tail(shard, stops[0])
    return dataclasses.replace(cut, tails=tails)
