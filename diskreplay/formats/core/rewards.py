"""Rewards that are not finite: which steps have them, and a dataset without the episodes of these."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.inputs import Slot
from diskreplay.formats.core.gaps import remaining
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source, Transitions

Array = NDArray[Any]


class Rewards:
    """The rewards of blocks that follow each other.

    Attributes:
        episode, step: the place of the next step, both counted from 0.
    """

    def __init__(self, layout: Layout) -> None:
        self._slot = Slot("reward", (), layout.reward_dtype, 1)
        self.episode = self.step = 0

    def of(self, steps: Transitions) -> tuple[Array, Array]:
        """Return the rewards of the next block ``(n,)``, and row, episode and step of those not finite, ``(k, 3)``."""
        rewards = self._slot.check_steps(steps.reward, len(steps))
        rows = np.flatnonzero(~np.isfinite(rewards))
        begins = np.concatenate([[-self.step], np.flatnonzero(steps.last) + 1])
        episodes = np.searchsorted(begins, rows, side="right") - 1
        unfinite = np.stack([rows, self.episode + episodes, rows - begins[episodes]], axis=1)
        self.episode, self.step = self.episode + len(begins) - 1, len(steps) - int(begins[-1])
        return rewards, unfinite


def without_unfinite(source: Source) -> Source:
    """Return a source without the episodes that have a reward that is not finite, which it reads once to find them."""
    rewards, lasts, found = Rewards(source.layout), [np.empty(0, bool)], [np.empty((0, 3), np.int64)]
    for steps in source.blocks():
        found.append(rewards.of(steps)[1])
        lasts.append(steps.last)
    unfinite, last = np.concatenate(found), np.concatenate(lasts)
    if not len(unfinite):
        return source
    odd = np.unique(unfinite[:, 1])
    gone = np.isin(np.cumsum(last) - last, odd)
    _, episode, step = unfinite[0].tolist()
    known = len(source.facts) == rewards.episode + (rewards.step > 0)  # else nobody knows whose facts they are
    return dataclasses.replace(
        source, steps=source.steps - int(gone.sum()), blocks=lambda: remaining(source.blocks(), gone),
        episodes=None if source.episodes is None else source.episodes - len(odd),
        facts=tuple(facts for number, facts in enumerate(source.facts) if number not in odd) if known else (),
        notes=(*source.notes, f"left out: {len(odd):,} episode{'s' * (len(odd) != 1)} with a reward that is not finite "
               f"(the first: step {step:,} of episode {episode:,})"),
    )  # fmt: skip
