"""From rows to arrays: the transitions of which a batch is made, whatever its view.

Resident columns are copied now, with ``engine.lock`` held. Large ones are left to :class:`~.reads.Reads`, which reads
and decodes them without the lock.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike

from diskreplay.checks import Array
from diskreplay.index.log import place_of
from diskreplay.index.rewards import returns, rewards
from diskreplay.reading import decoding, observations, plain, ragged_reads
from diskreplay.reading.gather import Requests
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.resident import NEXT
from diskreplay.reading.target import Target
from diskreplay.schema.columns import KNOWN, LATER, RECORDED, REWARD, Column, Schema, Stack
from diskreplay.schema.ids import Ids, pack, stream_of
from diskreplay.schema.ragged import form_of

Group = tuple[OpenStream, Ids, Ids, Ids]
"""A stream, and the samples from it: their places in the batch, their rows, and their environments."""


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
        tables = self.reads.tables
        self._tables = tables if tables is not None and tables.streams is streams and len(ids) else None
        self._drawn_streams: Sequence[int] | None = None
        self._partial = self.size > len(ids)
        self._gathered: dict[str, Array] = {}
        """The columns that are gathered and not yet returned: a returned array belongs to the caller."""
        self._has_gathered = False

    @functools.cached_property
    def groups(self) -> list[Group]:
        """The samples, grouped by stream."""
        return _by_stream(self._streams, self.ids, self.place)

    @property
    def _drawn(self) -> Sequence[int]:
        if self._drawn_streams is None:  # `functools.cached_property` takes a lock, which costs as much as the rest
            assert self._tables is not None
            self._drawn_streams = self._tables.drawn(self.ids)
        return self._drawn_streams

    def gather(self) -> None:
        """Copy the columns in RAM that transitions of one step show, in one call, if that is faster."""
        tables = self._tables
        if tables is None or "diskreplay.index.jit" not in sys.modules:
            return
        found = tables.resident.gather(
            tables.logs.facts, self._drawn, self.ids, self.place, self.size, partial=self._partial
        )
        if found is not None:
            self._gathered, self._has_gathered = found, True

    @functools.cached_property
    def _positions(self) -> list[Ids]:
        return [stream.log.positions(rows, envs) for stream, _, rows, envs in self.groups]

    def values(self, column: Column) -> Array:
        """Return a column's values ``(size, *shape)`` at the rows themselves, of a ragged one in its form."""
        if self.schema.ragged and column.name in self.schema.ragged:
            return self._ragged(column.name, self.resident(column.name))
        if self._is_held(column.name):
            return self.resident(column.name)
        out = self._empty((self.size, 1, *column.shape), column.dtype)
        if not self._read_plainly(column.name, Target(out)):
            for stream, place, rows, envs in self.groups:
                requests = Requests(place, envs, rows, rows, rows)
                self.reads.fetch(stream.disk.rows[column.name], requests, Target(out), stream.cache)
        return out[:, 0]

    def _ragged(self, name: str, spans: Array, last_rows: Sequence[Ids] | None = None) -> Array:
        """Return the items of spans ``(size, 2)`` in the form that the batch has them in: of video, frames.

        Any other form is no single array. ``last_rows`` are those that have the spans, by default the rows.
        """
        column, form = self.schema.ragged[name], form_of(self.reads.forms, name)
        if column.video is not None and form != "lists":
            at = zip(self.groups, self._lasts(last_rows), strict=True)
            return decoding.read(self.reads, column, spans, [(stream, place, rows) for (stream, place, *_), rows in at])
        streams = [(stream, place) for stream, place, _, _ in self.groups]
        found: Any = ragged_reads.read(self.reads, column, spans, streams, form)
        return cast(Array, found)

    def _read_plainly(self, name: str, out: Target) -> bool:
        """Have compiled code read a column's values at the rows; return False, with nothing done, if it cannot."""
        if self._tables is None:
            return False
        short = plain.fill(self.reads, self._tables, self._drawn, name, out, self.ids, self.place, 0, 0)
        return short is not None

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

    def returns(self, n_step: int, gamma: float) -> list[tuple[Array, Ids, Array]]:
        """Return for each group what :func:`~diskreplay.index.rewards.returns` does."""
        name = self.reads.reward
        return [returns(stream.log, rows, envs, n_step, gamma, name) for stream, _, rows, envs in self.groups]

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
                requests = Requests(here, np.zeros_like(first), first, first + (size - 1), first)
                self.reads.fetch(stream.disk.logs[LATER], requests, Target(out), stream.cache)
        return values

    def each(self, function: Callable[[OpenStream, Ids, Ids], Array]) -> Array:
        """Call a function with each stream, its rows and environments, and return the results, ``(size, ...)``."""
        return self.scatter([function(stream, rows, envs) for stream, _, rows, envs in self.groups])

    def observe(self, leaf: int, last_rows: Sequence[Ids] | None = None) -> tuple[Array, Array]:
        """Return observations of a leaf at the rows, and next observations at ``last_rows``, by default the rows.

        Frames that two stacks have in common are read once. The arrays share no memory.
        """
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf]
        frames = stack.frames
        if self.schema.ragged and column.name in self.schema.ragged:
            return self.current(leaf), self.observe_next(leaf, last_rows)
        if last_rows is None:
            following = self._gathered.pop(NEXT + column.name, None)
            if following is not None:
                return self.resident(column.name), following
        if self._in_ram(leaf):
            return self.resident(column.name), self._resident_next(column.name, last_rows)
        if last_rows is not None or self._has_odd_stacks(stack):
            return self.current(leaf), self.observe_next(leaf, self._lasts(last_rows))
        shape = (self.size, frames, *column.shape)
        if stack.axis == -1 and stack.channels:  # this layout is copied in any case, from one array for both
            block = self._empty((self.size, frames + 1, *column.shape), column.dtype)
            out, obs, following = Target(block), block[:, :frames], block[:, 1:]
        else:
            obs, following = self._empty(shape, column.dtype), self._empty(shape, column.dtype)
            out = Target(obs, following)
        self._fill(leaf, out, 1 - frames, 1)
        return self._layout(obs, stack), self._layout(following, stack)

    def current(self, leaf: int) -> Array:
        """Return observations of a leaf at the rows."""
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf]
        if self.schema.ragged and column.name in self.schema.ragged:
            return self._ragged(column.name, self.resident(column.name))
        if self._in_ram(leaf):
            return self.resident(column.name)
        out = self._empty((self.size, stack.frames, *column.shape), column.dtype)
        self._fill(leaf, Target(out), 1 - stack.frames, 0)
        return self._layout(out, stack)

    def observe_next(self, leaf: int, last_rows: Sequence[Ids] | None) -> Array:
        """Return next observations of a leaf at ``last_rows``; if None, for a ragged leaf, at the rows themselves."""
        column, stack = self.schema.obs_columns[leaf], self.schema.stacks[leaf]
        if self.schema.ragged and column.name in self.schema.ragged:
            spans = self._gathered.pop(NEXT + column.name, None) if last_rows is None else None
            if spans is None:
                spans = self._resident_next(column.name, last_rows)
            return self._ragged(column.name, spans, last_rows)
        last_rows = self._lasts(last_rows)
        if self._in_ram(leaf):
            return self._resident_next(column.name, last_rows)
        out = self._empty((self.size, stack.frames, *column.shape), column.dtype)
        if self._has_odd_stacks(stack, last_rows):
            for (stream, place, _, envs), last in zip(self.groups, last_rows, strict=True):
                observations.fill_next(self.reads, stream.sources[leaf], Target(out), place, last, envs)
        else:
            self._fill(leaf, Target(out), 2 - stack.frames, 1, last_rows)
        return self._layout(out, stack)

    def frames(self, leaf: int, step: int) -> Array:
        """Return single frames of a leaf, ``(size, *frame_shape)``: the rows' (step 0), or their next ones (1)."""
        column = self.schema.obs_columns[leaf]
        if self.schema.ragged and column.name in self.schema.ragged:
            return self.observe_next(leaf, None) if step else self.current(leaf)
        out = self._empty((self.size, 1, *column.shape), column.dtype)
        self._fill(leaf, Target(out), step, step)
        return out[:, 0]

    def newest_frames(self, leaf: int) -> tuple[Array, Array]:
        """Return single frames of a leaf, ``(size, *frame_shape)``: the rows' and their next ones, each read once."""
        column = self.schema.obs_columns[leaf]
        if column.name in self.schema.ragged or self.schema.stacks[leaf].frames == 1:
            return self.observe(leaf)
        obs, following = (self._empty((self.size, 1, *column.shape), column.dtype) for _ in range(2))
        self._fill(leaf, Target(obs, following), 0, 1)
        return obs[:, 0], following[:, 0]

    def _fill(
        self, leaf: int, out: Target, first_step: int, last_step: int, last_rows: Sequence[Ids] | None = None
    ) -> None:
        """Fill in steps of a leaf's frames, at the rows or at ``last_rows``, as :func:`.observations.fill` does."""
        name = self.schema.obs_columns[leaf].name
        if self._tables is not None and not self._is_held(name):
            ids, place = self._ids_of(last_rows)
            short = plain.fill(self.reads, self._tables, self._drawn, name, out, ids, place, first_step, last_step)
            if short is not None:
                if short.shape[1]:
                    self._pad(leaf, out, -first_step, ids[short[0]], place[short[0]], short[1])
                return
        for (stream, at, _, envs), rows in zip(self.groups, self._lasts(last_rows), strict=True):
            observations.fill(self.reads, stream.sources[leaf], out, at, rows, envs, first_step, last_step)

    def _pad(self, leaf: int, out: Target, older: int, ids: Ids, place: Ids, depth: Ids) -> None:
        """Fill in the steps before the episodes of rows that have only ``depth`` older steps instead of ``older``."""
        for stream, which, rows, envs in _by_stream(self._streams, ids, np.arange(len(ids))):
            observations.pad(self.reads, stream.sources[leaf], out, place[which], rows, envs, depth[which], older)

    def _lasts(self, last_rows: Sequence[Ids] | None) -> Sequence[Ids]:
        return [rows for _, _, rows, _ in self.groups] if last_rows is None else last_rows

    def _ids_of(self, last_rows: Sequence[Ids] | None) -> tuple[Ids, Ids]:
        if last_rows is None:
            return self.ids, self.place
        at = zip(self.groups, last_rows, strict=True)
        ids = [pack(stream.log.stream, last, envs, stream.log.num_envs) for (stream, _, _, envs), last in at]
        return np.concatenate(ids), np.concatenate([place for _, place, _, _ in self.groups])

    def _resident_next(self, name: str, last_rows: Sequence[Ids] | None) -> Array:
        positions = self._positions
        if last_rows is not None:
            at = zip(self.groups, last_rows, strict=True)
            positions = [stream.log.positions(last, envs) for (stream, _, _, envs), last in at]
        found = zip(self.groups, positions, strict=True)
        return self.scatter([stream.log.next_at(name, here) for (stream, *_), here in found])

    def _in_ram(self, leaf: int) -> bool:
        return self._is_held(self.schema.obs_columns[leaf].name) and self.schema.stacks[leaf].frames == 1

    def _is_held(self, name: str) -> bool:
        if self._has_gathered and self._tables is not None:  # no loop: each column asks, of each batch
            return name in self._tables.resident.held
        return all(name in stream.log.held for stream, *_ in self.groups)

    def _has_odd_stacks(self, stack: Stack, last_rows: Sequence[Ids] | None = None) -> bool:
        """Tell whether one of the next stacks does not follow from its stack by one new frame."""
        if stack.axis is None:
            return False
        if self._tables is not None and not any([stream.log.next_older_patches for stream in self._streams]):
            return False
        return any(
            (row, env) in stream.log.next_older_patches
            for (stream, _, _, envs), last in zip(self.groups, self._lasts(last_rows), strict=True)
            if stream.log.next_older_patches
            for row, env in zip(last.tolist(), envs.tolist(), strict=True)
        )

    def later(self, name: str, rows: Sequence[Ids]) -> Array:
        """Return a resident column's values at other rows of the same environments."""
        taken = [stream.log.take(name, at, envs) for (stream, _, _, envs), at in zip(self.groups, rows, strict=True)]
        return self.scatter(taken)

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
        out = self.reads.empty(shape, dtype)
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
            return frames.reshape(len(frames), -1, *frames.shape[3:])
        if not stack.channels:
            return np.moveaxis(frames, 1, -1)
        # Frames and channels are not neighbours in memory, so this is a copy, made once the frames are there.
        moved = np.moveaxis(frames, 1, -2)
        out = np.empty((*moved.shape[:-2], moved.shape[-2] * moved.shape[-1]), moved.dtype)
        self.reads.then(functools.partial(np.copyto, out.reshape(moved.shape), moved))
        return out


def _by_stream(streams: Sequence[OpenStream], ids: Ids, place: Ids) -> list[Group]:
    if len(streams) == 1 or not len(ids):
        return [(streams[0], place, *streams[0].log.locate(ids))]
    groups = []
    numbers = stream_of(ids)
    drawn = set(numbers.tolist())  # a batch has rows of few of a thousand streams
    for stream in streams:
        if stream.log.stream in drawn:
            here = np.flatnonzero(numbers == stream.log.stream)
            groups.append((stream, place[here], *stream.log.locate(ids[here])))
    return groups
