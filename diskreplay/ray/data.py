"""Ray Data: ``ray.data.read_datasource`` reads a store.

1. A row of the dataset is a step: ``obs``, ``action``, ``reward``, ``next_obs``, ``terminated``, ``truncated``, the
   user's columns, and ``episode`` and ``step``, its numbers. A Dict observation is a column for each leaf,
   ``obs/camera``.
2. A read task is a range of whole shards of a stream; of whole chunks, where there are more tasks than shards. A worker
   opens the store once for all its tasks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import ray
from numpy.typing import NDArray
from ray.data import DataContext, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import StateError
from diskreplay.formats.core.selection import Selection, place_of
from diskreplay.index.episodes import Episode
from diskreplay.ray.columns import checked_columns, column_names, empty_columns, place, read_columns
from diskreplay.schema.columns import Schema
from diskreplay.schema.ids import pack
from diskreplay.storage.paths import PathLike, checked_path, full_path

Array = NDArray[Any]

EPISODE = "episode"
STEP = "step"
BLOCK_BYTES = 128 << 20
"""The bytes of a block that a read task yields, if Ray's own ``target_max_block_size`` is None."""
CACHE_BYTES = 64 << 20
"""The bytes for decoded chunks in each process that reads: rows come in order, and few chunks are looked at twice."""
TASKS = 4
"""The least number of tasks for each processor, if Ray leaves the number to us."""
TASK_BYTES = 512 << 20
"""The most bytes of a task, if Ray leaves the number of tasks to us."""
OPEN_STORES = 2
"""The number of stores that a worker keeps open for its next tasks."""


