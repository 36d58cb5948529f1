"""Steps that a thread records: the same rows as without it, errors told with what was lost, and all kept at the end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import pathlib
import threading
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from helpers.forking import forked
from helpers.line import rows_in
from helpers.programs import run
from helpers.robot import ACTION, BAD, Robot, drive, fails, places, record_on_a_disk_that_crashes, walk
from helpers.testing import FaultyFiles, Interrupts
from helpers.threads import beside, held

import diskreplay as dr
from diskreplay.errors import ClosedError, InputError, StateError, WriteFailedError
from diskreplay.ops.verify import verify
from diskreplay.process import background

MODULES = [
    *(f"diskreplay.recording.{name}" for name in ("single", "opening", "copies")),
    "diskreplay.process.background",
]


def record(path: str, length: int = 5, **options: Any) -> dr.Record:
    return dr.Record(Robot(length), path, background=True, **options)


def same(path: str, other: str) -> None:
    with dr.ReplayBuffer.open(path, mode="r") as one, dr.ReplayBuffer.open(other, mode="r") as two:
        assert len(one) == len(two) > 0
        assert one.episodes == two.episodes
        assert [each.facts for each in one.episodes] == [each.facts for each in two.episodes]
        here, there = (buffer.get(np.arange(len(one))) for buffer in (one, two))
        for name in ("action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(here, name), getattr(there, name))
        for part in ("obs", "next_obs", "extra"):
            for name, values in getattr(here, part).items():
                np.testing.assert_array_equal(values, getattr(there, part)[name])


@pytest.mark.parametrize("queue_rows", [1, 4, 128])
def test_rows_are_those_of_recording_without_a_thread(path: str, queue_rows: int) -> None:
    more: dict[str, Any] = {"seeds": True, "columns": {"at": ((2,), np.int64)}, "commit_rows": 7}
    with contextlib.closing(dr.Record(Robot(), path, **more)) as env:
        drive(env, 60)
    with contextlib.closing(record(path + "b", queue_rows=queue_rows, **more)) as env:
        drive(env, 60)
    same(path, path + "b")


def test_what_is_flushed_is_in_the_buffer_and_on_disk(path: str) -> None:
    with record(path) as env:
        drive(env, 8)
        env.flush()
        assert len(env.buffer) == 8
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            assert places(reader) == places(env.buffer)
    env.close()
    for call in (env.reset, lambda: env.step(ACTION), env.flush, lambda: env.begin_episode(seed=1)):
        with pytest.raises(ClosedError):
            call()


def test_what_a_program_does_to_its_arrays_later_changes_nothing(path: str) -> None:
    class Numbers(Robot):
        kept = np.zeros(2, np.int64)

        def step(self, action: Any) -> Any:
            found = super().step(action)
            self.kept[:] = self.at
            return *found[:4], {"at": self.kept}

    with contextlib.closing(dr.Record(Numbers(), path, background=True, columns={"at": ((2,), np.int64)})) as env:
        env.reset()
        with held(env.buffer.engine.write_lock):
            for _ in range(4):
                env.step(action := ACTION.copy())
                action += 1
        env.flush()
        assert places(env.buffer) == [(1, at) for at in range(4)]
        batch = env.buffer.get(np.arange(4))
        assert batch.extra["at"][:, 1].tolist() == [1, 2, 3, 4]
        assert not batch.action.any()


def test_a_step_waits_where_the_queue_is_full_and_says_so(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(record(path, 20, queue_rows=3)) as env:
        env.reset()
        env.flush()
        assert env.waited.count == 0
        holds, go = threading.Event(), threading.Event()

        def hold() -> None:
            with env.buffer.engine.write_lock:
                holds.set()
                go.wait()

        def monotonic() -> float:
            """Seconds, from the beginning of the first wait to its end; the lock is given back meanwhile."""
            now = 0.2 if go.is_set() else 0.0
            go.set()
            return now

        monkeypatch.setattr(background, "time", types.SimpleNamespace(monotonic=monotonic))
        with beside(hold):
            holds.wait()
            for _ in range(12):  # one in the thread's hand
                env.step(ACTION)
            assert env.waited.count >= 1
            assert env.waited.longest_seconds == 0.2
            env.flush()
            assert places(env.buffer) == [(1, at) for at in range(12)]


def test_an_error_says_what_was_kept_and_episodes_go_on(path: str) -> None:
    env = fails(record(path))
    walk(env, 1)
    env.flush()
    env.step(ACTION)
    with held(env.buffer.engine.write_lock):
        env.step(BAD)
        env.step(ACTION)  # nobody knows yet
    env.buffer.engine.settle()
    at = env.unwrapped.at
    with pytest.raises(StateError, match="could not add it") as told:
        env.step(ACTION)
    assert env.unwrapped.at == at, "untouched"
    (note,) = told.value.__notes__
    assert "the last 2 were not recorded; the stream '0' has 2 rows, of which 1 are committed" in note
    with pytest.raises(ResetNeeded):
        env.step(ACTION)
    walk(env, 1)
    env.step(BAD)
    env.buffer.engine.settle()
    with pytest.raises(StateError) as again:
        env.reset()
    assert "the last 1 were not recorded; the stream '0' has 3 rows" in again.value.__notes__[0]
    walk(env, 1)
    env.step(BAD)
    with pytest.raises(StateError, match="could not add it"):
        env.close()
    env.close()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, 0), (1, 1), (2, 0), (3, 0)]
        assert [episode.length for episode in reader.episodes] == [2, 1, 1]
    assert verify(path).ok


def test_after_an_error_no_step_goes_on_by_flags(path: str) -> None:
    """What comes behind a hole must not be taken for its continuation."""
    with fails(record(path, 50, continuity="flags")) as env:
        walk(env, 1)
        with held(env.buffer.engine.write_lock):
            for action in (BAD, ACTION, ACTION):
                env.step(action)
        env.buffer.engine.settle()
        with pytest.raises(StateError):
            env.flush()
        walk(env, 1)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert [episode.length for episode in reader.episodes] == [1, 1]


@pytest.mark.usefixtures("commits_at_once")
def test_a_full_disk_is_told_and_the_last_commit_is_intact(path: str) -> None:
    files = FaultyFiles()
    env = record(path, 50, files=files, commit_rows=4)
    walk(env, 4)
    env.flush()
    files.fail_at(0)
    for _ in range(6):
        with contextlib.suppress(WriteFailedError):
            env.step(ACTION)
            continue
        break
    else:
        env.buffer.engine.settle()
        with pytest.raises(WriteFailedError) as told:
            env.step(ACTION)
        assert "has 8 rows, of which 4 are committed" in told.value.__notes__[0]
    files.heal()
    with pytest.raises(WriteFailedError, match=r"4 rows since the last commit are lost"):
        env.close()
    env.close()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, at) for at in range(4)]


WRONG: dict[str, dict[str, Any]] = {
    "reward must be finite": {"reward": np.nan},
    "action: must be finite": {"action": np.array([np.nan, 0], np.float32)},
    r"action: must have shape \(2,\), got \(3,\)": {"action": np.zeros(3, np.float32)},
    "action: must have dtype float32": {"action": np.full(2, 1 / 3)},
    r"next_obs/front: must have shape \(48, 64, 3\), got \(2, 2, 3\)": {"front": np.zeros((2, 2, 3), np.uint8)},
    "next_obs/front: must have dtype uint8; the float64": {"front": np.full((48, 64, 3), 0.5)},
    "next_obs/state: must be finite": {"state": np.array([np.nan, 0], np.float32)},
    "next_obs: must be a dict with the keys": {"more": 1},
    "at: must have shape": {"at": np.zeros(3)},
    "info of a step must be a mapping, .* got None": {"at": None},
}
"""What is wrong with a step, by the error that says so."""


@pytest.mark.parametrize("video", [False, True])
@pytest.mark.parametrize("error", WRONG)
def test_what_is_wrong_is_refused_by_its_own_step(path: str, error: str, video: bool) -> None:
    class Wrong(Robot):
        wrong: Mapping[str, Any] = {}

        def step(self, action: Any) -> Any:
            obs, reward, *ends, info = super().step(action)
            given = dict(self.wrong)
            reward, at = given.pop("reward", reward), given.pop("at", info["at"])
            given.pop("action", None)
            return {**obs, **given}, reward, *ends, None if at is None else {"at": at}

    more: dict[str, Any] = {"columns": {"at": ((2,), np.int64)}, "finite": True}
    if video:
        pytest.importorskip("av", reason="encoding video needs PyAV")
        more["video"] = {"front": dr.Video("h264", 64, 48)}
    with dr.Record(Wrong(50), path, background=True, **more) as env:
        walk(env, 3)
        env.unwrapped.wrong = WRONG[error]
        with pytest.raises(InputError, match=error) as told:
            env.step(WRONG[error].get("action", ACTION))
        assert not getattr(told.value, "__notes__", None), "no other step is lost"
        env.unwrapped.wrong = {}
        with pytest.raises(ResetNeeded):
            env.step(ACTION)
        walk(env, 1)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert reader.get(np.arange(4)).obs["state"].tolist() == [[1, 0], [1, 1], [1, 2], [2, 0]]
        assert [episode.length for episode in reader.episodes] == [3, 1]


def test_facts_that_are_wrong_are_refused_at_once(path: str) -> None:
    with contextlib.closing(record(path)) as env:
        env.reset()
        with pytest.raises(InputError, match="seed"):
            env.begin_episode(seed="one")
        env.begin_episode(seed=3)
        with pytest.raises(InputError, match="give the episode first"):
            env.annotate_episode(episode=0, success=True)
        env.step(ACTION)
        env.flush()
        assert [episode.facts for episode in env.buffer.episodes] == [{"seed": 3}]


def test_wrong_arguments_make_no_store(path: str) -> None:
    with pytest.raises(InputError, match="background must be True or False, got 1"):
        dr.Record(Robot(), path, background=1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="queue_rows must be"):
        record(path, queue_rows=0)
    assert not pathlib.Path(path).exists()


def test_samples_are_true_while_it_records(path: str) -> None:
    with record(path, 9, capacity=30, commit_rows=5, seed=0) as env:
        for _ in range(8):
            env.reset()
            for _ in range(9):
                env.step(ACTION)
                if len(env.buffer) > 8:
                    batch = env.buffer.sample(8)
                    assert (batch.next_obs["front"] - batch.obs["front"] == 1).all()
                    np.testing.assert_array_equal(batch.next_obs["state"], batch.obs["state"] + np.array([0, 1]))
        env.flush()
        env.buffer.checkpoint("now")
        assert len(env.buffer) == 30


# Ends


def test_closing_the_buffer_itself_keeps_what_waits(path: str) -> None:
    with record(path) as env:
        env.reset()
        with held(env.buffer.engine.write_lock):
            walk(env, 3, reset=False)
        env.buffer.close()
        with pytest.raises(ClosedError):
            env.step(ACTION)
    with dr.Record(Robot(), path, background=True) as again:
        walk(again, 1)
        other = dr.Record(Robot(), path, background=True, take_over=True)
        assert len(other.buffer) == 4
        other.close()


@pytest.mark.parametrize("cycle", [False, True])
def test_one_that_is_forgotten_is_flushed_and_closed(path: str, cycle: bool) -> None:
    env = record(path)
    walk(env, 5)
    if cycle:
        env.itself = env  # type: ignore[attr-defined]
    held = [env]
    del env

    def forget() -> dr.ReplayBuffer:
        held.clear()
        gc.collect()
        return dr.ReplayBuffer.open(path)  # which needs the lock

    with pytest.warns(ResourceWarning, match="was not closed; now it is"):
        buffer = forget()
    with buffer:
        assert len(buffer) == 5
    assert not [one for one in threading.enumerate() if one.name == "diskreplay-recording"]


PROGRAM = """
import sys
from helpers.robot import Robot, walk
import diskreplay as dr
env = dr.Record(Robot(50), {path!r}, background=True)
walk(env, 30)
{end}
"""


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('a mistake')"])
def test_a_program_that_ends_without_closing_keeps_all(path: str, end: str) -> None:
    done = run(PROGRAM.format(path=path, end=end))
    assert done.returncode == {"": 0, "s": 3, "r": 1}[end[:1]], done.stderr
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, at) for at in range(30)]


def test_a_forked_child_records_nothing(path: str) -> None:
    env = record(path)
    walk(env, 1)

    def in_child() -> None:
        for call in (env.reset, lambda: env.step(ACTION), env.flush):
            with pytest.raises(StateError, match="is in the process that this one was forked from"):
                call()
        with pytest.raises(StateError, match="was forked from the one that writes the stream"):
            env.close()

    assert forked(in_child) is None
    env.step(ACTION)
    env.close()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert places(reader) == [(1, 0), (1, 1)]


def test_interrupted_at_any_line_what_is_recorded_is_true(path: str) -> None:
    interrupts = Interrupts(KeyboardInterrupt, within=MODULES)
    with record(path, 50, queue_rows=1) as env:
        places_seen = 0
        for number in itertools.count():
            ends = [interrupts.interrupt(number, env.reset)]
            walk(env, 1)
            ends.append(interrupts.interrupt(number, lambda: env.step(ACTION)))
            with contextlib.suppress(ResetNeeded):
                env.step(ACTION)
            ends.append(interrupts.interrupt(number, env.flush))
            places_seen += sum(end is not None for end in ends)
            if ends == [None, None, None]:
                break
        assert places_seen > 40
        env.flush()
        found = places(env.buffer)
        assert {at for _, at in found} == {0, 1, 2}
        assert len({episode for episode, _ in found}) > number
    assert verify(path).ok


def test_interrupted_at_any_line_closing_loses_nothing(path: str) -> None:
    interrupts = Interrupts(KeyboardInterrupt, within=MODULES)
    for number in itertools.count():
        with record(f"{path}-{number}") as env:
            env.reset()
            with held(env.buffer.engine.write_lock):
                walk(env, 3, reset=False)
            place = interrupts.interrupt(number, env.close)
        assert rows_in(f"{path}-{number}", mode="r+") == 3, place
        if place is None:
            break
    assert number > 5


# Crashes


@pytest.mark.long
def test_a_crash_at_any_operation_leaves_a_commit_whole() -> None:
    points, disks = record_on_a_disk_that_crashes(
        record, places, 5, lambda episode, at: at == 3 and episode % 2 == 1, known=40, every=7
    )
    assert points > 100
    assert disks > 30


# Facts that are refused


LONG = "x" * 2_500
"""Two of these are more than an episode's facts may have."""


