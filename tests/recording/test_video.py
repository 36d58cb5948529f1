"""Cameras that a thread encodes while steps are recorded: the same steps, and pictures that tell where they are."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box
from helpers.robot import ACTION, BAD, SIZES, Robot, drive, fails, record_on_a_disk_that_crashes, walk
from helpers.threads import held

import diskreplay as dr
from diskreplay.errors import InputError, StateError
from diskreplay.ops.verify import verify
from diskreplay.recording.video_encoding import ENCODERS, VideoEncoder
from diskreplay.video import records

pytest.importorskip("av", reason="encoding video needs PyAV")

VIDEO = {"front": dr.Video("av1", 64, 48), "wrist": dr.Video("h264", 32, 32)}
MOST_OFF = 3
"""How far a grey of these pictures may be from the one that was encoded."""


def record(path: str, length: int = 5, **options: Any) -> dr.Record:
    return dr.Record(Robot(length), path, background=True, video=VIDEO, **options)


def places(buffer: dr.ReplayBuffer) -> list[tuple[int, int]]:
    """Episode and step of each row; its pictures and the next ones are those of these steps."""
    batch = buffer.get(np.arange(len(buffer)))
    np.testing.assert_array_equal(batch.next_obs["state"], batch.obs["state"] + np.array([0, 1]))
    for obs in (batch.obs, batch.next_obs):
        shown = (20 * obs["state"][:, 0] + obs["state"][:, 1]) % 251
        for name in SIZES:
            assert np.abs(obs[name] - shown[:, None, None, None]).max() <= MOST_OFF
    return [(int(episode), int(at)) for episode, at in batch.obs["state"]]


def test_facts_that_together_are_too_long_are_refused_by_their_call(path: str) -> None:
    """Also while the rows that they are of wait for their pictures; no step is lost by it."""
    long = "x" * 2_500
    with contextlib.closing(record(path)) as env:
        env.reset()
        env.begin_episode(plan=long)
        for at in range(5):
            env.step(ACTION)
            with pytest.raises(InputError, match="would take"):
                env.annotate_episode(note=long)
            env.annotate_episode(at=at)
        walk(env, 1)
        env.annotate_episode(note=long)
        env.flush()
        assert places(env.buffer) == [*((1, at) for at in range(5)), (2, 0)]
        assert [episode.facts for episode in env.buffer.episodes] == [{"plan": long, "at": 4}, {"note": long}]


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("frames", [1, 2, 61])
def test_each_packet_shows_the_next_frame(codec: str, frames: int) -> None:
    encoder = VideoEncoder(dr.Video(codec, 64, 48), key_frames=4)
    pictures = [np.full((48, 64, 3), 4 * at, np.uint8) for at in range(frames)]
    found = [packet for picture in pictures for packet in encoder.encode(picture)]
    found += encoder.finish()
    assert len(found) == frames
    assert found[0].key
    keys = [at for at, packet in enumerate(found) if packet.key]
    assert max(np.diff([*keys, frames])) <= 4


@pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="needs Linux")
@pytest.mark.parametrize("codec", ENCODERS)
def test_an_encoder_leaves_the_processors_to_others(codec: str) -> None:
    """Root's SVT-AV1 asks for real time, also for the thread that opens it."""
    mine = os.sched_getscheduler(0)
    encoder = VideoEncoder(dr.Video(codec, 64, 48))
    encoder.encode(np.zeros((48, 64, 3), np.uint8))
    threads = [int(task.name) for task in pathlib.Path("/proc/self/task").iterdir()]
    assert {os.sched_getscheduler(thread) for thread in threads} == {mine}


def test_wrong_calls_of_an_encoder_are_named() -> None:
    for key_frames in (0, -1, 2.5, "2", True, 1 << 20):
        with pytest.raises(InputError, match="key_frames must be"):
            VideoEncoder(VIDEO["wrist"], key_frames)  # type: ignore[arg-type]
    encoder = VideoEncoder(VIDEO["wrist"], np.int64(3))
    encoder.encode(np.zeros(SIZES["wrist"], np.uint8))
    assert len(encoder.finish()) == 1
    for call in (encoder.finish, lambda: encoder.encode(np.zeros(SIZES["wrist"], np.uint8))):
        with pytest.raises(StateError, match="the encoder has finished"):
            call()


def test_steps_are_those_of_recording_frames(path: str) -> None:
    with contextlib.closing(dr.Record(Robot(), path)) as env:
        drive(env, 50)
    with contextlib.closing(record(path + "v", commit_rows=7)) as env:
        drive(env, 50)
    with dr.ReplayBuffer.open(path, mode="r") as frames, dr.ReplayBuffer.open(path + "v", mode="r") as video:
        assert frames.episodes == video.episodes
        assert [each.facts for each in frames.episodes] == [each.facts for each in video.episodes]
        here, there = (buffer.get(np.arange(50)) for buffer in (frames, video))
        np.testing.assert_array_equal(here.action, there.action)
        np.testing.assert_array_equal(here.obs["state"], there.obs["state"])
        assert len(places(video)) == 50
    assert verify(path + "v").ok


