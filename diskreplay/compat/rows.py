"""Attributes that other libraries keep as arrays in RAM, read from the store when somebody looks at them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.buffers.inputs import check_range
from diskreplay.errors import InputError

Array = NDArray[Any]
Shape = tuple[int, ...]
Read = Callable[[NDArray[np.int64]], Array]


class Rows:
    """A read-only array ``(length, *shape)`` whose entries are read when it is indexed; ``np.asarray`` reads them all.

    Indexes as numpy's arrays do, fancy ones too; what comes back is a copy.

    Args:
        shape: ``(length, *shape)``.
        dtype: of the entries.
        read: gives the entries ``(n, *shape)`` at positions ``(n,)``, 0 to ``length - 1``.
    """

    __hash__ = None  # type: ignore[assignment]  # as an array's

    def __init__(self, shape: tuple[int, ...], dtype: DTypeLike, read: Read) -> None:
        self.shape = shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._read = read

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """What the array would take in RAM."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[position] for position in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("this array is read from disk: it cannot be had without a copy")
        return self._at(np.arange(len(self))).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if first is Ellipsis or first is None:
            return np.asarray(self)[key]
        positions = np.arange(len(self))[first]
        if isinstance(first, slice):
            return self._at(positions)[(slice(None), *rest)]
        wanted, where = np.unique(positions, return_inverse=True)
        values = self._at(wanted)
        return values[(int(where.item()) if np.isscalar(positions) else where.reshape(positions.shape), *rest)]

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == np.asarray(other)

    def __repr__(self) -> str:
        return f"<{self.shape} {self.dtype} on disk>"

    def _at(self, positions: NDArray[np.int64]) -> Array:
        if not len(positions):
            return np.zeros((0, *self.shape[1:]), self.dtype)
        return self._read(positions)


class Grid(Rows):
    """A read-only array ``(*lead, *shape)`` of several leading axes, read when it is indexed.

    Args:
        lead: the axes that entries are read by.
        read: gives the entries ``(n, *shape)`` at flat positions ``(n,)`` of these.
    """

    def __init__(self, lead: Shape, shape: Shape, dtype: DTypeLike, read: Read) -> None:
        super().__init__((*lead, *shape), dtype, read)
        self._places = np.arange(math.prod(lead)).reshape(lead)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("this array is read from disk: it cannot be had without a copy")
        return self._gather(self._places).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        if not all(isinstance(part, slice) or np.asarray(part).dtype.kind in "iu" for part in keys):
            return np.asarray(self)[key]
        lead = self._places.ndim
        chosen = self._places[keys[:lead]]
        rest = keys[lead:]
        return self._gather(chosen)[(*[slice(None)] * chosen.ndim, *rest)] if rest else self._gather(chosen)

    def _gather(self, positions: Any) -> Array:
        wanted, where = np.unique(positions, return_inverse=True)
        values = self._at(wanted)[where.ravel()]
        return values.reshape(np.shape(positions) + self.shape[self._places.ndim :])


def fit(what: str, value: Any, shape: Shape, dtype: Any) -> Array:
    """``value`` broadcast to a shape as numpy's assignment does; one axis more or less of length 1 does not matter."""
    try:
        given = np.asarray(value)
        if given.shape != shape and given.size == math.prod(shape) and _squeezed(given.shape) == _squeezed(shape):
            given = given.reshape(shape)
        out = np.empty(shape, dtype)
        with np.errstate(over="ignore"):
            out[...] = given
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must have the shape {shape}: {error}") from error
    check_range(what, given, out)
    return out


def _squeezed(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)
