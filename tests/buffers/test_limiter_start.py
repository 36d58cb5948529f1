"""Where a limiter begins: over a store that is filled already, with another ratio, after kills and going back."""

from __future__ import annotations

import pathlib
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.configs import Config
from helpers.model import Leaf
from helpers.recording import Recording, recorded_in, reopen

import diskreplay as dr
from diskreplay.buffers import limiter as limiters
from diskreplay.errors import CorruptionError, MisuseWarning, RateLimitError, RateLimitWarning
from diskreplay.storage.commit import Commit, LimiterStart

CONFIG = Config("limited", Leaf((2,), np.float32), capacity=400)
SLOW: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}


def batches(limiter: dr.RateLimiter, count: int = 4) -> int:
    """Samples until the limiter says no; returns the number of batches."""
    made = 0
    while limiter.may_sample(count):
        limiter.wait_to_sample(count, timeout=0)
        made += 1
    return made


def steps(limiter: dr.RateLimiter, buffer: dr.ReplayBuffer, recording: Recording) -> int:
    """Adds until the limiter says no; returns the number of steps."""
    made = 0
    while limiter.may_add():
        recording.add(buffer, 1)
        made += 1
    return made


@pytest.mark.parametrize("envs", [1, 3])
def test_rows_that_were_there_before_the_first_limiter_allow_and_ask_nothing(path: str, envs: int) -> None:
    """Regression: 300 rows of demonstrations allowed 300 samples at once, beyond the band."""
    config = Config("limited", Leaf((2,), np.float32), num_envs=envs, capacity=400 * envs)
    with recorded_in(config, path, 300) as (buffer, recording):
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert (limiter.inserts, limiter.most_inserts) == (300 * envs, 300 * envs + 12)
        assert batches(limiter) == 6  # down to the lower bound, 24 samples
        assert steps(limiter, buffer, recording) == 24 // envs  # up to the upper one: 48 samples
        assert batches(limiter) == 12


def test_the_rows_before_the_least_size_begin_nothing(path: str) -> None:
    """Fewer rows than ``min_size``: the surplus is in the middle at ``min_size``, as in an empty store."""
    with recorded_in(CONFIG, path, 30) as (buffer, recording):
        first = dr.RateLimiter(buffer, 1, 10, 8)
        assert batches(first) == 2
        limiter = dr.RateLimiter(buffer, 1, 100, 8)
        assert batches(limiter) == 0
        recording.add(buffer, 70)
        assert batches(limiter) == 2
        assert limiter.may_add()
        assert limiter.most_inserts == 100 + 8 + 8


def test_the_same_ratio_goes_on_after_a_restart(path: str) -> None:
    with recorded_in(CONFIG, path, 50) as (buffer, recording):
        assert batches(dr.RateLimiter(buffer, 2, 10, 24)) == 6
    for _ in range(3):
        with reopen(CONFIG, path) as buffer:
            recording.lose(len(recording.log.rows))
            limiter = dr.RateLimiter(buffer, 2, 10, 24)
            assert batches(limiter) == 0
            recording.add(buffer, 2)
            assert batches(limiter) == 1
    with reopen(CONFIG, path) as buffer:
        assert batches(dr.RateLimiter(buffer, 2, 10, 40)) == 4  # a wider band is no other ratio: 16 samples more


