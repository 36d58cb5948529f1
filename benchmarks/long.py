"""Long windows and many columns: what opening takes, and what a batch takes beside `np.take` of as many rows.

Each row makes its store in a process of its own, which opens it in another: 17 floats at 10^6 and 10^7 rows, with
`--longest` also 4 floats at 10^8, and 5 to 500 columns of one float beside those of a step. Calls alternate with those
that they are compared with; times are of the processor.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr

BLOCK, FIRST, CALLS = 20_000, 200, 1_000
Found = dict[str, float]


def made(path: str, floats: int, rows: int) -> None:
    """Makes a store of so many rows, of 1,000 steps an episode."""
    rng, ends = np.random.default_rng(0), np.arange(BLOCK) % 1_000 == 999
    space, none = spaces.Box(-1, 1, (floats,), np.float32), np.zeros(BLOCK, bool)
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(4), capacity=rows, commit_rows=1_000_000) as buffer:
        for _ in range(rows // BLOCK):
            obs = rng.random((BLOCK + 1, floats), np.float32)
            buffer.extend(obs[:-1], np.arange(BLOCK) % 4, obs[1:, 0], obs[1:] + ends[:, None], ends, none)


def microseconds(calls: int, *functions: Callable[[], Any]) -> list[list[float]]:
    """Processor time of each call; the functions take turns."""
    spent: list[list[float]] = [[] for _ in functions]
    for _ in range(calls):
        for each, function in zip(spent, functions, strict=True):
            begun = time.process_time()
            function()
            each.append(1e6 * (time.process_time() - begun))
    return spent


def arrays(floats: int, rows: int) -> Callable[[int], Callable[[], Any]]:
    """Returns what a replay buffer of arrays does for a batch."""
    rng = np.random.default_rng(0)
    held = [np.zeros((rows, floats), np.float32), np.zeros((rows, floats), np.float32), np.zeros(rows, np.int64)]
    held += [np.zeros(rows), np.zeros(rows, bool), np.zeros(rows, bool)]
    for array in held:
        array[:] = 1  # the system gives memory when it is written

    def taking(size: int) -> Callable[[], Any]:
        def take() -> list[Any]:
            ids = rng.integers(0, rows, size)
            return [array.take(ids, axis=0) for array in held]

        return take

    return taking


def opened(path: str, **options: Any) -> tuple[dr.ReplayBuffer, Found]:
    """Opens a store to read."""
    opening = dr.ReplayBuffer.open  # which imports it
    before, wall, cpu = harness.resident_bytes(), time.perf_counter(), time.process_time()
    buffer = opening(path, mode="r", seed=0, **options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    memory = harness.resident_bytes() - before
    return buffer, {
        "open, s": cpu,
        "by the clock": wall,
        "MB": memory / 1e6,
        "most MB": harness.resident_bytes("VmHWM") / 1e6,
    }


def sampled(path: str, floats: int, rows: int, size: int, proportional: bool) -> Found:
    """Opens the store and draws from it."""
    buffer, found = opened(path, sampler=dr.Proportional() if proportional else dr.Uniform())
    with buffer:
        begun = time.process_time()
        buffer.sample(size)
        found["first, ms"] = 1e3 * (time.process_time() - begun)
        (first,) = microseconds(FIRST, lambda: buffer.sample(size))
        taken = arrays(floats, rows)(size)
        microseconds(FIRST, taken)
        ours, theirs = map(statistics.median, microseconds(CALLS, lambda: buffer.sample(size), taken))
        return found | {
            "first 200, us": statistics.fmean(first),
            "then": ours,
            "`take`": theirs,
            "ratio": ours / theirs,
        }


def many(folder: str, columns: int) -> Found:
    """Adds rows with so many columns, and draws them."""
    path, values = f"{folder}/a.replay", {f"c{number:04}": 1.0 for number in range(columns)}
    space = spaces.Box(-1, 1, (17,), np.float32)
    obs = np.zeros(17, np.float32)
    options: Any = {
        "columns": dict.fromkeys(values, np.float32),
        "capacity": 20_000,
        "sampler": dr.Uniform(),
        "seed": 0,
    }
    with dr.ReplayBuffer.create(
        path, space, spaces.Discrete(4), commit_rows=1 << 30, commit_seconds=1e9, **options
    ) as buffer:
        for _ in range(2_000):
            buffer.add(obs, 0, 0.0, obs, False, False, **values)
        held = [np.zeros(20_000, np.float32) for _ in range(columns)]
        rng = np.random.default_rng(0)

        def take() -> list[Any]:
            ids = rng.integers(0, 2_000, 256)
            return [array.take(ids) for array in held]

        def put() -> None:
            for array in held:
                array[0] = 1.0

        add, puts, sample, takes = map(
            statistics.median,
            microseconds(
                500, lambda: buffer.add(obs, 0, 0.0, obs, False, False, **values), put, lambda: buffer.sample(256), take
            ),
        )
    return {"`add`, us": add, "puts": puts, "`sample(256)`": sample, "`take`": takes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", action="store_true", help="10^8 rows, too")
    parser.add_argument("--only", choices=("rows", "columns"))
    arguments = parser.parse_args()
    rows: list[tuple[str, Found]] = []
    for floats, count in (
        ((17, 10**6), (17, 10**7), *[(4, 10**8)] * arguments.longest) if arguments.only != "columns" else ()
    ):
        with harness.scratch() as folder:
            path = str(folder / "a.replay")
            harness.fresh(made, path, floats, count)
            for size, proportional in ((256, False), (32, True)):
                found = harness.fresh(sampled, path, floats, count, size, proportional)
                rows.append((f"{count:,} x {floats}, {'Proportional' if proportional else 'Uniform'} {size}", found))
                print(rows[-1], flush=True)
    wide: list[tuple[str, Found]] = []
    for columns in (5, 50, 500) if arguments.only != "rows" else ():
        with harness.scratch() as folder:
            wide.append((f"{columns} columns", harness.fresh(many, str(folder), columns)))
            print(wide[-1], flush=True)
    for part in (rows, wide):
        if part:
            header = ("", *part[0][1])
            print(
                harness.table(
                    header, [(name, *(harness.number(v, "") for v in found.values())) for name, found in part]
                )
            )


if __name__ == "__main__":
    main()
