"""The facts about a store, read beside a possible writer, changing nothing.

What can be said is said even of a damaged store: what needs a damaged part is left out, and ``health`` names the
damage. The check behind ``health`` is quick: commit records, files and their sizes, indexes and the small columns that
every open reads; ``verify`` reads everything.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from diskreplay.engine import memory
from diskreplay.engine.run import BUDGET_SHARE
from diskreplay.engine.streams import held_columns
from diskreplay.index.episodes import Episode, ends, episodes
from diskreplay.index.later_values import counts
from diskreplay.ops.checkpoints import CheckpointLine
from diskreplay.ops.problems import DAMAGE
from diskreplay.ops.result import Compressed, Result
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import open_stream
from diskreplay.remote import open_store
from diskreplay.sampling.shares import FRACTIONS, GIVEN, KEEPER, MIXTURE
from diskreplay.schema.columns import FORMAT_VERSION, LATER, PATCH_TABLE, Column, Schema
from diskreplay.storage import column as columns
from diskreplay.storage import metadata, stream
from diskreplay.storage.commit import Commit
from diskreplay.storage.files import THIS_PROCESS
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import PROVENANCE, STREAMS, Checkpoint, Store

HISTOGRAM_BINS = 24
MAX_NAMES = 64
"""The most names of facts that are counted."""
MAX_SHARDS_LISTED = 1 << 16
"""The most shards of a column that are looked for: a damaged record may name any number."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """A histogram: bin ``i`` counts the values in ``[edges[i], edges[i + 1])``, the last bin with its end."""

    least: float
    median: float
    mean: float
    most: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class EpisodeTotals:
    """Episodes of all windows.

    Attributes:
        count: all of them.
        complete: the number that are in the window from the first step to the end; ``lengths`` (steps) and ``returns``
            are theirs, None without any.
        running: not ended yet.
        cut_off: the number that began before the window, or ended by neither termination nor truncation.
        told: the number of episodes that have facts (seed, tags and others).
        facts: the names of these, and of how many episodes each is known; the most frequent first, at most 64.
    """

    count: int
    complete: int
    running: int
    cut_off: int
    lengths: Spread | None
    returns: Spread | None
    told: int = 0
    facts: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ColumnFacts(Compressed):
    """One column, over all streams.

    Attributes:
        name: the name of the column in the schema; for the patch table, below ``patches/``.
        shape, dtype: the same as in the schema.
        chunk_rows, shard_rows, codec: those of the first stream's array.
        resident: True if the column would be held in RAM as a whole if the store were opened now, by its first stream.
        files: shards on disk.
        raw_bytes: the decoded bytes of the rows on disk; of the packets of video the pictures of the window.
        stored_bytes: the bytes that the shards take on disk.
        video: the codec, width, height, pixel format and frames a second, if these are the packets of a video column.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    chunk_rows: int
    shard_rows: int
    codec: str
    resident: bool
    files: int
    raw_bytes: int
    stored_bytes: int
    video: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class StreamFacts:
    """One stream as of its last commit.

    Attributes:
        begin, end: rows of its window, half-open.
        transitions: the transitions in the window; None when that cannot be read.
        sequence, timeline, committed: the commit record's numbers; ``committed`` is its time, seconds since the epoch.
        patches: final observations and the like in the patch table.
        ends: episodes that ended by each cause, as ``stats()["streams"][name]["ends"]``; None when that cannot be read.
        sampled: transitions that its writer has drawn, by the count of a rate limiter; 0 without one.
        writer: the process that holds its lock, as far as the system tells.
    """

    name: str
    num_envs: int
    capacity: int
    begin: int
    end: int
    transitions: int | None
    patches: int
    sequence: int
    timeline: int
    committed: float
    ends: dict[str, int] | None
    sampled: int
    writer: str | None


