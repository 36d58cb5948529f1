"""`compat.pearl` with torch."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is in the torch and interop extras")

from diskreplay.compat import pearl  # noqa: E402


@pytest.mark.parametrize("dtype", ["torch", "Torch", pearl.TrajectoryType.TORCH])
@pytest.mark.parametrize("kind", [pearl.ReplayBuffer, pearl.RolloutBuffer])
@pytest.mark.parametrize("device", ["auto", "cpu", torch.device("cpu")])
def test_trajectories_as_tensors(dtype: object, kind: type, device: object) -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
    buffer = kind(envs, 20, device, seed=0)
    obs, _ = envs.reset(seed=0)
    for _ in range(30):
        actions = envs.action_space.sample()
        next_obs, rewards, terminated, _, _ = envs.step(actions)
        buffer.add_trajectory(obs, actions, rewards, next_obs, terminated)
        obs = next_obs
    for method, count in (("last", 7), ("all", None)):
        arguments = () if count is None else (count,)
        tensors = getattr(buffer, method)(*arguments, dtype=dtype)
        arrays = getattr(buffer, method)(*arguments, dtype="numpy")
        for name, array in vars(arrays).items():
            tensor = getattr(tensors, name)
            assert isinstance(tensor, torch.Tensor)
            assert tensor.device.type == ("cuda" if device == "auto" and torch.cuda.is_available() else "cpu")
            np.testing.assert_array_equal(tensor.cpu().numpy(), array)
    assert buffer.sample(5, dtype=dtype).observations.shape == (2, 5, 4)
    assert buffer.sample(5, flatten_env=True, dtype=dtype).actions.shape == (5, 1)
    envs.close()
