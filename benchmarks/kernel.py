"""What reads by the core save: sampling through it beside the same through Python, on one store in one run.

50,000 Atari steps, the four games by turns, 84x84 uint8 frames, stacks of 4; nothing is cached decoded, so that every
chunk of a batch is read, verified and decoded. Batches of all kinds alternate.

1. The page cache is warm; then its pages are dropped before each batch, with the disk told of all reads before the
   first, and not told.
2. Chunks of 16 rows, the default for these frames, and of 8 rows that are compressed harder.
3. Read by the core and in Python.
4. Beside plain arrays of the same frames, which know no episodes, in the same process: `np.take` of the five frames of
   each transition in RAM, and from a file mapped anew and dropped from the page cache before each batch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pathlib
import statistics
import time
from typing import Any
from unittest import mock

import contenders
import frames
import harness
import numpy as np
import workload

from diskreplay.native import core
from diskreplay.process import background
from diskreplay.reading import compiled

STEPS = 50_000
BATCHES = {32: 300, 256: 90}
ROUNDS = 7
LAYOUTS: dict[str, dict[str, Any]] = {
    "16 rows, lz4hc:4": {},
    "8 rows, lz4hc:5": {"chunk_rows": 8, "codec": "lz4hc:5"},
}
KINDS = ("Python", "core", "one thread", "never told", "always told")


def without(name: str) -> contextlib.AbstractContextManager[Any]:
    """The core does without a function of the system's."""
    return mock.patch.object(compiled, "CALLS", compiled.calls({**compiled.FOUND, name: 0}))


def way(kind: str) -> contextlib.AbstractContextManager[Any]:
    """Batches are read in one of these ways inside."""
    if kind == "Python":
        return mock.patch.object(compiled, "reader", return_value=None)
    if kind == "one thread":
        return mock.patch.object(compiled, "LEAST_PIECES", 1 << 30)
    if kind == "never told":
        return without("posix_fadvise")
    return without("preadv2") if kind == "always told" else contextlib.nullcontext()


