"""The search for the first difference of two stores.

Episodes are compared in the order of streams, environments and rows, bit for bit; how they are spread over streams,
environments and rows, chunked and compressed, does not count. These are looked at one after another, each only where
all before it are the same:

1. Spaces, columns and how observations are stacked.
2. The steps, and how many there are.
3. The facts of the episodes.
4. What was written to the steps later: which have a value, and which one.
5. Where single frames are stored, the stacks that begin an episode: what they are padded with, or the older frames that
   have left the window.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.selection import SelectedStore, open_selected
from diskreplay.formats.core.transitions import BLOCK_BYTES, Arrays, Source, Transitions, by_episode
from diskreplay.index.episodes import Episode
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema import spaces
from diskreplay.schema.columns import KNOWN
from diskreplay.schema.ids import pack
from diskreplay.schema.ragged import Lists
from diskreplay.storage.paths import PathLike
from diskreplay.views.transition import Transition

Array = NDArray[Any]

LAYOUT = "observation_space", "action_space", "columns", "ragged_columns", "video", "reward_dtype", "stacks", "padding"
EPISODES = 64
"""The number of episodes whose first stacks are compared at once."""
NONE = "none"
"""The words for a fact or value that a store does not have."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first difference of two stores.

    Attributes:
        what: the property or column.
        one, other: the value that each store has there.
        episode: the number of the episode, from 0; None if all of both stores is meant.
        step: the step of the episode; None if all of the episode is meant.
        element: the first different element's place in the column's array, where that has axes.
    """

    what: str
    one: str
    other: str
    episode: int | None = None
    step: int | None = None
    element: tuple[int, ...] = ()

    def __str__(self) -> str:
        step = f", step {self.step}" if self.step is not None else ""
        place = f"episode {self.episode}{step}: " if self.episode is not None else ""
        element = f"[{', '.join(map(str, self.element))}]" if self.element else ""
        return f"{place}{self.what}{element}: {self.one} and {self.other}"


def diff(one: PathLike, other: PathLike) -> Difference | None:
    a, b = open_selected(one), open_selected(other)
    mine, theirs = a.source(stacked=True), b.source(stacked=True)
    found = _layouts(mine.layout, theirs.layout) or _columns_later(a, b) or _steps(mine, theirs)
    if found is None and (mine.steps, mine.episodes) != (theirs.steps, theirs.episodes):
        found = Difference("transitions", f"{mine.steps:,}", f"{theirs.steps:,}")
    found = found or _facts(a, b) or _written_later(a, b)
    return _first_stacks(a, b) if found is None and not mine.layout.stacked else found


def _layouts(one: Layout, other: Layout) -> Difference | None:
    for what in LAYOUT:
        mine, theirs = getattr(one, what), getattr(other, what)
        if mine != theirs:
            one_line, other_line = (" ".join(str(value).split()) for value in (mine, theirs))
            return Difference(what.replace("_", " "), one_line, other_line)
    return None


def _columns_later(one: SelectedStore, other: SelectedStore) -> Difference | None:
    mine, theirs = ({c.name: f"{c.dtype} {c.shape}" for c in part.schema.later} for part in (one, other))
    return None if mine == theirs else Difference("columns written later", str(mine), str(theirs))


def _steps(one: Source, other: Source) -> Difference | None:
    """Return the first difference among the steps that both have."""
    episode = step = 0
    for mine, theirs in _pairs(by_episode(one.blocks()), by_episode(other.blocks())):
        found = _first(mine, theirs)
        if found is not None:
            return dataclasses.replace(found, episode=episode, step=step + (found.step or 0))
        step += len(mine)
        if mine.last[-1]:
            episode, step = episode + 1, 0
    return None


def _facts(one: SelectedStore, other: SelectedStore) -> Difference | None:
    for at, (mine, theirs) in enumerate(zip(one.episodes, other.episodes, strict=True)):
        for name in sorted({*mine.facts, *theirs.facts}):
            a, b = (
                json.dumps(episode.facts[name], sort_keys=True) if name in episode.facts else NONE
                for episode in (mine, theirs)
            )
            if a != b:
                return Difference(f"fact {name!r}", a, b, episode=at)
    return None


def _written_later(one: SelectedStore, other: SelectedStore) -> Difference | None:
    row_bytes = sum(column.item_bytes for column in one.schema.later)
    if not row_bytes:
        return None
    ends = np.cumsum([episode.length for episode in one.episodes])
    mine, theirs, count = one.ids(), other.ids(), max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(mine), count):
        a, b = one.written_later(mine[start : start + count]), other.written_later(theirs[start : start + count])
        places = [
            (at, column.name)
            for column in one.schema.later
            for values in (column.name, column.name + KNOWN)
            if (at := _unequal(a[values], b[values])) is not None
        ]
        if places:
            at, name = min(places, key=lambda place: place[0])
            return _value_later(a, b, name, at, *_step(ends, start + at))
    return None


def _value_later(a: Arrays, b: Arrays, name: str, at: int, episode: int, step: int) -> Difference:
    """Return the difference of two values that were written later, of which one may be missing."""
    if a[name + KNOWN][at] != b[name + KNOWN][at]:
        one, other = (str(part[name][at]) if part[name + KNOWN][at] else NONE for part in (a, b))
        return Difference(name, one, other, episode=episode, step=step)
    element = _element(a[name][at], b[name][at])
    return Difference(name, str(a[name][at][element]), str(b[name][at][element]), episode, step, element)


def _step(ends: Array, at: int) -> tuple[int, int]:
    """Return the episode and step of the transition ``at``; ``ends`` are those of the episodes."""
    episode = int(np.searchsorted(ends, at, side="right"))
    return episode, at - int(ends[episode - 1] if episode else 0)


def _first_stacks(one: SelectedStore, other: SelectedStore) -> Difference | None:
    """Return the first difference among the stacks that reach back to an episode's begin; the frames are the same."""
    reach = max(stack.frames for stack in one.layout.stacks) - 1
    pairs = list(zip(one.episodes, other.episodes, strict=True)) if reach else []
    for start in range(0, len(pairs), EPISODES):
        some = pairs[start : start + EPISODES]
        places = [(start + k, step) for k, (e, _) in enumerate(some) for step in range(min(reach, e.length))]
        mine, theirs = (_stacks(part, [pair[which] for pair in some], reach) for which, part in enumerate((one, other)))
        for name, values in mine.items():
            at = _unequal(values, theirs[name])
            if at is not None:
                frames = tuple(np.argwhere(values[at] != theirs[name][at])[0].tolist())
                said = (str(values[at][frames]), str(theirs[name][at][frames]))
                return Difference(f"stack of {name}", *said, *places[at], element=frames)
    return None


