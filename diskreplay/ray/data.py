"""Ray Data: ``ray.data.read_datasource`` reads a store.

1. A row of the dataset is a step: ``obs``, ``action``, ``reward``, ``next_obs``, ``terminated``, ``truncated``, the
   user's columns, and ``episode`` and ``step``, its numbers. A Dict observation is a column for each leaf,
   ``obs/camera``.
2. A read task is a range of whole shards of a stream; of whole chunks, where there are more tasks than shards. A worker
   opens the store once for all its tasks.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import ray
from ray.data import DataContext, Datasource, ReadTask
from ray.data.block import BlockAccessor, BlockMetadata

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import StateError
from diskreplay.formats.core.selection import Selection, place_of
from diskreplay.index.episodes import Episode
from diskreplay.index.spans import EpisodeSpan
from diskreplay.ray.columns import checked_columns, column_names, read_columns
from diskreplay.schema.ids import Ids
from diskreplay.storage.commit import Commit
from diskreplay.storage.paths import PathLike, checked_path, full_path, named

EPISODE, STEP = "episode", "step"
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

Address = tuple[str, str | None, str | None, int | None]  # the arguments of open_store


def open_store(
    path: str, checkpoint: str | None = None, mirror: str | None = None, mirror_bytes: int | None = None
) -> ReplayBuffer:
    """Open a store to read its rows in order; the arguments are those of :meth:`ReplayBuffer.open`."""
    return ReplayBuffer.open(
        path, mode="r", checkpoint=checkpoint, cache_bytes=CACHE_BYTES, mirror=mirror, mirror_bytes=mirror_bytes,
        ragged=None,
    )  # fmt: skip


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
        self._store: Address = named(path), checkpoint, copies, mirror_bytes
        self._stack = stack
        self._projection_map: dict[str, str] | None = None
        with open_store(*self._store) as buffer:
            schema, streams = buffer.schema, buffer.engine.streams
            names = {stream.log.stream: stream.disk.name for stream in streams.all}
            num_envs = {stream.log.stream: stream.log.num_envs for stream in streams.all}
            self._commits = tuple(
                (name, commit.timeline, commit.sequence) for name, commit in sorted(streams.commits.items())
            )
            every = buffer.episodes
            name = max(schema.obs_columns, key=lambda column: column.item_bytes).name
            large = streams.shown.disk.rows[name].column
            none = read_columns(buffer, np.empty(0, np.int64), column_names(schema), stack=stack)
        # A column of the user's replaces ours of the same name.
        self._columns = checked_columns(columns, list(dict.fromkeys((*column_names(schema), EPISODE, STEP))))
        self._chunk_rows, self._shard_rows = large.chunk_rows, large.shard_rows
        self._parts = [
            EpisodeSpan(e.stream, num_envs[e.stream], e.env, e.start, e.stop, number, 0)
            for number, e in _selected(every, names, episodes)
        ]
        self._rows = sum(map(len, self._parts))
        none = {EPISODE: np.empty(0, np.int64), STEP: np.empty(0, np.int64), **none}
        zeros = {name: np.zeros((16, *values.shape[1:]), values.dtype) for name, values in none.items()}
        few, more = (
            BlockAccessor.batch_to_block({name: values[:rows] for name, values in zeros.items()}) for rows in (8, 16)
        )
        self._sizes = {name: (more[name].nbytes - few[name].nbytes) / 8 for name in zeros}  # bytes of a row in Arrow
        self._schema = few.schema

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
        schema = pyarrow.schema([self._schema.field(name) for name in self.columns])
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
                parts = next(blocks_of(parts, per_task_row_limit), [])
            rows = sum(map(len, parts))
            metadata = BlockMetadata(num_rows=rows, size_bytes=self._bytes(rows), input_files=None, exec_stats=None)
            read = _ReadTask(self._store, self._commits, tuple(self.columns), parts, block_rows, self._stack)
            tasks.append(ReadTask(read, metadata, schema, per_task_row_limit=per_task_row_limit))
        return tasks

    def _shared(self, parallelism: int) -> list[list[EpisodeSpan]]:
        ends: dict[int, list[int]] = collections.defaultdict(list)
        for part in self._parts:
            ends[part.stream] += part.start, part.stop
        unit = -(-sum(max(rows) - min(rows) for rows in ends.values()) // parallelism)
        whole = self._shard_rows if unit >= self._shard_rows else self._chunk_rows
        unit = max(1, -(-unit // whole)) * whole
        tasks: dict[tuple[int, int], list[EpisodeSpan]] = collections.defaultdict(list)
        for part in self._parts:
            for number in range(part.start // unit, (part.stop - 1) // unit + 1):
                low, high = max(part.start, number * unit), min(part.stop, (number + 1) * unit)
                tasks[part.stream, number].append(part.only(low, high))
        return [sorted(parts, key=lambda part: (part.env, part.start)) for _, parts in sorted(tasks.items())]


@dataclasses.dataclass(frozen=True)
class _ReadTask:
    """The work of a read task: it gives the blocks of some parts."""

    store: Address
    commits: tuple[tuple[str, int, int], ...]
    columns: tuple[str, ...]
    parts: list[EpisodeSpan]
    block_rows: int
    stack: bool

    def __call__(self) -> Iterator[Any]:
        buffer = _kept_open(self.commits, *self.store)
        stored = [name for name in self.columns if name in column_names(buffer.schema)]
        for parts in blocks_of(self.parts, self.block_rows):
            values = read_columns(buffer, ids_of(parts), stored, stack=self.stack)
            self._check_timelines(buffer.engine.streams.commits)
            ours = {
                EPISODE: np.repeat([part.episode for part in parts], [len(part) for part in parts]),
                STEP: np.concatenate([np.arange(part.step, part.step + len(part)) for part in parts]),
            }
            yield BlockAccessor.batch_to_block({name: {**ours, **values}[name] for name in self.columns})

    def _check_timelines(self, now: Mapping[str, Commit]) -> None:
        for name, timeline, _ in self.commits:
            if name not in now or now[name].timeline != timeline:
                raise StateError(
                    f"the stream {name!r} of {self.store[0]!r} went back to a checkpoint after the dataset was made: "
                    "make it anew"
                )


@functools.lru_cache(maxsize=OPEN_STORES)
def _kept_open(commits: tuple[tuple[str, int, int], ...], *store: Any) -> ReplayBuffer:
    """Return a store that this process keeps open; ``commits`` name the state that the rows were planned from."""
    return open_store(*store)


def _selected(
    every: list[Episode], streams: Mapping[int, str], wanted: slice | Sequence[int] | str | None
) -> list[tuple[int, Episode]]:
    if wanted is not None and not isinstance(wanted, str | slice):
        wanted = tuple(map(int, wanted))
    selection = Selection(where=wanted) if isinstance(wanted, str) else Selection(wanted)
    chosen = set(map(place_of, selection.of(every, streams)))
    return [(number, e) for number, e in enumerate(every) if place_of(e) in chosen]


def blocks_of(parts: Iterable[EpisodeSpan], most: int) -> Iterator[list[EpisodeSpan]]:
    """Yield parts of at most ``most`` rows together."""
    held, room = list[EpisodeSpan](), most
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


def ids_of(parts: Iterable[EpisodeSpan]) -> Ids:
    """Return the ids of all rows, ``(n,)``."""
    return np.concatenate([np.arange(part.ids.start, part.ids.stop, part.ids.step) for part in parts])
