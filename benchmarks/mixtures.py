"""What composition costs: batches of a mixture of stores beside those of its parts, and a limiter that does not block.

Two stores of Atari steps, the four games by turns, 84x84 uint8 frames, stacks of 4, caches that hold them; and two of
17 float32. `Mixture.sample(256)` and 128 of each part alone alternate in one run, both after warming up. Of the limiter
each figure is the median of many runs of a thousand calls that need not wait.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from typing import Any

import contenders
import frames
import harness
import rows
import workload
from calls import exhaust, through

import diskreplay as dr

STEPS = 20_000
CALLS = 300
ROUNDS = 7
CASE = rows.Case("17 floats", rows.VECTOR, 1, 10_000, 1000)


def frame_stores(scratch: pathlib.Path, steps: int) -> list[Any]:
    """Two, open: one that is written and one that is only read."""
    for name in ("online", "prior"):
        with contenders.create_store(str(scratch / name), steps) as buffer:
            for episode in workload.mixture(steps):
                for step in episode.singles():
                    buffer.add(*step)
    modes = ("online", "r+"), ("prior", "r")
    return [contenders.open_store(str(scratch / name), mode=mode, cache_bytes=1 << 30, seed=0) for name, mode in modes]


def vector_stores(scratch: pathlib.Path, steps: int) -> list[Any]:
    buffers = []
    for name in ("a", "b"):
        buffer = dr.ReplayBuffer.create(scratch / name, CASE.obs, CASE.action, capacity=steps, seed=0)
        exhaust(through(buffer.add, rows.calls(CASE)), steps)
        buffers.append(buffer)
    return buffers


def race(mixture: dr.Mixture[Any], calls: int) -> tuple[float, float]:
    """Median milliseconds of a batch of the mixture, and of the halves from its parts alone."""
    seconds: tuple[list[float], list[float]] = [], []

    def alone() -> list[Any]:  # both are held, as by a learner that needs both
        return [part.sample(128) for part in mixture.parts]

    ways = (lambda: mixture.sample(256), alone)
    for call in range(2 * calls):
        way = (call + call // 2) % 2  # neither is always the first
        start = time.perf_counter()
        ways[way]()
        seconds[way].append(time.perf_counter() - start)
    return harness.median_ms(seconds[0]), harness.median_ms(seconds[1])


def mixture_figure(label: str, parts: list[Any], calls: int, rounds: int) -> harness.Figure:
    with dr.Mixture(parts) as mixture:
        race(mixture, 50)
        both = [race(mixture, calls) for _ in range(rounds)]
    ratio = statistics.median(ours / alone for ours, alone in both)
    alone = statistics.median(alone for _, alone in both)
    return harness.Figure(label, ratio * alone, 1.1, "ms", alone)


def limiter_figures(scratch: pathlib.Path, rounds: int) -> list[harness.Figure]:
    """Microseconds of a call that need not wait."""
    with dr.ReplayBuffer.create(scratch / "limited", CASE.obs, CASE.action, capacity=1_000) as buffer:
        exhaust(through(buffer.add, rows.calls(CASE)), 1_000)
        limiter = dr.RateLimiter(buffer, samples_per_insert=1e9, min_size=100, error_buffer=1e15)
        found = []
        for name, call in (("wait_to_add()", limiter.wait_to_add), ("wait_to_sample(256)", limiter.wait_to_sample)):
            given = (256,) if "256" in name else ()
            runs = []
            for _ in range(100 * rounds):
                start = time.perf_counter()
                for _ in range(1_000):
                    call(*given)
                runs.append((time.perf_counter() - start) * 1e6 / 1_000)
            found.append(harness.Figure(f"`{name}`, not blocking", statistics.median(runs), 2.0, "us"))
    return found


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of which the median ratio counts (default {ROUNDS})"
    )
    arguments = parser.parse_args()
    frames.ensure(steps=arguments.steps)
    with harness.scratch() as scratch:
        label = "`Mixture.sample(256)` beside `sample(128)` of each part"
        figures = [
            mixture_figure(f"{label}, frames", frame_stores(scratch, arguments.steps), CALLS // 3, arguments.rounds),
            mixture_figure(f"{label}, 17 float32", vector_stores(scratch, arguments.steps), CALLS, arguments.rounds),
            *limiter_figures(scratch, arguments.rounds),
        ]
    body = (
        f"Two stores of {arguments.steps:,} steps each, alternating in {arguments.rounds} rounds.\n\n"
        + harness.figures(figures)
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    harness.write_section("mixtures", "Mixtures and limiters", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
