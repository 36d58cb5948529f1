"""From ids to a batch, in two halves: what needs the buffer's lock, and what reads and decodes without it."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.buffers import blocks
from diskreplay.buffers.batch import Batch
from diskreplay.errors import CorruptionError
from diskreplay.index.log import STREAM_SHIFT, StreamLog
from diskreplay.schema import TERMINATED, TRUNCATED, Column, Schema, Stack
from diskreplay.storage import gather
from diskreplay.storage.cache import ChunkCache
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.gather import Rest
from diskreplay.storage.stream import StreamReader, StreamWriter
from diskreplay.views import observations
from diskreplay.views.observations import ObsSource
from diskreplay.views.transition import Transition

Ids = NDArray[np.int64]
Array = NDArray[Any]


class StreamPart:
    """One stream as the buffer sees it: rows on disk, index in RAM."""

    def __init__(self, schema: Schema, stream: StreamReader | StreamWriter, cache: ChunkCache) -> None:
        commit = stream.commit_record
        rows = max(1, commit.capacity // commit.num_envs)
        self.schema = schema
        self.stream = stream
        self.cache = cache
        self.log = StreamLog(commit.stream, schema.columns, schema.patch_columns, commit.num_envs, rows, schema.context)
        self.sources = [
            ObsSource(c.name, stack, self.log, stream.rows[c.name], stream.patches[c.name], cache)
            for c, stack in zip(schema.obs_columns, schema.stacks, strict=True)
        ]
        self.log.restart(commit.begin, commit.patch_begin)
        self.catch_up()

    def catch_up(self) -> None:
        """Takes what is committed and not yet in RAM into the index."""
        commit, log = self.stream.commit_record, self.log
        if max(0, commit.begin - log.context) > log.end:
            log.restart(commit.begin, commit.patch_begin)
        if commit.end > log.end:
            values = {name: self.stream.rows[name].read_rows(log.end, commit.end) for name in log.rings}
            log.extend(values, commit.begin)
        if commit.patch_end > log.patch_end:
            span = log.patch_end, commit.patch_end
            log.add_patches({name: self.stream.patches[name].read_rows(*span)[:, 0] for name in log.patches})
        log.slide(commit.begin)
        log.drop_patches()
        wrong = log.inconsistency()
        if wrong:
            raise CorruptionError(
                f"stream {self.stream.path!r}: {wrong}; run 'diskreplay verify'", stream=self.stream.name
            )

    def large_columns(self) -> list[ColumnReader]:
        """The columns that are not mirrored in RAM."""
        return [column for name, column in self.stream.rows.items() if name not in self.log.rings]

    def pending(self) -> list[Array] | None:
        """The newest next stacks, ``(num_envs, frames, *shape)`` a leaf; None when there is no row."""
        log = self.log
        if log.end == log.floor:
            return None
        envs = np.arange(log.num_envs)
        rows = np.full(log.num_envs, log.end - 1)
        found = []
        for source in self.sources:
            frames = source.stack.frames
            out = np.empty((log.num_envs, frames, *source.rows.column.shape), source.rows.column.dtype)
            for step in observations.fill_next(source, out, envs, rows, envs):
                step()
            found.append(out)
        return found

    def with_cache(self, cache: ChunkCache) -> StreamPart:
        """The same stream, its chunks decoded into another cache."""
        other = copy.copy(self)
        other.cache = cache
        other.sources = [dataclasses.replace(source, cache=cache) for source in self.sources]
        return other

    def window_bytes(self) -> int:
        """Decoded bytes of the large columns in the window."""
        wide = sum(column.column.item_bytes for column in self.large_columns())
        return wide * (self.log.end - self.log.begin) * self.log.num_envs


@dataclasses.dataclass(frozen=True)
class Draft:
    """A batch whose arrays are not all filled yet."""

    batch: Batch
    rest: list[Rest]

    def finish(self) -> Batch:
        """Reads what is missing; needs no lock."""
        for step in self.rest:
            step()
        return self.batch


def draft(schema: Schema, parts: Sequence[StreamPart], view: Transition, ids: Ids, weight: Array) -> Draft:
    """The batch of transitions ``ids``, all of which are sampleable. Needs the lock."""
    groups = _by_stream(parts, ids)
    rest: list[Rest] = []
    size = len(ids)
    found = [_ends(part, rows, envs, view) for part, _, rows, envs in groups]
    last_rows = [ends[0] for ends in found]
    reward, terminated, truncated, discount = (
        _scatter(groups, [ends[which] for ends in found], size) for which in range(1, 5)
    )
    pairs = [_observe(schema, groups, last_rows, leaf, view.n_step, size, rest) for leaf in range(len(schema.stacks))]
    actions = [_values(groups, column, size, rest) for column in schema.action_columns]
    batch = Batch(
        obs=spaces.unflatten(schema.obs_tree, [obs for obs, _ in pairs]),
        action=spaces.unflatten(schema.action_tree, actions),
        reward=reward,
        next_obs=spaces.unflatten(schema.obs_tree, [following for _, following in pairs]),
        terminated=terminated,
        truncated=truncated,
        discount=discount,
        index=ids,
        weight=weight,
        extra={column.name: _values(groups, column, size, rest) for column in schema.extra_columns},
    )
    return Draft(batch, rest)


Group = tuple[StreamPart, Ids, Ids, Ids]
"""A stream, and the places in the batch, rows and environments of the samples from it."""


def _by_stream(parts: Sequence[StreamPart], ids: Ids) -> list[Group]:
    if len(parts) == 1:
        return [(parts[0], np.arange(len(ids)), *parts[0].log.locate(ids))]
    groups = []
    for part in parts:
        place = np.flatnonzero(ids >> STREAM_SHIFT == part.log.stream)
        if len(place):
            groups.append((part, place, *part.log.locate(ids[place])))
    return groups


def _ends(part: StreamPart, rows: Ids, envs: Ids, view: Transition) -> tuple[Ids, Array, Array, Array, Array]:
    """Last rows, returns, terminated, truncated and discounts of one stream's samples."""
    log = part.log
    total, last, scale = log.returns(rows, envs, view.n_step, view.gamma)
    terminated = log.take(TERMINATED, last, envs)
    discount = (scale * ~terminated).astype(np.float32)
    return last, total, terminated, log.take(TRUNCATED, last, envs), discount


