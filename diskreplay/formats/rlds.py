"""The directories of RLDS as TensorFlow Datasets keeps them; ``tfds.builder_from_directory`` opens them.

RLDS is of Ramos et al. 2021, "RLDS: an Ecosystem to Generate, Share and Use Datasets in Reinforcement Learning".

=================================================  =========================================================
file                                               what it holds
=================================================  =========================================================
``diskreplay-train.tfrecord-00000-of-00001``       TFRecord: one ``tf.train.Example`` an episode
``features.json``                                  shape, dtype and encoding of each array
``dataset_info.json``                              number of episodes, and the name of the file
=================================================  =========================================================

Each key of an example is a list over the steps of its episode, of which there are one more than transitions:

=================================  ===================================================================================
key                                of step ``t``
=================================  ===================================================================================
``steps/observation``              ``obs``, of nested spaces ``steps/observation/<name>``; of the last step the true
                                   final observation
``steps/action``, ``steps/reward``  what was done at ``obs``, and what came of it; zeros at the last step
``steps/discount``                 0 if that led to a terminal state, else 1; 0 at the last step
``steps/is_first``                 ``t`` is 0
``steps/is_last``                  ``t`` is the last step
``steps/is_terminal``              that, and the episode was terminated
``steps/is_truncated``             that, and the episode was truncated; a key of our own
``steps/<name>``                   the user's own columns; zeros at the last step
=================================  ===================================================================================

1. Images, uint8 with 1, 3 or 4 channels as the last axis, are PNG; those without a channel get an axis of one, which
   ``tfds.features.Image`` asks for.
2. float32, and integers and bools of one axis at most, are lists of numbers. An example knows no other numbers, so all
   else is the bytes of each value: ``tfds.features.Tensor(encoding="bytes")``.
3. Episodes stand in memory one at a time, encoded.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, Shape
from diskreplay.formats.core.transitions import Source, Transitions, by_episode
from diskreplay.formats.files import images
from diskreplay.schema import ACTION, DTYPES, OBS, REWARD

NAME, VERSION = "diskreplay", "1.0.0"
RECORDS = f"{NAME}-train.tfrecord-00000-of-00001"
MODULE = "tensorflow_datasets.core.features"
FLAGS = ("is_first", "is_last", "is_terminal", "is_truncated")
DISCOUNT = "discount"
MAX_BYTES = (1 << 31) - 1
"""The most bytes of an example: protocol buffers end there."""
Array = NDArray[Any]


class EpisodeFeature:
    """One key of the example of an episode, filled from its first step to its last.

    Args:
        shape, dtype: the shape and dtype of the value of a step.

    Attributes:
        kind: the kind of the value's list in an example: "byte", "float" or "int".
        size: about as many bytes as it takes there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self.image = images.is_image(shape, dtype)
        self.numbers = dtype == np.float32 or (dtype.kind in "biu" and dtype != np.uint64 and len(shape) <= 1)
        self.kind = "byte" if self.image or not self.numbers else "float" if dtype.kind == "f" else "int"
        self._parts: list[Array] = []
        self._values: list[bytes] = []
        self.size = 0

    def append(self, values: Array) -> None:
        """Take values ``(n, *shape)``."""
        if self.kind != "byte":
            self._parts.append(np.ascontiguousarray(values).reshape(-1).copy())
            # Integers take up to ten bytes, but those of a dataset are small.
            self.size += self._parts[-1].size * 4
            return
        each = images.encoded(values) if self.image else [value.tobytes() for value in values]
        self._values += each
        self.size += sum(map(len, each))

    def taken(self) -> tuple[Any, str]:
        """Return all values as the library wants them, and forget them."""
        if self.kind == "byte":
            found: Any = self._values
        else:
            found = np.concatenate(self._parts)
            found = found.astype(np.int64) if self.kind == "int" else found
        self._parts, self._values, self.size = [], [], 0
        return found, self.kind

    def feature(self) -> dict[str, Any]:
        """Return the feature as ``features.json`` has it."""
        shape = (*self.shape, 1) if self.image and len(self.shape) == 2 else self.shape
        dimensions = {"dimensions": [str(length) for length in shape]} if shape else {}
        if self.image:
            image = {"shape": dimensions, "dtype": "uint8", "encodingFormat": "png"}
            return {"pythonClassName": f"{MODULE}.image_feature.Image", "image": image}
        encoding = "bytes" if self.kind == "byte" else "none"
        tensor = {"shape": dimensions, "dtype": self.dtype.name, "encoding": encoding}
        return {"pythonClassName": f"{MODULE}.tensor_feature.Tensor", "tensor": tensor}


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    from tfrecord.writer import TFRecordWriter

    target.mkdir()
    columns = {key: EpisodeFeature(*shape) for key, shape in _shapes(source.layout).items()}
    writer = TFRecordWriter(str(target / RECORDS))
    episodes, begins = 0, True
    try:
        for steps in by_episode(source.blocks()):
            for key, values in _rows(steps, begins).items():
                columns[key].append(values)
            if sum(column.size for column in columns.values()) > MAX_BYTES:
                raise InputError(f"rlds cannot hold episode {episodes}: one episode may have {MAX_BYTES:,} bytes")
            begins = bool(steps.last[-1])
            if begins:
                for key, values in _final(steps, source.layout).items():
                    columns[key].append(values)
                writer.write({f"steps/{key}": column.taken() for key, column in columns.items()})
                episodes += 1
    finally:
        writer.close()
    numbers = {"bytes": (target / RECORDS).stat().st_size, "episodes": episodes}
    (target / "features.json").write_text(json.dumps(_features(columns), indent=1))
    (target / "dataset_info.json").write_text(json.dumps(_info(numbers), indent=1))
    if source.layout.provenance:
        (target / "provenance.json").write_text(json.dumps(dict(source.layout.provenance), indent=1))


