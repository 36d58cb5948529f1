"""A small environment with goals: a walk on a grid, to a place that differs from episode to episode."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

SIDE = 4
LONGEST = 7


class Walk(gymnasium.Env[dict[str, np.ndarray], int]):
    """Ends when the goal is reached, and is cut off after ``LONGEST`` steps; every observation has a number."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": None}

    def __init__(self, first_number: int = 0) -> None:
        place = Box(0, SIDE - 1, (2,), np.float32)
        self.observation_space = Dict(
            observation=Box(0, 1 << 20, (1,), np.float32), achieved_goal=place, desired_goal=place
        )
        self.action_space = Discrete(4)
        self.number = first_number

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.integers(0, SIDE, (2, 2))
        self.steps = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        move = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)][action])
        self.place = np.clip(self.place + move, 0, SIDE - 1)
        self.steps += 1
        obs = self._look()
        reward = float(compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, reward, reward == 0, self.steps == LONGEST and reward != 0, {}

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
        return compute_reward(achieved, desired, info)

    def _look(self) -> dict[str, np.ndarray]:
        self.number += 1
        return {
            "observation": np.array([self.number], np.float32),
            "achieved_goal": self.place.astype(np.float32),
            "desired_goal": self.goal.astype(np.float32),
        }


def compute_reward(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    """0 at the goal, -1 elsewhere; of one goal, or of many ``(B, 2)``."""
    return -(np.abs(achieved - desired).sum(axis=-1) > 0).astype(np.float32)


def compute_terminated(achieved: np.ndarray, desired: np.ndarray, info: Any) -> np.ndarray:
    return compute_reward(achieved, desired, info) == 0
