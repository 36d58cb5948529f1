"""The rows that a store holds under another library's buffer, asked of the store each time and counted nowhere else.

This module and :mod:`diskreplay.compat.sampler_draws` are what reaches into a buffer of this package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import Array
from diskreplay.errors import EvictedError
from diskreplay.reading.addresses import by_stream
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import REWARD, TERMINATED, VALID
from diskreplay.schema.ids import Ids, pack
from diskreplay.schema.spaces import unflatten
from diskreplay.views.transition import Transition
from diskreplay.views.transition import transitions as steps_of
from diskreplay.views.view import View

T = TypeVar("T")


class RowWindow(NamedTuple):
    """Rows ``[begin, end)``."""

    begin: int
    end: int


def written(buffer: StoredBuffer) -> OpenStream:
    """Return the stream that a buffer writes; raise ClosedError if the buffer is closed."""
    buffer.engine.check_open()
    part = buffer.engine.streams.written
    assert part is not None, "compat buffers write their store"
    return part


def window(buffer: StoredBuffer) -> RowWindow:
    """Return the rows that are held; raise ClosedError if the buffer is closed.

    Takes no lock: while another thread adds, a row may be counted that has just left, never one too few.
    """
    engine = buffer.engine
    engine.check_open()
    log = engine.streams.written.log  # type: ignore[union-attr]  # as in written
    return RowWindow(log.begin, log.end)


def rows_of_window(buffer: StoredBuffer) -> int:
    """Return how many rows the window has room for; raise ClosedError if the buffer is closed."""
    with buffer.engine.lock:
        return written(buffer).log.rows


def transitions(buffer: StoredBuffer) -> int:
    """Return how many transitions are held; raise ClosedError if the buffer is closed."""
    with buffer.engine.lock:
        return len(written(buffer).log)


def invalid_rows(buffer: StoredBuffer) -> Ids:
    """Return the rows of a buffer of one environment that are no transition, ascending."""
    with buffer.engine.lock:
        log = written(buffer).log
        if not log.invalid:
            return np.empty(0, np.int64)
        return log.begin + np.flatnonzero(~log.span(VALID, log.begin, log.end)[:, 0])


def column(buffer: StoredBuffer, name: str, start: int, stop: int) -> Array:
    """Return a column of rows ``[start, stop)``, ``(rows, num_envs, *shape)``, from disk if it is too large for RAM."""
    with buffer.engine.lock:
        log, envs = written(buffer).log, buffer.num_envs
        if name in log.resident:
            return log.span(name, start, stop)
        ids = pack(log.stream, np.arange(start * envs, stop * envs), 0, 1)
        samples = Samples(buffer.schema, buffer.engine.streams.all, ids)
        values = samples.values(next(column for column in buffer.schema.columns if column.name == name))
    samples.reads.finish()
    return values.reshape(stop - start, envs, *values.shape[1:])


def ignore_resets(buffer: StoredBuffer) -> None:
    """Give no warning where the observation after a reset is given as the ``next_obs`` of an end: it is meant."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        buffer.engine.appender.watch.ignore_resets()


def ids_of(buffer: StoredBuffer, rows: Ids, envs: Ids | int) -> Ids:
    """Return the ids of rows and environments, as ``get`` takes them."""
    return np.asarray(rows) * buffer.num_envs + envs


def ids_of_all(buffer: StoredBuffer, rows: Ids) -> Ids:
    """Return the ids of rows in all environments, row by row."""
    return ids_of(buffer, rows[:, None], np.arange(buffer.num_envs)).ravel()


def single_steps(buffer: SampledBuffer[Any], ids: Ids) -> Any:
    """Return the batch of one step each that ids name, whatever the buffer's view makes of steps of one agent.

    Raises EvictedError where one has left the window.
    """
    if not isinstance(buffer, ReplayBuffer):
        return buffer.get(ids)
    view, ones = Transition(), np.ones(len(ids), np.float32)
    return read_part(buffer, ids, lambda samples: steps_of(samples, 1, view.gamma, ids, ones), view)


def read_part(buffer: SampledBuffer[Any], ids: Ids, draft: Callable[[Samples], T], view: View | None = None) -> T:
    """Return what ``draft`` makes of the rows that ids name: for a few columns, where ``get`` would read all.

    Raises EvictedError where one has left the window, as an item of ``view``, the buffer's if None.
    """

    def part(reads: Reads) -> T:
        buffer.engine.streams.check(view or buffer.view, ids)
        return draft(Samples(buffer.schema, buffer.engine.streams.all, ids, reads=reads))

    return buffer.engine.read(part)


def read_pairs(
    buffers: Sequence[SampledBuffer[Any]], rows: Sequence[Ids], places: Sequence[Ids], size: int
) -> tuple[Any, Any]:
    """Return ``obs`` and ``next_obs`` of rows of several buffers, ``(size, *shape)`` a leaf, in one read.

    Args:
        buffers: at least one, of one environment each, with the same spaces; of rows that are all transitions.
        rows: the rows of each buffer, ``(n,)``.
        places: the place of each row in the arrays, ``(n,)``; all other places are zeros.
        size: the size of the arrays.

    Raises EvictedError where a row has left the window, ClosedError where a buffer is closed.
    """
    reads = Reads()
    with contextlib.ExitStack() as locks:
        for buffer in buffers:
            locks.enter_context(buffer.engine.lock)
        streams = [written(buffer) for buffer in buffers]
        for stream, wanted in zip(streams, rows, strict=True):
            if len(wanted) and wanted.min() < stream.log.begin:
                raise EvictedError(f"row {wanted.min()} has left the window, which begins at {stream.log.begin}")
        schema = buffers[0].schema
        parts = []
        for stream, wanted in zip(streams, rows, strict=True):
            samples = Samples(schema, [stream], pack(stream.log.stream, wanted, 0, 1), reads=reads)
            parts.append([array for leaf in range(len(schema.stacks)) for array in samples.observe(leaf)])
    reads.finish()
    arrays = [np.zeros((size, *array.shape[1:]), array.dtype) for array in parts[0]]
    for place, part in zip(places, parts, strict=True):
        for array, values in zip(arrays, part, strict=True):
            array[place] = values
    return unflatten(schema.obs_tree, arrays[::2]), unflatten(schema.obs_tree, arrays[1::2])


