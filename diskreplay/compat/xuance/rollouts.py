"""The base of XuanCe's on-policy buffers: paths of a ring, their returns and advantages, and samples by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import returns
from diskreplay.buffers.on_policy import EPSILON
from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import check_array
from diskreplay.compat.keeper import PendingStep, RamState, set_item
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.ids import Ids

Array = NDArray[Any]
Floats = NDArray[np.float64]

OPEN = "open"
"""The mark that counts the steps of each environment's open path, which end with the newest entry."""


class Rollout(PendingStep):
    """A keeper of the steps of the present policy: observations in a store, all else in RAM.

    Args:
        buffer, add: as in :class:`PendingStep`.
        arrays: the arrays in RAM, ``(n_envs, n_size, ...)`` by group and name.
        fills: the value of an array's empty entries, by its name; 0 if not named.
    """

    def __init__(
        self, buffer: SampledBuffer[Any], add: Callable[[dict[str, Any], Mapping[str, Any]], None],
        arrays: dict[str, dict[str, Any]], fills: Mapping[str, Any],
    ) -> None:  # fmt: skip
        marks = {OPEN: np.zeros(buffer.num_envs, np.int64)}
        super().__init__(buffer, RamState(marks=marks, arrays=arrays, fills=fills), add)

    def resume(self) -> None:
        """Go on as the buffer was closed, but give up a rollout whose estimates are lost: it teaches nothing."""
        if not self.restore() and len(self.buffer):
            self.buffer.clear()

    @property
    def start_ids(self) -> Ids:
        """The position at which each environment's open path begins."""
        return (self.ring.pos - self.ram.marks[OPEN]) % self.ring.size

    def path(self, env: int) -> Ids:
        """Return the entries of an environment's open path, oldest first."""
        found: Ids = (self.start_ids[env] + np.arange(self.ram.marks[OPEN][env])) % self.ring.size
        return found

    def store(self, row: dict[str, Any], beside: Iterable[tuple[Array, Any]]) -> None:
        """Store a step: its row, and what goes into arrays in RAM."""
        at, steps = (slice(None), self.ring.pos), self.ram.marks[OPEN]
        longer = set_item(steps, slice(None), np.minimum(steps + 1, self.ring.size))
        self.put(row, *(set_item(memory, at, values) for memory, values in beside), longer)

    def finish(self, env: int, estimates: Iterable[tuple[Array, Array]]) -> None:
        """Write the estimates of an environment's open path, and end it; the next path begins with the next entry."""
        at = env, self.path(env)
        written = (set_item(memory, at, values) for memory, values in estimates)
        self.change(*written, set_item(self.ram.marks[OPEN], env, 0), *self.cut(env))


def check_full(size: int, needed: int) -> None:
    """Raise NotEnoughDataError if a rollout is not full."""
    if size < needed:
        raise NotEnoughDataError(
            f"the buffer holds {size} of {needed} entries; sample it when it is full, or call clear()"
        )


def checked_indexes(indexes: Any, count: int) -> Ids:
    """Return indexes ``(B,)`` of ``count`` entries; raise InputError if they are something else."""
    chosen = check_array("indexes", indexes)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise InputError(f"indexes must be integers of shape (B,), got {chosen.dtype} {chosen.shape}")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < count):
        raise InputError(f"indexes must be 0 to {count - 1}, got {chosen.min()} to {chosen.max()}")
    return chosen.astype(np.int64)


def normalized(advantages: Array, counted: Array | None = None) -> Array:
    """Return advantages with mean 0 and standard deviation 1 over those counted, all if None, and 0 elsewhere."""
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
    """Return the returns and advantages ``(T, N)`` of ``T`` consecutive steps of ``N`` agents.

    Args:
        rewards: one for each agent and step, or one for all agents: ``(T, N, ...)`` or ``(T, 1, ...)`` or ``(T,)``.
        values: ``(T, N, 1)`` or ``(T, N)``.
        next_value: the value of what follows the last step, ``N`` numbers or one.
        terminals: bool, in the shape of the rewards; where True, what follows does not count.
        gamma, lambda_: discount factor, and lambda of advantages or of targets.
        value_normalizer: an object with ``denormalize``; values are of what it normalises. Advantages and returns are
            of true values.
        td_targets: returns are TD(lambda) targets, and advantages are returns less values; otherwise generalised
            advantage estimation.
    """
    count, agents = values.shape[:2]
    shape = (count, agents)
    value = _true(values.reshape(*shape, 1), value_normalizer).reshape(shape)
    given = check_array("the value of the last step", next_value)
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
    return check_array("denormalize's result", given).astype(np.float64)
