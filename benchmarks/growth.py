"""What grows with what a call does not touch: each row at a size and at ten times that size, and the ratio.

Milliseconds of processor time of the process, medians, so that others on the machine count little; `fsync` is left out.
Each row makes its stores anew, in a process of its own. A ratio near 1 is a cost that does not grow, one near 10 that
of work which has to be done for each; far more than 10 would be a cliff.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.reading import compiled

OBS, ACTIONS = spaces.Box(-1, 1, (17,), np.float32), spaces.Discrete(3)
ZEROS = np.zeros(17, np.float32)
WINDOW = 20_000
SHARD_ROWS = 4_096
"""Of a window of this size, by default."""
Found = dict[str, float]


def median_ms(function: Callable[[], Any], calls: int, before: Callable[[], Any] = lambda: None) -> float:
    """Processor time of a call, with something that is not counted before each."""
    seconds = []
    for _ in range(calls):
        before()
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return 1e3 * statistics.median(seconds)


def without_syncs() -> None:
    """Leaves out what waits for the disk: it is processor time that is measured."""
    os.fsync = lambda fd: None


def new(path: str, **options: Any) -> dr.ReplayBuffer:
    made: dict[str, Any] = {"capacity": WINDOW, "sampler": dr.Uniform(), "seed": 0, **options}
    return dr.ReplayBuffer.create(path, OBS, ACTIONS, **made)


def add(buffer: dr.ReplayBuffer, rows: int) -> None:
    for _ in range(rows):
        buffer.add(ZEROS, 0, 0.0, ZEROS, False, False)


def checkpoints(folder: str, count: int) -> Found:
    """A window that has gone on from what many checkpoints pin."""
    without_syncs()
    path = f"{folder}/a.replay"
    with new(path, commit_rows=1 << 30, commit_seconds=1e9) as buffer:
        add(buffer, 3_000)
        for number in range(count):
            buffer.checkpoint(f"c{number}")
        add(buffer, 2 * WINDOW)
        buffer.commit()
        return {
            "commit of a row, which unlinks nothing": median_ms(buffer.commit, 100, lambda: add(buffer, 1)),
            "commit with which shards leave": median_ms(buffer.commit, 7, lambda: add(buffer, SHARD_ROWS)),
            "`rb.checkpoints`": median_ms(lambda: buffer.checkpoints, 9),
            '`open(checkpoint="latest")` to read': median_ms(
                lambda: dr.ReplayBuffer.open(path, mode="r", checkpoint="latest").close(), 5
            ),
        }


def adding(path: str, stream: str) -> float:
    """Milliseconds to add a stream, of a process that has read no record: a collector that begins."""
    without_syncs()
    start = time.process_time()
    dr.ReplayBuffer.open(path, mode="a", stream=stream, capacity=1_000, num_envs=1).close()
    return 1e3 * (time.process_time() - start)


def streams(folder: str, count: int) -> Found:
    """Streams of 100 rows."""
    without_syncs()
    path = f"{folder}/a.replay"
    new(path, capacity=1_000).close()
    rows = np.random.default_rng(0).random((101, 17), np.float32)
    no = np.zeros(100, bool)
    for number in range(1, count):
        buffer = dr.ReplayBuffer.open(path, mode="a", stream=f"s{number}", capacity=1_000, num_envs=1)
        buffer.extend(rows[:100], np.zeros(100, int), np.zeros(100), rows[1:], no, no)
        buffer.close()
    calls = 3 if count >= 100 else 9
    numbers = iter(range(1_000))
    with dr.ReplayBuffer.open(path, sampler=dr.Uniform(), seed=0) as buffer:
        trained = {
            "`sample(256)` of them all": median_ms(lambda: buffer.sample(256), 199),
            "`checkpoint` of them all": median_ms(lambda: buffer.checkpoint(f"c{next(numbers)}"), 99),
        }
    return {
        **trained,
        "add a stream": statistics.median(harness.fresh(adding, path, f"new{number}") for number in range(5)),
        '`open(mode="r")`': median_ms(lambda: dr.ReplayBuffer.open(path, mode="r").close(), calls),
        "`verify`": median_ms(lambda: verify(path), calls),
    }


def columns(folder: str, count: int) -> Found:
    """Columns of a user's own."""
    without_syncs()
    path, values = f"{folder}/a.replay", {f"c{number:04}": 1.0 for number in range(count)}
    with new(path, columns=dict.fromkeys(values, np.float32)) as buffer:
        buffer.add(ZEROS, 0, 0.0, ZEROS, False, False, **values)
        adding = median_ms(lambda: buffer.add(ZEROS, 0, 0.0, ZEROS, False, False, **values), 99)
    opening = median_ms(lambda: dr.ReplayBuffer.open(path, mode="r").close(), 5)
    return {'`open(mode="r")`': opening, "`add`": adding}


