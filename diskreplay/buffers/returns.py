"""The returns and advantages of recorded steps, by backward recursion, as pure functions.

Arrays lead with time and environments, ``(T, E, ...)``. ``next_value`` is the value of the observation after each step:
of the true final one where the step is a *cut* (terminated, truncated, or the newest), else that of the next step.
``terminated`` says where that value does not count. Results are float64.
"""

from __future__ import annotations

import numpy as np

from diskreplay.checks import Array, Floats


def gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, cut: Array, gamma: float, gae_lambda: float
) -> Floats:
    """Return generalised advantage estimates (Schulman et al. 2016), ``(T, E, ...)``; add ``value`` for returns.

    ``gae_lambda`` 1 gives discounted returns less the value, 0 the errors of one step.
    """
    delta = reward + gamma * np.where(terminated, 0.0, next_value) - value
    carried = gamma * gae_lambda * ~cut
    out = np.zeros(np.broadcast_shapes(delta.shape, carried.shape), np.float64)
    running = np.zeros(out.shape[1:], np.float64)
    for step in range(len(out) - 1, -1, -1):
        running = delta[step] + carried[step] * running
        out[step] = running
    return out


def td_lambda(reward: Array, next_value: Array, terminated: Array, cut: Array, gamma: float, lambda_: float) -> Floats:
    """Return TD(lambda) targets, ``(T, E, ...)`` (Sutton and Barto 2018, chapter 12): the lambda-returns.

    ``lambda_`` 1 gives discounted returns, 0 the targets of one step. A cut is bootstrapped with its next value.
    """
    bootstrap = np.where(terminated, 0.0, next_value)
    going_on = ~(terminated | cut)
    out = np.zeros(np.broadcast_shapes(reward.shape, bootstrap.shape), np.float64)
    running = np.broadcast_to(bootstrap[-1], out.shape[1:])
    for step in range(len(out) - 1, -1, -1):
        mixed = (1.0 - lambda_) * bootstrap[step] + lambda_ * running
        running = reward[step] + gamma * np.where(going_on[step], mixed, bootstrap[step])
        out[step] = running
    return out
