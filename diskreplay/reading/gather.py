"""How rows of a large column get into a batch: one small read for each chunk, decoded while it is in the CPU's cache.

1. A *request* is a run of consecutive rows of one environment, with the place in the batch that they fill.
2. Requests are cut at chunk borders into *pieces*.
3. With ``engine.lock`` held, :func:`plan` copies the pieces that are in RAM: in the cache, or waiting for a commit. It
   notes where the others are, sorted by chunk, so that each chunk is decoded once and a cold disk is read forwards.
   The plan holds their files open, so no eviction takes them away. If it needs more files than a batch may hold, it
   reads all pieces at once, in parts, each before the files of the next are opened.
4. Without the lock, :func:`begin` starts the downloads of remote chunks, and :func:`run` reads, decodes and copies the
   rest, in compiled code where that can (:mod:`diskreplay.reading.compiled`). Python reads chunks that the cache takes
   in, and chunks that the compiled code rejects.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay.reading import compiled
from diskreplay.reading.cache import CachedColumn, ChunkCache
from diskreplay.reading.scratch import scratch
from diskreplay.reading.target import Target
from diskreplay.schema.ids import Ids
from diskreplay.storage import chunks
from diskreplay.storage import files as fs
from diskreplay.storage.column import ColumnReader, Location, Locations

NOTHING = np.empty((7, 0), np.int64)


@dataclasses.dataclass(frozen=True)
class Requests:
    """The runs of rows to read, all arrays ``(n,)``.

    Rows ``first`` to ``last`` (inclusive) of environment ``env`` go to the target's ``place``, to the steps from
    ``first - base`` on.
    """

    place: Ids
    env: Ids
    first: Ids
    last: Ids
    base: Ids


Source = Location | bytes
"""The source of a chunk: its place on disk, or its encoded bytes."""

Piece = tuple[int, int, int, int, int, int, int, Source]
"""Place in the batch, step in it, row in the chunk, rows, chunk, environment, column, source of the chunk."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The part of a batch's column that is left to read.

    Attributes:
        columns: the column to read, for each of some streams.
        full_chunks: for each column, the number of chunks that do not change any more.
        out: the arrays to fill.
        encoded: the pieces whose sources are bytes.
        pieces: ``(7, n)``, as :data:`Piece` without its source; those of one chunk stand together.
        places: the places of the pieces' chunks.
    """

    columns: Sequence[ColumnReader]
    full_chunks: Sequence[int]
    out: Target
    encoded: list[Piece]
    pieces: NDArray[np.int64]
    places: Locations

    @property
    def column(self) -> ColumnReader:
        """The first of the columns that are read: all of them have the same chunks and codec."""
        return self.columns[self.pieces[6, 0] if self.pieces.shape[1] else self.encoded[0][6]]

    @property
    def empty(self) -> bool:
        return not self.encoded and not len(self.places)


MOST_AT_ONCE = 4096
"""The most pieces that are read before an interrupt is noticed."""


def split(requests: Requests, chunk_rows: int) -> NDArray[np.int64]:
    """Return the pieces of requests for column 0, ``(7, n)``, as :data:`Piece` without its source."""
    given = np.array([requests.place, requests.env, requests.first, requests.last, requests.base])
    pieces = compiled.split(given, chunk_rows)
    if pieces is not None:
        return pieces
    chunk = given[2] // chunk_rows
    extra = given[3] // chunk_rows - chunk
    if extra.any():
        which = np.repeat(np.arange(len(extra)), extra + 1)
        starts = np.cumsum(extra + 1) - (extra + 1)
        chunk = chunk[which] + np.arange(len(which)) - starts[which]
        given = given.take(which, axis=1)
    place, env, first, last, base = given
    chunk_row = chunk * chunk_rows
    low = np.maximum(first, chunk_row)
    high = np.minimum(last, chunk_row + (chunk_rows - 1))
    return np.array([place, low - base, low - chunk_row, high - low + 1, chunk, env, np.zeros_like(env)])


def _of_items(requests: Requests, envs: int) -> Requests:
    """Return requests in values of a chunk of ``envs`` environments, one for each value if there are several."""
    if envs == 1:
        return requests
    counts = requests.last - requests.first + 1
    place, env, first, base = (
        np.repeat(values, counts) for values in (requests.place, requests.env, requests.first, requests.base)
    )
    row = first + np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    item = row * envs + env % envs
    return Requests(place, env // envs, item, item, item - (row - base))


def by_chunk(pieces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the pieces ``(7, n)`` of a column in the order of their chunks."""
    chunk, env = pieces[4:6]
    return pieces.take(np.lexsort((env, chunk)) if env.any() else chunk.argsort(), axis=1)


