"""The facts of a whole store for the page: frozen, as JSON, in memory that grows with the episodes alone.

Columns that are mirrored in RAM are counted block by block; large ones are not read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import diskreplay
from diskreplay.checks import Array
from diskreplay.errors import DiskReplayError
from diskreplay.index.episodes import Episode
from diskreplay.index.selecting import end_of
from diskreplay.index.where import ENDS
from diskreplay.ops.result import Result
from diskreplay.report.source import Snapshot, to_real
from diskreplay.schema import spaces
from diskreplay.schema.columns import ACTION, OBS, REWARD, VALID, Column
from diskreplay.storage.store import Checkpoint

BLOCK_ROWS = 1 << 15
BINS = 24
MOST_VALUES = 32
"""The most different values that are counted one by one; of more there is a histogram."""
MOST_TAGS = 100
"""The most tags by which episodes are filtered."""
MOST_ELEMENTS = 8
"""The most elements of an action that have a histogram."""
AGES = 20
LABEL_LETTERS = 40


@dataclasses.dataclass(frozen=True)
class EpisodeList:
    """The episodes, column by column; entry ``i`` of each is episode ``first + i``.

    Attributes:
        first: number of the first that is listed; older ones were left out.
        total: episodes of the store.
        key: the text that names the place where each episode begins; the same while rows are added and evicted.
        stream: position in ``streams``.
        end: position in ``ends``.
        complete: 1 where its first step is in the window.
        unusual: 1 of a whole episode whose return or length is outside of the fences.
        tags: those that most episodes have, each with the entries that have it.
        return_fences, length_fences: the fences of :func:`fences`.
    """

    first: int
    total: int
    streams: tuple[str, ...]
    ends: tuple[str, ...]
    key: tuple[str, ...]
    stream: tuple[int, ...]
    env: tuple[int, ...]
    start: tuple[int, ...]
    length: tuple[int, ...]
    total_reward: tuple[float | None, ...]
    end: tuple[int, ...]
    complete: tuple[int, ...]
    unusual: tuple[int, ...]
    tags: tuple[tuple[str, tuple[int, ...]], ...]
    return_fences: tuple[float, float] | None
    length_fences: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Distribution:
    """The frequency of values: ``counts[i]`` times ``labels[i]``, or in ``[edges[i], edges[i + 1])``."""

    name: str
    counts: tuple[int, ...]
    labels: tuple[str, ...] | None = None
    edges: tuple[float, ...] | None = None


@dataclasses.dataclass(frozen=True)
class StoredPriorities:
    """Priorities as the newest checkpoint with some has them.

    Attributes:
        checkpoint, sampler: their names.
        values: the values of all transitions that can be drawn; with ``Proportional`` raised to alpha, as the draws use
            them.
        by_age: their mean in each of ``AGES`` equal parts of the windows, from the oldest rows to the newest; None
            where nothing can be drawn.
    """

    checkpoint: str
    sampler: str
    values: Distribution
    by_age: tuple[float | None, ...]


@dataclasses.dataclass(frozen=True)
class ColumnSummary:
    """A column of the schema as a reader sees it.

    Attributes:
        shape: the shape of a value; its first number is None for a ragged column. Of video, that of a frame.
        space: the space of observations and actions; for a later column and for video, words that tell of it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    space: str
    frames: int


@dataclasses.dataclass(frozen=True)
class Overview(Result):
    """All that the page says of a store but for what is in its episodes.

    Attributes:
        name, path: the name and the path of the store's directory.
        env_id: the id of the store's environment, empty where it is unknown.
        stamp: changes with every commit.
        facts: the facts of ``diskreplay inspect --json``.
        distributions: rewards, then actions, then the lengths of ragged values.
        not_counted: the words that say what is too large to be counted.
        evicted: the decoded bytes, by column, of rows that have left their windows, in shards of which a window or a
            checkpoint needs other rows yet. For the logs of facts and of later values: the bytes of what no episode or
            row of a window shows any more.
    """

    name: str
    path: str
    version: str
    env_id: str
    stamp: str
    facts: dict[str, Any]
    episodes: EpisodeList
    distributions: tuple[Distribution, ...]
    not_counted: tuple[str, ...]
    evicted: dict[str, int]
    priorities: StoredPriorities | None
    schema: tuple[ColumnSummary, ...]


