"""Rewards that are not finite: which steps have them, and a dataset without the episodes of these."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks
from diskreplay.formats.core.flat import ArrayLike, chunks_of
from diskreplay.formats.core.gaps import remaining
from diskreplay.formats.core.transitions import Source


def unfinite(source: Source, block: EpisodeBlock) -> NDArray[Any]:
    """Return which steps of a block of a source have a reward that is not finite as a store keeps it, by number."""
    with np.errstate(over="ignore"):
        rewards = block.steps.reward.astype(source.layout.reward_dtype)
    return block.start + np.flatnonzero(~np.isfinite(rewards))


def first_unfinite(source: Source) -> tuple[int, int]:
    """Return episode and step, both counted from 0, of the first reward that is not finite; there must be one."""
    found = ((block.number, unfinite(source, block)) for block in episode_blocks(source.blocks()))
    return next((episode, int(steps[0])) for episode, steps in found if len(steps))


def without_unfinite(source: Source) -> Source:
    """Return a source without the episodes that have a reward that is not finite, which it reads once to find them."""
    odd: dict[int, int] = {}
    numbers, count = [np.empty(0, np.int64)], 0
    for block in episode_blocks(source.blocks()):
        numbers.append(np.full(len(block.steps), block.number))
        count = block.number + 1
        if len(steps := unfinite(source, block)):
            odd.setdefault(block.number, int(steps[0]))
    if not odd:
        return source
    gone = np.isin(np.concatenate(numbers), [*odd])
    episode, step = next(iter(odd.items()))
    known = len(source.facts) == count  # else nobody knows whose facts they are
    return dataclasses.replace(
        source, steps=source.steps - int(gone.sum()), blocks=lambda: remaining(source.blocks(), gone),
        episodes=None if source.episodes is None else source.episodes - len(odd),
        facts=tuple(facts for number, facts in enumerate(source.facts) if number not in odd) if known else (),
        notes=(*source.notes, f"left out: {len(odd):,} episode{'s' * (len(odd) != 1)} with a reward that is not finite "
               f"(the first: step {step:,} of episode {episode:,})"),
    )  # fmt: skip


def check_finite(where: str, key: str, reward: ArrayLike, last: NDArray[np.bool_], moved: bool) -> None:
    """Raise InputError for a reward that is not finite; entries that belong to no step are not looked at."""
    if len(reward.shape) == 0 or np.dtype(reward.dtype).kind != "f" or reward.shape[0] != len(last):
        return  # checked where the steps are read
    used = np.append(False, ~last[:-1])[: len(last)] if moved else np.ones(len(last), bool)
    start = 0
    for values in chunks_of(reward):
        flat = values.reshape(len(values), -1)
        wrong = np.flatnonzero(~np.isfinite(flat).all(axis=1) & used[start : start + len(values)])
        if len(wrong):
            at = int(wrong[0])
            raise InputError(
                f"{where}: the rewards must be finite, {key} has {flat[at, 0]} in row {start + at:,}; "
                "--allow-loss leaves such episodes out"
            )
        start += len(values)
