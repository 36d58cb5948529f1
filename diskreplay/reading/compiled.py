"""The choice between compiled code and Python for reading a plan, and the loading of the compiled code.

Loading numba and the kernel takes as long as reading some thousand chunks in Python. So a thread loads them
(:mod:`diskreplay.loading`) once that many chunks were read, or copied from the cache. A program that reads fewer never
pays for it.

The kernel reads only local files. Python reads files without a descriptor of the system, and batches that are not
contiguous in memory. If a process cannot load the kernel, Python reads everything.
"""

from __future__ import annotations

import types
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from diskreplay import workers
from diskreplay.loading import BackgroundImport
from diskreplay.reading.scratch import scratch
from diskreplay.reading.target import Target
from diskreplay.schema.columns import Column
from diskreplay.schema.ids import Ids
from diskreplay.storage.chunks import OVERHEAD_BYTES
from diskreplay.storage.column import ColumnReader, Locations

Read = Callable[[int, int], int]
"""A function that reads pieces ``[begin, end)`` and returns the first that it could not read, or ``end``."""

LOAD_AFTER = 20_000
"""The pieces that a process reads or copies in Python before it loads the kernel."""
LEAST_PIECES = 32
"""The fewest pieces that are worth a thread of their own."""
LEAST_HITS = 64
"""The fewest pieces that are worth a thread of their own if their chunks are cached."""

_pieces = 0
"""The number of pieces asked for so far; threads that count at once may miss some."""


def _load_planner() -> types.ModuleType:
    from diskreplay.reading import planner

    planner.compile_now()
    return planner


def _load_kernel() -> types.ModuleType | None:
    from diskreplay.reading import kernel

    if not kernel.FOUND:
        return None
    _load_planner()
    kernel.compile_now()
    return kernel


PLANNER = BackgroundImport(_load_planner)
"""The loading of :mod:`.planner`, which plans, and copies columns in RAM."""
KERNEL = BackgroundImport(_load_kernel)
"""The loading of :mod:`.kernel`, which reads."""


def _is_due(pieces: int = 0) -> bool:
    """Tell whether the kernel is loaded, or is worth loading after so many more pieces."""
    global _pieces
    if KERNEL.code is None:
        _pieces += pieces
    return KERNEL.code is not None or (not KERNEL.missing and _pieces > LOAD_AFTER)


def load_if_due() -> None:
    """Begin to load the kernel if it is worth it; the caller holds no lock for which other threads wait."""
    if KERNEL.code is None and _is_due():
        KERNEL.begin()


def planner() -> types.ModuleType | None:
    """Return :mod:`.planner`, or None if the kernel, which reads its plans, is not loaded."""
    return None if KERNEL.code is None else PLANNER.begin()


def reader(column: ColumnReader, out: Target, pieces: NDArray[np.int64], places: Locations) -> Read | None:
    """Return a function that reads the pieces ``(7, n)`` of a plan into ``out``, or None if Python must read them."""
    if not _is_due(len(places)):
        return None
    kernel = KERNEL.begin()
    given = column.column
    files = [file.descriptor() for file in places.files]
    rows = out.bytes if out.holds(given.dtype, given.shape) else None
    if kernel is None or rows is None or None in files:
        return None
    descriptors = np.array(files, np.int64)
    pieces = np.ascontiguousarray(pieces)

    def read(begin: int, end: int) -> int:
        _ = places  # it holds the files as long as a thread reads them
        with scratch(column.decoded_bytes + OVERHEAD_BYTES) as encoded, scratch(column.decoded_bytes) as decoded:
            done: int = kernel.read(
                descriptors, pieces, places.array, begin, end, column.chunk_items, given.item_bytes,
                given.codec.name == "none", encoded, decoded, *rows,
            )  # fmt: skip
            return done

    return lambda begin, end: workers.side_by_side(read, _borders(begin, end, pieces))