def by_episodes(buffer: SampledBuffer[Any]) -> tuple[Ids, Ids]:
    """Return the ids of what the view shows, episode by episode and in the order of time, and each one's episode."""
    with buffer.engine.lock:
        items, listed = buffer.items(), buffer.episodes
        envs = {stream.log.stream: stream.log.num_envs for stream in buffer.engine.streams}
    ids, numbers = [items[:0]], [items[:0]]
    for number, episode in enumerate(listed):
        rows = np.arange(episode.start, episode.stop)
        ids.append(pack(episode.stream, rows, episode.env, envs[episode.stream]))
        numbers.append(np.full(len(rows), number))
    joined = np.concatenate(ids)
    shown = np.isin(joined, items)
    return joined[shown], np.concatenate(numbers)[shown]


class EpisodePlace(NamedTuple):
    """The place of a transition in its episode, as far as that is in the window; of several, arrays ``(n,)``.

    Attributes:
        first: id of the episode's first step.
        stride: the distance from the id of one step to that of the next.
        step: the number of the transition's step, 0 for the first one.
        steps: the number of steps in the episode.
        terminated: True if its last step is.
        newest: True if no step of its environment came after it.
        facts: the facts of the episode, if it was not terminated.
    """

    first: Any
    stride: Any
    step: Any
    steps: Any
    terminated: Any
    newest: Any
    facts: Any

    def ids(self, steps: Any) -> Any:
        """Return the ids of steps of the episode; of several, of steps that lead with them."""
        return (self.first + self.stride * np.transpose(steps)).T

    def one(self, at: int) -> EpisodePlace:
        """Return one of several."""
        return EpisodePlace._make([*(values[at].item() for values in self[:-1]), self.facts[at]])


def places(buffer: SampledBuffer[Any], ids: Ids) -> EpisodePlace:
    """Return where transitions ``(n,)`` stand; raise EvictedError where one has left the window."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        buffer.engine.streams.check(buffer.view, ids)
        return _places(buffer, ids)


def _places(buffer: SampledBuffer[Any], ids: Ids) -> EpisodePlace:
    kinds = np.int64, np.int64, np.int64, np.int64, bool, bool, object
    found = EpisodePlace._make(np.empty(len(ids), kind) for kind in kinds)
    for stream, here, rows, envs in by_stream(buffer.engine.streams.all, ids, np.arange(len(ids))):
        log, spans = stream.log, stream.spans()
        first, stop = spans.first(rows, envs), spans.stop(rows, envs)
        ended, firsts = log.take(TERMINATED, stop - 1, envs), pack(log.stream, first, envs, log.num_envs)
        facts = _facts(stream, first, envs, ended)
        of_stream = firsts, log.num_envs, rows - first, stop - first, ended, stop == log.end, facts
        for whole, part in zip(found, of_stream, strict=True):
            whole[here] = part
    return found


def reward_spans(buffer: SampledBuffer[Any], where: EpisodePlace, steps: Ids) -> list[Array]:
    """Return the rewards of each place's episode from a step ``(n,)`` on; the caller holds the engine's lock."""
    found: list[Any] = [None] * len(steps)
    for stream, here, rows, envs in by_stream(buffer.engine.streams.all, where.ids(steps), np.arange(len(steps))):
        span, stops = stream.log.table.span, rows + (where.steps - steps)[here]
        for at, row, stop, env in zip(*(array.tolist() for array in (here, rows, stops, envs)), strict=True):
            found[at] = span(REWARD, row, stop)[:, env]
    return found


def _facts(stream: OpenStream, first: Ids, envs: Ids, terminated: Array) -> list[Mapping[str, Any]]:
    """Return the facts of the episodes with these first rows in the window, none for those that were terminated."""
    if not len(stream.facts):
        return [{}] * len(first)
    noted = (
        None if ended else stream.facts.noted(row, env, row > stream.log.begin)
        for row, env, ended in zip(first.tolist(), envs.tolist(), terminated.tolist(), strict=True)
    )
    return [{} if one is None else one.facts for one in noted]


def episode_places(buffer: SampledBuffer[Any]) -> list[EpisodePlace]:
    """Return the place of the first transition of each episode, in the order of :func:`by_episodes`."""
    with buffer.engine.lock:
        listed = buffer.episodes
        envs = {stream.log.stream: stream.log.num_envs for stream in buffer.engine.streams}
        firsts = [pack(episode.stream, episode.start, episode.env, envs[episode.stream]) for episode in listed]
        found = _places(buffer, np.array(firsts, np.int64))
    return [found.one(at) for at in range(len(firsts))]
