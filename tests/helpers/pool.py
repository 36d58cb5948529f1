"""A vector environment that shows where each of its environments is, in the ways that simulators do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from gymnasium.vector.utils import batch_space

from diskreplay.buffers.autoreset import AutoresetMode

PLACE = Box(-1e6, 1e6, (1,), np.float32)
SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": PLACE, "dict": Dict(here=PLACE, half=PLACE), "tuple": Tuple([PLACE, Dict(half=PLACE)]),
}  # fmt: skip
Info = Callable[["Pool", Any, np.ndarray], dict[str, Any]]


def shown(kind: str, place: Any) -> Any:
    """Observations of places ``(n, 1)``, as the space of that name has them."""
    if kind == "dict":
        return {"here": place, "half": place / 2}
    return (place, {"half": place / 2}) if kind == "tuple" else place


def places(obs: Any) -> Any:
    """The places that observations show."""
    return (obs["here"] if isinstance(obs, dict) else obs[0] if isinstance(obs, tuple) else obs)[:, 0]


class Pool(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Each step adds 1 to a place, and earns 1. An episode ends at a place that ends with 9; another begins 91 further.

    Args:
        mode: the mode of resetting.
        space: one of :data:`SPACES`.
        info: what else a step's info has: a function of the pool, of the final places, and of which have ended.
        made: what turns each array that is returned into something else.
    """

    def __init__(
        self, mode: Any = AutoresetMode.NEXT_STEP, space: str = "box", num_envs: int = 3,
        info: Info = lambda *_: {}, made: Callable[[Any], Any] = lambda array: array,
    ) -> None:  # fmt: skip
        self.metadata = {"autoreset_mode": mode}
        self.mode, self.kind, self.info, self.made, self.num_envs = mode, space, info, made, num_envs
        self.single_observation_space, self.single_action_space = SPACES[space], Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def shown(self, place: np.ndarray) -> Any:
        """Observations, as they are returned."""
        return shown(self.kind, self.made(place.copy()))

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at = (np.arange(self.num_envs, dtype=np.float32)[:, None] * 1003) % 9990
        self.waits = np.zeros(self.num_envs, bool)
        return self.shown(self.at), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        final = np.where(self.waits[:, None], self.at + 91, self.at + 1).astype(np.float32)
        reward, ended = (~self.waits).astype(np.float64), ~self.waits & (final[:, 0] % 10 == 9)
        same = self.mode is AutoresetMode.SAME_STEP
        self.at = np.where(ended[:, None] & same, final + 91, final).astype(np.float32)
        self.waits = ended & (not same)
        flags = self.made(np.zeros(self.num_envs, bool)), self.made(ended)
        return self.shown(self.at), self.made(reward), *flags, self.info(self, final, ended)


def garbled(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    """Whole final observations, without a mask, that hold nonsense where no episode has ended."""
    return {"final_obs": pool.shown(np.where(ended[:, None], final, -7).astype(np.float32))} if ended.any() else {}


def step_on(envs: Any, steps: int, actions: Any = None) -> None:
    for _ in range(steps):
        envs.step(np.zeros(envs.num_envs, int) if actions is None else actions)


def check_places(buffer: Any, expected: int) -> Any:
    """Check that each transition goes on by its reward, and return them."""
    batch = buffer.get(buffer.items())
    assert len(batch) >= expected
    np.testing.assert_array_equal(places(batch.next_obs) - places(batch.obs), batch.reward)
    return batch
