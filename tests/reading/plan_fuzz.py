"""Forged rings, looked up by the core's plan between pages that nobody may touch; a process that might die of it.

Arguments: a seed, how many. Prints how many batches were planned, and how many refused.
"""

from __future__ import annotations

import collections
import ctypes
import json
import mmap
import sys
from typing import Any

import numpy as np
from helpers.forged import Cached, Column, chunks_of, log_of

from diskreplay.native import core
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
) -> tuple[Column, Cached]:
    """A column with about the chunks ``[begin, stop)`` whose rings hold anything."""
    if rng.random() < 0.3:
        begin, stop = begin + int(rng.integers(2)), stop - int(rng.integers(2))
    length = max(1, stop - begin) + int(rng.integers(2))
    entries = between_guards(any_of(rng, (length, groups, 2), 0, 7, 1000), at_end)
    slots, held = int(rng.integers(0, 9)), int(rng.integers(1, 7))
    table = between_guards(any_of(rng, (max(1, slots), groups), *range(-1, held + 1)), at_end)[:slots]
    holds = np.zeros((held, 5), np.int64)
    holds[:, 3], holds[:, 4] = any_of(rng, held, *range(begin, begin + length)), any_of(rng, held, *range(groups))
    in_ram = int(rng.choice([begin, stop - 1, 1 << 62]))
    made = Column(chunk_rows, group_envs, groups, int(rng.integers(1, 4)), begin, stop, in_ram, entries)
    return made, Cached(table, between_guards(holds, at_end))


def check(columns: list[Column], cached: list[Cached], found: Any, size: int) -> None:
    """Each piece lies in its chunk, in a slot, or in a place of its column's."""
    on_disk, files, in_ram, waiting, lost = found
    assert lost or (on_disk[:, 8] >= 0).all()
    for kind, pieces in (("disk", on_disk), ("cache", in_ram), ("waiting", waiting)):
        for place, _, row, count, chunk, group, stream, slot, offset, *_ in pieces.tolist():
            assert 0 <= place < size
            assert 0 <= stream < len(columns)
            of = columns[stream]
            assert row >= 0
            assert count > 0
            assert row + count <= of.chunk_rows * of.group_envs
            assert 0 <= group < of.groups
            if kind == "disk":
                assert offset < 0 or of.begin <= chunk < of.end
                assert files[slot] == (stream, chunk // of.shard_chunks)
            elif kind == "cache":
                assert cached[stream].slots[slot, 3:].tolist() == [chunk, group]
            else:
                assert chunk >= of.in_ram


def one(rng: np.random.Generator) -> bool:
    """Plans a batch of forged rings; whether all of its rows were there."""
    at_end = bool(rng.integers(2))
    count = int(rng.integers(1, 4))
    numbers = np.sort(rng.choice(6, count, replace=False))
    logs, rows, patches = [], [], []
    alike = [int(rng.integers(1, 5)), int(rng.integers(1, 3))]
    for number in numbers.tolist():
        envs, length = int(rng.integers(1, 3)), int(rng.integers(8, 30))
        floor = int(rng.integers(0, 40))
        starts = between_guards((rng.random((length, envs)) < 0.4).astype(np.uint8) * 3, at_end)
        next_patches = between_guards(any_of(rng, (length, envs), -1, -1, 0, 1, 5), at_end)
        end = floor + int(rng.integers(0, length + 1))
        logs.append(log_of(starts, next_patches, floor, end, number))
        chunk_rows, patch_rows = alike if rng.random() < 0.9 else (7, 7)
        group_envs = int(rng.choice([1, envs]))
        first, stop = floor // chunk_rows, end // chunk_rows + 1
        rows.append(column(rng, at_end, envs // group_envs, group_envs, chunk_rows, first, stop))
        patches.append(column(rng, at_end, 1, 1, patch_rows, 0, 5 // patch_rows + 1))
    size = int(rng.integers(1, 6))
    which = rng.integers(count, size=size)
    ids = np.zeros(size, np.int64)
    for sample, log in enumerate(logs[at] for at in which):
        row = log.begin + int(rng.integers(4 if rng.random() < 0.1 else max(1, log.end - log.begin)))
        ids[sample] = (log.stream << STREAM_SHIFT) + row * log.num_envs + rng.integers(log.num_envs)
    if rng.random() < 0.1:
        ids = any_of(rng, size, *ids.tolist())
    older = int(rng.integers(0, 4))
    first_step, last_step = (1, 1) if rng.random() < 0.2 else (-older, int(rng.integers(2)))
    of_rows, of_patches = (chunks_of(*map(list, zip(*each, strict=True))) for each in (rows, patches))
    seen = core.Logs(logs, "start", "next")
    try:
        found = core.frames(
            seen, of_rows, of_patches, ids, np.arange(size), first_step, last_step, int(first_step >= 0)
        )
    except IndexError:
        return False
    if found is None:
        return False
    for each, part in zip((rows, patches), found, strict=False):
        if part is not None:
            check([column for column, _ in each], [cached for _, cached in each], part, size)
    assert (found[2][:, 0] < size).all()
    return True


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    ended: collections.Counter[str] = collections.Counter()
    for number in range(count):
        ended["planned" if one(np.random.default_rng([seed, number])) else "refused"] += 1
        ROOMS.clear()
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