def plan(column: ColumnReader, requests: Requests, out: Target, cache: ChunkCache) -> Plan:
    """Copy what is in RAM into ``out``, and return the rest for :func:`run`; the caller holds the lock."""
    cached = cache.column(column)
    pieces = split(_of_items(requests, column.group_envs), column.chunk_items)
    if cached is not None:
        pieces = _from_cache(cache, cached, pieces, out)
    encoded, pieces = _from_ram(column, pieces, out)
    if pieces.shape[1]:
        pieces = by_chunk(pieces)
    planned = _located(column, out, encoded, pieces)
    if len(planned.places) == pieces.shape[1]:
        return planned
    # The caller holds the lock, so that all places are of the same window.
    while count := len(planned.places):
        run(begin(planned), cache)
        pieces = pieces[:, count:]
        del planned  # and so its files, before others are opened
        planned = _located(column, out, [], pieces)
    return planned


def _located(column: ColumnReader, out: Target, encoded: list[Piece], pieces: NDArray[np.int64]) -> Plan:
    """Return the plan of pieces, of those on disk only the first, as many as may be read at once."""
    places = column.locate(pieces[4], pieces[5])
    full_chunks = column.end // column.column.chunk_rows
    return Plan([column], [full_chunks], out, encoded, pieces[:, : len(places)], places)


def _from_cache(cache: ChunkCache, cached: CachedColumn, pieces: NDArray[np.int64], out: Target) -> NDArray[np.int64]:
    slots = cached.find(pieces[4], pieces[5])
    hits = slots >= 0
    count = np.count_nonzero(hits)
    if not count:
        return pieces
    found, left = pieces, NOTHING
    if count < len(slots):
        slots, found, left = slots[hits], pieces.compress(hits, axis=1), pieces.compress(~hits, axis=1)
    blocks = cached.blocks
    copy_cached(cache, [cached], np.array([[blocks.ctypes.data, len(blocks)]]), slots, found, out)
    return left


def copy_cached(
    cache: ChunkCache, cached: Sequence[CachedColumn | None], slabs: NDArray[np.int64], slots: Ids,
    pieces: NDArray[np.int64], out: Target,
) -> None:  # fmt: skip
    """Copy pieces ``(7, n)`` of cached chunks, each from its slot."""
    columns = cast(Sequence[CachedColumn], cached)
    like = columns[pieces[6, 0]].column
    at, packed = compiled.take(like.column, like.chunk_items, slabs, slots, pieces, out)
    if at < len(slots):
        packed += _copy_each(columns, slots[at:], pieces[:, at:], out)
    cache.copied["runs"] += packed
    cache.copied["raw"] += len(slots) - packed


def _copy_each(columns: Sequence[CachedColumn], slots: Ids, pieces: NDArray[np.int64], out: Target) -> int:
    """Do as :func:`copy_cached` in Python; return how many of the pieces were kept as runs."""
    packed, held = 0, None
    for (place, step, row, rows, _, _, column), slot in zip(pieces.T.tolist(), slots.tolist(), strict=True):
        if held != (column, slot):
            held, values = (column, slot), columns[column].values(slot)
        packed += int(columns[column].blocks[slot, 2] != 0)
        out.put(place, step, values[row : row + rows])
    return packed


def _from_ram(column: ColumnReader, pieces: NDArray[np.int64], out: Target) -> tuple[list[Piece], NDArray[np.int64]]:
    """Copy the pieces that no shard holds; return those that must be decoded first, and the pieces on disk."""
    in_ram = pieces[4] >= column.in_ram
    if not in_ram.any():
        return [], pieces
    return copy_waiting([column], pieces[:, in_ram], out), pieces.compress(~in_ram, axis=1)


def copy_waiting(columns: Sequence[ColumnReader], pieces: NDArray[np.int64], out: Target) -> list[Piece]:
    """Copy pieces of chunks in RAM, and return those that must be decoded first."""
    encoded: list[Piece] = []
    for place, step, row, rows, chunk, env, number in pieces.T.tolist():
        column = columns[number]
        waiting = column.held(chunk)
        values = waiting.values  # read once: a commit may replace it by its bytes right now
        if values is None:
            encoded.append((place, step, row, rows, chunk, env, number, waiting.encoded[env]))
        else:
            flat = values.reshape(column.groups, column.chunk_items, *column.column.shape)
            out.put(place, step, flat[env, row : row + rows])
    return encoded


