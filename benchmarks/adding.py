"""How fast steps go in: ours beside Stable-Baselines3's buffer (in RAM), for five shapes of input.

Both hold as many steps as one pass adds and are filled by a first pass that is not timed: memory has been touched, the
window is full, every step evicts one. Then a second pass is timed, with our last `commit` in it, so that all of it is
durable (fsync included); SB3 has nothing to commit. What an environment would hand over is made ready before the
clock starts.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import contenders
import numpy as np
import workload
from gymnasium import spaces

FRAME = spaces.Box(0, 255, (84, 84), np.uint8)
STACKED = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (17,), np.float32)
TORQUE = spaces.Box(-1, 1, (6,), np.float32)
BUTTON = spaces.Discrete(18)


@dataclasses.dataclass(frozen=True)
class Case:
    label: str
    target: int  # steps a second; a row of 32 environments is 32 steps
    envs: int
    rows: int
    obs: spaces.Box
    action: spaces.Space
    frame_stack: int
    steps: Callable[[int], Sequence[workload.Step]]  # rows -> what to add


def one_environment(rows: int, kind: str) -> list[workload.Step]:
    return [step for episode in workload.mixture(rows) for step in getattr(episode, kind)()]


CASES = (
    Case("frames, one environment", 50_000, 1, 20_000, FRAME, BUTTON, 4, lambda rows: one_environment(rows, "singles")),
    Case(
        "4-stacked frames, one environment",
        20_000,
        1,
        20_000,
        STACKED,
        BUTTON,
        4,
        lambda rows: one_environment(rows, "stacks"),
    ),
    Case("frames, 32 environments", 100_000, 32, 640, FRAME, BUTTON, 4, lambda rows: workload.lockstep(32, rows)),
    Case("17 float32, one environment", 60_000, 1, 100_000, VECTOR, TORQUE, 1, lambda rows: workload.vectors(1, rows)),
    Case(
        "17 float32, 32 environments", 500_000, 32, 20_000, VECTOR, TORQUE, 1, lambda rows: workload.vectors(32, rows)
    ),
)


@dataclasses.dataclass(frozen=True)
class Rate:
    """Medians of the rounds.

    Attributes:
        ours, sb3: steps a second; None without SB3.
        caller, all_threads: microseconds of processor time that ours takes a step: of the thread that adds, which
            checks and copies; with those that compress.
    """

    ours: float
    sb3: float | None
    caller: float
    all_threads: float


def ours(case: Case, steps: Sequence[workload.Step], path: pathlib.Path) -> tuple[float, float, float]:
    """Seconds of the second pass: of the clock, of processor time of this thread, and of the process."""
    spaces_ = {"observation_space": case.obs, "action_space": case.action}
    options = {"num_envs": case.envs, "frame_stack": case.frame_stack, **spaces_}
    with contenders.create_store(str(path), len(steps) * case.envs, **options) as buffer:
        pass_through(buffer.add, steps)
        buffer.commit()
        clocks = time.perf_counter, time.thread_time, time.process_time
        start = [clock() for clock in clocks]
        pass_through(buffer.add, steps)
        buffer.commit()
        wall, thread, process = (clock() - begin for clock, begin in zip(clocks, start, strict=True))
        return wall, thread, process


def sb3(case: Case, steps: Sequence[tuple]) -> float:
    from stable_baselines3.common.buffers import ReplayBuffer

    buffer = ReplayBuffer(len(steps) * case.envs, case.obs, case.action, device="cpu", n_envs=case.envs)
    pass_through(buffer.add, steps)
    start = time.perf_counter()
    pass_through(buffer.add, steps)
    return time.perf_counter() - start


def pass_through(add: Callable[..., Any], steps: Sequence[tuple]) -> None:
    for step in steps:
        add(*step)


def rates(scratch: pathlib.Path, rounds: int, scale: float) -> list[tuple[Case, Rate]]:
    """What each case takes, ours and SB3's by turns."""
    has_sb3 = importlib.util.find_spec("stable_baselines3") is not None
    found = []
    for number, case in enumerate(CASES):
        rows = max(64, int(case.rows * scale))
        steps = case.steps(rows)
        sb3_steps = [contenders.sb3_arguments(step) for step in steps]
        mine, theirs = [], []
        for turn in range(rounds):
            mine.append(ours(case, steps, scratch / f"add-{number}-{turn}"))
            if has_sb3:
                theirs.append(sb3(case, sb3_steps))
        count = case.envs * rows
        wall, thread, process = (statistics.median(each) for each in zip(*mine, strict=True))
        peer = count / statistics.median(theirs) if theirs else None
        found.append((case, Rate(count / wall, peer, 1e6 * thread / count, 1e6 * process / count)))
    return found
