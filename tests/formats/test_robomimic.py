"""Demonstrations as robomimic's documentation describes them."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from formats.foreign import files
from formats.roundtrip import VECTOR, read, refused, store
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.convert import export, import_dataset

LENGTHS = [4, 6, 3]


def demonstrations(path: pathlib.Path, demo: int = 1, **changes: Any) -> list[dict[str, np.ndarray]]:
    """A file as published, with ``changes`` in one demonstration; its arrays."""
    rng = np.random.default_rng(0)
    found = []
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"total": sum(LENGTHS), "env_args": '{"env_name": "Lift", "type": 1, "env_kwargs": {}}'})
        file["mask/train"] = np.array(["demo_0"], "S")
        for number, count in reversed(list(enumerate(LENGTHS))):
            done = np.arange(count) == count - 1
            eye, joints = rng.integers(0, 256, (count + 1, 8, 8, 3), np.uint8), rng.normal(size=(count + 1, 7))
            arrays = {
                "obs/eye": eye[:-1], "obs/joints": joints[:-1], "next_obs/eye": eye[1:], "next_obs/joints": joints[1:],
                "actions": rng.uniform(-1, 1, (count, 2)),
                "rewards": rng.normal(size=count), "dones": done.astype(np.int64),
                "states": rng.normal(size=(count, 9)),
            }  # fmt: skip
            arrays |= changes if number == demo else {}
            group = data.create_group(f"demo_{number}")
            group.attrs.update({"num_samples": count, "model_file": "<mujoco/>"})
            for key, values in arrays.items():
                if values is not None:
                    group[key] = values
            found.append(arrays)
    return found[::-1]


def test_done_in_the_middle_ends_an_episode(path: str, tmp_path: pathlib.Path) -> None:
    """The task is solved, and the demonstration goes on: all transitions are kept."""
    demos = demonstrations(tmp_path / "a.hdf5", dones=np.array([0, 0, 1, 1, 0, 0]))
    result = import_dataset(tmp_path / "a.hdf5", path)
    assert (result.transitions, result.dropped) == (13, 0)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        ends = [(e.length, e.terminated, e.truncated) for e in buffer.episodes]
        assert ends == [(4, True, False), (3, True, False), (1, True, False), (2, False, True), (3, True, False)]
    found = np.concatenate([episode.next_obs["obs/joints"][:, 0] for episode in read(path)])
    np.testing.assert_array_equal(found, np.concatenate([demo["next_obs/joints"] for demo in demos]))


def test_a_single_observation_is_flat(path: str, tmp_path: pathlib.Path) -> None:
    store(action=spaces.Discrete(3))(path)
    export(path, tmp_path / "a.hdf5", "robomimic")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        assert (list(file["data/demo_0/obs"]), file["data/demo_0/actions"].shape) == (["flat"], (5, 1))
        del file["diskreplay"]  # as if somebody else had written it
    import_dataset(tmp_path / "a.hdf5", tmp_path / "b.replay")
    with dr.ReplayBuffer.open(tmp_path / "b.replay", mode="r") as buffer:
        assert buffer.schema.observation_space == VECTOR


def test_names_that_would_be_the_same(path: str, tmp_path: pathlib.Path) -> None:
    store(spaces.Dict({"a.b": VECTOR, "a": spaces.Dict(b=VECTOR)}))(path)
    with pytest.raises(InputError, match=r"two observations by the name of 'a\.b'"):
        export(path, tmp_path / "a.hdf5", "robomimic")
    store(columns={"dones": np.float32})(f"{path}2")
    with pytest.raises(InputError, match="a column 'dones'"):
        export(f"{path}2", tmp_path / "a.hdf5", "robomimic")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"actions": None}, "demo_1: the array 'actions' is missing"),
    ({"dones": None}, "demo_1: the array 'dones' is missing"),
    ({"states": None}, "demo_1: the array 'states' is missing"),
    ({"obs/eye": np.zeros((5, 8, 8, 3), np.uint8)}, "demo_1: ragged lengths: obs/eye has 5 entries for 6 steps"),
    ({"obs/eye": np.zeros((6, 8, 8, 4), np.uint8)}, "demo_1: obs/eye holds"),
    ({"obs/more": np.zeros((6, 2))}, "demo_1: obs/more is not in the description"),
    ({"next_obs/joints": None}, "demo_1: the next observations"),
    ({"rewards": np.zeros(5)}, "demo_1: ragged lengths: reward"),
    ({"dones": np.full(6, 0.5)}, "demo_1: dones must be 6 flags"),
    ({"actions": np.zeros((5, 2))}, "demo_1: ragged lengths"),
    ({"actions": np.full((6, 2), b"text")}, "demo_1: action holds"),
    ({"rewards": np.full(6, np.nan)}, "must be finite"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    demonstrations(tmp_path / "a.hdf5", **changes)
    refused(tmp_path / "a.hdf5", said)


def test_declared_lengths_are_checked(path: str, tmp_path: pathlib.Path) -> None:
    demonstrations(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["data/demo_1"].attrs["num_samples"] = 5
    refused(tmp_path / "a.hdf5", "5 steps are declared")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        for number in range(3):
            del file[f"data/demo_{number}"].attrs["num_samples"]
    assert import_dataset(tmp_path / "a.hdf5", path).transitions == 13


NONE: list[tuple[dict[str, Any], str, str | None]] = [
    ({"demo_0/actions": np.zeros((3, 2))}, "the group 'data' is missing", "robomimic"),
    ({"data.attrs/env_args": "{}"}, "there is no episode", None),
    (dict.fromkeys(("data/demo_0/actions", "data/demo_0/states"), np.zeros((3, 2))),
     "has no observations; robomimic extracts them", None),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "said", "format"), NONE, ids=[each[1] for each in NONE])
def test_what_has_no_demonstrations(arrays: Any, said: str, format: str | None, tmp_path: pathlib.Path) -> None:
    files.write(tmp_path / "a.hdf5", arrays)
    refused(tmp_path / "a.hdf5", said, format)
