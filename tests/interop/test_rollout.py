"""Advantages and returns beside those of Stable-Baselines3's own rollout buffer, fed as its PPO feeds it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import diskreplay as dr

sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")
torch = pytest.importorskip("torch", reason="torch is in the interop extra")

STEPS, ENVS, GAMMA, LAMBDA = 64, 4, 0.97, 0.9


@pytest.mark.parametrize("seed", range(3))
def test_the_same_estimates_as_stable_baselines3(path: str, seed: int) -> None:
    from stable_baselines3.common.buffers import RolloutBuffer

    rng = np.random.default_rng(seed)
    space, actions = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
    theirs = RolloutBuffer(STEPS, space, actions, "cpu", LAMBDA, GAMMA, ENVS)
    with dr.RolloutBuffer.create(
        path, space, actions, steps=STEPS, num_envs=ENVS, gamma=GAMMA, gae_lambda=LAMBDA, normalize_advantage=False
    ) as ours:
        obs, started = rng.uniform(-1, 1, (ENVS, 3)).astype(np.float32), np.ones(ENVS)
        for _ in range(STEPS):
            action, reward = rng.integers(0, 2, ENVS), rng.normal(size=ENVS).astype(np.float32)
            following = rng.uniform(-1, 1, (ENVS, 3)).astype(np.float32)
            terminated = rng.random(ENVS) < 0.05
            truncated = (rng.random(ENVS) < 0.05) & ~terminated
            value, log_prob = rng.normal(size=(2, ENVS)).astype(np.float32)
            final_value = rng.normal(size=ENVS).astype(np.float32)
            # Its algorithm adds the value of a truncated episode's last observation to the reward.
            paid = reward + GAMMA * final_value * truncated
            theirs.add(obs, action[:, None], paid, started, torch.as_tensor(value), torch.as_tensor(log_prob))
            ours.add(
                obs, action, reward, following, terminated, truncated, value=value, log_prob=log_prob,
                final_value=final_value,
            )  # fmt: skip
            done = terminated | truncated
            obs, started = np.where(done[:, None], rng.uniform(-1, 1, (ENVS, 3)), following).astype(np.float32), done
        last_value = rng.normal(size=ENVS).astype(np.float32)
        theirs.compute_returns_and_advantage(torch.as_tensor(last_value), started)
        ours.finish(last_value)
        batch = ours.get(np.arange(STEPS * ENVS))
    np.testing.assert_allclose(batch.advantage.reshape(STEPS, ENVS), theirs.advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.returns.reshape(STEPS, ENVS), theirs.returns, rtol=1e-4, atol=1e-5)
