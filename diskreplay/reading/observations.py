"""The observations of sampled rows: frame stacks and next observations, made from frames that are stored once.

For a sample at row ``r`` of one environment, step ``s`` is the frame of row ``r + s``. A stack of ``k`` frames is steps
``1 - k`` to 0. The next observation's stack is steps ``2 - k`` to 1. So one block of steps ``1 - k`` to 1 holds both.

1. The steps in the same episode, and the next row's frame, are consecutive rows.
2. If the next observation stands in the patch table, as at an episode's end, step 1 is that patch.
3. The steps before the episode's first step are zeros, the first frame repeated, or patches, as the start code says.
4. If a next stack does not follow from its stack by one new frame, all its frames are patches.

The core finds the pieces of 1 and 2 for all streams at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diskreplay.native import core
from diskreplay.reading import gather
from diskreplay.reading.addresses import Addresses, SomeStream, Stream, by_stream
from diskreplay.reading.reads import Reads
from diskreplay.reading.target import Target
from diskreplay.schema.columns import CUT_START, PATCHES, REPEAT, START, Stack
from diskreplay.schema.ids import Ids, stream_of


def fill(
    reads: Reads, where: Addresses, name: str, out: Target, ids: Ids, place: Ids, first_step: int, last_step: int
) -> None:
    """Fill the places of ``out`` with steps ``first_step`` to ``last_step`` (at most 1) of a column at rows.

    The caller holds the lock. Values in RAM are copied now; ``reads`` notes the rest.
    """
    if not out.first.size:
        return
    rows = where.chunks(name)
    patches = where.chunks(name, patches=True) if last_step == 1 else rows
    runs = 0 if out.first.shape[1] > 1 else 1 if last_step == first_step or out.following is not None else 2
    found = core.frames(where.logs, rows, patches, ids, place, first_step, last_step, runs)
    if found is None:  # chunks of different sizes or codecs are not read together
        for number in set(stream_of(ids).tolist()):
            here = np.flatnonzero(stream_of(ids) == number)
            fill(reads, where, name, out, ids[here], place[here], first_step, last_step)
        return
    of_rows, of_patches, short = found
    reads.add_plan(gather.plan(rows, of_rows, out), rows.cache)
    if of_patches is not None:
        reads.add_plan(gather.plan(patches, of_patches, out), rows.cache)
    if len(short):
        which, depth = short.T
        _pad(reads, where, name, out, ids[which], place[which], depth, -first_step)


def odd_stacks(streams: Sequence[SomeStream], stack: Stack, ids: Ids) -> list[tuple[SomeStream, int, int]]:
    """Return the rows whose next stack does not follow from their stack by one new frame.

    Of each it returns its stream, its position in ``ids``, and the number of the patch one step before the newest.
    """
    if stack.axis is None or not any([stream.log.next_older_patches for stream in streams]):
        return []
    return [
        (stream, at, patch)
        for stream, which, rows, envs in by_stream(streams, ids, np.arange(len(ids)))
        for at, row, env in zip(which.tolist(), rows.tolist(), envs.tolist(), strict=True)
        if (patch := stream.log.next_older_patches.get((row, env))) is not None
    ]


def fill_next(reads: Reads, where: Addresses, name: str, stack: Stack, out: Target, ids: Ids, place: Ids) -> None:
    """Fill the places of ``out`` with the next stacks of rows, ``frames`` steps each, as :func:`fill` does."""
    steps, follows = np.arange(stack.frames), np.ones(len(ids), bool)
    odd = odd_stacks(where.streams, stack, ids)
    follows[[at for _, at, _ in odd]] = False  # they would be read after patches are copied
    fill(reads, where, name, out, ids[follows], place[follows], 2 - stack.frames, 1)
    for stream, at, patch in odd:
        to = np.full(stack.frames, place[at])
        _fill_from_patches(reads, where, stream, name, out, to, stack.frames - 1 - steps, patch - 1 + steps)


def _fill_from_patches(
    reads: Reads, where: Addresses, stream: Stream, name: str, out: Target, place: Ids, step: Ids, patch: Ids
) -> None:
    patches = where.chunks(name, patches=True)
    runs = np.array([place, np.zeros_like(patch), patch, patch, patch - step])
    reads.add_plan(gather.plan(patches, patches.rows(where.streams.index(stream), runs), out), patches.cache)


def _pad(reads: Reads, where: Addresses, name: str, out: Target, ids: Ids, place: Ids, depth: Ids, older: int) -> None:
    """Fill in the steps before the episodes of rows that have only ``depth`` older steps instead of ``older``."""
    repeated = []
    for stream, which, rows, envs in by_stream(where.streams, ids, np.arange(len(ids))):
        log, firsts = stream.log, rows - depth[which]
        codes = log.take(START, firsts, envs) % CUT_START
        for target, missing, row, env, code in zip(
            place[which].tolist(), (older - depth[which]).tolist(), firsts.tolist(), envs.tolist(), codes.tolist(),
            strict=True,
        ):  # fmt: skip
            if code == REPEAT:
                repeated.append((target, missing))
            elif code == PATCHES:
                patch, back = log.older_patches[row, env], np.arange(missing)
                to = np.full(missing, target)
                _fill_from_patches(reads, where, stream, name, out, to, missing - 1 - back, patch + back)
            else:
                out.put(target, 0, np.zeros((missing, *out.first.shape[2:]), out.first.dtype))

    def repeat() -> None:
        for target, missing in repeated:
            out.repeat(target, missing)

    if repeated:
        reads.then(repeat)
