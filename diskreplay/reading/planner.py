"""Two compiled calls that plan a batch: one copies what is in RAM, the other one finds where the rest is.

Each call works for all streams of a store at once. :func:`gather` copies the columns that are in RAM. :func:`frames`
cuts rows into pieces of chunks, sorts the pieces, and finds where the chunks are. For plain batches it does the work of
:func:`.observations.fill` and :func:`.gather.plan`. It copies nothing, raises nothing and changes nothing. If a batch
is not plain, it says so, and Python plans the whole batch.

Both read arrays in RAM at addresses that :class:`.tables.Tables` knows. They only pass on numbers that come from a
file, such as an offset or the bytes of a chunk. Before a number chooses a place in an array, it is compared with the
array's range.

This module loads numba, so it is imported late: see :mod:`diskreplay.reading.compiled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.addresses import (
    CHUNK_ENVS,
    CHUNK_ROWS,
    CHUNKS,
    COLUMN_FACTS,
    END,
    ENTRIES,
    ENTRIES_LENGTH,
    ENVS,
    FIRST_CHUNK,
    FLOOR,
    GROUPS,
    HELD,
    IN_RAM,
    LENGTH,
    NEXT_PATCHES,
    NUMBER,
    PATCH_BEGIN,
    PATCH_END,
    PATCH_LENGTH,
    SHARD_CHUNKS,
    SLOT_GROUPS,
    SLOTS,
    SLOTS_LENGTH,
    STARTS,
    STOP_CHUNK,
)  # fmt: skip
from diskreplay.index.jit import byte_at, copy, int64_at, kernel, prefetch
from diskreplay.schema.columns import CONTINUES
from diskreplay.schema.ids import STREAM_SHIFT

Ints = NDArray[np.int64]
Int = Any
"""A compiled int64."""

ON_DISK, CACHED, WAITING, KINDS = range(4)
"""The places where a piece's chunk can be: in a file, in the cache, or waiting for a commit; last, their number."""


@kernel
def _stream(streams: Ints, number: Int) -> Int:
    low, high = 0, len(streams) - 1
    while low < high:
        middle = (low + high) // 2
        if streams[middle, NUMBER] < number:
            low = middle + 1
        else:
            high = middle
    return low if low == high and streams[low, NUMBER] == number else -1


@kernel
def _copy_row(target: Int, source: Int, size: Int) -> None:
    if size == 1:
        copy(target, source, 1)
    elif size == 4:
        copy(target, source, 4)
    elif size == 8:
        copy(target, source, 8)
    elif size == 16:
        copy(target, source, 16)
    else:
        copy(target, source, size)


@kernel
def gather(
    streams: Ints, arrays: Ints, patches: Ints, sizes: Ints, following: NDArray[np.bool_], ids: Ints, place: Ints,
    block: NDArray[np.uint8], offsets: Ints,
) -> bool:  # fmt: skip
    """Copy the values of C columns for each of B ids; return False if a row is not in the window or its context.

    Args:
        streams: int64 ``(S, 10)``, see :mod:`diskreplay.index.addresses`.
        arrays: int64 ``(S, C)``, the addresses of the columns' arrays. The value of row ``r`` and environment ``e``
            stands at position ``r % length * num_envs + e``.
        patches: int64 ``(S, C)``, the addresses of the arrays of patches, which replace next rows.
        sizes: int64 ``(C,)``, the bytes of a value.
        following: ``(C,)``; True to copy the environment's next row, or the patch that replaces it.
        ids: int64 ``(B,)``.
        place: int64 ``(B,)``, the row of the block that each id fills.
        block, offsets: column ``c`` begins at byte ``offsets[c]`` of the block.
    """
    which, positions = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    for k in range(len(ids)):
        number = ids[k] >> STREAM_SHIFT
        s = _stream(streams, number)
        if s < 0:
            return False
        local = ids[k] - (number << STREAM_SHIFT)
        row = local // streams[s, ENVS]
        if row < streams[s, FLOOR] or row >= streams[s, END]:
            return False
        which[k] = s
        positions[k] = row % streams[s, LENGTH] * streams[s, ENVS] + local % streams[s, ENVS]
        for c in range(arrays.shape[1]):  # rows are drawn at random, so each is in RAM and in no cache
            prefetch(arrays[s, c] + positions[k] * sizes[c])
    for c in range(arrays.shape[1]):
        size, target = sizes[c], block.ctypes.data + offsets[c]
        if following[c]:
            for k in range(len(positions)):
                s = which[k]
                patch = int64_at(streams[s, NEXT_PATCHES] + 8 * positions[k])
                if patch >= 0:
                    source = patches[s, c] + patch % streams[s, PATCH_LENGTH] * size
                else:
                    at, held = positions[k] + streams[s, ENVS], streams[s, LENGTH] * streams[s, ENVS]
                    source = arrays[s, c] + (at - held if at >= held else at) * size
                _copy_row(target + place[k] * size, source, size)
        else:
            for k in range(len(positions)):
                _copy_row(target + place[k] * size, arrays[which[k], c] + positions[k] * size, size)
    return True


