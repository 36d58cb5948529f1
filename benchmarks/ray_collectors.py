"""Rows a second that 1, 2 and 4 collectors write into one store, in one run, side by side.

Frames of 84x84 uint8 that cost nothing to make, in stacks of one, 8 environments a collector, and a policy that costs
nothing: what is measured is the way of a row into the store, commits included. Each count of collectors has a store of
its own, and warms up until all have committed; rounds take turns, and the median counts. The processors' number is
printed: more collectors than processors share them.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from typing import Any

import gymnasium
import harness
import numpy as np
import ray

from diskreplay.ray import Collectors

COUNTS = (1, 2, 4)
ENVS = 8
SECONDS = 6.0
ROUNDS = 3
LENGTH = 200


class Frames(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Frames out of a pool that is made once; all environments end together, and reset in the next step."""

    def __init__(self) -> None:
        self.num_envs = ENVS
        self.single_observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
        self.single_action_space = gymnasium.spaces.Discrete(6)
        self.metadata = {}
        rng = np.random.default_rng(0)
        self._pool = np.repeat(rng.integers(0, 255, (64, ENVS, 12, 12), np.uint8), 7, 2).repeat(7, 3)
        self._at, self._flags = 0, np.zeros(ENVS, bool)

    def reset(self, **_: Any) -> Any:
        return self._pool[0], {}

    def step(self, actions: Any) -> Any:
        self._at += 1
        over = np.full(ENVS, self._at % LENGTH == LENGTH - 1)
        return self._pool[self._at % 64], np.ones(ENVS), over, self._flags, {}


def policy(weights: Any, rng: np.random.Generator) -> Any:
    return lambda obs: np.zeros(len(obs), np.int64)


def rate(path: str, count: int) -> float:
    """Transitions a second of so many collectors."""
    with Collectors(
        count, path, Frames, policy, capacity=100_000, steps_per_commit=200, actor_options={"num_cpus": 0.5}, seed=0
    ) as collecting:
        while not all(one["transitions"] for one in collecting.stats()["collectors"]):
            time.sleep(0.05)
        before, start = collecting.stats()["inserts"], time.perf_counter()
        time.sleep(SECONDS)
        return float((collecting.stats()["inserts"] - before) / (time.perf_counter() - start))


def main() -> None:
    rounds = harness.parser(__doc__, ROUNDS).parse_args().steps  # `--steps` is the number of rounds here
    os.environ["PYTHONPATH"] = os.pathsep.join([str(harness.HERE), *sys.path])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    found: dict[int, list[float]] = {count: [] for count in COUNTS}
    for number in range(rounds):
        for count in COUNTS:
            with harness.scratch() as folder:
                found[count].append(rate(str(folder / f"{number}.replay"), count))
                print(count, f"{found[count][-1]:,.0f} transitions a second", flush=True)
    medians = {count: statistics.median(rates) for count, rates in found.items()}
    rows = [(str(count), f"{one:,.0f}", f"{one / medians[1]:.2f}") for count, one in medians.items()]
    body = (
        f"{rounds} rounds of {SECONDS:g} s each; {os.cpu_count()} processors, which the trainer's process shares.\n\n"
    )
    body += harness.table(("collectors", "transitions a second", "over one"), rows)
    versions = harness.versions("ray", "numpy", "gymnasium")
    harness.write_section("ray_collectors", "Collectors with Ray", versions, body, keep=rounds == ROUNDS)


if __name__ == "__main__":
    main()
