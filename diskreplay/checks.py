"""The checks of common arguments: each returns the value in one type of Python's, or raises InputError.

Arrays of other libraries become numpy's here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError, SchemaError

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MAX_KEY_BYTES = 128
"""The most bytes of a key, which names a file or directory, with a few letters more while it is being made."""
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


def check_array(what: str, value: Any) -> NDArray[Any]:
    """Return ``value`` as an array of any dtype, which may share its memory; raise InputError if it cannot be one.

    Every array that a caller gives comes in here, or by :func:`arrays`.
    """
    if type(value) is np.ndarray and value.dtype.isbuiltin == 1:  # the most frequent case, made fast
        return value
    given = arrays(what, value)
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InputError(f"{what}: must be an array, got a ragged value: {value!r:.80}") from error
    except (TypeError, RuntimeError, BufferError) as error:
        raise InputError(f"{what}: must be an array, got {type(value).__name__}: {error!s:.200}") from error
    return array if array.dtype.isbuiltin == 1 else arrays(what, array)


def check_count(what: str, value: Any, least: int = 1, most: int = 1 << 48) -> int:
    """Return ``value`` as an int in ``[least, most]``; raise InputError otherwise."""
    if type(value) is not int and (isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer)):
        raise InputError(f"{what} must be an integer, got {value!r}")
    if not least <= value <= most:
        raise InputError(f"{what} must be {least} to {most}, got {value}")
    return int(value)


def check_share(what: str, value: Any) -> float:
    """Return ``value``, a number of Python's or numpy's, as a float in ``[0, 1]``; raise InputError otherwise."""
    if not isinstance(value, int | float | np.integer | np.floating) or not 0.0 <= value <= 1.0:
        raise InputError(f"{what} must be 0 to 1, got {value!r}")
    return float(value)


def checked_number(name: str, value: Any, *, above: bool = False) -> float:
    """Return ``value`` as a float of at least, or above, 0; raise InputError otherwise."""
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not np.isfinite(value) or value < 0 or (above and value == 0):
        raise InputError(f"{name} must be a finite number {'above' if above else 'of at least'} 0, got {value!r}")
    return float(value)


def check_flag(what: str, value: Any) -> bool:
    """Return ``value``, of Python or numpy, as a bool; raise InputError otherwise."""
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{what} must be True or False, got {value!r}")
    return bool(value)


def check_key(key: object, where: str) -> str:
    """Return ``key`` if it can name a Zarr node; raise SchemaError otherwise."""
    if not isinstance(key, str) or not key or len(key.encode(errors="replace")) > MAX_KEY_BYTES:
        raise SchemaError(f"{where}: keys must be strings of 1 to {MAX_KEY_BYTES} bytes, got {key!r}")
    bad = set(key) & set('/\\\0:*?"<>|')
    if bad or key.startswith((".", "__")) or key == "zarr.json" or not key.isprintable():
        raise SchemaError(f"{where}: the key {key!r} cannot name a Zarr array; use letters, digits, '_' and '-'")
    return key
