"""Rows of many arrays into one block of memory, in one compiled call.

What is copied are bytes, so that one compilation serves all dtypes and shapes. Arrays and rows are given by addresses
and sizes; who calls keeps the arrays alive meanwhile, and positions within them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from diskreplay.index.jit import copy, kernel

Ints = NDArray[np.int64]


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
