"""Rows of different lengths in a batch: padded to one length, or one after another as in a list array of Arrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count
from diskreplay.errors import InputError

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Pad:
    """The padding of ragged rows to one length, by default that of the longest row of the batch.

    Args:
        to: a fixed length. A longer row loses the items beyond it.
        multiple: the length is rounded up to a multiple of this number, so that fewer shapes occur.
        side: the side on which zeros are added, "right" or "left".

    >>> Pad(multiple=64).width(np.array([10, 70]))
    128
    """

    to: int | None = None
    multiple: int = 1
    side: Literal["right", "left"] = "right"

    def __post_init__(self) -> None:
        if self.to is not None:
            object.__setattr__(self, "to", check_count("to", self.to))
        object.__setattr__(self, "multiple", check_count("multiple", self.multiple))
        if self.side not in ("right", "left"):
            raise InputError(f"side must be 'right' or 'left', got {self.side!r}")
        if self.to is not None and self.to % self.multiple:
            raise InputError(f"to must be a multiple of {self.multiple}, got {self.to}; leave one of them out")

    def width(self, length: NDArray[np.int64]) -> int:
        """Return the length to which rows of these lengths are padded."""
        if self.to is not None:
            return self.to
        return -(-int(length.max(initial=0)) // self.multiple) * self.multiple

    def mask(self, length: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
        """Return a mask ``(*length.shape, width)``, True where items stand."""
        if int(length.min(initial=width)) == width:
            return np.ones((*length.shape, width), bool)
        at, ends = np.arange(width, dtype=np.int32), length[..., None].astype(np.int32)  # half the time of int64
        found: NDArray[np.bool_] = at < ends if self.side == "right" else at >= width - ends
        return found


PADDED = Pad()
"""The default form of a ragged column."""


class Padded(NamedTuple):
    """Ragged rows that :class:`Pad` has padded with zeros to ``L`` items.

    Attributes:
        values: the items, ``(B, L, *item_shape)``, with the dtype of the column.
        mask: bool ``(B, L)``, False where the padding stands.
        length: the number of items of each row, int64 ``(B,)``.
    """

    values: Any
    mask: Any
    length: Any

    def lists(self) -> Lists:
        """Return the items without the padding. Rows of sequences come in C order."""
        length = np.asarray(self.length).reshape(-1)
        return Lists(np.asarray(self.values)[np.asarray(self.mask)], offsets_of(length))


@dataclasses.dataclass(eq=False, repr=False)
class Lists:
    """Ragged rows one after another, as in a list array of Arrow: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    ``lists[3]`` is one row. ``lists[:8]`` and ``lists[mask]`` are :class:`Lists` of some rows.

    Attributes:
        values: the items of all rows, ``(n, *item_shape)``, with the dtype of the column.
        offsets: int64 ``(B + 1,)``. For sequences ``(B * T + 1,)``, with their steps in C order.
    """

    values: Any
    offsets: Any

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer):
            first, last = self.offsets[:-1][key], self.offsets[1:][key]
            return self.values[first:last]
        rows = np.arange(len(self))[key]
        first, length = self.offsets[rows], self.length[rows]
        offsets = offsets_of(length)
        return Lists(self.values[np.repeat(first - offsets[:-1], length) + np.arange(offsets[-1])], offsets)

    @property
    def parts(self) -> tuple[Any, Any]:
        """The values and the offsets."""
        return self.values, self.offsets

    @property
    def length(self) -> Any:
        """The number of items of each row, ``(B,)`` int64."""
        return self.offsets[1:] - self.offsets[:-1]

    def pad(self, how: Pad | None = None) -> Padded:
        """Return the padded rows; if ``how`` is None, they are padded to the longest."""
        how = how or PADDED
        width = how.width(self.length)
        length = np.minimum(self.length, width)
        mask = how.mask(length, width)
        values = np.zeros((*mask.shape, *self.values.shape[1:]), self.values.dtype)
        first = offsets_of(length)
        values[mask] = self.values[np.repeat(self.offsets[:-1] - first[:-1], length) + np.arange(first[-1])]
        return Padded(values, mask, length)

    def nested(self, tensor: Callable[[Any], Any]) -> Any:
        """Return a nested tensor of torch, in the layout ``torch.jagged``; ``tensor`` makes one of an array."""
        import torch

        return torch.nested.nested_tensor_from_jagged(tensor(self.values), tensor(self.offsets))


def in_parts(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that takes the arrays of :class:`Lists` one by one, and every other array whole."""
    return lambda value: Lists(*map(function, value.parts)) if isinstance(value, Lists) else function(value)


Form = Pad | Literal["lists"]
"""The form that a ragged column has in a batch."""
Forms = Form | Mapping[str, Form]


def offsets_of(length: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the offsets ``(n + 1,)`` at which rows of these lengths ``(n,)`` begin, and at which the last ends."""
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    return offsets


def check_forms(given: Any, names: Mapping[str, Any] | None = None) -> None:
    """Raise InputError if ``given`` is not a form of ragged columns, or names a column that is not in ``names``."""
    for name, form in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not isinstance(form, Pad) and not (isinstance(form, str) and form == "lists"):
            raise InputError(f"ragged must be Pad(...), 'lists', or one of these by column, got {form!r}")
        if name and names is not None and name not in names:
            raise InputError(f"ragged: there is no ragged column {name!r}; the store has {sorted(names)}")


def form_of(forms: Forms, name: str) -> Form:
    """Return the form of a column; :data:`PADDED` if none is given for it."""
    return forms.get(name, PADDED) if isinstance(forms, Mapping) else forms


def joined(parts: list[Any]) -> Any:
    """Return the rows of several batches as one. Padded rows keep their side, and get the longest length."""
    if isinstance(parts[0], Lists):
        length = np.concatenate([part.length for part in parts])
        return Lists(np.concatenate([part.values for part in parts]), offsets_of(length))
    width = max(part.mask.shape[-1] for part in parts)
    length = np.concatenate([part.length for part in parts])
    left = any(part.mask.shape[-1] and bool((~part.mask[..., 0] & (part.length > 0)).any()) for part in parts)
    shape = (*length.shape, width, *parts[0].values.shape[parts[0].mask.ndim :])
    values = np.zeros(shape, parts[0].values.dtype)
    mask = np.zeros(shape[: length.ndim + 1], bool)
    at = 0
    for part in parts:
        here, size = slice(at, at + len(part.length)), part.mask.shape[-1]
        items = slice(width - size, width) if left else slice(0, size)
        axes = (here, *[slice(None)] * (length.ndim - 1), items)
        values[axes], mask[axes] = part.values, part.mask
        at = here.stop
    return Padded(values, mask, length)
