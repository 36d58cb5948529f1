"""RLDS directories that come in: one that TensorFlow Datasets made, and what is wrong in others."""

from __future__ import annotations

import functools
import json
import operator
import pathlib
import shutil
import struct
from collections.abc import Callable
from typing import Any

import google_crc32c
import numpy as np
import PIL.Image
import pytest
from formats.roundtrip import TERMINATED, TRUNCATED, refused, store
from formats.test_ragged import read
from gymnasium import spaces
from tfrecord.example_pb2 import Example

import diskreplay as dr
from diskreplay.formats.files.tfrecord import examples
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify

ROBOT = pathlib.Path(__file__).parent / "tfds" / "robot"
RECORDS = "diskreplay-train.tfrecord-00000-of-00001"


def texts(rows: Any) -> list[str]:
    return ["".join(map(chr, row)) for row in rows]


def stored(path: pathlib.Path) -> list[Any]:
    """The examples of a directory, as protocol buffers."""
    found = []
    for file in sorted(path.glob("*.tfrecord-*")):
        for one in examples(file):
            found.append(Example.FromString(file.read_bytes()[one.start : one.start + one.length]))
    return found


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + masked(head) + data + masked(data)


def changed(path: pathlib.Path, change: Callable[[Any], object]) -> None:
    """Changes every example of a directory of ours; its checksums are right."""
    each = stored(path)
    for one in each:
        change(one.features.feature)
    (path / RECORDS).write_bytes(b"".join(record(one.SerializeToString()) for one in each))


def made(folder: pathlib.Path, ours: bool = True, **options: Any) -> pathlib.Path:
    """A directory that was exported, without our description if others made it."""
    observation = spaces.Dict(at=spaces.Box(-9, 9, (2,)), camera=spaces.Box(0, 255, (8, 8), np.uint8))
    given = {"lengths": [(4, TERMINATED), (3, TRUNCATED)], "columns": {"tokens": ((), np.uint8)}, **options}
    store(observation, **given)(str(folder / "source.replay"))
    export(folder / "source.replay", folder / "set", "rlds")
    shutil.rmtree(folder / "source.replay")
    if not ours:
        (folder / "set" / "diskreplay.json").unlink()
    return folder / "set"


@pytest.fixture
def robot(tmp_path: pathlib.Path) -> pathlib.Path:
    found = import_dataset(ROBOT, tmp_path / "robot.replay")
    assert (found.format, found.transitions, found.episodes, found.dropped) == ("rlds", 16, 5, 0)
    assert found.ignored == ("steps/cloud", "steps/observation/depth")
    assert verify(tmp_path / "robot.replay").ok
    return tmp_path / "robot.replay"


def test_every_value_that_tfds_wrote_is_there(robot: pathlib.Path) -> None:
    """Beside the examples as protocol buffers: the last step of each has an action, and is a transition."""
    whole = [one.features.feature for one in stored(ROBOT)]
    states, arms = (
        [value for one in whole for value in one[f"steps/{key}"].float_list.value]
        for key in ("observation/state", "action/arm")
    )
    with dr.ReplayBuffer.open(robot, mode="r", ragged="lists") as rb:
        batch = rb.get(rb.items())
        assert batch.obs["state"].reshape(-1).tolist() == states
        assert batch.action["arm"].reshape(-1).tolist() == arms
        assert [e.length for e in rb.episodes] == [1, 4, 6, 3, 2]
        ends = np.cumsum([e.length for e in rb.episodes]) - 1
        assert np.flatnonzero(batch.terminated).tolist() == ends.tolist()
        assert not batch.truncated.any()
        assert batch.reward.tolist() == [float(at in ends) for at in range(16)]
        for key in ("state", "image", "wrist"):
            np.testing.assert_array_equal(batch.next_obs[key][ends], batch.obs[key][ends])
        assert (batch.extra["id"] >= 1 << 63).all()
        assert batch.extra["kind"].dtype == np.int64
        assert (batch.extra["force"].shape, batch.extra["box"].shape) == ((16, 2, 3), (16, 2, 2))
        at = np.concatenate([np.arange(e.length) for e in rb.episodes])
        assert [row.tolist() for row in batch.extra["tokens"]] == [list(range(-1, number)) for number in at]
        assert [row.shape for row in batch.extra["points"]] == [(number, 3) for number in at]
        assert texts(batch.obs["said"]) == ["go" if number % 2 else "" for number in at]
        assert rb.schema.observation_space["said"] == spaces.Text(2, min_length=0, charset="go")
        words = ["öffne die Schublade", "pick up the cup", "stack the blocks", "pick up the cup", "öffne die Schublade"]
        lengths = [e.length for e in rb.episodes]
        assert texts(batch.extra["language_instruction"]) == np.repeat(words, lengths).tolist()


