"""Recording beside a control loop: how long `step` takes at 30 Hz with two cameras, of 480x640 and 240x320.

1. Ours, whose thread keeps frames, compressed by LZ4HC or by Zstandard, or encodes video; a commit every 80 steps.
2. LeRobot's recorder, `add_frame` with four threads for each camera that write its pictures, as it recommends. It needs
   an interpreter with `lerobot`, which ``--lerobot`` names; by turns with ours.
3. What the end of an episode takes from the loop: ours the `reset`, LeRobot's `save_episode`.

Only the recorder's own part is timed: the cameras give pictures that were made before. Where other programs use the
cores, a step waits for one, as any thread does; the table has the 99.9th percentile without these waits, too.

    python benchmarks/recording.py [--steps 1800] [--lerobot PATH/python] [--rounds 2]
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS, ROUNDS = 1_800, 2
EPISODE, HERTZ, COMMIT_ROWS = 300, 30, 80
CAMERAS = {"front": (480, 640, 3), "wrist": (240, 320, 3)}
Times = dict[str, list[float]]


def pictures(size: tuple[int, ...], count: int = 60) -> list[Any]:
    """Smooth pictures that move, with a camera's noise."""
    rng = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(size[0]), np.arange(size[1]))[..., None] // 5 + 20 * np.arange(3)
    base = np.clip(smooth, 0, 240).astype(np.uint8)
    return [np.roll(base, 3 * at, 1) + rng.integers(0, 8, size, dtype=np.uint8) for at in range(count)]


def loop(steps: int, step: Callable[[int], object], over: Callable[[], object]) -> Times:
    """Seconds of each step of a loop that keeps its rate, those less its wait for a core, those of episodes' ends."""
    took, running, ends, due = [], [], [], time.perf_counter()
    for at in range(steps):
        if at and at % EPISODE == 0:
            start = time.perf_counter()
            over()
            due = time.perf_counter()
            ends.append(due - start)
        due += 1 / HERTZ
        time.sleep(max(0.0, due - time.perf_counter()))
        waited, start = waited_for_core(), time.perf_counter()
        step(at)
        took.append(time.perf_counter() - start)
        running.append(took[-1] - (waited_for_core() - waited))
    return {"steps": took, "running": running, "ends": ends}


def waited_for_core() -> float:
    """Seconds for which this thread was ready to run, and others had the cores; 0 where the system does not tell."""
    try:
        return int(pathlib.Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def ours(folder: str, steps: int, **more: Any) -> Times:
    import gymnasium
    from gymnasium.spaces import Box, Dict

    import diskreplay as dr

    class Robot(gymnasium.Env[Any, Any]):
        observation_space = Dict(
            {name: Box(0, 255, size, np.uint8) for name, size in CAMERAS.items()} | {"state": Box(-9, 9, (7,))}
        )
        action_space = Box(-1, 1, (7,))
        frames = {name: pictures(size) for name, size in CAMERAS.items()}  # noqa: RUF012
        at = 0

        def seen(self) -> Any:
            shown: dict[str, Any] = {name: each[self.at % len(each)] for name, each in self.frames.items()}
            return shown | {"state": np.full(7, self.at % 9, np.float32)}

        def reset(self, **options: Any) -> Any:
            return self.seen(), {}

        def step(self, action: Any) -> Any:
            self.at += 1
            return self.seen(), 0.0, False, self.at % EPISODE == 0, {}

    if more.get("video"):
        more["video"] = {name: dr.Video("av1", size[1], size[0], fps=HERTZ) for name, size in CAMERAS.items()}
    env = dr.Record(Robot(), f"{folder}/store", background=True, commit_rows=COMMIT_ROWS, **more)
    env.reset()
    action = np.zeros(7, np.float32)
    found = loop(steps, lambda at: env.step(action), env.reset)
    start = time.perf_counter()
    env.close()
    return {**found, "close": [time.perf_counter() - start], "waits": [float(env.waited.count)]}


def lerobot(folder: str, steps: int) -> Times:
    import torch

    library = torch.library.Library("torchvision", "DEF")  # operators that a torchvision without its library lacks
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    names = ["height", "width", "channel"]
    features: dict[str, Any] = {
        f"observation.images.{name}": {"dtype": "video", "shape": size, "names": names}
        for name, size in CAMERAS.items()
    }
    for name in ("observation.state", "action"):
        features[name] = {"dtype": "float32", "shape": (7,), "names": [str(at) for at in range(7)]}
    dataset = LeRobotDataset.create(
        "a/b", fps=HERTZ, features=features, root=f"{folder}/set", use_videos=True, video_backend="pyav",
        image_writer_threads=4 * len(CAMERAS),
    )  # fmt: skip
    frames = {name: pictures(size) for name, size in CAMERAS.items()}

    def step(at: int) -> None:
        state = np.full(7, at % 9, np.float32)
        seen = {f"observation.images.{name}": each[at % len(each)] for name, each in frames.items()}
        dataset.add_frame({**seen, "observation.state": state, "action": state, "task": "push"})

    found = loop(steps, step, dataset.save_episode)
    start = time.perf_counter()
    dataset.save_episode()
    dataset.finalize()
    return {**found, "close": [time.perf_counter() - start], "waits": [0.0]}


WAYS: dict[str, Callable[[str, int], Times]] = {
    "frames": ours,
    "frames, zstd": lambda folder, steps: ours(folder, steps, codec="zstd:1"),
    "video": lambda folder, steps: ours(folder, steps, video=True),
    "LeRobot": lerobot,
}


def in_its_own_process(python: str, way: str, steps: int) -> Times:
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=pathlib.Path(__file__).parent) as folder:
        command = [python, __file__, "--way", way, "--folder", folder, "--steps", str(steps)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found: Times = json.loads(done.stdout.splitlines()[-1])
        found["bytes"] = [float(sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file()))]
        return found


