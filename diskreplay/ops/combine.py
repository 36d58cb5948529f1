"""The making of one store from several, and of several from one: whole episodes, steps as they were."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay import formats
from diskreplay.buffers.provenance import common
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats.core.output import replacing
from diskreplay.formats.core.selection import SelectedStore, Selection, open_selected
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.store import write_store
from diskreplay.ops.convert import bytes_of, counted, held, new_store
from diskreplay.ops.result import Written
from diskreplay.ops.signals import Progress, stoppable
from diskreplay.schema.ragged import Lists
from diskreplay.storage.paths import PathLike, checked_path, is_url
from diskreplay.video import MAX_PARAMETERS, Video, renumbered

STORE = formats.get("store")


def merge(
    out: PathLike, paths: Sequence[PathLike], *, allow_loss: bool = False, progress: Progress | None = None
) -> Written:
    """Make a store ``out`` with the episodes of all stores at ``paths``, in that order.

    Args:
        out: must not exist.
        paths: the paths of stores with the same spaces, columns and frame stacks. Their video may differ in the codec's
            parameters. ``out`` refuses NaN and infinity if all of them do. Its continuity is "flags" if that of one of
            them is. Its provenance is what all of them have in common, with each one that differs in ``sources``.
        allow_loss: go on where frame stacks cannot be rebuilt, and without values that were written later.
        progress: a function, called with the transitions done and in all.

    Raises InputError for stores that do not fit together, and what opening them raises.
    """
    if not paths:
        raise InputError("name at least one store to merge")
    target = new_store(out, *paths)
    with stoppable(progress) as report, replacing(target, "directory") as temporary:
        parts = [open_selected(path) for path in paths]
        for part in parts[1:]:
            check_alike(parts[0], part)
        videos = together([part.schema.videos for part in parts])
        sources = [with_videos(held(part, STORE, allow_loss)[0], videos) for part in parts]
        steps = sum(source.steps for source in sources)
        layout = dataclasses.replace(
            sources[0].layout,
            finite=all(source.layout.finite for source in sources),
            continuity="flags" if any(source.layout.continuity == "flags" for source in sources) else "observations",
            provenance=common([dict(source.layout.provenance) for source in sources]),
        )
        facts = [told for source in sources for told in source.facts or [{}] * (source.episodes or 0)]
        whole = Source(layout, steps, lambda: itertools.chain.from_iterable(s.blocks() for s in sources), facts=facts)
        write_store(counted(whole, report), temporary)
    return Written(str(target), steps, sum(len(part.episodes) for part in parts), bytes_of(target))


def together(each: Sequence[Mapping[str, Video]]) -> dict[str, Video]:
    """Return the facts of the video columns of stores, with the parameters of all of them; InputError if too many."""
    found = {}
    for name, first in each[0].items():
        parameters = tuple(dict.fromkeys(one for videos in each for one in videos[name].parameters))
        if len(parameters) > MAX_PARAMETERS:
            raise InputError(
                f"the video column {name!r} would have {len(parameters)} codec parameters, and may have "
                f"{MAX_PARAMETERS}: merge fewer stores"
            )
        found[name] = dataclasses.replace(first, parameters=parameters)
    return found


def with_videos(source: Source, videos: Mapping[str, Video]) -> Source:
    """Return the source with the parameters' number in each record changed to its number in ``videos``."""
    given = source.layout.video
    numbers = {name: [videos[name].parameters.index(one) for one in given[name].parameters] for name in given}
    merged = dataclasses.replace(source, layout=dataclasses.replace(source.layout, video=videos))
    if all(each == list(range(len(each))) for each in numbers.values()):
        return merged

    def changed(columns: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: Lists(renumbered(values.values, numbers[name]), values.offsets) if name in numbers else values
            for name, values in columns.items()
        }

    def renamed(steps: Transitions) -> Transitions:
        obs, following, extra = map(changed, (steps.obs, steps.next_obs, steps.extra))
        return dataclasses.replace(steps, obs=obs, next_obs=following, extra=extra)

    return dataclasses.replace(merged, blocks=lambda: map(renamed, source.blocks()))


