"""What XuanCe's on-policy buffers share: paths of a ring, their returns and advantages, and samples by index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import returns
from diskreplay.buffers.on_policy import EPSILON
from diskreplay.compat.given import array
from diskreplay.compat.keeper import Assignment, RamState, set_attribute, set_item
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.ids import Ids

Array = NDArray[Any]
Floats = NDArray[np.float64]

START_IDS, OPEN = "start_ids", "open"
"""Marks of each environment's open path: the entry where it begins, and its steps."""


def path_marks(n_envs: int) -> dict[str, Ids]:
    """Those of paths without a step."""
    return {name: np.zeros(n_envs, np.int64) for name in (START_IDS, OPEN)}


def next_entry(ram: RamState, n_size: int) -> list[Assignment]:
    """What counts one more entry of all environments, which also belongs to their open paths."""
    ptr = (ram.ptr + 1) % n_size
    steps = np.minimum(ram.marks[OPEN] + 1, n_size)
    return [
        set_attribute(ram, "ptr", ptr),
        set_attribute(ram, "size", min(ram.size + 1, n_size)),
        set_item(ram.marks[OPEN], slice(None), steps),
        set_item(ram.marks[START_IDS], slice(None), (ptr - steps) % n_size),
    ]


def path_slots(ram: RamState, env: int, n_size: int) -> Ids:
    """The entries of an environment's open path, oldest first."""
    slots: Ids = (ram.marks[START_IDS][env] + np.arange(ram.marks[OPEN][env])) % n_size
    return slots


def end_path(ram: RamState, env: int) -> list[Assignment]:
    """What closes an environment's path: the next one begins with the entry that is written next."""
    return [set_item(ram.marks[OPEN], env, 0), set_item(ram.marks[START_IDS], env, ram.ptr)]


def check_full(size: int, needed: int) -> None:
    """NotEnoughDataError where a rollout is not full."""
    if size < needed:
        raise NotEnoughDataError(
            f"the buffer holds {size} of {needed} entries; sample it when it is full, or call clear()"
        )


def checked_indexes(indexes: Any, count: int) -> Ids:
    """Indexes ``(B,)`` of ``count`` entries; InputError where they are others."""
    chosen = array("indexes", indexes)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InputError(f"indexes must be integers of shape (B,), got {chosen.dtype} {chosen.shape}")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < count):
        raise InputError(f"indexes must be 0 to {count - 1}, got {chosen.min()} to {chosen.max()}")
    return chosen.astype(np.int64)


def normalized(advantages: Array, counted: Array | None = None) -> Array:
    """Advantages with mean 0 and standard deviation 1 over what counts, all of them if None; 0 elsewhere."""
    among = advantages if counted is None else advantages[counted]
    if not among.size:
        return np.zeros_like(advantages)
    scaled: Array = (advantages - among.mean()) / (among.std() + EPSILON)
    if counted is not None:
        scaled[~counted] = 0.0
    return scaled


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
    given = array("the value of the last step", next_value)
    if given.dtype.kind not in "biuf" or given.size not in (1, agents):
        raise InputError(
            f"the value of the last step must be {agents} numbers, one for each agent, got {next_value!r:.80}"
        )
    with np.errstate(over="ignore"):
        last = np.broadcast_to(given.astype(np.float32).reshape(-1, 1), (agents, 1))
    terminated = np.broadcast_to(terminals.reshape(count, -1), shape)
    if not np.isfinite(last[~terminated[-1]]).all():
        raise InputError(f"the value of the last step must be finite where it is not terminal, got {next_value!r:.80}")
    following = np.concatenate([value[1:], _true(last, value_normalizer).reshape(1, agents)])
    reward = np.broadcast_to(rewards.reshape(count, -1), shape).astype(np.float64)
    cut = terminated | (np.arange(count) == count - 1)[:, None]
    if td_targets:
        targets = returns.td_lambda(reward, following, terminated, cut, gamma, lambda_)
        return targets, targets - value
    advantage = returns.gae(reward, value, following, terminated, cut, gamma, lambda_)
    return advantage + value, advantage


def _true(values: Array, normalizer: Any) -> Floats:
    given = values if normalizer is None else normalizer.denormalize(values)
    return np.asarray(given, np.float64)
