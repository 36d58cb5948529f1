"""The values that a caller gives, as the arrays that a store takes; a call is checked whole before a store changes.

1. A shape may differ from the one that is wanted by axes of length 1, and by nothing else: nothing is broadcast or cut.
2. Floating point numbers are rounded where the store holds such. Any other number must fit without loss.
3. Values of discrete spaces must lie in them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.checks import Array, arrays, check_array
from diskreplay.compat.disk_array import squeezed
from diskreplay.engine.inputs import check_range
from diskreplay.errors import InputError
from diskreplay.schema.spaces import choices

Shape = tuple[int, ...]

TIME_LIMIT = "TimeLimit.truncated"

MAPPINGS, SEQUENCES = (dict, Mapping), (list, tuple, Sequence)
"""The classes for ``isinstance``, which asks the abstract class last: that takes several times as long."""


def number(
    what: str, value: Any, rule: str, kinds: str = "fiub", allowed: Callable[[Any], bool] = lambda number: True
) -> Any:
    """Return one number as Python has it, of these kinds of dtypes, for which ``allowed`` is True.

    Raises InputError, with the ``rule``, for anything else.
    """
    found = check_array(what, value)
    if found.size != 1 or found.dtype.kind not in kinds or not allowed(found.item()):
        raise InputError(f"{what} must be {rule}, got {value!r:.80}")
    return found.item()


def numbers(
    what: str, value: Any, shape: Shape, dtype: Any, *, within: spaces.Space[Any] | None = None,
    finite: bool = False,
) -> Array:  # fmt: skip
    """Return ``value`` as an array of a shape and dtype; it may share the value's memory.

    Args:
        what: the argument, for messages.
        value: numbers.
        shape, dtype: the shape and dtype of the array.
        within: the space that each value must lie in, where it is a discrete one.
        finite: True if NaN and infinity are refused.

    Raises InputError for anything else.
    """
    given = check_array(what, value)
    if given.dtype.kind not in "biuf":
        raise InputError(f"{what} must be numbers of the shape {shape}, got {given.dtype} {value!r:.80}")
    if given.shape != shape:
        if given.size != math.prod(shape) or squeezed(given.shape) != squeezed(shape):
            raise InputError(f"{what} must have the shape {shape}, got {given.shape}")
        given = given.reshape(shape)
    kind = np.dtype(dtype)
    found = given if given.dtype == kind else _converted(what, given, kind)
    bounds = None if within is None or isinstance(within, spaces.Box) else choices(within)
    if bounds is not None and ((found < bounds[0]) | (found > bounds[1])).any():
        raise InputError(f"{what} must lie in {within}, got {value!r:.80}")
    if kind.kind == "f" and (finite or found is not given) and not np.isfinite(found).all():
        check_range(what, given, found)
        if finite:
            raise InputError(f"{what} must be finite, got {value!r:.80}")
    return found


def _converted(what: str, given: Array, kind: np.dtype[Any]) -> Array:
    """Return an array in another dtype, rounded if that is a float, for which a number may be too large."""
    with np.errstate(all="ignore"):
        found: Array = given.astype(kind)
    if kind.kind != "f" and not np.array_equal(found, given):
        raise InputError(f"{what} must be {kind}, and the {given.dtype} values do not fit without loss: {given!r:.80}")
    return found


def flags(what: str, value: Any, shape: Shape) -> NDArray[np.bool_]:
    """Return True and False, or 1 and 0, as a bool array of a shape; raise InputError for anything else."""
    return numbers(what, value, shape, np.bool_)


def rewards(what: str, value: Any, shape: Shape, dtype: Any = np.float32) -> Array:
    """Return finite numbers as an array of a shape and floating point dtype; raise InputError for anything else."""
    return numbers(what, value, shape, dtype, finite=True)


def of_space(what: str, value: Any, space: spaces.Space[Any], lead: Shape = (), *, finite: bool = False) -> Any:
    """Return values of a space, ``(*lead, *shape)``; for a Dict space a dict of them, without further keys.

    Raises InputError for anything else.
    """
    if isinstance(space, spaces.Dict):
        missing = [key for key in space.spaces if not isinstance(value, Mapping) or key not in value]
        if missing:
            raise InputError(f"{what} must be a dict with the keys {list(space.spaces)}, got {_shown(value)}")
        return {
            key: of_space(f"{what}[{key!r}]", value[key], part, lead, finite=finite)
            for key, part in space.spaces.items()
        }
    return numbers(what, value, (*lead, *(space.shape or ())), space.dtype, within=space, finite=finite)


def actions(what: str, value: Any, space: spaces.Space[Any], lead: Shape, dtype: Any, *, finite: bool = False) -> Array:
    """Return actions ``(*lead, *shape)`` of a space that is not a Dict; one that is given may be flat after ``lead``.

    Raises InputError for anything else.
    """
    shape = (*lead, *(space.shape or ()))
    found = check_array(what, value)
    if found.shape != shape and found.size == math.prod(shape):
        flat = (*lead, math.prod(space.shape or ()))
        if squeezed(found.shape) == squeezed(flat):
            found = found.reshape(shape)
    return numbers(what, found, shape, dtype, within=space, finite=finite)


def time_limits(infos: Any, count: int) -> NDArray[np.bool_] | None:
    """Return which environments ran into a time limit, as a list of infos says it, or the info of a vector environment.

    A flag if ``count`` is 1; None if none did. Raises InputError where there are not ``count``, or one is no dict.
    """
    shape = () if count == 1 else (count,)
    try:
        if isinstance(infos, SEQUENCES) and len(infos) == count:
            told = [one.get(TIME_LIMIT, False) for one in infos]
            return flags("infos", np.array(told), shape) if any(told) else None
        if isinstance(infos, MAPPINGS):
            return flags(f"infos[{TIME_LIMIT!r}]", infos[TIME_LIMIT], shape) if TIME_LIMIT in infos else None
    except (AttributeError, TypeError, ValueError):  # not dicts, or not of single values
        pass
    raise InputError(f"infos must be {count} dicts, one for each environment, got {infos!r:.80}")


def by_step(arguments: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the arguments of each of several steps; every array of every argument leads with their number.

    Raises InputError where they are not all of one length.
    """
    lengths = {length for what, value in arguments.items() for length in _lengths(what, value)}
    if len(lengths) != 1:
        raise InputError(f"{', '.join(arguments)} must lead with one number of steps, got {sorted(lengths)}")
    return [tuple(_at(value, step) for value in arguments.values()) for step in range(*lengths)]


def stacked(parts: Sequence[Any]) -> Any:
    """Return nested arrays of one structure stacked along a new first axis."""
    if isinstance(parts[0], Mapping):
        return {key: stacked([part[key] for part in parts]) for key in parts[0]}
    return np.stack(parts)


def _lengths(what: str, value: Any) -> list[int]:
    if isinstance(value, Mapping):
        return [length for key, part in value.items() for length in _lengths(f"{what}[{key!r}]", part)]
    try:
        return [len(arrays(what, value))]
    except TypeError as error:
        raise InputError(f"{what} must lead with the number of steps, got {value!r:.80}") from error


def _at(value: Any, step: int) -> Any:
    return {key: _at(part, step) for key, part in value.items()} if isinstance(value, Mapping) else value[step]


def _shown(value: Any) -> str:
    return f"those {list(value)}" if isinstance(value, Mapping) else f"{value!r:.80}"
