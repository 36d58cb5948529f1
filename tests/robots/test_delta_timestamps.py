"""Windows by time beside LeRobot's: every item of each dataset, with its masks, equal to the bit."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from robots.lerobot_datasets import opened

import diskreplay as dr
from diskreplay.formats.files.lerobot_meta import names
from diskreplay.ops.convert import import_dataset

Kind = Callable[[Any], dict[str, list[float]]]


pytestmark = [  # what LeRobot and its libraries say of themselves
    pytest.mark.filterwarnings("ignore:The video decoding and encoding capabilities of torchvision:UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(multiprocessing|datasets|dill|lerobot)"),
]


@pytest.fixture(scope="module", params=["decoded", "packets"])
def made(
    request: pytest.FixtureRequest, windowed: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[pathlib.Path, str]:
    """A dataset of LeRobot's, and the store that is made of it, with videos in ordinary columns or as they are."""
    path = str(tmp_path_factory.mktemp("made") / "robot.replay")
    import_dataset(windowed, path, frames=request.param)
    return windowed, path


def keys(dataset: Any) -> list[str]:
    """The features that have a name in both, but for two of which LeRobot's items need one number."""
    return [key for key in names(dataset.meta.features) if key not in ("timestamp", "task_index")]


def everything(dataset: Any) -> dict[str, list[float]]:
    """Times before and after, more than the shortest episodes have, for all features."""
    times: list[list[int]] = [[-2, 0], [0, 1, 2, 3, 12], [-5, -1, 0, 4], [1], [3, -3, 3]]
    return {key: [step / dataset.fps for step in times[at % len(times)]] for at, key in enumerate(keys(dataset))}


def cameras(dataset: Any) -> dict[str, list[float]]:
    """Only pictures: now and before."""
    return {key: [-1 / dataset.fps, 0.0] for key in dataset.meta.camera_keys}


def numbers(dataset: Any) -> dict[str, list[float]]:
    """Only what is no picture: a chunk of it."""
    chunk = [step / dataset.fps for step in range(16)]
    return dict.fromkeys(set(keys(dataset)) - set(dataset.meta.camera_keys), chunk)


def field(batch: Any, name: str) -> Any:
    """A column of a batch, by its name in the store."""
    root, _, rest = name.partition("/")
    value = batch[root]
    return value[rest] if isinstance(value, Mapping) else value


@pytest.mark.parametrize("kind", [everything, cameras, numbers], ids=lambda kind: kind.__name__)
def test_every_item_is_that_of_lerobot(made: tuple[pathlib.Path, str], kind: Kind) -> None:
    folder, path = made
    plain = opened(folder)
    ours, deltas = names(plain.meta.features), kind(plain)
    theirs = opened(folder, delta_timestamps=deltas)
    view = dr.DeltaTimestamps({ours[key]: times for key, times in deltas.items()})
    with dr.ReplayBuffer.open(path, mode="r", view=view) as buffer:
        assert buffer.view.fps == plain.fps  # type: ignore[attr-defined]
        ids = buffer.items()
        assert len(ids) == len(theirs)
        batch = buffer.get(ids).torch()
    for at in range(len(theirs)):
        item = theirs[at]
        for key, name in ours.items():
            got, want = field(batch, name)[at], item[key]
            if key in plain.meta.camera_keys:
                got = got.movedim(-1, -3).to(torch.float32) / 255
            if got.dtype == torch.float64:
                got = got.to(torch.float32)  # LeRobot makes tensors of Python's numbers
            assert got.dtype == want.dtype, key
            assert torch.equal(got.reshape(want.shape), want), f"{key} of item {at}"  # an axis of one is not theirs
            if key in deltas:
                assert got.shape[0] == len(deltas[key])
                assert torch.equal(batch.is_pad[name][at], item[f"{key}_is_pad"]), f"{key}_is_pad of item {at}"
        assert {key for key in item if key.endswith("_is_pad")} == {f"{key}_is_pad" for key in deltas}


def test_drawn_windows_are_those_items(made: tuple[pathlib.Path, str]) -> None:
    folder, path = made
    plain = opened(folder)
    deltas = cameras(plain)
    theirs = opened(folder, delta_timestamps=deltas)
    with dr.ReplayBuffer.open(path, mode="r", view=dr.DeltaTimestamps(deltas), seed=0) as buffer:
        first = int(buffer.items()[0])
        batches = [buffer.sample(7), *buffer.shuffled(5)]
        with buffer.loader(4) as loader:
            batches.append(next(loader))
        for batch in batches:
            for at, index in enumerate((batch.index - first).tolist()):
                for key in deltas:
                    want = (theirs[index][key] * 255).round().to(torch.uint8).movedim(-3, -1)
                    np.testing.assert_array_equal(np.asarray(batch.obs[key][at]), want.numpy())


def test_times_that_lerobot_refuses_are_refused(made: tuple[pathlib.Path, str]) -> None:
    folder, path = made
    deltas = {"observation.state": [0.0, 0.0123]}
    with pytest.raises(ValueError, match="multiples of"):
        opened(folder, delta_timestamps=deltas)
    with pytest.raises(dr.errors.InputError, match=r"0\.0123 s is no multiple of 1/fps"):
        dr.ReplayBuffer.open(path, mode="r", view=dr.DeltaTimestamps(deltas))
