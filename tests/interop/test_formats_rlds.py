"""RLDS datasets that TensorFlow Datasets reads, without TensorFlow: its features decode with NumPy alone.

The frames of TFRecord, which only TensorFlow itself reads there, are taken apart by a reader of their own here, and by
the library ``tfrecord``.
"""

from __future__ import annotations

import pathlib
import shutil
import struct
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np
import pytest
from formats.roundtrip import CASES, Case, Episode, leaves, read
from formats.test_ragged import make
from formats.test_rlds_in import ROBOT, undeclared

import diskreplay as dr
from diskreplay.ops.convert import export, import_dataset

RECORDS = "diskreplay-train.tfrecord-00000-of-00001"
WRITTEN = [case for case in CASES if not (case.empty or case.own_next_obs)]


@pytest.fixture(scope="module")
def tfds() -> Any:
    found = pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is in the interop extra")
    return found


def checked(data: bytes, stored: bytes) -> None:
    """The checksum of TFRecord: CRC-32C, turned by 15 bits, and a number added."""
    crc = google_crc32c.value(data)
    turned = (crc >> 15 | crc << 17) & 0xFFFFFFFF
    assert struct.unpack("<I", stored)[0] == (turned + 0xA282EAD8) & 0xFFFFFFFF


def records(path: pathlib.Path) -> Iterator[bytes]:
    """The records of a file; every checksum must be right."""
    with path.open("rb") as file:
        while head := file.read(8):
            checked(head, file.read(4))
            data = file.read(struct.unpack("<Q", head)[0])
            checked(data, file.read(4))
            yield data


