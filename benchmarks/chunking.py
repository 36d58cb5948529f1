"""What chunking costs: rows a chunk and codec against size, encoding speed and the time to get windows of frames back.

Blosc cuts a chunk into blocks and compresses each by itself. Left alone it takes blocks smaller than a chunk at the low
levels of LZ4HC and Zstd, so that frames of different blocks are not compressed against each other; "one block" forbids
that.

With numcodecs alone, on all four games, one thread: no store, no files. A window is the five frames that a transition
with four stacked frames and its next observation takes. Two ways to decode: every chunk into one scratch that stays in
the CPU's cache, the window's rows copied out of it; or every chunk into a place of its own in a slab, and all windows
gathered at the end.

For a quick look: ``--steps 8192``.
"""

from __future__ import annotations

import dataclasses
import statistics
import time

import frames
import harness
import numcodecs.blosc
import numpy as np
import workload
from numcodecs.blosc import Blosc

STEPS = 1 << 19
WINDOW = workload.STACK + 1
CODECS = [  # chunk rows, name, level, whether the chunk is one block
    *((rows, "lz4", 5, False) for rows in (4, 8, 16)),
    *((rows, "lz4hc", level, False) for rows, level in ((8, 3), (16, 3), (8, 5), (16, 4))),
    *((rows, name, 1, whole) for name in ("lz4hc", "zstd") for rows in (8, 16) for whole in (False, True)),
]


@dataclasses.dataclass
class Encoded:
    """All games one after another, in chunks of ``rows`` frames."""

    rows: int
    codec: Blosc
    chunks: list[bytes]
    seconds: float
    ratios: list[float]  # a game each

    def decode_copy(self, starts: np.ndarray) -> np.ndarray:
        out = np.empty((len(starts), WINDOW, 84, 84), np.uint8)
        scratch = np.empty((self.rows, 84, 84), np.uint8)
        for window, start in zip(out, starts.tolist(), strict=True):
            done = 0
            while done < WINDOW:
                chunk, row = divmod(start + done, self.rows)
                count = min(self.rows - row, WINDOW - done)
                self.codec.decode(self.chunks[chunk], scratch)
                window[done : done + count] = scratch[row : row + count]
                done += count
        return out

    def decode_gather(self, starts: np.ndarray) -> np.ndarray:
        rows = starts[:, None] + np.arange(WINDOW)
        needed, place = np.unique(rows // self.rows, return_inverse=True)
        slab = np.empty((len(needed), self.rows, 84, 84), np.uint8)
        for chunk, target in zip(needed.tolist(), slab, strict=True):
            self.codec.decode(self.chunks[chunk], target)
        return slab.reshape(-1, 84, 84)[place.reshape(rows.shape) * self.rows + rows % self.rows]


def encode(steps: int, rows: int, name: str, level: int, whole: bool) -> Encoded:
    block_bytes = rows * workload.FRAME_BYTES if whole else numcodecs.blosc.AUTOBLOCKS
    codec = Blosc(cname=name, clevel=level, shuffle=Blosc.NOSHUFFLE, blocksize=block_bytes)
    chunks, ratios, seconds = [], [], 0.0
    for game in frames.GAMES:
        frame = frames.load(game).frame[: steps // len(frames.GAMES) // rows * rows]
        size = 0
        for begin in range(0, len(frame), 1024):
            block = np.array(frame[begin : begin + 1024])  # read before the clock starts
            start = time.perf_counter()
            made = [codec.encode(block[row : row + rows]) for row in range(0, len(block), rows)]
            seconds += time.perf_counter() - start
            chunks += made
            size += sum(map(len, made))
        ratios.append(frame.nbytes / size)
    return Encoded(rows, codec, chunks, seconds, ratios)


def decode_ms(encoded: Encoded, windows: int) -> tuple[float, float]:
    """Medians over 50 batches for both ways, by turns; they are compared once."""
    rng = np.random.default_rng(0)
    ways = (encoded.decode_copy, encoded.decode_gather)
    draws = [rng.integers(len(encoded.chunks) * encoded.rows - WINDOW, size=windows) for _ in range(55)]
    if not np.array_equal(*(way(draws[0]) for way in ways)):
        raise AssertionError("the two ways to decode give different frames")
    seconds: tuple[list[float], list[float]] = ([], [])
    for starts in draws:
        for way, times in zip(ways, seconds, strict=True):
            times += harness.seconds_of(lambda way=way, starts=starts: way(starts), 1)
    return harness.median_ms(seconds[0][5:]), harness.median_ms(seconds[1][5:])


def main() -> None:
    arguments = harness.parser(__doc__, STEPS).parse_args()
    frames.ensure(steps=arguments.steps // len(frames.GAMES))
    numcodecs.blosc.use_threads = False
    rows = []
    for chunk_rows, name, level, whole in CODECS:
        encoded = encode(arguments.steps, chunk_rows, name, level, whole)
        count = len(encoded.chunks) * chunk_rows
        overall = 1 / statistics.mean(1 / ratio for ratio in encoded.ratios)
        copied, gathered = zip(*(decode_ms(encoded, windows) for windows in (32, 256)), strict=True)
        times = [" / ".join(f"{ms:.2f}" for ms in way) for way in (copied, gathered)]
        games = " ".join(f"{ratio:.0f}" for ratio in encoded.ratios)
        rows.append(
            (
                f"{chunk_rows}, {name.upper()} {level}{', one block' if whole else ''}",
                f"{overall:.0f}x",
                games,
                f"{count / encoded.seconds:,.0f}",
                *times,
            )
        )
        print(*rows[-1], sep=" | ", flush=True)
    header = ("chunk rows, codec", "ratio", "by game", "encode frames/s", "scratch and copy, ms", "slab and gather, ms")
    text = (
        f"{arguments.steps:,} frames of {', '.join(frames.GAMES)}; one thread; ms for 32 / 256 windows of {WINDOW} "
        "frames; no checksum.\n\n" + harness.table(header, rows)
    )
    harness.write_section(
        "chunking", "What chunking costs", harness.versions("numpy", "numcodecs"), text, keep=arguments.steps == STEPS
    )


if __name__ == "__main__":
    main()
