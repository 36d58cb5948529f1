"""Datasets of LeRobot in, out, and in again: LeRobot itself says what is in them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from formats.test_texts import TEXTS
from formats.test_texts import make as make_texts
from gymnasium import spaces
from robots.lerobot_datasets import opened

import diskreplay as dr
from diskreplay import video
from diskreplay.errors import InputError
from diskreplay.formats.selection import Selection
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.verify import verify

pytestmark = [  # what LeRobot and its libraries say of themselves
    pytest.mark.filterwarnings("ignore:The video decoding and encoding capabilities of torchvision:UserWarning"),
    pytest.mark.filterwarnings("ignore:Converting input from bool:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(multiprocessing|datasets|dill|lerobot)"),
]


def equal(one: Any, other: Any, but: set[str] = frozenset()) -> None:
    """Two items of LeRobotDatasets are the same, to the bit."""
    assert one.keys() == other.keys()
    for key in one.keys() - but:
        if isinstance(one[key], torch.Tensor):
            assert one[key].dtype == other[key].dtype, key
            assert torch.equal(one[key], other[key]), key
        else:
            assert one[key] == other[key], key


def packets(root: pathlib.Path, key: str) -> list[bytes]:
    """The packets of a camera in all its files."""
    found = []
    for file in sorted((root / "videos" / key).glob("*/*.mp4")):
        with av.open(str(file)) as container:
            found += [bytes(packet) for packet in container.demux(video=0) if packet.size]
    return found


def extradata(root: pathlib.Path, key: str) -> set[bytes]:
    found = set()
    for file in sorted((root / "videos" / key).glob("*/*.mp4")):
        with av.open(str(file)) as container:
            found.add(container.streams.video[0].codec_context.extradata)
    return found


def stats_of_episodes(root: pathlib.Path) -> list[dict[str, Any]]:
    rows = [row for file in sorted((root / "meta" / "episodes").glob("*/*")) for row in pq.read_table(file).to_pylist()]
    return [{key: value for key, value in row.items() if key.startswith("stats/")} for row in rows]


def test_what_comes_in(dataset: pathlib.Path, path: str) -> None:
    original = opened(dataset)
    found = import_dataset(dataset, path)
    assert (found.transitions, found.episodes, found.dropped) == (len(original), original.num_episodes, 0)
    assert verify(path).ok
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition(), ragged="lists") as rb:
        batch = rb.get(rb.items())
        numbers = [
            key
            for key, feature in original.features.items()
            if key.startswith("observation") and feature["dtype"] not in ("video", "image", "string")
        ]
        for key in [key for key, feature in original.features.items() if feature["dtype"] == "string"]:
            rows = batch.obs[key] if key.startswith("observation") else batch.extra[key]
            shown = [row.tobytes().decode("utf-32-le") for row in rows]
            assert shown == list(original.hf_dataset[:][key])
        for key in numbers:
            wanted = column(original, key)  # torch takes float64 as float32
            assert np.array_equal(batch.obs[key].reshape(len(original), -1).astype(wanted.dtype), wanted)
        assert np.array_equal(batch.extra["timestamp"], column(original, "timestamp")[:, 0])
        assert [episode.length for episode in rb.episodes] == list(original.meta.episodes["length"])
        assert [episode.facts["tasks"] for episode in rb.episodes] == list(original.meta.episodes["tasks"])
        assert rb.provenance["lerobot"]["info"]["fps"] == original.fps
        for key in original.meta.video_keys:
            newest = [bytes(video.records(value)[-1].data) for value in batch.obs[key]]
            assert newest == packets(dataset, key)
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as rb:
        batch = rb.get(rb.items())
        for key in cameras(original):
            for at in range(len(original)):
                shown = torch.from_numpy(batch.obs[key][at].copy()).permute(2, 0, 1) / 255
                assert torch.equal(shown, original[at][key])


def cameras(dataset: Any) -> set[str]:
    return {*dataset.meta.camera_keys}


def column(dataset: Any, key: str) -> np.ndarray:
    return np.stack([np.asarray(row).reshape(-1) for row in dataset.hf_dataset[:][key]])


def test_out_and_in_again(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store, out, again = (tmp_path / name for name in ("a.replay", "out", "b.replay"))
    import_dataset(dataset, store)
    assert export(store, out, "lerobot").lost == {}
    one, other = opened(dataset), opened(out)
    assert len(one) == len(other)
    for at in range(len(one)):
        equal(one[at], other[at])
    assert json.loads((out / "meta/stats.json").read_text()) == json.loads((dataset / "meta/stats.json").read_text())
    assert json.loads((out / "meta/info.json").read_text()) == json.loads((dataset / "meta/info.json").read_text())
    assert stats_of_episodes(out) == stats_of_episodes(dataset)
    for key in one.meta.video_keys:
        assert packets(out, key) == packets(dataset, key)
        assert extradata(out, key) == extradata(dataset, key)
    import_dataset(out, again)
    with dr.ReplayBuffer.open(store, mode="r") as a, dr.ReplayBuffer.open(again, mode="r") as b:
        assert a.schema == b.schema
        assert [episode.facts for episode in a.episodes] == [episode.facts for episode in b.episodes]
        assert a.provenance == b.provenance


def test_windows_are_those_of_the_original(two_cameras: pathlib.Path, tmp_path: pathlib.Path) -> None:
    import_dataset(two_cameras, tmp_path / "a.replay")
    export(tmp_path / "a.replay", tmp_path / "out", "lerobot")
    deltas = {"observation.images.wrist": [-0.1, -0.05, 0.0], "action": [0.0, 0.05], "observation.state": [-0.05, 0.0]}
    one, other = (opened(root, delta_timestamps=deltas) for root in (two_cameras, tmp_path / "out"))
    for at in range(len(one)):
        equal(one[at], other[at])


def test_statistics_of_an_episode_alone_are_lerobots(dataset: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Of the first episode by itself, LeRobot's statistics of the dataset are those of the episode."""
    store, out = tmp_path / "a.replay", tmp_path / "out"
    import_dataset(dataset, store)
    export(store, out, "lerobot", selection=Selection(episodes=slice(0, 1)))
    first = stats_of_episodes(dataset)[0]
    found = json.loads((out / "meta/stats.json").read_text())
    assert {f"stats/{key}/{name}": value for key, each in found.items() for name, value in each.items()} == first
    assert stats_of_episodes(out) == [first]


