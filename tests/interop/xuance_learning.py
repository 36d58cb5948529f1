"""Learners of XuanCe, for tests that put our buffers in the place of theirs."""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np

Learned = tuple[list[np.ndarray], Any]
"""The parameters of a learner, and its buffer."""


def learned(
    agent_class: Any, options: dict[str, Any], make_envs: Any, steps: int, folder: Any, least: float = 0.05
) -> Learned:
    """A learner after so many steps of all environments, which have changed a parameter by more than ``least``."""
    config = argparse.Namespace(**options, log_dir=str(folder), model_dir=str(folder))
    agent = agent_class(config, make_envs(config))
    random.seed(5)
    initial = [value.detach().numpy().copy() for value in agent.policy.parameters()]
    agent.train(steps)
    trained = [value.detach().numpy().copy() for value in agent.policy.parameters()]
    assert max(np.abs(a - b).max() for a, b in zip(initial, trained, strict=True)) > least
    return trained, agent.memory


def check_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
