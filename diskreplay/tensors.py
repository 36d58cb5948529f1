"""Arrays of other libraries as numpy's: what every argument that is an array comes in by."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import InputError

PLAIN = frozenset({type(None), str, bool, int, float, complex, *np.sctypeDict.values()})
"""The types of single values."""


def arrays(what: str, value: Any) -> Any:
    """Return a value with each of torch's tensors in it, on whichever device, as an array; all else as it is.

    The value may be a Dict, a Tuple or a list of values. Tensors that require grad are detached, and nested ones become
    lists. Floats that numpy does not have, such as bfloat16, become float32. Other arrays share their memory. Raises
    InputError, which names ``what``, for sparse arrays, and for arrays that mask a value.
    """
    if type(value) is np.ndarray:
        return value.astype(np.float32) if value.dtype.isbuiltin == 2 else value  # of ml_dtypes, as JAX has them
    if type(value) in PLAIN:
        return value
    if isinstance(value, list | tuple):
        if PLAIN.issuperset(map(type, value)):
            return value
        parts = [arrays(what, part) for part in value]
        kind: Any = type(value) if hasattr(value, "_fields") else lambda *parts: tuple(parts)
        return parts if isinstance(value, list) else kind(*parts)
    if isinstance(value, Mapping):
        return {key: arrays(f"{what}[{key!r}]", part) for key, part in value.items()}
    torch: Any = sys.modules.get("torch")  # without it there are no tensors
    tensor = torch is not None and isinstance(value, torch.Tensor)
    if tensor and value.is_nested:
        return [arrays(what, part) for part in value.unbind()]
    if hasattr(value, "todense") or (tensor and value.layout is not torch.strided):
        raise InputError(f"{what}: must be dense, got a sparse {type(value).__name__}: give it as a dense array")
    masked = isinstance(value, np.ma.MaskedArray) and np.any(value.mask)
    if masked or (hasattr(value, "get_mask") and not value.get_mask().all()):
        raise InputError(f"{what}: must have no masked values, got {value!r:.80}: fill them, or leave them out")
    return _of_torch(what, torch, value) if tensor else value


def _of_torch(what: str, torch: Any, value: Any) -> Any:
    data = value.get_data() if hasattr(value, "get_data") else value  # of a masked tensor
    try:
        here = data.detach().cpu().resolve_conj().resolve_neg()
        foreign = here.is_floating_point() and here.dtype not in (torch.float16, torch.float32, torch.float64)
        return (here.float() if foreign else here).numpy()
    except (TypeError, RuntimeError) as error:  # those without values, or quantized
        raise InputError(f"{what}: must be an array, got a tensor of {value.dtype}: {error!s:.200}") from error


def first_axis(value: Any) -> int:
    """Return the length of a value's first axis, or -1 if it has none."""
    try:
        return len(value)
    except TypeError:
        return -1
