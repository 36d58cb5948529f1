"""Sequences of images, as learners with a recurrent state draw them, beside other buffers and the copy alone.

Dreamer's 16 x 64 x (64, 64, 3) and R2D2's 32 x 120 x (84, 84), from episodes of 500 images of a map that scrolls. Ours
by `sample(n)`, and into the same memory again (`out=`), where `next_obs` is `obs` one step later; from the cache, and
from files in the page cache. Numpy's batches, those of a buffer of chunks in RAM that is filled slice by slice, as
embodied's is, and torchrl's have no next observations. Processor time of all threads; all take turns in one process.
"""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.reading import compiled
from diskreplay.storage import chunks

STEPS = 20_000
EPISODE = 500
CASES = {"Dreamer": (16, 64, (64, 64, 3)), "R2D2": (32, 120, (84, 84))}
ROUNDS = 9
CALLS = 5
CHUNK = 1024
"""The steps of one of embodied's chunks."""
FRAME_BYTES = 24
"""What stands before the LZ4 data of a chunk; native/read.c says what it is."""
LZ4 = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int] * 2)(compiled.FOUND["LZ4_decompress_safe"])
Draw = Callable[[], Any]


def images(steps: int, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Episodes, each of one image more than it has steps: a window on a map of tiles, with a spot that blinks."""
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 256, (8, 8, 8, *shape[2:]), dtype=np.uint8)
    world = tiles[rng.integers(0, 8, (64, 64))].swapaxes(1, 2).reshape(512, 512, *shape[2:])
    moves = np.array([(0, 8), (8, 0), (0, -8), (-8, 0), (0, 0), (0, 0)])
    for _ in range(0, steps, EPISODE):
        at, found = np.array([200, 200]), np.empty((EPISODE + 1, *shape), np.uint8)
        for image in found:
            at = np.clip(at + moves[rng.integers(6)], 0, 400)
            image[...] = world[at[0] : at[0] + shape[0], at[1] : at[1] + shape[1]]
            image[24:32, 24:32] = rng.integers(256)
        yield found


class Case:
    """A store, and the same images in RAM."""

    def __init__(self, path: pathlib.Path, steps: int, name: str) -> None:
        self.path = path
        self.batch, self.length, self.shape = CASES[name]
        self.rng = np.random.default_rng(1)
        self.obs = np.empty((steps, *self.shape), np.uint8)
        self.action = self.rng.integers(0, 17, steps)
        self.reward = self.rng.standard_normal(steps).astype(np.float32)
        self.last = np.arange(1, steps + 1) % EPISODE == 0
        self.starts = np.flatnonzero(np.arange(steps) % EPISODE <= EPISODE - self.length)
        space = spaces.Box(0, 255, self.shape, np.uint8)
        with dr.ReplayBuffer.create(path, space, spaces.Discrete(17), capacity=steps) as buffer:
            for number, episode in enumerate(images(steps, self.shape)):
                at = slice(number * EPISODE, (number + 1) * EPISODE)
                self.obs[at] = episode[:-1]
                ends = np.zeros(EPISODE, bool), self.last[at]
                buffer.extend(episode[:-1], self.action[at], self.reward[at], episode[1:], *ends)

    def drawn(self) -> list[int]:
        return self.rng.choice(self.starts, self.batch).tolist()

    def ours(self, stack: contextlib.ExitStack, again: bool, **options: Any) -> Draw:
        """Batches that are the caller's, or into one that is given again."""
        view = dr.Sequence(self.length, pad=False)
        buffer = stack.enter_context(dr.ReplayBuffer.open(self.path, mode="r", seed=0, view=view, **options))
        for _ in range(4 * len(buffer) // (self.batch * self.length)):  # until the cache holds nearly all
            out = buffer.sample(self.batch)
        if not again:
            return lambda: buffer.sample(self.batch)
        out = out.overlapped()
        return lambda: buffer.sample(self.batch, out=out)

    def copy(self) -> Draw:
        out = np.empty((self.batch, self.length, *self.shape), np.uint8)

        def draw() -> None:
            for to, start in enumerate(self.drawn()):
                out[to] = self.obs[start : start + self.length]

        return draw

    def decode(self, stack: contextlib.ExitStack) -> Draw:
        """LZ4's decoding of the chunks that sequences lie in, each whole, and the copy of what they show."""
        buffer = stack.enter_context(dr.ReplayBuffer.open(self.path, mode="r"))
        column = buffer.engine.streams.all[0].disk.rows["obs"].column
        rows, size = column.chunk_rows, column.chunk_rows * column.item_bytes
        stop = len(self.obs) // rows * rows
        encoded = [
            np.frombuffer(chunks.encode(column.codec, self.obs[at : at + rows]), np.uint8)
            for at in range(0, stop, rows)
        ]
        starts = self.starts[self.starts + self.length <= stop]
        room, out = np.empty((rows, *self.shape), np.uint8), np.empty((self.batch, self.length, *self.shape), np.uint8)

        def draw() -> None:
            for to, start in enumerate(self.rng.choice(starts, self.batch).tolist()):
                for chunk in range(start // rows, (start + self.length - 1) // rows + 1):
                    data = encoded[chunk]
                    done = LZ4(data.ctypes.data + FRAME_BYTES, room.ctypes.data, len(data) - FRAME_BYTES - 4, size)
                    values = room
                    if done != size:  # it did not shrink, and is there as it was
                        values = data[FRAME_BYTES:-4].reshape(room.shape)
                    first, last = max(chunk * rows, start), min((chunk + 1) * rows, start + self.length)
                    out[to, first - start : last - start] = values[first - chunk * rows : last - chunk * rows]

        return draw

    def plain(self) -> Draw:
        def draw() -> Any:
            at = np.array(self.drawn())[:, None] + np.arange(self.length)
            return self.obs[at], self.action[at], self.reward[at], self.last[at]

        return draw

    def embodied(self) -> Draw:
        columns = {"image": self.obs, "action": self.action, "reward": self.reward, "is_last": self.last}
        held = [{name: array[at : at + CHUNK] for name, array in columns.items()}
                for at in range(0, len(self.obs), CHUNK)]  # fmt: skip

        def draw() -> Any:
            out = {
                name: np.empty((self.batch, self.length, *array.shape[1:]), array.dtype)
                for name, array in columns.items()
            }
            for to, start in enumerate(self.drawn()):
                done = 0
                while done < self.length:
                    chunk, at = divmod(start + done, CHUNK)
                    count = min(CHUNK - at, self.length - done)
                    for name, array in held[chunk].items():
                        out[name][to, done : done + count] = array[at : at + count]
                    done += count
            return out

        return draw

    def torchrl(self) -> Draw:
        import torch
        import torchrl.data
        from tensordict import TensorDict

        torch.set_num_threads(1)
        storage = torchrl.data.LazyMemmapStorage(len(self.obs), scratch_dir=self.path.with_suffix(".torchrl"))
        sampler = torchrl.data.SliceSampler(slice_len=self.length, traj_key="episode", cache_values=True)
        buffer = torchrl.data.TensorDictReplayBuffer(
            storage=storage, sampler=sampler, batch_size=self.batch * self.length
        )
        for at in (slice(start, start + EPISODE) for start in range(0, len(self.obs), EPISODE)):
            columns = {
                "pixels": self.obs[at], "action": self.action[at], "reward": self.reward[at],
                "episode": np.full(EPISODE, at.start), ("next", "done"): self.last[at, None],
            }  # fmt: skip
            tensors = {name: torch.from_numpy(array) for name, array in columns.items()}
            buffer.extend(TensorDict(tensors, batch_size=[EPISODE]))
        return buffer.sample


COPY, DECODED = "the copy alone, into kept memory", "LZ4 alone, and the copy"
TARGETS = {
    "cached, `out=`": (("as embodied fills them", 1.1), (COPY, 1.3)),
    "not cached, `out=`": ((DECODED, 1.5),),
}


def race(draws: dict[str, Draw], rounds: int) -> dict[str, float]:
    """Processor microseconds of a batch, medians of the rounds."""
    spent: dict[str, list[float]] = {name: [] for name in draws}
    rng = np.random.default_rng(2)
    for _ in range(rounds):
        for name in rng.permutation(list(draws)).tolist():
            draws[name]()
            begun = time.process_time()
            for _ in range(CALLS):
                draws[name]()
            spent[name].append(1e6 * (time.process_time() - begun) / CALLS)
    return {name: statistics.median(each) for name, each in spent.items()}


def measured(case: Case, rounds: int) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        uncached = {"cache_bytes": 0}
        draws = {
            "cached": case.ours(stack, False), "cached, `out=`": case.ours(stack, True),
            "not cached": case.ours(stack, False, **uncached),
            "not cached, `out=`": case.ours(stack, True, **uncached),
            "numpy, by index": case.plain(), "as embodied fills them": case.embodied(), COPY: case.copy(),
            DECODED: case.decode(stack),
        }  # fmt: skip
        with contextlib.suppress(ImportError):
            draws["torchrl `LazyMemmapStorage`"] = case.torchrl()
        return race(draws, rounds)


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    arguments = parser.parse_args()
    found = {}
    with harness.scratch() as scratch:
        for name in CASES:
            found[name] = measured(Case(scratch / name, arguments.steps, name), arguments.rounds)
    names = list(found["Dreamer"])
    rows = [
        [name, *(f"{each[name]:,.0f} us ({each[name] / each[COPY]:.2f})" for each in found.values())] for name in names
    ]
    figures = [
        harness.Figure(f"{case}, {name}, over {other}", each[name], target, "us", each[other])
        for case, each in found.items()
        for name, over in TARGETS.items()
        for other, target in over
    ]
    body = (
        f"{arguments.steps:,} images. Processor time of a batch, and in brackets the ratio to the copy alone: medians "
        f"of {arguments.rounds} rounds:\n\n"
        + harness.table(["batches", *found], rows)
        + "\n\n"
        + harness.figures(figures)
    )
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS
    harness.write_section(
        "sequences", "Sequences of images", harness.versions("diskreplay", "numpy", "torchrl", "tensordict", "torch"),
        body, keep=keep,
    )  # fmt: skip


if __name__ == "__main__":
    main()
