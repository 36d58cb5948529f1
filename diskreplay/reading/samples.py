"""From rows to arrays: the transitions of which a batch is made, whatever its view.

Resident columns are copied now, with ``engine.lock`` held. Large ones are left to :class:`~.reads.Reads`, which reads
and decodes them without the lock.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from diskreplay.checks import Array
from diskreplay.index.log import place_of
from diskreplay.index.rewards import returns, rewards
from diskreplay.native import core
from diskreplay.reading import decoding, observations, ragged_reads
from diskreplay.reading.addresses import Addresses, Group, by_stream
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.target import Target
from diskreplay.schema.columns import KNOWN, LATER, RECORDED, REWARD, Column, Schema, Stack
from diskreplay.schema.ids import Ids, pack
from diskreplay.schema.ragged import form_of


class Samples:
    """Rows of environments of all streams, and the place of each in arrays whose first axis has ``size`` entries.

    Args:
        schema, streams: the columns and the streams of the store.
        ids: the ids of the rows and environments, ``(n,)``.
        place: the place of each id in the arrays, ``(n,)``; in the order of the ids if None. Other places are zeros.
        size: the size of the arrays; ``n`` if None.
        reads: notes what is to be read from disk; a new one if None.
    """

    def __init__(
        self, schema: Schema, streams: Sequence[OpenStream], ids: Ids, place: Ids | None = None,
        size: int | None = None, *, reads: Reads | None = None,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.ids = ids
        self.place = np.arange(len(ids)) if place is None else place
        self.size = len(ids) if size is None else size
        self.reads = Reads() if reads is None else reads
        self._streams = streams
        known = self.reads.addresses
        self._known = known if known is not None and known.streams is streams else None
        self._partial = self.size > len(ids)
        self._gathered: dict[str, Array] = {}
        """The columns that are gathered and not yet returned: a returned array belongs to the caller."""
        self._has_gathered = False

    @functools.cached_property
    def groups(self) -> list[Group[OpenStream]]:
        """The samples, grouped by stream."""
        return by_stream(self._streams, self.ids, self.place)

    @property
    def _where(self) -> Addresses:
        if self._known is None:
            self._known = Addresses(self._streams)
        return self._known

    def gather(self) -> None:
        """Copy the columns in RAM that transitions of one step show, in one call, if there is one for these rows."""
        rows = None if self._known is None else self._known.rows
        found = None if rows is None else rows.gather(self.ids, self.place, self.size)
        if found is not None:
            self._gathered, self._has_gathered = found, True

    @functools.cached_property
    def _positions(self) -> list[Ids]:
        return [stream.log.positions(rows, envs) for stream, _, rows, envs in self.groups]

    def values(self, column: Column) -> Array:
        """Return a column's values ``(size, *shape)`` at the rows themselves, of a ragged one in its form."""
        if self._is_held(column.name):
            found = self.resident(column.name)
            return self._ragged(column.name, found) if column.name in self.schema.ragged else found
        return self._step(column, 0)

    def _ragged(self, name: str, spans: Array) -> Array:
        """Return the items of spans ``(size, 2)`` in the form that the batch has them in: of video, frames.

        Any other form is no single array.
        """
        column, form = self.schema.ragged[name], form_of(self.reads.forms, name)
        if column.video is not None and form != "lists":
            return decoding.read(self.reads, column, spans, [group[:3] for group in self.groups])
        found: Any = ragged_reads.read(self.reads, column, spans, [group[:2] for group in self.groups], form)
        return cast(Array, found)

    def resident(self, name: str) -> Array:
        """Return a resident column's values ``(size, *shape)`` at the rows themselves, by its name."""
        found = self._gathered.pop(name, None)
        if found is not None:
            return found
        if len(self.groups) == 1 and not self._partial:  # no lists: this runs for each column of each batch
            return self.groups[0][0].log.at(name, self._positions[0])
        at = zip(self.groups, self._positions, strict=True)
        return self.scatter([stream.log.at(name, positions) for (stream, *_), positions in at])

    def extra(self) -> dict[str, Array]:
        """Return the user's own columns at the rows, ``(size, *shape)`` by name, with the later columns.

        For each later column there is also a mask of the rows that have a value; the others have zeros.
        """
        own = {column.name: self.values(column) for column in self.schema.extra_columns}
        return {**self.recorded(), **own, **self.written_later()}

    def rewards(self) -> Array:
        """Return the rewards at the rows, ``(size,)``; raise InputError where another column's lack a value."""
        if self.reads.reward == REWARD:
            return self.resident(REWARD)
        name = self.reads.reward
        return self.scatter([rewards(stream.log, name, rows, envs) for stream, _, rows, envs in self.groups])

    def returns(self, n_step: int, gamma: float) -> tuple[Array, Array, Samples]:
        """Return the sums of rewards over ``n_step`` steps, and their discounts, ``(size,)``; and their last rows.

        See :func:`~diskreplay.index.rewards.returns`.
        """
        name, totals, scales, ids, places = self.reads.reward, [], [], [], []
        for stream, place, rows, envs in self.groups:
            total, last, scale = returns(stream.log, rows, envs, n_step, gamma, name)
            totals.append(total)
            scales.append(scale.astype(np.float32))
            ids.append(pack(stream.log.stream, last, envs, stream.log.num_envs))
            places.append(place)
        ends = np.concatenate(ids), np.concatenate(places), self.size
        lasts = Samples(self.schema, self._streams, *ends, reads=self.reads)
        return self.scatter(totals), self.scatter(scales), lasts

    def recorded(self) -> dict[str, Array]:
        """Return the recorded rewards at the rows, ``(size,)`` by name, if another column stands for the rewards."""
        return {} if self.reads.reward == REWARD else {RECORDED: self.resident(REWARD)}

    def written_later(self, only: Collection[str] | None = None) -> dict[str, Array]:
        """Return only the later columns, or those of these names, and their masks, as :meth:`extra` does."""
        found: dict[str, Array] = {}
        for column in self.schema.later:
            if only is not None and column.name not in only:
                continue
            places = self.resident(place_of(column.name))
            known: Array = places > 0
            found[column.name] = (
                self.resident(column.name) if self._is_held(column.name) else self._logged(column, places, known)
            )
            found[column.name + KNOWN] = known
        return found

    def _logged(self, column: Column, places: Array, known: Array) -> Array:
        """Return values of a later column that is too large for RAM; ``places`` are their bytes in the log."""
        size = column.item_bytes
        values = self.reads.empty((self.size, *column.shape), column.dtype)
        values[~known] = 0
        out = values.reshape(self.size, math.prod(column.shape)).view(np.uint8)
        for stream, place, _, _ in self.groups:
            here = place[known[place]]
            here = here[~stream.logs[LATER].take_waiting(places[here], here, out)]
            if len(here):
                first = places[here]
                runs = np.array([here, np.zeros_like(first), first, first + (size - 1), first])
                self.reads.fetch(stream.disk.logs[LATER], runs, Target(out), stream.cache)
        return values

    def each(self, function: Callable[[OpenStream, Ids, Ids], Array]) -> Array:
        """Call a function with each stream, its rows and environments, and return the results, ``(size, ...)``."""
        return self.scatter([function(stream, rows, envs) for stream, _, rows, envs in self.groups])

    def observe(self, leaf: int, stacked: bool = True) -> tuple[Array, Array]:
        """Return observations and next observations of a leaf at the rows, or their newest frames alone.

        Frames that two stacks have in common are read once. The arrays share no memory.
        """
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf] if stacked else Stack()
        if stack.frames == 1 and (column.name in self.schema.ragged or self._is_held(column.name)):
            return self.values(column), self.next_values(leaf)
        as_read = self.reads.out if stack.frames == 1 or stack.axis != -1 else None
        given = None if as_read is None else as_read.block(leaf, (stack.frames, *column.shape))
        if given is not None:
            return self._overlapping(column, stack, *given)
        if observations.odd_stacks(self._streams, stack, self.ids):
            return self.current(leaf), self.observe_next(leaf)
        shape = (self.size, stack.frames, *column.shape)
        if stack.axis == -1 and stack.channels:  # this layout is copied in any case, from one array for both
            block = self._empty((self.size, stack.frames + 1, *column.shape), column.dtype)
            out, obs, following = Target(block), block[:, :-1], block[:, 1:]
        else:
            both = None if as_read is None else as_read.pair(leaf, shape[1:])
            obs, following = both or (self.reads.empty(shape, column.dtype), self.reads.empty(shape, column.dtype))
            out = Target(self._padded(obs), self._padded(following))
        self._fill(column, out, 1 - stack.frames, 1)
        return self._layout(obs, stack), self._layout(following, stack)

    def _overlapping(self, column: Column, stack: Stack, block: Array, steps: int) -> tuple[Array, Array]:
        """Fill rows ``(items * (steps + 1), ...)`` of items, each with the next observation of its last step behind it.

        Returns arrays that stand for observations and next observations, without their values.
        """
        place = self.place + self.place // steps
        if self._partial:
            last = np.flatnonzero(np.diff(place, append=-1) != 1)
            absent = np.ones(len(block), bool)
            absent[place] = absent[place[last] + 1] = False
            block[absent] = 0
        else:
            last = np.arange(steps - 1, self.size, steps)
        single, older, given = stack.frames == 1, 1 - stack.frames, (self.reads, self._where, column.name)
        observations.fill(*given, Target(block), self.ids, place, older, int(single))
        if not single:
            observations.fill_next(*given, stack, Target(block), self.ids[last], place[last] + 1)
        shape, zero = (self.size, stack.frames, *column.shape), np.zeros((), column.dtype)
        empty = self._layout(np.ndarray(shape, column.dtype, zero, strides=(0,) * len(shape)), stack)
        return empty, empty

    def current(self, leaf: int) -> Array:
        """Return observations of a leaf at the rows."""
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf]
        if stack.frames == 1:
            return self.values(column)
        out = self._empty((self.size, stack.frames, *column.shape), column.dtype)
        self._fill(column, Target(out), 1 - stack.frames, 0)
        return self._layout(out, stack)

    def observe_next(self, leaf: int) -> Array:
        """Return next observations of a leaf at the rows."""
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf]
        if stack.frames == 1:
            return self.next_values(leaf)
        out = self._empty((self.size, stack.frames, *column.shape), column.dtype)
        observations.fill_next(self.reads, self._where, column.name, stack, Target(out), self.ids, self.place)
        return self._layout(out, stack)

    def next_values(self, leaf: int) -> Array:
        """Return the newest frames of a leaf's next observations, ``(size, *frame_shape)``; of a ragged one all."""
        column = self.schema.obs_columns[leaf]
        if not self._is_held(column.name):
            return self._step(column, 1)
        found = self._gathered.pop(core.NEXT_OWN + column.name, None)
        if found is None:
            at = zip(self.groups, self._positions, strict=True)
            found = self.scatter([stream.log.next_at(column.name, positions) for (stream, *_), positions in at])
        return self._ragged(column.name, found) if column.name in self.schema.ragged else found

    def _step(self, column: Column, step: int) -> Array:
        """Return one step of a column at the rows, ``(size, *shape)``."""
        out = self._empty((self.size, 1, *column.shape), column.dtype)
        self._fill(column, Target(out), step, step)
        return out[:, 0]

    def _fill(self, column: Column, out: Target, first_step: int, last_step: int) -> None:
        """Fill in steps of a column at the rows, as :func:`.observations.fill` does."""
        observations.fill(self.reads, self._where, column.name, out, self.ids, self.place, first_step, last_step)

    def _is_held(self, name: str) -> bool:
        if self._has_gathered:  # no loop: each column asks, of each batch
            return name in self._streams[0].log.held
        return all(name in stream.log.held for stream, *_ in self.groups)

    def full(self, value: float, dtype: DTypeLike) -> Array:
        """Return one value at the places of the rows, ``(size,)``."""
        out = np.zeros(self.size, dtype) if self._partial else np.empty(self.size, dtype)
        if self._partial:
            out[self.place] = value
        else:
            out.fill(value)  # takes a fraction of the time of `np.full`
        return out

    def scatter(self, values: Sequence[Array]) -> Array:
        """Return the values of all groups in one array, each at its place."""
        if len(values) == 1 and not self._partial:
            return values[0]
        out = np.zeros((self.size, *values[0].shape[1:]), values[0].dtype)
        for (_, place, _, _), value in zip(self.groups, values, strict=True):
            out[place] = value
        return out

    def _empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return self._padded(self.reads.empty(shape, dtype))

    def _padded(self, out: Array) -> Array:
        """Return an array with zeros at the places without a row."""
        if self._partial:
            absent = np.ones(self.size, bool)
            for _, place, _, _ in self.groups:
                absent[place] = False
            out[absent] = 0
        return out

    def _layout(self, frames: Array, stack: Stack) -> Array:
        """Return ``(size, frames, *frame_shape)`` in the layout of the observations that were given."""
        if stack.frames == 1:
            return frames[:, 0]
        if stack.axis is None or (stack.axis == 0 and not stack.channels):
            return frames
        if stack.axis == 0:
            return frames.reshape(len(frames), stack.frames * frames.shape[2], *frames.shape[3:])
        if not stack.channels:
            return np.moveaxis(frames, 1, -1)
        # Frames and channels are not neighbours in memory, so this is a copy, made once the frames are there.
        moved = np.moveaxis(frames, 1, -2)
        out = np.empty((*moved.shape[:-2], moved.shape[-2] * moved.shape[-1]), moved.dtype)
        self.reads.then(functools.partial(np.copyto, out.reshape(moved.shape), moved))
        return out
