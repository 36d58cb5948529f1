"""Windows by time of a robot's video, beside LeRobotDataset, which made the video.

LeRobot records episodes of one camera, 480x640 at 30 frames a second, and encodes them as it does by default; the
store is made of that dataset by ``diskreplay import``, and holds the same packets. A batch has 64 random windows:
pictures of now and of a tenth of a second ago, and the actions of the next 16 rows.

1. On one processor: a batch, beside 64 of LeRobot's items, which are not put together. In turns.
2. On two processors: a batch of a loader, beside LeRobot's items by a DataLoader with two workers. After the first
   batches, until the last.
3. Bytes on disk.

Ours are uint8 in the order of the video, `(64, 2, 480, 640, 3)`; LeRobot's are float32 from 0 to 1, channels first.
What that costs is measured beside. No decoded frame is kept from batch to batch. `make robots` makes the environment.

    .venv-robots/bin/python benchmarks/robots.py [--steps 3000] [--rounds 15]
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # before numpy is imported

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np

import diskreplay as dr

STEPS, ROUNDS = 3_000, 15
BATCH, LENGTH, FPS = 64, 150, 30
CAMERA, ACTION = "observation.images.front", "action"
HEIGHT, WIDTH = 480, 640
TIMES = {CAMERA: [-0.1, 0.0], ACTION: [at / FPS for at in range(16)]}
GRAIN = 3.0
"""The standard deviation of the table's grain: with it a frame takes as much as one of a real camera, 8 kB or so."""
WARM = 3
"""Batches that are not counted, which open files and compile."""


