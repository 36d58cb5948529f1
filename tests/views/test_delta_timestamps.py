"""Windows by time: which rows they show, what fills the others, and where a store takes the frames a second from.

The oracle of :mod:`helpers.view_model` has the view, too; here are its names, and what is its alone.
"""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from helpers.odds import chances_of

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.reading import gather
from diskreplay.views.registry import from_json, same_items

PICTURE = (12, 16, 3)
ACTION = Box(-999, 999, (2,), np.float32)
SPACE = Dict({"camera": Box(0, 255, PICTURE, np.uint8), "joints": Tuple([ACTION, Discrete(99)])})
NAMES = {"camera": [-0.1, 0.0], "joints": [-0.2, 0.0, 0.1], "action": [0.0, 0.1, 0.2], "note": [0.3], "q": [0.0, 0.1]}


def create(path: str, view: Any = None, **options: Any) -> dr.ReplayBuffer:
    given: dict[str, Any] = {
        "capacity": 100, "columns": {"note": np.int64, "other": np.int64}, "later": {"q": np.float32, "p": np.int32},
        "view": view, "chunk_rows": {"obs/camera": 4}, "shard_rows": {"obs/camera": 8}, "seed": 0,
    }  # fmt: skip
    return dr.ReplayBuffer.create(path, SPACE, ACTION, **given | options)


def observation(episode: int, step: int) -> dict[str, Any]:
    joints = np.array([episode, step], np.float32), (10 * episode + step) % 99
    return {"camera": np.full(PICTURE, (10 * episode + step) % 256, np.uint8), "joints": joints}


def record(buffer: dr.ReplayBuffer, lengths: list[int], first: int = 0, ends: bool = True) -> None:
    """Episodes whose values tell their number and step; the last one goes on where ``ends`` is False."""
    for episode, length in enumerate(lengths, first):
        for step in range(length):
            last = step == length - 1 and (ends or episode - first < len(lengths) - 1)
            buffer.add(
                observation(episode, step), [episode, step], step, observation(episode, step + 1), last, False,
                note=step, other=-step,
            )  # fmt: skip


def test_every_kind_of_name_at_its_times(path: str) -> None:
    """Rows 0 to 4 are one episode, 5 to 7 the next."""
    view = dr.DeltaTimestamps(NAMES, fps=10)
    with create(path, view) as buffer:
        record(buffer, [5, 3])
        buffer.write("q", [1, 4, 5], [1.0, 4.0, 5.0])
        buffer.write("p", [4], [7])
        batch = buffer.get([0, 1, 4, 7])
    assert type(batch) is dr.DeltaBatch
    assert batch.keys().isdisjoint({"next_obs", "discount"})
    assert batch.obs["camera"].shape == (4, 2, *PICTURE)
    assert batch.obs["camera"][:, :, 0, 0, 0].tolist() == [[0, 0], [0, 1], [3, 4], [11, 12]]
    joints, counts = batch.obs["joints"]
    assert joints[:, :, 1].tolist() == [[0, 0, 1], [0, 1, 2], [2, 4, 4], [0, 2, 2]]
    assert counts.tolist() == [[0, 0, 1], [0, 1, 2], [2, 4, 4], [10, 12, 12]]
    assert batch.action[:, :, 1].tolist() == [[0, 1, 2], [1, 2, 3], [4, 4, 4], [2, 2, 2]]
    assert batch.extra["note"].tolist() == [[3], [4], [4], [2]]
    assert batch.extra["other"].tolist() == [0, -1, -4, -2]
    assert batch.extra["q"].tolist() == [[0, 1], [1, 0], [4, 4], [0, 0]]
    assert batch.extra["q_known"].tolist() == [[False, True], [True, False], [True, True], [False, False]]
    assert batch.extra["p"].tolist() == [0, 0, 7, 0]
    assert batch.extra["p_known"].tolist() == [False, False, True, False]
    assert batch.reward.tolist() == [0, 1, 4, 2]
    assert batch.terminated.tolist() == [False, False, True, True]
    assert {name: mask.tolist() for name, mask in batch.is_pad.items()} == {
        "camera": [[True, False], [False, False], [False, False], [False, False]],
        "joints": [[True, False, False], [True, False, False], [False, False, True], [False, False, True]],
        "action": [[False] * 3, [False] * 3, [False, True, True], [False, True, True]],
        "note": [[False], [False], [True], [True]],
        "q": [[False, False], [False, False], [False, True], [False, True]],
    }


