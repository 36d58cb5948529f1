"""Environments whose every step is a function of its place, a policy for them, and what a store of them must hold."""

from __future__ import annotations

import collections
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import diskreplay as dr

OBSERVATIONS = gymnasium.spaces.Box(0, np.inf, (3,), np.float64)
ACTIONS = gymnasium.spaces.Discrete(7)
ENVS = 3


def length(env: Any, episode: Any) -> Any:
    """Steps of an episode."""
    return 3 + (np.asarray(env) + np.asarray(episode)) % 4


def act(env: Any, episode: Any, at: Any) -> Any:
    return (np.asarray(env) + 2 * np.asarray(episode) + 3 * np.asarray(at)) % 7


def reward(env: Any, episode: Any, at: Any, action: Any) -> Any:
    return np.asarray(env) / 4 + np.asarray(episode) % 64 + np.asarray(at) / 2 + np.asarray(action)


class Counting(gymnasium.Env[Any, Any]):
    """Its observation is its number, that of its episode, and the step in it. Every other episode is truncated."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def __init__(self, number: int, raises_at: int | None = None) -> None:
        self.number, self.episode, self.at, self.steps, self.raises_at = number, -1, 0, 0, raises_at

    def _obs(self) -> Any:
        return np.array([self.number, self.episode, self.at], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.at = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        if self.steps == self.raises_at:
            raise RuntimeError("the simulator is gone")
        gained = float(reward(self.number, self.episode, self.at, action))
        self.at, self.steps = self.at + 1, self.steps + 1
        over = self.at == length(self.number, self.episode)
        truncated = over and self.episode % 2 == 1
        return self._obs(), gained, bool(over and not truncated), bool(truncated), {}


def make_envs(mode: AutoresetMode = AutoresetMode.NEXT_STEP, raises_at: int | None = None) -> SyncVectorEnv:
    return SyncVectorEnv([lambda n=n: Counting(n, raises_at) for n in range(ENVS)], autoreset_mode=mode)


def same_step() -> SyncVectorEnv:
    return make_envs(AutoresetMode.SAME_STEP)


def disabled() -> SyncVectorEnv:
    return make_envs(AutoresetMode.DISABLED)


def raising() -> SyncVectorEnv:
    """Raises soon after something could be committed."""
    return make_envs(raises_at=25)


def policy(weights: Any, rng: np.random.Generator) -> Any:
    def actions(obs: Any) -> Any:
        return act(*obs.T.astype(np.int64))

    return actions


def check(batch: dr.Batch) -> None:
    """Every value of a batch is that of the step that its observation names."""
    env, episode, at = batch.obs.T.astype(np.int64)
    np.testing.assert_array_equal(batch.action, act(env, episode, at))
    np.testing.assert_array_equal(batch.reward, reward(env, episode, at, batch.action).astype(np.float32))
    np.testing.assert_array_equal(batch.next_obs, np.stack([env, episode, at + 1], axis=1))
    over = at + 1 == length(env, episode)
    np.testing.assert_array_equal(batch.terminated, over & (episode % 2 == 0))
    np.testing.assert_array_equal(batch.truncated, over & (episode % 2 == 1))


def check_all(buffer: dr.ReplayBuffer) -> dict[str, int]:
    """Compares every transition; each environment's follow each other without a gap. How many each stream has."""
    items = buffer.items()
    batch = buffer.get(items)
    check(batch)
    names = list(buffer.stats()["streams"])  # in the order of their numbers
    found: collections.Counter[str] = collections.Counter()
    numbers = np.array([state.log.stream for state in buffer.engine.streams])
    for name, number in zip(names, numbers, strict=True):
        here = items >> 48 == number
        for env in range(ENVS):
            steps = batch.obs[here & (batch.obs[:, 0] == env)][:, 1:].astype(np.int64)
            if not len(steps):
                continue
            episode, at = steps.T
            ended = at + 1 == length(env, episode)
            np.testing.assert_array_equal(episode[1:], (episode + ended)[:-1])
            np.testing.assert_array_equal(at[1:], np.where(ended, 0, at + 1)[:-1])
            if buffer.stats()["streams"][name]["begin"] == 0:
                assert steps[0].tolist() == [0, 0]
            found[name] += len(steps)
    assert sum(found.values()) == len(items)
    return dict(found)