def overview(source: Snapshot, most_episodes: int | None = None) -> Overview:
    """Return the facts about the store of ``source``, with at most ``most_episodes`` listed, the newest ones."""
    counted, not_counted = _actions(source)
    facts = source.facts.to_json()
    env_id = source.facts.provenance.get("env_id")
    return Overview(
        name=source.path.rpartition("/")[2] or source.path,
        path=source.path,
        version=diskreplay.__version__,
        env_id=env_id if isinstance(env_id, str) else "",
        stamp=source.stamp,
        facts=plain(facts),
        episodes=episode_list(source, most_episodes),
        distributions=tuple(filter(None, (_rewards(source), *counted, *_lengths(source)))),
        not_counted=not_counted,
        evicted=_evicted(source),
        priorities=_priorities(source),
        schema=_leaves(source),
    )


def plain(value: Any) -> Any:
    """Return a value as JSON has it; numbers that JSON lacks become None."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def short(value: float) -> float | None:
    """Return a number with seven digits, which is all that a chart shows, or None if JSON has none."""
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) and abs(value) < 1e15 else float(f"{value:.7g}")


# Episodes


def episode_list(source: Snapshot, most: int | None = None) -> EpisodeList:
    """Return the episodes of all streams that can be read."""
    every = source.episodes
    first = 0 if most is None else max(0, len(every) - most)
    names = tuple(rows.name for rows in source.streams)
    at = {name: position for position, name in enumerate(names)}
    whole = [one.episode for one in every if is_whole(one.episode)]
    returns = fences([one.total_reward for one in whole])
    lengths = fences([one.length for one in whole])
    listed = every[first:]
    return EpisodeList(
        first=first,
        total=len(every),
        streams=names,
        ends=ENDS,
        key=tuple(one.key for one in listed),
        stream=tuple(at[one.rows.name] for one in listed),
        env=tuple(one.episode.env for one in listed),
        start=tuple(one.episode.start for one in listed),
        length=tuple(one.episode.length for one in listed),
        total_reward=tuple(short(one.episode.total_reward) for one in listed),
        end=tuple(ENDS.index(end_of(one.episode)) for one in listed),
        complete=tuple(int(one.episode.complete_start) for one in listed),
        unusual=tuple(
            int(is_whole(one) and (_beyond(one.total_reward, returns) or _beyond(one.length, lengths)))
            for one in (found.episode for found in listed)
        ),
        tags=_tags([one.episode for one in listed]),
        return_fences=returns,
        length_fences=lengths,
    )


def _tags(episodes: Sequence[Episode]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the most frequent tags by alphabet, and the positions of the episodes that have them."""
    found: dict[str, list[int]] = {}
    for at, episode in enumerate(episodes):
        for tag in episode.facts.get("tags") or ():
            found.setdefault(tag, []).append(at)
    most = sorted(found, key=lambda tag: (-len(found[tag]), tag))[:MOST_TAGS]
    return tuple((tag, tuple(found[tag])) for tag in sorted(most))


def is_whole(episode: Episode) -> bool:
    """Tell whether an episode is in the window from its first step to its end."""
    return episode.complete_start and episode.ended


