"""Next observations that are not the next step's: which of them an export would lose."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core import log_rows
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.selection import EVERYTHING, Selection, open_selected
from diskreplay.ops.convert import export

WHAT = "next observations that differ from the next step's observation"


def lost(path: str, selection: Selection = EVERYTHING) -> int:
    losses = open_selected(path, selection).losses(Holds(next_obs=False, stacks=True))
    return {loss.what: loss.count for loss in losses}.get(WHAT, 0)


@pytest.mark.parametrize("size", [1, 2000], ids=["in RAM", "on disk"])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_only_those_that_differ_are_counted(path: str, size: int, num_envs: int) -> None:
    """A commit after every row gives every row a patch, which says nothing where it equals the next row."""
    lead = (num_envs,) if num_envs > 1 else ()
    with dr.ReplayBuffer.create(
        path, Box(-99, 99, (size,), np.float32), Discrete(2), capacity=99, num_envs=num_envs, continuity="flags"
    ) as buffer:
        for row in range(12):
            ends = np.full(lead, row == 7)
            following = np.full((*lead, size), row + 1.0, np.float32)
            following[..., -1] += row in (2, 7, 9, 11)  # 7 and 11 are the last steps of episodes
            buffer.add(
                np.full((*lead, size), row, np.float32), np.zeros(lead, int), np.zeros(lead), following, ends, ends
            )
            buffer.commit()
    assert lost(path) == 2 * num_envs
    assert lost(path, Selection(episodes=(0,))) == 1


def test_comparing_can_be_stopped_in_between(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_rows, "COMPARED_ROWS", 2)
    with dr.ReplayBuffer.create(path, Box(-99, 99, (1,)), Discrete(2), capacity=99, continuity="flags") as buffer:
        for row in range(8):
            buffer.add([row], 0, 0.0, [row + 1.5], False, False)
    times: list[int] = []

    def stop() -> None:
        times.append(0)
        if len(times) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_selected(path).losses(Holds(next_obs=False), stop)
    assert lost(path) == 7


def test_a_zero_of_another_sign_is_another_value(path: str) -> None:
    with dr.ReplayBuffer.create(path, Box(-1, 1, (1,)), Discrete(2), capacity=99, continuity="flags") as buffer:
        for _ in range(3):
            buffer.add([0.0], 0, 0.0, [-0.0], False, False)
    assert lost(path) == 2


def test_only_chosen_columns_count(path: str) -> None:
    space = Box(-99, 99, (1,), np.float32)
    with dr.ReplayBuffer.create(path, Dict(a=space, b=space), Discrete(2), capacity=99, continuity="flags") as buffer:
        for row in range(3):
            buffer.add({"a": [row], "b": [row]}, 0, 0.0, {"a": [row + 1], "b": [row + 2]}, False, False)
    assert lost(path) == 2
    assert lost(path, Selection(columns=("obs/a",))) == 0


@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.write and not each.holds.next_obs])
def test_an_export_says_how_many(name: str, path: str, tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(path, Box(-99, 99, (1,)), Discrete(2), capacity=99, continuity="flags") as buffer:
        for row in range(4):
            buffer.add([row], 0, 0.0, [row + 1.5], row == 3, False)
    with pytest.raises(InputError, match=rf"{WHAT} \(3\)"):
        export(path, tmp_path / "out", name)
