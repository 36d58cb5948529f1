"""Buffers that are pickled, copied, and sent to processes that are spawned."""

from __future__ import annotations

import copy
import multiprocessing
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
from helpers import lives
from helpers.odds import chances_of
from helpers.patience import PATIENCE
from helpers.testing import SimulatedDisk

import diskreplay as dr
from diskreplay.errors import ClosedError


@pytest.fixture
def store(path: str) -> str:
    with lives.create(path) as buffer:
        lives.add(buffer, 30)
        buffer.checkpoint("middle")
        lives.add(buffer, 5)
    return path


def copied(how: str, buffer: Any) -> Any:
    return copy.deepcopy(buffer) if how == "deepcopy" else pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_reader_is_opened_again_by_its_path(store: str, how: str) -> None:
    view = dr.Transition(n_step=3)
    with dr.ReplayBuffer.open(store, mode="r", cache_bytes=12345, view=view, seed=1) as buffer:
        with copied(how, buffer) as other, copied(how, buffer) as third:
            assert len(other) == len(buffer) == 70
            assert (other.view, other.stats()["cache_bytes"]) == (view, 12345)
            draws = [one.sample(30).index.tolist() for one in (buffer, other, third)]
            assert draws[0] != draws[1] != draws[2] != draws[0], "each draws batches of its own"
        lives.check(dr.ReplayBuffer.open(store, mode="r").sample(8), {0: 2})
        buffer.sample(4)


def test_a_copy_stands_at_the_checkpoint(store: str) -> None:
    with dr.ReplayBuffer.open(store, mode="r", checkpoint="middle") as buffer, copied("pickle", buffer) as other:
        assert len(other) == len(buffer) == 60


@pytest.mark.long("sampling/test_sampler_mixture.py and test_processes_that_are_spawned")
@pytest.mark.parametrize("sampler", [dr.Proportional, dr.RankBased])
def test_priorities_come_along_and_part_ways(store: str, sampler: Any) -> None:
    with dr.ReplayBuffer.open(store, mode="r", sampler=sampler(), seed=0) as buffer:
        first = buffer.sample(16)
        buffer.update_priorities(first.index, np.arange(16) + 0.5)

        with copied("deepcopy", buffer) as other:
            np.testing.assert_array_equal(chances_of(other), chances_of(buffer))
            other.update_priorities(first.index[:1], [100.0])
            assert not np.array_equal(chances_of(other), chances_of(buffer))


def test_a_rollout(tmp_path: pathlib.Path) -> None:
    from gymnasium.spaces import Box, Discrete

    path = tmp_path / "a.replay"
    with dr.RolloutBuffer.create(path, Box(-9, 9, (2,), np.float32), Discrete(2), steps=4) as buffer:
        for _ in range(4):
            buffer.add([0, 0], 0, 1.0, [0, 0], False, False, value=0.0, log_prob=0.0)
    with dr.RolloutBuffer.open(path, mode="r") as buffer, copied("pickle", buffer) as other:
        assert len(other) == 4


def test_a_writer_says_why_it_cannot(store: str) -> None:
    with lives_open(store) as buffer:
        for how in ("deepcopy", "pickle"):
            with pytest.raises(TypeError, match=r"has one writer\. Open .* with mode='r', or with stream="):
                copied(how, buffer)
        lives.add(buffer, 1)


def lives_open(store: str) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(store)


def test_a_closed_buffer_and_one_over_other_files_say_so(store: str) -> None:
    buffer = dr.ReplayBuffer.open(store, mode="r")
    buffer.close()
    with pytest.raises(ClosedError):
        pickle.dumps(buffer)
    disk = SimulatedDisk()
    lives.create("/a.replay", files=disk).close()
    with (
        dr.ReplayBuffer.open("/a.replay", mode="r", files=disk) as simulated,
        pytest.raises(TypeError, match="over files of one's own"),
    ):
        pickle.dumps(simulated)


def draw(buffer: dr.ReplayBuffer, results: Any) -> None:
    with buffer:
        batch = buffer.sample(16)
        lives.check(batch, {0: 2})
        results.put(batch.index.tolist())


@pytest.mark.long
def test_processes_that_are_spawned(store: str) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with dr.ReplayBuffer.open(store, mode="r", seed=0) as buffer:
        processes = [context.Process(target=draw, args=(buffer, results)) for _ in range(2)]
        for process in processes:
            process.start()
        found = [results.get(timeout=PATIENCE) for _ in processes]
        for process in processes:
            process.join()
    assert found[0] != found[1]


def test_after_close_nothing_is_said_to_be_empty(store: str) -> None:
    with dr.ReplayBuffer.open(store, mode="r") as buffer:
        assert repr(buffer) == f"<ReplayBuffer {store!r}: 70 transitions>"
    assert repr(buffer) == f"<ReplayBuffer {store!r}: closed>"
    with pytest.raises(ClosedError):
        len(buffer)
