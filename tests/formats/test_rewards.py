"""Rewards that are not finite: named by episode and step, and left out with their episodes where that is allowed."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import TERMINATED, TRUNCATED, store
from formats.test_minari import episodes, made
from gymnasium import spaces
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay import formats
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.rewards import without_unfinite
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.ops.convert import export

LAYOUT = Layout(spaces.Box(-np.inf, np.inf, (), np.float32), spaces.Box(-np.inf, np.inf, (), np.float32))


def source(rewards: list[list[float]], size: int = 3, open_end: bool = False, **changes: Any) -> Source:
    """Episodes with these rewards, whose observations are numbers of steps, in blocks of ``size``."""
    reward = np.concatenate([np.empty(0, np.float32), *(np.array(one, np.float32) for one in rewards)])
    last = np.concatenate([np.empty(0, bool), *(np.arange(len(one)) == len(one) - 1 for one in rewards)])
    if open_end:
        last[-1:] = False
    at, none = np.arange(len(reward), dtype=np.float32), np.zeros(len(reward), bool)
    steps = Transitions({"obs": at}, {"obs": at + 1}, {"action": at}, {}, reward, last, none, last)

    def blocks() -> Any:
        for start in range(0, len(reward), size):
            yield steps.span(start, min(start + size, len(reward)))

    return Source(LAYOUT, len(reward), blocks, **{"episodes": len(rewards), **changes})


REWARD = st.sampled_from([0.0, 1.0, 2.0, 1e30, -3.0, float("nan"), float("inf"), float("-inf")])


@settings(max_examples=examples(100))
@given(st.lists(st.lists(REWARD, min_size=1, max_size=6), max_size=8), st.integers(1, 7), st.booleans())
def test_against_lists(rewards: list[list[float]], size: int, open_end: bool) -> None:
    facts = tuple({"number": number} for number in range(len(rewards)))
    given = source(rewards, size, open_end, facts=facts, notes=("before",))
    found = without_unfinite(given)
    kept = [number for number, one in enumerate(rewards) if np.isfinite(one).all()]
    starts = np.cumsum([0, *map(len, rewards)])
    steps = [float(step) for number in kept for step in range(starts[number], starts[number + 1])]
    for _ in range(2):  # as often as it is asked for
        blocks = list(found.blocks())
        assert [value for one in blocks for value in one.obs["obs"].tolist()] == steps
        ends = int(sum(one.last.sum() for one in blocks))
        assert ends == len(kept) - bool(kept and open_end and kept[-1] == len(rewards) - 1)
    assert (found.steps, found.episodes) == (len(steps), len(kept))
    assert [one["number"] for one in found.facts] == kept
    if len(kept) == len(rewards):
        assert found is given
        return
    episode = next(number for number in range(len(rewards)) if number not in kept)
    step = int(np.flatnonzero(~np.isfinite(rewards[episode]))[0])
    count = len(rewards) - len(kept)
    assert found.notes == (
        "before",
        f"left out: {count} episode{'s' if count > 1 else ''} with a reward that is not finite (the first: step {step} "
        f"of episode {episode})",
    )


def test_facts_of_another_number_of_episodes_are_nobodys_and_an_unknown_number_stays_so() -> None:
    given = source([[1.0], [float("nan")], [2.0]], facts=({"a": 1}, {"a": 2}))
    assert without_unfinite(given).facts == ()
    assert without_unfinite(source([[float("nan")]], episodes=None)).episodes is None


LENGTHS = [(4, TERMINATED), (6, TRUNCATED), (3, TERMINATED)]


def dataset(format: str, folder: pathlib.Path, odd: dict[int, float]) -> pathlib.Path:
    """A dataset of three episodes, where the reward of some rows is another."""
    if format == "minari":
        arrays = episodes([4, 6, 3])
        rewards = np.concatenate([one["rewards"] for one in arrays])
        rewards[[*odd]] = [*odd.values()]
        for one, part in zip(arrays, np.split(rewards, [4, 10]), strict=True):
            one["rewards"] = part
        made(folder / "out", arrays)
        return folder / "out"
    store(lengths=LENGTHS)(str(folder / "a.replay"))
    found = formats.get(format)
    export(folder / "a.replay", folder / "plain", "store")
    with formats.get("store").read(folder / "plain") as plain:

        def blocks() -> Any:
            at = 0
            for steps in plain.blocks():
                reward = steps.reward.copy()
                for row, value in odd.items():
                    if at <= row < at + len(steps):
                        reward[row - at] = value
                at += len(steps)
                yield dataclasses.replace(steps, reward=reward)

        found.write(dataclasses.replace(plain, blocks=blocks), folder / "out", found.compressions[0])
    return folder / "out"


@pytest.mark.parametrize("format", ["minari", "minari-arrow", "rlds", "npz", "d4rl", "parquet"])
@pytest.mark.parametrize(
    ("odd", "said", "left"),
    [
        ({7: np.nan}, "step 3 of episode 1 is nan", [4, 3]), ({0: np.inf}, "step 0 of episode 0 is inf", [6, 3]),
        ({12: -np.inf, 3: np.nan}, "step 3 of episode 0 is nan", [6]),
        ({9: np.nan, 8: np.nan, 12: np.nan}, "step 4 of episode 1 is nan", [4]),
    ],
)  # fmt: skip
def test_in_datasets(format: str, odd: dict[int, float], said: str, left: list[int], tmp_path: pathlib.Path) -> None:
    path = dataset(format, tmp_path, odd)
    read = formats.get(format).read
    said_of_arrays = f"in row {min(odd)}" if format in ("npz", "d4rl", "parquet") else said
    with (
        pytest.raises(InputError, match=rf"{said_of_arrays}; --allow-loss leaves such episodes out"),
        read(path) as refused,
    ):
        list(refused.blocks())
    with read(path, Choice(allow_loss=True)) as found:
        last = np.concatenate([one.last for one in found.blocks()])
        assert np.diff(np.flatnonzero(last), prepend=-1).tolist() == left
        assert found.steps == sum(left)
        assert found.episodes in (None, len(left))
        (note,) = [note for note in found.notes if note.startswith("left out")]
        assert note.startswith(f"left out: {3 - len(left)} episode")
        assert said.rpartition(" is ")[0] in note