def split(
    path: PathLike, fractions: Sequence[float], outs: Sequence[PathLike] = (), *, seed: int = 0,
    where: str | None = None, allow_loss: bool = False, progress: Progress | None = None,
) -> list[Written]:  # fmt: skip
    """Deal the episodes of the store at ``path`` out to new stores, at random.

    Args:
        path: the path of the store.
        fractions: the fraction of the transitions for each store; if they do not add up to 1, the rest is one store
            more. Episodes stay whole, so the fractions are met about.
        outs: the new stores; ``pong.replay`` becomes ``pong-1.replay``, ``pong-2.replay`` and so on if empty.
        seed: the seed by which episodes are dealt out.
        where: a condition on the episodes, as of :meth:`ReplayBuffer.select`: the others are left out.
        allow_loss: go on where frame stacks cannot be rebuilt, and without values that were written later.
        progress: a function, called with the transitions done and in all.

    Raises:
        InputError: for fractions that are no parts of a whole, or another number of ``outs``.
        NotEnoughDataError: when there are fewer episodes than parts.
    """
    shares = checked_shares(fractions)
    outs = outs or split_names(path, fractions)
    if len(outs) != len(shares):
        raise InputError(f"{len(shares)} stores are to be made, but {len(outs)} are named")
    targets = [new_store(out, path) for out in outs]
    if len(set(targets)) != len(targets):
        raise InputError("the stores to be made must have different names")
    done = 0
    with stoppable(progress) as report, contextlib.ExitStack() as stack:
        whole = open_selected(path, Selection(where=where))
        every = whole.numbered()
        known = list(every)
        dealt = deal([episode.length for episode in every.values()], shares, seed)
        # Of the streams as they were opened: a writer may have moved the window on, and the numbers with it.
        parts = [SelectedStore(path, whole.streams, Selection(tuple(known[at] for at in each))) for each in dealt]

        def after(before: int) -> Progress:
            return lambda step, _: report(before + step, whole.steps)

        places = [stack.enter_context(replacing(target, "directory")) for target in targets]
        for place, part in zip(places, parts, strict=True):
            write_store(counted(held(part, STORE, allow_loss)[0], after(done)), place)
            done += part.steps
    return [
        Written(str(target), part.steps, len(part.episodes), bytes_of(target))
        for target, part in zip(targets, parts, strict=True)
    ]


def split_names(path: PathLike, fractions: Sequence[float]) -> list[pathlib.Path]:
    """Return the default names of the stores that a store is split into."""
    if is_url(path):
        raise InputError(f"name the stores that {os.fspath(path)!r} is to be split into")
    given = pathlib.Path(checked_path(path))
    parts = range(1, len(checked_shares(fractions)) + 1)
    return [given.with_name(f"{given.stem}-{part}{given.suffix}") for part in parts]


def checked_shares(fractions: Sequence[float]) -> list[float]:
    """Return fractions that add up to 1."""
    shares = [float(fraction) for fraction in fractions]
    total = sum(shares)
    if not shares or not all(0 < share < 1 for share in shares) or total > 1 + 1e-9:
        raise InputError(f"fractions must lie between 0 and 1 and add up to at most 1, got {shares}")
    return shares if total > 1 - 1e-9 else [*shares, 1 - total]


def deal(lengths: Sequence[int], shares: Sequence[float], seed: int) -> list[tuple[int, ...]]:
    """Return the numbers of episodes for each share of transitions, filled in turn in a random order."""
    if len(lengths) < len(shares):
        raise NotEnoughDataError(f"{len(lengths)} episodes cannot be dealt out to {len(shares)} stores; name fewer")
    order = np.random.default_rng(seed).permutation(len(lengths)).tolist()
    ends = np.cumsum(shares) * sum(lengths)
    middles = np.cumsum([lengths[number] for number in order]) - np.array([lengths[n] for n in order]) / 2
    places = np.minimum(np.searchsorted(ends, middles, side="right"), len(shares) - 1)
    dealt = [[order[at] for at in np.flatnonzero(places == share)] for share in range(len(shares))]
    for empty in dealt:  # few episodes: none of the stores is left without one
        if not empty:
            empty.append(max(dealt, key=len).pop())
    return [tuple(sorted(numbers)) for numbers in dealt]


def check_alike(one: SelectedStore, other: SelectedStore) -> None:
    """Raise InputError if two stores cannot be one."""
    a, b = one.schema, other.schema
    ragged = [
        {name: (one.items.shape, one.items.dtype, one.longest) for name, one in schema.ragged.items()}
        for schema in (a, b)
    ]
    videos = [
        {name: dataclasses.replace(one, parameters=(b"",)) for name, one in schema.videos.items()} for schema in (a, b)
    ]
    for what, mine, theirs in (
        ("another observation space", a.observation_space, b.observation_space),
        ("another action space", a.action_space, b.action_space),
        ("other ragged columns", *ragged),
        ("other video", *videos),
        ("other frame stacks", (a.stacks, a.padding), (b.stacks, b.padding)),
    ):
        if mine != theirs:
            raise InputError(f"{other.path!r} has {what} than {one.path!r}: {theirs}, not {mine}")
    columns, others = ([(c.name, c.shape, c.dtype) for c in schema.columns] for schema in (a, b))
    if columns != others:
        differ = {c[0]: None for c in [*columns, *others] if c not in columns or c not in others}
        raise InputError(
            f"{other.path!r} has other columns than {one.path!r}: they differ in {', '.join(differ) or 'their order'}"
        )
