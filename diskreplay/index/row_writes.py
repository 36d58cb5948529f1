"""The writing of a row that continues the one before, in one compiled call.

The call compares the row's observation with the pending one, then writes the row. It compares and copies bytes, so that
one compilation serves all dtypes and shapes. Memory is given by addresses; the caller keeps it alive meanwhile.
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
        columns: int64 ``(C, FACTS)``, the leaves of the observation first. A *part* is the values of one group of
            environments, which lie side by side. GIVEN and FOLLOWING are the addresses of the row's value and of its
            next observation; PART and PARTS the bytes of a part and the parts of a value; BUFFER and RING the addresses
            of the write buffer and of the ring, 0 for none. CHUNK_ROWS, ROW_STEP and PART_STEP are the rows of the
            write buffer, and the bytes from one row, or part, to the next.
        leaves: the number of leaves of the observation.
        row, length: the row, and the number of rows in each ring.
        last: True if the row is the last of some write buffer; then no next observation is written.
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