@dataclasses.dataclass(frozen=True)
class StoreAddress:
    """A store to be read, for each process that reads it; the arguments are those of :meth:`ReplayBuffer.open`."""

    path: str
    checkpoint: str | None = None
    mirror: str | None = None
    mirror_bytes: int | None = None

    def open(self) -> ReplayBuffer:
        return ReplayBuffer.open(
            self.path, mode="r", checkpoint=self.checkpoint, cache_bytes=CACHE_BYTES, mirror=self.mirror,
            mirror_bytes=self.mirror_bytes, ragged=None,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Part:
    """Rows ``[start, stop)`` of one environment of a stream, all of one episode.

    Attributes:
        stream: its number.
        num_envs, env, start, stop: the place of the rows.
        episode: its number among all episodes of the store.
        step: the number of the first row's step in its episode.
    """

    stream: int
    num_envs: int
    env: int
    start: int
    stop: int
    episode: int
    step: int

    def __len__(self) -> int:
        return self.stop - self.start

    def only(self, start: int, stop: int) -> Part:
        """Return a part with some of the rows."""
        return dataclasses.replace(self, start=start, stop=stop, step=self.step + start - self.start)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The ids of the rows, ``(n,)``."""
        found: NDArray[np.int64] = pack(self.stream, np.arange(self.start, self.stop), self.env, self.num_envs)
        return found


class DiskReplayDatasource(Datasource):  # type: ignore[misc]
    """A store as a dataset, as it stands when this is made: ``ray.data.read_datasource(DiskReplayDatasource(path))``.

    Observations are as the store shows them, stacks included. ``select_columns`` on the dataset reads no other columns
    either. Beside a live writer, rows that leave the window before they are read raise EvictedError;
    ``checkpoint="name"`` keeps them. Where a stream went back to a checkpoint since, so that its rows may be others,
    reading raises StateError.

    Args:
        path: the path of the store, where all workers see it; or its URL, which each node reads through a mirror of its
            own.
        columns: names of those to read; all if None.
        episodes: the episodes to read: a slice or numbers of ``ReplayBuffer.episodes``, or a condition such as
            ``"return > 100 and tag == 'expert'"`` (see :meth:`ReplayBuffer.select`); all if None.
        checkpoint: the checkpoint of the store, to read its rows; the last commit if None.
        stack: without, each observation is the newest frame of its stack alone, ``(84, 84)`` for ``(4, 84, 84)``: for
            models of frames, or for who stacks them by ``episode`` and ``step``. Each frame goes through Ray once.
        mirror, mirror_bytes: the mirror of a URL and its size, as in :meth:`ReplayBuffer.open`: a directory that the
            workers of a node share, of the same path on every node.

    Raises InputError for a column or an episode that is not there, and what :meth:`ReplayBuffer.open` raises.
    """

    def __init__(
        self, path: PathLike, columns: Sequence[str] | None = None,
        episodes: slice | Sequence[int] | str | None = None, *, checkpoint: str | None = None, stack: bool = True,
        mirror: PathLike | None = None, mirror_bytes: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        copies = full_path(checked_path(mirror, "mirror")) if mirror is not None else None
        self._source = StoreAddress(place(path), checkpoint, copies, mirror_bytes)
        self._stack = stack
        self._projection_map: dict[str, str] | None = None
        with self._source.open() as buffer:
            schema = buffer.schema
            streams = buffer.engine.streams
            names = {stream.log.stream: stream.disk.name for stream in streams.all}
            num_envs = {stream.log.stream: stream.log.num_envs for stream in streams.all}
            self._commits = tuple(
                (name, commit.timeline, commit.sequence) for name, commit in sorted(streams.commits.items())
            )
            every = buffer.episodes
        self._columns = checked_columns(columns, dataset_columns(schema))
        large = max(schema.obs_columns, key=lambda column: column.item_bytes)
        self._chunk_rows, self._shard_rows = large.chunk_rows, large.shard_rows
        self._parts = [
            Part(e.stream, num_envs[e.stream], e.env, e.start, e.stop, number, 0)
            for number, e in _selected(every, names, episodes)
        ]
        self._rows = sum(map(len, self._parts))
        spans: dict[int, tuple[int, int]] = {}
        for part in self._parts:
            low, high = spans.get(part.stream, (part.start, part.stop))
            spans[part.stream] = min(low, part.start), max(high, part.stop)
        self._span = sum(high - low for low, high in spans.values())
        """The number of rows of the streams from the first to the last part, whatever lies between."""
        few, more = (_block(_zeros(schema, rows, stack)) for rows in (8, 16))
        self._sizes = {name: (more[name].nbytes - few[name].nbytes) / 8 for name in dataset_columns(schema)}
        """The bytes of a row in Arrow, by column."""
        self._schemas = {field.name: field for field in few.schema}

    @property
    def columns(self) -> list[str]:
        """The columns that are read, in order."""
        wanted = self._projection_map
        return self._columns if wanted is None else [name for name in self._columns if name in wanted]

    def __len__(self) -> int:
        """Return the number of rows of the dataset."""
        return self._rows

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of all rows in Arrow, without the few bytes that a block has beside its rows."""
        return self._bytes(self._rows)

    def _bytes(self, rows: int) -> int:
        return int(np.ceil(rows * sum(self._sizes[name] for name in self.columns)))

    def supports_projection_pushdown(self) -> bool:
        return True

    def get_projection_map(self) -> dict[str, str]:
        return {name: name for name in self.columns}

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Return about as many tasks as asked for: each reads whole shards, or whole chunks of one.

        Where Ray chooses the number it asks for hundreds, each of which costs tens of milliseconds: then there
        are as many as keep all processors busy, or more where a task would give half a gigabyte.
        """
        schema = pyarrow.schema([self._schemas[name] for name in self.columns])
        # Just above Ray's target: smaller ones it would copy into one, larger ones it would cut.
        context = data_context or DataContext.get_current()
        target = context.target_max_block_size or BLOCK_BYTES
        if parallelism >= context.read_op_min_num_blocks:
            processors = int(ray.cluster_resources().get("CPU", 1)) if ray.is_initialized() else 1
            parallelism = min(parallelism, max(TASKS * processors, self._bytes(self._rows) // TASK_BYTES))
        block_rows = -(-target // max(1, self._bytes(1)))
        tasks = []
        for parts in self._shared(max(1, parallelism)):
            if per_task_row_limit is not None:
                parts = _first(parts, per_task_row_limit)
            rows = sum(map(len, parts))
            metadata = BlockMetadata(num_rows=rows, size_bytes=self._bytes(rows), input_files=None, exec_stats=None)
            read = _ReadTask(self._source, self._commits, tuple(self.columns), parts, block_rows, self._stack)
            tasks.append(ReadTask(read, metadata, schema, per_task_row_limit=per_task_row_limit))
        return tasks

    def _shared(self, parallelism: int) -> list[list[Part]]:
        """Return the rows of each task."""
        unit = -(-self._span // parallelism)
        whole = self._shard_rows if unit >= self._shard_rows else self._chunk_rows
        unit = max(1, -(-unit // whole)) * whole
        tasks: dict[tuple[int, int], list[Part]] = {}
        for part in self._parts:
            for number in range(part.start // unit, (part.stop - 1) // unit + 1):
                low, high = max(part.start, number * unit), min(part.stop, (number + 1) * unit)
                tasks.setdefault((part.stream, number), []).append(part.only(low, high))
        order = sorted(tasks)
        return [sorted(tasks[key], key=lambda part: (part.env, part.start)) for key in order]


@dataclasses.dataclass(frozen=True)
class _ReadTask:
    """The work of a read task: it gives the blocks of some parts."""

    source: StoreAddress
    commits: tuple[tuple[str, int, int], ...]
    columns: tuple[str, ...]
    parts: list[Part]
    block_rows: int
    stack: bool

    def __call__(self) -> Iterator[Any]:
        buffer = _kept_open(self.source, self.commits)
        for parts in _chunked(self.parts, self.block_rows):
            ids = np.concatenate([part.ids for part in parts])
            own = {name for name in self.columns if name not in column_names(buffer.schema)}
            stored = [name for name in self.columns if name not in own]
            values = read_columns(buffer, ids, stored, stack=self.stack)
            self._check_timelines(buffer)
            if EPISODE in own:
                values[EPISODE] = np.repeat([part.episode for part in parts], [len(part) for part in parts])
            if STEP in own:
                values[STEP] = np.concatenate([np.arange(part.step, part.step + len(part)) for part in parts])
            yield _block({name: values[name] for name in self.columns})

    def _check_timelines(self, buffer: ReplayBuffer) -> None:
        """Raise StateError if a stream may have other rows by now than those that were planned."""
        now = buffer.engine.streams.commits
        for name, timeline, _ in self.commits:
            if name not in now or now[name].timeline != timeline:
                raise StateError(
                    f"the stream {name!r} of {self.source.path!r} went back to a checkpoint after the dataset was "
                    "made: make it anew"
                )


def dataset_columns(schema: Schema) -> list[str]:
    """Return the columns of the dataset; a column of the user's replaces ours of the same name."""
    names = column_names(schema)
    return [*names, *(name for name in (EPISODE, STEP) if name not in names)]


def _zeros(schema: Schema, rows: int, stack: bool) -> dict[str, Array]:
    found = dict(empty_columns(schema, rows, stack=stack))
    return {name: found.get(name, np.zeros(rows, np.int64)) for name in dataset_columns(schema)}


def _block(values: Mapping[str, Array]) -> Any:
    return BlockAccessor.batch_to_block(dict(values))


@functools.lru_cache(maxsize=OPEN_STORES)
def _kept_open(source: StoreAddress, commits: tuple[tuple[str, int, int], ...]) -> ReplayBuffer:
    """Return a store that this process keeps open; ``commits`` name the state that the rows were planned from."""
    return source.open()


def _selected(
    every: list[Episode], streams: Mapping[int, str], wanted: slice | Sequence[int] | str | None
) -> list[tuple[int, Episode]]:
    """Return episodes with their numbers."""
    numbers = {place_of(e): number for number, e in enumerate(every)}
    if isinstance(wanted, str):
        chosen = Selection(where=wanted).of(every, streams)
    elif wanted is None or isinstance(wanted, slice):
        chosen = Selection(episodes=wanted).of(every, streams)
    else:
        chosen = Selection(episodes=tuple(dict.fromkeys(int(number) for number in wanted))).of(every, streams)
    return sorted(((numbers[place_of(e)], e) for e in chosen), key=lambda pair: pair[0])


def _chunked(parts: Iterable[Part], most: int) -> Iterator[list[Part]]:
    """Yield parts of at most ``most`` rows together."""
    held: list[Part] = []
    room = most
    for part in parts:
        while len(part):
            taken = part.only(part.start, min(part.stop, part.start + room))
            held.append(taken)
            room -= len(taken)
            part = part.only(taken.stop, part.stop)
            if not room:
                yield held
                held, room = [], most
    if held:
        yield held


def _first(parts: list[Part], most: int) -> list[Part]:
    """Return the first ``most`` rows."""
    return next(_chunked(parts, most)) if most > 0 and parts else []
