"""Datasets read by the libraries that are always there, and a real buffer of Stable-Baselines3 read by us."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from formats.roundtrip import CASES, Case, read, several_streams
from gymnasium import spaces

import diskreplay as dr
from diskreplay.formats.arrays import from_sb3
from diskreplay.ops.convert import export, import_dataset

USUAL = [case for case in CASES if case.name in ("vectors, continuous actions", "frames to be stacked", "columns")]


def joined(path: str, what: str, key: str) -> np.ndarray:
    """A column of all episodes; of observations the newest frame."""
    values = np.concatenate([getattr(episode, what)[key] for episode in read(path)])
    return values[:, -1] if what in ("obs", "next_obs") else values


@pytest.mark.parametrize("case", USUAL, ids=repr)
def test_h5py_reads_d4rl(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a.hdf5", "d4rl")
    with h5py.File(tmp_path / "a.hdf5") as file:
        np.testing.assert_array_equal(file["observations"][:], joined(path, "obs", "obs"))
        np.testing.assert_array_equal(file["next_observations"][:], joined(path, "next_obs", "obs"))
        np.testing.assert_array_equal(file["actions"][:], joined(path, "action", "action"))
        going_on = ~(file["terminals"][:] | file["timeouts"][:])[:-1]
        following = file["next_observations"][:-1][going_on]
        np.testing.assert_array_equal(following, file["observations"][1:][going_on])


@pytest.mark.parametrize("case", USUAL, ids=repr)
def test_numpy_reads_npz(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a.npz", "npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["obs"], joined(path, "obs", "obs"))
        assert {str(file[key].dtype) for key in file.files}  # every array is read


@pytest.mark.parametrize("case", USUAL, ids=repr)
def test_zarr_reads_diffusion_policy(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a.zarr", "diffusion-policy", allow_loss=True)
    root = zarr.open_group(tmp_path / "a.zarr", mode="r")
    np.testing.assert_array_equal(root["data/obs"][:], joined(path, "obs", "obs"))
    ends = root["meta/episode_ends"][:]
    for episode, start, stop in zip(read(path), [0, *ends[:-1]], ends, strict=True):
        np.testing.assert_array_equal(root["data/action"][start:stop], episode.action["action"])


def test_diskreplay_opens_a_store_that_was_exported(path: str, tmp_path: pathlib.Path) -> None:
    several_streams(path)
    export(path, tmp_path / "b.replay", "store")
    with dr.ReplayBuffer.open(tmp_path / "b.replay", seed=0) as buffer:
        assert len(buffer) == sum(map(len, read(path)))
        buffer.sample(16)


SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "vectors": (spaces.Box(-9, 9, (3,)), spaces.Box(-1, 1, (2,))),
    "images": (spaces.Box(0, 255, (3, 36, 36), np.uint8), spaces.Discrete(4)),
    "discrete observations": (spaces.Discrete(7), spaces.Discrete(4)),
    "dict": (spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(0, 255, (1, 6, 6), np.uint8)), spaces.Discrete(4)),
}


@pytest.mark.parametrize("rows", [3, 10, 17])
@pytest.mark.parametrize("kind", SPACES)
def test_a_buffer_of_stable_baselines3(kind: str, rows: int, path: str) -> None:
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")
    from stable_baselines3.common import buffers

    observation_space, action_space = SPACES[kind]
    observation_space.seed(0)
    action_space.seed(0)
    nested = isinstance(observation_space, spaces.Dict)
    buffer = (buffers.DictReplayBuffer if nested else buffers.ReplayBuffer)(
        20, observation_space, action_space, device="cpu", n_envs=2
    )
    steps: list[list[tuple[Any, ...]]] = [[], []]
    rng = np.random.default_rng(0)
    for _ in range(rows):
        each = [
            (observation_space.sample(), observation_space.sample(), action_space.sample(), float(rng.normal()),
             bool(rng.random() < 0.3), bool(rng.random() < 0.5))
            for _ in range(2)
        ]  # fmt: skip
        obs, following = (
            {key: np.stack([one[place][key] for one in each]) for key in observation_space.spaces}
            if nested
            else np.stack([one[place] for one in each])
            for place in (0, 1)
        )
        infos = [{"TimeLimit.truncated": one[5]} for one in each]
        buffer.add(
            obs, following, np.stack([one[2] for one in each]), np.array([one[3] for one in each], np.float32),
            np.array([one[4] for one in each]), infos,
        )  # fmt: skip
        for env in range(2):
            steps[env].append(each[env])
    wanted = [step for env in steps for step in env[-buffer.buffer_size :]]
    assert import_dataset(from_sb3(buffer), path).transitions == len(wanted)
    with dr.ReplayBuffer.open(path, mode="r") as found:
        batch = found.get(np.arange(len(wanted)))
        for place, values in ((0, batch.obs), (1, batch.next_obs)):
            for key in observation_space.spaces if nested else [None]:
                given = np.stack([step[place] if key is None else step[place][key] for step in wanted])
                np.testing.assert_array_equal(values if key is None else values[key], given)
        np.testing.assert_array_equal(batch.action, np.stack([step[2] for step in wanted]))
        np.testing.assert_array_equal(batch.reward, np.array([step[3] for step in wanted], np.float32))
        np.testing.assert_array_equal(batch.terminated, [step[4] and not step[5] for step in wanted])
        np.testing.assert_array_equal(batch.truncated, [step[4] and step[5] for step in wanted])