def test_images_are_decoded(robot: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(robot, mode="r") as rb:
        batch = rb.get(rb.items())
    each = [one.features.feature[f"steps/observation/{key}"] for key in ("image", "wrist") for one in stored(ROBOT)]
    pictures = [data for one in each for data in one.bytes_list.value]
    for data, pixels in zip(pictures, [*batch.obs["image"], *batch.obs["wrist"]], strict=True):
        (tmp_path / "one").write_bytes(data)
        np.testing.assert_array_equal(np.asarray(PIL.Image.open(tmp_path / "one")), pixels)


def test_what_is_told_of_episodes_becomes_facts(robot: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(robot, mode="r") as rb:
        assert rb.provenance["rlds"]["name"] == "robot"
        assert [e.facts["split"] for e in rb.episodes] == ["train"] * 3 + ["val"] * 2
        assert rb.episodes[0].facts == {
            "split": "train", "file_path": "/data/train/1.npy", "success": False, "mass": [0.5, 1.0]
        }  # fmt: skip


def test_it_goes_out_and_comes_in_again(robot: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert export(robot, tmp_path / "out", "rlds").lost == {}
    described = json.loads((tmp_path / "out" / "features.json").read_text())
    steps = described["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert steps["language_instruction"]["pythonClassName"].endswith(".Text")
    assert steps["tokens"]["tensor"]["shape"]["dimensions"] == ["-1"]
    import_dataset(tmp_path / "out", tmp_path / "back.replay")
    assert read(robot) == read(tmp_path / "back.replay")
    with dr.ReplayBuffer.open(robot, mode="r") as one, dr.ReplayBuffer.open(tmp_path / "back.replay", mode="r") as two:
        assert [e.facts for e in one.episodes] == [e.facts for e in two.episodes]
        assert one.provenance == two.provenance
        assert one.schema.observation_space == two.schema.observation_space


def test_without_our_description_steps_are_the_same(tmp_path: pathlib.Path) -> None:
    """The final observation is the last step's; what fills that step's place is no transition."""
    dataset = made(tmp_path)
    import_dataset(dataset, tmp_path / "ours.replay")
    (dataset / "diskreplay.json").unlink()
    found = import_dataset(dataset, tmp_path / "theirs.replay")
    assert (found.transitions, found.dropped) == (7, 0)
    with dr.ReplayBuffer.open(tmp_path / "ours.replay", mode="r") as a:
        one = a.get(a.items())
    with dr.ReplayBuffer.open(tmp_path / "theirs.replay", mode="r") as b:
        two = b.get(b.items())
    np.testing.assert_array_equal(one.next_obs["at"], two.next_obs["at"])
    np.testing.assert_array_equal(one.obs["camera"], two.obs["camera"][..., 0])
    np.testing.assert_array_equal(one.action, two.action)
    np.testing.assert_array_equal(one.terminated, two.terminated)
    np.testing.assert_array_equal(one.truncated, two.truncated)


def without(*keys: str) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        for key in keys:
            del feature[key]

    return change


def undeclared(path: pathlib.Path, *names: str) -> None:
    """Takes features of steps out of the description."""
    file = path / "features.json"
    document = json.loads(file.read_text())
    steps = document["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    for name in names:
        del steps[name]
    file.write_text(json.dumps(document))


def test_a_discount_of_zero_terminates_without_is_terminal(tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, ours=False)
    undeclared(dataset, "is_terminal", "is_truncated")
    import_dataset(dataset, tmp_path / "a.replay")
    with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as rb:
        assert [(e.terminated, e.truncated) for e in rb.episodes] == [(True, False), (False, True)]


@pytest.mark.parametrize(("reward", "transitions", "dropped"), [(1.0, 8, 1), (float("nan"), 7, 0)])
def test_a_last_action_without_termination_is_counted_unless_it_fills_a_place(
    reward: float, transitions: int, dropped: int, tmp_path: pathlib.Path
) -> None:
    """Of the episode that was terminated it is one; what fills a place may be no number."""
    dataset = made(tmp_path, ours=False)

    def change(feature: Any) -> None:
        feature["steps/reward"].float_list.value[-1] = reward

    changed(dataset, change)
    found = import_dataset(dataset, tmp_path / "a.replay")
    assert (found.transitions, found.dropped) == (transitions, dropped)


def test_facts_that_cannot_be_kept_are_named(tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, ours=False)
    document = json.loads((dataset / "features.json").read_text())
    text = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}
    document["featuresDict"]["features"] |= {"long": text, "seed": text, "good name": text, "absent": text}
    (dataset / "features.json").write_text(json.dumps(document))

    def change(feature: Any) -> None:
        for key, value in (("long", b"x" * 5000), ("seed", b"no number"), ("good name", b"yes")):
            feature[key].bytes_list.value.append(value)

    changed(dataset, change)
    assert import_dataset(dataset, tmp_path / "a.replay").ignored == ("long", "seed")
    with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as rb:
        assert rb.episodes[0].facts == {"good_name": "yes"}


@pytest.mark.parametrize("told", [b"[1]", b"{", b'{"seed": "x"}', b"3"])
def test_facts_of_ours_that_are_none(told: bytes, path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(path, spaces.Discrete(3), spaces.Discrete(2), capacity=9) as rb:
        rb.begin_episode(task="lift")
        rb.add(0, 1, 1.0, 2, True, False)
    (tmp_path / "in").mkdir()
    export(path, tmp_path / "in" / "set", "rlds")
    changed(tmp_path / "in" / "set", values("episode_metadata/diskreplay", "bytes_list", [told]))
    refused(tmp_path / "in" / "set", "fact|seed|JSON cannot be read")


# Damage


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


BEYOND = struct.pack("<Q", 1 << 40)
DAMAGE: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda data: BEYOND + masked(BEYOND) + data[12:],
     r"record 0: declares 1,099,511,627,776 bytes, and the file has"),
    *[(functools.partial(flipped, at=at), r"record [01] is damaged: its checksum") for at in (0, 9, 40, -1)],
    *[(operator.itemgetter(slice(kept)), r"declares 2 episodes in 'train', not 0|record [01]")
      for kept in (0, 5, 100, -1)],
    (lambda data: record(b"\x0a\xff\xff\xff") * 2, r"record 0 is no tf.train.Example"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "said"), DAMAGE)
def test_damaged_records(damage: Callable[[bytes], bytes], said: str, tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path)
    (dataset / RECORDS).write_bytes(damage((dataset / RECORDS).read_bytes()))
    refused(dataset, said)


def test_a_shard_that_is_missing(tmp_path: pathlib.Path) -> None:
    shutil.copytree(ROBOT, tmp_path / "set")
    (tmp_path / "set" / "robot-train.tfrecord-00001-of-00002").unlink()
    refused(tmp_path / "set", "has 1 of the 2 TFRecord files of the split 'train'", "rlds")
    (tmp_path / "set" / "robot-train.tfrecord-00000-of-00002").unlink()
    refused(tmp_path / "set", "has 0 of the 1 TFRecord files of the split 'train'", "rlds")


def values(key: str, kind: str, given: list[Any]) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        del feature[key]
        getattr(feature[key], kind).value.extend(given)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("steps/observation/at"), "steps/observation/at is missing in the record"),
        (without("steps/is_last"), "is_first is damaged: "),
        (values("steps/observation/at", "float_list", [1.0] * 9), "steps/observation/at is damaged: cannot reshape"),
        (values("steps/observation/at", "int64_list", [1] * 10), "there is a int64_list, where a float_list belongs"),
        (values("steps/tokens", "int64_list", [256] * 5), "numbers that are not of uint8"),
        (values("steps/tokens", "bytes_list", [b"x"] * 5), "there is a bytes_list, where a int64_list belongs"),
        (values("steps/is_first", "int64_list", [2] * 5), "numbers that are not of bool"),
        (values("steps/is_terminal", "int64_list", [1] * 5), "a step before the last one"),
        (values("steps/observation/camera", "bytes_list", [b"x"] * 5), "no image"),
        (values("steps/observation/camera", "bytes_list", [b"x"] * 4), "there are not 5 values|a value is not"),
        (values("steps/reward", "float_list", [float("nan")] * 5), "rewards must be finite"),
    ],
)
def test_other_values_than_are_described(change: Any, said: str, tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path, lengths=[(4, TERMINATED)])
    changed(dataset, change)
    refused(dataset, said)


