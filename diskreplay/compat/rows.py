"""Which rows a store holds under another library's buffer: asked of the store each time, and counted nowhere else.

This module and :mod:`diskreplay.compat.draws` are what reaches into a buffer of this package.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.compat.arrays import DiskArray
from diskreplay.errors import EvictedError
from diskreplay.ids import Ids, pack, stream_of
from diskreplay.index.log import StreamLog
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.reading.stream import OpenStream
from diskreplay.schema import REWARD, TERMINATED, VALID
from diskreplay.spaces import unflatten
from diskreplay.views.transition import Transition

Array = NDArray[Any]

SLOT = "slot"
"""The column of rows that know their place in the other library's ring."""


class Window(NamedTuple):
    """Rows ``[begin, end)``."""

    begin: int
    end: int


def written(buffer: StoredBuffer) -> StreamLog:
    """The log that a buffer writes; needs its lock. ClosedError where the buffer is closed."""
    return written_stream(buffer).log


def written_stream(buffer: StoredBuffer) -> OpenStream:
    """The stream that a buffer writes; needs its lock. ClosedError where the buffer is closed."""
    buffer._check_open()
    part = buffer._streams.written
    assert part is not None, "compat buffers write their store"
    return part


def window(buffer: StoredBuffer) -> Window:
    """The rows that are held; ClosedError where the buffer is closed."""
    with buffer._lock:
        log = written(buffer)
        return Window(log.begin, log.end)


def transitions(buffer: StoredBuffer) -> int:
    """How many are held; ClosedError where the buffer is closed."""
    with buffer._lock:
        return len(written(buffer))


def invalid_rows(buffer: StoredBuffer) -> Ids:
    """The rows of a buffer of one environment that are no transition, ascending."""
    with buffer._lock:
        log = written(buffer)
        if not log.invalid:
            return np.empty(0, np.int64)
        return log.begin + np.flatnonzero(~log.span(VALID, log.begin, log.end)[:, 0])


def column(buffer: StoredBuffer, name: str, start: int, stop: int) -> Array:
    """A column of rows ``[start, stop)``, ``(rows, num_envs, *shape)``: from disk where it is too large for RAM."""
    with buffer._lock:
        log, envs = written(buffer), buffer.num_envs
        if name in log.resident:
            return log.span(name, start, stop)
        samples = Samples(buffer.schema, buffer._streams.all, np.arange(start * envs, stop * envs))
        values = samples.values(next(column for column in buffer.schema.columns if column.name == name))
    samples.reads.finish()
    return values.reshape(stop - start, envs, *values.shape[1:])


def ignore_resets(buffer: StoredBuffer) -> None:
    """Takes it for meant that the observation after a reset is the ``next_obs`` of an end: nothing is said of it."""
    with buffer._lock:
        buffer._check_open()
        buffer._appender.watch.ignore_resets()


def ids_of(buffer: StoredBuffer, rows: Ids, envs: Ids | int) -> Ids:
    """Of rows and environments, as ``get`` takes them."""
    found: Ids = np.asarray(rows) * buffer.num_envs + envs
    return found


def ids_of_all(buffer: StoredBuffer, rows: Ids) -> Ids:
    """Of rows and all environments, row by row."""
    return ids_of(buffer, rows[:, None], np.arange(buffer.num_envs)).ravel()


def read_once(buffer: SampledBuffer[Any], ids: Ids) -> Any:
    """The batch that ids name, each read once however often it is named."""
    wanted, where = np.unique(ids, return_inverse=True)
    batch = buffer.get(wanted)
    return batch if len(wanted) == len(ids) and (wanted == ids).all() else batch.map(lambda array: array[where])


def single_steps(buffer: SampledBuffer[Any], ids: Ids) -> Any:
    """The batch of one step each that ids name, whatever the buffer's view makes of them.

    Raises EvictedError where one has left the window.
    """
    view = Transition()

    def steps(reads: Reads) -> Any:
        buffer._streams.check(view, ids)
        return view.draft(buffer.schema, buffer._streams.all, ids, np.ones(len(ids), np.float32), None, reads)

    return buffer._beside_writers(steps)


def read_part(buffer: SampledBuffer[Any], ids: Ids, draft: Callable[[Samples], Array]) -> Array:
    """What ``draft`` makes of the rows that ids name: for a few columns, where ``get`` would read all.

    Raises EvictedError where one has left the window.
    """

    def part(reads: Reads) -> Any:
        buffer._streams.check(buffer.view, ids)
        return draft(Samples(buffer.schema, buffer._streams.all, ids, reads=reads))

    found: Any = buffer._beside_writers(part)
    return cast(Array, found)


