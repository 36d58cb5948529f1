"""Makes the dataset ``robot`` beside this file with TensorFlow Datasets itself: ``python make.py FOLDER``.

It needs ``tensorflow-cpu`` (it was 2.21) and ``tensorflow-datasets`` (4.9.10). ``FOLDER/robot/1.0.0`` is what stands in
``robot``: a dataset in the shape of those of Open X-Embodiment.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

LENGTHS = {"train": [4, 1, 6], "val": [3, 2]}
TASKS = ["pick up the cup", "öffne die Schublade", "stack the blocks"]
ROBOT = tfds.features.FeaturesDict({
    "steps": tfds.features.Dataset({
        "observation": {
            "image": tfds.features.Image(shape=(8, 12, 3), encoding_format="jpeg"),
            "wrist": tfds.features.Image(shape=(None, None, 3), encoding_format="png"),
            "depth": tfds.features.Image(shape=(8, 12, 1), dtype=np.uint16, encoding_format="png"),
            "state": tfds.features.Tensor(shape=(3,), dtype=np.float32),
            "said": tfds.features.Text(),
        },
        "action": {"arm": tfds.features.Tensor(shape=(2,), dtype=np.float32), "grip": tfds.features.Scalar(np.bool_)},
        "reward": tfds.features.Scalar(np.float32),
        "discount": tfds.features.Scalar(np.float32),
        "is_first": tfds.features.Scalar(np.bool_),
        "is_last": tfds.features.Scalar(np.bool_),
        "is_terminal": tfds.features.Scalar(np.bool_),
        "language_instruction": tfds.features.Text(),
        "force": tfds.features.Tensor(shape=(2, 3), dtype=np.float64, encoding="zlib"),
        "id": tfds.features.Tensor(shape=(), dtype=np.uint64),
        "kind": tfds.features.ClassLabel(num_classes=3),
        "tokens": tfds.features.Sequence(np.int32),
        "box": tfds.features.Sequence(tfds.features.Tensor(shape=(2,), dtype=np.float32), length=2),
        "points": tfds.features.Tensor(shape=(None, 3), dtype=np.float32, encoding="bytes"),
        "cloud": tfds.features.Tensor(shape=(None, 3, None), dtype=np.float32, encoding="zlib"),
    }),
    "episode_metadata": {
        "file_path": tfds.features.Text(), "success": tfds.features.Scalar(np.bool_),
        "mass": tfds.features.Tensor(shape=(2,), dtype=np.float32),
    },
})  # fmt: skip


def robot(split: str) -> Iterator[tuple[str, Any]]:
    """Demonstrations whose last step has an action and a reward, as Open X-Embodiment's converters write them."""
    rng = np.random.default_rng(len(split))
    for number, length in enumerate(LENGTHS[split]):
        steps = []
        for at in range(length):
            last = at == length - 1
            image = np.full((8, 12, 3), 40 * number, np.uint8)
            image[:, : at + 1] += 9
            steps.append({
                "observation": {
                    "image": image, "wrist": rng.integers(0, 256, (4, 4, 3), np.uint8),
                    "depth": rng.integers(0, 1 << 16, (8, 12, 1), np.uint16),
                    "state": rng.normal(size=3).astype(np.float32), "said": "go" if at % 2 else "",
                },
                "action": {"arm": rng.normal(size=2).astype(np.float32), "grip": bool(at % 2)},
                "reward": np.float32(last), "discount": np.float32(1), "is_first": at == 0, "is_last": last,
                "is_terminal": last, "language_instruction": TASKS[number], "force": rng.normal(size=(2, 3)),
                "id": np.uint64((1 << 63) + at), "kind": at % 3, "tokens": list(range(-1, at)),
                "box": rng.normal(size=(2, 2)).astype(np.float32),
                "points": rng.normal(size=(at, 3)).astype(np.float32),
                "cloud": rng.normal(size=(at, 3, 1)).astype(np.float32),
            })  # fmt: skip
        metadata = {
            "file_path": f"/data/{split}/{number}.npy",
            "success": number % 2 == 0,
            "mass": np.float32([0.5, number]),
        }
        yield f"{split}{number}", {"steps": steps, "episode_metadata": metadata}


class Robot(tfds.core.GeneratorBasedBuilder):
    """Two splits, the first of which has two shards."""

    name = "robot"
    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(builder=self, features=ROBOT, description="Made for tests.")

    def _split_generators(self, manager: Any) -> Any:
        return {split: robot(split) for split in LENGTHS}

    def _generate_examples(self) -> Any:
        raise NotImplementedError


def main(folder: pathlib.Path) -> None:
    config = tfds.download.DownloadConfig(num_shards=2)
    Robot(data_dir=str(folder)).download_and_prepare(download_config=config)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