def _scatter(groups: list[Group], values: list[Array], size: int) -> Array:
    """Values of the groups in the order of the batch."""
    if len(groups) == 1:
        return values[0]
    out = np.empty((size, *values[0].shape[1:]), values[0].dtype)
    for (_, place, _, _), value in zip(groups, values, strict=True):
        out[place] = value
    return out


def _values(groups: list[Group], column: Column, size: int, rest: list[Rest]) -> Array:
    """A column's values ``(B, *shape)`` at the samples' own rows."""
    if column.resident:
        taken = [part.log.take(column.name, rows, envs) for part, _, rows, envs in groups]
        return _scatter(groups, taken, size)
    out = np.empty((size, 1, *column.shape), column.dtype)
    for part, place, rows, envs in groups:
        requests = gather.Requests(place, envs, rows, rows, rows)
        rest += gather.fetch(part.stream.rows[column.name], requests, out, part.cache)
    return out[:, 0]


def _observe(
    schema: Schema, groups: list[Group], last_rows: list[Ids], leaf: int, n_step: int, size: int, rest: list[Rest]
) -> tuple[Array, Array]:
    """Observations and next observations of one leaf; views of one block where they overlap."""
    column, stack = schema.obs_columns[leaf], schema.stacks[leaf]
    frames = stack.frames
    odd = stack.axis is not None and any(
        (row, env) in part.log.next_older_patches
        for (part, _, _, envs), last in zip(groups, last_rows, strict=True)
        if part.log.next_older_patches
        for row, env in zip(last.tolist(), envs.tolist(), strict=True)
    )
    if n_step == 1 and not odd and not (column.resident and frames == 1):
        block = blocks.empty((size, frames + 1, *column.shape), column.dtype)
        for part, place, rows, envs in groups:
            rest += observations.fill(part.sources[leaf], block, place, rows, envs, 1 - frames, 1)
        return _layout(block[:, :frames], stack, rest), _layout(block[:, 1:], stack, rest)
    obs = blocks.empty((size, frames, *column.shape), column.dtype)
    following = blocks.empty(obs.shape, obs.dtype)
    for (part, place, rows, envs), last in zip(groups, last_rows, strict=True):
        source = part.sources[leaf]
        rest += observations.fill(source, obs, place, rows, envs, 1 - frames, 0)
        rest += observations.fill_next(source, following, place, last, envs)
    return _layout(obs, stack, rest), _layout(following, stack, rest)


def _layout(frames: Array, stack: Stack, rest: list[Rest]) -> Array:
    """``(B, frames, *frame_shape)`` in the layout of the observations that were given."""
    if stack.frames == 1:
        return frames[:, 0]
    if stack.axis is None or (stack.axis == 0 and not stack.channels):
        return frames
    if stack.axis == 0:
        return frames.reshape(len(frames), -1, *frames.shape[3:])
    if not stack.channels:
        return np.moveaxis(frames, 1, -1)
    # Frames and channels are no neighbours in memory: this copies, once the frames are there.
    moved = np.moveaxis(frames, 1, -2)
    out = np.empty((*moved.shape[:-2], moved.shape[-2] * moved.shape[-1]), moved.dtype)
    rest.append(functools.partial(np.copyto, out.reshape(moved.shape), moved))
    return out