@dataclasses.dataclass(frozen=True)
class CheckpointFacts(CheckpointLine):
    """One checkpoint.

    Attributes:
        mixture: the part of a :class:`diskreplay.Mixture` that the checkpoint holds: ``fractions``, and what each part
            has ``given``; or the ``keeper``, the store that holds it. None if the checkpoint is of this store alone.
    """

    mixture: dict[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Facts(Compressed, Result):
    """All facts about a store.

    Attributes:
        transitions, capacity: the sums over all streams; ``transitions`` is None when a stream cannot be read.
        frame_stack: frames of each observation leaf.
        provenance: the origin of the steps that the store was told.
        continuity: the rule by which a step goes on with the episode of the one before it, as in
            :meth:`ReplayBuffer.create`.
        episodes: the totals of the episodes; None when they cannot be read.
        later: the number of transitions of the windows that have a value, for each later column.
        raw_bytes, stored_bytes: ``stored_bytes`` counts every file.
        budget_bytes: the RAM that a buffer would have here for its values, if it were opened now.
        health: problems found; empty when there are none.
    """

    path: str
    format_version: int
    observation_space: str
    action_space: str
    frame_stack: dict[str, int]
    continuity: str
    settings: dict[str, Any]
    provenance: dict[str, Any]
    transitions: int | None
    capacity: int
    streams: tuple[StreamFacts, ...]
    episodes: EpisodeTotals | None
    columns: tuple[ColumnFacts, ...]
    checkpoints: tuple[CheckpointFacts, ...]
    raw_bytes: int
    stored_bytes: int
    health: tuple[str, ...]
    later: dict[str, int] = dataclasses.field(default_factory=dict)
    budget_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return all facts as JSON values, with the ratios."""
        document = super().to_json()
        document["ratio"] = self.ratio
        for stored, facts in zip(document["columns"], self.columns, strict=True):
            stored["ratio"] = facts.ratio
        return document


@dataclasses.dataclass
class _Found:
    streams: list[StreamFacts] = dataclasses.field(default_factory=list)
    episodes: list[Episode] | None = dataclasses.field(default_factory=list)
    columns: dict[str, ColumnFacts] = dataclasses.field(default_factory=dict)
    later: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    problems: list[str] = dataclasses.field(default_factory=list)
    cached: Set[str] = frozenset()
    """The columns that are not held in RAM while the store is open."""


def inspect(path: PathLike) -> Facts:
    """Return the facts about the store at ``path``.

    Raises StoreNotFoundError, NotAStoreError, FormatVersionError, or CorruptionError when not even its schema can be
    read; other damage is named in ``health``.
    """
    store = open_store(path)
    found = _Found()
    try:
        names = store.stream_names()
    except DAMAGE as error:
        found.problems.append(str(error))
        names = _readable_streams(store, found)
    commits, budget_bytes = {name: store.newest_commit(name) for name in names}, memory.left() // BUDGET_SHARE
    written = next(iter(commits), None)
    found.cached = _not_held(store.schema, held_columns(store, commits, written, budget_bytes).keys())
    for name, commit in commits.items():
        _inspect_stream(store, name, commit, found)
    checkpoints = _checkpoints(store, found)
    counts = [facts.transitions for facts in found.streams]
    return Facts(
        path=store.path,
        format_version=FORMAT_VERSION,
        observation_space=str(store.schema.observation_space),
        action_space=str(store.schema.action_space),
        frame_stack={
            c.name: stack.frames for c, stack in zip(store.schema.obs_columns, store.schema.stacks, strict=True)
        },
        continuity=store.schema.continuity,
        settings={name: value for name, value in store.settings.items() if name != PROVENANCE},
        provenance=store.provenance,
        transitions=None if None in counts else sum(count for count in counts if count is not None),
        capacity=sum(facts.capacity for facts in found.streams),
        streams=tuple(found.streams),
        episodes=None if found.episodes is None else _episode_facts(found.episodes),
        columns=tuple(found.columns.values()),
        checkpoints=checkpoints,
        raw_bytes=sum(facts.raw_bytes for facts in found.columns.values()),
        stored_bytes=store.files.stored_bytes(store.path),
        health=tuple(dict.fromkeys(found.problems)),
        later={column.name: found.later[column.name] for column in store.schema.later},
        budget_bytes=budget_bytes,
    )


def _not_held(schema: Schema, held: Set[str]) -> Set[str]:
    """Return the names of arrays that are read as batches need them, if these columns are held."""
    items = {ragged.items.name for ragged in schema.ragged.values()}
    return {column.name for column in (*schema.columns, *schema.later)} - held | items | {LATER}


def row_ends(path: PathLike) -> dict[str, int]:
    """Return the row at which each stream of the store at ``path`` ends, with errors as :func:`inspect`."""
    return {name: commit.end for name, commit in open_store(path).newest_commits().items()}


def spread(values: Sequence[float]) -> Spread | None:
    """Return how values are spread, or None when there are none."""
    if not values:
        return None
    array = np.sort(np.asarray(values, np.float64))
    low, high = array[[0, -1]].tolist()
    middle = array[(len(array) - 1) // 2 : len(array) // 2 + 1]  # np.median and np.unique import numpy.ma
    bins = min(HISTOGRAM_BINS, 1 + int(np.count_nonzero(array[1:] != array[:-1])))
    if bins == 1 or not math.isfinite(high - low) or (high - low) / bins < 4 * math.ulp(max(abs(low), abs(high))):
        counts, edges = np.array([len(array)]), np.array([low, high])  # too near, or too far, for bins between them
    else:
        counts, edges = np.histogram(array, bins)
    return Spread(
        low, float(middle.mean()), float(np.mean(values)), high, tuple(edges.tolist()), tuple(counts.tolist()),
    )  # fmt: skip


def _episode_facts(found: Sequence[Episode]) -> EpisodeTotals:
    complete = [e for e in found if e.complete_start and (e.terminated or e.truncated)]
    running = sum(not e.ended for e in found)
    return EpisodeTotals(
        count=len(found),
        complete=len(complete),
        running=running,
        cut_off=sum(e.ended for e in found) - len(complete),
        lengths=spread([e.length for e in complete]),
        returns=spread([e.total_reward for e in complete]),
        told=sum(bool(e.facts) for e in found),
        facts=dict(collections.Counter(name for e in found for name in e.facts).most_common(MAX_NAMES)),
    )


def _readable_streams(store: Store, found: _Found) -> list[str]:
    """Return the streams whose commit record can be read, and note the others as problems."""
    names = []
    for name in metadata.nodes(store.files, f"{store.path}/{STREAMS}"):
        try:
            store.newest_commit(name)
        except DAMAGE as error:
            found.problems.append(str(error))
        else:
            names.append(name)
    return names


def _inspect_stream(store: Store, name: str, commit: Commit, found: _Found) -> None:
    transitions, causes = None, None
    try:
        with store.files.coming(store.schema, {name: commit}):
            part = open_stream(store, name, ChunkCache(0))
        commit, transitions, causes = part.disk.commit_record, len(part.log), ends(part.log)
        if found.episodes is not None:
            found.episodes += episodes(part.log, part.facts)
        found.later.update(counts(store.schema.later, part.log))
    except DAMAGE as error:
        found.episodes = None
        found.problems.append(str(error))
    found.problems += _missing_files(store, name, commit)
    patches = commit.table(PATCH_TABLE)
    videos = {one.items.name: one.video for one in store.schema.ragged.values()}
    for path, column in {**store.schema.arrays, **stream.logs(store.schema, commit)}.items():
        folder = f"{store.stream_path(name)}/{path}"
        facts = _column_facts(store, folder, path, column, commit, column.name not in found.cached)
        if (video := videos.get(path)) is not None:
            pictures = commit.end - commit.begin + patches.end - patches.begin
            told = {**video.to_json(), "fps": float(video.fps)}
            del told["parameters"]
            facts = dataclasses.replace(facts, raw_bytes=pictures * math.prod(video.shape), video=told)
        found.columns[path] = _merge(found.columns.get(path), facts)
    writer = stream.lock_holder(store.files, store.stream_path(name))
    found.streams.append(
        StreamFacts(
            name, commit.num_envs, commit.capacity, commit.begin, commit.end, transitions,
            patches.end - patches.begin, commit.sequence, commit.timeline, commit.time, causes,
            commit.sampled, writer if writer.startswith(("process", THIS_PROCESS)) else None,
        )
    )  # fmt: skip


def _column_facts(
    store: Store, folder: str, path: str, column: Column, commit: Commit, resident: bool
) -> ColumnFacts:  # fmt: skip
    end, stored = commit.stored_rows(path), commit.column(path, column)
    names = store.files.list(folder)
    numbers = {shard: name for name in names if (shard := columns.shard_number(name, column)) is not None}
    there = [shard for shard in numbers if shard * stored.shard_rows < end]
    rows = sum(min(end, (shard + 1) * stored.shard_rows) - shard * stored.shard_rows for shard in there)
    return ColumnFacts(
        path, column.shape, column.dtype.name, stored.chunk_rows, stored.shard_rows, str(stored.codec), resident,
        len(there), rows * commit.envs(path) * column.item_bytes,
        sum(store.files.size(f"{folder}/{numbers[shard]}") or 0 for shard in there),
    )  # fmt: skip


def _merge(known: ColumnFacts | None, more: ColumnFacts) -> ColumnFacts:
    if known is None:
        return more
    added = {name: getattr(known, name) + getattr(more, name) for name in ("files", "raw_bytes", "stored_bytes")}
    return dataclasses.replace(known, **added)


def _missing_files(store: Store, name: str, commit: Commit) -> list[str]:
    """Return the shards that the commit needs and that are missing or too short."""
    problems = []
    for path, column in {**store.schema.arrays, **stream.logs(store.schema, commit)}.items():
        folder = f"{store.stream_path(name)}/{path}"
        there = set(store.files.list(folder))
        stored = commit.arrays.get(path)
        if stored is None:
            continue
        needed = range(min(commit.of(path).needed_from, stored.rows - 1) // stored.shard_rows, stored.shard + 1)
        for shard in needed[:MAX_SHARDS_LISTED]:
            file = columns.shard_name(shard, column)
            where = repr(f"{folder}/{file}")
            if file not in there:
                problems.append(f"{where} is missing (stream {name!r}, column {path!r})")
            elif shard == stored.shard and (size := store.files.size(f"{folder}/{file}") or 0) < stored.size:
                problems.append(f"{where} has {size} of its {stored.size} committed bytes (stream {name!r})")
    newest = store.newest_commit(name)
    return [] if newest.evicted_since(commit) else problems


def _checkpoints(store: Store, found: _Found) -> tuple[CheckpointFacts, ...]:
    try:
        checkpoints = store.checkpoints()
    except DAMAGE as error:
        found.problems.append(str(error))
        return ()
    return tuple(CheckpointFacts(**vars(CheckpointLine.of(one)), mixture=_mixture(one)) for one in checkpoints)


def _mixture(checkpoint: Checkpoint) -> dict[str, Any] | None:
    stored = checkpoint.state.get(MIXTURE)
    if not isinstance(stored, dict):
        return None
    return {name: stored[name] for name in (FRACTIONS, GIVEN, KEEPER) if name in stored}