@kernel
def _slot(column: Ints, chunk: Int, group: Int) -> Int:
    if column[SLOTS_LENGTH] == 0:
        return -1
    at = chunk % column[SLOTS_LENGTH] * column[GROUPS] + group
    slot = int64_at(column[SLOTS] + 8 * at)
    if slot < 0 or slot >= column[HELD]:
        return -1
    if int64_at(column[CHUNKS] + 8 * slot) != chunk or int64_at(column[SLOT_GROUPS] + 8 * slot) != group:
        return -1
    return slot


@kernel
def _sort(order: Ints, keys: Ints, begin: Int, end: Int) -> None:
    gap = 1
    while gap < (end - begin) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(begin + gap, end):
            one = order[at]
            key, to = keys[one], at
            while to >= begin + gap and keys[order[to - gap]] > key:
                order[to] = order[to - gap]
                to -= gap
            order[to] = one
        gap //= 3


@kernel
def _cut(
    column: Ints, place: Int, step: Int, first: Int, last: Int, env: Int, stream: Int, kind: Int, found: Ints,
    keys: Ints, count: Int,
) -> Int:  # fmt: skip
    """Append the pieces of consecutive rows; return the number of all pieces, or -1 if a chunk is not plain.

    Where a chunk has several environments, its values of one are not consecutive: each is a piece.
    """
    chunk_rows, envs = column[CHUNK_ROWS], column[CHUNK_ENVS]
    group, low = env // envs, first
    if group < 0 or group >= column[GROUPS]:
        return -1
    while low <= last:
        chunk = low // chunk_rows
        high = low if envs > 1 else min(last, (chunk + 1) * chunk_rows - 1)
        found[0, count], found[1, count] = place, step + low - first
        found[2, count], found[3, count] = (low - chunk * chunk_rows) * envs + env % envs, high - low + 1
        found[4, count], found[5, count], found[6, count] = chunk, group, stream
        low = high + 1
        slot = _slot(column, chunk, group)
        if slot >= 0:
            found[7, count], found[8, count] = kind + CACHED, slot
        elif chunk >= column[IN_RAM]:
            found[7, count] = kind + WAITING
        else:
            if chunk < column[FIRST_CHUNK] or chunk >= column[STOP_CHUNK]:
                return -1
            at = column[ENTRIES] + 16 * (chunk % column[ENTRIES_LENGTH] * column[GROUPS] + group)
            found[7, count], found[9, count], found[10, count] = kind + ON_DISK, int64_at(at), int64_at(at + 8)
            if found[9, count] < 0:
                return -1
        keys[count] = (stream << STREAM_SHIFT) + chunk * column[GROUPS] + group
        count += 1
    return count


