"""The one line of a program that is started again."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers.line import add, rows_in

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, NotAStoreError

OBS, ACTION = Box(-9, 9, (3,), np.float32), Discrete(2)
AGENTS = {"n_agents": 2}


def open_or_create(path: str | pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open_or_create(path, OBS, ACTION, **{"capacity": 100, **options})


def test_a_program_that_is_started_again(path: str) -> None:
    for started in range(3):
        with open_or_create(path, checkpoint="latest", seed=0) as buffer:
            assert len(buffer) == 10 * started
            add(buffer, 10)
            buffer.checkpoint(f"after {started}")
            add(buffer, 5)  # lost, as all is that came after the checkpoint
    open_or_create(path).close()
    assert rows_in(path) == 35


def test_the_latest_checkpoint_is_that_of_the_newest_commit(path: str) -> None:
    with open_or_create(path) as buffer:
        add(buffer, 3)
        buffer.checkpoint("b")
        add(buffer, 3)
        buffer.checkpoint("a")
        add(buffer, 3)
    assert rows_in(path, checkpoint="latest") == 6
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("latest")
        add(buffer, 3)
        buffer.checkpoint("c")
    assert rows_in(path, checkpoint="latest") == 9, "a checkpoint of that very name is meant"


def test_without_a_checkpoint_it_is_said(path: str) -> None:
    with open_or_create(path, checkpoint="latest") as buffer:
        add(buffer, 3)
    with pytest.raises(CheckpointError, match="has no checkpoint yet; make one"):
        dr.ReplayBuffer.open(path, checkpoint="latest")
    assert rows_in(path, mode="r+", checkpoint="latest", or_last_commit=True) == 3
    with pytest.raises(CheckpointError, match="there is no checkpoint 'x'"):
        dr.ReplayBuffer.open(path, checkpoint="x", or_last_commit=True)


def test_the_first_stream_has_the_name_of_its_actor(path: str) -> None:
    with open_or_create(path, stream="actor-3") as buffer:
        add(buffer, 3)
    with open_or_create(path, stream="actor-3") as buffer:
        assert list(buffer.stats()["streams"]) == ["actor-3"]
    with open_or_create(path, stream="actor-4") as buffer:
        add(buffer, 2)
    with dr.ReplayBuffer.open(path) as buffer:
        assert list(buffer.stats()["streams"]) == ["actor-3", "actor-4"]
        add(buffer, 1)
        assert buffer.stats()["streams"]["actor-3"]["end"] == 4


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"capacity": 99}, "the stream '0' has the capacity 100, and 99 would keep fewer rows"),
        ({"num_envs": 2}, "num_envs of the stream '0' is 1 and does not change, got 2"),
        ({"columns": {"value": np.float32}}, "columns is {}, asked for {'value': "),
        ({"reward_dtype": np.float64}, "columns is"),
        ({"stack_padding": "reset"}, "stack_padding is 'zero', asked for 'reset'"),
        ({"finite": True}, "finite is False, asked for True"),
        ({"continuity": "flags"}, "continuity is 'observations', asked for 'flags'"),
        ({"chunk_rows": {"obs": 3}}, "chunk_rows is"),
        ({"codec": "lz4"}, "codec is"),
    ],
)
def test_what_differs_is_named(path: str, other: dict[str, Any], named: str) -> None:
    with open_or_create(path) as buffer:
        add(buffer, 3)
    with pytest.raises(InputError, match=named):
        open_or_create(path, **other)
    with open_or_create(path) as buffer:
        assert len(buffer) == 3


def test_other_spaces_are_named(path: str) -> None:
    open_or_create(path).close()
    with pytest.raises(InputError, match="observation_space is Box") as told:
        dr.ReplayBuffer.open_or_create(path, Box(-9, 9, (4,), np.float32), Discrete(3), capacity=100)
    assert "action_space is Discrete(2), asked for Discrete(3)" in str(told.value)
    only = r"observation_space is .*, asked for Discrete\(7\)\. Ask for what it has"  # and nothing that follows from it
    with pytest.raises(InputError, match=only):
        dr.ReplayBuffer.open_or_create(path, Discrete(7), ACTION, capacity=100)


def test_a_layout_that_is_not_asked_for_is_not_compared(path: str) -> None:
    open_or_create(path, chunk_rows=5, codec="zstd").close()
    open_or_create(path).close()
    open_or_create(path, chunk_rows=5, codec="zstd").close()


def test_an_empty_directory_is_taken_and_another_is_not(tmp_path: pathlib.Path) -> None:
    open_or_create(tmp_path).close()
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(NotAStoreError):
        open_or_create(other)


@pytest.mark.parametrize(
    ("kind", "options", "different", "named"),
    [
        (dr.RolloutBuffer, {"steps": 5}, {"gamma": 0.9}, "gamma is 0.99, asked for 0.9"),
        (dr.RolloutBuffer, {"steps": 5}, {"steps": 6}, "has steps=5"),
        (dr.MultiAgentReplayBuffer, {**AGENTS, "capacity": 20}, {"n_agents": 3}, "asked for"),
        (dr.MultiAgentReplayBuffer, {**AGENTS, "capacity": 20}, {"capacity": 19}, "has the capacity 20, and 19"),
        (dr.MultiAgentRolloutBuffer, {**AGENTS, "steps": 5}, {"td_lambda": 0.8}, "td_lambda is None, asked for 0.8"),
        (dr.MultiAgentRolloutBuffer, {**AGENTS, "steps": 5}, {"rewards": "agent"}, "asked for"),
    ],
)
def test_all_buffers(path: str, kind: Any, options: Any, different: Any, named: str) -> None:
    for _ in range(2):
        with kind.open_or_create(path, OBS, ACTION, **options) as buffer:
            assert buffer.num_envs == 1
    with pytest.raises(InputError, match=named):
        kind.open_or_create(path, OBS, ACTION, **{**options, **different})
    kind.open_or_create(path, OBS, ACTION, **options).close()
