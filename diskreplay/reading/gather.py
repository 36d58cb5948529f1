"""How rows of a large column get into a batch: one small read for each chunk, decoded while it is in the CPU's cache.

1. The core cuts runs of consecutive rows of one environment at chunk borders into *pieces*, and finds where the chunks
   are. Those on disk are sorted by chunk, so that each chunk is decoded once and a cold disk is read forwards.
2. With ``engine.lock`` held, :func:`plan` copies the pieces that are in RAM: in the log, in the cache, or waiting for a
   commit. It holds the files of the others open, so no eviction takes them away. If it needs more files than a batch
   may hold, it reads pieces at once, in parts, each before the files of the next are opened.
3. Without the lock, :func:`begin` starts the downloads of remote chunks, and :func:`run` reads, decodes and copies the
   rest, in compiled code where that can (:mod:`diskreplay.reading.compiled`). Python reads chunks that the cache takes
   in, and chunks that the compiled code rejects.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.native import core
from diskreplay.reading import compiled
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.scratch import scratch
from diskreplay.reading.target import Target
from diskreplay.schema.ids import Ids
from diskreplay.storage import chunks
from diskreplay.storage import files as fs
from diskreplay.storage.column import ColumnReader

Pieces = NDArray[np.int64]
"""Pieces ``(n, 13)``, as ``frames`` of the core gives them."""
Piece = tuple[list[int], bytes | None]
"""The numbers of a piece, and the bytes of its chunk, None if they are on disk."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The part of a batch's column that is left to read.

    Attributes:
        columns: the column to read, for each of some streams; those that are read have the same chunks and codec.
        out: the arrays to fill.
        encoded: the pieces of chunks that wait for a commit, each with its chunk's bytes.
        pieces: the pieces on disk; those of one chunk stand together.
        files: their files.
        complete: for each of these streams, the number of chunks that do not change any more.
    """

    columns: Sequence[ColumnReader]
    out: Target
    encoded: list[Piece]
    pieces: Pieces
    files: Sequence[fs.Readable]
    complete: Mapping[int, int]


MOST_AT_ONCE = 4096
"""The most pieces that are read before an interrupt is noticed."""


def plan(chunked: core.Chunks, found: core.Found, out: Target) -> Plan:
    """Copy what is in RAM into ``out``, and return the rest for :func:`run`; the caller holds the lock."""
    on_disk, shards, in_ram, waiting, is_lost = found
    columns = chunked.columns
    if is_lost:
        lost = on_disk[on_disk[:, 8] < 0]
        lost = lost[lost[:, 6] == lost[0, 6]]
        columns[lost[0, 6]].locate(lost[:, 4], lost[:, 5])  # which says what is wrong
    if in_ram.size:
        _copy(chunked, in_ram, out)
    encoded = _copy_waiting(columns, waiting, out) if waiting.size else []
    streams = {at for at, _ in shards}.union(numbers[6] for numbers, _ in encoded)
    complete = {at: columns[at].end // columns[at].column.chunk_rows for at in streams}
    files, in_parts = _open(columns, shards), False
    while len(files) < len(shards) or (in_parts and files):  # no part is left over: what comes next needs files, too
        in_parts = True
        count = int(np.searchsorted(on_disk[:, 7], len(files)))
        run(begin(Plan(columns, out, [], on_disk[:count], files, complete)), chunked.cache)
        on_disk, shards = on_disk[count:], shards[len(files) :]
        on_disk[:, 7] -= len(files)
        del files  # before others are opened
        files = _open(columns, shards)
    return Plan(columns, out, encoded, on_disk, files, complete)


def _open(columns: Sequence[ColumnReader], shards: list[tuple[int, int]]) -> list[fs.File]:
    """Return the open files of the first of these streams and shards: as many as may be read at once."""
    files: list[fs.File] = []
    for at, each in itertools.groupby(shards, operator.itemgetter(0)):
        wanted = [shard for _, shard in each]
        held = columns[at].open_shards(wanted, besides=len(files))
        files += held.values()
        if len(held) < len(wanted):
            break
    return files


def _copy(chunked: core.Chunks, pieces: Pieces, out: Target) -> None:
    """Copy pieces in RAM."""
    packed, cache = compiled.take(chunked, pieces, out), chunked.cache
    if cache.column(chunked.columns[pieces[0, 6]]) is not None:  # else the log holds them
        cache.copied["runs"] += packed
        cache.copied["raw"] += len(pieces) - packed


def _copy_waiting(columns: Sequence[ColumnReader], pieces: Pieces, out: Target) -> list[Piece]:
    """Copy pieces of chunks that wait for a commit, and return those that must be decoded first."""
    encoded: list[Piece] = []
    for numbers in pieces.tolist():
        place, step, row, rows, chunk, group, at, _, _, _, places, *_ = numbers
        column = columns[at]
        waiting = column.held(chunk)
        values = waiting.values  # read once: a commit may replace it by its bytes right now
        if values is None:
            encoded.append((numbers, waiting.encoded[group]))
        else:
            flat = values.reshape(column.groups, column.chunk_items, *column.column.shape)
            out.put(place, step, flat[group, row : row + rows], places)
    return encoded


def begin(plan: Plan) -> list[Plan]:
    """Start to download the remote chunks that have no copy here; return the plan in parts, the downloads last."""
    files, coming = list(plan.files), np.zeros(len(plan.pieces), bool)
    for at, file in enumerate(plan.files):
        if file.absent:
            here = plan.pieces[:, 7] == at
            parts = file.fetch((offset, offset + size) for offset, size in plan.pieces[here, 8:10].tolist())
            if parts is not None:
                files[at], coming[here] = parts, True
    if not coming.any():
        return [plan]
    there = dataclasses.replace(_apart(plan, files, ~coming), encoded=plan.encoded)
    return [there, _apart(plan, files, coming)]


def _apart(plan: Plan, files: list[fs.Readable], which: NDArray[np.bool_]) -> Plan:
    """Return the part of a plan with some of its pieces, read from ``files``."""
    pieces = plan.pieces[which]
    used, pieces[:, 7] = np.unique(pieces[:, 7], return_inverse=True)
    return dataclasses.replace(plan, encoded=[], pieces=pieces, files=[files[at] for at in used.tolist()])


def run(parts: Iterable[Plan], cache: ChunkCache) -> None:
    """Read, decode and copy the pieces of a plan's parts; raise CorruptionError for a damaged chunk."""
    for plan in parts:
        if plan.encoded:
            _read(plan, plan.encoded, cache)
        if plan.pieces.size:
            _run(plan, cache)


