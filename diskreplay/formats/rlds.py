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

import contextlib
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
        self._values: list[Any] = []
        self.size = 0

    def append(self, values: Any) -> None:
        """Take values ``(n, *shape)``, or Lists; raise InputError for code points that are no text."""
        if self.kind != "byte":
            each: list[Any] = [np.array(values).reshape(-1)]
        elif self.text:
            each = utf8(self.text, values)
        else:
            each = images.encoded(values) if self.image else [value.tobytes() for value in values]
        self._values += each
        # Integers take up to ten bytes, but those of a dataset are small.
        self.size += sum(map(len, each)) * (1 if self.kind == "byte" else 4)

    def taken(self) -> tuple[Any, str]:
        """Return all values as the library wants them, and forget them."""
        found, self._values, self.size = self._values, [], 0
        dtype = np.int64 if self.kind == "int" else np.float32
        return (found if self.kind == "byte" else np.concatenate(found, dtype=dtype)), self.kind

    def feature(self) -> dict[str, Any]:
        """Return the feature as ``features.json`` has it."""
        if self.text:
            return TEXT_FEATURE
        shape = (*[-1] * self.ragged, *self.shape, *[1] * (self.image and len(self.shape) == 2))
        value = {"shape": {"dimensions": [str(size) for size in shape]} if shape else {}, "dtype": self.dtype.name}
        if self.image:
            return {"pythonClassName": f"{MODULE}.image_feature.Image", "image": {**value, "encodingFormat": "png"}}
        tensor = {**value, "encoding": "bytes" if self.kind == "byte" else "none"}
        return {"pythonClassName": f"{MODULE}.tensor_feature.Tensor", "tensor": tensor}


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    from tfrecord.writer import TFRecordWriter

    target.mkdir()
    columns, facts, episodes = _columns(source.layout), bool(source.facts), 0
    with contextlib.closing(TFRecordWriter(str(target / RECORDS))) as writer:
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
    origin = dict(source.layout.provenance)
    documents = {
        FEATURES: _features(columns, facts),
        INFO: _info(episodes, (target / RECORDS).stat().st_size),
        LAYOUT: source.layout.to_json(),
        **({ORIGIN: origin} if origin else {}),
    }
    for name, document in documents.items():
        (target / name).write_text(json.dumps(document, indent=1))


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
        **dict.fromkeys(FLAGS, np.zeros(count, bool)),
        "is_first": (np.arange(count) == 0) & begins,
    }


def _final(steps: Transitions) -> dict[str, Any]:
    found = {key: nothing(values) for key, values in _rows(steps, False).items()}
    found |= {_key(name): values[-1:] for name, values in steps.next_obs.items()}
    return found | dict(zip(FLAGS[1:], (np.ones(1, bool), steps.terminated[-1:], steps.truncated[-1:]), strict=True))


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": f"{MODULE}.features_dict.FeaturesDict", "featuresDict": {"features": dict(features)}}


def _nested(columns: Iterable[tuple[str, EpisodeFeature]]) -> dict[str, Any]:
    """Return features of columns by key; those with a slash stand in a dict of their own."""
    groups: dict[str, list[tuple[str, EpisodeFeature]]] = {}
    for key, column in columns:
        first, _, rest = key.partition("/")
        groups.setdefault(first, []).append((rest, column))
    return _dict({key: _nested(parts) if parts[0][0] else parts[0][1].feature() for key, parts in groups.items()})


def _features(columns: Mapping[str, EpisodeFeature], facts: bool) -> dict[str, Any]:
    sequence = {"feature": _nested(columns.items()), "length": "-1"}
    steps = {"pythonClassName": f"{MODULE}.dataset_feature.Dataset", "sequence": sequence}
    told = {FACTS.partition("/")[0]: _dict({FACTS.partition("/")[2]: TEXT_FEATURE})} if facts else {}
    return _dict({"steps": steps, **told})


def _info(episodes: int, size: int) -> dict[str, Any]:
    return {
        "name": NAME,
        "version": VERSION,
        "description": "Steps of reinforcement learning, written by diskreplay.",
        "fileFormat": "tfrecord",
        "splits": [
            {
                "name": "train",
                "shardLengths": [str(episodes)],
                "numBytes": str(size),
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
