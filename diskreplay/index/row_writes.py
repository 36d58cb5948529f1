"""The writing of a row that goes on, in one compiled call: compared with what is pending, then written.

What is compared and copied are bytes, so that one compilation serves all dtypes and shapes. Memory is given by
addresses; who calls keeps it alive meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from diskreplay.index.jit import copy, intrinsic, kernel, types

Ints = NDArray[np.int64]

GIVEN, FOLLOWING, PART, PARTS, BUFFER, CHUNK_ROWS, ROW_STEP, PART_STEP, RING = range(9)
FACTS = 9


@intrinsic
def compare(typing_context: Any, first: Any, second: Any, count: Any) -> Any:
    """Compile ``memcmp`` of memory at addresses."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, size, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        first, second = (builder.inttoptr(value, byte) for value in values[:2])
        function = builder.module.globals.get("memcmp")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(number, [byte, byte, size]), "memcmp")
        return builder.call(function, [first, second, values[2]])

    return types.int32(types.int64, types.int64, types.int64), generate


@kernel
def go_on(columns: Ints, leaves: int, row: int, length: int, last: bool) -> bool:
    """Add a row if its observation is the pending one, else change nothing.

    Args:
        columns: int64 ``(C, FACTS)``, the leaves of the observation first: addresses of the row's value, and of the
            next observation; bytes of a part, and parts of a value; the write buffer, its rows, and the bytes from row
            to row and from part to part of it; the ring. A column without a buffer, or a ring, has 0 there.
        leaves: of the observation.
        row, length: the row, and the rows of rings.
        last: the row is the last of some write buffer: then no next observation is written.
    """
    for c in range(leaves):
        part = columns[c, PART]
        pending = columns[c, BUFFER] + row % columns[c, CHUNK_ROWS] * columns[c, ROW_STEP]
        for p in range(columns[c, PARTS]):
            if compare(columns[c, GIVEN] + p * part, pending + p * columns[c, PART_STEP], part):
                return False
    for c in range(len(columns)):
        at, source = row, columns[c, GIVEN]
        if c < leaves:  # the row's own stands there already
            if last:
                continue
            at, source = row + 1, columns[c, FOLLOWING]
        part, parts = columns[c, PART], columns[c, PARTS]
        if columns[c, BUFFER]:
            target = columns[c, BUFFER] + at % columns[c, CHUNK_ROWS] * columns[c, ROW_STEP]
            for p in range(parts):
                copy(target + p * columns[c, PART_STEP], source + p * part, part)
        if columns[c, RING]:
            copy(columns[c, RING] + at % length * part * parts, source, part * parts)
    return True


def compile_now() -> None:
    """Compile, or load what is kept on disk, by adding nothing."""
    go_on(np.empty((0, FACTS), np.int64), 0, 0, 1, False)
