"""Forged rings, looked up by the compiled plan between pages that nobody may touch; a process that might die of it.

Arguments: a seed, how many. Prints how many plans were plain, and how many were not.
"""

from __future__ import annotations

import collections
import ctypes
import json
import mmap
import sys
from typing import Any

import numpy as np

from diskreplay.index.addresses import (
    CHUNK_ENVS,
    CHUNK_ROWS,
    COLUMN_FACTS,
    FIRST_CHUNK,
    GROUPS,
    HELD,
    IN_RAM,
    LOG_FACTS,
    STOP_CHUNK,
)
from diskreplay.reading import planner
from diskreplay.schema.ids import STREAM_SHIFT

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
ROOMS: list[mmap.mmap] = []


def between_guards(array: np.ndarray, at_end: bool) -> np.ndarray:
    """A copy that ends, or begins, where a page begins, or ends, that nobody may touch."""
    pages = -(-max(1, array.nbytes) // PAGE)
    room = mmap.mmap(-1, (pages + 2) * PAGE)
    ROOMS.append(room)
    first = ctypes.addressof(ctypes.c_char.from_buffer(room))
    for guard in (first, first + (pages + 1) * PAGE):
        assert LIBC.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(PAGE), 0) == 0
    offset = (pages + 1) * PAGE - array.nbytes if at_end else PAGE
    copied = np.frombuffer(room, array.dtype, array.size, offset).reshape(array.shape)
    copied[...] = array
    return copied


def any_of(rng: np.random.Generator, shape: Any, *likely: int) -> np.ndarray:
    """Numbers of which most are likely, and some anything."""
    wild = rng.integers(-(1 << 63), (1 << 63) - 1, shape)
    return np.where(rng.random(shape) < rng.choice([0, 0.05]), wild, rng.choice(likely, shape)).astype(np.int64)


def column(
    rng: np.random.Generator, at_end: bool, groups: int, group_envs: int, chunk_rows: int, begin: int, stop: int
) -> tuple[list[int], list[np.ndarray]]:
    """The facts of a column with about the chunks ``[begin, stop)`` whose rings hold anything."""
    if rng.random() < 0.3:
        begin, stop = begin + int(rng.integers(2)), stop - int(rng.integers(2))
    length = max(1, stop - begin) + int(rng.integers(2))
    entries = between_guards(any_of(rng, (length, groups, 2), 0, 7, 1000), at_end)
    slots, held = int(rng.integers(0, 9)), int(rng.integers(1, 7))
    table = between_guards(any_of(rng, (max(1, slots), groups), *range(-1, held + 1)), at_end)
    chunk = between_guards(any_of(rng, held, *range(begin, begin + length)), at_end)
    group = between_guards(any_of(rng, held, *range(groups)), at_end)
    in_ram = int(rng.choice([begin, stop - 1, 1 << 62]))
    addresses = [array.ctypes.data for array in (table, chunk, group)]
    facts = [
        chunk_rows, group_envs, int(rng.integers(1, 4)), entries.ctypes.data, length, begin, stop, groups, in_ram, stop,
        addresses[0], slots, *addresses[1:], held,
    ]  # fmt: skip
    assert len(facts) == COLUMN_FACTS
    return facts, [entries, table, chunk, group]