def fences(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the range of usual values: Tukey's fences, 1.5 times the distance of the quartiles beyond them.

    Where the quartiles are the same it is three standard deviations. None where there are fewer than 8 finite values.
    """
    array = np.asarray(values, np.float64)
    array = array[np.isfinite(array)]
    if len(array) < 8:
        return None
    low, high = np.quantile(array, [0.25, 0.75])
    reach = 1.5 * (high - low) or 3 * array.std()
    return float(low - reach), float(high + reach)


def _beyond(value: float, ends: tuple[float, float] | None) -> bool:
    return ends is not None and not ends[0] <= value <= ends[1]


# Rewards and actions


def _blocks(source: Snapshot, column: Column) -> Iterator[Array]:
    """Yield what is shown of a resident column's values, ``(n, ...)``, of all transitions, block by block."""
    for rows in source.streams:
        log = rows.log
        for low in range(log.begin, log.end, BLOCK_ROWS):
            high = min(log.end, low + BLOCK_ROWS)
            valid = log.span(VALID, low, high).astype(bool)
            yield source.shown(column, log.span(column.name, low, high)[valid])


def _rewards(source: Snapshot) -> Distribution | None:
    column = source.schema.column(REWARD)
    return _counted(REWARD, lambda: (block.reshape(-1) for block in _blocks(source, column)))


def _actions(source: Snapshot) -> tuple[list[Distribution | None], tuple[str, ...]]:
    found: list[Distribution | None] = []
    left: list[str] = []
    leaves = spaces.leaf_spaces(source.schema.action_space)
    for column, space in zip(source.schema.action_columns, leaves, strict=True):
        if column.name in source.schema.ragged:
            continue
        if not all(column.name in rows.log.resident for rows in source.streams):
            left.append(f"{column.name}: {column.item_bytes:,} bytes each are not counted")
            continue
        labels = action_labels(source, space)
        if spaces.choices(space) is not None:
            found.append(_counted(column.name, lambda c=column: (b.reshape(-1) for b in _blocks(source, c)), labels))
            continue
        elements = int(np.prod(column.shape, dtype=np.int64))
        for element in range(min(elements, MOST_ELEMENTS)):
            name = column.name if elements == 1 else f"{column.name}[{element}]"
            found.append(
                _counted(name, lambda c=column, e=element: (b.reshape(len(b), -1)[:, e] for b in _blocks(source, c)))
            )
        if elements > MOST_ELEMENTS:
            left.append(f"{column.name}: {elements - MOST_ELEMENTS} further elements are not counted")
    return found, tuple(left)


def _lengths(source: Snapshot) -> Iterator[Distribution | None]:
    """Yield the distributions of the lengths of ragged values; a video's are bytes of packets, which say little."""
    for column in source.schema.columns:
        ragged = source.schema.ragged.get(column.name)
        if ragged is not None and ragged.video is None:
            yield _counted(length_of(column.name), lambda c=column: _blocks(source, c))


def length_of(name: str) -> str:
    return f"{name}: length"


def action_labels(source: Snapshot, space: Any) -> dict[int, str]:
    """Return what each action does, if the environment tells it of as many as there are."""
    limits = spaces.choices(space)
    told = source.facts.provenance.get("action_meanings")
    if limits is None or not isinstance(told, list) or not isinstance(limits[0], int):
        return {}
    if len(told) != limits[1] - limits[0] + 1 or not all(isinstance(one, str) for one in told):
        return {}
    return {limits[0] + at: name[:LABEL_LETTERS] for at, name in enumerate(told)}


def _counted(name: str, blocks: Any, labels: dict[int, str] | None = None) -> Distribution | None:
    """Return how often each value occurs, or how many lie in each bin, or None without values or bins.

    ``blocks()`` gives the values again for each pass, ``(n,)`` at a time.
    """
    counts: dict[float, int] | None = {}
    low, high = math.inf, -math.inf
    for block in blocks():
        values = to_real(block).astype(np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        if counts is not None:
            each, times = np.unique(values, return_counts=True)
            for value, count in zip(each.tolist(), times.tolist(), strict=True):
                counts[value] = counts.get(value, 0) + count
            if len(counts) > MOST_VALUES:
                counts = None
    if low > high:
        return None
    if counts is not None:
        ordered = sorted(counts)
        names = tuple(_label(value, labels or {}) for value in ordered)
        return Distribution(name, tuple(counts[value] for value in ordered), labels=names)
    if not math.isfinite(high - low):
        return None  # wider than float64: no bins
    edges = np.linspace(low, high, BINS + 1)
    total = np.zeros(BINS, np.int64)
    for block in blocks():
        values = to_real(block).astype(np.float64)
        total += np.histogram(values[np.isfinite(values)], edges)[0]
    return Distribution(name, tuple(total.tolist()), edges=tuple(edges.tolist()))


def _label(value: float, labels: dict[int, str]) -> str:
    said = labels.get(int(value)) if value == int(value) else None
    number = f"{value + 0.0:.7g}"  # and not -0
    return f"{number} {said}" if said else number


# Priorities


def _priorities(source: Snapshot) -> StoredPriorities | None:
    """Return the priorities of the newest checkpoint that has some and can be read, or None."""
    try:
        checkpoints = source.store.checkpoints()
    except DiskReplayError:
        return None
    for one in reversed(checkpoints):
        if one.state.get("priorities"):
            try:
                return _of_checkpoint(source, one)
            except (DiskReplayError, KeyError, TypeError, ValueError):
                return None  # of another's sampler, or damaged: `verify` says which
    return None


def _of_checkpoint(source: Snapshot, checkpoint: Checkpoint) -> StoredPriorities | None:
    arrays = source.store.read_arrays(checkpoint)
    name = next(name for name in ("mass", "priority") if name in arrays)
    values, counts, sums, used = arrays[name].astype(np.float64), np.zeros(AGES), np.zeros(AGES), 0
    for run in checkpoint.state["priorities"]["streams"]:
        rows = int(run["stop"]) - int(run["first"])
        part = values[used : used + rows]
        used += rows
        age = np.arange(len(part)) * AGES // max(1, rows)
        drawn = part > 0
        counts += np.bincount(age[drawn], minlength=AGES)
        sums += np.bincount(age[drawn], part[drawn], minlength=AGES)
    found = _counted("priority", lambda: iter([values[values > 0]]))
    if found is None:
        return None
    told = checkpoint.state.get("sampler")
    kind = told.get("kind") if isinstance(told, dict) else None
    means = tuple(short(total / count) if count else None for total, count in zip(sums, counts, strict=True))
    return StoredPriorities(checkpoint.name, str(kind or ""), found, means)


# Storage


def _evicted(source: Snapshot) -> dict[str, int]:
    steps = sum((one.end - one.begin) * one.num_envs for one in source.facts.streams)
    held = {one.name: one.raw_bytes for one in source.facts.columns}
    needed = {one.name: steps * one.item_bytes for one in source.schema.columns}
    for path in filter(held.__contains__, source.schema.logs):
        needed[path] = sum(rows.stream.logs[path].content.living_bytes() for rows in source.streams)
    return {name: max(0, held.get(name, 0) - count) for name, count in needed.items()}


# The schema


def _leaves(source: Snapshot) -> tuple[ColumnSummary, ...]:
    schema = source.schema
    given = {**spaces.named_leaves(schema.observation_space, OBS), **spaces.named_leaves(schema.action_space, ACTION)}
    frames = {column.name: stack.frames for column, stack in zip(schema.obs_columns, schema.stacks, strict=True)}
    of = {
        **{name: str(space) for name, space in given.items()},
        **{name: f"written later, {count:,} known" for name, count in source.facts.later.items()},
        **{name: str(video) for name, video in schema.videos.items()},
    }
    items = {name: ragged.items for name, ragged in schema.ragged.items()}
    shapes = {name: (None, *column.shape) for name, column in items.items()}
    shapes |= {name: video.shape for name, video in schema.videos.items()}
    return tuple(
        ColumnSummary(
            one.name, shapes.get(one.name, one.shape), items.get(one.name, one).dtype.name, of.get(one.name, ""),
            frames.get(one.name, 1),
        )
        for one in (*schema.columns, *schema.later)
    )  # fmt: skip
