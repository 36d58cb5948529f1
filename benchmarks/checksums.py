"""What the checksums cost: sampling with CRC-32C verified against the same without, on one store in one run.

50,000 Atari steps, the four games by turns, 84x84 uint8 frames, stacks of 4; nothing is cached decoded, so that every
chunk of a batch is read, verified and decoded: in Python, as compiled reads cannot leave it out. Batches with and
without alternate, both drawn by the same seed.
"""

from __future__ import annotations

import contextlib
import pathlib
import statistics
import time
from collections.abc import Iterator
from unittest import mock

import contenders
import frames
import harness
import workload

from diskreplay.reading import compiled
from diskreplay.storage import chunks

STEPS = 50_000
BATCHES = {32: 600, 256: 300}
ROUNDS = 9


def _believe(data: bytes) -> bool:
    return True


@contextlib.contextmanager
def unverified() -> Iterator[None]:
    """Reads believe what they get."""
    with mock.patch.object(chunks, "is_whole", _believe):
        yield


def fill(path: pathlib.Path, steps: int) -> None:
    with contenders.create_store(str(path), steps) as buffer:
        for name in frames.GAMES:
            for episode in workload.episodes(frames.load(name), steps // len(frames.GAMES)):
                for step in episode.singles():
                    buffer.add(*step)


def race(path: pathlib.Path, size: int, calls: int) -> tuple[list[float], list[float]]:
    """Seconds of each batch: verified, and not."""
    with contenders.open_store(str(path), mode="r", cache_bytes=0, seed=0) as buffer:
        for _ in range(20):
            buffer.sample(size)
        seconds: tuple[list[float], list[float]] = [], []
        for call in range(2 * calls):
            without = (call + call // 2) % 2  # with, without, without, with, ...: no order of the two is favoured
            with unverified() if without else contextlib.nullcontext():
                start = time.perf_counter()
                buffer.sample(size)
                seconds[without].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"of which the median ratio counts (default {ROUNDS})"
    )
    arguments = parser.parse_args()
    frames.ensure(steps=arguments.steps)
    figures = []
    compiled.CALLS = None
    with harness.scratch() as scratch:
        fill(scratch / "store", arguments.steps)
        for size, calls in BATCHES.items():
            rounds = [race(scratch / "store", size, calls // 3) for _ in range(arguments.rounds)]
            medians = [tuple(harness.median_ms(seconds) for seconds in both) for both in rounds]
            ratio = statistics.median(verified / believed for verified, believed in medians)
            believed = statistics.median(believed for _, believed in medians)
            target = 1.05 if size == 256 else 1.1
            figures.append(
                harness.Figure(
                    f"`sample({size})`, verified beside not verified", ratio * believed, target, "ms", believed
                )
            )
    body = (
        f"Sampling from {arguments.steps:,} steps with CRC-32C verified, beside the same without, alternating in "
        f"{arguments.rounds} rounds; page cache warm, no decoded chunks kept. The target is that of `sample(256)`.\n\n"
        + harness.figures(figures)
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    packages = harness.versions("diskreplay", "numpy", "numcodecs", "google-crc32c")
    harness.write_section("checksums", "Checksums", packages, body, keep=keep)


if __name__ == "__main__":
    main()
