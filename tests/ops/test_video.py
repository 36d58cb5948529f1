"""What copies rows from store to store keeps the packets of video columns as they are; other things refuse by name."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.commands import command
from helpers.diff import diff
from helpers.packets import Clip, clip
from PIL import Image, ImageSequence

import diskreplay as dr
from diskreplay import formats, video
from diskreplay.errors import CorruptionError, InputError, OpenError
from diskreplay.formats.core import log_rows
from diskreplay.formats.core.log_rows import LogRows
from diskreplay.ops import combine, convert, edit, episodes, inspect, resize
from diskreplay.ops.show import GAP_PIXELS, show
from diskreplay.ops.verify import verify
from diskreplay.reading import decoding
from diskreplay.report import episode as report_episode
from diskreplay.report import serve
from diskreplay.report import source as report_source
from diskreplay.report.episode import episode_values
from diskreplay.report.overview import overview
from diskreplay.report.source import Snapshot
from diskreplay.report.write import report

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
    assert len(combine.split(path, [0.5], [tmp_path / "a", tmp_path / "b"])) == 2
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
    found = diff(tmp_path / "plain", tmp_path / "other")
    assert found is not None
    assert "video" in str(found)
    assert diff(path, path) is None
    make(tmp_path / "differs", clip(count=25, seed=3))
    assert diff(path, tmp_path / "differs") is not None


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


def test_a_store_is_inspected_and_resized(path: str) -> None:
    make(path, commit_rows=3)
    want = rows(path)
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
        batch = dr.Mixture([one, two]).sample(24)
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


def tiles(sheet: pathlib.Path, count: int) -> list[np.ndarray]:
    """The pictures of a contact sheet, row by row."""
    with Image.open(sheet) as picture:
        whole = np.asarray(picture.convert("RGB"))
    places = [divmod(at, (whole.shape[1] - GAP_PIXELS) // (64 + GAP_PIXELS)) for at in range(count)]
    return [
        whole[GAP_PIXELS + row * (48 + GAP_PIXELS) :, GAP_PIXELS + column * (64 + GAP_PIXELS) :][:48, :64]
        for row, column in places
    ]


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_show_draws_the_frames_of_an_episode(codec: str, path: str, tmp_path: pathlib.Path) -> None:
    shown = clip(codec, count=25)
    make(path, shown)
    drawn = show(path, tmp_path / "a.png", episode=1, scale=1)
    assert (drawn.column, drawn.frames, drawn.curves) == ("obs/camera", EPISODE + 1, 0)
    np.testing.assert_array_equal(tiles(tmp_path / "a.png", EPISODE + 1), shown.shown[EPISODE : 2 * EPISODE + 1])
    drawn = show(path, tmp_path / "few.png", episode=-1, frames=3, scale=1, column="camera")
    np.testing.assert_array_equal(tiles(tmp_path / "few.png", 3), [shown.shown[at] for at in (18, 21, 24)])
    drawn = show(path, tmp_path / "wrist.png", column="wrist", scale=1)  # a column: it has no final value
    assert (drawn.column, drawn.frames) == ("wrist", EPISODE)
    np.testing.assert_array_equal(tiles(tmp_path / "wrist.png", EPISODE), shown.shown[24 : 24 - EPISODE : -1])
    assert show(path, tmp_path / "at.png", column="at").curves == 1
    with pytest.raises(InputError, match=r"there is no observation 'no'; there are: obs/at .*obs/camera .*, wrist "):
        show(path, tmp_path / "no.png", column="no")


def test_an_animation_has_the_frames_a_second_of_the_video(path: str, tmp_path: pathlib.Path) -> None:
    facts = dataclasses.replace(clip(count=25).facts, fps=20)
    make(path, dataclasses.replace(clip(count=25), facts=facts))
    for fps, milliseconds in ((None, 50), (10.0, 100)):
        show(path, tmp_path / "a.gif", fps=fps, overwrite=True)
        with Image.open(tmp_path / "a.gif") as picture:
            frames = [np.asarray(frame.convert("RGB")).astype(int) for frame in ImageSequence.Iterator(picture)]
            assert picture.info["duration"] == milliseconds
    assert len(frames) == EPISODE + 1
    assert np.abs(frames[2][::2, ::2] - clip(count=25).shown[2]).mean() < 20  # a GIF has few colours


def test_video_of_long_groups_and_large_frames_is_decoded_block_by_block(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = clip(count=25, every=25)
    make(path, shown, extra=False)
    monkeypatch.setattr(log_rows, "BLOCK_BYTES", 2 * 64 * 48 * 3)
    monkeypatch.setattr(report_source, "PIECE_BYTES", 2 * 64 * 48 * 3)
    show(path, tmp_path / "a.png", episode=2, scale=1)
    np.testing.assert_array_equal(tiles(tmp_path / "a.png", EPISODE + 1), shown.shown[12:19])
    assert_strips(Snapshot(path), 2, "obs/camera", shown.shown[12:19])


def assert_strips(source: Snapshot, episode: int, camera: str, frames: list[Any]) -> None:
    """The strips of all frames, and of every third of some, are those of the page."""
    found = source.episodes[episode]
    for first, every in ((0, 1), (1, 3)):
        strip = report_episode.strip(source, found, camera, first, every, 100)
        sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(strip.src.partition(",")[2]))))
        wanted = frames[first::every]
        assert (strip.count, strip.damaged) == (len(wanted), ())
        for at, frame in enumerate(wanted):
            np.testing.assert_array_equal(sheet[:48, 64 * at : 64 * (at + 1)], frame)


def test_the_page_shows_each_camera(path: str, tmp_path: pathlib.Path) -> None:
    shown = clip(count=25)
    make(path, shown)
    source = Snapshot(path)
    played = episode_values(source, source.episodes[1])
    assert [(one.name, one.width, one.height) for one in played.cameras] == [("obs/camera", 64, 48), ("wrist", 64, 48)]
    assert [one.name for one in played.series] == ["reward", "action", "obs/at"]
    assert played.not_shown == ()
    assert_strips(source, 1, "obs/camera", shown.shown[EPISODE : 2 * EPISODE + 1])
    black = np.zeros_like(shown.shown[0])  # the column has no value after the last step
    assert_strips(source, 1, "wrist", [*shown.shown[24 - EPISODE : 24 - 2 * EPISODE : -1], black])
    told = {one.name: (one.shape, one.space) for one in overview(source).schema}
    assert told["obs/camera"] == told["wrist"] == ((48, 64, 3), "h264, 64 x 48, 30 fps")
    assert not [one for one in overview(source).distributions if "camera" in one.name]
    assert report(path, tmp_path / "a.html", episodes=[0]).left_out == ()
    assert (tmp_path / "a.html").read_text().count("data:image/png") >= 2


def test_the_page_asks_for_the_frames_of_one_strip_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path)
    viewer = serve.Viewer(path)
    asked: list[int] = []
    read = LogRows.values

    def counted(rows: LogRows, column: Any, env: int, numbers: Any, step: int = 0) -> Any:
        asked.extend(numbers.tolist() if column.name == "obs/camera" else ())
        return read(rows, column, env, numbers, step)

    monkeypatch.setattr(LogRows, "values", counted)
    key = viewer.answer("overview", {})["episodes"]["key"][1]
    viewer.answer("episode", {"key": key})
    assert asked == []
    viewer.answer("strip", {"key": key, "camera": "obs/camera", "first": "1", "every": "2"})
    assert asked == [7, 9, 11]


def test_damaged_packets_leave_out_their_frames_alone(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path, extra=False)
    rows = LogRows.values

    def broken(self: LogRows, column: Any, env: int, numbers: Any, step: int = 0) -> Any:
        if column.name == "obs/camera" and 8 in numbers:
            raise CorruptionError("the packets of row 8 are gone")
        return rows(self, column, env, numbers, step)

    monkeypatch.setattr(LogRows, "values", broken)
    source = Snapshot(path)
    assert report_episode.strip(source, source.episodes[1], "obs/camera", 0, 1, 100).damaged == (2,)


def test_inspect_tells_codec_size_and_compression_against_the_pictures(path: str) -> None:
    make(path, capacity=10)
    facts = inspect.inspect(path)
    told = {one.name: one for one in facts.columns if one.video}
    assert sorted(told) == ["ragged/obs/camera", "ragged/wrist"]
    camera = told["ragged/obs/camera"]
    assert camera.video == {"codec": "h264", "width": 64, "height": 48, "pix_fmt": "yuv420p", "fps": 30.0}
    stream = facts.streams[0]
    assert camera.raw_bytes == (stream.end - stream.begin + stream.patches) * 64 * 48 * 3
    assert camera.ratio > 1
    assert facts.raw_bytes > 2 * camera.raw_bytes - 1
    document = json.loads(json.dumps(facts.to_json()))
    assert document["columns"][[one.name for one in facts.columns].index("ragged/wrist")]["video"]["fps"] == 30.0
    said = command("inspect", path).output
    assert re.search(r"video +obs/camera: h264, 64 x 48, 30 fps; .* kB for .* kB of\s+pictures,\s+.*x\s+smaller", said)
    assert "h264" in said.partition("ragged/wrist")[2].partition("\n")[0]
    listed = command("episodes", path).output.splitlines()
    assert listed[-2:] == ["video obs/camera: h264, 64 x 48, 30 fps", "video wrist: h264, 64 x 48, 30 fps"]


def test_head_tells_of_frames(path: str) -> None:
    make(path)
    found = episodes.head(path, 3)
    np.testing.assert_array_equal([row["obs/camera"] for row in found.rows], clip(count=25).shown[:3])
    np.testing.assert_array_equal([row["wrist"] for row in found.rows], clip(count=25).shown[:-4:-1])


def test_without_a_decoder_one_line_says_so(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path)
    for missing in (
        lambda: monkeypatch.setitem(sys.modules, "av", None),
        lambda: monkeypatch.setitem(decoding.DECODERS, "h264", "no-such-decoder"),
    ):
        missing()
        why = decoding.lacking(clip().facts)
        assert "PyAV" in why
        source = Snapshot(path)
        played = episode_values(source, source.episodes[0])
        assert played.cameras == ()
        assert played.not_shown == (f"wrist is not shown: {why}", f"obs/camera is not shown: {why}")
        assert report(path, tmp_path / "a.html", overwrite=True).episodes
        shown = command("show", path, "-o", tmp_path / "a.png")
        assert (shown.exit_code, shown.output) == (2, f"diskreplay: {why}\n")
        assert inspect.inspect(path).health == ()
        assert episodes.head(path, 2).rows[0]["obs/camera"].tolist() == clip(count=25).values[0].tolist()
        assert command("episodes", path).exit_code == 0
        monkeypatch.undo()
    assert not (tmp_path / "a.png").exists()
