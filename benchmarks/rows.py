"""What a row costs the thread that adds it: microseconds of processor time, here and in another checkout by turns.

    python benchmarks/rows.py --against ../diskreplay-before

Each round fills a buffer with its steps, commits, and times a second pass. Steps are made of random numbers, or of
frames in which little moves; episodes have the length that a case says, with environments that end by turns or at once.
A checkout from before the core was in C compiles what adds rows before the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

HERE = pathlib.Path(__file__).resolve().parent.parent
FRAME = spaces.Box(0, 255, (84, 84), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (17,), np.float32)
FRAMES = 32
"""Rows after which the frames come again."""


class Case(NamedTuple):
    label: str
    obs: spaces.Box
    envs: int
    rows: int
    length: int
    extend: int = 0
    by_turns: bool = False

    @property
    def action(self) -> spaces.Space[Any]:
        return spaces.Discrete(18) if self.obs is FRAME else spaces.Box(-1, 1, (6,), np.float32)


CASES = (
    Case("17 floats", VECTOR, 1, 20_000, 1000),
    Case("17 floats, episodes of 10", VECTOR, 1, 10_000, 10),
    Case("17 floats, episodes of 1", VECTOR, 1, 4000, 1),
    Case("17 floats, 4 environments", VECTOR, 4, 10_000, 1000),
    Case("17 floats, 32 environments", VECTOR, 32, 3000, 1000),
    Case("17 floats, 32 environments that end by turns", VECTOR, 32, 3000, 200, by_turns=True),
    Case("17 floats, `extend` of an episode of 10", VECTOR, 1, 10_000, 10, extend=10),
    Case("17 floats, `extend` of an episode of 200", VECTOR, 1, 20_000, 200, extend=200),
    Case("17 floats, 32 environments, `extend` of 200", VECTOR, 32, 2000, 200, extend=200),
    Case("84x84", FRAME, 1, 4000, 1000),
    Case("84x84, episodes of 10", FRAME, 1, 4000, 10),
    Case("84x84, 32 environments", FRAME, 32, 320, 1000),
    Case("84x84, 32 environments that end by turns", FRAME, 32, 320, 200, by_turns=True),
    Case("84x84, `extend` of an episode of 10", FRAME, 1, 4000, 10, extend=10),
)


def observations(case: Case, rng: np.random.Generator) -> np.ndarray:
    if case.obs is not FRAME:
        return rng.standard_normal((case.rows, case.envs, *case.obs.shape), dtype=np.float32)
    found = np.empty((FRAMES, case.envs, 84, 84), np.uint8)
    found[:] = rng.integers(0, 8, (84, 84)) * 32
    for row in range(FRAMES):
        for env in range(case.envs):
            found[row, env, 2 * row : 2 * row + 6, env : env + 6] = env + row
    return found


def calls(case: Case) -> list[tuple[Any, ...]]:
    """The arguments of each call; after the last comes the first again."""
    rng = np.random.default_rng(0)
    obs, rows, envs = observations(case, rng), np.arange(case.rows), np.arange(case.envs)
    ends = (rows[:, None] + 1 + (7 * envs if case.by_turns else 0 * envs)) % case.length == 0
    reward, no = rng.standard_normal((case.rows, case.envs)), np.zeros((case.rows, case.envs), bool)
    if case.obs is not FRAME:
        action: Any = rng.uniform(-1, 1, (case.rows, case.envs, 6)).astype(np.float32)
    else:
        action = rng.integers(0, 18, (case.rows, case.envs))
    steps = []
    for row in rows.tolist():
        following = obs[(row + 1) % len(obs)]
        if ends[row].any():
            following = following.copy()
            following[ends[row]] += 1
        steps.append((obs[row % len(obs)], action[row], reward[row], following, no[row], ends[row]))
    if case.extend:
        columns = [np.array(column) for column in zip(*steps, strict=True)]
        columns = [column[:, 0] for column in columns] if case.envs == 1 else columns
        return [tuple(c[at : at + case.extend] for c in columns) for at in range(0, case.rows, case.extend)]
    if case.envs > 1:
        return steps
    plain = [True, case.obs is not FRAME, False, True, False, False]
    return [
        tuple(value[0] if as_is else value[0].item() for value, as_is in zip(step, plain, strict=True))
        for step in steps
    ]


def microseconds(case: Case, given: list[tuple[Any, ...]]) -> float:
    """Of a row, in the thread that adds; the last commit is not counted."""
    import diskreplay as dr

    folder = tempfile.mkdtemp()
    try:
        with dr.ReplayBuffer.create(
            f"{folder}/store", case.obs, case.action, capacity=case.rows * case.envs, num_envs=case.envs,
            frame_stack=4 if case.obs is FRAME else 1, commit_seconds=1e9,
        ) as buffer:  # fmt: skip
            call = buffer.extend if case.extend else buffer.add
            for arguments in given:
                call(*arguments)
            buffer.commit()
            start = time.thread_time()
            for arguments in given:
                call(*arguments)
            return 1e6 * (time.thread_time() - start) / case.rows
    finally:
        shutil.rmtree(folder)


def serve() -> None:
    """Measures the case whose number is read, again and again; in a process of its own, which imports one checkout."""
    import warnings

    warnings.simplefilter("ignore")
    with contextlib.suppress(ImportError):
        from diskreplay.engine import compiled_row

        if hasattr(compiled_row, "KERNEL"):
            compiled_row.LOAD_AFTER = compiled_row.LOOK_EVERY = 0
            compiled_row.KERNEL.now()
    known: dict[int, list[tuple[Any, ...]]] = {}
    for line in sys.stdin:
        number = int(line)
        if number not in known:
            known = {number: calls(CASES[number])}
        print(microseconds(CASES[number], known[number]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=pathlib.Path, help="another checkout")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve()
    import harness

    checkouts = [HERE, *([arguments.against.resolve()] if arguments.against else [])]
    command = [sys.executable, __file__, "--serve"]
    servers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(checkout)},
            cwd=checkout,
        )
        for checkout in checkouts
    ]  # fmt: skip
    rows = []
    for number, case in enumerate(CASES):
        found: list[list[float]] = [[] for _ in servers]
        for turn in range(arguments.rounds):
            for at in range(len(servers)) if turn % 2 else reversed(range(len(servers))):
                stdin, stdout = servers[at].stdin, servers[at].stdout
                assert stdin
                assert stdout
                stdin.write(f"{number}\n")
                stdin.flush()
                found[at].append(float(stdout.readline()))
        medians = [statistics.median(each) for each in found]
        more = [f"{medians[1]:.1f}", f"{medians[1] / medians[0]:.2f}"] if len(medians) > 1 else []
        rows.append([case.label, f"{medians[0]:.1f}", *more])
    for server in servers:
        server.communicate()
    print(harness.table(["row", "µs", *(["before, µs", "times as fast"] if arguments.against else [])], rows))


if __name__ == "__main__":
    main()