def begin(plan: Plan) -> list[Plan]:
    """Start to download the remote chunks that have no copy here; return the plan in parts, the downloads last."""
    places = plan.places
    absent = [at for at, file in enumerate(places.files) if file.absent]
    if not absent:
        return [plan]
    files, coming = list(places.files), np.zeros(len(places), bool)
    for at in absent:
        here = places.array[0] == at
        spans = ((offset, offset + size) for offset, size in places.array[1:, here].T.tolist())
        parts = files[at].fetch(spans)
        if parts is not None:
            files[at], coming[here] = parts, True
    if not coming.any():
        return [plan]
    there = dataclasses.replace(_apart(plan, files, ~coming), encoded=plan.encoded)
    return [there, _apart(plan, files, coming)]


def _apart(plan: Plan, files: list[fs.Readable], which: NDArray[np.bool_]) -> Plan:
    """Return the part of a plan with some of its pieces, read from ``files``."""
    array = plan.places.array[:, which]
    used, array[0] = np.unique(array[0], return_inverse=True)
    places = Locations([files[at] for at in used.tolist()], array)
    return dataclasses.replace(plan, encoded=[], pieces=plan.pieces[:, which], places=places)


def run(parts: Iterable[Plan], cache: ChunkCache) -> None:
    """Read, decode and copy the pieces of a plan's parts; raise CorruptionError for a damaged chunk."""
    for part in parts:
        _run(part, cache)


def _run(plan: Plan, cache: ChunkCache) -> None:
    if plan.encoded:
        _read(plan, plan.encoded, cache)
    at, count = 0, len(plan.places)
    if not count:
        return
    cache.copied["disk"] += count
    read = compiled.reader(plan.column, plan.out, plan.pieces, plan.places)
    if read is None:
        _read(plan, _with_sources(plan, 0, count), cache)
        return
    while at < count:
        if not cache.admits(plan.column):
            at = read(at, min(count, at + MOST_AT_ONCE))
            if at == count:
                break
        stop = _end_of_chunk(plan.pieces, at)
        _read(plan, _with_sources(plan, at, stop), cache)
        at = stop


def _with_sources(plan: Plan, begin: int, end: int) -> Iterator[Piece]:
    for position, piece in enumerate(plan.pieces[:, begin:end].T.tolist(), begin):
        yield *piece, plan.places[position]


def _end_of_chunk(pieces: NDArray[np.int64], at: int) -> int:
    stop = at + 1
    while stop < pieces.shape[1] and (pieces[4:7, stop] == pieces[4:7, at]).all():
        stop += 1
    return stop


def _read(plan: Plan, pieces: Iterable[Piece], cache: ChunkCache) -> None:
    column, out, codec = plan.column, plan.out, plan.column.column.codec
    at, offset = (-1, -1, -1), 0
    admits = cache.admits(column)
    try:
        with scratch(column.decoded_bytes) as room:
            flat = room.view(np.uint8)[: column.decoded_bytes].view(column.column.dtype)
            values = flat.reshape(column.chunk_items, *column.column.shape)
            for place, step, row, rows, chunk, env, number, source in pieces:
                if at != (number, chunk, env):
                    at, offset = (number, chunk, env), 0
                    if isinstance(source, bytes):
                        chunks.decode(codec, source, values)
                    else:
                        file, offset, size = source
                        chunks.decode(codec, file.pread(size, offset), values)
                    if admits and chunk < plan.full_chunks[number]:
                        cache.put(plan.columns[number], chunk, env, values)
                        admits = cache.admits(column)
                out.put(place, step, values[row : row + rows])
    except chunks.DamagedError as error:
        damaged = plan.columns[at[0]]
        raise damaged.damage(at[1] // column.shard_chunks, offset, str(error), at[1]) from error
    except OSError as error:
        raise fs.unreadable(plan.columns[at[0]].shard_path(at[1] // column.shard_chunks), error) from error


def load(column: ColumnReader, chunk: Ids, group: Ids, cache: ChunkCache) -> None:
    """Decode committed chunks (n,) into the cache, as far as it admits them."""
    at = 0
    while at < len(chunk):
        places = column.locate(chunk[at:], group[at:])
        here = slice(at, at + len(places))
        for file in places.files:
            file.begin()
        cache.fill(column, chunk[here], group[here], functools.partial(_decode, column, places, chunk[here]))
        at = here.stop


def advise(column: ColumnReader, chunk: Ids, group: Ids) -> None:
    """Tell the system that committed chunks (n,) are read soon, as far as they may be read at once."""
    places = column.locate(chunk, group)
    for file, offset, size in places.array.T.tolist():
        places.files[file].will_need(offset, size)


def _decode(column: ColumnReader, places: Locations, chunk: Ids, which: int, slot: NDArray[Any]) -> None:
    column.decode(places[which], slot, int(chunk[which]))
