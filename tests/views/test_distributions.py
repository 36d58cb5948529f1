"""What views draw: items with the same probability, relabelled goals with the exact one of their strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import STREAM_SHIFT, Leaf, Log, Step
from helpers.priority_model import chi_square
from helpers.recording import Recording, recorded_in, reopen
from helpers.view_model import GOAL_CONFIGS, HINDSIGHT, goals, items, name_of, place, reward_fn, sources

import diskreplay as dr


@pytest.mark.long
@pytest.mark.parametrize(
    "view",
    [dr.Sequence(4, burn_in=1), dr.Sequence(3, stride=3, pad=False), dr.Sequence(9, across=True), dr.PaddedEpisodes(5)],
    ids=name_of,
)
def test_items_are_drawn_alike(path: str, view: Any) -> None:
    config = Config("uniform", Leaf((2,)), num_envs=3, capacity=150)
    recording, second = Recording(config, seed=3), Recording(Config("b", Leaf((2,)), capacity=40), seed=4)
    second.log.number = 1
    with config.create(path, view=view) as buffer, reopen(config, path, stream="b", num_envs=1, capacity=40) as other:
        recording.add(buffer, 70, 0.3)
        second.add(other, 60, 0.3)
        other.commit()
        buffer.refresh()
        expected = items(view, [recording.log, second.log])
        drawn = np.concatenate([buffer.sample(32).index for _ in range(400)])
        assert chi_square(drawn, dict.fromkeys(expected, 1 / len(expected))) <= 1


GOALS = Config("goals", goals(Leaf((2,), np.float64)), num_envs=2, capacity=60)


class Told:
    """Rows of goal-conditioned environments in which each transition achieves a goal of its own."""

    def __init__(self, number: int, num_envs: int, capacity: int) -> None:
        self.log = GOALS.log(number, num_envs, capacity)
        self.length = [0] * num_envs

    def add(self, buffer: Any, count: int, ends: list[int]) -> None:
        """Episodes of ``ends[env]`` steps; the environments reset in the step after the end."""
        for _ in range(count):
            row = tuple(self._step(env, end) for env, end in enumerate(ends))
            self.log.rows.append(row)
            lead = (slice(None),) if len(row) > 1 else (0,)

            def joined(name: str, row: Any = row, lead: Any = lead) -> Any:
                return np.array([getattr(step, name) for step in row])[lead]

            def nested(name: str, row: Any = row, lead: Any = lead) -> dict[str, Any]:
                parts = (np.stack([getattr(step, name)[at] for step in row])[lead] for at in range(2))
                return dict(zip(self.log.names, parts, strict=True))

            buffer.add(
                nested("obs"), np.zeros(len(row), np.int64)[lead], joined("reward"), nested("next_obs"),
                joined("terminated"), joined("truncated"), joined("valid"),
            )  # fmt: skip

    def _step(self, env: int, end: int) -> Step:
        row, wanted = self.log.end, np.full(2, -1.0)
        resets = self.length[env] == end
        self.length[env] = 0 if resets else self.length[env] + 1
        achieved = np.array([row, 10 * self.log.number + env], np.float64)
        before = self.log.rows[-1][env].next_obs[0] if row else np.full(2, -2.0)
        ended = self.length[env] == end
        return Step(
            (before, wanted), (), 1000.0, (achieved, wanted), ended and row % 2 == 0, ended and row % 2 == 1,
            not resets, {},
        )  # fmt: skip


def told(path: str, view: Any) -> tuple[Any, list[Log]]:
    """A buffer of two streams, filled beyond their windows, with episodes that are cut by the window and still open."""
    buffer = GOALS.create(path, view=view)
    first = Told(0, 2, 60)
    first.add(buffer, 47, [7, 10])
    second = Told(1, 1, 20)
    with reopen(GOALS, path, stream="b", num_envs=1, capacity=20, view=view) as other:
        second.add(other, 33, [6])
    buffer.refresh()
    return buffer, [first.log, second.log]


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
@pytest.mark.parametrize("ratio", [0.8, 1.0])
def test_goals_are_drawn_with_their_exact_probabilities(path: str, strategy: Any, ratio: float) -> None:
    view = dr.Hindsight(reward_fn, strategy, ratio)
    buffer, logs = told(path, view)
    there = items(view, logs)
    chances: dict[int, float] = {}
    for each in there:
        if ratio < 1:
            chances[each << 8] = (1 - ratio) / len(there)
        reached = sources(view, logs, *place(logs, each))
        for log, row, env in reached:
            chances[each << 8 | code(row, log.number, env)] = ratio / len(there) / len(reached)
    drawn = []
    with buffer:
        for _ in range(examples(600, "draws", least=300)):
            batch = buffer.sample(len(buffer))
            goal = batch.obs["desired_goal"].astype(np.int64)
            assert ((goal == -1).all(axis=1) != batch.relabelled).all()
            assert (batch.reward[~batch.relabelled] == 1000).all()
            assert (batch.reward[batch.relabelled] <= 0).all()
            coded = np.where(batch.relabelled, code(goal[:, 0], goal[:, 1] // 10, goal[:, 1] % 10), 0)
            drawn.append(batch.index << 8 | coded)
    assert chi_square(np.concatenate(drawn), chances) <= 1


def code(row: Any, stream: Any, env: Any) -> Any:
    """A transition of these streams as a number above 0, below 256."""
    return 1 + row * 3 + stream * 2 + env


def test_a_goal_may_be_that_of_any_stream(path: str) -> None:
    """A transition's new goal comes from its own episode, but with "random" from everywhere."""
    for strategy, crosses in (("future", False), ("final", False), ("episode", False), ("random", True)):
        buffer, _ = told(f"{path}-{strategy}", dr.Hindsight(reward_fn, strategy, 1.0))  # type: ignore[arg-type]
        with buffer:
            batch = buffer.sample(70)
        assert (batch.obs["desired_goal"][:, 1] // 10 != batch.index >> STREAM_SHIFT).any() == crosses


def test_no_relabelling(path: str) -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("a transition is as it was recorded")

    buffer, _ = told(path, dr.Hindsight(never, ratio=0.0, terminated_fn=never))
    with buffer:
        assert not any(buffer.sample(20).relabelled.any() for _ in range(50))


@pytest.mark.parametrize("config", GOAL_CONFIGS, ids=repr)
def test_functions_are_called_once_a_batch(path: str, config: Config) -> None:
    calls: list[tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]]] = []

    def remember(achieved: np.ndarray, desired: np.ndarray, info: Mapping[str, np.ndarray]) -> list[list[float]]:
        calls.append((achieved.copy(), desired.copy(), {name: value.copy() for name, value in info.items()}))
        return [[float(each)] for each in range(len(achieved))]  # as a column, as some compute_reward do

    with recorded_in(config, path, 30, view=dr.Hindsight(remember, "episode", 0.5, remember)) as (buffer, _):
        batch = buffer.sample(20)
    chosen = batch.relabelled
    assert 0 < chosen.sum() < 20
    assert len(calls) == 2
    for achieved, desired, info in calls:
        np.testing.assert_array_equal(achieved, batch.next_obs["achieved_goal"][chosen])
        np.testing.assert_array_equal(desired, batch.next_obs["desired_goal"][chosen])
        assert info.keys() == batch.extra.keys() == config.columns.keys()
        for name, values in info.items():
            np.testing.assert_array_equal(values, batch.extra[name][chosen])
    assert batch.reward[chosen].tolist() == list(range(len(calls[0][0])))
    assert batch.terminated[chosen].tolist() == [False] + [True] * (len(calls[0][0]) - 1)


