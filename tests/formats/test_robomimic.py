"""Demonstrations as robomimic's documentation describes them."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from formats.roundtrip import CASES, VECTOR, read, refused, store
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


def test_published_demonstrations(path: str, tmp_path: pathlib.Path) -> None:
    demos = demonstrations(tmp_path / "a.hdf5")
    result = import_dataset(tmp_path / "a.hdf5", path)
    assert (result.format, result.transitions, result.episodes, result.dropped) == ("robomimic", 13, 3, 0)
    assert result.ignored == ("data.attrs/total", "data/demo_*.attrs/model_file (3)", "mask/train")
    for episode, demo in zip(read(path), demos, strict=True):
        for key in ("eye", "joints"):
            np.testing.assert_array_equal(episode.obs[f"obs/{key}"][:, 0], demo[f"obs/{key}"])
            np.testing.assert_array_equal(episode.next_obs[f"obs/{key}"][:, 0], demo[f"next_obs/{key}"])
        np.testing.assert_array_equal(episode.action["action"], demo["actions"])
        np.testing.assert_array_equal(episode.reward, demo["rewards"])
        np.testing.assert_array_equal(episode.terminated, demo["dones"])
        np.testing.assert_array_equal(episode.extra["states"], demo["states"])
        assert not episode.truncated.any()


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


def test_without_next_observations_and_rewards(path: str, tmp_path: pathlib.Path) -> None:
    demonstrations(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        for number in range(3):
            for key in ("next_obs", "rewards"):
                del file[f"data/demo_{number}/{key}"]
        file["data/demo_1/dones"][:] = 0
    result = import_dataset(tmp_path / "a.hdf5", path)
    assert (result.transitions, result.dropped) == (12, 1)
    with h5py.File(tmp_path / "a.hdf5") as file:
        cut = read(path)[1]
        assert cut.truncated[-1]
        assert not cut.reward.any()
        np.testing.assert_array_equal(cut.next_obs["obs/eye"][:, 0], file["data/demo_1/obs/eye"][1:])


def test_a_single_observation_is_flat(path: str, tmp_path: pathlib.Path) -> None:
    store(action=spaces.Discrete(3))(path)
    export(path, tmp_path / "a.hdf5", "robomimic")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        assert list(file["data/demo_0/obs"]) == ["flat"]
        assert file["data/demo_0/actions"].shape == (5, 1)
        del file["diskreplay"]  # as if somebody else had written it
    import_dataset(tmp_path / "a.hdf5", tmp_path / "b.replay")
    with dr.ReplayBuffer.open(tmp_path / "b.replay", mode="r") as buffer:
        assert buffer.schema.observation_space == VECTOR


def test_names_that_would_be_the_same(path: str, tmp_path: pathlib.Path) -> None:
    space = spaces.Dict({"a.b": VECTOR, "a": spaces.Dict(b=VECTOR)})
    store(space)(path)
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
    with pytest.raises(InputError, match="5 steps are declared"):
        import_dataset(tmp_path / "a.hdf5", path)
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        for number in range(3):
            del file[f"data/demo_{number}"].attrs["num_samples"]
    assert import_dataset(tmp_path / "a.hdf5", path).transitions == 13


def test_what_has_no_demonstrations(path: str, tmp_path: pathlib.Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["demo_0/actions"] = np.zeros((3, 2))
    with pytest.raises(InputError, match="the group 'data' is missing"):
        import_dataset(tmp_path / "a.hdf5", path, "robomimic")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = "{}"
    with pytest.raises(InputError, match="there is no episode"):
        import_dataset(tmp_path / "a.hdf5", path)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))
        file["data/demo_0/states"] = np.zeros((3, 2))
    with pytest.raises(InputError, match="has no observations; robomimic extracts them"):
        import_dataset(tmp_path / "a.hdf5", path)


def test_the_library_is_not_needed(path: str, tmp_path: pathlib.Path) -> None:
    CASES[0].make(path)
    assert export(path, tmp_path / "a.hdf5", "robomimic").lost == {}