LISTING = """
import atexit, sys
from diskreplay_cli.start import main
atexit.register(lambda: sys.stderr.write(next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))))
sys.argv.insert(1, 'episodes')
main()
"""
"""The command, and then the most memory it had: what the system says of children holds the parent's, too."""


def episodes(folder: str, count: int) -> Found:
    """Episodes of ten steps, listed by the command, its start included."""
    without_syncs()
    path, steps = f"{folder}/a.replay", 1_000
    obs = np.random.default_rng(0).random((steps + 1, 17), np.float32)
    ends = np.arange(steps) % 10 == 9
    after = obs[1:] + ends[:, None]
    with new(path, capacity=10 * count) as buffer:
        for _ in range(10 * count // steps):
            buffer.extend(obs[:-1], np.zeros(steps, int), np.ones(steps), after, ends, np.zeros(steps, bool))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LISTING, path], **pipes) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        first = time.perf_counter() - start
        assert sum(1 for _ in listing.stdout) == count
        most = 1024 * int(listing.stderr.read().split()[1])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with dr.ReplayBuffer.open(path) as buffer:
        start = time.process_time()
        assert len(buffer.episodes) == count
        asked = 1e3 * (time.process_time() - start)
        again = median_ms(lambda: buffer.episodes, 9)
        after_a_row = median_ms(lambda: buffer.episodes, 9, lambda: add(buffer, 1))
    return {
        "`diskreplay episodes`": 1e3 * (used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime),
        "its first line, by the clock": 1e3 * first,
        "its memory, MB": most / 1e6,
        "`rb.episodes`": asked,
        "`rb.episodes` again": again,
        "`rb.episodes` after a row": after_a_row,
    }


FLOATS_ROWS = 300_000


def floats(folder: str, count: int) -> Found:
    """A window of so many rows of 17 floats, the first 300,000 of which are there: beyond 128 MB it is on disk."""
    without_syncs()
    assert compiled.CALLS is not None, "the core reads nothing here"
    path, steps, none = f"{folder}/a.replay", 1_000, np.zeros(1_000, bool)
    rng = np.random.default_rng(0)
    with new(path, capacity=count) as buffer:
        for _ in range(FLOATS_ROWS // steps):
            obs = rng.random((steps + 1, 17), np.float32)
            buffer.extend(obs[:-1], np.zeros(steps, int), np.ones(steps), obs[1:], none, none)
    found = {}
    for kept, options in (("no cache", {"cache_bytes": 0}), ("default cache", {})):
        with dr.ReplayBuffer.open(path, mode="r", seed=0, **options) as buffer:
            for _ in range(FLOATS_ROWS // 256):
                buffer.sample(256)
            for size in (32, 256):
                found[f"`sample({size})`, {kept}"] = median_ms(lambda size=size: buffer.sample(size), 199)
    return found


MEASURED: dict[str, tuple[Callable[[str, int], Found], int]] = {
    "checkpoints that pin": (checkpoints, 100),
    "streams": (streams, 30),
    "columns": (columns, 100),
    "episodes": (episodes, 10_000),
    "rows of floats": (floats, 1_000_000),
}
"""What there is more of: the measurement, and the smaller size."""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--only", choices=MEASURED, help="rows of this kind alone; RESULTS.md is left as it is")
    only = asked.parse_args().only
    rows = []
    for what, (measure, size) in MEASURED.items():
        if only not in (None, what):
            continue
        sizes = []
        for count in (size, 10 * size):
            with harness.scratch() as folder:
                sizes.append(harness.fresh(measure, str(folder), count))
            print(what, count, json.dumps(sizes[-1]), flush=True)
        rows += [
            (name, what, f"{size:,} / {10 * size:,}", *(harness.number(each[name], "") for each in sizes),
             f"{sizes[1][name] / sizes[0][name]:.2g}")
            for name in sizes[0]
        ]  # fmt: skip
    header = ("", "of", "n / 10 n", "at n, ms", "at 10 n, ms", "ratio")
    body = (
        "Medians of processor time, but for what says otherwise; other programs ran on the machine meanwhile, so that "
        f"the ratios say more than the times.\n\n{harness.table(header, rows)}"
    )
    packages = harness.versions("numpy", "zarr")
    harness.write_section("growth", "What grows", packages, body, keep=only is None)


if __name__ == "__main__":
    main()
