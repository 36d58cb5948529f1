"""One compiled call that writes a row if its observation equals the pending one.

The pending observation is the next observation of the row before. The call compares and copies bytes, so one
compilation serves all dtypes and shapes. The caller checks flags and masks. It passes addresses, and keeps the memory
there alive meanwhile.
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
    """Compare ``count`` bytes at two addresses by ``memcmp``; 0 means that they are equal."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, size, number = ir.IntType(8).as_pointer(), ir.IntType(64), ir.IntType(32)
        first, second = (builder.inttoptr(value, byte) for value in values[:2])
        function = builder.module.globals.get("memcmp")
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(number, [byte, byte, size]), "memcmp")
        return builder.call(function, [first, second, values[2]])

    return types.int32(types.int64, types.int64, types.int64), generate


@kernel
def add_continuing(columns: Ints, leaves: int, row: int, length: int, last: bool) -> bool:
    """Add a row if its observation is the pending one, else change nothing; return True if it was added.

    Args:
        columns: addresses and sizes, int64 ``(C, FACTS)``, for each column the numbers below; the observation's leaves
            come first.
        leaves: the number of leaves of the observation.
        row: the number of the row.
        length: the number of rows for which the log's table has room.
        last: True if a write buffer is full after this row. Then the call does not write the next observation.

    If a column has separate chunks for several sets of environments, a row's value has bytes for each set. The numbers
    of a column are:

    - GIVEN, FOLLOWING: the addresses of the row's value and of its next observation.
    - PART, PARTS: the number of bytes for one set of environments, and the number of sets.
    - BUFFER, RING: the addresses of the column's write buffer and of its array in the log's table, 0 for none.
    - CHUNK_ROWS: the number of rows for which the write buffer has room.
    - ROW_STEP, PART_STEP: the bytes in the write buffer from one row, or one set, to the next.
    """
    for c in range(leaves):
        part = columns[c, PART]
        pending = columns[c, BUFFER] + row % columns[c, CHUNK_ROWS] * columns[c, ROW_STEP]
        for p in range(columns[c, PARTS]):
            if compare(columns[c, GIVEN] + p * part, pending + p * columns[c, PART_STEP], part):
                return False
    for c in range(len(columns)):
        at, source = row, columns[c, GIVEN]
        if c < leaves:  # the row's own observation is there already
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
    """Compile :func:`add_continuing`, or load its code from disk, by a call without columns."""
    add_continuing(np.empty((0, FACTS), np.int64), 0, 0, 1, False)