def read_pairs(
    buffers: Sequence[SampledBuffer[Any]], rows: Sequence[Ids], places: Sequence[Ids], size: int
) -> tuple[Any, Any]:
    """``obs`` and ``next_obs`` of rows of several buffers, ``(size, *shape)`` a leaf, in one read.

    Args:
        buffers: at least one, of one environment each, with the same spaces; of rows that are all transitions.
        rows: of each buffer, ``(n,)``.
        places: where each of them stands, ``(n,)``; elsewhere are zeros.
        size: of the arrays.

    Raises EvictedError where a row has left the window, ClosedError where a buffer is closed.
    """
    reads = Reads()
    with contextlib.ExitStack() as locks:
        for buffer in buffers:
            locks.enter_context(buffer._lock)
        streams = [written_stream(buffer) for buffer in buffers]
        for stream, wanted in zip(streams, rows, strict=True):
            if len(wanted) and wanted.min() < stream.log.begin:
                raise EvictedError(f"row {wanted.min()} has left the window, which begins at {stream.log.begin}")
        schema = buffers[0].schema
        samples = Samples(schema, streams[:1], np.empty(0, np.int64), size=size, reads=reads)
        samples.groups = [
            (stream, place, wanted, np.zeros(len(wanted), np.int64))
            for stream, wanted, place in zip(streams, rows, places, strict=True)
        ]
        pairs = [samples.observe(leaf, rows) for leaf in range(len(schema.stacks))]
    reads.finish()
    obs, following = zip(*pairs, strict=True)
    return unflatten(schema.obs_tree, list(obs)), unflatten(schema.obs_tree, list(following))


def by_episodes(buffer: SampledBuffer[Any]) -> tuple[Ids, Ids]:
    """The ids of what the view shows, episode after episode and in the order of time; and each one's episode."""
    with buffer._lock:
        items, listed = buffer.items(), buffer.episodes
        envs = {stream.log.stream: stream.log.num_envs for stream in buffer._streams}
    ids, numbers = [items[:0]], [items[:0]]
    for number, episode in enumerate(listed):
        rows = np.arange(episode.start, episode.stop)
        ids.append(pack(episode.stream, rows, episode.env, envs[episode.stream]))
        numbers.append(np.full(len(rows), number))
    joined = np.concatenate(ids)
    shown = np.isin(joined, items)
    return joined[shown], np.concatenate(numbers)[shown]


class Place(NamedTuple):
    """Where a transition stands in its episode, as far as that is in the window.

    Attributes:
        first: id of the episode's first step.
        stride: from the id of one step to that of the next.
        step: of the transition, 0 for the first one.
        steps: of the episode.
        terminated: whether its last step is.
        newest: whether no step of its environment came after it.
        facts: what is known of the episode, of one that was not terminated.
    """

    first: int
    stride: int
    step: int
    steps: int
    terminated: bool
    newest: bool
    facts: Mapping[str, Any]

    def ids(self, steps: Any) -> Any:
        """Of steps of the episode."""
        return self.first + self.stride * steps


def places(buffer: SampledBuffer[Any], ids: Ids, before: int = 0) -> list[tuple[Place, Array]]:
    """Where transitions stand, and their episode's rewards, from at most ``before`` steps ahead of each to its end.

    Raises EvictedError where one has left the window.
    """
    found: list[Any] = [None] * len(ids)
    with buffer._lock:
        buffer._check_open()
        buffer._streams.check(buffer.view, ids)
        numbers = stream_of(ids)
        for stream in buffer._streams.all:
            log, spans = stream.log, stream.spans()
            here = np.flatnonzero(numbers == log.stream)
            rows, envs = log.locate(ids[here])
            first, stop = spans.first(rows, envs), spans.stop(rows, envs)
            ended = log.take(TERMINATED, stop - 1, envs)
            standing = map(
                Place, pack(log.stream, first, envs, log.num_envs).tolist(), itertools.repeat(log.num_envs),
                (rows - first).tolist(), (stop - first).tolist(), ended.tolist(), (stop == log.end).tolist(),
                _facts(stream, first, envs, ended),
            )  # fmt: skip
            spans_of_rewards = np.maximum(first, rows - before).tolist(), stop.tolist(), envs.tolist()
            for at, place, start, end, env in zip(here.tolist(), standing, *spans_of_rewards, strict=True):
                found[at] = place, log.span(REWARD, start, end)[:, env]
    return found


def _facts(stream: OpenStream, first: Ids, envs: Ids, terminated: Array) -> list[Mapping[str, Any]]:
    """Of the episodes that have these first rows in the window; none of those that were terminated."""
    if not len(stream.facts):
        return [{}] * len(first)
    noted = (
        None if ended else stream.facts.noted(row, env, row > stream.log.begin)
        for row, env, ended in zip(first.tolist(), envs.tolist(), terminated.tolist(), strict=True)
    )
    return [{} if one is None else one.facts for one in noted]


