"""One writer for all datasets that are named arrays: a container, and what its arrays are called.

It is :mod:`~diskreplay.formats.core.array_reader` the other way round. :func:`by_name` gives steps by our names; a
layout's ``Convention.written`` says which of these it has, and how it calls them. A few MB are in RAM at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.formats.core.container import Output
from diskreplay.formats.core.convention import FINAL_OBS, NEXT_OBS, OFFSETS
from diskreplay.formats.core.ends import CUT
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source, Transitions, no_steps
from diskreplay.schema.columns import OBS, TRUNCATED
from diskreplay.schema.ragged import Lists

Stored = Callable[[str, Any, int], Any]
"""A function that returns values as they stand in a file, by our name of them and how many steps came before them."""


def write_flat(layout: Layout, blocks: Iterable[Transitions], out: Output, names: Mapping[str, str]) -> None:
    """Write steps one behind another; ``names`` says how each of our names is called."""
    append, done = _appender(out, names), 0
    for steps in itertools.chain([no_steps(layout)], blocks):  # so that no array is missing
        append(steps, done)
        done += len(steps)


def write_episodes(
    source: Source, out: Output, names: Mapping[str, str], place: Callable[[int, str], str],
    stored: Stored = lambda ours, values, before: values,
) -> Iterator[EpisodeBlock]:  # fmt: skip
    """Write steps as numbered episodes, and yield the last block of each one that is whole.

    Args:
        source: what is written.
        out: the container that takes it.
        names: how each of our names is called in an episode.
        place: returns the name of an episode's array, by the number of the episode.
        stored: returns values as they stand in a file.
    """
    for episode in episode_blocks(source.blocks()):
        if not episode.start:
            append = _appender(out, {ours: place(episode.number, name) for ours, name in names.items()}, stored)
        append(episode.steps, episode.start)
        if episode.ends:
            out.end()
            yield episode


def by_name(steps: Transitions, before: int) -> dict[str, Any]:
    """Return everything about steps by our names; ``before`` steps came before them."""
    last = np.flatnonzero(steps.last)
    following = {name.replace(OBS, NEXT_OBS, 1): values for name, values in steps.next_obs.items()}
    finals = {name.replace(OBS, FINAL_OBS, 1): values[last] for name, values in steps.next_obs.items()}
    cut = last[~(steps.terminated | steps.truncated)[last]]
    ends = {"/last": steps.last, "/stops": last + before + 1, CUT: cut + before}
    return {**steps.columns(), **following, **finals, **ends}


def _appender(
    out: Output, names: Mapping[str, str], stored: Stored = lambda ours, values, before: values
) -> Callable[[Transitions, int], None]:
    """Return a function that appends what has a name; the items of ragged columns are counted from call to call."""
    items: dict[str, int] = {}

    def append(steps: Transitions, before: int) -> None:
        found = by_name(steps, before)
        if CUT in names:  # the flag stands for the ends that have none, which are told apart by their numbers
            found[TRUNCATED] = steps.truncated | (steps.last & ~steps.terminated)
        for ours in filter(names.__contains__, found):
            values = stored(ours, found[ours], before)
            if isinstance(values, Lists):
                name = names[f"{OFFSETS}/{ours}"]
                out.append(name, values.offsets[name in items :] + items.get(name, 0))
                items[name] = items.get(name, 0) + int(values.offsets[-1])
                values = values.values
            if len(values) or ours != CUT:
                out.append(names[ours], values)

    return append
