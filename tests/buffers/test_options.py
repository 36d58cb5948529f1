"""What ``create`` and ``open`` of all buffers share: shown by help, and refused where it is misspelt."""

from __future__ import annotations

import inspect
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay as dr
from diskreplay.engine import memory
from diskreplay.process import lifecycle

BUFFERS = [dr.ReplayBuffer, dr.RolloutBuffer, dr.MultiAgentReplayBuffer, dr.MultiAgentRolloutBuffer]
OBS, ACTION = Box(-1, 1, (3,), np.float32), Discrete(2)


@pytest.mark.parametrize("buffer", BUFFERS)
def test_each_option_is_shown_with_its_default(buffer: Any) -> None:
    created, opened = (inspect.signature(method).parameters for method in (buffer.create, buffer.open))
    assert created["cache_bytes"].default is opened["cache_bytes"].default is None
    assert created["codec"].default is None
    assert (opened["mode"].default, opened["seed"].annotation) == ("r+", "int | None")
    for parameters in (created, opened):
        assert not any(one.kind is one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("buffer", BUFFERS)
def test_what_is_no_option_is_refused_and_nothing_made(buffer: Any, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.replay"
    with pytest.raises(TypeError, match="no argument 'comit_rows'; did you mean 'commit_rows'"):
        buffer.create(path, OBS, ACTION, comit_rows=3)
    with pytest.raises(TypeError, match="no argument 'xyz'; it has path"):
        buffer.open(path, xyz=3)
    assert not path.exists()


@pytest.mark.parametrize("buffer", BUFFERS)
def test_help_says_what_each_option_is(buffer: Any) -> None:
    for method in (buffer.create, buffer.open):
        told = inspect.getdoc(method)
        named = {name for names in re.findall(r"^    (\w+(?:, \w+)*): \S", told, re.M) for name in names.split(", ")}
        assert named >= {*inspect.signature(method).parameters}
        assert "**options" not in told


def test_all_that_is_left_out_is_filled_in(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "left", lambda: 1 << 50)
    with dr.ReplayBuffer.create(tmp_path / "a.replay", OBS, ACTION, capacity=10, cache_bytes=1) as buffer:
        assert (buffer.stats()["cache_bytes"], buffer.schema.stacks[0].frames) == (1, 1)
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as buffer:
        assert buffer.stats()["cache_bytes"] == 1 << 48
    with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="a", stream="b") as buffer:
        assert buffer.stats()["cache_bytes"] == 64 << 20


@pytest.mark.parametrize("left", [0, 120 << 20, 1 << 30])
def test_a_budget_that_nobody_set_is_a_quarter_of_what_is_left(
    path: str, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    dr.ReplayBuffer.create(path, OBS, ACTION, capacity=10).close()
    monkeypatch.setattr(memory, "left", lambda: left)
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.stats()["cache_bytes"] == left // 4
    with dr.ReplayBuffer.open(path, mode="a", stream="b") as buffer:
        assert buffer.stats()["cache_bytes"] == min(left // 4, 64 << 20)
    monkeypatch.setattr(lifecycle, "is_worker", lambda: True)
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.stats()["cache_bytes"] == min(left // 4, 256 << 20)
    with dr.ReplayBuffer.open(path, cache_bytes=256 << 20) as buffer:
        assert buffer.stats()["cache_bytes"] == 256 << 20
