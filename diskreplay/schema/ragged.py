"""Rows of different lengths in a batch: padded to one length, or one after another as in a list array of Arrow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_array, check_count
from diskreplay.errors import InputError


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

    ``lists[3]`` is one row. ``lists[:8]`` and ``lists[mask]`` are :class:`Lists` of some rows; slices are no copies.

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
        if isinstance(key, slice) and key.step in (None, 1):  # a view, as of an array
            start, stop, _ = key.indices(len(self))
            offsets = self.offsets[start : max(start, stop) + 1]
            return Lists(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])
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
        how = PADDED if how is None else how
        if not isinstance(how, Pad):
            raise InputError(f"how must be Pad(...), got {how!r:.100}")
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


def is_lists(value: Any) -> bool:
    """Tell whether a value is :class:`Lists`, or the nested tensor of :meth:`Lists.nested`."""
    return isinstance(value, Lists) or getattr(value, "is_nested", False) is True


def entries(rows: Any, key: Any, count: int) -> Any:
    """Return the rows of some of a batch's ``count`` entries, which all have the same number of rows."""
    total = len(rows) if isinstance(rows, Lists) else rows.size(0)
    steps = total // max(count, 1)
    if isinstance(rows, Lists) and steps == 1:
        return rows[key]
    if hasattr(key, "cpu"):
        key = np.asarray(key.cpu())
    chosen = np.arange(total).reshape(count, steps)[key].reshape(-1)
    return rows[chosen] if isinstance(rows, Lists) else _nested_rows(rows, chosen.tolist())


def _nested_rows(rows: Any, chosen: list[int]) -> Any:
    """Return some rows of a nested tensor, of which torch gives none by itself."""
    import torch

    offsets, every = rows.offsets(), rows.unbind()
    length = offsets.diff()[chosen]
    values = torch.cat([every[row] for row in chosen]) if chosen else rows.values()[:0]
    return torch.nested.nested_tensor_from_jagged(values, torch.nn.functional.pad(length.cumsum(0), (1, 0)))


def rows_of(given: Padded | Lists, what: str) -> Lists:
    """Return rows that a program gives as lists; raise InputError, which names ``what``, if their parts do not fit."""
    if isinstance(given, Padded):
        values, mask, length = (check_array(what, part) for part in given)
        fits = mask.dtype == bool and mask.ndim > 0 and values.shape[: mask.ndim] == mask.shape
        if not fits or not np.array_equal(np.count_nonzero(mask, axis=-1), length):
            raise InputError(
                f"{what}: the mask of padded rows must have an entry for each item, and length must count those that "
                f"are True, got values {values.shape}, a mask {mask.shape} of {mask.dtype} and length {length!s:.80}"
            )
        return Padded(values, mask, length).lists()
    values, offsets = (check_array(what, part) for part in given.parts)
    items = len(values)
    whole = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 0
    if not whole or offsets[0] < 0 or offsets[-1] > items or (offsets[1:] < offsets[:-1]).any():
        raise InputError(
            f"{what}: the offsets of lists must be integers that never decrease, from 0 to at most the {items:,} "
            f"values, got {offsets!s:.80}"
        )
    return Lists(values, offsets)


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
    for name, form in given.items() if isinstance(given, Mapping) else [(None, given)]:
        if not isinstance(form, Pad) and not (isinstance(form, str) and form == "lists"):
            raise InputError(f"ragged must be Pad(...), 'lists', or one of these by column, got {form!r}")
        if name is not None and names is not None and name not in names:
            raise InputError(f"ragged: there is no ragged column {name!r}; the store has {sorted(names)}")


def form_of(forms: Forms, name: str) -> Form:
    """Return the form of a column; :data:`PADDED` if none is given for it."""
    return forms.get(name, PADDED) if isinstance(forms, Mapping) else forms


def pads_left(forms: Forms, name: str) -> bool:
    """Tell whether a column is padded on the left. ``name`` may also be that of a batch's array, such as next_obs/a."""
    column = name.removeprefix("extra/") if name.startswith("extra/") else name.removeprefix("next_")
    form = form_of(forms, column)
    return isinstance(form, Pad) and form.side == "left"


def joined(parts: list[Any], left: bool = False) -> Any:
    """Return the rows of several batches as one. Padded rows get the longest length; ``left`` tells their side."""
    if isinstance(parts[0], Lists):
        length = np.concatenate([part.length for part in parts])
        return Lists(np.concatenate([part.values for part in parts]), offsets_of(length))
    width = max(part.mask.shape[-1] for part in parts)
    length = np.concatenate([part.length for part in parts])
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
