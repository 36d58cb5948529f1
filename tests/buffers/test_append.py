"""mode="a": a writer of one stream among many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import lives

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, LockedError, StateError, StoreNotFoundError
from diskreplay.ops.verify import verify


def write(path: str, stream: str, number: int, rows: int, **options: Any) -> dr.ReplayBuffer:
    buffer = dr.ReplayBuffer.open(path, stream=stream, **{**lives.OPTIONS, **options})
    for row in range(rows):
        buffer.add(**lives.step(number, row, 2))
    buffer.commit()
    return buffer


@pytest.mark.long
def test_it_holds_its_own_rows_alone_and_readers_see_all(path: str) -> None:
    lives.create(path).close()
    write(path, "0", 0, 12).close()
    with write(path, "b", 1, 15, mode="a") as appender:
        assert (list(appender.stats()["streams"]), len(appender)) == (["b"], 30)
        lives.check(appender.sample(20), {0: 2, 1: 2})
        assert set(appender.sample(30).index >> lives.ROW_BITS) == {1}
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            assert lives.check_all(reader) == 54
    with dr.ReplayBuffer.open(path, mode="a", stream="b", **lives.OPTIONS) as appender:
        lives.add(appender, 3, 1)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert lives.check_all(reader) == 60
    assert verify(path).ok


def test_it_is_the_only_writer_of_its_stream(path: str) -> None:
    with lives.create(path):
        with pytest.raises(LockedError):
            dr.ReplayBuffer.open(path, mode="a")
        with dr.ReplayBuffer.open(path, mode="a", stream="b"), pytest.raises(LockedError):
            dr.ReplayBuffer.open(path, mode="a", stream="b")


def test_it_makes_and_opens_no_checkpoints(path: str) -> None:
    with lives.create(path) as buffer:
        buffer.checkpoint("there")
    with write(path, "b", 1, 3, mode="a") as appender:
        with pytest.raises(StateError, match="mode='a' and knows its own stream alone"):
            appender.checkpoint("here")
        assert appender.checkpoints == ["there"]
    with pytest.raises(InputError, match="mode='a' goes on from the last commit"):
        dr.ReplayBuffer.open(path, mode="a", checkpoint="there")
    with pytest.raises(InputError, match="mode must be 'r' or 'r\\+' or 'a', got 'w'"):
        dr.ReplayBuffer.open(path, mode="w")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError):
        dr.ReplayBuffer.open(path, stream="c", checkpoint="there")


def test_it_keeps_what_checkpoints_pin(path: str) -> None:
    lives.create(path, rows=16).close()
    write(path, "b", 1, 10, mode="a").close()
    with dr.ReplayBuffer.open(path, **lives.OPTIONS) as trainer:
        trainer.checkpoint("pinned")
    with dr.ReplayBuffer.open(path, mode="a", stream="b", **lives.OPTIONS) as appender:
        lives.add(appender, 50, 1)
        appender.clear()
        appender.commit()
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="pinned") as then:
        assert lives.check_all(then) == 20


def test_a_rate_limiter_sees_the_records_of_all_streams(path: str) -> None:
    lives.create(path).close()
    write(path, "0", 0, 12).close()
    with write(path, "b", 1, 5, mode="a") as appender:
        limiter = dr.RateLimiter(appender, samples_per_insert=1, min_size=10, error_buffer=1)
        assert limiter.inserts == 34
        write(path, "c", 2, 3, mode="a").close()
        assert appender.refresh()
        assert not limiter.may_add()
        assert limiter.inserts == 40


def test_how_many_inserts_a_limiter_allows(path: str) -> None:
    """``most_inserts`` is the same bound that one writer is held to."""
    lives.create(path).close()
    with dr.ReplayBuffer.open(path, stream="learner", num_envs=1, **lives.OPTIONS) as learner:
        limiter = dr.RateLimiter(learner, samples_per_insert=2, min_size=5, error_buffer=4.5)
        row, most = 0, []
        for _ in range(3):
            while limiter.may_add():
                learner.add(**lives.step(1, row, 1))
                row += 1
            assert row == limiter.most_inserts
            most.append(row)
            limiter.wait_to_sample(4)
        np.testing.assert_array_equal(np.diff(most), 2)
        assert limiter.band_inserts == 4
        limiter.check_step(4)
        with pytest.raises(InputError, match="error_buffer must be at least 5 for a step of 5 environments"):
            limiter.check_step(5)


def test_of_a_missing_store(path: str) -> None:
    with pytest.raises(StoreNotFoundError):
        dr.ReplayBuffer.open(path, mode="a")
