"""Random steps of several agents, and what a buffer has to give for them: a plain list and the definitions."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from gymnasium import spaces

N_AGENTS, N_ACTIONS = 3, 4


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the steps of a buffer hold."""

    num_envs: int = 1
    rewards: str = "team"
    state: bool = False
    available: bool = False
    mean_action: bool = False
    discrete: bool = True

    def __str__(self) -> str:
        held = [name for name in ("state", "available", "mean_action") if getattr(self, name)]
        return f"{self.num_envs} {self.rewards} {'+'.join(held)}{'' if self.discrete else ' continuous'}"

    def spaces(self) -> tuple[spaces.Space[Any], spaces.Space[Any], int]:
        action = spaces.Discrete(N_ACTIONS) if self.discrete else spaces.Box(-1, 1, (2,), np.float32)
        return spaces.Box(-9, 9, (2, 2), np.float32), action, N_AGENTS

    def options(self) -> dict[str, Any]:
        return {
            "num_envs": self.num_envs,
            "rewards": self.rewards,
            "state_space": spaces.Box(-9, 9, (5,), np.float32) if self.state else None,
            "available_actions": self.available,
            "mean_action_shape": (N_AGENTS, N_ACTIONS) if self.mean_action else None,
            "commit_rows": 1 << 20,
            "commit_seconds": 1e9,
            "seed": 7,
        }


KINDS = [
    Kind(),
    Kind(num_envs=3, rewards="agent", state=True, available=True, mean_action=True),
    Kind(num_envs=3, state=True, discrete=False),
    Kind(rewards="agent", mean_action=True, available=True),
]


@dataclasses.dataclass
class Step:
    """One step of one environment."""

    obs: Any
    next_obs: Any
    action: Any
    reward: Any
    terminated: bool
    truncated: bool
    valid: bool
    state: Any
    next_state: Any
    available: Any
    next_available: Any
    agent_mask: Any
    mean_action: Any
    value: Any = None
    log_prob: Any = None
    final_value: Any = None
    goes_on: bool = False
    """The next step of the environment continues this one."""


class World:
    """Environments whose episodes end, are cut off, or are left without a flag."""

    def __init__(self, kind: Kind, seed: int = 0) -> None:
        self.kind = kind
        self.rng = np.random.default_rng(seed)
        self.log: list[list[Step]] = []
        self.now = [self._look() for _ in range(kind.num_envs)]
        self.ended = [True] * kind.num_envs

    def _look(self) -> tuple[Any, Any, Any]:
        rng = self.rng
        available = rng.random((N_AGENTS, N_ACTIONS)) < 0.7
        return rng.normal(size=(N_AGENTS, 2, 2)).astype("f4"), rng.normal(size=5).astype("f4"), available

    def step(self, gaps: bool = True) -> list[Step]:
        """One step of each environment, added to the log; with ``gaps`` some are none."""
        rng, kind = self.rng, self.kind
        row = []
        for env in range(kind.num_envs):
            obs, state, available = self.now[env]
            next_obs, next_state, next_available = self._look()
            drawn = rng.random()
            valid = not (gaps and drawn > 0.95)
            terminated, truncated = bool(drawn < 0.1), bool(0.1 < drawn < 0.2)
            left = bool(0.2 < drawn < 0.25)
            reward = rng.normal() if kind.rewards == "team" else rng.normal(size=N_AGENTS).astype("f4")
            action = rng.integers(N_ACTIONS, size=N_AGENTS)
            step = Step(
                obs, next_obs, action if kind.discrete else rng.uniform(-1, 1, (N_AGENTS, 2)).astype("f4"),
                np.float32(reward) if kind.rewards == "team" else reward, terminated, truncated, valid,
                state, next_state, available, next_available, rng.random(N_AGENTS) < 0.8,
                rng.random((N_AGENTS, N_ACTIONS)).astype("f4"),
                *rng.normal(size=(3, N_AGENTS)).astype("f4"),
            )  # fmt: skip
            if self.log and not self.ended[env] and valid:
                self.log[-1][env].goes_on = True
            self.ended[env] = terminated or truncated or left or not valid
            self.now[env] = self._look() if self.ended[env] else (next_obs, next_state, next_available)
            row.append(step)
        self.log.append(row)
        return row

    def arguments(self, row: list[Step], rollout: bool = False) -> dict[str, Any]:
        """A row as arguments of ``add``."""
        kind = self.kind

        def together(name: str) -> Any:
            values = [getattr(step, name) for step in row]
            return values[0] if kind.num_envs == 1 else np.array(values)

        names = ["obs", "next_obs", "action", "reward", "terminated", "truncated", "valid", "agent_mask"]
        names += ["state", "next_state"] if kind.state else []
        names += ["mean_action"] if kind.mean_action else []
        names += ["value", "log_prob", "final_value"] if rollout else []
        found = {name: together(name) for name in names}
        if kind.available:
            found["available_actions"], found["next_available_actions"] = (
                together("available"), together("next_available"),
            )  # fmt: skip
        return found

    def fill(self, buffer: Any, rows: int, gaps: bool = True, rollout: bool = False) -> None:
        """Adds so many steps to a buffer."""
        for _ in range(rows):
            buffer.add(**self.arguments(self.step(gaps), rollout))

    def at(self, index: int) -> tuple[int, int]:
        """Row and environment that an index names."""
        return divmod(int(index), self.kind.num_envs)

    def expected(self, row: int, env: int, n_step: int = 1, gamma: float = 1.0) -> dict[str, Any]:
        """What a transition has to show, field by field."""
        kind, first = self.kind, self.log[row][env]
        last, total, scale = row, np.float64(0) * first.reward, 1.0
        while True:
            total = total + scale * self.log[last][env].reward
            scale *= gamma
            if not self.log[last][env].goes_on or last - row + 1 == n_step:
                break
            last += 1
        end = self.log[last][env]
        after = self.log[last + 1][env] if end.goes_on else end
        return {
            "obs": first.obs, "action": first.action, "reward": np.float32(total), "next_obs": end.next_obs,
            "terminated": end.terminated, "truncated": end.truncated,
            "discount": np.float32(0 if end.terminated else scale),
            "state": first.state if kind.state else None, "next_state": end.next_state if kind.state else None,
            "available_actions": first.available if kind.available else None,
            "next_available_actions": end.next_available if kind.available else None,
            "action_onehot": np.eye(N_ACTIONS, dtype="f4")[first.action] if kind.discrete else None,
            "agent_mask": first.agent_mask,
            "mean_action": first.mean_action if kind.mean_action else None,
            "next_mean_action": after.mean_action if kind.mean_action else None,
        }  # fmt: skip
