"""The columns of transitions as the core sees them, which copies them in the call that draws a batch.

All columns but observations must be in RAM. A leaf of observations may be on disk: then the call copies it from the
cache, where that holds all frames of the batch. Stacks are copied likewise, also out of RAM.
"""

from __future__ import annotations

from diskreplay.native import core
from diskreplay.process import background
from diskreplay.reading import blocks, compiled
from diskreplay.reading.addresses import Addresses
from diskreplay.schema.columns import REWARD, START, TERMINATED, TRUNCATED, VALID, Column, Schema, Stack

FLAGS = REWARD, TERMINATED, TRUNCATED
MOST_BYTES = 16 << 20
"""The bytes of columns in RAM from which on numpy copies a batch column by column: that takes twice as long."""
MOST_ARRAYS = 1024
"""The most arrays that one call fills for a batch."""


def can_be(schema: Schema) -> bool:
    """Tell whether stores of a schema can have their batches drawn by one call of the core."""
    arrays = len(schema.columns) + len(schema.obs_columns) - 2
    moved = any(stack.frames > 1 and stack.axis == -1 for stack in schema.stacks)
    return not schema.ragged and not schema.later and not moved and arrays <= MOST_ARRAYS


def names(schema: Schema) -> list[str]:
    """Return the columns whose arrays a call gives, in their order; behind them stand the next observations."""
    return [*FLAGS, *(c.name for c in schema.columns if c.name not in (*FLAGS, START, VALID))]


def rows(schema: Schema, where: Addresses) -> core.Rows | None:
    """Return the columns that transitions show, or None if some other column is on disk than observations."""
    if not can_be(schema):
        return None
    held, order = where.streams[0].log.held, names(schema)
    stacks = dict(zip([c.name for c in schema.obs_columns], schema.stacks, strict=True))
    leaves = [name for name, stack in stacks.items() if name not in held or stack.frames > 1]
    if any(name not in held and name not in stacks for name in order):
        return None
    columns, places = [], []
    for place, (name, following) in enumerate([*((name, False) for name in order), *((name, True) for name in stacks)]):
        if name not in leaves:
            column = schema.column(name)
            columns.append((name, column.dtype, column.shape, following))
            places.append(place)
    places += [order.index(name) for name in leaves] + [len(order) + list(stacks).index(name) for name in leaves]
    shown = [_frames(schema.column(name), stacks[name], where) for name in leaves]
    most_size = compiled.LEAST_HITS if leaves and background.THREADS > 1 else MOST_BYTES
    return core.Rows(where.logs, columns, shown, places, VALID, MOST_BYTES, most_size)


def _frames(column: Column, stack: Stack, where: Addresses) -> core.Frames:
    shape = column.shape
    if stack.channels:
        shape = (stack.frames * shape[0], *shape[1:])
    elif stack.frames > 1:
        shape = (stack.frames, *shape)
    chunks, patches = where.chunks(column.name), where.chunks(column.name, patches=True)
    return core.Frames(chunks, patches, stack.frames, column.dtype, shape, stack.axis is not None, blocks.empty)