def test_a_wider_goal_takes_what_was_achieved(path: str) -> None:
    space = {"achieved_goal": Leaf((2,), np.float32), "desired_goal": Leaf((2,), np.float64)}
    dtypes = []

    def remember(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        dtypes.append((achieved.dtype, desired.dtype))
        return np.zeros(len(achieved))

    config = Config("wider", space)
    with recorded_in(config, path, 10, special=0.0, view=dr.Hindsight(remember, "final", 1.0)) as (buffer, recording):
        batch = buffer.sample(9)
    assert dtypes == [(np.dtype(np.float32), np.dtype(np.float64))]
    assert batch.obs["desired_goal"].dtype == np.float64
    assert (batch.obs["desired_goal"] == recording.log.rows[-1][0].next_obs[0]).all()


@pytest.mark.parametrize("view", HINDSIGHT, ids=name_of)
def test_relabelling_leaves_the_store_alone(path: str, view: Any) -> None:
    config = GOAL_CONFIGS[1]
    with recorded_in(config, path, 18, view=view) as (buffer, _):
        ids = np.arange(6)
        before = buffer.get(ids)
        for _ in range(20):
            buffer.sample(30)
        after = buffer.get(ids)
    np.testing.assert_array_equal(before.obs["desired_goal"], after.obs["desired_goal"])
    np.testing.assert_array_equal(before.reward, after.reward)
