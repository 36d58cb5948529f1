"""Rows of more numbers than a new ring begins with, whose window has moved on: readers once gave other rows' values.

Every ring of a stream must stand at the same places, whatever the width of its rows and whoever opened it: all columns
of a batch are looked up at places that are worked out once.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr

ENVS, WIDTH = 64, 65
"""A row has 4,160 numbers; a ring of rows of more than 4,096 once began shorter than the others."""
OPTIONS: dict[str, Any] = {"commit_rows": 1 << 30, "commit_seconds": 1e9}


def create(path: pathlib.Path, capacity: int) -> dr.ReplayBuffer:
    space = spaces.Box(-np.inf, np.inf, (WIDTH,), np.float32)
    return dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=capacity, num_envs=ENVS, **OPTIONS)


def add(rb: dr.ReplayBuffer, start: int, stop: int) -> None:
    """Row t: obs t, reward t, next_obs t + 1."""
    rows = np.arange(start, stop, dtype=np.float32)
    obs = np.broadcast_to(rows[:, None, None], (len(rows), rb.num_envs, WIDTH))
    flags = np.zeros(obs.shape[:2], bool)
    if rb.num_envs == 1:
        obs, flags = obs[:, 0], flags[:, 0]
    reward = obs[..., 0]
    rb.extend(obs, flags.astype(int), reward, obs + 1, flags, flags)


def check(rb: dr.ReplayBuffer) -> None:
    """All rows of all windows."""
    assert len(rb)
    for number, facts in enumerate(rb.stats()["streams"].values()):
        first, stop = facts["begin"] * facts["num_envs"], facts["end"] * facts["num_envs"]
        for start in range(first, stop, 16384):
            ids = np.arange(start, min(stop, start + 16384))
            batch = rb.get(number << 48 | ids)
            row = (ids // facts["num_envs"]).astype(np.float32)
            np.testing.assert_array_equal(batch.reward, row)
            np.testing.assert_array_equal(batch.obs, np.broadcast_to(row[:, None], batch.obs.shape))
            np.testing.assert_array_equal(batch.next_obs, np.broadcast_to(row[:, None] + 1, batch.obs.shape))


@pytest.mark.long
def test_a_reader(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "s", 96_000) as rb:
        add(rb, 0, 3075)
    with dr.ReplayBuffer.open(tmp_path / "s", mode="r", seed=0) as reader:
        batch = reader.sample(1000)
        np.testing.assert_array_equal(batch.obs[:, 0], batch.reward)
        np.testing.assert_array_equal(batch.next_obs[:, 0], batch.reward + 1)
        check(reader)


@pytest.mark.long
def test_a_reader_that_goes_on(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "s", 96_000) as rb:
        add(rb, 0, 700)
        rb.commit()
        with dr.ReplayBuffer.open(tmp_path / "s", mode="r") as reader:
            for start in range(700, 3500, 700):
                check(reader)
                rb.clear()
                add(rb, start, start + 700)
                rb.commit()
                assert reader.refresh()
            check(reader)
            check(rb)


@pytest.mark.long
def test_a_checkpoint_that_is_opened_to_read(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "s", 96_000) as rb:
        add(rb, 0, 2000)
        rb.checkpoint("here")
        add(rb, 2000, 2100)
        rb.commit()
        with dr.ReplayBuffer.open(tmp_path / "s", mode="r", checkpoint="here") as reader:
            assert reader.stats()["streams"]["0"]["end"] == 2000
            check(reader)


@pytest.mark.long
def test_the_other_streams_of_a_writer(tmp_path: pathlib.Path) -> None:
    with (
        create(tmp_path / "s", 96_000) as rb,
        dr.ReplayBuffer.open(tmp_path / "s", stream="b", num_envs=1, capacity=100, **OPTIONS) as other,
    ):
        add(rb, 0, 2000)
        rb.commit()
        add(other, 0, 130)
        other.refresh()
        check(other)


@pytest.mark.long
def test_a_writer_that_was_cleared_and_opened_again(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "s", 96_000) as rb:
        add(rb, 0, 1500)
        rb.clear()
        add(rb, 1500, 2200)
    with dr.ReplayBuffer.open(tmp_path / "s", **OPTIONS) as rb:
        check(rb)
        add(rb, 2200, 3900)
        check(rb)