def pictures(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """A table with colours and a grain, over which two boxes move, with the noise of a sensor."""
    coarse = rng.integers(40, 200, (9, 12, 3)).astype(np.float32)
    rows, columns = np.linspace(0, 7.99, HEIGHT), np.linspace(0, 10.99, WIDTH)
    low, left = rows.astype(int), columns.astype(int)
    down, right = (rows - low)[:, None, None], (columns - left)[None, :, None]
    upper, lower = (coarse[at][:, left] * (1 - right) + coarse[at][:, left + 1] * right for at in (low, low + 1))
    grain = np.kron(rng.normal(0, GRAIN, (HEIGHT // 4, WIDTH // 4, 1)), np.ones((4, 4, 1)))
    table = (upper * (1 - down) + lower * down + grain).astype(np.int16)
    noise = rng.integers(-3, 4, (HEIGHT + 64, WIDTH + 64, 3)).astype(np.int16)
    for step in range(LENGTH):
        frame = table.copy()
        for speed, size in ((0.07, 90), (0.11, 60)):
            y = int((HEIGHT - size) * (1 + np.sin(speed * step)) / 2)
            x = int((WIDTH - size) * (1 + np.cos(speed * step)) / 2)
            frame[y : y + size, x : x + size] = (size, 255 - size, 128)
        dy, dx = rng.integers(0, 64, 2)
        yield np.clip(frame + noise[dy : dy + HEIGHT, dx : dx + WIDTH], 0, 255).astype(np.uint8)


def record(folder: str, steps: int) -> None:
    """A dataset of LeRobot's with so many steps."""
    features = {
        CAMERA: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": ["height", "width", "channels"]},
        "observation.state": {"dtype": "float32", "shape": (14,), "names": None},
        ACTION: {"dtype": "float32", "shape": (14,), "names": None},
    }
    made = lerobot().create("robots/bench", fps=FPS, features=features, root=folder, use_videos=True)
    rng = np.random.default_rng(0)
    for _ in range(max(1, steps // LENGTH)):
        for picture in pictures(rng):
            numbers = {name: rng.normal(size=14).astype(np.float32) for name in ("observation.state", ACTION)}
            made.add_frame({CAMERA: picture, **numbers, "task": "move the boxes"})
        made.save_episode()
    made.finalize()


def lerobot() -> Any:
    """LeRobot's class of datasets, as the tests beside LeRobot import it."""
    sys.path.insert(0, str(harness.HERE.parent / "tests" / "robots"))
    from lerobot_datasets import LeRobotDataset

    return LeRobotDataset


def dataset(folder: str) -> Any:
    return lerobot()("robots/bench", root=folder, delta_timestamps=TIMES, video_backend="pyav")


def store(path: str) -> dr.ReplayBuffer[dr.DeltaBatch]:
    return dr.ReplayBuffer.open(path, mode="r", view=dr.DeltaTimestamps(TIMES), cache_bytes=0, seed=0)


def as_theirs(batch: dr.DeltaBatch) -> Any:
    """The pictures as LeRobot gives them."""
    return batch.torch().obs[CAMERA].movedim(-1, -3).float() / 255


def use(processors: int) -> None:
    """Run this process, and those that it starts, on so many processors."""
    import torch

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])
    torch.set_num_threads(1)


def on_one(folder: str, path: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a batch of each way, medians, in turns."""
    use(1)
    theirs, rng = dataset(folder), np.random.default_rng(0)
    with store(path) as buffer:
        ways: dict[str, Callable[[], Any]] = {
            "ours": lambda: buffer.sample(BATCH),
            "ours, as theirs": lambda: as_theirs(buffer.sample(BATCH)),
            "theirs": lambda: [theirs[at] for at in rng.integers(len(theirs), size=BATCH).tolist()],
        }
        took: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds + WARM):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                if turn >= WARM:
                    took[name].append(time.perf_counter() - start)
    return {name: harness.median_ms(each) for name, each in took.items()}


def on_two(folder: str, path: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a batch of each way, once it runs."""
    import torch

    use(2)

    def each(batches: Any) -> float:
        for _ in range(2 * WARM):  # those that were read ahead meanwhile
            next(batches)
        start = time.perf_counter()
        for _ in range(rounds):
            next(batches)
        return 1e3 * (time.perf_counter() - start) / rounds

    loader = torch.utils.data.DataLoader(dataset(folder), BATCH, shuffle=True, num_workers=2, drop_last=True)
    found = {"theirs": each(itertools.chain.from_iterable(itertools.repeat(loader)))}
    del loader
    with store(path) as buffer, buffer.loader(BATCH) as batches:
        found["ours"] = each(batches)
    with store(path) as buffer, buffer.loader(BATCH) as batches:
        found["ours, as theirs"] = each(map(as_theirs, batches))
    return found


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"batches of each way (default {ROUNDS})")
    asked = parser.parse_args()
    with harness.scratch() as scratch:
        folder, path = str(scratch / "lerobot"), str(scratch / "robots.replay")
        harness.fresh(record, folder, asked.steps)
        bring_in(folder, path)
        one, two = (harness.fresh(way, folder, path, asked.rounds) for way in (on_one, on_two))
        sizes = harness.stored_bytes(path), harness.stored_bytes(folder)
    rows = []
    for where, took in (("one processor", one), ("two processors", two)):
        for label, way, aim in (("uint8", "ours", False), ("made float32", "ours, as theirs", True)):
            label = f"{BATCH} windows on {where}, {label}"
            rows.append(harness.Figure(label, took[way], 0.333, "ms", took["theirs"], aim=aim))
    rows.append(harness.Figure("on disk", sizes[0] / 1e6, 1.1, "MB", sizes[1] / 1e6))
    raw = asked.steps * HEIGHT * WIDTH * 3 / 1e6
    body = f"{asked.steps:,} steps, {raw:,.0f} MB decoded. LeRobot decodes by PyAV.\n\n{harness.figures(rows)}"
    names = harness.versions("diskreplay", "numpy", "lerobot", "av", "torch")
    keep = asked.steps == STEPS and asked.rounds == ROUNDS
    harness.write_section("robots", "Windows of a robot's video", names, body, keep=keep)


def bring_in(folder: str, path: str) -> None:
    """Make the store by the command."""
    subprocess.run([sys.executable, "-m", "diskreplay", "import", folder, path], check=True)


if __name__ == "__main__":
    main()
