"""Selections of episodes: finding them by their facts, and sampling within them, beside uniform sampling.

10^5 episodes of 10 steps, each with a seed, a policy's version, tags, success and an object. A selection is timed from
the text to the ids, as a program calls it; `sample` takes turns with uniform sampling of the same buffer.

Likewise of 10^6 episodes of 2 steps that know the version of their policy: the first selection, which makes the index
of a fact that no selection before it named, the next one, and one after a step was added; and draws of the newest
versions, with and without a step between two. Most of its minutes go into telling facts.

    python benchmarks/selections.py [--episodes 100000] [--many 1000000] [--repeats 301]
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr

EPISODES = 100_000
MANY = 1_000_000
VERSIONS = 100
LENGTH = 10
BATCH = 256
CONDITIONS = (
    "return > 100",
    "tag == 'expert'",
    "return > 100 and tag == 'expert'",
    "success and policy in (3, 4) and not (scene.floor < 0.5 or end == 'truncated')",
)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def fill(buffer: dr.ReplayBuffer, episodes: int, length: int = LENGTH) -> None:
    """Adds the episodes."""
    rng = np.random.default_rng(0)
    steps = episodes * length
    obs, following = rng.random((2, steps, 4), np.float32)
    terminated = np.arange(1, steps + 1) % length == 0
    following[:-1][~terminated[:-1]] = obs[1:][~terminated[:-1]]
    rewards = np.repeat(rng.random(episodes) * 20, length)
    buffer.extend(obs, np.zeros(steps, int), rewards, following, terminated, np.zeros(steps, bool))


def tell(buffer: dr.ReplayBuffer) -> None:
    rng = np.random.default_rng(1)
    episodes = buffer.episodes
    for number, episode in enumerate(episodes):
        buffer.annotate_episode(
            episode, seed=number, policy=number * 5 // len(episodes),
            tags=["expert", "night"] if number % 3 == 0 else ["night"], success=bool(rng.integers(2)),
            scene={"name": "kitchen", "floor": float(rng.random())},
        )  # fmt: skip


def of_many(path: pathlib.Path, episodes: int, repeats: int) -> list[str]:
    """Returns the lines about a store with many episodes."""
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    conditions = f"version >= {VERSIONS - 2}", "version >= 3", "length >= 2 and version != 7", "note == 'even'"
    with dr.ReplayBuffer.create(path, space, actions, capacity=2 * episodes, seed=0) as buffer:
        fill(buffer, episodes, 2)
        for number, episode in enumerate(buffer.episodes):
            buffer.annotate_episode(episode, version=number * VERSIONS // episodes, note="" if number % 2 else "even")
    lines = [
        "",
        f"| {episodes:,} episodes of 2 steps | first, ms | again, ms | after a step, ms |",
        "| --- | --- | --- | --- |",
    ]
    row = np.zeros(4, np.float32), 0, 0.0, np.ones(4, np.float32), True, False
    used = ["", "| `sample(256)` | us | after a step, us |", "| --- | --- | --- |"]
    for sampler in (dr.Uniform(), dr.Recent(by="version", within=1), dr.Counting(dr.Uniform(), 1_000)):
        with dr.ReplayBuffer.open(path, seed=0, sampler=sampler) as buffer:  # some seconds: all facts are read
            for where in conditions if sampler == dr.Uniform() else ():
                first = seconds(lambda: buffer.select(where))  # noqa: B023
                again, added = [], []
                for _ in range(7):
                    again.append(seconds(lambda: buffer.select(where)))  # noqa: B023
                    buffer.add(*row)
                    added.append(seconds(lambda: buffer.select(where)))  # noqa: B023
                ours = (1e3 * first, 1e3 * statistics.median(again), 1e3 * statistics.median(added))
                lines.append(f"| `{where}` | " + " | ".join(f"{each:.1f}" for each in ours) + " |")
            buffer.sample(BATCH)
            again, added = [], []
            for _ in range(repeats):
                again.append(seconds(lambda: buffer.sample(BATCH)))
                buffer.add(*row)
                added.append(seconds(lambda: buffer.sample(BATCH)))
        medians = (1e6 * statistics.median(times) for times in (again, added))
        used.append(f"| `{sampler}` | " + " | ".join(f"{each:.0f}" for each in medians) + " |")
    return [*lines, *used]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=EPISODES, help=f"default {EPISODES:,}; only that many are kept")
    parser.add_argument("--many", type=int, default=MANY, help=f"of the last two tables, default {MANY:,}")
    parser.add_argument("--repeats", type=int, default=301)
    asked = parser.parse_args()
    lines: list[str] = []
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    with harness.scratch() as folder:
        path = folder / "store"
        with dr.ReplayBuffer.create(path, space, actions, capacity=asked.episodes * LENGTH, seed=0) as buffer:
            fill(buffer, asked.episodes)
            buffer.commit()
            plain = seconds(lambda: dr.ReplayBuffer.open(path, mode="r").close())
            before = harness.resident_bytes()
            telling = seconds(lambda: tell(buffer))
            after = harness.resident_bytes()
            committing = seconds(buffer.commit)
            stored = sum(file.stat().st_size for file in pathlib.Path(path, "streams", "0", "info").rglob("*"))
            again = []
            for number in range(11):
                for episode in buffer.episodes[-100:]:
                    buffer.annotate_episode(episode, seen=number)
                again.append(seconds(buffer.commit))
            told = seconds(lambda: dr.ReplayBuffer.open(path, mode="r").close())
            lines += ["| of all episodes | |", "| --- | --- |"]
            lines.append(f"| told, s (us each) | {telling:.2f} ({1e6 * telling / asked.episodes:.1f}) |")
            lines.append(f"| RAM, bytes an episode | {(after - before) / asked.episodes:.0f} |")
            lines.append(f"| their commit, ms | {1e3 * committing:.0f} |")
            lines.append(f"| on disk, bytes an episode | {stored / asked.episodes:.1f} |")
            lines.append(f"| a commit of 100 that changed, ms | {harness.median_ms(again):.1f} |")
            lines.append(f"| open to read, ms, without and with facts | {1e3 * plain:.0f}, {1e3 * told:.0f} |")
            lines += ["", "| condition | episodes | select, ms | `sample(256)`, us | uniform, us | ratio |"]
            lines.append("| --- | --- | --- | --- | --- | --- |")
            for where in CONDITIONS:
                took = [seconds(lambda: buffer.select(where)) for _ in range(7)]  # noqa: B023
                chosen = buffer.select(where)
                within, uniform = [], []
                for _ in range(asked.repeats):
                    uniform.append(seconds(lambda: buffer.sample(BATCH)))
                    within.append(seconds(lambda: buffer.sample(BATCH, within=chosen)))  # noqa: B023
                ours, theirs = (1e6 * statistics.median(times) for times in (within, uniform))
                lines.append(
                    f"| `{where}` | {len(chosen):,} | {1e3 * statistics.median(took):.0f} | {ours:.0f} | {theirs:.0f} "
                    f"| {ours / theirs:.2f} |"
                )
        lines += of_many(folder / "many", asked.many, asked.repeats)
    intro = (
        f"{asked.episodes:,} episodes of {LENGTH} steps. Asked: a selection in 100 ms, `sample` over one at most 1.2x."
    )
    body = "\n".join([intro, "", *lines])
    keep = (asked.episodes, asked.many) == (EPISODES, MANY)
    harness.write_section(
        "selections", "Selections of episodes", harness.versions("diskreplay", "numpy"), body, keep=keep
    )


if __name__ == "__main__":
    main()
