"""The same episodes in Stable-Baselines3's HerReplayBuffer and here: the same transitions, with the same new goals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.goal_env import Walk, compute_reward

import diskreplay as dr

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")

from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

DRAWS, BATCH = 200, 200
Drawn = set[tuple[Any, ...]]


def record(path: str, count: int, strategy: Any) -> tuple[Any, dr.ReplayBuffer]:
    """Steps of ``count`` environments in both. The peer draws only from episodes that have ended, so that here the
    others' steps are marked as no transitions."""
    envs = DummyVecEnv([lambda env=env: Walk(1000 * env) for env in range(count)])
    peer = HerReplayBuffer(
        4000, envs.observation_space, envs.action_space, envs, "cpu", count, n_sampled_goal=99,
        goal_selection_strategy=strategy,
    )  # fmt: skip
    ours = dr.ReplayBuffer.create(
        path, envs.observation_space, envs.action_space, capacity=4000, num_envs=count, seed=0,
        view=dr.Hindsight(compute_reward, strategy, 0.99),
    )  # fmt: skip
    envs.seed(5)
    obs = envs.reset()
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(40):
        action = rng.integers(4, size=count)
        seen, reward, done, infos = envs.step(action)
        following = {name: values.copy() for name, values in seen.items()}
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        for env in np.flatnonzero(done):
            for name, values in infos[env]["terminal_observation"].items():
                following[name][env] = values
        peer.add(obs, following, action, reward, done, infos)
        rows.append((obs, action, reward, following, done & ~cut, done & cut))
        obs = seen
    ended = np.logical_or.accumulate([row[4] | row[5] for row in rows[::-1]])[::-1]
    for row, valid in zip(rows, ended, strict=True):
        if count == 1:
            row = tuple({k: v[0] for k, v in each.items()} if isinstance(each, dict) else each[0] for each in row)
        ours.add(*row, valid=valid if count > 1 else valid[0])
    return peer, ours


def described(obs: Any, action: Any, next_obs: Any, reward: Any, done: Any) -> Drawn:
    """Each transition of a batch, all of it."""
    arrays = [*(obs[name] for name in sorted(obs)), *(next_obs[name] for name in sorted(next_obs)), action, reward]
    flat = [np.asarray(array, np.float64).reshape(len(reward), -1) for array in (*arrays, done)]
    return set(map(tuple, np.concatenate(flat, axis=1).tolist()))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_the_same_transitions_with_the_same_goals(path: str, count: int, strategy: Any) -> None:
    """What either ever draws, goals, rewards and terminations included, is the same set."""
    peer, ours = record(path, count, strategy)
    np.random.seed(0)  # the peer's generator
    theirs: Drawn = set()
    found: Drawn = set()
    with ours:
        held = len(ours)
        for _ in range(DRAWS):
            sample = peer.sample(BATCH)
            new = slice(BATCH - int(peer.her_ratio * BATCH), None)  # those with another goal stand last
            theirs |= described(
                {name: values[new] for name, values in sample.observations.items()}, sample.actions[new],
                {name: values[new] for name, values in sample.next_observations.items()},
                sample.rewards[new], sample.dones[new],
            )  # fmt: skip
            batch = ours.sample(held)
            chosen = batch.relabelled
            found |= described(
                {name: values[chosen] for name, values in batch.obs.items()}, batch.action[chosen],
                {name: values[chosen] for name, values in batch.next_obs.items()},
                batch.reward[chosen], batch.terminated[chosen],
            )  # fmt: skip
    assert len(found) >= held > 20
    assert found == theirs
