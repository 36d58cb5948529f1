"""The directories of RLDS as TensorFlow Datasets keeps them; ``tfds.builder_from_directory`` opens them.

RLDS is of Ramos et al. 2021, "RLDS: an Ecosystem to Generate, Share and Use Datasets in Reinforcement Learning".

=================================================  =================================================================
file                                               what it holds
=================================================  =================================================================
``diskreplay-train.tfrecord-00000-of-00001``       TFRecord: one ``tf.train.Example`` an episode
``features.json``                                  shape, dtype and encoding of each array
``dataset_info.json``                              number of episodes, and the name of the file
``diskreplay.json``, ``provenance.json``           the layout, and the origin of the steps, which others do not read
=================================================  =================================================================

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
3. Values of ragged columns are bytes, too, in a ``Tensor`` whose first size is unknown. Text spaces, and columns that
   came from texts, are ``Text``.
4. The facts of an episode are JSON in ``episode_metadata/diskreplay``.
5. Episodes stand in memory one at a time, encoded.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import episode_blocks
from diskreplay.formats.core.flat import utf8
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, Shape
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, nothing
from diskreplay.formats.files import images, rlds_episodes
from diskreplay.formats.files.rlds_episodes import DISCOUNT, FACTS, FEATURES, FLAGS, INFO, LAYOUT, ORIGIN, STEPS
from diskreplay.schema.columns import ACTION, DTYPES, OBS, REWARD

NAME, VERSION = "diskreplay", "1.0.0"
RECORDS = f"{NAME}-train.tfrecord-00000-of-00001"
MODULE = "tensorflow_datasets.core.features"
TEXT_FEATURE = {"pythonClassName": f"{MODULE}.text_feature.Text", "text": {}}
MAX_BYTES = (1 << 31) - 1
"""The most bytes of an example: protocol buffers end there."""


class EpisodeFeature:
    """One key of the example of an episode, filled from its first step to its last.

    Args:
        shape, dtype: the shape and dtype of the value of a step, or of an item of a ragged one.
        ragged: True if values have different numbers of items.
        text: the name of the column if the items are the code points of texts.

    Attributes:
        kind: the kind of the value's list in an example: "byte", "float" or "int".
        size: about as many bytes as it takes there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], ragged: bool = False, text: str = "") -> None:
        self.shape, self.dtype, self.ragged, self.text = shape, dtype, ragged, text
        self.image = images.is_image(shape, dtype) and not ragged
        numbers = dtype == np.float32 or (dtype.kind in "biu" and dtype != np.uint64 and len(shape) <= 1)
        self.kind = "byte" if self.image or ragged or not numbers else "float" if dtype.kind == "f" else "int"
        self._parts: list[Array] = []
        self._values: list[bytes] = []
        self.size = 0

    def append(self, values: Any) -> None:
        """Take values ``(n, *shape)``, or Lists; raise InputError for code points that are no text."""
        if self.kind != "byte":
            self._parts.append(np.ascontiguousarray(values).reshape(-1).copy())
            # Integers take up to ten bytes, but those of a dataset are small.
            self.size += self._parts[-1].size * 4
            return
        if self.text:
            each = utf8(self.text, values)
        else:
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
        if self.text:
            return TEXT_FEATURE
        shape = (*self.shape, 1) if self.image and len(self.shape) == 2 else self.shape
        sizes = [str(length) for length in ((-1, *shape) if self.ragged else shape)]
        dimensions = {"dimensions": sizes} if sizes else {}
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
    columns, facts = _columns(source.layout), bool(source.facts)
    writer = TFRecordWriter(str(target / RECORDS))
    episodes = 0
    try:
        for block in episode_blocks(source.blocks()):
            for key, values in _rows(block.steps, not block.start).items():
                columns[key].append(values)
            if sum(column.size for column in columns.values()) > MAX_BYTES:
                raise InputError(f"rlds cannot hold episode {block.number}: one episode may have {MAX_BYTES:,} bytes")
            if block.ends:
                for key, values in _final(block.steps).items():
                    columns[key].append(values)
                told = {FACTS: (json.dumps(source.facts[block.number]).encode(), "byte")} if facts else {}
                writer.write({**{STEPS + key: column.taken() for key, column in columns.items()}, **told})
                episodes = block.number + 1
    finally:
        writer.close()
    numbers = {"bytes": (target / RECORDS).stat().st_size, "episodes": episodes}
    (target / FEATURES).write_text(json.dumps(_features(columns, facts), indent=1))
    (target / INFO).write_text(json.dumps(_info(numbers), indent=1))
    (target / LAYOUT).write_text(json.dumps(source.layout.to_json(), indent=1))
    if source.layout.provenance:
        (target / ORIGIN).write_text(json.dumps(dict(source.layout.provenance), indent=1))


def _key(name: str) -> str:
    root, slash, rest = name.partition("/")
    return ("observation" if root == OBS else root) + slash + rest


def _columns(layout: Layout) -> dict[str, EpisodeFeature]:
    shapes: dict[str, Shape] = {**layout.obs, **layout.action, REWARD: ((), layout.reward_dtype), **layout.columns}
    found = {
        _key(name): EpisodeFeature(*shape, name in layout.ragged, name if name in layout.texts else "")
        for name, shape in shapes.items()
    }
    found[DISCOUNT] = EpisodeFeature((), np.dtype(np.float32))
    return found | {key: EpisodeFeature((), np.dtype(bool)) for key in FLAGS}


def _rows(steps: Transitions, begins: bool) -> dict[str, Array]:
    count = len(steps)
    columns = {**steps.obs, **steps.action, REWARD: steps.reward, **steps.extra}
    return {
        **{_key(name): values for name, values in columns.items()},
        DISCOUNT: np.where(steps.terminated, np.float32(0), np.float32(1)),
        "is_first": (np.arange(count) == 0) & begins, "is_last": np.zeros(count, bool),
        "is_terminal": np.zeros(count, bool), "is_truncated": np.zeros(count, bool),
    }  # fmt: skip


def _final(steps: Transitions) -> dict[str, Any]:
    found = {key: nothing(values) for key, values in _rows(steps, False).items()}
    found |= {_key(name): values[-1:] for name, values in steps.next_obs.items()}
    flags = {"is_last": np.ones(1, bool), "is_terminal": steps.terminated[-1:], "is_truncated": steps.truncated[-1:]}
    return {**found, **flags}


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


def _features(columns: Mapping[str, EpisodeFeature], facts: bool) -> dict[str, Any]:
    sequence = {"feature": _nested(columns.items()), "length": "-1"}
    steps = {"pythonClassName": f"{MODULE}.dataset_feature.Dataset", "sequence": sequence}
    told = {FACTS.partition("/")[0]: _dict({FACTS.partition("/")[2]: TEXT_FEATURE})} if facts else {}
    return _dict({"steps": steps, **told})


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


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a directory as a source, as :mod:`diskreplay.formats.files.rlds_episodes` says."""
    yield rlds_episodes.source(path, choice)


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory of TensorFlow Datasets."""
    return (path / FEATURES).is_file()


FORMATS = (
    Format(
        "rlds", "RLDS: steps as TensorFlow Datasets keeps them, in TFRecord", "directory",
        Holds(
            next_obs=False, facts=True, ragged=True,
            dtypes=frozenset(name for name in DTYPES if not name.startswith("complex")),
        ), recognise, read, write, requires=("tfrecord",), extra="rlds", check=check,
    ),
)  # fmt: skip
