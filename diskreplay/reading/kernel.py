"""One compiled call that reads, verifies, decodes and copies the pieces of a plan into a batch, without the GIL.

The call goes from chunk to chunk. It stops at the first chunk that is not exactly what this package writes: one that it
cannot read, that is too short or damaged, or whose layout it does not know. It returns how far it came, and raises
nothing. The caller has Python read that chunk, and calls again for the rest. So Python alone would give the same rows
and errors.

1. A chunk that was compressed with LZ4 is decoded up to the last row that is wanted. Its checksum covers all of it.
2. Blosc decodes all other chunks, as a whole.
3. The call asks the system to read without waiting. As soon as a read would have to wait, the call tells the system of
   all reads that follow, because a disk answers many requests at once. If all data is in memory, this costs nothing.

Before the call uses a length that comes from a file, it compares the length with the room that there is.

This module loads numba, so it is imported late: see :mod:`diskreplay.reading.compiled`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import config
from numcodecs import blosc
from numpy.typing import NDArray

from diskreplay.index import jit
from diskreplay.index.jit import INT, LONG, byte_at, copy, foreign, int64_at, intrinsic, prefetch, types
from diskreplay.storage.chunks import CRC_BYTES, RESIDUE

BLOSC_BYTES = 16
FRAME_BYTES = 24
"""The bytes before the LZ4 data of a Blosc frame of one block: Blosc's header, the block's offset, and its size."""
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)
POLYNOMIAL = 0x82F63B78
NOTHING: NDArray[np.uint8] = np.empty((0, 0), np.uint8)
GAP = 8
"""The fewest equal bytes that end a run; fewer are not worth the four bytes with which the next run begins."""
LONGEST = (1 << 16) - 1
"""The most bytes of a run, and the most that it skips."""

LINE = 64
"""The bytes that a processor fetches at once."""
KEY_LINES, RUN_LINES = 4, 32
"""The most of these that are asked for of a key, where the processor sees the rest coming, and of a piece's runs."""

kernel = functools.partial(jit.kernel, nogil=True)
Int = Any
"""A compiled int64."""

# C functions, called at their addresses

_pread = foreign(LONG, INT, LONG, LONG, LONG)  # file, to, bytes, offset: bytes read
_preadv2 = foreign(LONG, INT, LONG, INT, LONG, INT)  # file, vectors, their number, offset, flags: bytes read
_fadvise = foreign(INT, INT, LONG, LONG, INT)  # file, offset, bytes, advice
_lz4_partial = foreign(INT, LONG, LONG, INT, INT, INT)  # from, to, bytes, wanted bytes, room: bytes decoded
_lz4 = foreign(INT, LONG, LONG, INT, INT)  # from, to, bytes, room: bytes decoded
_blosc = foreign(INT, LONG, LONG, LONG, INT)  # from, to, room, threads: bytes decoded


# CRC-32C


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


TABLE = _table()


@kernel
def _byte(crc: Any, value: Any) -> Any:
    return np.uint64(TABLE[(crc ^ value) & np.uint64(255)]) ^ (crc >> np.uint64(8))


@kernel
def _word_by_table(crc: Any, word: Any) -> Any:
    for _ in range(8):
        crc = _byte(crc, word & np.uint64(255))
        word >>= np.uint64(8)
    return crc


def _instruction() -> tuple[str, ir.IntType] | None:
    """Return the processor's own step over eight bytes, by its name in LLVM, or None if it may have none."""
    if config.CPU_NAME or config.CPU_FEATURES:  # numba was told to compile for another processor
        return None
    features = llvmlite.binding.get_host_cpu_features()
    if platform.machine() in ("x86_64", "AMD64") and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", LONG
    if platform.machine() in ("aarch64", "arm64") and features.get("crc"):
        return "llvm.aarch64.crc32cx", INT
    return None


