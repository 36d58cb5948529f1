"""Exports whose rewards are those of another column: in every format, counted where values are missing."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import read as episodes_of
from gymnasium.spaces import Box
from helpers.commands import command, said

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.selection import Selection
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.relabel import relabel

BOX = Box(-1e6, 1e6, (2,), np.float32)
LENGTHS = (3, 5, 4)
ENDINGS = {"npz": ".npz", "npz-folder": "", "parquet": ".parquet"}
BOTH_WAYS = [one.name for one in formats.every() if one.read and one.write and not {"minari", "store"} & {one.name}]


def make(path: Any, **options: Any) -> None:
    """Three episodes, whose rewards are the numbers of their transitions."""
    options = {"columns": {"own": np.int64}, "later": {"shaped": "float32", "other": "float32"}, **options}
    number = 0
    with dr.ReplayBuffer.create(path, BOX, BOX, capacity=50, **options) as rb:
        for length in LENGTHS:
            for at in range(length):
                now, after = (np.array([number + step, length], np.float32) for step in (0, 1))
                rb.add(now, now, float(number), after, at == length - 1, False, own=10 * number)
                number += 1


def rewards(path: Any) -> list[float]:
    return [value for episode in episodes_of(path) for value in np.asarray(episode.reward, float).tolist()]


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_every_format_has_the_column_as_reward(name: str, path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    relabel(path, lambda episode: -1.0 - episode.reward, "shaped")
    out = tmp_path / f"out{ENDINGS.get(name, '')}"
    lost = export(path, out, name, reward_column="shaped", allow_loss=True).lost
    assert not [what for what in lost if "shaped" in what or "recorded_reward" in what]
    import_dataset(out, tmp_path / "back", name)
    assert rewards(tmp_path / "back") == [-1.0 - number for number in range(sum(LENGTHS))]


def test_recorded_rewards_go_out_where_columns_are_held(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    relabel(path, lambda episode: -episode.reward, "shaped")
    for column, factor in (("shaped", -1), ("own", 10)):
        out = tmp_path / column
        lost = export(path, out, "store", reward_column=column, allow_loss=column == "own").lost
        assert lost == ({"values of 'shaped' that were written later": 12} if column == "own" else {})
        with dr.open(out) as copy, dr.open(path, reward_column=column) as shown:
            ours, theirs = copy.get(copy.items()), shown.get(shown.items())
            assert ours.reward.tolist() == theirs.reward.tolist() == [factor * number for number in range(12)]
            assert ours.extra["recorded_reward"].tolist() == theirs.extra["recorded_reward"].tolist() == [*range(12)]
            assert [one.total_reward for one in copy.episodes] == [factor * one.total_reward for one in shown.episodes]
        with dr.open(out, reward_column="recorded_reward") as back:
            assert back.get(back.items()).reward.tolist() == [*range(12)]
    export(path, tmp_path / "few", "store", reward_column="own", allow_loss=True, selection=Selection(columns=("obs",)))
    with dr.open(tmp_path / "few") as copy:
        assert copy.get([5]).reward == 50
        assert not copy.get([5]).extra


def test_steps_without_a_value_are_counted_among_the_chosen(path: str, tmp_path: pathlib.Path) -> None:
    make(path)
    with dr.ReplayBuffer.open(path) as rb:
        rb.write("shaped", [*range(3), *range(5, 12)], np.ones(10))
    with pytest.raises(InputError, match="reward_column: 2 of 12 transitions have no finite value of 'shaped'"):
        export(path, tmp_path / "out", "npz", reward_column="shaped", allow_loss=True)
    with pytest.raises(InputError, match="2 of 5 transitions"):
        export(path, tmp_path / "out", "npz", selection=Selection(episodes=slice(1, 2)), reward_column="shaped")
    for name in ("no", "reward", "obs"):
        with pytest.raises(InputError, match=f"got '{name}'; there are 'own', 'shaped', 'other'"):
            export(path, tmp_path / "out", "npz", reward_column=name)
    assert [file.name for file in tmp_path.iterdir()] == ["a.replay"]
    chosen = Selection(where="return < 4 or return > 30")  # by the rewards that were recorded
    assert export(path, tmp_path / "out.npz", "npz", selection=chosen, reward_column="shaped").transitions == 7


def test_a_store_that_had_no_such_column_from_the_command_line(path: str, tmp_path: pathlib.Path) -> None:
    make(path, later=None)
    edit(path, tmp_path / "copy", later={"shaped": "float32"})
    refused = command("export", tmp_path / "copy", "x.npz", "--reward-column", "shaped")
    assert refused.exit_code == 2
    assert "12 of 12 transitions have no finite value of 'shaped'" in refused.output
    relabel(tmp_path / "copy", lambda episode: episode.reward + 1)
    said("export", tmp_path / "copy", tmp_path / "x.npz", "--reward-column", "shaped")
    with np.load(tmp_path / "x.npz") as arrays:
        assert arrays["reward"].tolist() == [*range(1, 13)]
        assert arrays["extra/recorded_reward"].tolist() == [*range(12)]


def test_stacked_observations_go_along(path: str, tmp_path: pathlib.Path) -> None:
    frames = Box(0, 255, (2, 3), np.float32)
    with dr.ReplayBuffer.create(path, frames, BOX, capacity=9, frame_stack=2, later={"shaped": "float32"}) as rb:
        for at in range(4):
            now, after = (
                np.stack([np.full(3, at + step - 1 if at + step else 0), np.full(3, at + step)]) for step in (0, 1)
            )
            rb.add(now.astype(np.float32), np.zeros(2, np.float32), 1.0, after.astype(np.float32), at == 3, False)
        rb.write("shaped", range(4), range(4))
    export(path, tmp_path / "copy", "store", reward_column="shaped")
    with dr.open(tmp_path / "copy") as copy:
        batch = copy.get(copy.items())
        assert (batch.reward.tolist(), batch.extra["recorded_reward"].tolist()) == ([0, 1, 2, 3], [1] * 4)
        assert batch.obs.shape == (4, 2, 3)