def _key(name: str) -> str:
    """Return the key of a column below ``steps``."""
    root, slash, rest = name.partition("/")
    return ("observation" if root == OBS else root) + slash + rest


def _shapes(layout: Layout) -> dict[str, Shape]:
    """Return the shape and dtype of the value of a step, by key."""
    plain: dict[str, Shape] = {**layout.obs, **layout.action, REWARD: ((), layout.reward_dtype), **layout.columns}
    found: dict[str, Shape] = {_key(name): shape for name, shape in plain.items()}
    found |= {DISCOUNT: ((), np.dtype(np.float32))}
    return found | {key: ((), np.dtype(bool)) for key in FLAGS}


def _rows(steps: Transitions, begins: bool) -> dict[str, Array]:
    """Return the values of some steps of an episode, by key."""
    count = len(steps)
    columns = {**steps.obs, **steps.action, REWARD: steps.reward, **steps.extra}
    return {
        **{_key(name): values for name, values in columns.items()},
        DISCOUNT: np.where(steps.terminated, np.float32(0), np.float32(1)),
        "is_first": (np.arange(count) == 0) & begins, "is_last": np.zeros(count, bool),
        "is_terminal": np.zeros(count, bool), "is_truncated": np.zeros(count, bool),
    }  # fmt: skip


def _final(steps: Transitions, layout: Layout) -> dict[str, Array]:
    """Return the values of the step after an episode's last transition, by key."""
    found = {key: np.zeros((1, *shape), dtype) for key, (shape, dtype) in _shapes(layout).items()}
    for name, values in steps.next_obs.items():
        found[_key(name)] = values[-1:]
    found["is_last"], found["is_terminal"] = np.ones(1, bool), steps.terminated[-1:]
    found["is_truncated"] = steps.truncated[-1:]
    return found


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{MODULE}.features_dict.FeaturesDict", "featuresDict": {"features": dict(features)}}


def _nested(columns: Iterable[tuple[str, EpisodeFeature]]) -> dict[str, Any]:
    """Return features of columns by key; those with a slash stand in a dict of their own."""
    groups: dict[str, list[tuple[str, EpisodeFeature]]] = {}
    for key, column in columns:
        first, _, rest = key.partition("/")
        groups.setdefault(first, []).append((rest, column))
    plain = {first: parts[0][1].feature() if not parts[0][0] else _nested(parts) for first, parts in groups.items()}
    return _dict(plain)


def _features(columns: Mapping[str, EpisodeFeature]) -> dict[str, Any]:
    sequence = {"feature": _nested(columns.items()), "length": "-1"}
    return _dict({"steps": {"pythonClassName": f"{MODULE}.dataset_feature.Dataset", "sequence": sequence}})


def _info(numbers: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": NAME,
        "version": VERSION,
        "description": "Steps of reinforcement learning, written by diskreplay.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": "train",
                "shardLengths": [str(numbers["episodes"])],
                "numBytes": str(numbers["bytes"]),
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
        ],
    }


def check(layout: Layout) -> None:
    """Raise InputError for columns that have the name of something else of a step."""
    fixed = {"observation", ACTION, REWARD, DISCOUNT, *FLAGS}
    for name in layout.columns:
        if name.partition("/")[0] in fixed:
            raise InputError(f"rlds has a {name!r} of its own in each step, and cannot hold a column of that name")


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory of TensorFlow Datasets."""
    return all((path / name).is_file() for name in ("features.json", "dataset_info.json"))


FORMATS = (
    Format(
        "rlds", "RLDS: steps as TensorFlow Datasets keeps them, in TFRecord", "directory",
        Holds(
            next_obs=False, empty=False, layout=False,
            dtypes=frozenset(name for name in DTYPES if not name.startswith("complex")),
        ), recognise, write=write, requires=("tfrecord",), extra="rlds", check=check,
    ),
)  # fmt: skip
