"""Gymnasium's own vector environments, in both autoreset modes, against environments that are stepped one by one."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers.vectors import lockstep

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode

NUM_ENVS, STEPS = 3, 300
STEP_LIMIT = 23


class Nested(gymnasium.ObservationWrapper):
    """CartPole's observation as a Dict with a Tuple in it."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        part = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict({"cart": part, "pole": spaces.Tuple([part, spaces.Discrete(3)])})

    def observation(self, observation: np.ndarray) -> dict[str, Any]:
        return {"cart": observation[:2], "pole": (observation[2:], np.int64(observation[0] > 0))}


def make(nested: bool) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", max_episode_steps=STEP_LIMIT)
    return Nested(env) if nested else env


def flat(obs: Any) -> list[np.ndarray]:
    if isinstance(obs, dict):
        return [leaf for part in obs.values() for leaf in flat(part)]
    return [leaf for part in obs for leaf in flat(part)] if isinstance(obs, tuple) else [np.asarray(obs)]


def alone(env_index: int, actions: np.ndarray, mode: AutoresetMode, nested: bool) -> list[tuple[Any, ...]]:
    """What really happened in one environment: a transition a step, None where a step only resets."""
    with make(nested) as env:
        obs, _ = env.reset(seed=100 + env_index)
        found: list[tuple[Any, ...]] = []
        resets = False
        for action in actions[:, env_index]:
            if resets:
                obs, _ = env.reset()
                resets = False
                found.append(())
                continue
            following, reward, terminated, truncated, _ = env.step(action)
            found.append((flat(obs), action, reward, flat(following), terminated, truncated))
            obs = following
            if terminated or truncated:
                if mode == AutoresetMode.NEXT_STEP:
                    resets = True
                else:
                    obs, _ = env.reset()
    return found


@pytest.mark.parametrize("nested", [False, True], ids=["box", "dict"])
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_every_transition_is_what_really_happened(path: str, mode: AutoresetMode, nested: bool) -> None:
    envs = lockstep([lambda: make(nested)] * NUM_ENVS, mode)
    actions = np.random.default_rng(0).integers(2, size=(STEPS, NUM_ENVS))
    with dr.ReplayBuffer.create(
        path, envs.single_observation_space, envs.single_action_space, capacity=10_000, num_envs=NUM_ENVS, seed=0
    ) as buffer:
        obs, _ = envs.reset(seed=[100, 101, 102])
        resets = np.zeros(NUM_ENVS, bool)
        for action in actions:
            following, reward, terminated, truncated, info = envs.step(action)
            valid = None if mode == AutoresetMode.SAME_STEP else ~resets
            buffer.add(obs, action, reward, dr.final_observations(following, info), terminated, truncated, valid=valid)
            obs = following
            resets = terminated | truncated
        envs.close()
        expected = [alone(env, actions, mode, nested) for env in range(NUM_ENVS)]
        assert sum(len(one) for env in expected for one in env if one and one[5]) > 3, "no episode was truncated"
        names = [i for i in range(STEPS * NUM_ENVS) if expected[i % NUM_ENVS][i // NUM_ENVS]]
        assert len(buffer) == len(names)
        batch = buffer.get(np.array(names))
        parts, next_parts = flat(batch.obs), flat(batch.next_obs)
        for at, index in enumerate(names):
            row, env = divmod(index, NUM_ENVS)
            obs_parts, action, reward, following_parts, terminated, truncated = expected[env][row]
            for got, want in zip(parts + next_parts, obs_parts + following_parts, strict=True):
                np.testing.assert_array_equal(got[at], want)
            assert (batch.action[at], batch.reward[at]) == (action, reward)
            assert (batch.terminated[at], batch.truncated[at]) == (terminated, truncated)
        assert set(buffer.sample(200).index.tolist()) <= set(names)
        lengths = [e.length for e in buffer.episodes if e.ended]
        assert max(lengths) == STEP_LIMIT
        assert all(e.terminated or e.truncated for e in buffer.episodes if e.ended)
        assert [e.total_reward for e in buffer.episodes] == [e.length for e in buffer.episodes]


def test_nothing_ended() -> None:
    obs = np.zeros((2, 3))
    assert dr.final_observations(obs, {}) is obs


def test_the_observation_of_the_step_is_left_alone() -> None:
    obs = np.zeros((2, 3))
    finals = np.array([None, np.ones(3)], dtype=object)
    filled = dr.final_observations(obs, {"final_obs": finals, "_final_obs": np.array([False, True])})
    assert filled.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert not obs.any()


def test_names_of_older_versions() -> None:
    finals = np.array([np.ones(3), None], dtype=object)
    info = {"final_observation": finals, "_final_observation": np.array([True, False])}
    assert dr.final_observations(np.zeros((2, 3)), info).tolist() == [[1, 1, 1], [0, 0, 0]]
