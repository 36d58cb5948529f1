"""A dataset of version 2.1 comes in as what LeRobot's own conversion to version 3.0 makes of it."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
from formats import lerobot_v2
from helpers.diff import diff
from robots.lerobot_datasets import opened

import diskreplay as dr
from diskreplay.ops.convert import import_dataset

with pytest.MonkeyPatch.context() as patch:
    patch.setattr("sys.argv", ["convert"])
    from lerobot.datasets.v30.convert_dataset_v21_to_v30 import convert_dataset

pytestmark = [  # what LeRobot and its libraries say of themselves
    pytest.mark.filterwarnings("ignore:The video decoding and encoding capabilities of torchvision:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(multiprocessing|datasets|dill|lerobot)"),
]


@pytest.mark.parametrize(("codec", "limit"), [("libsvtav1", None), ("libsvtav1", 0), ("libx264", None)])
def test_it_is_what_lerobot_converts_it_to(codec: str, limit: int | None, tmp_path: pathlib.Path) -> None:
    """To the packet, but for H.264: FFmpeg puts the parameters into key frames where it joins two such videos."""
    lerobot_v2.write(tmp_path / "old", codec=codec)
    shutil.copytree(tmp_path / "old", tmp_path / "root/a/b")
    convert_dataset("a/b", root=tmp_path / "root", push_to_hub=False, video_file_size_in_mb=limit)
    new = tmp_path / "root/a/b"
    assert json.loads((new / "meta/info.json").read_text())["codebase_version"] == "v3.0"
    for frames in ("decoded", "packets"):
        for source, name in ((tmp_path / "old", "old"), (new, "new")):
            found = import_dataset(source, tmp_path / f"{name}-{frames}", frames=frames)  # type: ignore[arg-type]
            assert found.ignored == ()
        if frames == "decoded" or codec == "libsvtav1":
            assert diff(tmp_path / f"old-{frames}", tmp_path / f"new-{frames}") is None
    with (
        dr.ReplayBuffer.open(tmp_path / "old-packets", mode="r") as one,
        dr.ReplayBuffer.open(tmp_path / "new-packets", mode="r") as other,
    ):
        assert one.schema == other.schema or codec == "libx264"
        assert [episode.facts for episode in one.episodes] == [episode.facts for episode in other.episodes]
        mine, theirs = (json.loads(json.dumps(rb.provenance)) for rb in (one, other))
        assert mine["lerobot"]["info"]["video_files_size_in_mb"] == 200
        for told in (mine, theirs):
            del told["lerobot"]["info"]["video_files_size_in_mb"]  # chosen in this test
        assert mine == theirs
    original = opened(new)
    with dr.ReplayBuffer.open(tmp_path / "old-packets", mode="r", view=dr.Transition()) as rb:
        batch = rb.get(rb.items())
        for at in range(len(original)):
            item = original[at]
            assert np.array_equal(batch.obs["observation.state"][at], item["observation.state"])
            shown = np.moveaxis(batch.obs[lerobot_v2.CAMERA][at], -1, 0) / np.float32(255)
            assert np.array_equal(shown, item[lerobot_v2.CAMERA])
            assert item["task"] == [text for each in lerobot_v2.TASKS for text in each][at]