def test_an_episode_that_goes_on_ends_at_the_newest_row(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [0.0, 1.0, 2.0]}, fps=1)
    with create(path, view) as buffer:
        record(buffer, [3], ends=False)
        assert buffer.get([1]).action[0, :, 1].tolist() == [1, 2, 2]
        assert buffer.get([1]).is_pad["action"].tolist() == [[False, False, True]]
        buffer.add(observation(0, 3), [0, 3], 3, observation(0, 4), False, False, note=3, other=-3)
        assert buffer.get([1]).action[0, :, 1].tolist() == [1, 2, 3]
        assert not buffer.get([1]).is_pad["action"].any()
        assert len(buffer.items()) == 4


def test_an_episode_cut_by_eviction_begins_at_its_oldest_row(path: str) -> None:
    view = dr.DeltaTimestamps({"camera": [-3.0, -1.0, 0.0], "action": [-2.0]}, fps=1)
    with create(path, view, capacity=6) as buffer:
        record(buffer, [10], ends=False)
        assert buffer.items().tolist() == [4, 5, 6, 7, 8, 9]
        batch = buffer.get([4, 5, 9])
    assert batch.obs["camera"][:, :, 0, 0, 0].tolist() == [[4, 4, 4], [4, 4, 5], [6, 8, 9]]
    assert batch.action[:, 0, 1].tolist() == [4, 4, 7]
    assert batch.is_pad["camera"].tolist() == [[True, True, False], [True, False, False], [False] * 3]


def test_windows_keep_to_their_own_stream(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [-9.0, 0.0, 9.0]}, fps=1)
    with create(path, view) as buffer, dr.ReplayBuffer.open(path, stream="b", capacity=50, num_envs=1) as other:
        record(buffer, [4, 4])
        record(other, [6], first=20)
        other.commit()
        buffer.refresh()
        batch = buffer.get(buffer.items())
    assert batch.action[:, :, 0].tolist() == [[at] * 3 for at in (0,) * 4 + (1,) * 4 + (20,) * 6]
    assert batch.action[-1, :, 1].tolist() == [0, 5, 5]


def test_each_episode_is_its_own_window_in_lockstep(path: str) -> None:
    view = dr.DeltaTimestamps({"reward": [-1.0, 0.0, 1.0]}, fps=1)
    space = Box(-99, 99, (2,), np.float32)
    with dr.ReplayBuffer.create(path, space, Discrete(2), capacity=60, num_envs=3, view=view) as buffer:
        for step in range(6):
            obs = np.array([[env, step] for env in range(3)], np.float32)
            ends = [step == 2, False, step == 4]
            buffer.add(
                obs, [0] * 3, [10.0 * env + step for env in range(3)], obs + np.float32([0, 1]), ends, [False] * 3
            )
        shown = buffer.get([6, 7, 8]).reward  # all of row 2
    assert shown.tolist() == [[1, 2, 2], [11, 12, 13], [21, 22, 23]]


@pytest.mark.parametrize("form", [dr.Pad(), "lists"], ids=str)
def test_ragged_values_have_times_too(path: str, form: Any) -> None:
    space = Dict({"text": Text(20, min_length=0), "at": Box(-1, 1, (1,), np.float32)})
    view = dr.DeltaTimestamps({"text": [-1.0, 0.0], "tokens": [0.0, 1.0, 2.0]}, fps=1)
    with dr.ReplayBuffer.create(
        path, space, Discrete(2), capacity=20, view=view, columns={"tokens": ((None,), np.int16)}, ragged=form
    ) as buffer:
        at = np.zeros(1, np.float32)
        for step in range(4):
            texts = [{"text": "x" * count, "at": at} for count in (step, step + 1)]
            buffer.add(texts[0], 0, 0.0, texts[1], step == 3, False, tokens=[step] * (step + 1))
        batch = buffer.get([0, 2])
    found = batch.extra["tokens"].lists() if form != "lists" else batch.extra["tokens"]
    assert [row.tolist() for row in found] == [[0], [1] * 2, [2] * 3, [2] * 3, [3] * 4, [3] * 4]
    texts = batch.obs["text"].lists() if form != "lists" else batch.obs["text"]
    assert [len(row) for row in texts] == [0, 0, 1, 2]
    if form != "lists":
        assert batch.extra["tokens"].mask.shape == (2, 3, 4)


def test_stacked_frames_stand_at_each_time(path: str) -> None:
    view = dr.DeltaTimestamps({"obs": [-1.0, 0.0]}, fps=1)
    with dr.ReplayBuffer.create(
        path, Box(0, 255, (4, 5), np.uint8), Discrete(2), capacity=20, view=view, frame_stack=3, chunk_rows=2
    ) as buffer:
        for step in range(5):
            buffer.add(np.full((4, 5), step + 1), 0, 0.0, np.full((4, 5), step + 2), step == 4, False)
        batch = buffer.get([0, 3])
    assert batch.obs.shape == (2, 2, 3, 4, 5)
    assert batch.obs[..., 0, 0].tolist() == [[[0, 0, 1], [0, 0, 1]], [[1, 2, 3], [2, 3, 4]]]


