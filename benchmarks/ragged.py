"""Ragged rows beside rows of one length, and beside a gather from RAM.

1. `sample(256)` of rows of 1,000 int32, of a ragged column that is padded or given as lists, beside a fixed column of
   shape (1000,), and beside NumPy, which takes the same rows from an array in RAM. All decoded values are in the cache;
   then nothing is cached, and chunks are read from the page cache. Ways alternate in one run.
2. Rows of 10 to 100,000 items: what a returned item costs, in time, and in bytes read from the store's files.

    python benchmarks/ragged.py [--steps 20000] [--rounds 101]
"""

from __future__ import annotations

import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.reading import compiled

STEPS, ROUNDS = 20_000, 101
BATCH, WIDTH = 256, 1_000
LENGTHS = 10, 100, 1_000, 10_000, 100_000
ITEMS = 20_000_000
SPACE, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)


def fill(path: pathlib.Path, values: Any, shape: tuple[int | None, ...]) -> None:
    """A store with a row for each of ``values``, tokens of a vocabulary of 50,000."""
    flags, obs = np.zeros(256, bool), np.zeros((256, 4), np.float32)
    columns = {"tokens": (shape, np.int32)}
    with dr.ReplayBuffer.create(path, SPACE, ACTIONS, capacity=len(values), columns=columns) as buffer:
        for at in range(0, len(values), 256):
            n = len(tokens := values[at : at + 256])
            buffer.extend(obs[:n], flags[:n] * 1, flags[:n] * 1.0, obs[:n], flags[:n], flags[:n], tokens=tokens)


def alternate(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each way, in turns."""
    rng, took = np.random.default_rng(0), {name: [0.0] * 0 for name in ways}
    for turn in range(rounds + 3):
        for name in rng.permutation(list(ways)).tolist():
            start = time.perf_counter()
            ways[name]()
            if turn >= 3:
                took[name].append(time.perf_counter() - start)
    return {name: harness.median_ms(each) for name, each in took.items()}


def beside(folder: pathlib.Path, steps: int, rounds: int) -> list[harness.Figure]:
    """Rows of one length, which both columns can hold."""
    rng = np.random.default_rng(0)
    values = rng.integers(0, 50_000, (steps, WIDTH), np.int32)
    fill(folder / "ragged", values, (None,))
    fill(folder / "fixed", values, (WIDTH,))
    figures = []
    for cached, size in (("all in the cache", 8 * values.nbytes), ("nothing cached", 0)):
        options: dict[str, Any] = {"mode": "r", "cache_bytes": size, "seed": 0}
        opened = {"fixed": dr.ReplayBuffer.open(folder / "fixed", **options)}
        for name, form in (("padded", dr.Pad()), ("as lists", "lists")):
            opened[name] = dr.ReplayBuffer.open(folder / "ragged", ragged=form, **options)
        ways: dict[str, Any] = {name: functools.partial(one.sample, BATCH) for name, one in opened.items()}
        ways["NumPy"] = lambda: values[rng.integers(steps, size=BATCH)]
        for buffer in opened.values():
            for start in range(0, steps if size else 0, BATCH):
                buffer.get(buffer.items()[start : start + BATCH])
        took = alternate(ways, rounds)
        for name in ("padded", "as lists"):
            for peer in ("fixed", "NumPy") if size else ("fixed",):
                label = f"{BATCH} rows of {WIDTH:,} int32 {name}, {cached}, beside {peer}"
                figures.append(harness.Figure(label, took[name], 1.5, "ms", took[peer]))
    return figures


def by_length(folder: pathlib.Path, length: int, rounds: int) -> tuple[str, ...]:
    """What an item costs where rows have half to one and a half times as many."""
    rng = np.random.default_rng(1)
    rows, batch = min(20_000, max(512, ITEMS // length)), min(BATCH, max(16, 1_000_000 // length))
    sizes = rng.integers(length // 2, length + length // 2, rows)
    fill(folder / f"{length}", [rng.integers(0, 50_000, size, np.int32) for size in sizes], (None,))
    with dr.ReplayBuffer.open(folder / f"{length}", mode="r", cache_bytes=0, seed=0, ragged="lists") as buffer:
        took = alternate({"": lambda: buffer.sample(batch)}, rounds)[""]
        before = pathlib.Path("/proc/self/io").read_text().split()  # of all reads, from disk or page cache
        items = sum(len(buffer.sample(batch).extra["tokens"].values) for _ in range(20))
        read = (int(pathlib.Path("/proc/self/io").read_text().split()[1]) - int(before[1])) / items
    return f"{length:,}", f"{batch}", f"{took:.2f}", f"{1e6 * took * 20 / items:.2f}", f"{read:.1f}"


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"batches of each way (default {ROUNDS})")
    asked = parser.parse_args()
    assert compiled.CALLS is not None, "the core reads nothing here"
    with harness.scratch() as folder:
        figures = beside(folder, asked.steps, asked.rounds)
        rows = [by_length(folder, length, asked.rounds) for length in LENGTHS]
    heads = "items a row, about", "rows a batch", "ms a batch", "ns an item", "bytes read an item"
    body = (
        f"{asked.steps:,} rows.\n\n{harness.figures(figures)}\n\nNothing cached, from the page cache; an int32 has 4 "
    )
    body += f"bytes.\n\n{harness.table(heads, rows)}"
    keep = asked.steps == STEPS and asked.rounds == ROUNDS
    harness.write_section("ragged", "Ragged columns", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