def _stacks(part: SelectedStore, episodes: list[Episode], reach: int) -> dict[str, Array]:
    with ReplayBuffer.open(part.path, mode="r", ragged="lists", view=Transition(), sampler=Uniform()) as buffer:
        envs = [stream["num_envs"] for stream in buffer.stats()["streams"].values()]
        ids = [
            pack(e.stream, row, e.env, envs[e.stream])
            for e in episodes
            for row in range(e.start, e.start + min(reach, e.length))
        ]
        stacked = spaces.flatten(part.schema.obs_tree, buffer.get(np.array(ids, np.int64)).obs, "obs")
    return dict(zip(part.layout.obs, stacked, strict=True))


def _pairs(one: Iterator[Transitions], other: Iterator[Transitions]) -> Iterator[tuple[Transitions, Transitions]]:
    """Yield both sides in parts of the same length, until one ends."""
    mine, theirs = next(one, None), next(other, None)
    while mine is not None and theirs is not None:
        count = min(len(mine), len(theirs))
        yield mine.span(0, count), theirs.span(0, count)
        mine = mine.span(count, len(mine)) if count < len(mine) else next(one, None)
        theirs = theirs.span(count, len(theirs)) if count < len(theirs) else next(other, None)


def _first(mine: Transitions, theirs: Transitions) -> Difference | None:
    """Return the earliest step with a difference, and the first column that has one there."""
    columns = [(name, values, theirs.columns()[name]) for name, values in mine.columns().items()]
    columns += [(f"next {name}", values, theirs.next_obs[name]) for name, values in mine.next_obs.items()]
    columns.append(("end of the episode", mine.last, theirs.last))
    found = [(at, what, a, b) for what, a, b in columns if (at := _unequal(a, b)) is not None]
    if not found:
        return None
    step, what, a, b = min(found, key=lambda one: one[0])
    if isinstance(a, Lists) and len(a[step]) != len(b[step]):
        return Difference(f"items of {what}", str(len(a[step])), str(len(b[step])), step=step)
    element = _element(a[step], b[step])
    return Difference(what, str(a[step][element]), str(b[step][element]), step=step, element=element)


def _element(a: Array, b: Array) -> tuple[int, ...]:
    """Return the first place in which two values, which are not the same, differ."""
    first: list[int] = np.argwhere(_bits(a) != _bits(b))[0].tolist()
    return tuple(first)


def _unequal(a: Array, b: Array) -> int | None:
    if isinstance(a, Lists):
        return next((at for at, (mine, theirs) in enumerate(zip(a, b, strict=True)) if _differ(mine, theirs)), None)
    unequal = (_bits(a) != _bits(b)).reshape(len(a), -1).any(axis=1)
    return int(unequal.argmax()) if unequal.any() else None


def _differ(mine: Array, theirs: Array) -> bool:
    return len(mine) != len(theirs) or bool(np.any(_bits(mine) != _bits(theirs)))


def _bits(values: Array) -> Array:
    """Return numbers as the integers that their bits are, so that a NaN is equal to itself."""
    values = np.asarray(values)
    if values.dtype.kind == "c":
        return values.view(np.dtype([("real", f"u{values.itemsize // 2}"), ("imag", f"u{values.itemsize // 2}")]))
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values