@intrinsic
def _word_by_instruction(typing_context: Any, crc: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        found = _instruction()
        assert found is not None
        name, width = found
        step = builder.module.declare_intrinsic(name, (), ir.FunctionType(width, [width, LONG]))
        crc, word = values
        if width is LONG:
            return builder.call(step, [crc, word])
        return builder.zext(builder.call(step, [builder.trunc(crc, INT), word]), LONG)

    return types.uint64(types.uint64, types.uint64), generate


_word = _word_by_instruction if _instruction() else _word_by_table


@kernel
def checksum(data: NDArray[np.uint64], size: Int) -> Int:
    """Return the CRC-32C of the first ``size`` bytes of some words."""
    crc = np.uint64(0xFFFFFFFF)
    words = size >> 3
    for position in range(words):
        crc = _word(crc, data[position])
    if size & 7:
        word = data[words]
        for _ in range(size & 7):
            crc = _byte(crc, word & np.uint64(255))
            word >>= np.uint64(8)
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


# One chunk


@kernel
def _int32(data: NDArray[np.uint8], at: Int) -> Int:
    value = np.uint32(data[at]) | np.uint32(data[at + 1]) << 8
    value |= np.uint32(data[at + 2]) << 16 | np.uint32(data[at + 3]) << 24
    return np.int64(np.int32(value))


@kernel
def _decode(
    data: NDArray[np.uint8], size: Int, source: Int, target: Int, chunk_bytes: Int, wanted: Int, raw: bool,
    lz4: Int, lz4_partial: Int, decompress: Int,
) -> Int:  # fmt: skip
    """Decode the first ``wanted`` bytes of a chunk; return their address, ``target`` or in the chunk, else 0."""
    body = size - CRC_BYTES
    if raw:
        return source if body == chunk_bytes else 0
    if body < BLOSC_BYTES or _int32(data, 4) != chunk_bytes or _int32(data, 12) != body:
        return 0
    flags = data[2]
    one_stream = flags & 0x10 or data[3] == 1
    if (
        data[0] == 2 and data[1] == 1 and flags & 0xEF == 0x20 and one_stream and lz4 != 0
        and _int32(data, 8) == chunk_bytes and body > FRAME_BYTES and _int32(data, 16) == FRAME_BYTES - 4
    ):  # fmt: skip
        count = _int32(data, 20)
        if count != body - FRAME_BYTES:
            return 0
        if count == chunk_bytes:
            return source + FRAME_BYTES
        if wanted == chunk_bytes or lz4_partial == 0:
            return target if _lz4(lz4, (source + FRAME_BYTES, target, count, chunk_bytes)) == chunk_bytes else 0
        done = _lz4_partial(lz4_partial, (source + FRAME_BYTES, target, count, wanted, wanted))
        return target if done == wanted else 0
    done = _blosc(decompress, (source, target, chunk_bytes, np.int64(1)))
    return target if done == chunk_bytes else 0


@kernel
def _advise(fadvise: Int, files: NDArray[np.int64], places: NDArray[np.int64], begin: Int, end: Int) -> None:
    for at in range(begin, end):
        if at == begin or places[1, at] != places[1, at - 1] or places[0, at] != places[0, at - 1]:
            _fadvise(fadvise, (files[places[0, at]], places[1, at], places[2, at], np.int64(WILL_NEED)))


# The batch


@kernel
def _put(
    out: NDArray[np.uint8], following: NDArray[np.uint8], twice: bool, row_bytes: Int,
    place: Int, step: Int, values: Int, count: Int,
) -> None:  # fmt: skip
    """Copy consecutive rows from an address to a place in the batch, from a step on."""
    width = out.shape[1]
    there = min(count * row_bytes, width - step * row_bytes)
    if there > 0:
        copy(np.int64(out.ctypes.data) + place * width + step * row_bytes, values, there)
    if twice:
        skipped = 1 if step == 0 else 0
        if count > skipped:
            to = np.int64(following.ctypes.data) + place * width + (step + skipped - 1) * row_bytes
            copy(to, values + skipped * row_bytes, (count - skipped) * row_bytes)


@kernel
def _fits(
    pieces: NDArray[np.int64], at: Int, chunk_rows: Int, row_bytes: Int, out: NDArray[np.uint8], twice: bool
) -> bool:
    place, step, row, rows = pieces[0, at], pieces[1, at], pieces[2, at], pieces[3, at]
    if place < 0 or place >= out.shape[0] or step < 0 or row < 0 or rows < 1:
        return False
    return bool(rows <= out.shape[1] // row_bytes + twice - step and rows <= chunk_rows - row)


@kernel
def _is_same(pieces: NDArray[np.int64], places: NDArray[np.int64], one: Int, other: Int) -> bool:
    """Tell whether two pieces lie in the same chunk; chunks of two columns may have the same number."""
    return bool(
        pieces[4, one] == pieces[4, other] and pieces[5, one] == pieces[5, other]
        and places[0, one] == places[0, other] and places[1, one] == places[1, other]
    )  # fmt: skip


@kernel
def _read(
    symbols: NDArray[np.int64], files: NDArray[np.int64], pieces: NDArray[np.int64], places: NDArray[np.int64],
    begin: Int, end: Int, chunk_rows: Int, row_bytes: Int, raw: bool,
    encoded: NDArray[np.uint64], decoded: NDArray[np.uint64], out: NDArray[np.uint8], following: NDArray[np.uint8],
) -> Int:  # fmt: skip
    pread, preadv2, fadvise = symbols[0], symbols[1], symbols[2]
    lz4, lz4_partial, decompress = symbols[3], symbols[4], symbols[5]
    data = encoded.view(np.uint8)
    source, target = np.int64(encoded.ctypes.data), np.int64(decoded.ctypes.data)
    twice = following.size > 0
    vector = np.empty(2, np.int64)
    vectors = np.int64(vector.ctypes.data)
    chunk_bytes = chunk_rows * row_bytes
    cold = False
    if preadv2 == 0:
        cold = True
        if fadvise != 0:
            _advise(fadvise, files, places, begin, end)
    at = begin
    while at < end:
        stop, wanted = at, 0
        while stop < end and _is_same(pieces, places, stop, at):
            if not _fits(pieces, stop, chunk_rows, row_bytes, out, twice):
                return at
            wanted = max(wanted, pieces[2, stop] + pieces[3, stop])
            stop += 1
        file, offset, size = files[places[0, at]], places[1, at], places[2, at]
        if size <= CRC_BYTES or size > len(data):
            return at
        got = np.int64(-1)
        if not cold:
            vector[0], vector[1] = source, size
            got = _preadv2(preadv2, (file, vectors, np.int64(1), offset, np.int64(NOWAIT)))
            if got != size:
                cold = True
                if fadvise != 0:
                    _advise(fadvise, files, places, at, end)
        if got != size:
            got = _pread(pread, (file, source, size, offset))
            while 0 < got < size:  # one call may give less, as on FUSE with direct_io
                more = _pread(pread, (file, source + got, size - got, offset + got))
                got = np.int64(got + more if more > 0 else -1)
        if got != size or checksum(encoded, size) != RESIDUE:
            return at
        values = _decode(data, size, source, target, chunk_bytes, wanted * row_bytes, raw, lz4, lz4_partial, decompress)
        if values == 0:
            return at
        for each in range(at, stop):
            rows = values + pieces[2, each] * row_bytes
            _put(out, following, twice, row_bytes, pieces[0, each], pieces[1, each], rows, pieces[3, each])
        at = stop
    return at


@kernel
def split(requests: NDArray[np.int64], chunk_rows: Int) -> NDArray[np.int64]:
    """Cut requests ``(5, n)`` at chunk borders: place in the batch, environment, first and last row, row of step 0.

    Returns pieces ``(7, m)``, as :func:`read` takes them, in the order of the requests; all are of column 0.
    """
    count = 0
    for at in range(requests.shape[1]):
        count += requests[3, at] // chunk_rows - requests[2, at] // chunk_rows + 1
    pieces = np.zeros((7, count), np.int64)
    piece = 0
    for at in range(requests.shape[1]):
        place, env = requests[0, at], requests[1, at]
        first, last, base = requests[2, at], requests[3, at], requests[4, at]
        for chunk in range(first // chunk_rows, last // chunk_rows + 1):
            low, high = max(first, chunk * chunk_rows), min(last, (chunk + 1) * chunk_rows - 1)
            pieces[0, piece], pieces[1, piece] = place, low - base
            pieces[2, piece], pieces[3, piece] = low - chunk * chunk_rows, high - low + 1
            pieces[4, piece], pieces[5, piece] = chunk, env
            piece += 1
    return pieces


# Chunks in RAM


@kernel
def _int16_at(address: Int) -> Int:
    return byte_at(address) | byte_at(address + 1) << 8


@kernel
def _int32_at(address: Int) -> Int:
    return _int16_at(address) | _int16_at(address + 2) << 16


@kernel
def _look_ahead(
    slabs: NDArray[np.int64], slots: NDArray[np.int64], pieces: NDArray[np.int64], at: Int, end: Int, chunk_rows: Int
) -> None:
    """Have the processor fetch what pieces after ``at`` are copied from: each part of the way to it a piece earlier.

    Sampling is random: all of that is in RAM, and nothing in the processor's cache.
    """
    for ahead in range(1, 4):
        one = at + ahead
        if one >= end:
            return
        slab, slot, row = pieces[6, one], slots[one], pieces[2, one]
        if slab < 0 or slab >= len(slabs) or slot < 0 or slot >= slabs[slab, 1] or row < 0 or row >= chunk_rows:
            continue
        facts = slabs[slab, 0] + 24 * slot
        if ahead == 3:
            prefetch(facts)
            continue
        block, size, key = int64_at(facts), int64_at(facts + 8), int64_at(facts + 16)
        if key == 0 or size < 4 * (chunk_rows + 1):
            continue
        table = block + 4 * row
        if ahead == 2:
            prefetch(table)
            for line in range(KEY_LINES):
                prefetch(key + LINE * line)
        else:
            runs, stop = _int32_at(table), _int32_at(table + 4 * max(1, min(pieces[3, one], chunk_rows - row)))
            for line in range(min(RUN_LINES, (stop - runs) // LINE + 1)):
                prefetch(block + runs + LINE * line)


@kernel
def _take(
    slabs: NDArray[np.int64], slots: NDArray[np.int64], pieces: NDArray[np.int64], begin: Int, end: Int,
    chunk_rows: Int, row_bytes: Int, out: NDArray[np.uint8], following: NDArray[np.uint8], packed: NDArray[np.int64],
) -> Int:  # fmt: skip
    twice, steps = following.size > 0, out.shape[1] // row_bytes
    first, second, width = np.int64(out.ctypes.data), np.int64(following.ctypes.data), out.shape[1]
    for at in range(begin, end):
        _look_ahead(slabs, slots, pieces, at, end, chunk_rows)
        slab = pieces[6, at]
        if slab < 0 or slab >= len(slabs) or slots[at] < 0 or slots[at] >= slabs[slab, 1]:
            return at
        if not _fits(pieces, at, chunk_rows, row_bytes, out, twice):
            return at
        facts = slabs[slab, 0] + 24 * slots[at]
        block, size, key = int64_at(facts), int64_at(facts + 8), int64_at(facts + 16)
        if key == 0:
            if size != chunk_rows * row_bytes:
                return at
            rows = block + pieces[2, at] * row_bytes
            _put(out, following, twice, row_bytes, pieces[0, at], pieces[1, at], rows, pieces[3, at])
            continue
        for row in range(pieces[3, at]):
            step = pieces[1, at] + row
            after = second + pieces[0, at] * width + (step - 1) * row_bytes
            to = first + pieces[0, at] * width + step * row_bytes if step < steps else after
            if not _unpack(block, size, key, pieces[2, at] + row, chunk_rows, row_bytes, to):
                return at
            if twice and 0 < step < steps:
                copy(after, to, row_bytes)
        packed[0] += 1
    return end


@kernel
def _unpack(block: Int, size: Int, key: Int, row: Int, rows: Int, row_bytes: Int, to: Int) -> bool:
    """Write one row from a block of runs, see :func:`pack`; return False if the block is not valid."""
    first = 4 * (rows + 1)
    if size < first:
        return False
    at, end = _int32_at(block + 4 * row), _int32_at(block + 4 * row + 4)
    if at < first or end < at or end > size:
        return False
    copy(to, key, row_bytes)
    place = np.int64(0)
    while at < end:
        if end - at < 4:
            return False
        place += _int16_at(block + at)
        run = _int16_at(block + at + 2)
        at += 4
        if run > end - at or run > row_bytes - place:
            return False
        source, target = block + at, to + place
        if run > 32:
            copy(target, source, run)
        elif run >= 16:
            copy(target, source, 16)
            copy(target + run - 16, source + run - 16, 16)
        elif run >= 8:
            copy(target, source, 8)
            copy(target + run - 8, source + run - 8, 8)
        else:
            for byte in range(run):
                copy(target + byte, source + byte, 1)
        at += run
        place += run
    return True


@kernel
def majority(rows: NDArray[np.uint8], key: NDArray[np.uint8]) -> None:
    """Set each byte of ``key`` to its value in most of the rows ``(n, row_bytes)``, or if there is none, in any row."""
    votes = np.zeros(len(key), np.int32)
    for row in range(len(rows)):
        for at in range(len(key)):
            lead = votes[at]
            one, other = rows[row, at], key[at]
            key[at] = one if lead == 0 else other
            votes[at] = lead + 1 if lead == 0 or one == other else lead - 1


@kernel
def _write_int(block: NDArray[np.uint8], at: Int, value: Int, size: Int) -> None:
    for byte in range(size):
        block[at + byte] = value >> (8 * byte) & 255


@kernel
def pack(rows: NDArray[np.uint8], key: NDArray[np.uint8], block: NDArray[np.uint8]) -> Int:
    """Write the runs in which rows ``(n, row_bytes)`` differ from a key; return the bytes of the block, 0 for no room.

    A block begins with ``n + 1`` uint32s: the places where each row's runs begin, and where the last row's runs end. A
    run has two uint16s, the number of bytes to skip and the number of bytes to write, and then the bytes to write. All
    numbers are little-endian.
    """
    count, width = rows.shape
    at = 4 * (count + 1)
    if at > len(block):
        return 0
    theirs = np.int64(key.ctypes.data)
    for row in range(count):
        _write_int(block, 4 * row, at, 4)
        ours = np.int64(rows.ctypes.data) + row * width
        place, written = np.int64(0), np.int64(0)
        while True:
            while place + 8 <= width and int64_at(ours + place) == int64_at(theirs + place):
                place += 8
            while place < width and rows[row, place] == key[place]:
                place += 1
            if place == width:
                break
            begin, end = place, place + 1
            while place < width and place - end < GAP:
                if rows[row, place] != key[place]:
                    end = place + 1
                place += 1
            while begin < end:  # several runs, if one run or what it skips would be too long
                skipped: Int = min(begin - written, LONGEST)
                run: Int = min(end - begin, LONGEST) if written + skipped == begin else 0
                if len(block) - at < 4 + run:
                    return 0
                _write_int(block, at, skipped, 2)
                _write_int(block, at + 2, run, 2)
                copy(np.int64(block.ctypes.data) + at + 4, ours + written + skipped, run)
                at += 4 + run
                written += skipped + run
                begin += run
            place = end
    _write_int(block, 4 * count, at, 4)
    return at


# The C functions


def _address(library: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _find() -> dict[str, int] | None:
    if sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8 or ctypes.sizeof(ctypes.c_long) != 8:
        return None
    if config.DISABLE_JIT:  # C functions can be called from compiled code only
        return None
    libc, codecs = ctypes.CDLL(None), ctypes.CDLL(blosc.__file__)
    found = {
        "pread": _address(libc, "pread"),
        "preadv2": _address(libc, "preadv2") if NOWAIT else 0,
        "posix_fadvise": _address(libc, "posix_fadvise") if WILL_NEED else 0,
        "LZ4_decompress_safe": _address(codecs, "LZ4_decompress_safe"),
        "LZ4_decompress_safe_partial": _address(codecs, "LZ4_decompress_safe_partial"),
        "blosc_decompress_ctx": _address(codecs, "blosc_decompress_ctx"),
    }
    return found if found["pread"] and found["blosc_decompress_ctx"] else None


FOUND = _find()
SYMBOLS = np.array(list((FOUND or {}).values()), np.int64)


def read(
    files: NDArray[np.int64], pieces: NDArray[np.int64], places: NDArray[np.int64], begin: int, end: int,
    chunk_rows: int, row_bytes: int, raw: bool,
    encoded: NDArray[np.uint64], decoded: NDArray[np.uint64], out: NDArray[np.uint8],
    following: NDArray[np.uint8] = NOTHING,
) -> int:  # fmt: skip
    """Copy the pieces ``[begin, end)`` into the batch; return the first that it could not copy, or ``end``.

    Args:
        files: the file descriptors.
        pieces: ``(6 or more, n)``: place in the batch, step in it, row in the chunk, rows, chunk, environment. The
            pieces of one chunk stand side by side.
        places: ``(3, n)``: the position in ``files``, and the offset and bytes of the piece's chunk.
        chunk_rows, row_bytes: the rows of a decoded chunk, and the bytes of a row.
        raw: True if chunks are not compressed.
        encoded, decoded: the room for a chunk as it is on disk, and as it is in RAM.
        out: the arrays to fill, ``(batch, steps * row_bytes)``.
        following: an array like ``out`` for the steps one later, so pieces have one more step; empty for none.
    """
    assert FOUND is not None
    assert decoded.nbytes >= chunk_rows * row_bytes
    assert following.size in (0, out.size)
    done: int = _read(
        SYMBOLS, files, pieces, places, begin, end, chunk_rows, row_bytes, raw, encoded, decoded, out, following
    )  # fmt: skip
    return done


def take(
    slabs: NDArray[np.int64], slots: NDArray[np.int64], pieces: NDArray[np.int64], begin: int, end: int,
    chunk_rows: int, row_bytes: int, packed: NDArray[np.int64], out: NDArray[np.uint8],
    following: NDArray[np.uint8] = NOTHING,
) -> int:  # fmt: skip
    """Copy pieces as :func:`read` does, from chunks in RAM.

    Args:
        slabs: ``(k, 2)``: the addresses of arrays ``(slots, 3)``, and the number of slots in each. A slot has the
            address and bytes of a block, and the address of its key, which is 0 if the block is the rows themselves.
        slots: the slot of each piece, in the array that the piece's seventh number names.
        packed: ``(1,)``; the call adds to it the number of pieces with a key.
    """
    assert following.size in (0, out.size)
    done: int = _take(slabs, slots, pieces, begin, end, chunk_rows, row_bytes, out, following, packed)
    return done


def compile_now() -> None:
    """Compile the functions, or load their code from disk, by calls that read nothing."""
    nothing, room, row = np.empty((7, 0), np.int64), np.empty(1, np.uint64), np.zeros((1, 1), np.uint8)
    read(nothing[0], nothing, nothing[:3], 0, 0, 1, 1, False, room, room, row)
    take(np.empty((0, 2), np.int64), nothing[0], nothing, 0, 0, 1, 1, nothing[0], row)
    split(nothing[:5], 1)
    majority(row, row[0])
    pack(row, row[0], row[0])


def version() -> str:
    """Return, in words, the version of numba and the C functions that were found."""
    there = ", ".join(name for name, address in (FOUND or {}).items() if address)
    return f"numba {numba.__version__}, {there or 'nothing'}; CRC-32C by {'instruction' if _instruction() else 'table'}"