@pytest.mark.parametrize(
    ("key", "kind", "given", "said"),
    [
        ("steps/tokens/ragged_row_lengths_0", "int64_list", [9, 9], "tokens is damaged: there are not 2|offsets must"),
        ("steps/tokens/ragged_row_lengths_0", "int64_list", [-1, 4], "there are not 2 values"),
        ("steps/tokens/ragged_row_lengths_0", "int64_list", [1, 1], "offsets must go from 0"),
        ("steps/box/ragged_row_lengths_0", "int64_list", [1, 3], "there are not 2 values"),
        ("steps/points", "bytes_list", [b"x" * 12, b"x" * 11], "a value is not of float32"),
        ("steps/points", "bytes_list", [b"x" * 12, b"x" * 8], "there are not 2 values"),
        ("steps/force", "bytes_list", [b"no zlib", b""], "force is damaged"),
        ("steps/language_instruction", "bytes_list", [b"\xff", b""], "instruction: holds bytes that are no text"),
    ],
)
def test_ragged_values_that_lie(key: str, kind: str, given: list[Any], said: str, tmp_path: pathlib.Path) -> None:
    shutil.copytree(ROBOT, tmp_path / "set")
    file = tmp_path / "set" / "robot-val.tfrecord-00001-of-00002"
    example = Example.FromString(file.read_bytes()[12:-4])
    values(key, kind, given)(example.features.feature)
    file.write_bytes(record(example.SerializeToString()))
    refused(tmp_path / "set", said, "rlds")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("features.json", "{", "JSON cannot be read"),
        ("features.json", "[]", "is damaged"),
        ("features.json", '{"featuresDict": {"features": {"steps": 3}}}', "features.json' is damaged|is damaged"),
        ("features.json", '{"featuresDict": {"features": {"x": {"text": {}}}}}', "RLDS has steps with"),
        (
            "dataset_info.json",
            '{"splits": [{"name": "train", "shardLengths": ["3"]}]}',
            "declares 3 episodes in 'train', not 2",
        ),
        ("dataset_info.json", '{"splits": [{"name": "val"}]}', "files of the split 'val'"),
        ("dataset_info.json", '{"splits": 3}', "is damaged"),
        ("diskreplay.json", "{}", "diskreplay left there cannot be read"),
    ],
)
def test_documents_that_lie(name: str, text: str, said: str, tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path)
    (dataset / name).write_text(text)
    refused(dataset, said, "rlds")


def test_old_descriptions_without_lengths_of_shards(tmp_path: pathlib.Path) -> None:
    dataset = made(tmp_path)
    (dataset / "dataset_info.json").write_text('{"splits": [{"name": "train", "numShards": "1"}]}')
    assert import_dataset(dataset, tmp_path / "a.replay").transitions == 7
