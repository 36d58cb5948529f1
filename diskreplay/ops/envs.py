"""Gymnasium environments as ``record`` steps them: one, or several in lockstep, behind one small interface.

One environment is reset by :class:`Single` between two steps, so every step is a transition. Several are a
``gymnasium.vector.SyncVectorEnv`` with ``AutoresetMode.NEXT_STEP``, said explicitly: the step after an episode's
end resets that environment, ignores its action and is no transition, which ``valid`` says.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing

from diskreplay.buffers.provenance import provenance
from diskreplay.errors import InputError


@dataclasses.dataclass(frozen=True)
class Step:
    """What ``ReplayBuffer.add`` takes, and how many episodes ended with it."""

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    valid: Any
    ended: int


class Stepper(Protocol):
    """Environments that are stepped with random actions."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    provenance: dict[str, Any]

    def reset(self, seed: int) -> None:
        """Begins new episodes; environments and actions are seeded."""

    def step(self) -> Step: ...

    def close(self) -> None: ...


class Single:
    """One environment."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.provenance = provenance(env)
        self._obs: Any = None

    def reset(self, seed: int) -> None:
        self.action_space.seed(seed)
        self._obs, _ = self._env.reset(seed=seed)

    def step(self) -> Step:
        obs, action = self._obs, self.action_space.sample()
        next_obs, reward, terminated, truncated, _ = self._env.step(action)
        ended = bool(terminated or truncated)
        self._obs = self._env.reset()[0] if ended else next_obs
        return Step(obs, action, reward, next_obs, bool(terminated), bool(truncated), None, int(ended))

    def close(self) -> None:
        self._env.close()


class Lockstep:
    """Several environments; see the module's docstring."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        self._envs = envs
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.provenance = provenance(envs)
        self._obs: Any = None
        self._valid = np.ones(envs.num_envs, bool)

    def reset(self, seed: int) -> None:
        self._envs.action_space.seed(seed)
        self._obs, _ = self._envs.reset(seed=seed)
        self._valid[:] = True

    def step(self) -> Step:
        obs, valid, action = self._obs, self._valid, self._envs.action_space.sample()
        self._obs, reward, terminated, truncated, _ = self._envs.step(action)
        ended = terminated | truncated
        self._valid = ~ended
        return Step(obs, action, reward, self._obs, terminated, truncated, valid, int(ended.sum()))

    def close(self) -> None:
        self._envs.close()


def make(env_id: str, num_envs: int, atari: bool) -> Stepper:
    """The environments of ``env_id``.

    Args:
        env_id: as Gymnasium knows it, such as ``CartPole-v1`` or ``ALE/Pong-v5``.
        num_envs: how many.
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
            return Single(one())
        return Lockstep(SyncVectorEnv([one] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP))
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