def _run(plan: Plan, cache: ChunkCache) -> None:
    at, count = 0, len(plan.pieces)
    cache.copied["disk"] += count
    column = plan.columns[plan.pieces[0, 6]]
    read = compiled.reader(column, plan.out, plan.pieces, plan.files)
    while at < count:
        if read is not None and not cache.admits(column):
            at = read(at, min(count, at + MOST_AT_ONCE))
            if at == count:
                break
        stop = count if read is None else _end_of_chunk(plan.pieces, at)
        _read(plan, ((numbers, None) for numbers in plan.pieces[at:stop].tolist()), cache)
        at = stop


def _end_of_chunk(pieces: NDArray[np.int64], at: int) -> int:
    stop = at + 1
    while stop < len(pieces) and (pieces[stop, 4:7] == pieces[at, 4:7]).all():
        stop += 1
    return stop


def _read(plan: Plan, pieces: Iterable[Piece], cache: ChunkCache) -> None:
    """Read, decode and copy pieces in Python, and offer their chunks to the cache."""
    like, before = plan.columns[next(iter(plan.complete))], (-1, -1, -1)
    with scratch(like.decoded_bytes) as room:
        values = room[: like.decoded_bytes].view(like.column.dtype).reshape(like.chunk_items, *like.column.shape)
        for (place, step, row, rows, chunk, group, stream, file, offset, size, places, *_), encoded in pieces:
            if before != (stream, chunk, group):
                before = stream, chunk, group
                column = plan.columns[stream]
                if encoded is None:
                    column.decode((plan.files[file], offset, size), values, chunk)
                else:
                    chunks.decode(column.column.codec, encoded, values)
                if chunk < plan.complete[stream]:
                    cache.put(column, chunk, group, values)
            plan.out.put(place, step, values[row : row + rows], places)


def read_rows(column: ColumnReader, start: int, out: Array) -> None:
    """Read committed rows from ``start`` on into ``out``, ``(rows, num_envs, *shape)``, which is contiguous."""
    rows, envs, shape, stop = column.column.chunk_rows, column.group_envs, column.column.shape, start + len(out)
    stored = max(start, min(stop, column.stored_rows))
    if stored < stop:
        out[stored - start :] = column.read_rows(stored, stop)
    if stored == start:
        return
    given = out[: stored - start].reshape(-1, column.groups, envs, *shape).swapaxes(0, 1)
    whole = np.ascontiguousarray(given)  # a copy if environments are in several chunks
    target = Target(whole.reshape(column.groups, -1, *shape))
    chunk, group = (each.ravel() for each in np.mgrid[start // rows : -(-stored // rows), : column.groups])
    if chunk[0] < column.entries.begin or chunk[-1] >= column.entries.end:
        column.locate(chunk, group)  # which says what is wrong
    low, high = np.maximum(chunk * rows, start), np.minimum((chunk + 1) * rows, stored)
    shards, file = np.unique(chunk // column.shard_chunks, return_inverse=True)
    offset, size = column.entries.array[chunk % column.entries.length, group].T
    pieces = compiled.pieces_on_disk(
        group, (low - start) * envs, (low - chunk * rows) * envs, (high - low) * envs, chunk, group, file, offset, size
    )
    chunked = core.Chunks(ChunkCache(0), [column])
    found = pieces, [(0, shard) for shard in shards.tolist()], pieces[:0], pieces[:0], bool((offset < 0).any())
    run(begin(plan(chunked, found, target)), chunked.cache)
    if column.groups > 1:
        given[:] = whole


def load(column: ColumnReader, chunk: Ids, group: Ids, cache: ChunkCache) -> None:
    """Decode committed chunks (n,) into the cache, as far as it admits them."""
    at = 0
    while at < len(chunk):
        places = column.locate(chunk[at:], group[at:])
        here = slice(at, at + len(places))
        for file in {id(file): file for file, _, _ in places}.values():
            file.begin()
        cache.fill(column, chunk[here], group[here], places)
        at = here.stop


def advise(column: ColumnReader, chunk: Ids, group: Ids) -> None:
    """Tell the system that committed chunks (n,) are read soon, as far as they may be read at once."""
    for file, offset, size in column.locate(chunk, group):
        file.will_need(offset, size)