def told(path: str, **options: Any) -> dr.Record:
    """An environment in whose first episode three steps were made, after facts of half the size."""
    env = dr.Record(Robot(9), path, **options)
    env.reset()
    env.begin_episode(plan=LONG)
    walk(env, 3, reset=False)
    return env


def check_all_there(env: dr.Record, *facts: dict[str, Any]) -> None:
    """The thread goes on: the episode ends, another one follows, and no step is lost."""
    walk(env, 6, reset=False)
    walk(env, 9)
    env.flush()
    assert places(env.buffer) == [(1, at) for at in range(9)] + [(2, at) for at in range(9)]
    assert [episode.facts for episode in env.buffer.episodes] == list(facts)
    env.close()


@pytest.mark.parametrize("background", [False, True])
def test_facts_that_together_are_too_long_are_refused_by_their_call(path: str, background: bool) -> None:
    """Regression: the thread refused them, and the steps behind them were not recorded."""
    env = told(path, background=background)
    for _ in range(2):
        with pytest.raises(InputError, match=r"the facts of an episode would take 5,\d\d\d bytes"):
            env.annotate_episode(note=LONG)
    env.annotate_episode(success=True)
    env.annotate_episode(plan="short")
    env.annotate_episode(note=LONG)
    check_all_there(env, {"plan": "short", "success": True, "note": LONG}, {})


