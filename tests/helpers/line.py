"""Stores whose rows say which they are: row ``n`` shows ``n``, then ``n + 1``, and its reward is ``n``."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

import diskreplay as dr

LINE, TURN = Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
"""The test says when it commits."""


def create(path: Any, capacity: int = 100, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer:
    """A buffer of one number a step, which draws alike in each run."""
    return dr.ReplayBuffer.create(
        path, LINE, TURN, capacity=capacity, num_envs=num_envs, **{**OPEN, "seed": 0, **options}
    )


def add(
    buffer: dr.ReplayBuffer, rows: int = 1, first: float | None = None, *, reward: float | None = None,
    ends: bool = False, **more: Any,
) -> None:  # fmt: skip
    """Adds rows to all environments, from number ``first`` on, or from the end of the stream.

    Args:
        buffer: whose observations may have any shape.
        rows: how many.
        first: the number of the first.
        reward: of each, its number if None.
        ends: whether the last one ends an episode.
        more: what ``add`` takes beside a step.
    """
    envs = () if buffer.num_envs == 1 else (buffer.num_envs,)
    shape, never = (*envs, *buffer.schema.observation_space.shape), np.zeros(envs, bool)
    start = buffer.stats()["streams"][buffer.stream]["end"] if first is None else first
    for number in np.arange(start, start + rows):
        buffer.add(
            np.full(shape, number), np.zeros(envs, int), np.full(envs, float(number) if reward is None else reward),
            np.full(shape, number + 1), never | (ends and number == start + rows - 1), never, **more,
        )  # fmt: skip


def play(
    buffer: dr.ReplayBuffer, rows: int, first: float = 0.0, *, reward: float = 1.0, ends: bool = True, **facts: Any
) -> None:
    """An episode in all environments, whose observations begin with ``first``; and what is said of it."""
    if facts:
        buffer.begin_episode(**facts)
    add(buffer, rows, first, reward=reward, ends=ends)


def rows_in(path: Any, **options: Any) -> int:
    """How many transitions a store has, for a reader that opens it."""
    with dr.ReplayBuffer.open(path, **{"mode": "r", **options}) as buffer:
        return len(buffer)