def check(rows: np.ndarray, patches: np.ndarray, found: Any, size: int) -> None:
    """Each piece lies in its chunk, in a slot, or in a place of its column's."""
    _, pieces_and_places, ends, files, of_rows, short = found
    pieces, places = pieces_and_places[:7], pieces_and_places[7:]
    begin = 0
    for part, end in enumerate(ends):
        facts = rows if part < 3 else patches
        for at in range(begin, end):
            place, _, row, count, chunk, group, stream = pieces[:, at].tolist()
            assert 0 <= place < size
            assert 0 <= stream < len(facts)
            assert row >= 0
            assert count > 0
            assert row + count <= facts[stream, CHUNK_ROWS] * facts[stream, CHUNK_ENVS]
            assert 0 <= group < facts[stream, GROUPS]
            if part % 3 == 0:
                assert facts[stream, FIRST_CHUNK] <= chunk < facts[stream, STOP_CHUNK]
                assert 0 <= places[0, at] < (of_rows if part < 3 else files.shape[1] - of_rows)
                assert places[1, at] >= 0
            elif part % 3 == 1:
                assert 0 <= places[0, at] < facts[stream, HELD]
            else:
                assert chunk >= facts[stream, IN_RAM]
        begin = end
    assert begin == pieces.shape[1]
    assert (short[0] < size).all()


def one(rng: np.random.Generator) -> bool:
    """Plans a batch of forged rings; whether it was plain."""
    at_end = bool(rng.integers(2))
    count = int(rng.integers(1, 4))
    numbers = np.sort(rng.choice(6, count, replace=False))
    logs, rows, patches, kept = np.zeros((count, LOG_FACTS), np.int64), [], [], []
    for at, number in enumerate(numbers.tolist()):
        envs, length = int(rng.integers(1, 3)), int(rng.integers(8, 30))
        floor = int(rng.integers(0, 40))
        starts = between_guards((rng.random((length, envs)) < 0.4).astype(np.uint8) * 3, at_end)
        next_patches = between_guards(any_of(rng, (length, envs), -1, -1, 0, 1, 5), at_end)
        end = floor + int(rng.integers(0, length + 1))
        logs[at] = number, envs, length, floor, end, starts.ctypes.data, next_patches.ctypes.data, 0, 6, 4
        chunk_rows, patch_rows = int(rng.integers(1, 5)), int(rng.integers(1, 3))
        group_envs = int(rng.choice([1, envs]))
        facts, arrays = column(
            rng, at_end, envs // group_envs, group_envs, chunk_rows, floor // chunk_rows, end // chunk_rows + 1
        )
        patch_facts, patch_arrays = column(rng, at_end, 1, 1, patch_rows, 0, 5 // patch_rows + 1)
        rows.append(facts)
        patches.append(patch_facts)
        kept += [starts, next_patches, *arrays, *patch_arrays]
    size = int(rng.integers(1, 6))
    which = rng.integers(count, size=size)
    ahead = (
        rng.integers(0, 4, size)
        if rng.random() < 0.2
        else rng.integers(0, np.maximum(1, logs[which, 4] - logs[which, 3]))
    )
    local = (logs[which, 3] + ahead) * logs[which, 1] + rng.integers(0, logs[which, 1])
    ids = (logs[which, 0] << STREAM_SHIFT) + local
    if rng.random() < 0.3:
        ids = any_of(rng, size, *ids.tolist())
    older = int(rng.integers(0, 4))
    first_step, last_step = (1, 1) if rng.random() < 0.2 else (-older, int(rng.integers(2)))
    row_facts, patch_facts = np.array(rows), np.array(patches)
    found = planner.frames(ids, np.arange(size), first_step, last_step, logs, row_facts, patch_facts)
    if found[0]:
        check(row_facts, patch_facts, found, size)
    values = between_guards(rng.integers(0, 255, (30, 2, 3)).astype(np.uint8), at_end)
    arrays = np.full((count, 2), values.ctypes.data)
    tall = logs[:, 1] * logs[:, 2] <= 60
    if tall.all():
        block = between_guards(np.zeros(2 * 3 * size, np.uint8), at_end)
        planner.gather(
            logs, arrays, arrays, np.array([3, 3]), np.array([False, True]), ids, np.arange(size), block,
            np.array([0, 3 * size]),
        )  # fmt: skip
    del kept
    return bool(found[0])


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    ended: collections.Counter[str] = collections.Counter()
    for number in range(count):
        ended["plain" if one(np.random.default_rng([seed, number])) else "not plain"] += 1
        ROOMS.clear()
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
