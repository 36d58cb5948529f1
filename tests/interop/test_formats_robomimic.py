"""Files in the documented layout of robomimic: by h5py, and by the dataset that robomimic trains from."""

from __future__ import annotations

import json
import pathlib
import warnings

import h5py
import numpy as np
import pytest
from formats.roundtrip import CASES, Case, read

from diskreplay.ops.convert import export

EXPORTED = [case for case in CASES if not case.nested_action]


def key(leaf: str) -> str:
    """The observation key of one of our leaves."""
    return leaf.partition("/")[2].replace("/", ".") or "flat"


@pytest.mark.parametrize("case", EXPORTED, ids=repr)
def test_h5py_finds_the_documented_layout(case: Case, path: str, tmp_path: pathlib.Path) -> None:
    case.make(path)
    export(path, tmp_path / "a.hdf5", "robomimic", allow_loss=True)
    wanted = read(path)
    with h5py.File(tmp_path / "a.hdf5") as file:
        data = file["data"]
        assert data.attrs["total"] == sum(map(len, wanted))
        assert json.loads(data.attrs["env_args"]).keys() == {"env_name", "type", "env_kwargs"}
        assert set(data) == {f"demo_{number}" for number in range(len(wanted))}
        for number, episode in enumerate(wanted):
            demo = data[f"demo_{number}"]
            assert demo.attrs["num_samples"] == len(episode)
            assert set(demo["obs"]) == set(demo["next_obs"]) == set(map(key, episode.obs))
            for leaf, values in episode.obs.items():
                np.testing.assert_array_equal(demo["obs"][key(leaf)], values[:, -1])
                np.testing.assert_array_equal(demo["next_obs"][key(leaf)], episode.next_obs[leaf][:, -1])
            actions = episode.action["action"]
            np.testing.assert_array_equal(demo["actions"], actions.reshape(len(actions), *actions.shape[1:] or (1,)))
            np.testing.assert_array_equal(demo["rewards"], episode.reward)
            np.testing.assert_array_equal(demo["dones"], episode.terminated)


TRAINABLE = [
    case for case in EXPORTED if case.name in ("vectors, continuous actions", "colour images", "dict", "columns")
]


@pytest.mark.parametrize("case", TRAINABLE, ids=repr)
@pytest.mark.parametrize("frames", [1, 3])
def test_robomimic_takes_every_step(frames: int, case: Case, path: str, tmp_path: pathlib.Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        pytest.importorskip("robomimic", reason="robomimic is installed by make interop")
        from robomimic.utils.dataset import SequenceDataset
    case.make(path)
    export(path, tmp_path / "a.hdf5", "robomimic", allow_loss=True)
    wanted = read(path)
    columns = tuple(wanted[0].extra)
    dataset = SequenceDataset(
        str(tmp_path / "a.hdf5"), tuple(map(key, wanted[0].obs)), ("actions", "rewards", "dones", *columns),
        frame_stack=frames, load_next_obs=True,
    )  # fmt: skip
    assert (dataset.n_demos, len(dataset)) == (len(wanted), sum(map(len, wanted)))
    items = (dataset[index] for index in range(len(dataset)))
    for episode in wanted:
        for at in range(len(episode)):
            item = next(items)
            before = np.maximum(np.arange(at - frames + 1, at + 1), 0)  # padded with the first frame
            for leaf, values in episode.obs.items():
                np.testing.assert_array_equal(item["obs"][key(leaf)], values[before, -1])
                np.testing.assert_array_equal(item["next_obs"][key(leaf)], episode.next_obs[leaf][before, -1])
            np.testing.assert_array_equal(item["actions"][-1], np.atleast_1d(episode.action["action"][at]))
            assert item["rewards"][-1] == episode.reward[at]
            assert item["dones"][-1] == episode.terminated[at]
            for name in columns:
                np.testing.assert_array_equal(item[name][-1], episode.extra[name][at])
    dataset.close_and_delete_hdf5_handle()
