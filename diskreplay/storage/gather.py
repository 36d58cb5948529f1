"""Rows of a large column into a batch: one small read a chunk, decoded where the CPU's cache is warm.

1. A *request* is a run of consecutive rows of one environment and the place in the batch that takes it.
2. Requests are cut at chunk borders into *pieces*, sorted by chunk, so that a chunk is decoded once however many
   pieces lie in it, and a cold disk is read forwards.
3. Under the buffer's lock, :func:`plan` copies the pieces that stand in RAM and notes for the others where they are
   read. A noted file stays open as long as the plan lives, so that an eviction meanwhile takes nothing away.
4. Without the lock, :func:`run` reads, decodes and copies the rest.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.storage import files as fs
from diskreplay.storage.cache import ChunkCache
from diskreplay.storage.column import ColumnReader, ColumnWriter

Ids = NDArray[np.int64]

_local = threading.local()


@dataclasses.dataclass(frozen=True)
class Requests:
    """Runs of rows, all arrays (n,): rows ``first`` to ``last`` (inclusive) of environment ``env`` go to
    ``out[place, first - base]`` onwards."""

    place: Ids
    env: Ids
    first: Ids
    last: Ids
    base: Ids


Piece = tuple[int, int, int, int, int, int]
"""Place in the batch, step in it, row in the chunk, rows, chunk, environment."""

Source = tuple[fs.File, int, int] | bytes | NDArray[Any]
"""Where a chunk comes from: file, offset, bytes to read; or its encoded bytes; or its values."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is left to read: pieces as parallel lists, sorted by chunk."""

    column: ColumnReader
    out: NDArray[Any]
    pieces: list[Piece]
    sources: dict[tuple[int, int], Source]  # of each chunk and environment
    full_chunks: int  # chunks below this number will not change


def split(requests: Requests, chunk_rows: int) -> list[Piece]:
    """The pieces of the requests; see :class:`Plan`."""
    first_chunk = requests.first // chunk_rows
    extra = requests.last // chunk_rows - first_chunk
    place, env, first, last, base = requests.place, requests.env, requests.first, requests.last, requests.base
    chunk = first_chunk
    if extra.any():
        which = np.repeat(np.arange(len(extra)), extra + 1)
        starts = np.cumsum(extra + 1) - (extra + 1)
        chunk = first_chunk[which] + np.arange(len(which)) - starts[which]
        place, env, first, last, base = place[which], env[which], first[which], last[which], base[which]
    chunk_row = chunk * chunk_rows
    low = np.maximum(first, chunk_row)
    high = np.minimum(last, chunk_row + (chunk_rows - 1))
    order = np.lexsort((env, chunk)) if len(chunk) > 1 else slice(None)
    columns = (place, low - base, low - chunk_row, high - low + 1, chunk, env)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))


def plan(column: ColumnReader, requests: Requests, out: NDArray[Any], cache: ChunkCache) -> Plan:
    """Copies what is in RAM into ``out`` (batch, steps, *shape); the rest is for :func:`run`. Needs the lock."""
    pieces = split(requests, column.column.chunk_rows)
    sources: dict[tuple[int, int], Source] = {}
    cached = cache.of(column)
    on_disk = column.end // column.column.chunk_rows
    if isinstance(column, ColumnWriter):
        on_disk = column.committed // column.column.chunk_rows
        pieces = [piece for piece in pieces if piece[4] < on_disk or not _copy_from_ram(column, piece, out, sources)]
    for piece in pieces:
        at = piece[4:]
        if at not in sources:
            values = cached.get(at)
            sources[at] = column.locate(*at) if values is None else values
    return Plan(column, out, pieces, sources, on_disk)


def _copy_from_ram(column: ColumnWriter, piece: Piece, out: NDArray[Any], sources: dict[tuple[int, int], Source]) -> bool:
    """Copies a piece of a chunk that no commit holds in full; False where its bytes must be decoded first."""
    place, step, row, rows, chunk, env = piece
    if chunk == column.end // column.column.chunk_rows:
        values = column.buffer[env, :, 0]
    else:
        sealed = column.sealed.get(chunk)
        if sealed is None:
            return False
        kept = sealed.values  # one read: a commit may be replacing it by its bytes right now
        if kept is None:
            sources[chunk, env] = sealed.encoded[env]
            return False
        values = kept[env, :, 0]
    out[place, step : step + rows] = values[row : row + rows]
    return True


def run(plan: Plan, cache: ChunkCache) -> None:
    """Reads, decodes and copies the pieces of a plan; CorruptionError names the place of a damaged chunk."""
    column, out, sources = plan.column, plan.out, plan.sources
    scratch = _scratch(column)
    values, at = scratch, (-1, -1)
    for place, step, row, rows, chunk, env in plan.pieces:
        if at != (chunk, env):
            at = (chunk, env)
            source = sources[at]
            if isinstance(source, np.ndarray):
                values = source
            elif isinstance(source, bytes):
                values = scratch
                column.decode(source, values, chunk, 0)
            else:
                file, offset, size = source
                keep = chunk < plan.full_chunks and cache.admit(column)
                values = np.empty_like(scratch) if keep else scratch
                column.decode(file.pread(size, offset), values, chunk, offset)
                if keep:
                    cache.put(column, at, values)
        out[place, step : step + rows] = values[row : row + rows]


def _scratch(column: ColumnReader) -> NDArray[Any]:
    """This thread's array for one decoded chunk ``(chunk_rows, *shape)``, reused so that it stays in the cache."""
    shape = (column.column.chunk_rows, *column.column.shape)
    kept: dict[Any, NDArray[Any]] = _local.__dict__.setdefault("scratch", {})
    key = (shape, column.column.dtype)
    if key not in kept:
        if len(kept) >= 16:
            kept.clear()
        kept[key] = np.empty(shape, column.column.dtype)
    return kept[key]