def episode_places(buffer: SampledBuffer[Any]) -> list[Place]:
    """Of the first transition of each episode, in the order of :func:`by_episodes`."""
    with buffer._lock:
        buffer._check_open()
        logs = {stream.log.stream: stream.log for stream in buffer._streams.all}
        listed = buffer.episodes
        return [
            Place(
                int(pack(e.stream, e.start, e.env, logs[e.stream].num_envs)), logs[e.stream].num_envs, 0, e.length,
                e.terminated, e.stop == logs[e.stream].end, {} if e.terminated else e.facts,
            )
            for e in listed
        ]  # fmt: skip


# Rings of slots, which are column SLOT of the rows


def ring(buffer: StoredBuffer) -> tuple[int, int]:
    """The slot that is written next, and how many are taken: of a ring as long as the window."""
    with buffer._lock:
        log = written(buffer)
        if log.begin == log.end:
            return 0, 0
        newest = column(buffer, SLOT, log.end - 1, log.end)[0, 0]
        return (int(newest) + 1) % log.rows, log.end - log.begin


def rows_at(buffer: StoredBuffer, slots: Ids, ptr: int, n_size: int) -> Ids:
    """The newest rows in slots of a ring of ``n_size`` whose next one is ``ptr``."""
    rows: Ids = window(buffer).end - 1 - (ptr - 1 - slots) % n_size
    return rows


def ring_array(
    buffer: SampledBuffer[Any], ring: Callable[[], tuple[int, int]], lead: tuple[int, int], shape: tuple[int, ...],
    dtype: DTypeLike, pick: Callable[[Any], Array], fill: float = 0,
) -> DiskArray:  # fmt: skip
    """A field of the transitions, ``(n_envs, n_size, *shape)``, read when it is indexed.

    Args:
        buffer: whose.
        ring: gives the slot that is written next, and how many are taken.
        lead: ``n_envs, n_size``.
        shape, dtype: of an entry.
        pick: the field of a batch.
        fill: what stands in slots that are not taken.
    """
    n_size = lead[1]

    def read(places: Ids) -> Array:
        envs, slots = np.divmod(places, n_size)
        out = np.full((len(places), *shape), fill, dtype)
        ptr, size = ring()
        taken = slots < size
        if taken.any():
            ids = ids_of(buffer, rows_at(buffer, slots[taken], ptr, n_size), envs[taken])
            out[taken] = pick(buffer.get(ids)).reshape(-1, *shape)
        return out

    return DiskArray(lead, shape, dtype, read)


# Rings whose positions follow from the rows


class Positions:
    """Positions of a ring that is as long as the window: what other libraries call ``pos`` and ``full``.

    An empty ring begins at position 0. Of one that was just opened, and is not full, the oldest row is at 0. In a full
    one a row's position is the rest of its number by the size: as before, if the ring was never emptied.

    Args:
        buffer: whose rows.
        pos: of the next row, where the ring of a buffer that was opened is full; found in the rows if None.
    """

    def __init__(self, buffer: StoredBuffer, pos: int | None = None) -> None:
        self._buffer = buffer
        with buffer._lock:
            self._size = written(buffer).rows
        begin, end = window(buffer)
        full = end - begin == self._size
        self._origin = begin if not full else 0 if pos is None else end - pos
        """A row of position 0, or where one would be."""

    def look(self) -> tuple[Window, int, bool]:
        """The rows, the position of the next one, and whether all positions are taken.

        Call it before a row is added: only here is it noticed that the window was emptied.
        """
        begin, end = window(self._buffer)
        if begin == end:
            self._origin = end
        return Window(begin, end), (end - self._origin) % self._size, end - begin == self._size

    @property
    def pos(self) -> int:
        """The position of the next row."""
        return self.look()[1]

    @property
    def full(self) -> bool:
        """Whether all positions are taken."""
        return self.look()[2]

    def rows(self, positions: Ids) -> tuple[Ids, Ids]:
        """The newest rows at positions, and which of them are held: places among the positions."""
        (begin, end), pos, _ = self.look()
        rows = end - 1 - (pos - 1 - positions) % self._size
        return rows, np.flatnonzero(rows >= begin)


def position_array(
    buffer: Callable[[], SampledBuffer[Any]], positions: Callable[[], Positions | None], shape: tuple[int, ...],
    dtype: DTypeLike, pick: Callable[[Any], Array], make: Callable[..., DiskArray] = DiskArray,
) -> DiskArray:  # fmt: skip
    """A field of single steps of all environments by position, ``shape``; zeros where there is none.

    Args:
        buffer: gives the one whose; asked only where there are positions.
        positions: gives those of its rows; None where there is no store yet.
        shape: ``(size, ...)`` of all entries.
        dtype: of the entries.
        pick: the field of a batch of single steps.
        make: makes the array.
    """

    def read(places: Ids) -> Array:
        values = np.zeros((len(places), *shape[1:]), dtype)
        known = positions()
        if known is None:
            return values
        rows, held = known.rows(places)
        if len(held):
            found = buffer()
            values[held] = pick(single_steps(found, ids_of_all(found, rows[held]))).reshape(len(held), *shape[1:])
        return values

    return make(shape[:1], shape[1:], dtype, read)