def test_no_two_arrays_share_memory(path: str) -> None:
    view = dr.DeltaTimestamps({"camera": [0.0, 1.0], "joints": [0.0, 1.0], "action": [0.0, 1.0]}, fps=1)
    with create(path, view) as buffer:
        record(buffer, [9])
        batch = buffer.get([3, 4])
    arrays: list[Any] = []
    batch.map(arrays.append)
    for at, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[:at])


def test_an_action_may_be_nested(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [0.0, 1.0], "action_of": [1.0]}, fps=1)
    space = Dict({"arm": Box(-9, 9, (2,), np.float32), "grip": Discrete(9)})
    with dr.ReplayBuffer.create(
        path, Box(-9, 9, (1,), np.float32), space, capacity=20, view=view, columns={"action_of": np.int8}
    ) as buffer:
        for step in range(3):
            obs = np.array([step], np.float32)
            action = {"arm": [step, step], "grip": step}
            buffer.add(obs, action, 0.0, obs + 1, step == 2, False, action_of=step)
        batch = buffer.get([0, 2])
    assert batch.action["grip"].tolist() == [[0, 1], [2, 2]]
    assert batch.action["arm"][:, :, 0].tolist() == [[0, 1], [2, 2]]
    assert batch.extra["action_of"].tolist() == [[1], [2]]
    assert batch.is_pad["action"].tolist() == [[False, False], [False, True]]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nothing"], "deltas: there is no 'nothing'; the names are camera, joints/0, joints/1, action, reward, "),
        (["valid"], "deltas: there is no 'valid'"),
        (["joint"], "deltas: there is no 'joint'"),
        (["obs", "camera"], "deltas: 'obs' and 'camera' both stand for 'obs/camera'; give one of them"),
        (["joints/1", "obs/joints"], "deltas: 'joints/1' and 'obs/joints' both stand for 'obs/joints/1'"),
    ],
)
def test_names_that_a_store_does_not_have(path: str, names: list[str], message: str) -> None:
    view = dr.DeltaTimestamps(dict.fromkeys(names, (0.0,)), fps=1)
    with pytest.raises(InputError, match=message):
        create(path, view)
    assert not pathlib.Path(path).exists()
    create(path).close()
    with pytest.raises(InputError, match=message):
        dr.ReplayBuffer.open(path, view=view)


def test_names_that_stand_for_one_leaf_each(path: str) -> None:
    view = dr.DeltaTimestamps({"obs/joints/1": [1.0], "joints/0": [0.0, 1.0], "obs/camera": [1.0, 2.0]}, fps=1)
    with create(path, view) as buffer:
        record(buffer, [5])
        batch = buffer.get([1])
    assert batch.obs["joints"][0].shape == (1, 2, 2)
    assert batch.obs["joints"][1].tolist() == [[2]]
    assert batch.obs["camera"].shape == (1, 2, *PICTURE)


def test_the_store_tells_the_frames_a_second(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [0.0, 0.2]})
    with pytest.raises(InputError, match="needs the frames a second, which the store does not tell: give fps="):
        create(path, view)
    create(path, provenance={"fps": 5}).close()
    with dr.ReplayBuffer.open(path, view=view) as buffer:
        assert buffer.view == dr.DeltaTimestamps({"action": [0.0, 0.2]}, fps=5)
        record(buffer, [4])
        assert buffer.get([0]).action[0, :, 1].tolist() == [0, 1]
    with pytest.raises(InputError, match=r"0\.1 s is no multiple of 1/fps = 1/5 s"):
        dr.ReplayBuffer.open(path, view=dr.DeltaTimestamps({"action": [0.1]}))
    with dr.ReplayBuffer.open(path, mode="r", view=dr.DeltaTimestamps({"action": [0.1]}, fps=10)) as buffer:
        assert buffer.get([0]).action[0, :, 1].tolist() == [1]


def test_a_new_store_takes_the_frames_a_second_from_its_provenance(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [0.0, 0.2]})
    with create(path, view, provenance={"fps": 5}) as buffer:
        assert buffer.view == dr.DeltaTimestamps({"action": [0.0, 0.2]}, fps=5)
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.view == dr.DeltaTimestamps({"action": [0.0, 0.2]}, fps=5)


@pytest.mark.parametrize("fps", ["5", None, True, 0, -3])
def test_a_provenance_that_tells_no_number(path: str, fps: Any) -> None:
    create(path, provenance={"fps": fps}).close()
    with pytest.raises(InputError, match="fps"):
        dr.ReplayBuffer.open(path, view=dr.DeltaTimestamps({"action": [0.2]}))


