"""A transition's id: its stream, row and environment in one int64.

``stream << 48 | row * num_envs + env`` is given to no other transition of its timeline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_array
from diskreplay.errors import InputError

Ids = NDArray[np.int64]

STREAM_SHIFT = 48


def pack(stream: int, row: Any, env: Any, num_envs: int) -> Any:
    """Return the id of a row of one environment, or the ids of arrays of them."""
    return (stream << STREAM_SHIFT) + row * num_envs + env


def checked_ids(index: Any) -> Ids:
    """Return ids that a caller gave as a new int64 array ``(B,)``; raise InputError if they are not ids."""
    given = check_array("index", index)
    if given.shape == (0,):  # of no dtype that says anything: an empty list is an array of floats
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu" or given.ndim != 1:
        raise InputError(f"index must be integers of shape (B,), got {given.dtype} {given.shape}")
    if given.dtype.kind == "u" and given.max() > np.iinfo(np.int64).max:
        raise InputError(f"index {given.max()} names no transition: every index is below 2**63")
    return given.astype(np.int64)


def stream_of(ids: Any) -> Any:
    """Return the number of an id's stream, or of an array of ids."""
    return ids >> STREAM_SHIFT


def row_of(ids: Any, num_envs: int) -> Any:
    """Return the row of an id of a stream with so many environments, or of an array of ids."""
    return (ids & ((1 << STREAM_SHIFT) - 1)) // num_envs
