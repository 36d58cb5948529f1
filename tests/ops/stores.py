"""Small stores that the tests of ops, formats and the command line share."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

import diskreplay as dr

IMAGE = spaces.Box(0, 255, (40, 40), np.uint8)
"""Large enough to be reached on disk, not mirrored in RAM."""


def images(path: Any, rows: int = 50, *, num_envs: int = 2, capacity: int = 200, seed: int = 0, **options: Any) -> None:
    """A store of random images: episodes of 7 steps, one environment a step behind the other."""
    options = {"chunk_rows": {"obs": 4}, "shard_rows": {"obs": 16}, "frame_stack": 3, "stack_axis": None, **options}
    with dr.ReplayBuffer.create(
        path, IMAGE, spaces.Discrete(5), num_envs=num_envs, capacity=capacity, seed=seed, **options
    ) as buffer:
        fill(buffer, rows, seed)


def fill(buffer: dr.ReplayBuffer, rows: int, seed: int = 0, commit_every: int = 9) -> None:
    """Adds rows as a vector environment with next-step autoreset would."""
    rng = np.random.default_rng(seed)
    envs = buffer.num_envs
    obs, valid, age = rng.integers(0, 256, (envs, 40, 40), np.uint8), np.ones(envs, bool), np.arange(envs) % 7
    for row in range(rows):
        following = rng.integers(0, 256, (envs, 40, 40), np.uint8)
        age = np.where(valid, age + 1, 0)
        done = valid & (age >= 7)
        late = rng.random(envs) < 0.3
        arguments = (obs, rng.integers(5, size=envs), rng.normal(size=envs), following, done & ~late, done & late)
        if envs == 1:
            arguments = tuple(value[0] for value in arguments)
        buffer.add(*arguments, valid=valid if envs > 1 else valid[0])
        obs, valid = following, ~done
        if row % commit_every == commit_every - 1:
            buffer.commit()
