"""Lists of episodes, tables of rows, and first differences."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import CASES, NESTED, moved_window, several_streams, store
from gymnasium import spaces
from helpers.diff import diff

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops.combine import merge
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.episodes import episodes, head
from diskreplay.reading import gather
from diskreplay.storage.column import ColumnReader


def test_episodes(path: str) -> None:
    store()(path)
    lines = episodes(path)
    assert [line.length for line in lines] == [5, 1, 7, 1, 4, 3, 6]
    ends = ["terminated", "terminated", "truncated", "truncated", "cut", "terminated", "running"]
    assert [line.end for line in lines] == ends
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        for line in lines:
            rewards = buffer.get(np.arange(line.start, line.stop)).reward
            assert line.total_reward == pytest.approx(float(rewards.astype(float).sum()))
    assert [line.number for line in episodes(path, sort="length", reverse=True)] == [2, 6, 0, 4, 5, 1, 3]
    returns = [line.total_reward for line in episodes(path, sort="return")]
    assert returns == sorted(returns)
    with pytest.raises(InputError, match="sorted by"):
        episodes(path, sort="colour")


def test_episodes_are_found_without_observations(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were read into RAM, twice as much as all episodes of ten steps take."""
    store()(path)
    names = set()

    def told(read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(column: ColumnReader, *args: Any) -> Any:
            names.add(column.column.name)
            return read(column, *args)

        return reads

    monkeypatch.setattr(ColumnReader, "read_rows", told(ColumnReader.read_rows))
    monkeypatch.setattr(gather, "read_rows", told(gather.read_rows))
    assert len(episodes(path)) == 7
    assert names == {"valid", "start", "terminated", "truncated", "reward", "place"}


def test_episodes_of_a_window_that_moved_on(path: str) -> None:
    moved_window(path)
    assert [line.complete for line in episodes(path)] == [False, True, True]


def test_head(path: str) -> None:
    several_streams(path)
    found = head(path, 7)
    assert found.columns == ("stream", "row", "env", "obs", "action", "reward", "terminated", "truncated")
    assert [(row["stream"], row["row"], row["env"]) for row in found.rows] == [
        (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 2, 0)
    ]  # fmt: skip
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        batch = buffer.get(np.arange(7))
        for at, row in enumerate(found.rows):
            np.testing.assert_array_equal(row["obs"], batch.obs[at])
            assert row["reward"] == batch.reward[at]
        numbers = [number for number, episode in enumerate(buffer.episodes) if episode.stream == 1]
    (second,) = {row["stream"] for row in head(path, 50, episode=numbers[0]).rows}
    assert second == 1
    assert len(head(path, 10_000).rows) == len(buffer_rows(path))
    with pytest.raises(InputError, match="episode must be"):
        head(path, episode=99)


def buffer_rows(path: str) -> range:
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        return range(len(buffer))


def test_head_as_json(path: str, tmp_path: pathlib.Path) -> None:
    store(NESTED, columns={"x": np.complex64, "y": np.float32})(path)
    row = json.loads(json.dumps(head(path, 1).to_json(), allow_nan=False))["rows"][0]
    assert (row["obs/camera"]["shape"], len(row["obs/arm/joints"])) == ([36, 36, 3], 2)
    assert isinstance(row["x"], str)
    store(lengths=[])(str(tmp_path / "empty"))
    assert head(tmp_path / "empty").rows == []


@pytest.mark.long(quick=18)
@pytest.mark.parametrize("case", [case for case in CASES if case.history], ids=repr)
def test_no_difference(case: Any, path: str, tmp_path: pathlib.Path) -> None:
    """Streams, environments and chunks do not count."""
    case.make(path)
    merge(tmp_path / "b", [path])
    assert diff(path, tmp_path / "b") is None


def one(path: str, change: str = "") -> str:
    """A store of three episodes with NaNs in a column; one thing in it may be another."""
    rng = np.random.default_rng(0)
    columns = {"value": np.float32} if change != "columns" else {}
    capacity = 30 if change != "capacity" else 60
    action = spaces.Discrete(4 if change != "space" else 5)
    with dr.ReplayBuffer.create(path, spaces.Box(-9, 9, (2, 3)), action, capacity=capacity, columns=columns) as buffer:
        for step in range(24):
            obs, following = rng.normal(size=(2, 2, 3)).astype(np.float32)
            if change == "obs" and step == 9:
                obs[1, 2] += 1
            if change == "next" and step == 15:
                following[0, 1] = -0.0 if following[0, 1] else 1
            reward = float(step) + (change == "reward" and step == 10)
            ended = step % 8 == 7 and not (change == "end" and step == 7)
            extra = {"value": np.float32(np.nan)} if columns else {}
            if change != "short" or step < 20:
                buffer.add(obs, step % 4, reward, following, ended, False, **extra)
    return path


@pytest.mark.parametrize(
    ("change", "episode", "step", "what", "element"),
    [
        ("obs", 9, 0, "obs", (1, 2)), ("next", 15, 0, "next obs", (0, 1)), ("reward", 10, 0, "reward", ()),
        ("end", 7, 0, "terminated", ()), ("columns", None, None, "columns", ()),
        ("space", None, None, "action space", ()), ("short", None, None, "transitions", ()),
    ],
)  # fmt: skip
def test_the_first_difference(
    change: str, episode: int | None, step: int | None, what: str, element: tuple[int, ...], tmp_path: pathlib.Path
) -> None:
    """Every step here is an episode of its own: its next observation is no other step's."""
    a, b = one(str(tmp_path / "a")), one(str(tmp_path / "b"), change)
    found = diff(a, b)
    assert found is not None
    assert (found.what, found.episode, found.step, found.element) == (what, episode, step, element)
    assert found.one != found.other
    assert what in str(found)
    assert diff(b, a) is not None
    assert diff(a, one(str(tmp_path / "c"), "capacity")) is None


def test_a_shorter_episode_is_a_difference(tmp_path: pathlib.Path) -> None:
    """The end of an episode, not only its values."""
    for name, flag in (("a", True), ("b", False)):
        with dr.ReplayBuffer.create(tmp_path / name, spaces.Discrete(9), spaces.Discrete(2), capacity=9) as buffer:
            for step in range(6):
                buffer.add(step, 0, 0.0, step + 1, False, flag and step == 2)
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found is not None
    assert (found.episode, found.step, found.what) == (0, 2, "truncated")


def test_an_export_does_not_change_the_store(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    export(path, tmp_path / "copy", "store")
    export(path, tmp_path / "a.hdf5")
    assert diff(path, tmp_path / "copy") is None


def test_diff_sees_stacks_that_reach_back_behind_the_window(path: str, tmp_path: pathlib.Path) -> None:
    """Single frames are stored: they are the same, but not what stood before the first of them."""
    moved_window(path)
    export(path, tmp_path / "b", "npz", allow_loss=True)
    import_dataset(tmp_path / "b", tmp_path / "c")
    found = diff(path, tmp_path / "c")
    assert found is not None
    assert (found.what, found.episode, found.step, len(found.element)) == ("stack of obs", 0, 0, 3)
    assert found.other == "0"
    assert diff(path, path) is None
    assert diff(tmp_path / "c", tmp_path / "c") is None


LATER = {"value": np.float32, "state": ((300,), np.float32), "small": ((2, 2), np.complex64)}
"""The state is read from disk, the others are in RAM."""


def written_later(path: str, change: str = "") -> str:
    """A store of three episodes with values written later and facts; one thing in it may be another."""
    later = {**LATER, "value": np.float64} if change == "dtype" else LATER
    with dr.ReplayBuffer.create(path, spaces.Discrete(99), spaces.Discrete(2), capacity=60, later=later) as buffer:
        for step in range(24):
            if step % 8 == 0:
                buffer.begin_episode(seed=step, tags=["a", "b"])
            buffer.add(step, 0, 0.0, step + 1, step % 8 == 7, False)
        rng, steps = np.random.default_rng(0), np.arange(4, 20)
        state = rng.normal(size=(16, 300)).astype(np.float32)
        state[3, 7], state[6, 123] = np.nan, -0.0 if change == "state" else 0.0
        buffer.write("state", steps, state)
        buffer.write("small", steps, np.full((16, 2, 2), 1 + 1j))
        if change == "small":
            buffer.write("small", [9], np.full((1, 2, 2), [[1 + 1j, 1 + 1j], [1 + 1j, 1 + 2j]]))
        if change == "order":  # the log has other bytes, and the same says of each step
            buffer.write("state", steps[::-1], state[::-1].copy())
        if change == "zero":
            buffer.write("value", [20], [0.0])
        if change == "fact":
            buffer.annotate_episode(buffer.episodes[1], success=True)
        if change == "seed":
            buffer.annotate_episode(buffer.episodes[2], seed=3)
    return path


@pytest.mark.parametrize(
    ("change", "what", "episode", "step", "element", "one_and_other"),
    [
        ("dtype", "columns written later", None, None, (), ("float32 ()", "float64 ()")),
        ("state", "state", 1, 2, (123,), ("0.0", "-0.0")),
        ("small", "small", 1, 1, (1, 1), ("(1+1j)", "(1+2j)")),
        ("zero", "value", 2, 4, (), ("none", "0.0")),
        ("fact", "fact 'success'", 1, None, (), ("none", "true")),
        ("seed", "fact 'seed'", 2, None, (), ("16", "3")),
    ],
)
def test_diff_compares_values_written_later_and_facts(
    change: str, what: str, episode: int | None, step: int | None, element: tuple[int, ...],
    one_and_other: tuple[str, str], tmp_path: pathlib.Path,
) -> None:  # fmt: skip
    a, b = written_later(str(tmp_path / "a")), written_later(str(tmp_path / "b"), change)
    found = diff(a, b)
    assert found is not None
    assert (found.what, found.episode, found.step, found.element) == (what, episode, step, element)
    assert one_and_other[0] in found.one
    assert one_and_other[1] in found.other
    assert what in str(found)
    back = diff(b, a)
    assert back is not None
    assert (back.what, back.one, back.other) == (what, found.other, found.one)


def test_diff_looks_at_values_written_later_not_at_their_log(tmp_path: pathlib.Path) -> None:
    a, b = written_later(str(tmp_path / "a")), written_later(str(tmp_path / "b"), "order")
    assert diff(a, b) is None
    assert diff(a, a) is None
    merge(tmp_path / "copy", [a], allow_loss=True)
    found = diff(a, tmp_path / "copy")
    assert found is not None
    assert (found.what, found.other) == ("columns written later", "{}")