def test_frames_decoded(two_cameras: pathlib.Path, tmp_path: pathlib.Path) -> None:
    store, out = tmp_path / "a.replay", tmp_path / "out"
    import_dataset(two_cameras, store, frames="decoded")
    original = opened(two_cameras)
    with dr.ReplayBuffer.open(store, mode="r", view=dr.Transition()) as rb:
        batch = rb.get(rb.items())
    for at in range(len(original)):
        for key in original.meta.video_keys:
            shown = torch.from_numpy(batch.obs[key][at].copy()).permute(2, 0, 1) / 255
            assert torch.equal(shown, original[at][key])
    with pytest.raises(InputError, match=r"exact pixels of 'obs/observation.images.top', which are encoded"):
        export(store, out, "lerobot")
    assert set(export(store, out, "lerobot", allow_loss=True).lost.values()) == {len(original)}
    encoded = opened(out)
    for at in range(len(original)):
        equal(original[at], encoded[at], but=cameras(original))
        for key in original.meta.video_keys:
            assert (original[at][key] - encoded[at][key]).abs().mean() < 0.02
    assert export(store, tmp_path / "png", "lerobot", compression="png").lost == {}
    exact = opened(tmp_path / "png")
    for at in range(len(original)):
        equal(original[at], exact[at])


def test_episodes_that_were_shortened(two_cameras: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Packets stay as they are where an episode begins within a group of pictures: no frame is encoded again."""
    store, cut, out = (tmp_path / name for name in ("a.replay", "b.replay", "out"))
    import_dataset(two_cameras, store)
    edit(store, cut, steps=[slice(0, 1)])
    assert export(cut, out, "lerobot").lost == {}
    one, other = opened(two_cameras), opened(out)
    starts = list(one.meta.episodes["dataset_from_index"])
    wanted = [at for at in range(len(one)) if at not in starts]
    assert len(other) == len(wanted)
    moved = {"timestamp", "frame_index", "index"}
    for at, row in zip(wanted, range(len(other)), strict=True):
        equal(one[at], other[row], but=moved)
        assert other[row]["timestamp"] == np.float32(other[row]["frame_index"].item() / one.fps)
    import_dataset(out, tmp_path / "c.replay")
    assert verify(tmp_path / "c.replay").ok


def test_a_store_of_any_other_origin(tmp_path: pathlib.Path) -> None:
    """LeRobot opens it, and its statistics are what LeRobot makes of its items."""
    rng = np.random.default_rng(0)
    space = spaces.Dict(camera=spaces.Box(0, 255, (64, 64, 3), np.uint8), state=spaces.Box(-9, 9, (2,), np.float32))
    with dr.ReplayBuffer.create(tmp_path / "a.replay", space, spaces.Discrete(4), capacity=99) as rb:
        for episode in range(3):
            rb.begin_episode(task=f"task {episode % 2}")
            every = [
                {"camera": rng.integers(0, 99, (64, 64, 3), np.uint8), "state": rng.normal(size=2).astype(np.float32)}
                for _ in range(6)
            ]
            for step in range(5):
                rb.add(every[step], int(rng.integers(4)), 1.0, every[step + 1], step == 4, False)
    lost = export(tmp_path / "a.replay", tmp_path / "out", "lerobot", allow_loss=True).lost
    assert lost["final observations"] == 3
    assert any(what.startswith("exact pixels of 'obs/camera'") for what in lost)
    found = opened(tmp_path / "out")
    assert (len(found), found.num_episodes) == (15, 3)
    assert [found[at]["task"] for at in (0, 5, 10)] == ["task 0", "task 1", "task 0"]
    assert found[4]["next.done"]
    assert found[0]["observation.camera"].shape == (3, 64, 64)


def test_the_task_of_each_frame_is_its_text(tmp_path: pathlib.Path) -> None:
    """Whatever format the text came from; the column goes out, too, also where LeRobot has an item of its name."""
    for name in ("language_instruction", "task"):
        make_texts(tmp_path / f"{name}.replay", columns=(name,))
        export(tmp_path / f"{name}.replay", tmp_path / name, "lerobot")
        found = opened(tmp_path / name)
        for at in range(len(found)):
            assert found[at]["task"] == found[at][name] == TEXTS[at % len(TEXTS)]
        assert [{*each} for each in found.meta.episodes["tasks"]] == [{*TEXTS[:5]}, {TEXTS[5]}, {*TEXTS}]