def test_times_are_rounded_as_lerobot_rounds_them() -> None:
    view = dr.DeltaTimestamps({"a": [-1 / 3, 0.066666, 0.1334], "b": np.array([0.0, 1 / 30])}, fps=30)
    assert (view.steps, view.reach) == ({"a": (-10, 2, 4), "b": (0, 1)}, 4)
    assert dr.DeltaTimestamps({"a": [0.05, 0.15]}, fps=10, tolerance_s=0.06).steps == {"a": (0, 2)}
    assert dr.DeltaTimestamps({"a": [-0.5]}, fps=10).reach == 0


def test_priorities_are_those_of_other_times_too(path: str) -> None:
    """Every transition is an item, whatever the times are, so a sampler goes on with others."""
    one, other = dr.DeltaTimestamps({"action": [0.0]}, fps=1), dr.DeltaTimestamps({"camera": [2.0]}, fps=2)
    assert same_items(one.to_json(), other.to_json())
    with create(path, one, sampler=dr.Proportional()) as buffer:
        record(buffer, [9])
        buffer.update_priorities(np.arange(9), np.arange(9) + 1.0)
        chance = chances_of(buffer, np.arange(9))
        buffer.checkpoint("a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with dr.ReplayBuffer.open(path, checkpoint="a", view=other, sampler=dr.Proportional()) as buffer:
            again = chances_of(buffer, np.arange(9))
    np.testing.assert_array_equal(chance, again)


def test_the_store_keeps_the_view(path: str) -> None:
    view = dr.DeltaTimestamps(NAMES, fps=10, tolerance_s=1e-3)
    create(path, view).close()
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.view == view == from_json(view.to_json())


def test_several_agents_take_no_windows(path: str) -> None:
    view = dr.DeltaTimestamps({"action": [0.0]}, fps=1)
    spaces = Box(-1, 1, (3,), np.float32), Discrete(2)
    with pytest.raises(InputError, match="DeltaTimestamps"):
        dr.MultiAgentReplayBuffer.create(path, *spaces, 2, capacity=9, view=view)  # type: ignore[arg-type]
    assert not pathlib.Path(path).exists()
    dr.MultiAgentReplayBuffer.create(path, *spaces, 2, capacity=9).close()
    with pytest.raises(InputError, match="DeltaTimestamps"):
        dr.MultiAgentReplayBuffer.open(path, view=view)  # type: ignore[arg-type]


def test_a_mixture_of_windows(tmp_path: pathlib.Path) -> None:
    view = dr.DeltaTimestamps({"camera": [-1.0, 0.0], "action": [0.0, 1.0]}, fps=1)
    with create(str(tmp_path / "a"), view) as one, create(str(tmp_path / "b"), view) as other:
        record(one, [9])
        record(other, [9], first=5)
        batch = dr.Mixture([one, other]).sample(8)
        assert type(batch) is dr.DeltaBatch
        assert batch.action[:, 0, 0].tolist() == [0] * 4 + [5] * 4
        np.testing.assert_array_equal(batch.obs["camera"][:, 1, 0, 0, 0], batch.action[:, 0] @ [10, 1])
        assert batch.is_pad["action"].shape == (8, 2)
        third = create(str(tmp_path / "c"), dr.DeltaTimestamps({"camera": [0.0], "action": [0.0]}, fps=1))
        with third, pytest.raises(InputError, match="do not fit those of part 0"):
            dr.Mixture([one, third])


def test_a_pass_reads_each_picture_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though actions reach far ahead: only the rows that a column is shown at are read of it."""
    view = dr.DeltaTimestamps({"camera": [-1.0, 0.0], "action": [float(at) for at in range(50)]}, fps=1)
    read: list[int] = []
    load = gather.load

    def counted(column: Any, chunks: Any, *more: Any) -> None:
        read.append(len(chunks))
        load(column, chunks, *more)

    with create(path, view, chunk_rows={"obs/camera": 1}, capacity=300) as buffer:
        record(buffer, [100, 100])
        buffer.commit()
        monkeypatch.setattr(gather, "load", counted)
        batches = list(buffer.shuffled(10, pool_bytes=1 << 15))
        every = np.concatenate([batch.obs["camera"][:, :, 0, 0, 0] for batch in batches])
        ids = np.concatenate([batch.index for batch in batches])
    assert sorted(ids.tolist()) == list(range(200))
    step, episode = ids % 100, ids // 100
    np.testing.assert_array_equal(every[:, 1], (10 * episode + step) % 256)
    np.testing.assert_array_equal(every[:, 0], (10 * episode + np.maximum(step - 1, 0)) % 256)
    assert sum(read) <= 3 * 200, "each picture, the one before, and what a round's end asks for again"
