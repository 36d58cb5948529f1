"""Frames in RAM as runs over a key frame, beside whole frames and beside none, on one store in one run.

50,000 Atari steps, the four games by turns, 84x84 uint8 frames, stacks of 4. Each game's frames are made runs of,
chunk by chunk. Then batches from a cache that has all it wants: of runs, of whole frames, and none. Ways alternate;
times are of the processor, of all threads.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
import types
from typing import Any
from unittest import mock

import contenders
import frames
import harness
import numpy as np
import workload
from kernel import fill

from diskreplay.reading import cache
from diskreplay.schema import columns

STEPS = 50_000
ROUNDS = 7
BATCHES = {32: 300, 256: 60}
CHUNK_ROWS = 16
WAYS = ("from disk", "whole frames", "runs")


def packed(game: frames.Game, steps: int) -> list[str]:
    """A row's cells: bytes of a frame, and microseconds to make its runs."""
    rows = np.array(game.frame[: steps // CHUNK_ROWS * CHUNK_ROWS]).reshape(-1, CHUNK_ROWS, workload.FRAME_BYTES)
    column: Any = types.SimpleNamespace(
        groups=1,
        chunk_items=CHUNK_ROWS,
        entries=types.SimpleNamespace(length=len(rows)),
        column=types.SimpleNamespace(item_bytes=workload.FRAME_BYTES),
    )
    kept, size, begun = cache.CachedColumn(column), 0, time.process_time()
    for number, chunk in enumerate(rows):
        found = kept.packed(chunk)
        size += chunk.nbytes if found is None else kept.enter(number, 0, *found)
    spent = time.process_time() - begun
    count = len(rows) * CHUNK_ROWS
    return [game.name, f"{size / count:.0f}", f"{1e6 * spent / count:.2f}"]


def opened(stack: contextlib.ExitStack, path: pathlib.Path, way: str) -> Any:
    """A reader whose cache has been filled in one of the ways."""
    options = {"cache_bytes": 0} if way == "from disk" else {"cache_bytes": 1 << 33}
    buffer = stack.enter_context(contenders.open_store(str(path), mode="r", seed=0, **options))
    least = 1 << 40 if way == "whole frames" else columns.PACKED_BYTES
    with mock.patch.object(columns, "PACKED_BYTES", least):
        for _ in range(-(-len(buffer) // 16) // 32):  # each chunk some ten times
            buffer.sample(256)
    return buffer


def race(buffers: dict[str, Any], size: int, calls: int) -> dict[str, float]:
    """Processor milliseconds of a batch, each way."""
    spent: dict[str, list[float]] = {way: [] for way in buffers}
    rng = np.random.default_rng(0)
    for _ in range(calls):
        for way in rng.permutation(list(buffers)).tolist():
            begun = time.process_time()
            buffers[way].sample(size)
            spent[way].append(time.process_time() - begun)
    return {way: harness.median_ms(each) for way, each in spent.items()}


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    frames.ensure(steps=arguments.steps // len(frames.GAMES))
    games = [packed(frames.load(name), arguments.steps // len(frames.GAMES)) for name in frames.GAMES]
    rows = []
    with harness.scratch() as scratch, contextlib.ExitStack() as stack:
        fill(scratch / "store", arguments.steps, frames.GAMES)
        buffers = {way: opened(stack, scratch / "store", way) for way in WAYS}
        held = {way: buffer.stats()["cache_used_bytes"] / 1e6 for way, buffer in buffers.items()}
        for size, calls in BATCHES.items():
            done = [race(buffers, size, calls // 3) for _ in range(arguments.rounds)]
            cells = [f"`sample({size})`"]
            for way in WAYS:
                ratio = statistics.median(each[way] / each["from disk"] for each in done)
                cells.append(f"{statistics.median(each[way] for each in done):.2f} ms ({ratio:.2f})")
            rows.append(cells)
    rows.append(["held", *(f"{held[way]:.1f} MB" for way in WAYS)])
    body = (
        f"Frames of {workload.FRAME_BYTES:,} bytes as runs, chunks of {CHUNK_ROWS} rows, keys included:\n\n"
        + harness.table(["game", "bytes a frame", "us a frame to make"], games)
        + f"\n\nProcessor time of a batch from {arguments.steps:,} steps, and in brackets the ratio to that from the "
        f"disk, medians of {arguments.rounds} rounds:\n\n" + harness.table(["batch", *WAYS], rows)
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    packages = harness.versions("diskreplay", "numpy", "numcodecs")
    harness.write_section("cached", "Frames in the cache", packages, body, keep=keep)


if __name__ == "__main__":
    main()