def fill(path: pathlib.Path, steps: int, games: tuple[str, ...], **options: Any) -> None:
    with contenders.create_store(str(path), steps, **options) as buffer:
        for name in games:
            for episode in workload.episodes(frames.load(name), steps // len(games)):
                for step in episode.singles():
                    buffer.add(*step)


def race(path: pathlib.Path, size: int, calls: int, kinds: tuple[str, ...], drop: bool) -> dict[str, float]:
    """Milliseconds of a batch, by the way it is read."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    rng = np.random.default_rng(0)
    shards = [os.open(file, os.O_RDONLY) for file in path.glob("streams/*/*/c.*")] if drop else []
    try:
        with contenders.open_store(str(path), mode="r", cache_bytes=0, seed=0) as buffer:
            for _ in range(5):
                buffer.sample(size)
            for _ in range(calls):
                for kind in rng.permutation(kinds).tolist():  # what came before favours none
                    for shard in shards:
                        os.posix_fadvise(shard, 0, 0, os.POSIX_FADV_DONTNEED)
                    with way(kind):
                        start = time.perf_counter()
                        buffer.sample(size)
                        seconds[kind].append(time.perf_counter() - start)
    finally:
        for shard in shards:
            os.close(shard)
    return {kind: harness.median_ms(each) for kind, each in seconds.items()}


def beside_arrays(path: pathlib.Path, raw: pathlib.Path, size: int, calls: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a batch: ours and plain arrays', warm and dropped; medians of the rounds."""
    in_ram = np.load(raw)
    shards = [os.open(file, os.O_RDONLY) for file in path.glob("streams/*/*/c.*")]
    file = os.open(raw, os.O_RDONLY)
    rng = np.random.default_rng(0)

    def windows() -> Any:
        return rng.integers(len(in_ram) - workload.STACK, size=(size, 1)) + np.arange(workload.STACK + 1)

    def dropped(advice: int | None) -> float:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        mapped = np.load(raw, mmap_mode="r")
        if advice is not None:
            mapped._mmap.madvise(advice)
        rows = windows()
        return harness.seconds_of(lambda: np.take(mapped, rows, axis=0), 1)[0]

    def ours_dropped() -> float:
        for shard in shards:
            os.posix_fadvise(shard, 0, 0, os.POSIX_FADV_DONTNEED)
        return harness.seconds_of(lambda: buffer.sample(size), 1)[0]

    def taken() -> float:
        rows = windows()
        return harness.seconds_of(lambda: np.take(in_ram, rows, axis=0), 1)[0]

    try:
        with contenders.open_store(str(path), mode="r", cache_bytes=0, seed=0) as buffer:
            kinds = {
                "ours": lambda: harness.seconds_of(lambda: buffer.sample(size), 1)[0],
                "np.take": taken,
                "ours, dropped": ours_dropped,
                "np.memmap, dropped": lambda: dropped(None),
                "np.memmap, MADV_RANDOM, dropped": lambda: dropped(mmap.MADV_RANDOM),
            }
            medians: dict[str, list[float]] = {kind: [] for kind in kinds}
            for _ in range(rounds):
                for shard in shards:  # what the round before dropped
                    os.pread(shard, os.fstat(shard).st_size, 0)
                for kind, call in kinds.items():
                    many = calls // 10 if "dropped" in kind else calls
                    call()
                    medians[kind].append(1e3 * statistics.median(call() for _ in range(max(1, many))))
    finally:
        for descriptor in (*shards, file):
            os.close(descriptor)
    return {kind: statistics.median(each) for kind, each in medians.items()}


def raw_frames(path: pathlib.Path, steps: int, games: tuple[str, ...]) -> None:
    """Writes the frames of the steps as one array ``(steps, 84, 84)``."""
    each = [frames.load(name).frame[: steps // len(games)] for name in games]
    np.save(path, np.concatenate(each))


def figures_beside_arrays(size: int, found: dict[str, float]) -> list[harness.Figure]:
    rows = [
        harness.Figure(
            f"`sample({size})` beside `np.take` in RAM", found["ours"], 2.5, "ms", found["np.take"], aim=size == 32
        )
    ]
    for kind in ("np.memmap, dropped", "np.memmap, MADV_RANDOM, dropped"):
        label = (
            f"`sample({size})`, dropped, beside {kind.replace('np.memmap', '`np.memmap`').removesuffix(', dropped')}"
        )
        rows.append(harness.Figure(label, found["ours, dropped"], 1, "ms", found[kind], aim=True))
    return rows


def rounds(path: pathlib.Path, size: int, arguments: Any, kinds: tuple[str, ...], drop: bool = False) -> list[str]:
    """A row's cells: the median of each way, and the median ratio of the rounds to Python's."""
    calls = max(1, BATCHES[size] // (10 if drop else 3))
    done = [race(path, size, calls, kinds, drop) for _ in range(arguments.rounds)]
    cells = []
    for kind in KINDS:
        if kind not in kinds:
            cells.append("")
            continue
        milliseconds = statistics.median(each[kind] for each in done)
        ratio = statistics.median(each[kind] / each[kinds[0]] for each in done)
        cells.append(f"{milliseconds:.2f} ms" + ("" if kind == kinds[0] else f" ({ratio:.2f})"))
    return cells


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--games", default=",".join(frames.GAMES))
    arguments = parser.parse_args()
    games = tuple(arguments.games.split(","))
    frames.ensure(games, steps=arguments.steps)
    assert compiled.CALLS is not None, "the core reads nothing here"
    rows, beside = [], []
    with harness.scratch() as scratch:
        raw_frames(scratch / "raw.npy", arguments.steps, games)
        for number, (layout, options) in enumerate(LAYOUTS.items()):
            path = scratch / f"store-{number}"
            fill(path, arguments.steps, games, **options)
            size_on_disk = harness.stored_bytes(path)
            for size in BATCHES:
                rows.append([layout, f"`sample({size})`", *rounds(path, size, arguments, KINDS)])
                rows.append(
                    [layout, f"`sample({size})`, dropped", *rounds(path, size, arguments, KINDS[:4], drop=True)]
                )
                if not number:
                    found = beside_arrays(path, scratch / "raw.npy", size, BATCHES[size] // 3, arguments.rounds)
                    beside += figures_beside_arrays(size, found)
            smaller = workload.FRAME_BYTES * arguments.steps / size_on_disk
            print(f"{layout}: {size_on_disk / 1e6:.1f} MB, {smaller:.1f} times smaller than the frames", flush=True)
    body = (
        f"Milliseconds of a batch from {arguments.steps:,} steps of {', '.join(games)}, and in brackets the ratio to "
        f"Python's, medians of {arguments.rounds} rounds; no decoded chunks kept; {background.THREADS} threads but "
        f"where it says one. Dropped: the page cache before each batch. Checksums: by {core.checksum_method()}.\n\n"
        + harness.table(["chunks", "batch", *KINDS], rows)
        + "\n\nBeside plain arrays of the same frames, in the same process:\n\n"
        + harness.figures(beside)
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS and games == frames.GAMES
    packages = harness.versions("diskreplay", "numpy", "numcodecs")
    harness.write_section("kernel", "Compiled reads", packages, body, keep=keep)


if __name__ == "__main__":
    main()