def main() -> None:
    if "--way" in sys.argv:
        _, _, way, _, folder, _, steps = sys.argv
        print(json.dumps(WAYS[way](folder, int(steps))))
        return
    import harness

    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--lerobot", metavar="PYTHON", help="an interpreter with LeRobot")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"times that each way runs (default {ROUNDS})")
    asked = parser.parse_args()
    pythons = {way: sys.executable for way in WAYS if way != "LeRobot"}
    if asked.lerobot:
        pythons["LeRobot"] = asked.lerobot
    found: dict[str, list[Times]] = {way: [] for way in pythons}
    for _ in range(asked.rounds):
        for way, python in pythons.items():
            found[way].append(in_its_own_process(python, way, asked.steps))
    rows, figures = [], []
    for way, runs in found.items():
        took = 1e3 * np.concatenate([each["steps"] for each in runs])
        ends = 1e3 * np.concatenate([each["ends"] or [0.0] for each in runs])
        size = sum(each["bytes"][0] for each in runs) / len(took)
        high = float(np.percentile(took, 99.9))
        running = 1e3 * float(np.percentile(np.concatenate([each["running"] for each in runs]), 99.9))
        waits = f"{sum(each['waits'][0] for each in runs):.0f}"
        rows.append(
            [way, f"{np.median(took):.2f}", f"{high:.2f}", f"{running:.2f}", f"{took.max():.2f}",
             f"{np.median(ends):.1f}", f"{max(each['close'][0] for each in runs):.2f}", waits, f"{size / 1e3:,.1f}"]
        )  # fmt: skip
        if way != "LeRobot":
            figures.append(harness.Figure(f"`step`, 99.9th percentile, {way}", high, 5, "ms"))
    heads = [
        "recorder", "median ms", "99.9 % ms", "less waits for a core", "longest ms", "end of an episode, ms",
        "close, s", "waits", "kB a step",
    ]  # fmt: skip
    body = (
        f"{asked.rounds} times {asked.steps:,} steps at {HERTZ} Hz, episodes of {EPISODE}, two cameras of 480x640 and "
        f"240x320, a commit every {COMMIT_ROWS} steps.\n\n{harness.figures(figures)}\n\n{harness.table(heads, rows)}"
    )
    keep = asked.steps == STEPS and asked.rounds == ROUNDS and bool(asked.lerobot)
    packages = harness.versions("diskreplay", "numpy", "av")
    harness.write_section("recording", "Recording beside a control loop", packages, body, keep=keep)


if __name__ == "__main__":
    main()
