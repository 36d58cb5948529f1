"""The taking away of steps, into a new store that is made as :mod:`diskreplay.ops.combine` makes one.

What is left is cut at the gaps (:mod:`diskreplay.formats.core.gaps`). Facts of an episode go with each of its parts,
values written later with their steps. The store itself does not change: ids, priorities and checkpoints name its rows.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Mask
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats.core.gaps import PLACES, by_place, in_ranges, joined, parts, remaining
from diskreplay.formats.core.output import replacing
from diskreplay.formats.core.selection import SelectedStore, Selection, open_selected, place_of, told
from diskreplay.formats.core.transitions import BLOCK_BYTES, Source
from diskreplay.formats.store import write_store
from diskreplay.ops.combine import STORE
from diskreplay.ops.convert import PLAIN, absolute, bytes_of, counted, held, new_store
from diskreplay.ops.result import Written
from diskreplay.ops.signals import Progress, stoppable
from diskreplay.schema.columns import KNOWN
from diskreplay.schema.ids import Ids, checked_ids
from diskreplay.storage.paths import PathLike, checked_path, is_url


@dataclasses.dataclass(frozen=True)
class Edited(Written):
    """The store that an edit wrote, or would; after a dry run it takes 0 bytes.

    Attributes:
        dry_run: True if nothing was written.
        removed: ``steps`` that went and ``episodes`` that they were of, by place: "begin", "middle", "end", "whole".
        divided: episodes of which more than one part stayed.
        seconds: that it took.
    """

    dry_run: bool
    removed: dict[str, dict[str, int]]
    divided: int
    seconds: float


def edit(
    path: PathLike, out: PathLike, *, drop: str | None = None, keep: str | None = None,
    drop_episodes: slice | tuple[int, ...] | None = None, steps: Sequence[slice] = (),
    episodes: slice | tuple[int, ...] | None = None, where: str | None = None, ids: Any = None,
    later: Mapping[str, Any] | None = None, allow_loss: bool = False, dry_run: bool = False,
    progress: Progress | None = None,
) -> Edited:  # fmt: skip
    """Make a store ``out`` with the steps of the store at ``path`` but some.

    Each run of steps that stays is an episode of ``out``, which has one environment and room for just its steps. The
    store at ``path`` may be written meanwhile.

    Args:
        path: of the store.
        out: must not exist.
        drop: a condition, as of :meth:`diskreplay.ReplayBuffer.select`: whole episodes for which it holds go.
        keep: a condition: whole episodes for which it does not hold go.
        drop_episodes: numbers of whole episodes that go.
        steps: ranges of steps that episodes lose, as ``[slice(0, 5), slice(-3, None)]``.
        episodes, where: numbers of, and a condition on, the episodes that lose ``steps``; all if None.
        ids: of the steps that go, ``(n,)``, as ``batch.index`` has them; they are named in no other way then.
        later: columns of ``out`` that are written later, beside those of the store, as ``create`` takes them. With
            these and nothing else, no step goes.
        allow_loss: go on where frame stacks cannot be rebuilt.
        dry_run: only say what would go.
        progress: called with transitions done and in all.

    Raises:
        InputError: when ``out`` exists, for an id that names no step of the store, for arguments that break a rule.
        NotEnoughDataError: when no step would go, or none would stay.
        StateError: when a live writer evicted rows before they were read.
        WriteFailedError, OpenError, CorruptionError: when a store cannot be written, opened or read.

    >>> import tempfile, gymnasium, diskreplay
    >>> with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
    ...     with diskreplay.ReplayBuffer.create(a, *[gymnasium.spaces.Discrete(9)] * 2, capacity=9) as rb:
    ...         rb.extend([0, 1, 2], [0, 0, 0], [1.0, 1.0, 1.0], [1, 2, 3], [False, False, True], [False] * 3)
    ...     edit(a, b, steps=[slice(1, 2)]).episodes
    2
    """
    started = time.perf_counter()
    check_elsewhere(path, out)
    target = new_store(out, path)
    chosen = bool(steps) or any(one is not None for one in (drop, keep, drop_episodes, episodes, where))
    named = chosen or ids is not None
    if ids is not None and chosen:
        raise InputError("ids name the steps that go: take ids alone, or leave them out")
    if (where is not None or episodes is not None) and not steps:
        raise InputError(
            "where and episodes choose episodes that lose some steps, and need steps (--steps A:B); whole episodes go "
            "by drop (--drop CONDITION), keep (--keep CONDITION: all others) or drop_episodes (--drop-episodes A:B)"
        )
    if isinstance(steps, slice) or any(not isinstance(one, slice) or one.step not in (None, 1) for one in steps):
        raise InputError(f"steps must be a list of slices of consecutive steps, [slice(0, 5)], got {steps!r:.80}")
    if not named and not later:
        raise InputError("say what is to go: episodes by drop, keep or drop_episodes; steps of episodes, or ids")
    with stoppable(progress) as report:
        whole = open_selected(path)
        columns = later_columns(whole, later or {})
        every, gone = whole.episodes, np.zeros(whole.steps, bool)
        if ids is not None:
            gone = with_ids(whole, checked_ids(ids))
        if keep is not None:
            gone = ~in_episodes(whole, Selection(where=keep))
        if drop is not None:
            gone |= in_episodes(whole, Selection(where=drop))
        if drop_episodes is not None:
            gone |= in_episodes(whole, Selection(drop_episodes))
        if steps:
            gone |= in_episodes(whole, Selection(episodes, where=where), steps)
        if named and (gone.all() or not gone.any()):
            longest, some = max((episode.length for episode in every), default=0), "all" if gone.any() else "none"
            raise NotEnoughDataError(
                f"{some} of the {len(gone):,} steps of {whole.path!r} would go: choose some, and not all (it has "
                f"{len(every):,} episodes, the longest of length {longest:,})"
            )
        stops = np.cumsum([episode.length for episode in every]).tolist()
        masks = [gone[stop - episode.length : stop] for stop, episode in zip(stops, every, strict=True)]
        left = {place_of(episode): mask for episode, mask in zip(every, masks, strict=True) if not mask.all()}
        source, part = without(whole, left, allow_loss)
        if not dry_run:
            with replacing(target, "directory") as temporary:
                write_store(counted(source, report), temporary, later=columns)
                if part.schema.later:
                    with ReplayBuffer.open(temporary, **PLAIN) as buffer:
                        copy_later(part, whole.ids()[~gone], buffer)
    return Edited(
        str(target), source.steps, source.episodes or 0, 0 if dry_run else bytes_of(target), dry_run, summed(masks),
        sum(len(parts(mask)) > 1 for mask in left.values()), time.perf_counter() - started,
    )  # fmt: skip


def check_elsewhere(path: PathLike, out: PathLike) -> None:
    """Raise InputError if a store is to be edited in its place, saying how else it is done."""
    target = absolute(out)
    if not is_url(path) and pathlib.Path(checked_path(path)).resolve() == target.resolve():
        raise InputError(
            f"{str(target)!r} is not edited in its place, because ids, priorities and checkpoints name its rows: name "
            "a new store, and rename that in the end; to take back its newest steps, go back to a checkpoint "
            "('diskreplay checkpoints restore')"
        )


def later_columns(whole: SelectedStore, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that are written later: those of a store, and more of them."""
    columns = {column.name: (column.shape, column.dtype) for column in whole.schema.later}
    if twice := sorted(columns.keys() & more.keys()):
        raise InputError(f"the store {whole.path!r} has {twice[0]!r} already, which is written later; leave it out")
    return {**columns, **more}


