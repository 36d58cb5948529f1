"""The compiled reading of a plan: what it takes, and how many threads share it.

The core reads only local files. Python reads files without a descriptor of the system. Where Blosc's functions cannot
be found, Python reads everything.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.native import core
from diskreplay.process import background
from diskreplay.reading.scratch import scratch
from diskreplay.reading.target import Target
from diskreplay.schema.ids import Ids
from diskreplay.storage import blosc
from diskreplay.storage.chunks import OVERHEAD_BYTES
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.files import Readable

Read = Callable[[int, int], int]
"""A function that reads pieces ``[begin, end)`` and returns the first that it could not read, or ``end``."""

LEAST_PIECES = 32
"""The fewest pieces that are worth a thread of their own."""
LEAST_HITS = 256
"""The fewest rows that are worth a thread of their own if their chunks are cached."""


NOWAIT = getattr(os, "RWF_NOWAIT", 0)
WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)


def _found() -> dict[str, int]:
    """Return the addresses of the functions that the core calls, by their names; 0 for one that is not there."""
    libc = ctypes.CDLL(None)
    codecs = ("LZ4_decompress_safe", "LZ4_decompress_safe_partial", "blosc_decompress_ctx")
    names = dict.fromkeys(codecs, blosc.LIBRARY)
    names |= dict.fromkeys(("pread", *(["preadv2"] * bool(NOWAIT)), *(["posix_fadvise"] * bool(WILL_NEED))), libc)
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 if hasattr(library, name) else 0
        for name, library in names.items()
    }


def calls(found: Mapping[str, int]) -> core.Calls | None:
    """Return the functions for the core to call, or None if one is lacking without which nothing is read."""
    if not (found["blosc_decompress_ctx"] and found["pread"]):
        return None
    return core.Calls(
        found["LZ4_decompress_safe"], found["LZ4_decompress_safe_partial"], found["blosc_decompress_ctx"],
        found["pread"], found.get("preadv2", 0), found.get("posix_fadvise", 0), NOWAIT, WILL_NEED,
    )  # fmt: skip


FOUND = _found()
CALLS = calls(FOUND)


def pieces_on_disk(
    place: Ids, step: Ids, row: Ids, rows: Ids, chunk: Ids, group: Ids, file: Ids, offset: Ids, size: Ids
) -> Ids:  # fmt: skip
    """Return pieces ``(n, 13)`` of chunks of one stream, each with the rows of one place; see ``native/runs.h``."""
    none = np.zeros_like(chunk)
    return np.stack([place, step, row, rows, chunk, group, none, file, offset, size, none + 1, none, none], axis=1)


def reader(column: ColumnReader, out: Target, pieces: NDArray[np.int64], files: Sequence[Readable]) -> Read | None:
    """Return a function that reads pieces ``(n, 13)`` on disk into ``out``, or None if Python must read them."""
    descriptors = [file.descriptor() for file in files]
    called, given = CALLS, column.column
    if called is None or None in descriptors:
        return None
    numbers = np.array(descriptors, np.int64)

    def read(begin: int, end: int) -> int:
        _ = files  # held open as long as a thread reads them
        with scratch(column.decoded_bytes + OVERHEAD_BYTES) as encoded, scratch(column.decoded_bytes) as decoded:
            return core.read(
                called, numbers, pieces, begin, end, column.chunk_items, given.item_bytes, given.codec.name == "none",
                encoded, decoded, *out.bytes,
            )  # fmt: skip

    return lambda begin, end: background.side_by_side(read, _borders(begin, end, pieces))


def take(chunks: core.Chunks, pieces: NDArray[np.int64], out: Target) -> int:
    """Copy pieces ``(n, 13)`` of chunks in RAM, and return how many of these were kept as runs."""
    borders, counts = _even(0, len(pieces), int(pieces[:, 3].sum()) // LEAST_HITS), []
    row_bytes, arrays = chunks.columns[pieces[0, 6]].column.item_bytes, out.bytes

    def copy(begin: int, end: int) -> int:
        packed = np.zeros(1, np.int64)
        counts.append(packed)
        return chunks.take(pieces, begin, end, row_bytes, packed, len(borders) == 2, *arrays)

    copied = background.side_by_side(copy, borders)
    assert copied == len(pieces), "a chunk in RAM is not what was kept"
    return sum(packed.item() for packed in counts)


def majority(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a key for rows ``(n, row_bytes)``: each byte has its value in most of them."""
    key = np.zeros(rows.shape[1], np.uint8)
    core.majority(rows, key)
    return key


def pack(rows: NDArray[np.uint8], key: NDArray[np.uint8], most: int) -> NDArray[np.uint8] | None:
    """Return the runs of rows ``(n, row_bytes)`` over a key, or None if they take more bytes than allowed."""
    if most <= 0:
        return None
    with scratch(most) as room:
        block = room[:most]
        size = core.pack(rows, key, block)
        return block[:size].copy() if size else None


def _even(begin: int, end: int, most: int) -> list[int]:
    """Return the borders of one part for each thread, but of at most so many parts."""
    parts = max(1, min(background.THREADS, most))
    return [begin + (end - begin) * part // parts for part in range(parts + 1)]


def _borders(begin: int, end: int, pieces: NDArray[np.int64]) -> list[int]:
    """Return borders as :func:`_even` does, moved to where chunks begin, so that only one thread decodes a chunk."""
    borders = _even(begin, end, (end - begin) // LEAST_PIECES)
    for part in range(1, len(borders) - 1):
        at = max(borders[part], borders[part - 1])
        while at < end and (pieces[at, 4:7] == pieces[at - 1, 4:7]).all():
            at += 1
        borders[part] = at
    return borders
