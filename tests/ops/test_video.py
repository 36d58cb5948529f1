"""What copies rows from store to store keeps the packets of video columns as they are; other things refuse by name."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.packets import Clip, clip

import diskreplay as dr
from diskreplay import formats, video
from diskreplay.errors import InputError, OpenError
from diskreplay.ops import combine, compact, convert, diff, edit, inspect, resize
from diskreplay.ops.verify import verify
from diskreplay.report.episode import episode_values
from diskreplay.report.overview import overview
from diskreplay.report.source import Snapshot

CHOICE = spaces.Discrete(9)
HOLD = [each.name for each in formats.every() if each.holds.ragged]
HOLD_NOT = [
    each.name for each in formats.every() if not each.holds.ragged and each.write and each.name != "lerobot"
]  # what LeRobot's holds is tested with its own reader
EPISODE = 6


def space(facts: dr.Video) -> spaces.Dict:
    return spaces.Dict({
        "camera": spaces.Box(0, 255, facts.shape, np.uint8), "at": spaces.Box(0, 999, (1,), np.int64)
    })  # fmt: skip


def make(path: Any, shown: Clip | None = None, *, extra: bool = True, **options: Any) -> None:
    """A store with a row for each frame but the last."""
    shown = shown or clip(count=25)
    facts = shown.facts
    columns: dict[str, Any] = {"columns": {"wrist": (facts.shape, np.uint8)}} if extra else {}
    arguments = {"capacity": 1_000, "video": {"camera": facts, **({"wrist": facts} if extra else {})}, **columns}
    with dr.ReplayBuffer.create(path, space(facts), CHOICE, **{**arguments, **options}) as rb:
        for at in range(len(shown.values) - 1):
            now, after = ({"camera": shown.values[n], "at": np.array([n])} for n in (at, at + 1))
            more = {"wrist": shown.values[-1 - at]} if extra else {}
            rb.add(now, at % 9, float(at), after, at % EPISODE == EPISODE - 1, False, **more)


def rows(path: Any) -> list[tuple[Any, ...]]:
    """The rows of a store: the number of each, its packets, and what they show."""
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        lists = rb.get(rb.items())
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        batch = rb.get(rb.items())
    packets = [lists.obs["camera"], lists.next_obs["camera"], *lists.extra.values()]
    frames = [batch.obs["camera"], batch.next_obs["camera"], *batch.extra.values()]
    return sorted(
        (int(batch.obs["at"][at, 0]), *(bytes(part[at]) for part in packets), *(part[at].tobytes() for part in frames))
        for at in range(len(batch))
    )


def items(path: Any) -> int:
    with dr.ReplayBuffer.open(path) as rb:
        return int(rb.engine.streams.writer.items["obs/camera"].end)


@pytest.mark.parametrize("name", HOLD)
def test_formats_that_hold_packets(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    file = tmp_path / ("out.parquet" if name == "parquet" else "out.npz" if name.startswith("npz") else "out")
    convert.export(path, file, name, allow_loss=True)
    convert.import_dataset(file, tmp_path / "back", name)
    assert rows(tmp_path / "back") == rows(path)
    assert items(tmp_path / "back") == items(path), "each packet is stored once again"
    assert verify(tmp_path / "back").ok
    with dr.ReplayBuffer.open(tmp_path / "back") as one, dr.ReplayBuffer.open(path) as other:
        assert one.schema.ragged == other.schema.ragged
    chosen = convert.Selection(columns=("obs/at",))
    convert.export(path, tmp_path / "without.replay", "store", selection=chosen)
    with dr.ReplayBuffer.open(tmp_path / "without.replay") as rb:
        assert not rb.schema.ragged


@pytest.mark.parametrize("name", HOLD_NOT)
def test_formats_that_hold_none_say_so(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    with pytest.raises(InputError, match=r"the ragged column 'wrist'|cannot hold the ragged columns"):
        convert.export(path, tmp_path / "out", name)
    with pytest.raises(InputError, match=r"holds one observation array|cannot hold the ragged columns obs/camera"):
        convert.export(path, tmp_path / "out", name, allow_loss=True)
    assert not (tmp_path / "out").exists()


def test_stores_are_merged_split_and_edited(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    want = rows(path)
    combine.merge(tmp_path / "both", [path, path])
    assert rows(tmp_path / "both") == sorted(want + want)
    parts = combine.split(path, [0.5], [tmp_path / "a", tmp_path / "b"])
    assert len(parts) == 2
    assert sorted(rows(tmp_path / "a") + rows(tmp_path / "b")) == want
    found = convert.export(path, tmp_path / "whole", "store")
    assert found.raw_bytes == 24 * (2 * 48 * 64 * 3 + 8 + 8 + 4 + 2)  # frames, a number, an action, reward and flags
    edit.edit(path, tmp_path / "less", steps=[slice(1, 3)])
    assert rows(tmp_path / "less") == [row for row in want if row[0] % EPISODE not in (1, 2)]
    for name in ("both", "a", "b", "less"):
        assert verify(tmp_path / name).ok
    make(
        tmp_path / "other", clip(count=25), video={"camera": dr.Video("h264", 64, 48, fps=10)}, columns={}, extra=False
    )
    make(tmp_path / "plain", extra=False)
    with pytest.raises(InputError, match="has other video than"):
        combine.merge(tmp_path / "no", [tmp_path / "plain", tmp_path / "other"])
    found = diff.diff(tmp_path / "plain", tmp_path / "other")
    assert found is not None
    assert "video" in str(found)
    assert diff.diff(path, path) is None
    make(tmp_path / "differs", clip(count=25, seed=3))
    assert diff.diff(path, tmp_path / "differs") is not None


def test_stores_with_other_parameters_are_merged(path: str, tmp_path: pathlib.Path) -> None:
    """Of a dataset and of a recorder, say: each group of pictures keeps the parameters of its own."""
    one, other = clip("h264", count=25), clip("h264", count=25, seed=3)
    given = [
        one,
        dataclasses.replace(other, facts=dataclasses.replace(other.facts, parameters=(b"\0\0\1", b"")), parameters=1),
    ]
    want = []
    for name, shown in zip("ab", given, strict=True):
        make(tmp_path / name, shown)
        want += rows(tmp_path / name)
    combine.merge(path, [tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        assert rb.schema.videos["wrist"].parameters == (b"", b"\0\0\1")
        values = rb.get(rb.items()).obs["camera"]
        assert {video.records(value)[0].parameters for value in values} == {0}
    want += want[:24]
    shown = [[(row[0], *row[4:]) for row in each] for each in (rows(path), want)]
    assert sorted(shown[0]) == sorted(shown[1])
    assert verify(path).ok
    combine.merge(tmp_path / "c", [tmp_path / "b", tmp_path / "a"])
    with dr.ReplayBuffer.open(tmp_path / "c", mode="r", ragged="lists") as rb:
        values = rb.get(rb.items()).extra["wrist"]
        assert {video.records(value)[0].parameters for value in values} == {1}


def test_a_store_is_compacted_inspected_and_resized(path: str) -> None:
    make(path, commit_rows=3)
    want = rows(path)
    compact.compact(path)
    assert verify(path).ok
    assert rows(path) == want
    assert inspect.inspect(path)
    resize.resize(path, capacity=8)
    assert rows(path) == want[-8:]
    with dr.ReplayBuffer.open(path) as rb:
        rb.resize(20)
        assert len(rb) == 8
    assert verify(path).ok


def test_going_back_and_opening_or_creating(path: str) -> None:
    shown = clip(count=25)
    make(path, extra=False)
    want = rows(path)
    arguments = {"capacity": 1_000, "video": {"camera": shown.facts}}
    with dr.ReplayBuffer.open_or_create(path, space(shown.facts), CHOICE, **arguments) as rb:
        rb.checkpoint("here")
        now = {"camera": shown.values[24], "at": np.array([24])}
        rb.add(now, 0, 24.0, now, False, False)
        assert np.array_equal(rb.get(rb.items()[-1:]).obs["camera"][0], shown.shown[24])
    with dr.ReplayBuffer.open(path, checkpoint="here") as rb:
        now = {"camera": shown.values[5], "at": np.array([24])}
        rb.add(now, 0, 24.0, now, False, False)
        assert np.array_equal(rb.get(rb.items()[-1:]).obs["camera"][0], shown.shown[5])
    assert rows(path)[:-1] == want
    facts = dr.Video("h264", 64, 48, fps=7)
    with pytest.raises((InputError, OpenError), match="video is"):
        dr.ReplayBuffer.open_or_create(path, space(facts), CHOICE, capacity=1_000, video={"camera": facts})


def test_mixtures_show_frames_of_both(path: str, tmp_path: pathlib.Path) -> None:
    make(path, extra=False)
    make(tmp_path / "two", clip("vp9", count=25, seed=2), extra=False)
    frames = [np.stack(clip(count=25).shown), np.stack(clip("vp9", count=25, seed=2).shown)]
    with dr.ReplayBuffer.open(path) as one, dr.ReplayBuffer.open(tmp_path / "two") as two:
        mixture = dr.Mixture([one, two])
        batch = mixture.sample(24)
        at = batch.obs["at"][:, 0]
        assert all(
            any(np.array_equal(shown, of[number]) for of in frames)
            for shown, number in zip(batch.obs["camera"], at, strict=True)
        )
        seen = {int(np.array_equal(shown, frames[1][n])) for shown, n in zip(batch.obs["camera"], at, strict=True)}
        assert seen == {0, 1}


def test_other_buffers_refuse_them(path: str) -> None:
    facts = clip().facts
    with pytest.raises(InputError, match="RolloutBuffer cannot take ragged"):
        dr.RolloutBuffer.create(path, space(facts), CHOICE, steps=4, video={"camera": facts})
    assert not pathlib.Path(path).exists()
    make(path)
    with pytest.raises(InputError, match="cannot take ragged columns"):
        dr.ReplayBuffer.open(path, ragged=None)


def test_a_merge_of_too_many_parameters_is_refused() -> None:
    each = [{"obs": dr.Video("h264", 64, 48, parameters=tuple(b"%d" % at for at in part))} for part in
            (range(1024), range(9), range(2000, 2001))]  # fmt: skip
    assert combine.together(each[:2]) == each[0]
    with pytest.raises(InputError, match="'obs' would have 1025 codec parameters, and may have 1024"):
        combine.together(each)


def test_a_report_says_that_video_is_not_shown(path: str) -> None:
    make(path)
    source = Snapshot(path)
    played = episode_values(source, source.episodes[0])
    assert "obs/camera is not shown: it is video" in played.not_shown
    assert played.cameras == ()
    assert not [one for one in overview(source).distributions if "camera" in one.name]
