"""The facts of a page: what the store says, and what of it cannot be read."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from report import episodes as made

import diskreplay as dr
from diskreplay.report import episode as shown
from diskreplay.report import overview as facts_of
from diskreplay.report.source import Snapshot
from diskreplay.views import pictures


def plays(source: Snapshot, number: int) -> shown.EpisodeValues:
    return shown.episode_values(source, source.episodes[number])


def test_the_table_of_episodes(path: str) -> None:
    made.make(path)
    overview = facts_of.overview(Snapshot(path))
    table = overview.episodes
    assert (table.length, table.total_reward) == ((4, 6, 2, 4, 3), (4, 12, 1, -2, 3))
    assert [table.ends[end] for end in table.end] == ["terminated", "truncated", "terminated", "cut", "running"]
    assert (table.start, table.key[1]) == ((0, 4, 10, 12, 16), "0.0.4")
    assert table.return_fences is None  # too few to say what is unusual
    json.dumps(overview.to_json(), allow_nan=False)


def test_the_newest_episodes_are_listed_where_there_are_too_many(path: str) -> None:
    made.make(path)
    table = facts_of.episode_list(Snapshot(path), 2)
    assert (table.first, table.total, table.length) == (3, 5, (4, 3))


HOSTILE = "</script><img src=x onerror=alert(1)>"


def test_facts_and_tags(path: str) -> None:
    with made.create(path) as buffer:
        for number, tags in enumerate([["expert"], [], ["expert", HOSTILE], None]):
            buffer.begin_episode(seed=number, tags=tags)
            made.play(buffer, number, 3)
    source = Snapshot(path)
    assert facts_of.episode_list(source).tags == ((HOSTILE, (2,)), ("expert", (0, 2)))
    assert facts_of.episode_list(source, 2).tags == ((HOSTILE, (0,)), ("expert", (0,)))
    assert dict(plays(source, 2).facts) == {"seed": "2", "tags": json.dumps(["expert", HOSTILE])}


def test_only_the_most_frequent_tags_are_listed(path: str) -> None:
    with made.create(path) as buffer:
        for number in range(3):
            buffer.begin_episode(tags=[f"tag {number}", "each", *(["two"] if number else [])])
            made.play(buffer, number, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts_of, "MOST_TAGS", 2)
        assert facts_of.episode_list(Snapshot(path)).tags == (("each", (0, 1, 2)), ("two", (1, 2)))


@pytest.mark.own_thresholds  # only what is mirrored in RAM is counted
def test_rewards_and_actions_are_counted(path: str) -> None:
    made.make(path)
    reward, action = facts_of.overview(Snapshot(path)).distributions
    assert dict(zip(reward.labels or (), reward.counts, strict=True)) == {"-0.5": 4, "0.5": 2, "1": 7, "2": 6}
    assert dict(zip(action.labels or (), action.counts, strict=True)) == {"0 WAIT": 8, "1 LEFT": 6, "2 RIGHT": 5}


@pytest.mark.own_thresholds  # only what is mirrored in RAM is counted
def test_many_values_are_a_histogram(path: str) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    with dr.ReplayBuffer.create(path, space, space, capacity=1000) as buffer:
        for step in range(200):
            buffer.add([0, 0], [step / 200, -step / 400], step, [0, 0], False, step == 199)
    reward, first, second = facts_of.overview(Snapshot(path)).distributions
    assert (first.name, second.name) == ("action[0]", "action[1]")
    for one, least, most in ((reward, 0, 199), (first, 0, 199 / 200), (second, -199 / 400, 0)):
        assert sum(one.counts) == 200
        assert one.labels is None
        assert one.edges is not None
        assert one.edges[0] == pytest.approx(least)
        assert one.edges[-1] == pytest.approx(most)


def test_large_actions_are_not_counted(path: str) -> None:
    space = spaces.Box(-1, 1, (600,), np.float32)
    with dr.ReplayBuffer.create(path, spaces.Discrete(2), space, capacity=10) as buffer:
        buffer.add(0, np.zeros(600, np.float32), 0.0, 1, True, False)
    overview = facts_of.overview(Snapshot(path))
    assert [one.name for one in overview.distributions] == ["reward"]
    assert overview.not_counted == ("action: 2,400 bytes each are not counted",)


@pytest.mark.own_thresholds  # a window's shards have as many rows as it says
def test_evicted_bytes_are_those_of_rows_in_shards_that_stay(path: str) -> None:
    with made.create(path, capacity=10, shard_rows=4, chunk_rows=4) as buffer:
        for number in range(6):
            made.play(buffer, number, 3 + number % 2)
            buffer.commit()  # each writes the chunk that is not full yet anew
    shards = [int(one.name.split(".")[1]) for one in pathlib.Path(path, "streams/0/obs/camera").glob("c.*")]
    rows = sum(min(21, 4 * shard + 4) - 4 * shard for shard in shards)
    assert rows > 10
    assert facts_of.overview(Snapshot(path)).evicted["obs/camera"] == (rows - 10) * 20 * 24 * 3


def test_later_columns_are_in_the_schema_and_the_storage(path: str) -> None:
    later = {"state": ((300,), np.float32), "seen": np.int64}
    with made.create(path, capacity=10, later=later) as buffer:
        for number in range(3):
            buffer.begin_episode(note=f"episode {number}")
            made.play(buffer, number, 5)
        for _ in range(4):
            buffer.write("state", np.arange(7, 12), np.zeros((5, 300)))
        buffer.write("seen", np.arange(14, 15), [1])
        buffer.annotate_episode(note="episode 2, told anew")
        buffer.commit()
        buffer.annotate_episode(note="episode 2, once more")
    overview = facts_of.overview(Snapshot(path))
    assert {(one.name, one.shape, one.dtype, one.space) for one in overview.schema if one.name in later} == {
        ("state", (300,), "float32", "written later, 5 known"),
        ("seen", (), "int64", "written later, 1 known"),
    }
    raw = {one.name: one.raw_bytes for one in Snapshot(path).facts.columns}
    block, place = 8, 8
    assert raw["later/values"] == 4 * (block + 5 * (place + 1200)) + block + place + 8
    assert raw["later/values"] - overview.evicted["later/values"] == 5 * (place + 1200) + place + 8
    lines = [[5, 10, 0, {"note": "episode 1"}], [10, None, 0, {"note": "episode 2, once more"}]]
    living = sum(len(json.dumps(line, separators=(",", ":"))) + 1 for line in lines)
    assert raw["info"] - overview.evicted["info"] == living
    assert overview.evicted["info"] > 0


def test_a_store_without_logs_has_evicted_none_of_them(path: str) -> None:
    with made.create(path) as buffer:
        made.play(buffer, 0, 3)
    assert not {"info", "later/values"} & facts_of.overview(Snapshot(path)).evicted.keys()


def test_unusual_episodes() -> None:
    low, high = facts_of.fences([10, 11, 12, 13, 14, 15, 16, 90]) or (0, 0)
    assert low < 10 < 16 < high < 90
    low, high = facts_of.fences([5.0] * 99 + [40.0]) or (0, 0)  # quartiles are the same
    assert low < 5 < high < 40
    assert facts_of.fences([1, 2, 3]) is None


def test_an_episode_has_all_its_values(path: str) -> None:
    made.make(path)
    one = plays(Snapshot(path), 1)
    curves = {series.name: [curve.values for curve in series.curves] for series in one.series}
    assert curves["reward"] == [(2,) * 6]
    assert (curves["action"], curves["value"]) == ([(0, 1, 2, 0, 1, 2)], [(0, 0.5, 1, 1.5, 2, 2.5)])
    assert curves["obs/state"] == [(0, 1, 2, 3, 4, 5, 6), (0, -1, -2, -3, -4, -5, -6), (1,) * 7]  # the final one too
    assert next(series for series in one.series if series.name == "action").labels == {
        "0": "WAIT", "1": "LEFT", "2": "RIGHT"
    }  # fmt: skip
    assert [(camera.name, camera.width, camera.height) for camera in one.cameras] == [
        ("obs/camera", 24, 20), ("obs/depth", 18, 16)
    ]  # fmt: skip
    assert (one.end, one.length, one.damaged) == ("truncated", 6, ())


def test_a_strip_has_every_frame_and_the_true_final_one(path: str) -> None:
    made.make(path)
    source = Snapshot(path)
    strip = shown.strip(source, source.episodes[1], "obs/camera", 0, 1, 100)
    assert strip.count == 7
    for step in range(7):
        assert (made.pixels(strip, step, (20, 24)) == (step, 1, made.FINAL if step == 6 else 0)).all()


def test_a_strip_can_begin_later_and_leave_frames_out(path: str) -> None:
    with made.create(path) as buffer:
        made.play(buffer, 7, 40)
    source = Snapshot(path)
    strip = shown.strip(source, source.episodes[0], "obs/camera", 4, 3, 5)
    assert strip.count == 5
    assert [made.pixels(strip, at, (20, 24))[0, 0, 0] for at in range(5)] == [4, 7, 10, 13, 16]
    last = shown.strip(source, source.episodes[0], "obs/camera", 38, 1, 100)
    assert [made.pixels(last, at, (20, 24))[0, 0].tolist() for at in range(3)] == [[38, 7, 0], [39, 7, 0], [40, 7, 200]]
    assert shown.strip(source, source.episodes[0], "obs/camera", 41, 1, 100).count == 0


def test_floats_are_scaled_by_their_space(path: str) -> None:
    made.make(path)
    source = Snapshot(path)
    strip = shown.strip(source, source.episodes[1], "obs/depth", 0, 1, 100)
    assert [made.pixels(strip, at, (16, 18))[0, 0] for at in range(5)] == [0, 64, 128, 191, 255]


@pytest.mark.parametrize(
    ("shape", "kept"),
    [
        ((20, 24), (20, 24)),
        ((20, 24, 3), (20, 24, 3)),
        ((3, 20, 24), (3, 20, 24)),
        ((20, 24, 4), (20, 24, 4)),  # colours and opacity
        ((4, 20, 24), (1, 20, 24)),  # a stack of grey ones
        ((12, 20, 24), (3, 20, 24)),  # four of colours
        ((20, 24, 9), (20, 24, 3)),
        ((20, 24, 5), (20, 24, 1)),
    ],
)
def test_of_a_stack_the_newest_is_shown(shape: tuple[int, ...], kept: tuple[int, ...]) -> None:
    assert pictures.pictures_of(shape, np.dtype(np.uint8))
    frame = np.arange(np.prod(shape)).reshape(shape)
    newest = pictures.newest(frame)
    assert newest.shape == kept
    assert newest.flat[-1] == frame.flat[-1]


@pytest.mark.parametrize("shape", [(), (3,), (100,), (7, 3), (2, 2), (100, 100, 100), (5, 8, 8)])
def test_what_is_no_picture(shape: tuple[int, ...]) -> None:
    assert not pictures.pictures_of(shape, np.dtype(np.uint8))


FREE = spaces.Box(-np.inf, np.inf, (20, 24), np.float32)
DEPTH = spaces.Box(0, np.inf, (20, 24), np.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "space", "picture"),
    [
        ((8, 8), "int8", None, True),  # a board
        ((10, 10), "bool", None, True),
        ((20, 24), "float32", None, True),
        ((20, 24), "float32", DEPTH, True),
        ((20, 24), "float32", FREE, False),  # twenty observations of a robot
        ((20, 6), "float32", None, False),
        ((6, 20), "int64", None, False),
        ((20, 6, 3), "float32", None, True),
    ],
)
def test_sequences_of_vectors_are_no_pictures(shape: tuple[int, ...], dtype: str, space: Any, picture: bool) -> None:
    assert pictures.pictures_of(shape, np.dtype(dtype), space) == picture


def test_of_several_vectors_the_last_is_drawn(path: str) -> None:
    space = spaces.Box(-np.inf, np.inf, (20, 6), np.float32)
    frames = np.arange(360, dtype=np.float32).reshape(3, 20, 6)
    with dr.ReplayBuffer.create(path, space, made.ACTIONS, capacity=10) as buffer:
        for step in range(2):
            buffer.add(frames[step], 0, 0.0, frames[step + 1], step == 1, False)
    source = Snapshot(path)
    values = shown.episode_values(source, source.episodes[0])
    assert values.cameras == ()
    (obs,) = (one for one in values.series if one.name == "obs")
    assert [curve.label for curve in obs.curves] == [f"19, {at}" for at in range(6)]
    assert [curve.values for curve in obs.curves] == [tuple(frames[:, 19, at].tolist()) for at in range(6)]
    assert "obs: 6 of 120 numbers are drawn" in values.not_shown


def test_large_frames_are_shown_smaller(path: str) -> None:
    space = spaces.Box(0, 255, (1300, 600), np.uint8)
    with dr.ReplayBuffer.create(path, space, made.ACTIONS, capacity=10) as buffer:
        buffer.add(np.full((1300, 600), 7, np.uint8), 0, 0.0, np.full((1300, 600), 9, np.uint8), True, False)
    source = Snapshot(path)
    (camera,) = shown.cameras(source)
    assert (camera.width, camera.height, camera.note) == (200, 434, "1 of 3 pixels of each line and column")
    strip = shown.strip(source, source.episodes[0], "obs", 0, 1, 4)
    assert (made.pixels(strip, 1, (434, 200)) == 9).all()


def test_damaged_frames_are_shown_as_such(path: str) -> None:
    made.make(path)
    made.damage(path, "obs/camera")
    source = Snapshot(path)
    one = plays(source, 0)
    strip = shown.strip(source, source.episodes[0], "obs/camera", 0, 1, 100)
    assert one.length == 4
    assert strip.damaged
    assert len(strip.damaged) < strip.count
    for step in range(4):
        expected = (shown.DAMAGED_PIXEL,) * 3 if step in strip.damaged else (step, 0, 0)
        assert (made.pixels(strip, step, (20, 24)) == expected).all()


def test_a_damaged_stream_leaves_the_rest(path: str) -> None:
    made.make(path)
    with dr.ReplayBuffer.open(path, stream="other") as buffer:
        made.play(buffer, 9, 5)
    for shard in made.shards(path, "reward", stream="0"):
        shard.write_bytes(bytes(30))
    overview = facts_of.overview(Snapshot(path))
    assert overview.facts["health"]
    assert (overview.episodes.streams, overview.episodes.length) == (("other",), (5,))


def test_an_empty_store(path: str) -> None:
    made.create(path).close()
    overview = facts_of.overview(Snapshot(path))
    assert (overview.episodes.key, overview.distributions) == ((), ())
    json.dumps(overview.to_json(), allow_nan=False)


@pytest.mark.own_thresholds  # only what is mirrored in RAM is counted
def test_several_agents(path: str) -> None:
    with dr.MultiAgentReplayBuffer.create(
        path, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(5), n_agents=3, capacity=100
    ) as buffer:
        for step in range(6):
            buffer.add(np.zeros((3, 4)), [0, 1, 4], 1.0, np.zeros((3, 4)), step == 5, False)
    source = Snapshot(path)
    one = plays(source, 0)
    action = next(series for series in one.series if series.kind == "action")
    assert [curve.label for curve in action.curves] == ["0", "1", "2"]
    found = next(each for each in facts_of.overview(source).distributions if each.name.startswith("action"))
    assert dict(zip(found.labels or (), found.counts, strict=True)) == {"0": 6, "1": 6, "4": 6}


def test_priorities_of_the_newest_checkpoint(path: str) -> None:
    with made.create(path, sampler=dr.Proportional(alpha=1.0, epsilon=1e-9)) as buffer:
        made.play(buffer, 0, 40)
        buffer.update_priorities(buffer.items(), np.arange(1, 41))
        buffer.checkpoint("ranked")
    found = facts_of.overview(Snapshot(path)).priorities
    assert found is not None
    assert (found.checkpoint, found.sampler, sum(found.values.counts)) == ("ranked", "Proportional", 40)
    assert found.by_age == pytest.approx([2 * part + 1.5 for part in range(20)])


def test_it_goes_on_beside_a_writer(path: str) -> None:
    with made.create(path) as buffer:
        made.play(buffer, 0, 4)
        buffer.commit()
        source = Snapshot(path)
        stamp = source.stamp
        assert not source.refresh()
        made.play(buffer, 1, 6, "truncated")
        buffer.commit()
        assert source.refresh()
        assert source.stamp != stamp
        assert [found.episode.length for found in source.episodes] == [4, 6]
        assert (
            made.pixels(shown.strip(source, source.episodes[1], "obs/camera", 0, 1, 9), 6, (20, 24)) == (6, 1, 200)
        ).all()


def test_an_episode_keeps_its_key_while_others_leave(path: str) -> None:
    with made.create(path, capacity=40) as buffer:
        for number in range(3):
            made.play(buffer, number, 10)
        buffer.commit()
        source = Snapshot(path)
        key = source.episodes[2].key
        for number in range(3, 5):
            made.play(buffer, number, 10)
        buffer.commit()
        source.refresh()
        found = source.by_key(key)
        assert found is not None
        assert found.number == 1
        assert plays(source, found.number).series[-1].curves[2].values[0] == 2
        assert source.by_key("0.0.0") is None


def test_it_follows_a_writer_that_goes_back(path: str) -> None:
    with made.create(path) as buffer:
        made.play(buffer, 0, 4)
        buffer.checkpoint("before")
        made.play(buffer, 1, 6)
    source = Snapshot(path)
    with dr.ReplayBuffer.open(path, checkpoint="before") as buffer:
        made.play(buffer, 2, 3)
    source.refresh()
    assert [found.episode.length for found in source.episodes] == [4, 3]


def test_long_episodes_are_thinned(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "MOST_STEPS", 10)
    with made.create(path) as buffer:
        made.play(buffer, 0, 25)
    one = plays(Snapshot(path), 0)
    curves = {series.name: series.curves[0].values for series in one.series}
    assert one.every == 3
    assert curves["reward"] == (3,) * 8 + (1,)
    assert curves["obs/state"] == tuple(range(0, 25, 3))


def test_facts_are_frozen(path: str) -> None:
    made.make(path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        facts_of.overview(Snapshot(path)).name = "other"  # type: ignore[misc]


def test_lengths_are_shown_of_ragged_values(path: str) -> None:
    rows = [("no", [1, 2, 3]), ("", []), ("yes", [4]), ("maybe", [5, 6, 7])]
    space = spaces.Text(10, min_length=0)
    columns: Any = {"tokens": ((None,), np.int32), "points": ((None, 2), np.float32)}
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=100, columns=columns) as buffer:
        for at, (text, tokens) in enumerate(rows):
            end = at == len(rows) - 1
            points = np.zeros((at, 2))
            buffer.add(text, 0, 1.0, "nothing" if end else rows[at + 1][0], end, False, tokens=tokens, points=points)
    source = Snapshot(path)
    overview = facts_of.overview(source)
    found = {one.name: (one.labels, one.counts) for one in overview.distributions}
    assert found["tokens: length"] == (("0", "1", "3"), (1, 1, 2))
    assert found["obs: length"] == (("0", "2", "3", "5"), (1, 1, 1, 1))
    schema = {one.name: (one.shape, one.dtype) for one in overview.schema}
    assert (schema["tokens"], schema["points"]) == (((None,), "int32"), ((None, 2), "float32"))
    series = {one.name: one for one in plays(source, 0).series}
    assert series["points: length"].curves == (shown.Curve("", (0, 1, 2, 3)),)
    assert series["obs: length"].curves == (shown.Curve("", (2, 0, 3, 5, 7)),)
    json.dumps([overview.to_json(), plays(source, 0).to_json()], allow_nan=False)
