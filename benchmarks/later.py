"""What a column that is written later would cost, by two ways of keeping it; see docs/design/0023.

Beside `update_priorities(256)` on a window of 2^20 transitions: taking 256 values into RAM, and the bytes that their
commit appends, as lines of a log or as new versions of the chunks that they stand in, compressed as the store does.

    python benchmarks/later.py [--steps 1048576] [--repeats 101]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.schema import CHUNK_BYTES, MAX_CHUNK_ROWS, Codec
from diskreplay.storage import chunks

BATCH = 256
CODEC = Codec("zstd", 1)


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=101)
    asked = parser.parse_args()
    rng = np.random.default_rng(0)
    space, actions = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
    with harness.scratch() as folder:
        path, sampler = folder / "store", dr.Proportional()
        with dr.ReplayBuffer.create(path, space, actions, capacity=asked.steps, sampler=sampler, seed=0) as buffer:
            obs, flags = rng.random((asked.steps + 1, 4), np.float32), np.zeros(asked.steps, bool)
            buffer.extend(obs[:-1], flags.astype(int), rng.random(asked.steps), obs[1:], flags, flags)
            told = []
            for _ in range(asked.repeats):
                index = buffer.sample(BATCH).index
                told.append(seconds(lambda: buffer.update_priorities(index, rng.random(BATCH))))  # noqa: B023
    print(f"`update_priorities({BATCH})`: {1e3 * harness.median_ms(told):.0f} us\n")
    print("| a value | into RAM, us | log: bytes | log: encode, ms | chunks | chunks: bytes | chunks: encode, ms |")
    print("|---|---|---|---|---|---|---|")
    for width in (1, 16, 512):
        rows = max(1, min(MAX_CHUNK_ROWS, CHUNK_BYTES // (4 * width)))
        held = rng.random((asked.steps if width < 512 else asked.steps // 16, width), np.float32)
        taken, log_bytes, log_times, touched, chunk_bytes, chunk_times = [], [], [], [], [], []
        for repeat in range(asked.repeats):
            index, values = rng.integers(len(held), size=BATCH), rng.random((BATCH, width), np.float32)

            def take() -> None:
                held[index] = values  # noqa: B023

            taken.append(seconds(take))
            if repeat >= 5:
                continue
            line = np.concatenate([index.astype(np.int64).view(np.uint8), values.reshape(-1).view(np.uint8)])
            start = time.perf_counter()
            log_bytes.append(len(chunks.encode(CODEC, line)))
            log_times.append(time.perf_counter() - start)
            parts = np.unique(index // rows)
            touched.append(len(parts))
            start = time.perf_counter()
            sizes = [len(chunks.encode(CODEC, held[part * rows : (part + 1) * rows])) for part in parts.tolist()]
            chunk_bytes.append(sum(sizes))
            chunk_times.append(time.perf_counter() - start)
        print(
            f"| {width} float32 | {1e3 * harness.median_ms(taken):.0f} | {int(np.median(log_bytes)):,} "
            f"| {harness.median_ms(log_times):.2f} | {int(np.median(touched))} | {int(np.median(chunk_bytes)):,} "
            f"| {harness.median_ms(chunk_times):.1f} |"
        )


if __name__ == "__main__":
    main()
