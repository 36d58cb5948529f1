"""What views say where nothing can be sampled, and of what a user's function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from helpers.line import TURN, create, play

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError

SAMPLERS = [dr.Uniform, dr.Proportional, dr.RankBased, lambda: dr.Recent(half_life=3)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_a_whole_episode_it_is_said_what_there_is(path: str, sampler: Callable[[], Any]) -> None:
    with create(path, 10, view=dr.PaddedEpisodes(20), sampler=sampler()) as buffer:
        with pytest.raises(NotEnoughDataError, match="the buffer holds 0 transitions"):
            buffer.sample(1)
        play(buffer, 4, ends=False)
        with pytest.raises(NotEnoughDataError, match=r"no episode .* whole: of 1, 0 have lost .* and 1 go on"):
            buffer.sample(1)
        play(buffer, 20)
        with pytest.raises(NotEnoughDataError, match=r"no episode .* whole: of 1, 1 have lost .* and 0 go on"):
            buffer.sample(1)
        play(buffer, 3, ends=False)
        with pytest.raises(NotEnoughDataError, match=r"no episode .* whole: of 2, 1 have lost .* and 1 go on"):
            buffer.sample(1)
        buffer.cut()
        play(buffer, 1, ends=False)
        assert buffer.sample(1).length.tolist() == [3]


def test_an_environment_without_a_whole_episode_is_named(path: str) -> None:
    """Where another has one, the view has nothing to explain."""
    with create(path, 20, 2, sampler=dr.Proportional(by_env=True), view=dr.PaddedEpisodes(5)) as buffer:
        for at in range(3):
            buffer.add([[at]] * 2, [0, 0], [1.0, 1.0], [[at + 1]] * 2, [at == 2, False], [False, False])
        with pytest.raises(NotEnoughDataError, match="environment 1 of 2 has no transition yet"):
            buffer.sample(2)


GOAL = Box(0, 100, (1,), np.float32)
GOALS = Dict(achieved_goal=GOAL, desired_goal=GOAL, observation=GOAL)


def walked(path: str, view: dr.Hindsight, num_envs: int = 1, **options: Any) -> dr.ReplayBuffer[Any]:
    """A walk of 10 steps in each environment; row ``n`` of environment ``e`` reaches the goal ``10 * e + n``."""
    buffer = dr.ReplayBuffer.create(path, GOALS, TURN, capacity=40, num_envs=num_envs, view=view, seed=0, **options)
    begin = 10 * np.arange(num_envs, dtype=np.float32)[:, None]
    lead = (lambda values: values) if num_envs > 1 else (lambda values: values[0])
    for at in range(10):
        now, after = ({name: lead(begin + n) for name in GOALS.spaces} for n in (at - 1, at))
        now = {name: np.maximum(value, 0) for name, value in now.items()}
        flags = lead(np.full(num_envs, at == 9)), lead(np.zeros(num_envs, bool))
        buffer.add(now, lead(np.zeros(num_envs, int)), lead(np.zeros(num_envs)), after, *flags)
    return buffer


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize(("num_envs", "row", "env"), [(1, 7, 0), (3, 4, 2)])
def test_a_reward_that_is_no_number_is_refused_with_its_row(
    path: str, value: float, num_envs: int, row: int, env: int
) -> None:
    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        return np.where(achieved[:, 0] == 10 * env + row, value, -1.0)

    with walked(path, dr.Hindsight(reward, ratio=1.0), num_envs) as buffer:
        index = row * num_envs + env
        said = rf"reward_fn must return finite values, got {value} for row {row} of environment {env} of stream '0': "

        def until_refused() -> None:
            while np.isfinite(buffer.sample(1).reward).all():
                pass

        with pytest.raises(InputError, match=said.replace("+", "[+]") + rf"rb.get\(\[{index}\]\)"):
            until_refused()
        assert buffer.get([index]).next_obs["achieved_goal"][0, 0] == 10 * env + row
        assert not np.isnan(buffer.get(buffer.items()).reward).any()


def test_a_reward_is_refused_at_every_way_out(path: str) -> None:
    def nothing(achieved: Any, desired: Any, info: Any) -> Any:
        return np.full(len(achieved), np.nan)

    with walked(path, dr.Hindsight(nothing, ratio=1.0), finite=False) as buffer:
        ways: dict[str, Callable[[], Any]] = {
            "sample": lambda: buffer.sample(3), "loader": lambda: next(buffer.loader(3)),
            "shuffled": lambda: next(buffer.shuffled(3)), "mixture": lambda: dr.Mixture([buffer]).sample(3),
        }  # fmt: skip
        for name, way in ways.items():
            with pytest.raises(InputError, match=r"reward_fn must return finite values, got nan for row \d"):
                pytest.fail(f"{name}: {way().reward}")
    ended = dr.Hindsight(lambda achieved, desired, info: np.zeros(len(achieved)), ratio=1.0, terminated_fn=nothing)
    said = pytest.raises(InputError, match=r"terminated_fn must return finite values, got nan for row \d")
    with dr.ReplayBuffer.open(path, mode="r", view=ended) as buffer, said:
        buffer.sample(3)  # which was True
