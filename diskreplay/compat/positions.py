"""Positions of another library's ring buffer, which follow from the entries that are held and are kept nowhere.

1. Entries, rows or whole episodes, are counted; the window says which are held. An entry's position is its number, less
   that of an entry at position 0, modulo the size.
2. A ring that is not full begins at position 0: nothing was overwritten since it was new, or emptied.
3. In a full one that is opened again the entry at position 0 is number 0, as it was if the ring was never emptied; or
   else it follows from the position of the next entry, where somebody kept that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.compat.disk_array import DiskArray, Shape
from diskreplay.compat.rows import RowWindow, ids_of, ids_of_all, rows_of_window, single_steps, window
from diskreplay.schema.ids import Ids

Array = NDArray[Any]


class RingPositions:
    """The positions of a ring.

    Args:
        held: a function that returns the numbers of the entries that are held.
        size: the size of the ring.
        pos: the position of the next entry, where it is known of a ring that is full.
    """

    def __init__(self, held: Callable[[], RowWindow], size: int, pos: int | None = None) -> None:
        self._held = held
        self.size = size
        self._origin = 0
        """The number of the entry at position 0, or of the one that would be there."""
        if pos is not None:
            self.turn(pos)

    @classmethod
    def of_rows(cls, buffer: StoredBuffer, pos: int | None = None) -> RingPositions:
        """Return the ring of all rows that a buffer's window has room for."""
        return cls(functools.partial(window, buffer), rows_of_window(buffer), pos)

    def turn(self, pos: int) -> None:
        """Put the next entry at ``pos``, if the ring is full."""
        self._origin = self._held().end - pos

    def look(self) -> tuple[RowWindow, int, bool]:
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
        return self.look()[1]

    @property
    def count(self) -> int:
        """The number of entries held."""
        begin, end = self._held()
        return end - begin

    @property
    def full(self) -> bool:
        """True if all positions are taken."""
        return self.look()[2]

    def entries(self, positions: Ids) -> tuple[Ids, Ids]:
        """Return the newest entries at positions, and the places among the positions of those that are held."""
        (begin, end), pos, _ = self.look()
        entries = end - 1 - (pos - 1 - positions) % self.size
        return entries, np.flatnonzero(entries >= begin)

    def positions(self, entries: Ids) -> Ids:
        """Return the positions of entries."""
        self.look()
        return (entries - self._origin) % self.size


def ring_property(name: str, doc: str) -> Any:
    """Return a property that shows an attribute of the ring that a buffer has as ``_ring``.

    Typed as Any, since in XuanCe's base classes these are plain attributes, which mypy lets no property override.
    """
    return property(lambda self: getattr(self._ring, name), doc=doc)


def ring_array(
    ring: Callable[[], RingPositions | None], lead: Shape, shape: Shape, dtype: DTypeLike,
    read: Callable[[Ids, Ids], Array], *, fill: float = 0, make: Callable[..., DiskArray] = DiskArray,
) -> DiskArray:  # fmt: skip
    """Return a field by position, ``(*lead, *shape)``, read when it is indexed.

    Args:
        ring: a function that returns the ring; None where there is no store yet.
        lead: the size of the ring, or the number of environments and the size.
        shape, dtype: the shape and dtype of what stands at a position.
        read: a function that returns the values of entries ``(n,)`` and their environments ``(n,)``, an array ``(n,
            *shape)``.
        fill: the value at positions that are not taken.
        make: a function that makes the array.
    """

    def at(places: Ids) -> Array:
        out = np.full((len(places), *shape), fill, dtype)
        known = ring()
        if known is None:
            return out
        envs, positions = np.divmod(places, lead[-1])
        entries, held = known.entries(positions)
        if len(held):
            out[held] = read(entries[held], envs[held]).reshape(len(held), *shape)
        return out

    return make(lead, shape, dtype, at)


def rows_of_ring(
    buffer: Callable[[], SampledBuffer[Any]], ring: Callable[[], RingPositions | None], shape: Shape, dtype: DTypeLike,
    pick: Callable[[Any], Array], make: Callable[..., DiskArray] = DiskArray,
) -> DiskArray:  # fmt: skip
    """Return a field of single steps of all environments, ``(size, num_envs, ...)``, with zeros where there is none.

    Args:
        buffer: a function that returns the buffer of the rows; it is called only where there are entries.
        ring: the ring of the array's rows; None where there is no store yet.
        shape: the shape of the whole array.
        dtype: the dtype of the entries.
        pick: the field of a batch of single steps.
        make: a function that makes the array.
    """

    def read(rows: Ids, _: Ids) -> Array:
        found = buffer()
        return pick(single_steps(found, ids_of_all(found, rows)))

    return ring_array(ring, shape[:1], shape[1:], dtype, read, make=make)


def steps_of_ring(
    buffer: SampledBuffer[Any], ring: Callable[[], RingPositions], lead: Shape, shape: Shape, dtype: DTypeLike,
    pick: Callable[[Any], Array], fill: float = 0,
) -> DiskArray:  # fmt: skip
    """Return a field of the transitions, ``(n_envs, size, *shape)``, as the view of a buffer shows it."""

    def read(rows: Ids, envs: Ids) -> Array:
        return pick(buffer.get(ids_of(buffer, rows, envs)))

    return ring_array(ring, lead, shape, dtype, read, fill=fill)
