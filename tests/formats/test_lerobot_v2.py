"""LeRobotDatasets of versions 2.0 and 2.1 come in; tests/robots compares them with LeRobot's own conversion."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from formats import lerobot_v2
from formats.lerobot_v2 import CAMERA, FEATURES, FPS, LENGTHS, TASKS
from formats.roundtrip import refused
from formats.test_lerobot import changed

import diskreplay as dr
from diskreplay import formats
from diskreplay.formats.core.choice import Choice
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify

EVERY = [lerobot_v2.values(number) for number in range(len(LENGTHS))]


@pytest.fixture(params=["v2.0", "v2.1"])
def dataset(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> pathlib.Path:
    lerobot_v2.write(tmp_path / "set", request.param)
    return tmp_path / "set"


def test_all_of_it_comes_in(dataset: pathlib.Path, path: str) -> None:
    found = import_dataset(dataset, path)
    assert (found.format, found.transitions, found.episodes) == ("lerobot", sum(LENGTHS), len(LENGTHS))
    assert found.ignored == (("meta/stats.json",) if (dataset / "meta/stats.json").exists() else ())
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Transition()) as rb:
        batch = rb.get(rb.items())
        columns = {**batch.obs, "action": batch.action, **batch.extra}
        for key in EVERY[0].keys() - {"episode_index", "index"}:
            wanted = np.concatenate([each[key] for each in EVERY])
            assert columns[key].dtype == wanted.dtype
            assert np.array_equal(columns[key].reshape(wanted.shape), wanted), key
        wanted = [
            each for file in sorted(dataset.glob(f"videos/*/{CAMERA}/*.mp4")) for each in lerobot_v2.decoded(file)
        ]
        assert np.array_equal(batch.obs[CAMERA], wanted)
        assert [e.facts["tasks"] for e in rb.episodes] == [list(dict.fromkeys(each)) for each in TASKS]
        assert [e.terminated for e in rb.episodes] == [True, False, True]
        origin = rb.provenance["lerobot"]
    assert origin["info"]["features"]["action"] == {**FEATURES["action"], "fps": FPS}
    assert (origin["info"]["codebase_version"], origin["info"]["fps"]) == ("v3.0", FPS)
    assert not {"total_chunks", "total_videos"} & origin["info"].keys()
    assert verify(path).ok


def test_statistics_are_those_of_all_values(tmp_path: pathlib.Path, path: str) -> None:
    lerobot_v2.write(tmp_path / "set")
    import_dataset(tmp_path / "set", path)
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        stats = rb.provenance["lerobot"]["stats"]
    wanted = lerobot_v2.stats_of(np.concatenate([each["observation.state"] for each in EVERY]))
    assert stats["observation.state"].keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.allclose(stats["observation.state"][name], value), name


def test_it_goes_out_as_version_3(dataset: pathlib.Path, path: str, tmp_path: pathlib.Path) -> None:
    import_dataset(dataset, path)
    assert export(path, tmp_path / "out", "lerobot").lost == {}
    import_dataset(tmp_path / "out", tmp_path / "b.replay")
    with (
        dr.ReplayBuffer.open(path, mode="r", ragged="lists") as one,
        dr.ReplayBuffer.open(tmp_path / "b.replay", mode="r", ragged="lists") as other,
    ):
        mine, theirs = (rb.get(rb.items()) for rb in (one, other))
        for key, values in mine.obs.items():
            assert [row.tobytes() for row in values] == [row.tobytes() for row in theirs.obs[key]]
        assert np.array_equal(mine.extra["task_index"], theirs.extra["task_index"])
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet")["task"].to_pylist() == ["push", "pull", "é語 lift\nup"]


def test_a_part_of_it(dataset: pathlib.Path, path: str) -> None:
    """A camera that is left out is not opened, and stands among what was not read."""
    for file in (dataset / "videos").glob("*/*/*.mp4"):
        file.write_bytes(b"no video")
    choice = Choice(columns=("obs/observation.state", "task_index"))
    with formats.get("lerobot").read(dataset, choice) as source:
        assert list(source.layout.obs) == ["obs/observation.state"]
        assert list(source.layout.columns) == ["task_index"]
        blocks = list(source.blocks())
        unread = source.names.unread()
    assert np.array_equal(np.concatenate([each.terminated for each in blocks]).nonzero()[0], [3, 13])
    left = {CAMERA, "observation.images.small", "observation.force"}
    assert left | {f"videos/chunk-*/{CAMERA}/episode_*.mp4 (3)"} == {*unread} - {"meta/stats.json"}


def lines(file: pathlib.Path, change: Callable[[list[Any]], list[Any]]) -> None:
    """Other objects in a file with one a line."""
    found = change([json.loads(line) for line in file.read_text().splitlines()])
    file.write_text("".join(f"{json.dumps(line)}\n" for line in found))


WRONG: list[tuple[str, Callable[[pathlib.Path], Any], str]] = [
    ("rows", lambda d: (d / "data/chunk-000/episode_000001.parquet").unlink(), "episode_000001.parquet' is missing"),
    ("video", lambda d: (d / f"videos/chunk-001/{CAMERA}/episode_000002.mp4").unlink(), "000002.mp4' is missing"),
    ("tasks", lambda d: (d / "meta/tasks.jsonl").unlink(), "'meta/tasks.jsonl' is missing"),
    ("no episodes", lambda d: (d / "meta/episodes.jsonl").write_text("\n"), "must number its lines from 0"),
    ("no object", lambda d: (d / "meta/episodes.jsonl").write_text("[1]\n"), "each line must hold an object"),
    ("no JSON", lambda d: (d / "meta/episodes.jsonl").write_text("{\n"), "its JSON cannot be read"),
    ("a gap", lambda d: lines(d / "meta/episodes.jsonl", lambda v: [v[0], v[2]]), "must number its lines from 0"),
    ("no text", lambda d: lines(d / "meta/tasks.jsonl", lambda v: [{**one, "task": 1} for one in v]), "have a text"),
    ("no step", lambda d: lines(d / "meta/episodes.jsonl", lambda v: [{**v[0], "length": 0}, *v[1:]]), "has no step"),
    ("length", lambda d: lines(d / "meta/episodes.jsonl", lambda v: [{**v[0], "length": 5}, *v[1:]]), "and 15 steps"),
    (
        "fewer statistics",
        lambda d: lines(d / "meta/episodes_stats.jsonl", lambda v: v[:2]),
        "has 2 episodes, and meta/episodes.jsonl 3",
    ),
    (
        "no statistics",
        lambda d: lines(d / "meta/episodes_stats.jsonl", lambda v: [{**one, "stats": {"action": 5}} for one in v]),
        "no statistics of each feature",
    ),
    ("a file elsewhere", lambda d: changed(d / "meta/info.json", data_path="../x"), "no file within the dataset"),
    ("no pattern", lambda d: changed(d / "meta/info.json", data_path="{x}"), "no pattern of a file's name"),
    ("another fps", lambda d: changed(d / "meta/info.json", fps=10), "at 10 frames a second"),
]


@pytest.mark.parametrize(("change", "said"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_what_is_wrong_is_said(change: Any, said: str, tmp_path: pathlib.Path) -> None:
    lerobot_v2.write(tmp_path / "set")
    change(tmp_path / "set")
    refused(tmp_path / "set", said)
