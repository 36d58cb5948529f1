"""Datasets that LeRobot itself makes: one camera; two of other sizes over several files; pictures."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from diskreplay.recording.video_encoding import as_a_guest

# What torchvision's own library would bring; the wheels of torch for the CPU alone have none that fits.
OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for operator in ("nms", "qnms"):
    OPERATORS.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

STATE = {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]}
ACTION = {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}
FLAG = {"dtype": "bool", "shape": (1,), "names": None}
REWARD = {"dtype": "float32", "shape": (1,), "names": None}


TEXT = {"dtype": "string", "shape": (1,), "names": None}


def camera(kind: str, height: int, width: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": (height, width, 3), "names": ["height", "width", "channels"]}


def picture(rng: np.random.Generator, height: int, width: int, episode: int, step: int) -> np.ndarray:
    """A gradient that moves, with noise."""
    slope = np.add.outer(np.arange(height), np.arange(width))[..., None] + np.array([3 * step, 20 * episode, 0])
    return np.clip(slope + rng.integers(0, 8, (height, width, 3)), 0, 255).astype(np.uint8)


def build(
    root: pathlib.Path,
    features: dict[str, Any],
    lengths: list[int],
    fps: int = 30,
    limits: dict[str, Any] | None = None,
) -> None:
    """A dataset of episodes of these lengths, with random values; every second one has a task of its own."""
    rng = np.random.default_rng(len(features))
    dataset = LeRobotDataset.create("a/b", fps=fps, features=features, root=root, use_videos=True, video_backend="pyav")
    if limits:
        dataset.meta.update_chunk_settings(
            chunks_size=limits["chunks_size"], data_files_size_in_mb=1, video_files_size_in_mb=1
        )
        dataset.meta.info |= limits  # LeRobot's own check asks for whole numbers; what is compared with them does not
    for episode, length in enumerate(lengths):
        for step in range(length):
            dataset.add_frame(
                {
                    **{key: value(rng, feature, episode, step, length) for key, feature in features.items()},
                    "task": "push" if episode % 2 else f"grasp object {episode}",
                }
            )
        with as_a_guest():
            dataset.save_episode()
    dataset.finalize()


def value(rng: np.random.Generator, feature: dict[str, Any], episode: int, step: int, length: int) -> Any:
    if feature["dtype"] in ("video", "image"):
        return picture(rng, *feature["shape"][:2], episode, step)
    if feature["dtype"] == "string":
        return ["reach", "grasp\nfirmly", "é語🙂", ""][(step + episode) % 4]
    if feature["dtype"] == "bool":
        return np.array([step == length - 1 and episode % 2 == 0])
    return rng.normal(size=feature["shape"]).astype(feature["dtype"])


def one_camera(root: pathlib.Path) -> None:
    build(root, {"observation.image": camera("video", 96, 96), "observation.state": STATE, "action": ACTION}, [7, 8, 5])


def two_cameras(root: pathlib.Path) -> None:
    features = {
        "observation.images.top": camera("video", 64, 96), "observation.images.wrist": camera("video", 120, 80),
        "observation.state": STATE, "observation.map": {"dtype": "float32", "shape": (2, 3), "names": None},
        "action": ACTION, "next.reward": REWARD, "next.done": FLAG, "next.success": FLAG,
    }  # fmt: skip
    limits = {"chunks_size": 2, "data_files_size_in_mb": 0.003, "video_files_size_in_mb": 0.0025}
    build(root, features, [7, 2, 12, 6, 9], 20, limits)


def texts(root: pathlib.Path) -> None:
    features = {
        "observation.said": TEXT, "observation.image": camera("video", 64, 64), "observation.state": STATE,
        "action": ACTION, "subtask": TEXT,
    }  # fmt: skip
    build(root, features, [6, 1, 9])


def pictures(root: pathlib.Path) -> None:
    features = {
        "observation.images.front": camera("image", 48, 40), "observation.state": STATE, "action.left": ACTION,
        "action.right": ACTION, "observation.force": {"dtype": "float64", "shape": (1,), "names": None},
    }  # fmt: skip
    build(root, features, [6, 9])


DATASETS: dict[str, Callable[[pathlib.Path], None]] = {
    "one camera": one_camera, "two cameras": two_cameras, "pictures": pictures,
}  # fmt: skip
EVERY = {**DATASETS, "texts": texts}
"""LeRobot makes no windows of texts."""


def opened(root: pathlib.Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("a/b", root=root, video_backend="pyav", **options)
