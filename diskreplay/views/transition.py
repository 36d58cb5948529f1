"""Transitions: an observation, what was done, and the observation ``n_step`` steps later."""

from __future__ import annotations

import dataclasses
from typing import Any

from diskreplay.errors import InputError
from diskreplay.schema import check_count


@dataclasses.dataclass(frozen=True)
class Transition:
    """Transitions of ``n_step`` steps, made at sampling time (n-step returns as in Sutton and Barto 2018, chapter 7).

    ``reward`` is the sum of ``gamma ** i * reward_i`` over the steps until the episode ends, ``next_obs`` the
    observation after the last of them, and ``discount`` what its value counts: ``gamma ** steps``, or 0 after
    termination. A truncated or cut off episode keeps its discount: its next observation is the true final one.

    Args:
        n_step: steps of one transition, at least 1.
        gamma: discount factor, 0 to 1.
    """

    n_step: int = 1
    gamma: float = 0.99

    def __post_init__(self) -> None:
        check_count("n_step", self.n_step, most=1 << 16)
        if not isinstance(self.gamma, int | float) or not 0.0 <= self.gamma <= 1.0:
            raise InputError(f"gamma must be 0 to 1, got {self.gamma!r}")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "Transition", "n_step": self.n_step, "gamma": self.gamma}


def from_json(stored: dict[str, Any]) -> Transition:
    """The view of a document by ``to_json``."""
    if stored.get("kind") != "Transition":
        raise ValueError(f"unknown view {stored!r}")
    return Transition(stored["n_step"], stored["gamma"])
