"""Copies of what passes through a wrapper."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import arrays
from diskreplay.views.batch import map_arrays

LARGE_BYTES = 1 << 14
"""The size from which an array is copied in another way."""


def copied(what: str, value: Any, buffer: ReplayBuffer) -> Any:
    """Return a copy of an observation or an action, which ``what`` names, with arrays in the place of tensors."""
    if isinstance(value, Mapping):
        return {key: copied(f"{what}[{key!r}]", part, buffer) for key, part in value.items()}
    value = arrays(what, value)
    if isinstance(value, np.ndarray):
        return _copied_array(value)
    return copy.deepcopy(value) if buffer.schema.ragged else map_arrays(np.array, value)


def _copied_array(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array.

    A large one is copied with the interpreter's lock held. ``numpy.copy`` gives it up, and then
    waits, 5 ms by default, until a thread that computes gives it back.
    """
    if array.nbytes < LARGE_BYTES or array.dtype.hasobject or not array.flags.c_contiguous:
        return np.array(array)
    made = np.empty(array.shape, array.dtype)
    made.reshape(-1).view(np.uint8).data[:] = array.reshape(-1).view(np.uint8).data
    return made
