"""RLDS: the files of TensorFlow Datasets, and what is refused."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from formats.roundtrip import CASES
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.formats import rlds
from diskreplay.ops.convert import export

CASE = {case.name: case for case in CASES}


def test_the_description(path: str, tmp_path: pathlib.Path) -> None:
    CASE["dict"].make(path)
    export(path, tmp_path / "a", "rlds")
    info = json.loads((tmp_path / "a" / "dataset_info.json").read_text())
    split = info["splits"][0]
    name = f"{info['name']}-{split['name']}.{info['fileFormat']}-00000-of-00001"
    names = ["dataset_info.json", name, "diskreplay.json", "features.json"]
    assert sorted(entry.name for entry in (tmp_path / "a").iterdir()) == names
    assert int(split["numBytes"]) == (tmp_path / "a" / name).stat().st_size
    features = json.loads((tmp_path / "a" / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert set(steps) == {"observation", "action", "reward", "discount", *rlds.FLAGS}
    parts = steps["observation"]["featuresDict"]["features"]
    assert parts["camera"]["image"]["shape"]["dimensions"] == ["36", "36", "3"]
    joints = parts["arm"]["featuresDict"]["features"]["joints"]["tensor"]
    assert (joints["dtype"], joints["encoding"]) == ("float64", "bytes")  # an example has no such numbers


@pytest.mark.parametrize("name", ["is_last", "observation"])
def test_a_column_with_a_name_of_a_steps_own(name: str, path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (2,)), spaces.Discrete(2), capacity=9, columns={name: bool}
    ) as b:
        b.add(np.zeros(2), 0, 1.0, np.zeros(2), True, False, **{name: False})
    with pytest.raises(InputError, match="of its own"):
        export(path, tmp_path / "a", "rlds")
    assert not (tmp_path / "a").exists()


def test_an_episode_that_is_too_long(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves nothing, and the file is closed."""
    monkeypatch.setattr(rlds, "MAX_BYTES", 100)
    CASE["colour images"].make(path)
    with pytest.raises(InputError, match="one episode may have 100 bytes"):
        export(path, tmp_path / "a", "rlds")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]