@pytest.mark.parametrize("background", [False, True])
def test_facts_of_an_episode_without_a_step_count_with_those_that_follow(path: str, background: bool) -> None:
    env = dr.Record(Robot(9), path, background=background)
    env.begin_episode(plan=LONG)
    env.reset()
    with pytest.raises(InputError, match="would take"):
        env.annotate_episode(note=LONG)
    env.annotate_episode(seed=1)
    walk(env, 3, reset=False)
    with pytest.raises(InputError, match="would take"):
        env.annotate_episode(note=LONG)
    check_all_there(env, {"plan": LONG, "seed": 1}, {})


@pytest.mark.parametrize("background", [False, True])
def test_another_episode_has_room_of_its_own(path: str, background: bool) -> None:
    env = told(path, background=background)
    env.reset()
    with pytest.raises(InputError, match="would take"):
        env.annotate_episode(note=LONG)  # of the episode that was left
    env.step(ACTION)
    env.annotate_episode(note=LONG)
    env.begin_episode(other=LONG)
    env.annotate_episode(seed=1)
    env.step(ACTION)
    with pytest.raises(InputError, match="would take"):
        env.annotate_episode(note=LONG)
    env.flush()
    assert [one.facts for one in env.buffer.episodes] == [{"plan": LONG}, {"note": LONG}, {"other": LONG, "seed": 1}]
    env.close()


