"""The episodes of a store, one after another, and its first rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count
from diskreplay.errors import InputError
from diskreplay.index.episodes import COLUMNS, Episode
from diskreplay.index.selecting import End, chosen, end_of
from diskreplay.index.where import Where
from diskreplay.ops.result import Result
from diskreplay.reading import decoding
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.open_stream import open_stream
from diskreplay.remote import open_store
from diskreplay.schema import spaces
from diskreplay.schema.columns import KNOWN
from diskreplay.schema.ids import pack
from diskreplay.schema.ragged import Forms
from diskreplay.storage.paths import PathLike
from diskreplay.views.transition import Transition

SORTS = ("number", "length", "return", "end")


@dataclasses.dataclass(frozen=True)
class EpisodeLine(Result):
    """An episode, or what of it is in the window.

    Attributes:
        number: the episode's number, as ``show`` and ``export --episodes`` count.
        stream, env: the stream and environment in which it was recorded.
        start, stop: its rows, half-open.
        length: its steps.
        total_reward: the undiscounted sum of its rewards.
        end: the flags of its last step, in a word; "cut" when another step came without one, "running" when it still
            goes on.
        complete: True if its first step is in the window.
        facts: the facts that a program gave, by name.
    """

    number: int
    stream: str
    env: int
    start: int
    stop: int
    length: int
    total_reward: float
    end: End
    complete: bool
    facts: dict[str, Any]


def episodes(
    path: PathLike, *, sort: str = "number", reverse: bool = False, where: str | None = None
) -> list[EpisodeLine]:
    """Return the episodes of the store at ``path``, as of its last commit.

    Args:
        path: the path of the store.
        sort: the order: "number", "length", "return" or "end"; equals stay in the order of their numbers.
        reverse: the largest first.
        where: a condition on them, as of :meth:`ReplayBuffer.select`; all if None.

    Raises InputError for another order or what is no condition, and what opening the store raises.
    """
    if sort not in SORTS:
        raise InputError(f"episodes are sorted by {', '.join(SORTS)}, not by {sort!r}")
    wanted = None if where is None else Where(where)
    streams, every = _found(path)  # without the rows, which take more memory
    kept = [True] * len(every) if wanted is None else chosen(wanted, every, streams)
    lines = [
        line(number, streams[episode.stream], episode)
        for number, (episode, keep) in enumerate(zip(every, kept, strict=True)) if keep
    ]  # fmt: skip
    key = {"return": "total_reward"}.get(sort, sort)
    return sorted(lines, key=lambda one: getattr(one, key), reverse=reverse)


def _found(path: PathLike) -> tuple[dict[int, str], list[Episode]]:
    """Return the names of a store's streams by their numbers, and the episodes of all of them, in that order."""
    store = open_store(path)
    commits = store.newest_commits()
    found: list[Episode] = []
    with store.files.coming(store.schema, commits):
        for name, newest in commits.items():
            found += open_stream(store, name, ChunkCache(0), newest=newest, held=COLUMNS).episodes()
    return {commit.stream: name for name, commit in commits.items()}, found


def line(number: int, stream: str, episode: Episode) -> EpisodeLine:
    return EpisodeLine(
        number, stream, episode.env, episode.start, episode.stop, episode.length, episode.total_reward,
        end_of(episode), episode.complete_start, episode.facts,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Head(Result):
    """Transitions of a store as a table.

    Attributes:
        columns: names.
        rows: for each transition the row, the environment, and the value of each column: arrays.
    """

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "rows": [{k: plain(v) for k, v in row.items()} for row in self.rows]}


LISTED = 16
"""The most elements of an array that are listed one by one; a larger one gets a summary."""


def head(path: PathLike, rows: int = 10, *, episode: int | None = None) -> Head:
    """Return the first transitions of the store at ``path``, or of one of its episodes, in the order of its rows.

    Args:
        path: the path of the store.
        rows: the most rows.
        episode: number of one, from the end if negative.

    Raises InputError for an episode that is not there, and what opening the store raises.
    """
    check_count("rows", rows, most=100_000)
    ragged = open_store(path).schema.ragged.items()
    forms: Forms = {name: "lists" for name, one in ragged if one.video is None or decoding.lacking(one.video)}
    with ReplayBuffer.open(path, mode="r", view=Transition(), ragged=forms) as buffer:
        every = buffer.episodes
        envs = [stream["num_envs"] for stream in buffer.stats()["streams"].values()]
        if episode is not None:
            if not -len(every) <= episode < len(every):
                raise InputError(f"episode must be 0 to {len(every) - 1} (or negative, from the end), got {episode}")
            every = [every[episode]]
        places = [
            (e.stream, row, e.env) for e in every for row in range(e.start, min(e.stop, e.start + rows))
        ]  # a superset of the first rows: no episode gives more than asked for
        places = sorted(places)[:rows]
        ids = np.array([pack(s, row, env, envs[s]) for s, row, env in places], np.int64)
        batch, schema = buffer.get(ids), buffer.schema
        obs = spaces.flatten(schema.obs_tree, batch.obs, "obs")
        action = spaces.flatten(schema.action_tree, batch.action, "action")
    leaves = [column.name for column in schema.obs_columns + schema.action_columns]
    known = [name for column in schema.later for name in (column.name, column.name + KNOWN)]
    columns = {
        **dict(zip(leaves, [*obs, *action], strict=True)),
        **{name: getattr(batch, name) for name in ("reward", "terminated", "truncated")},
        **{name: batch.extra[name] for name in (*(column.name for column in schema.extra_columns), *known)},
    }
    names = ("stream", "row", "env", *columns)
    cells = ((*place, *(values[at] for values in columns.values())) for at, place in enumerate(places))
    return Head(names, [dict(zip(names, row, strict=True)) for row in cells])


def plain(value: Any) -> Any:
    """Return a value as JSON has it: of a large array its dtype, shape and range; of no real number its text."""
    if isinstance(value, np.ndarray) and value.size > LISTED:
        low, high = plain(value.min()), plain(value.max())
        return {"dtype": str(value.dtype), "shape": list(value.shape), "min": low, "max": high}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, complex) or (isinstance(value, float) and not np.isfinite(value)) else value
