"""The Gymnasium environments that ``record`` steps: one, or several in lockstep, behind one small interface.

One environment is reset by :class:`Stepper` between two steps, so every step is a transition. Several are a
``gymnasium.vector.SyncVectorEnv`` with ``AutoresetMode.NEXT_STEP``, said explicitly: the step after an episode's
end resets that environment, ignores its action and is no transition. Both are recorded by the package's wrappers.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing

from diskreplay.buffers.autoreset import NEXT_STEP
from diskreplay.buffers.provenance import provenance
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.errors import InputError
from diskreplay.recording import Record, VectorRecord


class Stepper:
    """One environment, or several in lockstep."""

    def __init__(self, env: gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> None:
        self._env: Any = env
        self._several = isinstance(env, VectorEnv)
        if isinstance(env, VectorEnv):
            self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        else:
            self.observation_space, self.action_space = env.observation_space, env.action_space
        self.provenance = provenance(env)

    def record(self, buffer: ReplayBuffer) -> None:
        """Add every step from now on to a buffer."""
        self._env = (VectorRecord if self._several else Record)(self._env, buffer)

    def reset(self, seed: int) -> None:
        """Begin new episodes, and seed environments and actions."""
        self._env.action_space.seed(seed)
        self._env.reset(seed=seed)

    def step(self) -> int:
        """Step all environments with random actions, and return how many episodes ended with that."""
        _, _, terminated, truncated, _ = self._env.step(self._env.action_space.sample())
        ended = int(np.count_nonzero(np.logical_or(terminated, truncated)))
        if ended and not self._several:
            self._env.reset()
        return ended

    def close(self) -> None:
        self._env.close()


def make(env_id: str, num_envs: int, atari: bool) -> Stepper:
    """Return the environments of ``env_id``.

    Args:
        env_id: the environment's id in Gymnasium, such as ``CartPole-v1`` or ``ALE/Pong-v5``.
        num_envs: the number of environments.
        atari: preprocess as in Mnih et al. 2015: 84x84 greyscale, every 4th frame, up to 30 no-ops after a reset.

    Raises InputError for an environment that cannot be made, ModuleNotFoundError for a package that it needs.
    """
    if atari or env_id.startswith("ALE/"):
        _register_atari()

    def one() -> gymnasium.Env[Any, Any]:
        if not atari:
            return gymnasium.make(env_id)
        return AtariPreprocessing(gymnasium.make(env_id, frameskip=1), frame_skip=4, screen_size=84)

    try:
        if num_envs == 1:
            return Stepper(one())
        return Stepper(SyncVectorEnv([one] * num_envs, **NEXT_STEP))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ModuleNotFoundError(f"{env_id} needs a package that is not installed: {error}") from error
    except gymnasium.error.Error as error:
        raise InputError(f"Gymnasium cannot make {env_id!r}: {error}") from error
    except TypeError as error:
        if atari:
            raise InputError(f"{env_id!r} is no Atari environment that takes frameskip=1: {error}") from error
        raise


def _register_atari() -> None:
    try:
        import ale_py
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Atari environments need ale-py: pip install 'diskreplay[atari]'") from error
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner on stderr
    gymnasium.register_envs(ale_py)