@pytest.mark.parametrize("background", [False, True])
def test_facts_from_before_the_wrapper_count(path: str, background: bool) -> None:
    """Of the newest episode of a store that is opened again, and of one that the buffer was told to begin."""
    told(path).close()
    with dr.Record(Robot(9), path, background=background) as env:
        with pytest.raises(InputError, match="would take"):
            env.annotate_episode(note=LONG)
        env.annotate_episode(success=False)
    buffer = dr.ReplayBuffer.open(path)
    assert [episode.facts for episode in buffer.episodes] == [{"plan": LONG, "success": False}]
    buffer.begin_episode(goal=LONG)
    with dr.Record(Robot(9), buffer, background=background) as env:
        walk(env, 1)
        with pytest.raises(InputError, match="would take"):
            env.annotate_episode(note=LONG)
        walk(env, 8, reset=False)
        env.flush()
        assert (len(buffer), buffer.episodes[1].facts) == (12, {"goal": LONG})


@pytest.mark.parametrize("background", [False, True])
def test_facts_of_no_episode_are_refused_by_their_call(path: str, background: bool) -> None:
    env = dr.Record(Robot(9), path, background=background)
    for reset in (False, True):
        if reset:
            env.reset()
        with pytest.raises(InputError, match="has no episode yet"):
            env.annotate_episode(success=True)
    walk(env, 3, reset=False)
    check_all_there(env, {}, {})


def test_facts_after_an_error_are_those_of_the_rows_that_are_there(path: str) -> None:
    """What the thread has told the buffer before the error is what the buffer knows."""
    with told(path, background=True) as env:
        env.reset()
        env.begin_episode(later=LONG)
        fails(env).step(BAD)
        with pytest.raises(StateError, match="could not add"):
            env.flush()
        env.annotate_episode(success=True)  # they wait still
        walk(env, 1)
        with pytest.raises(InputError, match="would take"):
            env.annotate_episode(note=LONG)
        env.flush()
        assert [episode.facts for episode in env.buffer.episodes] == [{"plan": LONG}, {"later": LONG, "success": True}]
