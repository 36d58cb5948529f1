"""A pytest plugin: Stable-Baselines3's four replay buffers are ours, wherever its modules have them."""

from __future__ import annotations

import sys
from typing import Any

import stable_baselines3 as sb3
from stable_baselines3.common import buffers

from diskreplay import Hindsight
from diskreplay.compat.sb3 import DiskReplayBuffer


class ReplayBuffer(DiskReplayBuffer):
    pass


class DictReplayBuffer(ReplayBuffer):
    pass


class NStepReplayBuffer(ReplayBuffer):
    def __init__(self, *args: Any, n_steps: int = 3, **options: Any) -> None:
        super().__init__(*args, n_steps=n_steps, **options)


class HerReplayBuffer(DictReplayBuffer):
    """Takes SB3's arguments. The environment is that of the newest one, so that pickles need not hold it."""

    env: Any

    def __init__(
        self, *args: Any, env: Any, n_sampled_goal: int = 4, goal_selection_strategy: Any = "future", **options: Any
    ) -> None:
        strategy = getattr(goal_selection_strategy, "name", goal_selection_strategy).lower()
        super().__init__(*args, view=Hindsight(reward, strategy, 1 - 1 / (n_sampled_goal + 1)), **options)
        self.set_env(env)

    def set_env(self, env: Any) -> None:
        HerReplayBuffer.env = env


def reward(achieved: Any, desired: Any, info: Any) -> Any:
    return HerReplayBuffer.env.env_method("compute_reward", achieved, desired, info, indices=[0])[0]


OURS = {
    buffers.ReplayBuffer: ReplayBuffer, buffers.DictReplayBuffer: DictReplayBuffer,
    buffers.NStepReplayBuffer: NStepReplayBuffer, sb3.HerReplayBuffer: HerReplayBuffer,
}  # fmt: skip
for name, module in list(sys.modules.items()):
    if name.split(".")[0] == "stable_baselines3":
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value in OURS:
                setattr(module, attribute, OURS[value])
