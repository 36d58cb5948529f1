"""Another library's ring buffer: a table of fields over the rows of a store, shown as that library's arrays.

1. Entries, rows or whole episodes, are counted; the window says which are held. An entry's position is its number, less
   that of an entry at position 0, modulo the size. Nothing of that is kept anywhere.
2. A ring that is not full begins at position 0: nothing was overwritten since it was new, or emptied.
3. In a full one that is opened again the entry at position 0 is number 0, as it was if the ring was never emptied; or
   else it follows from the position of the next entry, where somebody kept that.

A table is a dict of :class:`Field` by name, or of further tables, as for Dict spaces.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array
from diskreplay.compat.arguments import stacked
from diskreplay.compat.disk_array import DiskArray, Shape
from diskreplay.compat.rows import RowWindow, ids_of, rows_of_window, single_steps, window
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import map_arrays

Part = tuple[str, ...] | Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a buffer.

    Attributes:
        shape, dtype: the shape and dtype of an entry.
        fill: the value of entries where nothing was stored.
        part: the names that lead to it in a batch of the store, or a function of the batch; none where it is in RAM.
        after: the names that lead to what follows each step, where an episode has one more of them than of steps.
        time: the axis of the steps of an entry that is an episode.
        optional: True if a step may leave it out, which is the same as ``fill``.
    """

    shape: Shape = ()
    dtype: Any = np.float32
    fill: int = 0
    part: Part = ()
    after: Part = ()
    time: int = 0
    optional: bool = False

    def empty(self, *lead: int) -> Array:
        """Return what stands at places where nothing was stored."""
        return np.full((*lead, *self.shape), self.fill, self.dtype)

    @property
    def step_shape(self) -> Shape:
        """The shape of one step of an entry that is an episode."""
        return (*self.shape[: self.time], *self.shape[self.time + 1 :])

    def at(self, entries: Any, steps: Any) -> tuple[Any, ...]:
        """Return the index of steps of entries that are episodes."""
        return (entries, *[slice(None)] * self.time, steps)

    def of(self, batch: Any) -> Array:
        """Return the field's value of each transition of a batch."""
        values = look_up(batch, self.part)
        return np.asarray(values, self.dtype).reshape(len(values), *self.shape)


def look_up(batch: Any, part: Part) -> Any:
    """Return what a path of names leads to, or a function gives."""
    if callable(part):
        return part(batch)
    for name in part:
        batch = batch[name] if isinstance(batch, Mapping) else getattr(batch, name)
    return batch


def picked(table: Any, batch: Any) -> Any:
    """Return the fields of a table in a batch."""
    return map_arrays(lambda field: field.of(batch), table)


def nested(shape: Shape | dict[str, Shape], dtype: Any, *part: str) -> Any:
    """Return the field of a space's values, or a table of fields."""
    if isinstance(shape, dict):
        return {key: nested(one, dtype, *part, *((key,) if part else ())) for key, one in shape.items()}
    return Field(shape, dtype, part=part)


class Ring:
    """A store as a ring of entries.

    Args:
        store: the store; None before the first step has made it, when the ring is empty.
        fields: the table of what an entry holds.
        lead: the leading axes of the arrays: the positions, and perhaps the environments.
        axis: the one of these axes that is the positions.
        size: the number of positions; the rows that the store has room for if None.
        held: a function that returns the numbers of the entries that are held; the rows of the store if None.
        read: a function that returns a field's values of entries ``(n,)`` of environments ``(n,)``, ``(n, *shape)``;
            of single steps if None.

    Attributes:
        store, fields, size: the arguments of these names.
    """

    size: int

    def __init__(
        self, store: SampledBuffer[Any] | None = None, fields: Any = None, lead: Shape = (), *, axis: int = 0,
        size: int | None = None, held: Callable[[], RowWindow] | None = None,
        read: Callable[[Field, Ids, Ids], Array] | None = None,
    ) -> None:  # fmt: skip
        self.fields, self._lead, self._axis, self._size = fields or {}, lead, axis, size
        if size is not None:
            self.size = size
        self._held, self._read = held or self._rows, read or self._steps
        self.lay(store)

    def lay(self, store: SampledBuffer[Any] | None) -> None:
        """Lay the ring over a store."""
        self.store = store
        self._origin = 0
        """The number of the entry at position 0, or of the one that would be there."""
        if self._size is None:
            self.size = self._lead[self._axis] if store is None else rows_of_window(store)
        self._lead = self._lead or (self.size,)

    def _rows(self) -> RowWindow:
        return RowWindow(0, 0) if self.store is None else window(self.store)

    def _steps(self, field: Field, rows: Ids, envs: Ids) -> Array:
        assert self.store is not None
        return field.of(single_steps(self.store, ids_of(self.store, rows, envs)))

    # Positions

    def turn(self, pos: int) -> None:
        """Put the next entry at ``pos``, if the ring is full."""
        self._origin = self._held().end - pos

    def catch_up(self) -> tuple[RowWindow, int, bool]:
        """Return the entries, the position of the next one, and whether all positions are taken.

        Call it before an entry is added: only here is it noticed that the ring was emptied.
        """
        held = self._held()
        full = held.end - held.begin >= self.size
        if not full:
            self._origin = held.begin
        return held, (held.end - self._origin) % self.size, full

    @property
    def pos(self) -> int:
        """The position of the next entry."""
        return self.catch_up()[1]

    @property
    def full(self) -> bool:
        """True if all positions are taken."""
        return self.catch_up()[2]

    @property
    def count(self) -> int:
        """The number of entries held."""
        begin, end = self._held()
        return end - begin

    def entries(self, positions: Ids) -> Ids:
        """Return the newest entries at positions; those before the first one that is held are none."""
        (_, end), pos, _ = self.catch_up()
        return (positions - pos) % self.size + (end - self.size)

    def positions(self, entries: Ids) -> Ids:
        """Return the positions of entries."""
        self.catch_up()
        return (entries - self._origin) % self.size

    def add(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Add rows; ``steps`` are arguments of the store's ``add``, all checked."""
        store: Any = self.store
        self.catch_up()
        if len(steps) == 1:
            store.add(*steps[0])
        elif steps:
            store.extend(*(stacked(parts) for parts in zip(*steps, strict=True)))

    # Fields

    def __getitem__(self, name: str) -> Any:
        """Return the array of a field, or a dict of such."""
        return self.arrays(self.fields[name])

    def arrays(self, table: Any, make: Callable[..., DiskArray] = DiskArray) -> Any:
        """Return the arrays of a table, read when they are indexed; those that are in RAM are empty."""

        def array(field: Field) -> Any:
            if not field.part:
                return field.empty(*self._lead)
            return make(self._lead, field.shape, field.dtype, functools.partial(self._at, field))

        return map_arrays(array, table)

    def _at(self, field: Field, places: Ids) -> Array:
        out, at = field.empty(len(places)), np.unravel_index(places, self._lead)
        entries = self.entries(at[self._axis])
        held = np.flatnonzero(entries >= self._held().begin)
        if len(held):
            out[held] = self._read(field, entries[held], at[1 - self._axis][held] if len(at) > 1 else 0 * held)
        return out


def shown(name: str) -> Any:
    """Return a property that shows a field of the ring that a buffer has as ``_ring``."""
    return property(lambda self: self._ring[name])


def ring_property(name: str, doc: str) -> Any:
    """Return a property that shows an attribute of the ring that a buffer has as ``_ring``.

    Typed as Any, since in XuanCe's base classes these are plain attributes, which mypy lets no property override.
    """
    return property(lambda self: getattr(self._ring, name), doc=doc)
