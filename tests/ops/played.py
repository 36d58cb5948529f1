"""Random stores with all that an edit must keep, beside plain lists of what was played."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
from gymnasium import spaces

import diskreplay as dr

SPACE = spaces.Box(0, np.inf, (), np.float32)
LATER = {"mark": ((2,), np.float32)}


@dataclasses.dataclass
class Step:
    """A step; its numbers are found nowhere else, so that one cannot be taken for another."""

    id: int
    obs: int
    next_obs: int
    reward: float
    terminated: bool
    truncated: bool
    mark: int | None = None


@dataclasses.dataclass
class Played:
    """An episode, or a part of one."""

    stream: int
    env: int
    start: int
    steps: list[Step]
    facts: dict[str, Any]


def play(path: str, rng: np.random.Generator, streams: list[int], rows: int, **options: Any) -> list[Played]:
    """Makes a store with streams of so many environments; returns its episodes in the order of their numbers."""
    found: list[Played] = []
    for number, num_envs in enumerate(streams):
        if not number:
            buffer = dr.ReplayBuffer.create(
                path, SPACE, spaces.Discrete(2), capacity=400, num_envs=num_envs, later=LATER, **options
            )
        else:
            buffer = dr.ReplayBuffer.open(path, stream=f"s{number}", num_envs=num_envs, capacity=400)
        with buffer:
            found += _stream(buffer, rng, number, rows)
    return found


def _stream(buffer: dr.ReplayBuffer, rng: np.random.Generator, number: int, rows: int) -> list[Played]:
    envs, count = buffer.num_envs, 10_000 * number
    obs, running, every = [0] * envs, [None] * envs, []
    for row in range(rows):
        ends = rng.choice(4, size=envs, p=[0.7, 0.1, 0.1, 0.1])  # goes on, terminated, truncated, cut
        following = [0] * envs
        for env in range(envs):
            if running[env] is None:
                count += 1
                obs[env] = count
                running[env] = Played(number, env, row, [], {})
                every.append(running[env])
            count += 1
            following[env] = count
            running[env].steps.append(
                Step(
                    (number << 48) + row * envs + env, obs[env], count, float(rng.integers(9)), ends[env] == 1,
                    ends[env] == 2,
                )
            )  # fmt: skip
        last = [one.steps[-1] for one in running]
        arguments = [
            np.float32(obs), rng.integers(2, size=envs), np.float32([step.reward for step in last]),
            np.float32(following), np.array([s.terminated for s in last]), np.array([s.truncated for s in last]),
        ]  # fmt: skip
        buffer.add(*(a if envs > 1 else a[0] for a in arguments))
        obs = following
        running = [None if end else one for end, one in zip(ends, running, strict=True)]
    every.sort(key=lambda one: (one.start, one.env))
    steps = [step for one in every for step in one.steps if rng.random() < 0.4]
    for step in steps:
        step.mark = step.obs
    buffer.write(
        "mark", np.array([s.id for s in steps], np.int64), np.float32([[s.obs, -s.obs] for s in steps]).reshape(-1, 2)
    )
    for one, episode in zip(every, buffer.episodes[-len(every) :], strict=True):
        if rng.random() < 0.5:
            one.facts = {"seed": one.steps[0].obs, "tags": ["a"]}
            buffer.annotate_episode(episode, **one.facts)
    return every


def recorded(path: str | pathlib.Path, frames: int) -> list[tuple[Any, ...]]:
    """The episodes of a store, in the form of :func:`listed`, in the order of their numbers."""
    found = []
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as buffer:
        envs = [stream["num_envs"] for stream in buffer.stats()["streams"].values()]
        for one in buffer.episodes:
            batch = buffer.get((one.stream << 48) + np.arange(one.start, one.stop) * envs[one.stream] + one.env)
            marks = [
                int(mark[0]) if known else None
                for mark, known in zip(batch.extra["mark"], batch.extra["mark_known"], strict=True)
            ]
            assert all(mark[1] == -mark[0] for mark in batch.extra["mark"])
            obs, following = (values.reshape(len(marks), frames).tolist() for values in (batch.obs, batch.next_obs))
            flags = zip(batch.terminated.tolist(), batch.truncated.tolist(), strict=True)
            found.append((obs, following, batch.reward.tolist(), list(flags), marks, one.facts))
    return found


def listed(one: Played, frames: int) -> tuple[Any, ...]:
    """An episode as plain lists, with observations stacked from its own steps alone, and zeros before them."""
    seen = [0] * (frames - 1) + [step.obs for step in one.steps]
    obs = [seen[at : at + frames] for at in range(len(one.steps))]
    following = [[*stack[1:], step.next_obs] for stack, step in zip(obs, one.steps, strict=True)]
    return (
        obs, following, [step.reward for step in one.steps], [(step.terminated, step.truncated) for step in one.steps],
        [step.mark for step in one.steps], one.facts,
    )  # fmt: skip


def without(one: Played, gone: set[int]) -> list[Played]:
    """The parts of an episode that stay if the steps with these ids go."""
    parts: list[list[Step]] = [[]]
    for at, step in enumerate(one.steps):
        if step.id in gone:
            parts.append([])
            continue
        before_gap = at + 1 < len(one.steps) and one.steps[at + 1].id in gone
        parts[-1].append(dataclasses.replace(step, truncated=step.truncated or before_gap))
    return [dataclasses.replace(one, steps=part) for part in parts if part]