@pytest.mark.parametrize(("other", "least"), [(1, 10), (16, 10), (2, 11)])
def test_another_ratio_or_least_size_begins_anew_and_so_does_the_first_again(
    path: str, other: float, least: int
) -> None:
    """Regression: a smaller ratio blocked the learner for as many rows as the larger one had drawn samples."""
    with recorded_in(CONFIG, path, 50) as (buffer, recording):
        assert batches(dr.RateLimiter(buffer, 2, 10, 24)) == 6
    with reopen(CONFIG, path) as buffer:
        recording.lose(50)
        limiter = dr.RateLimiter(buffer, other, least, 24)
        assert (batches(limiter), steps(limiter, buffer, recording)) == (6, 48 // other)
    with reopen(CONFIG, path) as buffer:
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert limiter.may_add()
        assert batches(limiter) == 6


def test_a_store_of_an_earlier_version_begins_in_the_middle(path: str) -> None:
    """Its records have the count of samples, and no start."""
    with recorded_in(CONFIG, path, 50) as (buffer, _):
        buffer.engine.writable().sampled = 7_000
    assert "limiter" not in pathlib.Path(path, "streams/0/zarr.json").read_text()
    with reopen(CONFIG, path) as buffer:
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert (limiter.samples, batches(limiter)) == (7_000, 6)


def test_a_start_is_durable_with_the_samples(path: str) -> None:
    """Killed before a commit, neither is there; after it, both are."""
    with recorded_in(CONFIG, path, 50, **SLOW) as (buffer, _):
        buffer.commit()
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert batches(limiter) == 6
        shutil.copytree(path, path + "-before")
        buffer.commit()
        shutil.copytree(path, path + "-after")
    for copy, samples, more in (("-before", 0, 6), ("-after", 24, 0)):
        with reopen(CONFIG, path + copy) as buffer:
            limiter = dr.RateLimiter(buffer, 2, 10, 24)
            assert (limiter.samples, batches(limiter)) == (samples, more)


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_both_processes_go_by_one_start(path: str, mode: str) -> None:
    """The actor fills its stream, in either mode; the learner has one of its own, in which there is no row."""
    CONFIG.create(path).close()
    with (
        dr.ReplayBuffer.open(path, stream="actor", mode=mode, **SLOW) as actor,
        reopen(CONFIG, path, stream="learner", capacity=1) as learner,
    ):
        recording = Recording(CONFIG)
        recording.add(actor, 100)
        actor.commit()
        learner.refresh()
        sampling = dr.RateLimiter(learner, 2, 10, 24)
        recording.add(actor, 60)
        adding = dr.RateLimiter(actor, 2, 10, 24)  # at 160 rows, of another start than the learner's, which is not seen
        assert sampling.most_inserts == 112
        adding._refresh_counts()
        with pytest.raises(RateLimitError):
            sampling.wait_to_sample(40, timeout=0)
        actor.commit()
        sampling.wait_to_sample(24, timeout=0)  # the actor's start is the newer one
        assert not sampling.may_sample(1)
        learner.commit()
        adding._refresh_counts()
        sampling._refresh_counts()
        assert (sampling._start, sampling.most_inserts) == (adding._start, adding.most_inserts)
        assert (adding.inserts, adding.samples) == (sampling.inserts, sampling.samples) == (160, 24)
    with reopen(CONFIG, path, stream="learner") as learner, dr.ReplayBuffer.open(path, stream="actor") as actor:
        assert dr.RateLimiter(learner, 2, 10, 24)._start == dr.RateLimiter(actor, 2, 10, 24)._start == adding._start


def test_a_learner_of_another_ratio_is_followed_by_an_actor_of_the_same(path: str) -> None:
    with recorded_in(CONFIG, path, 100, **SLOW) as (actor, recording):
        for ratio in (8, 1, 8):
            actor.commit()
            with reopen(CONFIG, path, stream="learner", capacity=1) as learner:
                adding, sampling = dr.RateLimiter(actor, ratio, 10, 24), dr.RateLimiter(learner, ratio, 10, 24)
                batches(sampling)
                learner.commit()
                adding._refresh_counts()
                assert steps(adding, actor, recording) in (48 // ratio, 48 // ratio - 1)
                assert not sampling.may_sample(4)
                actor.commit()
                assert batches(sampling) >= 10


def test_clear_takes_neither_counts_nor_the_start(path: str) -> None:
    with recorded_in(CONFIG, path, 50) as (buffer, recording):
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert batches(limiter) == 6
        buffer.clear()
        assert batches(limiter) == 0
        recording.add(buffer, 2)
        assert batches(limiter) == 1
    with reopen(CONFIG, path) as buffer:
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert (limiter.inserts, limiter.samples, batches(limiter)) == (52, 28, 0)


def test_going_back_to_a_checkpoint_takes_the_start_back(path: str) -> None:
    with recorded_in(CONFIG, path, 50) as (buffer, recording):
        assert batches(dr.RateLimiter(buffer, 2, 10, 24)) == 6
        buffer.checkpoint("then")
        limiter = dr.RateLimiter(buffer, 8, 10, 24)
        assert (batches(limiter), steps(limiter, buffer, recording)) == (6, 6)
    with reopen(CONFIG, path, checkpoint="then") as buffer:
        recording.lose(50)
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        assert (limiter.inserts, limiter.samples, batches(limiter)) == (50, 24, 0)
        recording.add(buffer, 2)
        assert batches(limiter) == 1


def test_a_start_ahead_of_rows_that_were_given_up_holds_nobody_back(path: str) -> None:
    """The actor goes back to a checkpoint; the learner's record, which did not, began later than that."""
    with recorded_in(CONFIG, path, 50) as (actor, recording):
        actor.checkpoint("then")
        recording.add(actor, 200)
        actor.commit()
        with reopen(CONFIG, path, stream="learner", capacity=1) as learner:
            assert batches(dr.RateLimiter(learner, 2, 10, 24)) == 6
    with reopen(CONFIG, path, checkpoint="then") as actor:
        recording.lose(50)
        actor.commit()
        with reopen(CONFIG, path, stream="learner") as learner:
            limiter = dr.RateLimiter(learner, 2, 10, 24)
            assert (limiter.inserts, limiter.samples, batches(limiter)) == (50, 24, 6)
            recording.add(actor, 2)
            actor.commit()
            assert batches(limiter) == 1


def test_the_newest_start_is_the_one_of_the_highest_number(path: str) -> None:
    starts = [LimiterStart(2, 50, 0, 10, 2.0), LimiterStart(1, 90, 40, 10, 8.0)]
    assert max(starts).number == 2
    with recorded_in(CONFIG, path, 100) as (actor, _), reopen(CONFIG, path, stream="learner", capacity=1) as learner:
        actor.engine.writable().limiter, learner.engine.writable().limiter = starts
        actor.commit()
        learner.commit()
        assert learner.refresh()
        assert dr.RateLimiter(learner, 2, 10, 24)._start == starts[0]
        assert dr.RateLimiter(learner, 8, 10, 24)._start == LimiterStart(3, 100, 0, 10, 8.0)


@pytest.mark.parametrize(
    "value", [None, 3, {}, "12345", [1, 2, 3, 4], [1, 2, 3, 4, 5.0, 6], [1, 2, 3, 4, "5"], [1, -2, 3, 4, 5.0],
              [1, 2, 3.5, 4, 5.0], [1, 2, 3, 4, -1.0], [1 << 63, 2, 3, 4, 5.0]],
)  # fmt: skip
def test_a_forged_start_is_damage(value: Any) -> None:
    stored = Commit(0, 1, 10, limiter=LimiterStart(1, 2, 3, 4, 0.1)).to_json()
    assert Commit.from_json(stored, "zarr.json").limiter == (1, 2, 3, 4, 0.1)
    with pytest.raises(CorruptionError, match="commit record"):
        Commit.from_json({**stored, "limiter": value}, "zarr.json")


# What is told


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits is told at once."""
    monkeypatch.setattr(limiters, "TOLD_SECONDS", 0.0)


def test_who_waits_is_told_once_for_what(path: str, soon: None) -> None:
    with recorded_in(CONFIG, path) as (buffer, recording):
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        recording.add(buffer, 7)
        with pytest.raises(RateLimitError), pytest.warns(RateLimitWarning) as told:
            limiter.wait_to_sample(4, timeout=0.05)
        assert [each.filename for each in told] == [__file__]
        assert str(told[0].message).startswith("waiting for the first inserts: 7 inserts (at least 10), 0 samples")
        assert "the store has no other stream, so both sides are here" in str(told[0].message)
        recording.add(buffer, 3)
        assert batches(limiter) == 6
        with pytest.raises(RateLimitError), pytest.warns(RateLimitWarning, match="waiting for inserts: 10 ") as told:
            limiter.wait_to_sample(4, timeout=0.05)
        assert (len(told), steps(limiter, buffer, recording)) == (1, 24)
        with pytest.raises(RateLimitError), pytest.warns(RateLimitWarning, match="waiting for samples: 34 ") as told:
            limiter.wait_to_add(timeout=0.05)
        assert len(told) == 1
        for wait in (limiter.wait_to_add, lambda timeout: limiter.wait_to_sample(60, timeout)):
            with pytest.raises((RateLimitError, dr.errors.InputError)):
                wait(timeout=0.05)  # every warning is an error here


def test_who_waits_for_another_process_is_told_of_it(path: str, soon: None) -> None:
    with recorded_in(CONFIG, path, 50) as (actor, _), reopen(CONFIG, path, stream="learner", capacity=1) as learner:
        actor.commit()
        learner.refresh()
        limiter = dr.RateLimiter(learner, 2, 10, 24)
        batches(limiter)
        with pytest.raises(RateLimitError), pytest.warns(RateLimitWarning, match="'0' is written by this very process"):
            limiter.wait_to_sample(4, timeout=0)
        actor.close()
        with pytest.raises(RateLimitError, match="the stream '0' is not being written"):
            limiter.wait_to_sample(4, timeout=0)


def test_a_short_wait_is_not_told(path: str) -> None:
    with CONFIG.create(path) as buffer, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RateLimitError):
            dr.RateLimiter(buffer, 2, 10, 24).wait_to_sample(4, timeout=0.02)


def test_rows_that_are_added_without_asking_are_told_once(path: str) -> None:
    """Only in one process: with several, one is right not to see what the others add at the moment."""
    with recorded_in(CONFIG, path, 50) as (buffer, recording):
        limiter = dr.RateLimiter(buffer, 2, 10, 24)
        steps(limiter, buffer, recording)
        limiter.wait_to_sample(4)
        recording.add(buffer, 4)
        with pytest.warns(MisuseWarning, match=r"without asking: call wait_to_add\(\).*: 66 inserts") as told:
            limiter.wait_to_sample(1)
        assert [each.filename for each in told] == [__file__]
        limiter.wait_to_sample(1)
        with reopen(CONFIG, path, stream="learner", capacity=1) as learner:
            buffer.commit()
            learner.refresh()
            dr.RateLimiter(learner, 2, 10, 24).wait_to_sample(4)
