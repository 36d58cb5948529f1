"""The plans of plain batches, which compiled code makes for all streams of a store at once.

:func:`fill` does the same as :func:`.observations.fill`. ``docs/architecture.md`` lists what is not plain: Python plans
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from diskreplay.index.addresses import FULL
from diskreplay.reading import compiled, gather
from diskreplay.reading.gather import Plan
from diskreplay.reading.reads import Reads
from diskreplay.reading.tables import ColumnTable, Tables
from diskreplay.reading.target import Target
from diskreplay.schema.ids import Ids
from diskreplay.storage.column import Locations
from diskreplay.storage.files import File


def fill(
    reads: Reads, tables: Tables, drawn: Sequence[int], name: str, out: Target, ids: Ids, place: Ids,
    first_step: int, last_step: int,
) -> Ids | None:  # fmt: skip
    """Fill the places of ``out`` with steps ``first_step`` to ``last_step`` (at most 1) of a column at rows.

    The caller holds the lock. Cached frames are copied now; ``reads`` notes the rest.

    Args:
        drawn: the positions, in the tables, of the streams to which the rows ``ids`` belong.

    Returns ``(2, k)``: the rows that have fewer steps before them than are wanted, and how many each has. If the batch
    is not plain, it returns None and does nothing.
    """
    planner = compiled.planner()
    if planner is None:
        return None
    rows = tables.column(name)
    patches = tables.column(name, patches=True) if last_step == 1 else rows
    if not (rows.alike(drawn) and patches.alike(drawn)):
        return None
    for at in drawn:
        rows.catch_up(at)
        if patches is not rows:
            patches.catch_up(at)
    plain, found, ends, files, of_rows, short = planner.frames(
        ids, place, first_step, last_step, tables.logs.facts, rows.facts, patches.facts
    )
    if not plain:
        return None
    opened = files.T.tolist() if files.size else []
    row_files = [rows.columns[at].handles.get(shard) for at, shard in opened[:of_rows]]
    patch_files = [patches.columns[at].handles.get(shard) for at, shard in opened[of_rows:]]
    if None in row_files or None in patch_files:  # Python opens what is not open
        return None
    _copy_cached(reads, rows, out, found, (0, *ends[:3]), row_files)
    if ends[5] > ends[2]:
        _copy_cached(reads, patches, out, found, ends[2:], patch_files)
    here: Ids = short
    return here


def _copy_cached(
    reads: Reads, table: ColumnTable, out: Target, found: Ids, parts: tuple[int, ...], files: list[File | None]
) -> None:
    """Copy the pieces that are cached or wait for a commit, and note those on disk in ``reads``.

    ``found`` is what :func:`.planner.frames` has found, ``parts`` where its parts of this table begin and end.
    """
    begin, read, cached, waiting = parts
    if cached > read:
        slots, pieces = found[7, read:cached], np.ascontiguousarray(found[:7, read:cached])
        gather.copy_cached(table.cache, table.cached, table.slabs, slots, pieces, out)
    encoded = []
    if waiting > cached:
        encoded = gather.copy_waiting(table.columns, found[:7, cached:waiting], out)
    if read > begin or encoded:
        located = Locations(cast(list[File], files), np.ascontiguousarray(found[7:, begin:read]))
        full_chunks = table.facts[:, FULL].tolist()
        pieces = np.ascontiguousarray(found[:7, begin:read])
        reads.add_plan(Plan(table.columns, full_chunks, out, encoded, pieces, located), table.cache)
