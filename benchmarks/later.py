"""Columns that are written later: what a call costs, what a commit of it appends, and what stays on disk.

A window of 2^20 transitions (of 2^16 with 512 numbers a row), values of one float32, of 16 and of 512. In turns with
`update_priorities(256)` of the same buffer. What a value's bytes cost is that of numpy, in the same run: an assignment
of values and places to as many random rows of arrays of the window's size, and a copy of both.

    python benchmarks/later.py [--steps 1048576] [--repeats 301]
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.storage.local_files import LocalFiles

STEPS = 1 << 20
REPEATS = 301
BATCH = 256
WIDTHS = 1, 16, 512
TURNS = 3
"""How often the window's worth of values is written, to see what stays on disk."""


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def made(path: pathlib.Path, steps: int, width: int) -> dr.ReplayBuffer:
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    rng = np.random.default_rng(0)
    obs, flags = rng.random((steps + 1, 4), np.float32), np.zeros(steps, bool)
    buffer = dr.ReplayBuffer.create(
        path, space, actions, capacity=steps, sampler=dr.Proportional(), seed=0, commit_seconds=1e9,
        later={"state": ((width,), np.float32)},
    )  # fmt: skip
    buffer.extend(obs[:-1], flags.astype(int), rng.random(steps), obs[1:], flags, flags)
    buffer.commit()
    return buffer


def calls(buffer: dr.ReplayBuffer, steps: int, width: int, repeats: int) -> tuple[float, float, float, float, float]:
    """Median microseconds of a write, an update of priorities and numpy; milliseconds and bytes of a write's commit."""
    rng = np.random.default_rng(1)
    held, places = np.zeros((steps, width), np.float32), np.zeros(steps, np.int64)
    took: dict[str, list[float]] = {"write": [], "update": [], "numpy": [], "commit": [], "bytes": []}
    folder = pathlib.Path(buffer.path, "streams", "0", "later", "values")

    def plain(index: Any, values: Any) -> None:
        held[index], places[index] = values, index
        values.copy(), index.copy()

    for repeat in range(repeats):
        index, values = buffer.sample(BATCH).index, rng.random((BATCH, width), np.float32)
        errors = rng.random(BATCH)
        took["update"].append(seconds(lambda: buffer.update_priorities(index, errors)))  # noqa: B023
        took["write"].append(seconds(lambda: buffer.write("state", index, values)))  # noqa: B023
        took["numpy"].append(seconds(lambda: plain(index, values)))  # noqa: B023
        if repeat % 10 == 0:
            buffer.commit()
        elif repeat % 10 == 1:
            before = LocalFiles().stored_bytes(str(folder))
            took["commit"].append(seconds(buffer.commit))
            took["bytes"].append(LocalFiles().stored_bytes(str(folder)) - before)
    write, update, numpy = (1e6 * statistics.median(took[name]) for name in ("write", "update", "numpy"))
    return write, update, numpy, harness.median_ms(took["commit"]), statistics.median(took["bytes"])


def written_over(buffer: dr.ReplayBuffer, steps: int, width: int) -> tuple[float, float]:
    """Writes the window's worth of values several times: seconds of the commits, and MB of the values that count."""
    rng = np.random.default_rng(2)
    committing = 0.0
    items = buffer.items()
    for _ in range(TURNS):
        order = rng.permutation(items)
        for start in range(0, steps, 1 << 14):
            index = order[start : start + (1 << 14)]
            buffer.write("state", index, rng.random((len(index), width), np.float32))
            committing += seconds(buffer.commit)
    return committing, steps * (4 * width + 8) / 1e6


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"calls of each (default {REPEATS})")
    asked = parser.parse_args()
    figures, rows = [], []
    with harness.scratch() as folder:
        for width in WIDTHS:
            steps = asked.steps if width < 512 else asked.steps // 16
            path = folder / f"store-{width}"
            with made(path, steps, width) as buffer:
                calls(buffer, steps, width, 20)
                write, update, numpy, commit, appended = calls(buffer, steps, width, asked.repeats)
                label = f"`write` of {BATCH} values of {width} float32, beside `update_priorities` and numpy's copies"
                figures.append(harness.Figure(label, write, 1.0, "us", update + numpy))
                committing, living = written_over(buffer, steps, width)
                stored = LocalFiles().stored_bytes(str(path / "streams" / "0" / "later")) / 1e6
            rows.append(
                (
                    f"{width} float32", f"{update:.0f}", f"{numpy:.0f}", f"{commit:.1f}",
                    f"{appended:,.0f} of {BATCH * (4 * width + 8):,}",
                    f"{1e3 * committing / (TURNS * living):.1f}", f"{living:.0f}", f"{stored:.0f}",
                )
            )  # fmt: skip
    heads = (
        "a value", "update_priorities, us", "numpy, us", f"a commit of {BATCH}, ms", "its bytes, of those given",
        "commits of all, ms a MB", "all values, MB", f"on disk after {TURNS} times, MB",
    )  # fmt: skip
    body = (
        f"A window of {asked.steps:,} transitions, of {asked.steps // 16:,} with 512 numbers a row, which are read "
        f"from disk; random values.\n\n{harness.figures(figures)}\n\n{harness.table(heads, rows)}"
    )
    keep = asked.steps == STEPS and asked.repeats == REPEATS
    harness.write_section("later", "Columns written later", harness.versions("diskreplay", "numpy"), body, keep=keep)


if __name__ == "__main__":
    main()
