"""Ray Data over a store, beside one process that reads the same rows of it.

The million of ``benchmarks/.frames/million.replay`` (``--path`` for another store), or the first ``--steps`` of it:
observations, stacks of 4 frames of 84x84 and then the newest frame of each alone, actions, rewards and flags; with
``--next-obs`` next observations too. Both read each row once, in order, in batches of the same bytes, and drop them:
one process by itself, without Ray, and ``ray.data.read_datasource(...).iter_batches(batch_size=None)`` on as many
processors as there are tasks at a time. Opening the store counts for both, starting Ray does not. A second and further
processes that read by themselves, a part each, show what the machine's processors can do. At the end one process goes
through what happens to a block on its way, which shows where the time goes.

Needs Ray: run it in the environment of ``make distributed``.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # 15 by default: behind whatever else the machine does

import importlib
import multiprocessing
import pathlib
import statistics
import time
from typing import Any

import harness
from harness import Figure

COLUMNS = ["obs", "action", "reward", "terminated", "truncated"]
STEPS = 1 << 20
ROUNDS = 3
BLOCK_BYTES = 16 << 20
"""Of a block, for both; Ray's own default of 128 MiB moves more memory that is fresh from the system."""
STORE_BYTES = 256 << 20
"""Of Ray's object store: a larger one is as much fresh memory."""
SPENT_STEPS = 1 << 16
"""For the parts of a block's way."""
TARGET = 0.8
"""Of the rate of one process, for each processor that Ray reads with."""


def source(path: str, steps: int, columns: list[str], stack: bool) -> Any:
    """The first episodes that have so many steps."""
    import numpy as np

    import diskreplay as dr
    from diskreplay.ray import DiskReplayDatasource

    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        lengths = np.cumsum([episode.length for episode in buffer.episodes])
    return DiskReplayDatasource(path, columns, slice(int(np.searchsorted(lengths, steps)) + 1), stack=stack)


def by_itself(path: str, steps: int, columns: list[str], stack: bool, part: int, parts: int) -> int:
    """Reads one of so many parts of the rows in this process; how many."""

    from diskreplay.ray.columns import read_columns
    from diskreplay.ray.data import blocks_of, ids_of, open_store

    given = source(path, steps, columns, stack)
    most = BLOCK_BYTES // given._bytes(1)
    rows = 0
    with open_store(path) as buffer:
        for shared in given._shared(parts)[part::parts]:
            for block in blocks_of(shared, most):
                ids = ids_of(block)
                rows += len(read_columns(buffer, ids, columns, stack=stack)["reward"])
    return rows


def processor_seconds() -> float:
    """Of this process and all that it has started, Ray's own among them."""
    importlib.import_module("ray")  # which brings psutil
    this = importlib.import_module("psutil").Process()
    return sum(sum(each.cpu_times()[:2]) for each in [this, *this.children(recursive=True)])


def processes(path: str, steps: int, columns: list[str], stack: bool, count: int) -> tuple[float, float, int]:
    """Seconds and processor seconds of so many processes that read a part each, and the rows that they read."""
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        pool.starmap(
            by_itself, [(path, 1, columns, stack, 0, 1)] * 4 * count, chunksize=1
        )  # imports, and what is compiled
        start, busy = time.perf_counter(), processor_seconds()
        parts = [(path, steps, columns, stack, part, count) for part in range(count)]
        rows = pool.starmap(by_itself, parts, chunksize=1)
        return time.perf_counter() - start, processor_seconds() - busy, sum(rows)


