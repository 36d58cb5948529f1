"""Arrays that other libraries keep in RAM as attributes; here their entries are read from the store when indexed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.checks import Array, check_array
from diskreplay.engine.inputs import check_range
from diskreplay.errors import InputError

Shape = tuple[int, ...]
Item = TypeVar("Item")
Read = Callable[[NDArray[np.int64]], Array]


class DiskArray:
    """A read-only array ``(*lead, *shape)`` whose entries are read when it is indexed; ``np.asarray`` reads them all.

    Indexes as numpy's arrays do, fancy ones too; what comes back is a copy. The keys of the leading axes say which
    entries are read. Numpy then takes the same kinds of keys of what was read, so that its rules hold for the whole: an
    integer behind a slice joins a list, for example.

    Args:
        lead: the axes that entries are read by.
        shape, dtype: the shape and dtype of an entry.
        read: a function that returns the entries ``(n, *shape)`` at flat positions ``(n,)`` of ``lead``, ascending,
            each once.
    """

    __hash__ = None  # type: ignore[assignment]  # as an array's

    def __init__(self, lead: Shape, shape: Shape, dtype: DTypeLike, read: Read) -> None:
        self.shape = (*lead, *shape)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._lead = lead
        self._read = read

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The number of bytes that the array would take in RAM."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[position] for position in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("this array is read from disk: it cannot be had without a copy; leave copy=False out")
        return self._at(np.arange(math.prod(self._lead))).reshape(self.shape).astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        first, rest = keys[: len(self._lead)], keys[len(self._lead) :]
        if not self._can_be_read_alone(first):
            return np.asarray(self)[key]
        first += (slice(None),) * (len(self._lead) - len(first))
        if not any(isinstance(part, slice) for part in first):
            values, where = self._chosen(np.arange(math.prod(self._lead)).reshape(self._lead)[first])
            return values[(where if where.ndim else int(where), *rest)]
        if sum(np.ndim(part) > 0 for part in first if not isinstance(part, slice)) > 1:
            return np.asarray(self)[key]  # pairs of positions, which are no block
        used: list[NDArray[np.int64]] = []
        within: list[Any] = []
        for size, part in zip(self._lead, first, strict=True):
            positions = np.arange(size)[part]
            if isinstance(part, slice):
                used.append(positions)
                within.append(slice(None))
            else:
                some, where = np.unique(positions, return_inverse=True)
                used.append(some)
                within.append(where.reshape(np.shape(positions)) if np.ndim(positions) else 0)
        values, where = self._chosen(np.ravel_multi_index(np.ix_(*used), self._lead))
        return values[where][(*within, *rest)]

    def _chosen(self, positions: NDArray[np.int64]) -> tuple[Array, NDArray[np.int64]]:
        """Return the entries at flat positions, each read once, and for each position its place among them."""
        wanted, where = np.unique(positions, return_inverse=True)
        return self._at(wanted), where.reshape(np.shape(positions))

    def _can_be_read_alone(self, first: tuple[Any, ...]) -> bool:
        """Tell whether a key of the leading axes names the entries; otherwise all are read, and numpy takes the key.

        A mask counts where there is one leading axis.
        """
        if len(first) == len(self._lead) == 1 and np.asarray(first[0]).dtype == np.bool_:
            return np.ndim(first[0]) == 1
        return all(isinstance(part, slice) or np.asarray(part).dtype.kind in "iu" for part in first)

    def __eq__(self, other: object) -> Any:
        return np.asarray(self) == np.asarray(other)

    def __repr__(self) -> str:
        return f"<{self.shape} {self.dtype} on disk>"

    def _at(self, positions: NDArray[np.int64]) -> Array:
        return self._read(positions) if len(positions) else np.zeros((0, *self.shape[len(self._lead) :]), self.dtype)


class ReadSequence(Sequence[Item], Generic[Item]):
    """A sequence whose items are read when it is indexed, by an integer or a slice.

    Args:
        count: a function that returns how many items there are.
        read: a function that returns the item of a number.
    """

    def __init__(self, count: Callable[[], int], read: Callable[[int], Item]) -> None:
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, index: Any) -> Any:
        numbers = range(len(self))[index]
        return [self[number] for number in numbers] if isinstance(numbers, range) else self._read(numbers)


def fit(what: str, value: Any, shape: Shape, dtype: Any) -> Array:
    """Return ``value`` broadcast to a shape as numpy's assignment does, give or take one axis of length 1.

    Raises InputError for what is no number, and for what an integer or a bool cannot hold.
    """
    given = check_array(what, value)
    try:
        if np.dtype(dtype) != object and given.dtype.kind not in "biuf":
            raise TypeError(f"{given.dtype} values are no numbers")
        if given.shape != shape and given.size == math.prod(shape) and squeezed(given.shape) == squeezed(shape):
            given = given.reshape(shape)
        out = np.empty(shape, dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            out[...] = given
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must have the shape {shape}: {error}") from error
    check_range(what, given, out)
    if out.dtype.kind in "biu" and not np.array_equal(out, np.broadcast_to(given, shape)):
        raise InputError(f"{what} must be {out.dtype}, or numbers that are just such, got {value!r:.80}")
    return out


def squeezed(shape: Shape) -> Shape:
    """Return a shape without its axes of length 1."""
    return tuple(n for n in shape if n != 1)
