"""Tables of fields: what an entry of XuanCe's ring holds, and where that stands, in the rows of a store or in RAM.

A table is a dict of :class:`Field` by name, or of further tables, as for Dict spaces.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.compat.disk_array import Shape
from diskreplay.compat.positions import RingPositions, steps_of_ring
from diskreplay.compat.xuance.memory import Shapes

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Field:
    """One array of a buffer.

    Attributes:
        shape, dtype: the shape and dtype of an entry.
        fill: the value of entries where nothing was stored.
        part: the names that lead to it in a batch of the store; none where it is in RAM.
        after: the names that lead to what follows each step, where an episode has one more of them than of steps.
        time: the axis of the steps of an entry that is an episode.
        optional: True if a step may leave it out, which is the same as ``fill``.
    """

    shape: Shape = ()
    dtype: Any = np.float32
    fill: int = 0
    part: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
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


def look_up(batch: Any, part: tuple[str, ...]) -> Any:
    """Return what a path of names leads to."""
    for name in part:
        batch = batch[name] if isinstance(batch, Mapping) else getattr(batch, name)
    return batch


def nested(shape: Shapes, dtype: Any, *part: str) -> Any:
    """Return the field of a space's values, or a table of fields."""
    if isinstance(shape, dict):
        return {key: nested(one, dtype, *part, *((key,) if part else ())) for key, one in shape.items()}
    return Field(shape, dtype, part=part)


def arrays(table: Any, engine: SampledBuffer[Any], ring: Callable[[], RingPositions], lead: tuple[int, int]) -> Any:
    """Return the arrays ``(n_envs, n_size, ...)`` of a table; those that are in RAM are empty."""
    if isinstance(table, Mapping):
        return {key: arrays(field, engine, ring, lead) for key, field in table.items()}
    if not table.part:
        return table.empty(*lead)
    return steps_of_ring(engine, ring, lead, table.shape, table.dtype, table.of, table.fill)


def picked(table: Any, batch: Any) -> Any:
    """Return the fields of a table in a batch."""
    if isinstance(table, Mapping):
        return {key: picked(field, batch) for key, field in table.items()}
    return table.of(batch)
