"""The checks of common arguments: each returns the value in one type of Python's, or raises InputError."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError, SchemaError
from diskreplay.tensors import arrays

MAX_KEY_BYTES = 128
"""The most bytes of a key, which names a file or directory, with a few letters more while it is being made."""


def check_array(what: str, value: Any) -> NDArray[Any]:
    """Return ``value`` as an array of any dtype, which may share its memory; raise InputError if it cannot be one.

    Every array that a caller gives comes in here, or by :func:`~diskreplay.tensors.arrays`.
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