@pytest.mark.parametrize("case", WRITTEN, ids=repr)
def test_tensorflow_datasets_decodes_every_step(case: Case, tfds: Any, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a", "rlds", allow_loss=not case.history)
    builder = tfds.builder_from_directory(str(tmp_path / "a"))
    episodes = read(path)
    assert builder.info.splits["train"].num_examples == len(episodes)
    assert [pathlib.Path(name).name for name in builder.info.splits["train"].filenames] == [RECORDS]
    found = [builder.info.features.deserialize_example_np(data) for data in records(tmp_path / "a" / RECORDS)]
    assert len(found) == len(episodes)
    for example, episode in zip(found, episodes, strict=True):
        check(list(example["steps"]), episode)


def check(steps: list[Any], episode: Episode) -> None:
    """The rules of RLDS: one step more than transitions, the last of which has an observation and nothing else."""
    count = len(episode)
    assert len(steps) == count + 1
    for number, step in enumerate(steps):
        end = number == count
        assert (step["is_first"], step["is_last"]) == (number == 0, end)
        assert step["is_terminal"] == (end and episode.terminated[-1])
        assert step["is_truncated"] == (end and episode.truncated[-1])
        place = number - 1 if end else number
        observations = dict(leaves(step["observation"], "obs"))
        assert observations.keys() == episode.obs.keys()
        for leaf, values in (episode.next_obs if end else episode.obs).items():
            same(observations[leaf], values[place, -1])
        taken = {**dict(leaves(step["action"], "action")), **{name: step[name] for name in episode.extra}}
        for name, values in {**episode.action, **episode.extra}.items():
            same(taken[name], np.zeros_like(values[0]) if end else values[number])
        same(step["reward"], episode.reward.dtype.type(0) if end else episode.reward[number])
        assert step["discount"] == (0 if end or episode.terminated[number] else 1)


def same(found: Any, wanted: Any) -> None:
    """Equal, dtypes included; images without a channel got an axis of one."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.reshape(wanted.shape), wanted)


def test_tfrecord_reads_it(path: str, tmp_path: pathlib.Path) -> None:
    """As PyTorch users do, with nothing but the names and kinds of the keys."""
    reader = pytest.importorskip("tfrecord.reader", reason="tfrecord is in the interop extra")
    next(case for case in CASES if case.name == "vectors, continuous actions").make(path)
    export(path, tmp_path / "a", "rlds")
    kinds = {"steps/observation": "float", "steps/action": "float", "steps/is_last": "int"}
    found = list(reader.tfrecord_loader(str(tmp_path / "a" / RECORDS), None, kinds))
    for example, episode in zip(found, read(path), strict=True):
        frames = example["steps/observation"].reshape(-1, 5)
        np.testing.assert_array_equal(frames[:-1], episode.obs["obs"][:, 0])
        np.testing.assert_array_equal(frames[1:], episode.next_obs["obs"][:, 0])
        np.testing.assert_array_equal(example["steps/action"].reshape(-1, 2)[:-1], episode.action["action"])
        assert example["steps/is_last"].tolist() == [0] * len(episode) + [1]


def test_tensorflow_datasets_decodes_ragged_values(tfds: Any, path: str, tmp_path: pathlib.Path) -> None:
    make(path, steps=22)
    export(path, tmp_path / "a", "rlds")
    builder = tfds.builder_from_directory(str(tmp_path / "a"))
    found = [builder.info.features.deserialize_example_np(data) for data in records(tmp_path / "a" / RECORDS)]
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        for example, e in zip(found, sorted(rb.episodes, key=lambda e: (e.env, e.start)), strict=True):
            batch = rb.get(np.arange(e.start, e.stop) * rb.num_envs + e.env)
            steps = list(example["steps"])
            wanted = dict(leaves(batch.obs, "observation") + leaves(batch.action, "action")) | batch.extra
            ends = dict(leaves(batch.next_obs, "observation"))
            for at, step in enumerate(steps):
                here = dict(leaves(step["observation"], "observation") + leaves(step["action"], "action"))
                here |= {name: step[name] for name in batch.extra}
                assert here["observation/text"].decode().isascii()
                here["observation/text"] = np.array([ord(char) for char in here["observation/text"].decode()], np.int32)
                for name, values in (wanted if at < len(batch.reward) else ends).items():
                    same(here[name], values[min(at, len(batch.reward) - 1)])


def test_tensorflow_datasets_opens_a_dataset_without_steps(tfds: Any, path: str, tmp_path: pathlib.Path) -> None:
    make(path, steps=0)
    export(path, tmp_path / "a", "rlds")
    assert tfds.builder_from_directory(str(tmp_path / "a")).info.splits["train"].num_examples == 0


def test_tensorflow_datasets_finds_what_it_wrote(tfds: Any, tmp_path: pathlib.Path) -> None:
    """Its own dataset comes in and goes out, and each step is there, but for what one of the two does not read."""
    shutil.copytree(ROBOT, tmp_path / "robot")
    undeclared(tmp_path / "robot", "cloud")  # which it decodes with TensorFlow only
    import_dataset(tmp_path / "robot", tmp_path / "a.replay")
    export(tmp_path / "a.replay", tmp_path / "again", "rlds")
    each = {}
    for folder in (tmp_path / "robot", tmp_path / "again"):
        files = sorted(folder.glob("*.tfrecord-*"))
        features = tfds.builder_from_directory(str(folder)).info.features
        each[folder] = [features.deserialize_example_np(data) for file in files for data in records(file)]
    for theirs, ours in zip(*each.values(), strict=True):
        one, two = list(theirs["steps"]), list(ours["steps"])
        assert len(two) == len(one) + 1  # of its own, for the final observation
        for before, after in zip(one, two, strict=False):
            unread = {"box", "discount", "is_last", "is_terminal"}
            for name in before.keys() - unread - {"observation", "action"}:
                same_value(before[name], after[name])
            for group, left in (("observation", {"depth"}), ("action", set())):
                for name in before[group].keys() - left:
                    same_value(before[group][name], after[group][name])


def same_value(one: Any, other: Any) -> None:
    """Equal; texts are bytes."""
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
