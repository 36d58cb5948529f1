"""Returns and advantages of one path of several agents, in XuanCe's shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import returns
from diskreplay.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]


def path_estimates(
    rewards: Array, values: Array, next_value: Any, terminals: Array, gamma: float, lambda_: float,
    value_normalizer: Any = None, td_targets: bool = False,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Returns and advantages ``(T, N)`` of ``T`` consecutive steps of ``N`` agents.

    Args:
        rewards: one for each agent and step, or one for all agents: ``(T, N, ...)`` or ``(T, 1, ...)`` or ``(T,)``.
        values: ``(T, N, 1)`` or ``(T, N)``.
        next_value: of what follows the last step, ``N`` numbers or one.
        terminals: as rewards, bool; where True, what follows does not count.
        gamma, lambda_: discount factor, and lambda of advantages or of targets.
        value_normalizer: an object with ``denormalize``; values are of what it normalises. Advantages and returns are
            of true values.
        td_targets: returns are TD(lambda) targets, and advantages are returns less values; otherwise generalised
            advantage estimation.
    """
    count, agents = values.shape[:2]
    shape = (count, agents)
    value = _true(values.reshape(*shape, 1), value_normalizer).reshape(shape)
    try:
        last = np.broadcast_to(np.asarray(next_value, np.float32).reshape(-1, 1), (agents, 1))
    except (TypeError, ValueError) as error:
        raise InputError(f"the value of the last step must be {agents} numbers, one for each agent: {error}") from error
    following = np.concatenate([value[1:], _true(last, value_normalizer).reshape(1, agents)])
    reward = np.broadcast_to(rewards.reshape(count, -1), shape).astype(np.float64)
    terminated = np.broadcast_to(terminals.reshape(count, -1), shape)
    cut = terminated | (np.arange(count) == count - 1)[:, None]
    if td_targets:
        targets = returns.td_lambda(reward, following, terminated, cut, gamma, lambda_)
        return targets, targets - value
    advantage = returns.gae(reward, value, following, terminated, cut, gamma, lambda_)
    return advantage + value, advantage


def _true(values: Array, normalizer: Any) -> Floats:
    given = values if normalizer is None else normalizer.denormalize(values)
    return np.asarray(given, np.float64)
