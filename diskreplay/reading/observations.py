"""The observations of sampled rows: frame stacks and next observations, made from frames that are stored once.

For a sample at row ``r`` of one environment, step ``s`` is the frame of row ``r + s``. A stack of ``k`` frames is steps
``1 - k`` to 0. The next observation's stack is steps ``2 - k`` to 1. So one block of steps ``1 - k`` to 1 holds both.

1. The steps in the same episode, and the next row's frame, are consecutive rows: one request.
2. If the next observation stands in the patch table, as at an episode's end, step 1 is that patch.
3. The steps before the episode's first step are zeros, the first frame repeated, or patches, as the start code says.
4. If a next stack does not follow from its stack by one new frame, all its frames are patches.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from diskreplay.index.log import StreamLog
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.gather import Requests
from diskreplay.reading.reads import Reads
from diskreplay.reading.target import Target
from diskreplay.schema.columns import CUT_START, PATCHES, REPEAT, START, Stack
from diskreplay.schema.ids import Ids
from diskreplay.storage.column import ColumnReader


@dataclasses.dataclass(frozen=True)
class ObsSource:
    """One observation leaf of one stream: its columns on disk and in RAM."""

    name: str
    stack: Stack
    log: StreamLog
    rows: ColumnReader
    patches: ColumnReader
    cache: ChunkCache


def fill(
    reads: Reads, source: ObsSource, out: Target, place: Ids, rows: Ids, envs: Ids, first_step: int, last_step: int
) -> None:
    """Fill the places of ``out`` with steps ``first_step`` to ``last_step`` (at most 1) of the rows.

    The caller holds the lock. Frames in RAM are copied now; ``reads`` notes the rest.
    """
    log = source.log
    older = max(0, -first_step)
    depth = log.history(rows, envs, older)
    first = rows - depth if first_step <= 0 else rows + 1
    last = rows + last_step
    patched = None
    if last_step == 1:
        patch = log.patch_numbers(rows, envs)
        patched = (patch >= 0).nonzero()[0]
        if len(patched):
            last[patched] = rows[patched]
    wanted = slice(None) if patched is None or not len(patched) or first_step <= 0 else np.flatnonzero(last >= first)
    base = (rows + first_step)[wanted]
    _copy(reads, source, out, place[wanted], envs[wanted], first[wanted], last[wanted], base)
    if patched is not None and len(patched):
        _copy_patches(reads, source, out, place[patched], 1 - first_step, patch[patched])
    short = (depth < older).nonzero()[0]
    if len(short):
        pad(reads, source, out, place[short], rows[short], envs[short], depth[short], older)


def fill_next(reads: Reads, source: ObsSource, out: Target, place: Ids, rows: Ids, envs: Ids) -> None:
    """Fill the places of ``out`` with the next stacks of the rows, ``frames`` steps each, as :func:`fill` does."""
    frames, older = source.stack.frames, source.log.next_older_patches
    if not older or source.stack.axis is None:
        fill(reads, source, out, place, rows, envs, 2 - frames, 1)
        return
    patches = [older.get(at) for at in zip(rows.tolist(), envs.tolist(), strict=True)]
    follows = np.flatnonzero([patch is None for patch in patches])
    if len(follows):
        fill(reads, source, out, place[follows], rows[follows], envs[follows], 2 - frames, 1)
    # Stacks that do not follow are not filled from rows first, because rows may be read later than patches are copied.
    steps = np.arange(frames)
    for at, patch in zip(place.tolist(), patches, strict=True):
        if patch is not None:  # the frame one step before the newest
            _copy_patches(reads, source, out, np.full(frames, at), frames - 1 - steps, patch - 1 + steps)


def _copy(
    reads: Reads, source: ObsSource, out: Target, place: Ids, envs: Ids, first: Ids, last: Ids, base: Ids
) -> None:
    """Copy rows ``first`` to ``last`` (inclusive) of each sample; row ``base`` is the first step of ``out``."""
    log, resident = source.log, source.name in source.log.resident
    if not resident:
        reads.fetch(source.rows, Requests(place, envs, first, last, base), out, source.cache)
        return
    for step in range(out.steps):
        at = base + step
        if (base >= first).all() and (at <= last).all() and len(place) == len(out):
            out.put_each(place, step, log.take(source.name, at, envs))
        else:
            here = (at >= first) & (at <= last)
            out.put_each(place[here], step, log.take(source.name, at[here], envs[here]))


def _copy_patches(reads: Reads, source: ObsSource, out: Target, place: Ids, step: int | Ids, patch: Ids) -> None:
    if source.name in source.log.patches.arrays:
        out.put_each(place, step, source.log.patches.take(source.name, patch))
        return
    requests = Requests(place, np.zeros_like(patch), patch, patch, patch - step)
    reads.fetch(source.patches, requests, out, source.cache)


def pad(reads: Reads, source: ObsSource, out: Target, place: Ids, rows: Ids, envs: Ids, depth: Ids, older: int) -> None:
    """Fill in the steps before the episodes of rows that have only ``depth`` older steps instead of ``older``."""
    log = source.log
    firsts = rows - depth
    codes = log.take(START, firsts, envs) % CUT_START
    repeated = []
    for target, missing, row, env, code in zip(
        place.tolist(), (older - depth).tolist(), firsts.tolist(), envs.tolist(), codes.tolist(), strict=True
    ):
        if code == REPEAT:
            repeated.append((target, missing))
        elif code == PATCHES:
            patch = log.older_patches[row, env]
            back = np.arange(missing)
            _copy_patches(reads, source, out, np.full(missing, target), missing - 1 - back, patch + back)
        else:
            out.put(target, 0, np.zeros((missing, *out.first.shape[2:]), out.first.dtype))

    def repeat() -> None:
        for target, missing in repeated:
            out.repeat(target, missing)

    if repeated and source.name in log.resident:
        repeat()
    elif repeated:
        reads.then(repeat)
