"""Positions of a ring that follow from the rows, beside a ring that counts them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from diskreplay.compat import xuance
from diskreplay.compat.ring import Field, Ring
from diskreplay.compat.rows import RowWindow
from diskreplay.compat.xuance_marl import MARL_OffPolicyBuffer

SIZE = 5
BOX = spaces.Box(-1, 1000, (2,))


def test_positions_are_those_of_a_ring() -> None:
    slots, begin, end = [-1] * SIZE, 0, 0

    def held() -> RowWindow:
        return RowWindow(begin, end)

    field = Field((), np.int64, part=("number",))
    ring = Ring(
        None, {"x": field}, (2, SIZE), axis=1, size=SIZE, held=held, read=lambda field, rows, envs: 10 * rows + envs
    )
    since = 0
    for step in range(40):
        if step in (3, 17):  # it is emptied: once before it is full, and once after
            slots, begin, since = [-1] * SIZE, end, end
        assert ring.catch_up() == (RowWindow(begin, end), (end - since) % SIZE, end - begin == SIZE)
        slots[(end - since) % SIZE] = end
        end += 1
        begin = max(begin, end - SIZE)
        entries = ring.entries(np.arange(SIZE))
        there = np.flatnonzero(entries >= begin)
        assert there.tolist() == [at for at in range(SIZE) if slots[at] >= 0]
        assert entries[there].tolist() == [entry for entry in slots if entry >= 0]
        np.testing.assert_array_equal(ring.positions(entries[there]), there)
        assert (ring.count, ring.full) == (end - begin, end - begin == SIZE)
        opened = Ring(size=SIZE, held=held)
        if since == 0 or not ring.full:
            assert opened.pos == ring.pos
        opened.turn(ring.pos)
        assert opened.pos == ring.pos
    np.testing.assert_array_equal(ring["x"], 10 * np.array([slots, slots]) + [[0], [1]])
    assert not np.any(Ring(None, {"x": field}, (SIZE,))["x"])


def uniform(path: pathlib.Path) -> Any:
    return xuance.DummyOffPolicyBuffer(BOX, spaces.Discrete(2), None, 1, SIZE, 2, path=path)


def marl(path: pathlib.Path) -> Any:
    return MARL_OffPolicyBuffer(1, None, (2,), (), (1,), (1,), 1, SIZE, 2, path=path)


def store(buffer: Any, stamp: int) -> None:
    if isinstance(buffer, MARL_OffPolicyBuffer):
        obs, one = np.full((1, 1, 2), stamp), np.full((1, 1), stamp)
        buffer.store({"obs": obs, "actions": one, "rewards": one, "terminals": one * 0, "obs_next": obs})
    else:
        buffer.store(np.full((1, 2), stamp), [0], [stamp], [False], np.full((1, 2), stamp))


@pytest.mark.parametrize("make", [uniform, marl])
def test_an_emptied_ring_comes_back_with_its_positions(
    tmp_path: pathlib.Path, make: Callable[[pathlib.Path], Any]
) -> None:
    buffer = make(tmp_path / "s")
    for stamp in range(18):
        if stamp == 8:
            buffer.clear()
        store(buffer, stamp)
    assert (buffer.ptr, buffer.size) == (0, SIZE)
    buffer.close()
    buffer = make(tmp_path / "s")
    assert (buffer.ptr, buffer.size) == (0, SIZE)
    rewards = buffer.data["rewards"] if make is marl else buffer.rewards
    assert np.ravel(rewards).tolist() == [13, 14, 15, 16, 17]
    buffer.close()
