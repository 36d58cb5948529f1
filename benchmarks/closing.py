"""What `close` costs that keeps priorities: beside a commit of 100 rows, and a checkpoint of as many.

The window is full, and every priority differs.

    python benchmarks/closing.py [--steps 1048576] [--repeats 21]
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr

ENVS = 16
ROWS = 100


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(path: str, sampler: Any, steps: int, repeats: int) -> tuple[list[float], int]:
    """Median milliseconds of what the table says; bytes of the state on disk."""
    rng = np.random.default_rng(0)
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    with dr.ReplayBuffer.create(path, space, actions, capacity=steps, num_envs=ENVS, sampler=sampler, seed=0) as buffer:
        obs = rng.random((steps // ENVS + 1, ENVS, 4), np.float32)
        zeros = np.zeros((steps // ENVS, ENVS))

        def add(rows: int) -> None:
            done = zeros[:rows].astype(bool)
            buffer.extend(obs[:rows], zeros[:rows].astype(int), zeros[:rows], obs[1 : rows + 1], done, done)

        add(steps // ENVS)
        for first in range(0, steps, 1 << 16):
            ids = np.arange(first, min(first + (1 << 16), steps))
            buffer.update_priorities(ids, rng.exponential(size=len(ids)))
        plain, checkpoint, keep, asked, size = [], [], [], [], 0
        for _ in range(repeats):
            for times, end in ((plain, buffer.commit), (checkpoint, lambda: buffer.checkpoint("kept"))):
                add(ROWS)
                buffer.sample(32)
                times.append(seconds(end))
            folder = pathlib.Path(path, "checkpoints", "kept")
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            buffer.drop_checkpoint("kept")
            asked.append(seconds(sampler.state))
            buffer.update_priorities(buffer.items()[:1], [1.0])
            buffer.commit()
            keep.append(seconds(buffer.engine.save_sampler))
        return [harness.median_ms(times) for times in (plain, checkpoint, keep, asked)], size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=21)
    asked = parser.parse_args()
    print("| sampler | commit, ms | checkpoint, ms | kept, ms | of that `state()`, ms | bytes |")
    print("|---|---|---|---|---|---|")
    for sampler in (dr.Proportional(), dr.RankBased()):
        with harness.scratch() as folder:
            times, size = measured(str(folder / "store"), sampler, asked.steps, asked.repeats)
        print(f"| `{type(sampler).__name__}` | {' | '.join(f'{one:.1f}' for one in times)} | {size:,} |")


if __name__ == "__main__":
    main()
