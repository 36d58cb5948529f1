"""Tensors of other libraries as numpy's arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def arrays(value: Any) -> Any:
    """Return a value with each of torch's tensors in it, on whichever device, as an array; all else as it is.

    The value may be a Dict, a Tuple or a list of values. Arrays of tensors on the CPU share their memory.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    if isinstance(value, tuple):
        parts = map(arrays, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [arrays(part) for part in value]
    return {key: arrays(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def first_axis(value: Any) -> int:
    """Return the length of a value's first axis, or -1 if it has none."""
    try:
        return len(value)
    except TypeError:
        return -1
