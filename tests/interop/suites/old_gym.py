"""A pytest plugin: ``gym`` with the interface that it had before 0.26, over Gymnasium.

For libraries that import a ``gym`` which no Python of today installs. ``reset`` gives an observation alone, ``step``
four values, of which ``done`` is either ending.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import gymnasium
import gymnasium.envs.registration
import gymnasium.spaces
import gymnasium.vector


class _Old(gymnasium.Wrapper):
    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)[0]

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or truncated, info


class _OldVector(gymnasium.vector.VectorWrapper):
    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)[0]

    def step(self, actions: Any) -> Any:
        obs, rewards, terminated, truncated, info = self.env.step(actions)
        return obs, rewards, terminated | truncated, info


class GoalEnv(gymnasium.Env):
    """The base class of environments with goals, which Gymnasium does not have."""


def _make(name: str) -> Any:
    env = _Old(gymnasium.make(name))
    env.reset()  # the old ones were not asked whether they had been
    return env


def _make_vector(name: str, number: int) -> Any:
    return _OldVector(gymnasium.make_vec(name, number, vectorization_mode="sync"))


_gym, _vector, _envs = types.ModuleType("gym"), types.ModuleType("gym.vector"), types.ModuleType("gym.envs")
_gym.Env, _gym.GoalEnv, _gym.Space = gymnasium.Env, GoalEnv, gymnasium.Space
_gym.make, _gym.spaces, _gym.vector, _gym.envs = _make, gymnasium.spaces, _vector, _envs
_vector.make, _vector.VectorEnv = _make_vector, gymnasium.vector.VectorEnv
_envs.registration = gymnasium.envs.registration
sys.modules |= {
    "gym": _gym,
    "gym.core": _gym,
    "gym.vector": _vector,
    "gym.vector.vector_env": _vector,
    "gym.envs": _envs,
    "gym.envs.registration": gymnasium.envs.registration,
    "gym.spaces": gymnasium.spaces,
    **{name.replace("gymnasium", "gym", 1): module for name, module in list(sys.modules.items())
       if name.startswith("gymnasium.spaces.")},
}  # fmt: skip
