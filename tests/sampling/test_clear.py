"""``clear()`` of one stream: what a sampler knows of the rows of others stays."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import line
from helpers.odds import chances_of

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError


def add(buffer: dr.ReplayBuffer, rows: int) -> None:
    line.add(buffer, rows)
    buffer.commit()


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a.replay"


Opened = Callable[..., dr.ReplayBuffer]


@pytest.fixture
def opened(path: pathlib.Path) -> Iterator[Opened]:
    """A trainer's buffer with the rows 0 to 4 of its own stream, beside 6 rows of an actor's."""
    held = []

    def make(sampler: Any, envs: int = 1) -> dr.ReplayBuffer:
        buffer = line.create(path, 20 * envs, envs, stream="trainer", sampler=sampler)
        held.append(buffer)
        with dr.ReplayBuffer.open(path, stream="actor", mode="a") as actor:
            add(actor, 6)
        add(buffer, 5)
        buffer.refresh()
        return buffer

    yield make
    for buffer in held:
        buffer.close()


def ids(buffer: dr.ReplayBuffer, stream: int) -> np.ndarray:
    items = buffer.items()
    return items[items >> 48 == stream]


def among(buffer: dr.ReplayBuffer, of: np.ndarray) -> np.ndarray:
    """The probabilities of the ids among each other."""
    with buffer.engine.lock:
        found = chances_of(buffer, of)
    return found / found.sum()


@pytest.mark.parametrize("reopened", [None, "checkpoint", "close"])
def test_rows_that_were_drawn_are_not_drawn_again(path: pathlib.Path, opened: Opened, reopened: str | None) -> None:
    buffer = opened(dr.Counting(dr.Uniform(), max_times_sampled=1))
    assert len(np.unique(buffer.sample(11).index)) == 11
    buffer.clear()
    add(buffer, 2)
    if reopened == "checkpoint":
        buffer.checkpoint("one")
    if reopened is not None:
        buffer.close()
        buffer = dr.ReplayBuffer.open(path, stream="trainer", checkpoint="one" if reopened == "checkpoint" else None)
    with buffer:
        assert (buffer.times_sampled(ids(buffer, 1)) == 1).all()
        assert (buffer.times_sampled(ids(buffer, 0)) == 0).all()
        with pytest.raises(NotEnoughDataError, match="3 draws"):
            buffer.sample(3)
        assert sorted(buffer.sample(2).index) == sorted(ids(buffer, 0))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "proportional": dr.Proportional,
    "ranks": dr.RankBased,
    "counted": lambda: dr.Counting(dr.Proportional()),
    "counted ranks": lambda: dr.Counting(dr.RankBased()),
    "mixed": lambda: dr.SamplerMixture([dr.Uniform(), dr.Proportional()], [0.5, 0.5]),
}


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("reopened", [None, "checkpoint", "close"])
def test_priorities_of_others_stay(path: pathlib.Path, opened: Opened, name: str, reopened: str | None) -> None:
    buffer = opened(SAMPLERS[name]())
    theirs = ids(buffer, 1)
    buffer.update_priorities(theirs, [4.0, 1.0, 36.0, 9.0, 25.0, 16.0])
    buffer.update_priorities(ids(buffer, 0), np.full(5, 3.0))
    order = np.argsort(among(buffer, theirs)).tolist()
    assert order == [1, 0, 3, 5, 4, 2]
    buffer.clear()
    assert np.argsort(among(buffer, theirs)).tolist() == order
    assert set(buffer.sample(6).index) <= set(theirs)
    add(buffer, 3)
    if reopened == "checkpoint":
        buffer.checkpoint("one")
    if reopened is not None:
        buffer.close()
        cut = "one" if reopened == "checkpoint" else None
        buffer = dr.ReplayBuffer.open(path, stream="trainer", checkpoint=cut)
    with buffer:
        assert np.argsort(among(buffer, theirs)).tolist() == order
        everything = among(buffer, np.append(theirs, ids(buffer, 0)))
        assert "ranks" in name or (everything[6:] >= everything[:6].max() * 0.99).all(), "not the largest so far"


def test_each_environment_of_the_stream_begins_anew(opened: Opened) -> None:
    sampler = dr.Proportional(by_env=True)
    buffer = opened(sampler, envs=2)
    theirs = ids(buffer, 1)
    buffer.update_priorities(theirs, np.arange(1.0, 13.0))
    buffer.update_priorities(ids(buffer, 0), np.full(10, 50.0))
    before = among(buffer, theirs)
    buffer.clear()
    add(buffer, 2)
    assert np.allclose(among(buffer, theirs), before)
    assert np.allclose(sampler.maxima[:2], 1.0)
    assert (sampler.maxima[2:] > 10).all()


def test_a_stream_alone_is_forgotten_as_a_whole(path: pathlib.Path) -> None:
    sampler = dr.Proportional()
    with line.create(path, 20, sampler=sampler) as buffer:
        add(buffer, 5)
        buffer.update_priorities(buffer.items(), np.full(5, 9.0))
        buffer.clear()
        assert sampler.is_new
        assert sampler.maximum == 1.0


def test_of_a_mixture_the_other_parts_stay(path: pathlib.Path, opened: Opened, tmp_path: pathlib.Path) -> None:
    buffer = opened(dr.Counting(dr.Uniform(), max_times_sampled=1))
    with line.create(tmp_path / "b", 9, sampler=dr.Counting(dr.Uniform())) as other:
        add(other, 4)
        mixture = dr.Mixture([buffer, other])
        mixture.sample(8)
        drawn = other.times_sampled(other.items()).sum()
        buffer.sample(7)
        buffer.clear()
        assert (buffer.times_sampled(ids(buffer, 1)) == 1).all()
        assert other.times_sampled(other.items()).sum() == drawn
        with pytest.raises(NotEnoughDataError, match="part 0"):
            mixture.sample(8)