def test_each_episode_begins_with_a_key_frame(path: str) -> None:
    with contextlib.closing(record(path, 4)) as env:
        drive(env, 20)
    with dr.ReplayBuffer.open(path, mode="r", ragged={"obs/front": "lists"}) as reader:
        starts = [episode.start for episode in reader.episodes]
        lists = reader.get(starts).obs["front"]
    for begin, end in itertools.pairwise(lists.offsets):
        (packet,) = records(lists.values[begin:end])
        assert packet.key


def test_a_flush_within_an_episode_does_not_end_it(path: str) -> None:
    with record(path, 200) as env:
        walk(env, 60)
        env.flush()
        assert len(env.buffer) == 60
        walk(env, 60, reset=False)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert [episode.length for episode in reader.episodes] == [120]
        assert places(reader) == [(1, at) for at in range(120)]


def test_a_store_that_has_video_goes_on(path: str) -> None:
    record(path).close()
    for more in ({}, {"video": VIDEO}):
        if more:
            env = dr.Record(Robot(), path, background=True, **more)
        else:
            env = dr.Record(Robot(), dr.ReplayBuffer.open(path), background=True)
        drive(env, 7)
        env.close()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert len(places(reader)) == 14


@pytest.mark.parametrize(("codec", "parameters"), [("hevc", (b"of a file", b"")), ("av1", (b"\x0a\x00",))])
def test_a_store_whose_video_came_from_elsewhere_goes_on(path: str, codec: str, parameters: tuple[bytes, ...]) -> None:
    robot, options = (
        Robot(),
        {"video": {"front": dr.Video(codec, 64, 48, parameters=parameters), "wrist": VIDEO["wrist"]}},
    )
    with contextlib.closing(dr.Record(robot, path, background=True, **options)) as env:
        drive(env, 7)
    with dr.ReplayBuffer.open(path, mode="r", ragged={"obs/front": "lists"}) as reader:
        assert records(reader.get([0]).obs["front"][0])[0].parameters == len(parameters) - 1
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert len(places(reader)) == 7


def test_an_observation_that_is_a_picture(path: str) -> None:
    class Camera(gymnasium.Wrapper[Any, Any, Any, Any]):
        observation_space = Box(0, 255, SIZES["front"], np.uint8)

        def reset(self, **options: Any) -> Any:
            return self.env.reset(**options)[0]["front"], {}

        def step(self, action: Any) -> Any:
            obs, *rest = self.env.step(action)
            return obs["front"], *rest

    with dr.Record(Camera(Robot(20)), path, background=True, video={"obs": VIDEO["front"]}) as env:
        walk(env, 9)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        shown = reader.get(np.arange(9)).next_obs[:, 5, 5, 1].astype(int)
        assert np.abs(shown - 21 - np.arange(9)).max() <= MOST_OFF


def test_a_step_that_is_refused_leaves_those_before_it(path: str) -> None:
    with record(path, 50) as env:
        walk(env, 4)
        with pytest.raises(InputError, match="reward must be finite"):
            env.step(np.array([np.nan, 0], np.float32))
        walk(env, 1)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_a_row_that_fails_takes_those_behind_it_along(path: str) -> None:
    with fails(record(path, 50)) as env:
        env.reset()
        for at in range(9):
            env.step(BAD if at == 4 else ACTION)
        with pytest.raises(StateError, match="could not add it") as told:
            env.flush()
        assert "the last 5 were not recorded; the stream '0' has 4 rows" in told.value.__notes__[0]
        walk(env, 1)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]


def test_closing_the_buffer_keeps_what_is_in_the_encoders(path: str) -> None:
    with record(path, 50) as env:
        env.reset()
        with held(env.buffer.engine.write_lock):
            walk(env, 6, reset=False)
        env.buffer.close()
    env = record(path, 50)
    walk(env, 6)
    del env
    with dr.ReplayBuffer.open(path) as buffer:
        assert len(places(buffer)) == 12
    assert not [one for one in threading.enumerate() if one.name == "diskreplay-recording"]


def test_what_cannot_be_encoded_makes_no_store(path: str) -> None:
    with pytest.raises(InputError, match="needs background=True"):
        dr.Record(Robot(), path, video=VIDEO)
    with pytest.raises(InputError, match="does not encode 64x48 yuv999p"):
        dr.Record(Robot(), path, background=True, video={"front": dr.Video("av1", 64, 48, "yuv999p")})
    with pytest.raises(InputError, match="only frames of observations are encoded, and"):
        dr.Record(
            Robot(), path, background=True, video={"own": VIDEO["front"]}, columns={"own": (SIZES["front"], np.uint8)}
        )
    with pytest.raises(InputError, match="takes no frames of another encoder: record into a new store"):
        dr.Record(Robot(), path, background=True, video={"front": dr.Video("hevc", 64, 48, parameters=(b"file",))})
    assert not pathlib.Path(path).exists()


@pytest.mark.long
def test_a_crash_at_any_operation_leaves_whole_groups() -> None:
    points, _ = record_on_a_disk_that_crashes(record, places, 3, lambda _, at: at == 1, known=20, every=17)
    assert points > 50
