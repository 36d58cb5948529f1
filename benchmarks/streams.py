"""What a store costs when its rows lie in 1, 10, 100 or 1,000 streams: the same rows, opened, read and pinned.

80,000 transitions of 4 floats in streams of 8 environments, as that many collectors leave them; times are medians in
milliseconds, side by side. `r+` is the trainer's opening, `a` a collector's. "one commit" is a refresh after one stream
has gone on, "quiet" one after none has; "add a stream" is what a collector does when it starts. Descriptors are those
that a process has more of after it has opened the store and sampled.
"""

from __future__ import annotations

import gc
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.storage import stream as streams
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Store

TRANSITIONS = 80_000
ENVS = 8
COUNTS = (1, 10, 100, 1_000)
OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
OPTIONS: dict[str, Any] = {"sampler": dr.Uniform(), "seed": 0}


def fill(path: str, count: int, transitions: int) -> None:
    """A store of so many streams, each with its share of the rows, beside the trainer's empty one."""
    os.fsync = lambda fd: None  # of a thousand streams it would take minutes, and is not measured here
    capacity = 2 * transitions
    with dr.ReplayBuffer.create(path, OBS, ACTIONS, capacity=capacity, stream="learner") as learner:
        store: Store = learner.engine.store
    for number in range(1, count + 1):  # what `create_stream` does, which looks at all the others first
        name = f"collector-{number}"
        empty = Commit.first(number, ENVS, capacity // count)
        streams.create(store.files, store.stream_path(name), store.schema, empty, name, {})
    Store.newest_commits = lambda self: {}  # type: ignore[method-assign]  # nor that each looks at all the others
    rng = np.random.default_rng(0)
    rows = transitions // ENVS // count
    obs = rng.random((rows, ENVS, 4), np.float32)
    after = np.concatenate([obs[1:], obs[:1]])
    ended = np.zeros((rows, ENVS), bool)
    ended[np.arange(rows) % 50 == 49] = True
    after[ended] += 1  # final observations
    for number in range(1, count + 1):
        with dr.ReplayBuffer.open(path, mode="a", stream=f"collector-{number}") as buffer:
            actions, rewards = rng.integers(0, 2, (rows, ENVS)), np.ones((rows, ENVS))
            buffer.extend(obs, actions, rewards, after, ended, np.zeros_like(ended))


def timed(calls: int, function: Callable[[], Any]) -> float:
    """Median milliseconds."""
    return harness.median_ms(harness.seconds_of(function, calls, 1))


def measure(path: str, count: int, transitions: int) -> dict[str, float]:
    """All figures of one store, in a process of its own."""
    calls = 3 if count >= 100 else 9
    found: dict[str, float] = {}

    def opened(**options: Any) -> None:
        dr.ReplayBuffer.open(path, **OPTIONS, **options).close()

    found["open `r`"] = timed(calls, lambda: opened(mode="r"))
    found["open `r+`, the trainer"] = timed(calls, lambda: opened(stream="learner"))
    found["open `a`, a collector"] = timed(calls, lambda: opened(mode="a", stream="collector-1"))
    descriptors = len(list(pathlib.Path("/proc/self/fd").iterdir()))
    trainer = dr.ReplayBuffer.open(path, stream="learner", **OPTIONS)
    found["`sample(32)`"] = timed(20, lambda: trainer.sample(32))
    found["`sample(256)`"] = timed(20, lambda: trainer.sample(256))
    found["descriptors"] = len(list(pathlib.Path("/proc/self/fd").iterdir())) - descriptors
    found["refresh, quiet"] = timed(calls, trainer.refresh)
    with dr.ReplayBuffer.open(path, mode="a", stream="collector-1") as collector:
        zeros, flags = np.zeros((ENVS, 4), np.float32), np.zeros(ENVS, bool)
        refreshes, commits = [], []
        for _ in range(calls):
            collector.add(zeros, np.zeros(ENVS, int), np.ones(ENVS), zeros, flags, flags)
            start = time.perf_counter()
            collector.commit()
            commits.append(time.perf_counter() - start)
            start = time.perf_counter()
            trainer.refresh()
            refreshes.append(time.perf_counter() - start)
    found["refresh, one commit"] = harness.median_ms(refreshes)
    found["commit of a row, a collector"] = harness.median_ms(commits)
    numbers = iter(range(1_000_000))
    found["checkpoint"] = timed(calls, lambda: trainer.checkpoint(f"c{next(numbers)}"))
    document = pathlib.Path(path, "checkpoints", "c0", "zarr.json")
    found["its document, KB"] = document.stat().st_size / 1e3
    store = trainer.engine.store
    pins = timed(3, lambda: store.cuts_of(["collector-1"]))
    found["read one checkpoint's pins"] = pins / len(store.checkpoint_names())
    trainer.close()
    gc.collect()
    added = []
    for number in range(3):
        start = time.perf_counter()
        store.create_stream(f"new-{number}", ENVS, 1_000)
        added.append(time.perf_counter() - start)
    found["add a stream"] = 1e3 * statistics.median(added)
    return found


def main() -> None:
    asked = harness.parser(__doc__, TRANSITIONS)
    steps = asked.parse_args().steps
    columns = {}
    for count in COUNTS:
        with harness.scratch() as folder:
            path = str(folder / "a.replay")
            harness.fresh(fill, path, count, steps)
            columns[count] = harness.fresh(measure, path, count, steps)
        print(count, columns[count], flush=True)
    rows = [
        (name, *(f"{columns[count][name]:,.3g}" if columns[count][name] < 1e3 else f"{columns[count][name]:,.0f}"
                 for count in COUNTS), f"{columns[COUNTS[-1]][name] / max(columns[1][name], 1e-9):,.1f}")
        for name in columns[1]
    ]  # fmt: skip
    header = ("", *(f"{count:,} streams" if count > 1 else "1 stream" for count in COUNTS), "1,000 over 1")
    body = f"{steps:,} transitions in all. Milliseconds, but for what says otherwise.\n\n{harness.table(header, rows)}"
    write = harness.write_section
    write("streams", "Many streams", harness.versions("numpy", "zarr"), body, keep=steps == TRANSITIONS)


if __name__ == "__main__":
    main()
