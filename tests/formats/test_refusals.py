"""What is refused says what to do; what the caller then says, and what an import says of what it inferred, is right."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main
from formats.foreign.ramps import (
    ACT,
    ENDS,
    FLAT,
    NOT_LAST,
    OBS,
    REW,
    STOPS,
    ZARR,
    N,
    T,
    demos,
    refused,
    same,
    taken,
    written,
)  # fmt: skip
from gymnasium.spaces import Box, Discrete, MultiDiscrete

import diskreplay as dr

# Compressions that are not there


def packed(group: Any, name: str, number: int, count: int) -> None:
    """Add an array ``(count, 3)`` to HDF5 that a filter compressed."""
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_chunk((count, 3))
    made.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((count, 3))
    data = h5py.h5d.create(group.id, name.encode(), h5py.h5t.IEEE_F32LE, space, made)
    data.write_direct_chunk((0, 0), bytes(44))


@pytest.mark.parametrize(("number", "called"), [(32015, "zstd"), (32001, "blosc"), (399, "unknown")])
def test_filters_that_are_not_there(number: int, called: str, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hdf5plugin", None)
    said = f"is compressed by filter {number} ({called})"
    path = written(tmp_path / "a", "a.hdf5", {"actions": ACT, "rewards": REW, "terminals": ENDS})
    with h5py.File(path, "a") as file:
        packed(file, "observations", number, N)
    assert "damaged" not in refused(path, f"observations: {said}")
    path = written(tmp_path / "b", "a.hdf5", FLAT | {"terminals": ENDS, "infos/speed": T})
    with h5py.File(path, "a") as file:
        packed(file["infos"], "x", number, N)
    refused(path, f"infos/x: {said}")
    assert taken(path, columns=["obs", "speed"])[0].ignored == ("infos/x",)
    path = demos(tmp_path / "c", {"dones": ENDS[:10]}, {})
    with h5py.File(path, "a") as file:
        del file["data/demo_1/obs/q"]
        packed(file["data/demo_1/obs"], "q", number, 10)
    refused(path, f"data/demo_1/obs/q: {said}")


@pytest.mark.parametrize("changes", [{"compressor": {"id": "odd"}}, {"filters": [{"id": "odd"}]}])
def test_codecs_that_are_not_there(changes: Any, tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a", "a.zarr", ZARR | {"meta/episode_ends": STOPS})
    described = path / "data/state/.zarray"
    described.write_text(json.dumps(json.loads(described.read_text()) | changes))
    assert "damaged" not in refused(path, "is compressed by a codec that is not installed here: 'odd'")


# What the caller chooses, and what refusals say

LABELS = {"sensor/joints": OBS, "command": ACT, "score": REW, "fell": ENDS, "late": np.zeros(N, bool), "junk": T}
MAP = {"obs/joints": "sensor/joints", "action": "command", "reward": "score", "terminated": "fell", "truncated": "late"}


@pytest.mark.parametrize(
    ("map", "said"),
    [
        ({"obs": "nope"}, "there is no array 'nope' for obs; there are actions, command"),
        ({"obs/a": "command", "obs/b": "command"}, "'command' cannot be both obs/a and obs/b"),
        ({"reward": "sensor/joints"}, "rewards must be one number a step"),
        ({"obs": "obs.attrs/unit"}, "obs.attrs/unit"),
    ],
    ids=["unknown", "twice", "wrong shape", "attribute"],
)
def test_names_that_cannot_be_mapped(map: Any, said: str, tmp_path: pathlib.Path) -> None:
    refused(written(tmp_path / "a", "a.hdf5", FLAT | {"terminals": ENDS} | LABELS), said, map=map)


def test_observations_and_those_that_follow_are_mapped_together(tmp_path: pathlib.Path) -> None:
    path = demos(tmp_path / "a", {"next_obs/q": OBS[1:11], "rewards": REW[:10], "dones": ENDS[:10]}, {})
    refused(path, "the next observations obs/q are not the observations obs", "--map", map={"obs": "obs/q"})
    same(taken(path, map={"obs": "obs/q", "next_obs": "next_obs/q"})[1], [*range(10)] * 2, terminated=[9, 9])


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_mapped_names_displace_the_usual_ones(name: str, tmp_path: pathlib.Path) -> None:
    arrays = {name: np.zeros_like(values) for name, values in FLAT.items()} | {"terminals": ~ENDS} | LABELS
    said, batch = taken(written(tmp_path / "a", name, arrays), map=MAP)
    same(batch, range(N), terminated=[9, 19])
    assert said.ignored == ("actions", "junk", "observations", "rewards", "terminals")
    chosen = MAP | {"obs/other": "observations", "kind": "junk"}
    said, batch = taken(written(tmp_path / "b", name, arrays), map=chosen, columns=["obs/joints", "kind"])
    assert ([*batch.obs], [*batch.extra]) == (["joints"], ["kind"])
    assert "observations" in said.ignored


@pytest.mark.parametrize(
    ("name", "arrays", "lacks"),
    [
        ("a.npz", {"obs_rgb": OBS, "obs_state": OBS, "actions": ACT, "dones": ENDS}, "lacks obs "),
        ("a.npz", {"image": OBS, "act_mean": ACT, "end_effector": OBS, "is_end": ENDS}, "lacks obs, action"),
        ("a.hdf5", {"sensor": OBS, "command": ACT, "fell": ENDS}, "lacks observations, actions"),
        ("a.hdf5", {"g/frames": OBS, "g/act": ACT, "g/dones": ENDS}, "lacks observations, actions"),
        ("a.zarr", {"state": OBS, "act": ACT}, "lacks"),
        ("a.hdf5", {"data/demo_0/states": OBS, "data/demo_0/actions": ACT}, "dataset_states_to_obs"),
        ("a.h5", {"traj_0/env_states": OBS, "traj_0/actions": ACT, "traj_0/terminated": ENDS}, "replay_trajectory"),
    ],
    ids=["rgb and state", "end effector", "strange", "groups", "zarr", "demonstrations", "trajectories"],
)
def test_the_line_that_a_refusal_prints_works(
    name: str, arrays: Any, lacks: str, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    text = refused(written(tmp_path / "a", name, arrays), lacks, *arrays)
    monkeypatch.chdir(tmp_path)
    exec(text.partition("from Python: ")[2], {})
    with dr.ReplayBuffer.open("new.replay", mode="r") as buffer:
        assert len(buffer) in (N, N - 1)


def test_a_refusal_has_no_line_where_none_works(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a", "a.zarr.zip", {"data/action": ACT})
    assert "import_dataset" not in refused(path, "there are data/action (20, 1) float32", format="diffusion-policy")
    arrays = ZARR | {"meta/episode_ends": STOPS}
    same(taken(written(tmp_path / "b", "a.zarr.zip", arrays))[1], NOT_LAST, truncated=[8, 18])


def test_labels_of_tianshou(tmp_path: pathlib.Path) -> None:
    arrays = {"obs": OBS, "act": ACT, "rew": REW, "done": ENDS, "obs_next": OBS + 1}
    said, batch = taken(written(tmp_path / "a", "a.npz", arrays))
    same(batch, range(N), terminated=[9, 19])
    assert "'done' alone ends episodes: as terminated; --map truncated=done says otherwise" in said.notes
    batch = taken(written(tmp_path / "b", "a.npz", arrays), map={"truncated": "done"})[1]
    same(batch, range(N), truncated=[9, 19])


# Integers

BOTH = np.where(T == 3, -128, 127).astype("i1")
INTEGERS = {
    "(N,)": (T, Discrete(20)), "(N, 1)": (T[:, None], Discrete(20)),
    "negative": (T[:, None] - 5, Discrete(20, start=-5)), "large": (np.where(T == 3, 2**62, 0), Discrete(2**62 + 1)),
    "(N, 3)": (np.stack([T, T * 2, T % 3], 1), MultiDiscrete([20, 39, 3])),
    "zeros": (T[:, None] * [0, 0], MultiDiscrete([1, 1])),
    "(N, 2) negative": (np.stack([T - 5, T], 1), Box(-5, 19, (2,), np.int64)),
    "all of int8, twice": (np.repeat(BOTH[:, None], 2, 1), Box(-128, 127, (2,), np.int8)),
    "all of int8": (BOTH, Box(-128, 127, (), np.int8)),
    "all of uint8": (np.where(T == 3, 0, 255).astype("u1")[:, None], Box(0, 255, (), np.uint8)),
}  # fmt: skip


@pytest.mark.parametrize(("action", "space"), INTEGERS.values(), ids=INTEGERS)
def test_spaces_of_integers(action: Any, space: Any, tmp_path: pathlib.Path) -> None:
    said, batch = taken(written(tmp_path / "a", "a.npz", FLAT | {"actions": action, "terminals": ENDS}))
    assert batch.action.tolist() == action.reshape(batch.action.shape).tolist()
    assert any(f"actions {space}; --env ID takes an environment's spaces" in note for note in said.notes), said.notes


def test_integers_that_no_space_holds(tmp_path: pathlib.Path) -> None:
    path = written(tmp_path / "a", "a.npz", FLAT | {"actions": np.full(N, 2**64 - 1, "u8"), "terminals": ENDS})
    refused(path, "are more than a Discrete space has")


def test_integers_of_all_episodes_count(tmp_path: pathlib.Path) -> None:
    path = demos(tmp_path / "a", {"actions": T[:10]}, {"actions": T[10:] - 12})
    assert any("Discrete(12, start=-2)" in note for note in taken(path)[0].notes)


def test_what_the_command_prints(path: str, tmp_path: pathlib.Path) -> None:
    file = written(tmp_path / "a", "a.npz", FLAT | {"dones": ENDS, "episode_returns": STOPS})
    lines = CliRunner().invoke(main, ["import", str(file), path]).stdout.splitlines()
    assert re.fullmatch(r".*: 20 transitions of 2 episodes from npz, .*", lines[0])
    assert lines[1:] == [
        "'dones' alone ends episodes: as terminated; --map truncated=dones says otherwise",
        "inferred from the values: observations Box(-inf, inf, (3,), float32), actions Box(-inf, inf, (1,), float32); "
        "--env ID takes an environment's spaces",
        "not read: episode_returns",
    ]
    added = CliRunner().invoke(main, ["import", str(file), path, "--append"]).stdout
    assert "inferred" not in added  # the spaces are those of the store
    options = ["--map", "truncated=dones", "--columns", "obs", "--allow-loss"]
    lines = CliRunner().invoke(main, ["import", str(file), f"{path}-b", *options]).stdout.splitlines()
    assert "left out: 2 steps without a next observation" in lines
    wrong = CliRunner().invoke(main, ["import", str(file), f"{path}-c", "--map", "dones"])
    assert wrong.exit_code == 2
    assert "is no pair such as obs/joints=observations/qpos" in wrong.output
