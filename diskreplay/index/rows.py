"""Rows of many arrays into one block of memory, in one compiled call.

What is copied are bytes, so that one compilation serves all dtypes and shapes. Arrays and rows are given by addresses
and sizes; who calls keeps the arrays alive meanwhile, and positions within them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numpy.typing import NDArray

from diskreplay.index.jit import kernel

Ints = NDArray[np.int64]

intrinsic: Callable[[Callable[..., Any]], Any] = extending.intrinsic
types: Any = numba.types


@intrinsic
def copy(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """``memcpy`` between addresses; a count that is written down becomes a single move."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, size = ir.IntType(8).as_pointer(), ir.IntType(64)
        target, source = (builder.inttoptr(value, byte) for value in values[:2])
        memcpy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, size])
        builder.call(memcpy, [target, source, values[2], ir.Constant(ir.IntType(1), 0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@kernel
def copy_row(target: int, source: int, size: int) -> None:
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
    arrays: Ints, patches: Ints, sizes: Ints, following: NDArray[np.bool_], next_patch: Ints, patch_length: int,
    num_envs: int, rows: Ints, envs: Ints, place: Ints, block: NDArray[np.uint8], offsets: Ints,
) -> None:  # fmt: skip
    """Copies the values of C columns for each of B rows of environments.

    Args:
        arrays: int64 ``(C,)``, addresses of rings: the values of row ``r`` and environment ``e`` stand at the position
            ``r % length * num_envs + e``.
        patches: int64 ``(C,)``, addresses of those that replace next rows.
        sizes: int64 ``(C,)``, bytes of a value.
        following: ``(C,)``; whether it is the next row of the environment that is wanted, or what replaces it.
        next_patch: int64 ``(length * num_envs,)``, for each position the patch that replaces its next row, or -1.
        patch_length: patch ``n`` stands at ``n % patch_length``.
        rows, envs: int64 ``(B,)``.
        place: int64 ``(B,)``, which row of the block each becomes.
        block, offsets: column ``c`` begins at byte ``offsets[c]`` of the block.
    """
    positions = np.empty(len(rows), np.int64)
    for k in range(len(rows)):
        positions[k] = rows[k] % (len(next_patch) // num_envs) * num_envs + envs[k]
    for c in range(len(arrays)):
        size, target = sizes[c], block.ctypes.data + offsets[c]
        if following[c]:
            for k in range(len(positions)):
                patch = next_patch[positions[k]]
                if patch >= 0:
                    source = patches[c] + patch % patch_length * size
                else:
                    at = positions[k] + num_envs
                    source = arrays[c] + (at - len(next_patch) if at >= len(next_patch) else at) * size
                copy_row(target + place[k] * size, source, size)
        else:
            for k in range(len(positions)):
                copy_row(target + place[k] * size, arrays[c] + positions[k] * size, size)