def with_ray(
    path: str, steps: int, columns: list[str], stack: bool, processors: int, rounds: int
) -> tuple[list[tuple[float, float]], int]:
    """Seconds and processor seconds of each round."""
    import ray

    ray.init(
        "local", num_cpus=processors, include_dashboard=False, log_to_driver=False, object_store_memory=STORE_BYTES
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.target_max_block_size = False, BLOCK_BYTES
    try:
        seconds = []
        for number in range(rounds + 1):
            start, busy = time.perf_counter(), processor_seconds()
            read = ray.data.read_datasource(source(path, steps if number else 1, columns, stack))
            rows = sum(len(batch["reward"]) for batch in read.iter_batches(batch_size=None))
            seconds.append((time.perf_counter() - start, processor_seconds() - busy))
        return seconds[1:], rows  # the first one imports
    finally:
        ray.shutdown()


def spent(path: str, steps: int, columns: list[str], stack: bool, rounds: int) -> dict[str, float]:
    """Microseconds a row of each part of a block's way, all in this process; of the fastest round."""
    import numpy as np
    import ray
    from ray.data.block import BlockAccessor

    from diskreplay.ray.columns import read_columns
    from diskreplay.ray.data import blocks_of, ids_of, open_store

    given = source(path, steps, columns, stack)
    most = BLOCK_BYTES // given._bytes(1)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=STORE_BYTES)
    found = []
    try:
        with open_store(path) as buffer:
            for _ in range(rounds):
                rows, parts = 0, dict.fromkeys(("read and decode", "to Arrow", "ray.put", "ray.get", "to NumPy"), 0.0)
                for block in blocks_of(given._parts, most):
                    ids = ids_of(block)
                    times = [time.perf_counter()]
                    values = read_columns(buffer, ids, columns, stack=stack)
                    times.append(time.perf_counter())
                    table = BlockAccessor.batch_to_block(values)
                    times.append(time.perf_counter())
                    reference = ray.put(table)
                    times.append(time.perf_counter())
                    got = ray.get(reference)
                    times.append(time.perf_counter())
                    shown = BlockAccessor.for_block(got).to_numpy(columns)
                    times.append(time.perf_counter())
                    rows += len(shown["reward"])
                    for part, seconds in zip(parts, np.diff(times), strict=True):
                        parts[part] += 1e6 * float(seconds)
                    del values, table, reference, got, shown  # their memory is used again
                found.append({part: micros / rows for part, micros in parts.items()})
    finally:
        ray.shutdown()
    return min(found, key=lambda parts: sum(parts.values()))


def rates(found: list[tuple[float, float]], rows: int) -> tuple[float, float]:
    """Steps a second, and a processor second: medians of rounds."""
    rate, busy = (rows / statistics.median(each) for each in zip(*found, strict=True))
    return rate, busy


def beside(path: str, steps: int, columns: list[str], stack: bool, rounds: int) -> tuple[list[Figure], str, int]:
    """Ray Data over one process without it, for one processor and for all; a sentence; and the rows that were read."""
    figures, alone, told = [], (0.0, 0.0), ""
    kind = "stacks" if stack else "single frames"
    rows = 0
    for count in sorted({1, len(os.sched_getaffinity(0))}):
        found = [processes(path, steps, columns, stack, count) for _ in range(rounds)]
        rows = found[0][2]
        by_itself = rates([each[:2] for each in found], rows)
        alone = alone if any(alone) else by_itself
        seconds, read = with_ray(path, steps, columns, stack, count, rounds)
        if read != rows:
            raise RuntimeError(f"Ray Data read {read:,} rows of {rows:,}")
        rate, busy = rates(seconds, rows)
        processors = f"{count} processor{'s' * (count > 1)}"
        figures += [
            Figure(f"{kind}, {processors}, each", rate / count, TARGET, "steps/s", alone[0], at_least=True),
            Figure(f"{kind}, {processors}, by processor time", busy, TARGET, "steps/s", alone[1], at_least=True),
        ]
        if count > 1:
            told = f"{count} processes without Ray read {by_itself[0] / alone[0]:.2f}x as many {kind} as one."
    return figures, told, rows


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--path", default=str(harness.HERE / ".frames" / "million.replay"), help="of the store")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--next-obs", action="store_true", help="read next observations too")
    arguments = parser.parse_args()
    path, steps = str(pathlib.Path(arguments.path).resolve()), arguments.steps
    columns = [*COLUMNS, *(["next_obs"] if arguments.next_obs else [])]
    body, where = [], []
    for stack in (True, False):
        figures, sentence, rows = beside(path, steps, columns, stack, arguments.rounds)
        body += [harness.figures(figures), sentence]
        where.append(spent(path, min(steps, SPENT_STEPS), columns, stack, arguments.rounds))
    told = [[part, *(f"{each[part]:.1f}" for each in where)] for part in where[0]]
    body = [
        f"{rows:,} steps, columns {', '.join(columns)}, over one process that reads the same without Ray.",
        *body,
        "Microseconds a row of each part of a block's way, in one process:",
        harness.table(["", "stacks", "single frames"], told),
    ]
    versions = harness.versions("diskreplay", "ray", "numpy", "pyarrow")
    harness.write_section("ray_data", "Ray Data", versions, "\n\n".join(body), keep=steps == STEPS)


if __name__ == "__main__":
    main()
