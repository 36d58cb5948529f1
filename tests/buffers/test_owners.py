"""One sampler with priorities, one buffer."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import line
from helpers.line import LINE, TURN

import diskreplay as dr
from diskreplay.errors import InputError

SAMPLERS: list[Callable[[], Any]] = [dr.Proportional, dr.RankBased]


def create(path: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    buffer = line.create(path, **options)
    line.add(buffer, 20)
    return buffer


def create_agents(path: pathlib.Path, **options: Any) -> dr.MultiAgentReplayBuffer:
    return dr.MultiAgentReplayBuffer.create(path, LINE, TURN, 2, capacity=100, seed=0, **options)


@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize("second", [create, create_agents])
def test_a_second_buffer_is_refused_and_its_store_is_not_made(
    tmp_path: pathlib.Path, make: Callable[[], Any], second: Callable[..., Any]
) -> None:
    """Regression: both buffers changed the priorities of one another, without a word."""
    sampler = make()
    with create(tmp_path / "a", sampler=sampler) as first:
        first.update_priorities(first.sample(8).index, np.full(8, 5.0))
        with pytest.raises(InputError, match=r"open buffer .*a'; give each buffer"):
            second(tmp_path / "b", sampler=sampler)
        assert [one.name for one in tmp_path.iterdir()] == ["a"]
        first.sample(8)


@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize("second", [create, create_agents])
def test_the_sampler_of_an_open_buffer_is_refused(
    tmp_path: pathlib.Path, make: Callable[[], Any], second: Callable[..., Any]
) -> None:
    sampler = make()
    other = second(tmp_path / "b")
    other.close()
    with create(tmp_path / "a", sampler=sampler):
        for options in ({"stream": "new"}, {"mode": "r"}):
            with pytest.raises(InputError, match="open buffer"):
                type(other).open(tmp_path / "b", sampler=sampler, **options)
    assert not (tmp_path / "b" / "streams" / "new").exists()


@pytest.mark.parametrize("make", SAMPLERS)
def test_the_sampler_of_a_closed_buffer_belongs_to_its_store(tmp_path: pathlib.Path, make: Callable[[], Any]) -> None:
    sampler = make()
    with create(tmp_path / "a", sampler=sampler) as buffer:
        buffer.update_priorities([3], [500.0])
        buffer.sample(2)
    before = sampler.maximum
    with pytest.raises(InputError, match=r"another store.*clear\(\)"):
        create(tmp_path / "b", sampler=sampler)
    create(tmp_path / "c").close()
    with pytest.raises(InputError, match=r"another store.*clear\(\)"):
        dr.ReplayBuffer.open(tmp_path / "c", sampler=sampler)
    assert not (tmp_path / "b").exists()
    with dr.ReplayBuffer.open(tmp_path / "a", sampler=sampler, seed=0) as buffer:
        assert sampler.maximum == before > 1
        assert 3 in buffer.sample(8).index
    sampler.clear()
    with create(tmp_path / "b", sampler=sampler) as buffer:
        assert sampler.maximum == 1
        assert len(np.unique(buffer.sample(20).index)) > 3


def test_a_sampler_without_state_is_anybodys(tmp_path: pathlib.Path) -> None:
    sampler = dr.Uniform()
    with create(tmp_path / "a", sampler=sampler) as one, create(tmp_path / "b", sampler=sampler) as two:
        assert len(one.sample(4)) == len(two.sample(4)) == 4


@pytest.mark.parametrize("make", SAMPLERS)
def test_the_sampler_of_a_failed_opening_is_free(tmp_path: pathlib.Path, make: Callable[[], Any]) -> None:
    sampler = make()
    with create(tmp_path / "a"):
        with pytest.raises(dr.errors.LockedError):
            dr.ReplayBuffer.open(tmp_path / "a", sampler=sampler)
        with create(tmp_path / "b", sampler=sampler) as buffer:
            assert buffer.sampler is sampler