def split(requests: NDArray[np.int64], chunk_rows: int) -> NDArray[np.int64] | None:
    """Return the pieces of requests, as :func:`.kernel.split`, or None if the kernel is not loaded."""
    if KERNEL.code is None:
        return None
    pieces: NDArray[np.int64] = KERNEL.code.split(requests, chunk_rows)
    return pieces


def take(
    given: Column, chunk_items: int, slabs: NDArray[np.int64], slots: Ids, pieces: NDArray[np.int64], out: Target
) -> tuple[int, int]:
    """Copy pieces ``(7, n)`` out of chunks that are cached, each from its slot.

    Args:
        given, chunk_items: the column, and the number of values in each of its chunks.
        slabs: ``(k, 2)``, one for each stream, see :func:`.kernel.take`; the seventh number of a piece says which.

    Returns how many pieces it copied, from the first on, and how many of those were kept as runs. Python must copy the
    others.
    """
    count = len(slots)
    rows = out.bytes if _is_due(count) and out.holds(given.dtype, given.shape) else None
    kernel = KERNEL.code
    if kernel is None or rows is None:
        return 0, 0
    if count < 2 * LEAST_HITS:
        packed = np.zeros(1, np.int64)
        return kernel.take(slabs, slots, pieces, 0, count, chunk_items, given.item_bytes, packed, *rows), packed.item()
    counts = []

    def copy(begin: int, end: int) -> int:
        packed = np.zeros(1, np.int64)
        counts.append(packed)
        done: int = kernel.take(slabs, slots, pieces, begin, end, chunk_items, given.item_bytes, packed, *rows)
        return done

    return workers.side_by_side(copy, _even(0, count, LEAST_HITS)), sum(packed.item() for packed in counts)


def majority(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a key for rows ``(n, row_bytes)``, see :func:`.kernel.majority`; the kernel must be loaded."""
    kernel = KERNEL.code
    assert kernel is not None
    key = np.zeros(rows.shape[1], np.uint8)
    kernel.majority(rows, key)
    return key


def pack(rows: NDArray[np.uint8], key: NDArray[np.uint8], most: int) -> NDArray[np.uint8] | None:
    """Return the runs of rows ``(n, row_bytes)`` over a key, or None if they take more bytes than allowed."""
    kernel = KERNEL.code
    assert kernel is not None
    if most <= 0:
        return None
    with scratch(most) as room:
        block = room.view(np.uint8)[:most]
        size = kernel.pack(rows, key, block)
        return block[:size].copy() if size else None


def unpack(blocks: NDArray[np.int64], slot: int, rows: NDArray[np.uint8]) -> None:
    """Fill in all rows ``(n, row_bytes)`` of the chunk in a slot; the kernel must be loaded."""
    kernel = KERNEL.code
    assert kernel is not None
    count, width = rows.shape
    slabs = np.array([[blocks.ctypes.data, len(blocks)]], np.int64)
    pieces = np.zeros((7, count), np.int64)
    pieces[0] = pieces[2] = np.arange(count)
    pieces[3] = 1
    slots, packed = np.full(count, slot, np.int64), np.zeros(1, np.int64)
    done = kernel.take(slabs, slots, pieces, 0, count, count, width, packed, rows)
    assert done == count, "a cached chunk is not what was kept"


def _even(begin: int, end: int, least: int) -> list[int]:
    """Return the borders of one part for each thread, or fewer parts if one would have fewer than ``least`` entries."""
    parts = max(1, min(workers.count(), (end - begin) // least))
    return [begin + (end - begin) * part // parts for part in range(parts + 1)]


def _borders(begin: int, end: int, pieces: NDArray[np.int64]) -> list[int]:
    """Return borders as :func:`_even` does, moved to where chunks begin, so that only one thread decodes a chunk."""
    borders = _even(begin, end, LEAST_PIECES)
    for part in range(1, len(borders) - 1):
        at = max(borders[part], borders[part - 1])
        while at < end and (pieces[4:7, at] == pieces[4:7, at - 1]).all():
            at += 1
        borders[part] = at
    return borders