def with_ids(whole: SelectedStore, wanted: Ids) -> Mask:
    """Return which steps of a store have one of the ids; raise InputError for an id that none has."""
    known = whole.ids()
    missing = wanted[~np.isin(wanted, known)]
    if len(missing):
        raise InputError(
            f"{len(missing):,} of {len(wanted):,} ids name no step of the store {whole.path!r}, the first is "
            f"{missing[0]}: it was evicted, or is of another store"
        )
    return np.isin(known, wanted)


def in_episodes(whole: SelectedStore, selection: Selection, ranges: Sequence[slice] = (slice(None),)) -> Mask:
    """Return which steps of a store lie in the ranges of the selected episodes."""
    chosen = set(map(place_of, SelectedStore(whole.path, whole.streams, selection).episodes))
    return joined(in_ranges(e.length, ranges if place_of(e) in chosen else ()) for e in whole.episodes)


def summed(masks: Sequence[Mask]) -> dict[str, dict[str, int]]:
    """Return how many steps go, and of how many episodes, by place."""
    found = [by_place(mask) for mask in masks if mask.any()]
    each = {place: [counts[place] for counts in found if place in counts] for place in PLACES}
    return {place: {"steps": sum(counts), "episodes": len(counts)} for place, counts in each.items() if counts}


def without(whole: SelectedStore, left: Mapping[Any, Mask], allow_loss: bool) -> tuple[Source, SelectedStore]:
    """Return what is left as a source, and the episodes it is of: ``left`` has what goes of each by its place."""
    numbers = tuple(number for number, episode in whole.numbered().items() if place_of(episode) in left)
    part = SelectedStore(whole.path, whole.streams, Selection(numbers))
    source, _ = held(part, STORE, allow_loss, later=True)
    gone = joined(left.values())
    facts = [told(e) for e, mask in zip(part.episodes, left.values(), strict=True) for _ in parts(mask)]
    return dataclasses.replace(
        source, steps=len(gone) - int(np.count_nonzero(gone)), blocks=lambda: remaining(source.blocks(), gone),
        episodes=len(facts), facts=facts if any(facts) else (),
    ), part  # fmt: skip


def copy_later(part: SelectedStore, ids: Ids, buffer: ReplayBuffer, first: int = 0) -> None:
    """Write what was written later to the steps ``ids`` of a store to the steps of a copy from ``first`` on."""
    count = max(1, BLOCK_BYTES // sum(column.item_bytes for column in part.schema.later))
    for start in range(0, len(ids), count):
        found = part.written_later(ids[start : start + count])
        for column in part.schema.later:
            known = found[column.name + KNOWN]
            buffer.write(column.name, first + start + np.flatnonzero(known), found[column.name][known])
        buffer.commit()