@kernel
def _look_ahead(ids: Ints, streams: Ints, rows: Ints) -> None:
    """Have the processor fetch what each row of one stream needs first: rows are drawn at random."""
    envs, length, slots = streams[0, ENVS], streams[0, LENGTH], max(1, rows[0, SLOTS_LENGTH])
    for sample in range(len(ids)):
        local = ids[sample] & ((1 << STREAM_SHIFT) - 1)
        row = local // envs
        position = row % length * envs + local - row * envs
        prefetch(streams[0, STARTS] + position)
        prefetch(streams[0, NEXT_PATCHES] + 8 * position)
        prefetch(rows[0, SLOTS] + 8 * (row // rows[0, CHUNK_ROWS] % slots * rows[0, GROUPS]))


@kernel
def frames(
    ids: Ints, place: Ints, first_step: Int, last_step: Int, streams: Ints, rows: Ints, patches: Ints
) -> Any:  # fmt: skip
    """Find the pieces of steps ``first_step`` to ``last_step`` (at most 1) of rows, as :func:`.observations.fill` does.

    Args:
        ids, place: ``(n,)``: the rows, and the place of each in the batch.
        streams: ``(s, 10)``, sorted by number.
        rows, patches: ``(s, COLUMN_FACTS)``: the numbers of the frames' column, and of the column of their patches.

    Returns:
        True if all is plain; else the other results mean nothing.
        ``(10, m)``: first the pieces ``(7, m)``, as :data:`.gather.Piece` without the source. First the pieces of
        frames: those on disk, in the order of their chunks, those in the cache, those that wait for a commit. Then the
        pieces of patches, in the same order. Below them ``(3, m)``: for a piece on disk the number of its file, offset
        and bytes; for one in the cache, the slot first.
        The ends of these six parts, a tuple.
        ``(2, f)``: the stream and the shard of each file; the files of patches come after those of frames.
        The number of files of frames.
        ``(2, k)``: the rows with fewer steps before them than are wanted, and how many each has.
    """
    count, older = len(ids), max(0, -first_step)
    shortest: Int = np.int64(1 << 30)
    for at in range(len(rows)):
        if rows[at, CHUNK_ROWS] > 0:  # of a stream that was ever drawn from
            rows_of_a_piece = rows[at, CHUNK_ROWS] if rows[at, CHUNK_ENVS] == 1 else np.int64(1)
            shortest = min(shortest, rows_of_a_piece)
    most = count * ((last_step - first_step + shortest) // shortest + 2)
    found, keys = np.empty((11, most), np.int64), np.empty(most, np.int64)
    short = np.empty((2, count), np.int64)
    pieces, few, plain = 0, 0, True
    if len(streams) == 1:
        _look_ahead(ids, streams, rows)
    for sample in range(count):
        at = _stream(streams, ids[sample] >> STREAM_SHIFT) if len(streams) > 1 else 0
        if at < 0 or streams[at, NUMBER] != ids[sample] >> STREAM_SHIFT:
            plain = False
            break
        envs, length = streams[at, ENVS], streams[at, LENGTH]
        local = ids[sample] & ((1 << STREAM_SHIFT) - 1)
        row, env = local // envs, local % envs
        if row < streams[at, FLOOR] or row >= streams[at, END]:
            plain = False
            break
        depth, position = 0, row % length
        while depth < older and byte_at(streams[at, STARTS] + position * envs + env) == CONTINUES:
            depth += 1
            position = position - 1 if position else length - 1
        first, last, patch = row - depth, row + last_step, np.int64(-1)
        if first_step > 0:
            first = row + 1
        if last_step == 1:
            patch = int64_at(streams[at, NEXT_PATCHES] + 8 * (row % length * envs + env))
            if patch >= 0:
                last = row
        if last >= first:
            if first < streams[at, FLOOR] or last >= streams[at, END] + 1:
                plain = False
                break
            pieces = _cut(
                rows[at], place[sample], first - row - first_step, first, last, env, at, 0, found, keys, pieces
            )  # fmt: skip
            if pieces < 0:
                plain = False
                break
        if patch >= 0:
            if patch < streams[at, PATCH_BEGIN] or patch >= streams[at, PATCH_END]:
                plain = False
                break
            pieces = _cut(
                patches[at], place[sample], 1 - first_step, patch, patch, 0, at, KINDS, found, keys, pieces
            )  # fmt: skip
            if pieces < 0:
                plain = False
                break
        if depth < older:
            short[0, few], short[1, few] = sample, depth
            few += 1
    if not plain:
        pieces, few = 0, 0
    ends = np.zeros(2 * KINDS, np.int64)
    for one in range(pieces):
        ends[found[7, one]] += 1
    for kind in range(1, 2 * KINDS):
        ends[kind] += ends[kind - 1]
    order, filled = np.empty(pieces, np.int64), ends.copy()
    for one in range(pieces - 1, -1, -1):
        filled[found[7, one]] -= 1
        order[filled[found[7, one]]] = one
    ordered = np.empty((10, pieces), np.int64)
    files, opened, frames_files = np.empty((2, pieces), np.int64), 0, 0
    for part in range(2):
        begin = ends[KINDS * part - 1] if part else 0
        end = ends[KINDS * part]
        _sort(order, keys, begin, end)
        facts, first_file = patches if part else rows, opened
        for at in range(begin, end):
            stream = found[6, order[at]]
            shard = found[4, order[at]] // facts[stream, SHARD_CHUNKS]
            if opened == first_file or files[0, opened - 1] != stream or files[1, opened - 1] != shard:
                files[0, opened], files[1, opened] = stream, shard
                opened += 1
            found[8, order[at]] = opened - 1 - first_file
        if not part:
            frames_files = opened
    for to in range(pieces):
        for row in range(7):
            ordered[row, to] = found[row, order[to]]
        for row in range(3):
            ordered[7 + row, to] = found[8 + row, order[to]]
    parts = ends[0], ends[1], ends[2], ends[3], ends[4], ends[5]
    return plain, ordered, parts, files[:, :opened], frames_files, short[:, :few]


def compile_now() -> None:
    """Compile the functions, or load their code from disk, by calls that plan nothing."""
    none, streams, block = np.empty(0, np.int64), np.empty((0, 10), np.int64), np.empty(0, np.uint8)
    gather(streams, streams, streams, none, np.empty(0, np.bool_), none, none, block, none)
    columns = np.empty((0, COLUMN_FACTS), np.int64)
    frames(none, none, 0, 0, streams, columns, columns)
