"""Views over what real environments gave, against episodes that were kept in lists beside them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.goal_env import Walk, compute_reward, compute_terminated
from helpers.vectors import lockstep

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode

Step = dict[str, Any]
Episodes = list[list[Step]]


def record(
    path: str, makers: list[Any], steps: int, next_step: bool, **options: Any
) -> tuple[dr.ReplayBuffer, Episodes, Episodes]:
    """A buffer, the episodes that have ended, and those still going on; the steps of each in order."""
    mode = AutoresetMode.NEXT_STEP if next_step else AutoresetMode.SAME_STEP
    envs = lockstep(makers, mode)
    count = envs.num_envs
    buffer = dr.ReplayBuffer.create(
        path, envs.single_observation_space, envs.single_action_space, capacity=100_000, num_envs=count, seed=0,
        chunk_rows=32, **options,
    )  # fmt: skip
    ended: Episodes = []
    running: Episodes = [[] for _ in range(count)]
    obs, _ = envs.reset(seed=3)
    resets = np.zeros(count, bool)
    rng = np.random.default_rng(1)
    for _ in range(steps):
        action = rng.integers(envs.single_action_space.n, size=count)
        seen, reward, terminated, truncated, info = envs.step(action)
        following = seen if next_step else dr.final_observations(seen, info)
        given = (obs, action, reward, following, terminated, truncated)
        if count == 1:
            first = [{k: v[0] for k, v in each.items()} if isinstance(each, dict) else each[0] for each in given]
            buffer.add(*first, valid=not resets[0])
        else:
            buffer.add(*given, valid=~resets)
        for env in np.flatnonzero(~resets):
            names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
            running[env].append({name: pick(value, env) for name, value in zip(names, given, strict=True)})
            if terminated[env] or truncated[env]:
                ended.append(running[env])
                running[env] = []
        resets = terminated | truncated if next_step else np.zeros(count, bool)
        obs = seen
    envs.close()
    return buffer, ended, [episode for episode in running if episode]


def pick(value: Any, *at: Any) -> Any:
    """Entries of an array or of a dict of them, copied."""
    return {key: part[at].copy() for key, part in value.items()} if isinstance(value, dict) else value[at].copy()


def same(got: Any, want: Any) -> bool:
    if isinstance(want, dict):
        return all(same(got[key], part) for key, part in want.items())
    return np.array_equal(got, want)


CASES = pytest.mark.parametrize(("count", "next_step"), [(1, False), (3, False), (1, True), (3, True)])


@CASES
def test_cartpole_episodes(path: str, count: int, next_step: bool) -> None:
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=25)] * count
    buffer, ended, running = record(path, makers, 300, next_step, view=dr.PaddedEpisodes(20, 0.9))
    with buffer:
        batches = list(buffer.shuffled(8))
        found: list[int] = []
        for batch in batches:
            for item in range(len(batch)):
                episode = next(each for each in ended if same(batch.obs[item, 0], each[0]["obs"]))
                found.append(id(episode))
                held = min(20, len(episode))
                assert batch.length[item] == held
                assert batch.mask[item].tolist() == [True] * held + [False] * (20 - held)
                for at, step in enumerate(episode[:20]):
                    for name, value in step.items():
                        assert same(getattr(batch, name)[item, at], value), name
                    assert batch.discount[item, at] == (0 if step["terminated"] else np.float32(0.9))
                for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "discount"):
                    assert not getattr(batch, name)[item, held:].any()
        assert sorted(found) == sorted(map(id, ended)), "each episode that has ended, once"
        assert len(ended) > 5
        assert running


@CASES
@pytest.mark.parametrize("across", [False, True])
def test_cartpole_sequences(path: str, count: int, next_step: bool, across: bool) -> None:
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=25)] * count
    view = dr.Sequence(6, burn_in=2, across=across)
    buffer, ended, running = record(path, makers, 150, next_step, view=view)
    where = {step["obs"].tobytes(): (episode, at) for episode in ended + running for at, step in enumerate(episode)}
    crossed = 0
    with buffer:
        for _ in range(20):
            batch = buffer.sample(16)
            for item in range(16):
                before: Any = None
                for at in np.flatnonzero(batch.mask[item]):
                    episode, place = where[batch.obs[item, at].tobytes()]
                    for name, value in episode[place].items():
                        assert same(getattr(batch, name)[item, at], value), name
                    assert batch.is_first[item, at] == (place == 0)
                    if before is not None and place:
                        assert before == (id(episode), place - 1), "steps follow one another"
                    elif before is not None:
                        assert across
                        crossed += 1
                    before = id(episode), place
                if not across:
                    held = int(batch.mask[item].sum())
                    assert batch.mask[item, :held].all()
                    assert held >= 3
                    assert held == 8 or len(episode) == place + 1, "cut short by the end of its episode alone"
    assert bool(crossed) == across


@pytest.mark.long
@CASES
@pytest.mark.parametrize("strategy", ["future", "final", "episode", "random"])
def test_goals_of_a_walk(path: str, count: int, next_step: bool, strategy: Any) -> None:
    """The set of (transition, new goal) that is ever drawn is that of the strategy; rewards are the environment's."""
    makers = [lambda env=env: Walk(1000 * env) for env in range(count)]
    view = dr.Hindsight(compute_reward, strategy, 0.75, compute_terminated, 0.9)
    buffer, ended, running = record(path, makers, 40, next_step, view=view)
    allowed, steps = set(), {}
    everywhere = {step["next_obs"]["achieved_goal"].tobytes() for episode in ended + running for step in episode}
    for episode in ended + running:
        reached = [step["next_obs"]["achieved_goal"].tobytes() for step in episode]
        for at, step in enumerate(episode):
            number = int(step["obs"]["observation"][0])
            steps[number] = step
            sets = {"future": reached[at:], "final": reached[-1:], "episode": reached, "random": everywhere}
            allowed |= {(number, goal) for goal in sets[strategy]}
    drawn = set()
    with buffer:
        for _ in range(400):
            batch = buffer.sample(min(64, len(buffer)))
            for item, number in enumerate(batch.obs["observation"][:, 0].astype(int).tolist()):
                step, goal = steps[number], batch.obs["desired_goal"][item]
                assert same(batch.next_obs["desired_goal"][item], goal)
                for name in ("observation", "achieved_goal"):
                    assert same(batch.obs[name][item], step["obs"][name])
                    assert same(batch.next_obs[name][item], step["next_obs"][name])
                at_goal = same(step["next_obs"]["achieved_goal"], goal)
                assert batch.reward[item] == (0 if at_goal else -1)
                assert batch.terminated[item] == at_goal
                assert batch.discount[item] == (0 if at_goal else np.float32(0.9))
                assert batch.truncated[item] == step["truncated"]
                if batch.relabelled[item]:
                    drawn.add((number, goal.tobytes()))
                else:
                    assert same(goal, step["obs"]["desired_goal"])
    if strategy == "random":  # too many pairs to see them all
        assert drawn <= allowed
        assert {goal for _, goal in drawn} == everywhere
        assert {number for number, _ in drawn} == steps.keys()
    else:
        assert drawn == allowed
