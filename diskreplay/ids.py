"""A transition's id: its stream, row and environment in one int64.

``stream << 48 | row * num_envs + env`` is given to no other transition of its timeline.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

STREAM_SHIFT = 48


def pack(stream: int, row: Any, env: Any, num_envs: int) -> Any:
    """The id of a row of one environment; ids of arrays of them."""
    return (stream << STREAM_SHIFT) + row * num_envs + env


def unpack(ids: Ids, num_envs: int) -> tuple[Ids, Ids]:
    """Rows and environments of ids of one stream."""
    local = ids & ((1 << STREAM_SHIFT) - 1)
    if num_envs == 1:
        return local, np.zeros(len(local), np.int64)
    rows, envs = np.divmod(local, num_envs)
    return rows, envs


def stream_of(ids: Any) -> Any:
    """The number of an id's stream; of arrays of ids, theirs."""
    return ids >> STREAM_SHIFT
