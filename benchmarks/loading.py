"""What reading ahead takes from the thread that trains: `loader` beside `sample` in line, under matrix products.

50,000 Atari steps, 84x84 uint8 frames, stacks of 4, batches of 256, nothing cached decoded. Between two batches the
main thread multiplies matrices on one thread of the BLAS, which releases the interpreter's lock: it stands for a
training step, and takes several times as long as a batch. What the main thread loses per batch is the time of a turn
with the product and the batch, less that of the product alone; `in line` it loses the whole batch.

The three kinds of turns alternate in blocks.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before numpy is imported

import statistics
import time
from collections.abc import Callable
from typing import Any

import contenders
import frames
import harness
import numpy as np
import workload

STEPS = 50_000
BATCH = 256
ROUNDS = 15
TURNS = 40
PRODUCT = 700
"""Rows and columns of the matrices."""


def turns(step: Callable[[], Any]) -> float:
    """Milliseconds of one of `TURNS` turns."""
    start = time.perf_counter()
    for _ in range(TURNS):
        step()
    return 1e3 * (time.perf_counter() - start) / TURNS


def measured(path: str, rounds: int) -> dict[str, float]:
    """Milliseconds a turn: the product alone, with a batch in line, with one of the loader; medians of the rounds."""
    left = np.random.default_rng(0).random((PRODUCT, PRODUCT), np.float32)
    out = np.empty_like(left)
    with contenders.open_store(path, mode="r", cache_bytes=0, seed=0) as buffer, buffer.loader(BATCH) as loader:
        steps: dict[str, Callable[[], Any]] = {
            "alone": lambda: np.matmul(left, left, out=out),
            "in line": lambda: (np.matmul(left, left, out=out), buffer.sample(BATCH)),
            "loader": lambda: (np.matmul(left, left, out=out), next(loader)),
        }
        found: dict[str, list[float]] = {kind: [] for kind in steps}
        for step in steps.values():
            turns(step)
        for _ in range(rounds):
            for kind, step in steps.items():
                found[kind].append(turns(step))
    return {kind: statistics.median(each) for kind, each in found.items()}


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    frames.ensure(frames.GAMES, steps=arguments.steps)
    with harness.scratch() as scratch:
        path = str(scratch / "store")
        with contenders.create_store(path, arguments.steps) as buffer:
            for episode in workload.mixture(arguments.steps):
                for step in episode.singles():
                    buffer.add(*step)
        found = harness.fresh(measured, path, arguments.rounds)
    lost = {kind: found[kind] - found["alone"] for kind in ("in line", "loader")}
    processors = len(os.sched_getaffinity(0))
    figure = harness.Figure(
        f"main thread's time lost per batch of {BATCH}, `next(loader)` over `sample({BATCH})` in line",
        lost["loader"], 0.2, "ms", lost["in line"],
    )  # fmt: skip
    body = (
        f"From {arguments.steps:,} steps, {processors} processors; products of {PRODUCT} x {PRODUCT} float32 take "
        f"{found['alone']:.2f} ms alone.\n\n" + harness.figures([figure])
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    harness.write_section("loading", "Reading ahead", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
