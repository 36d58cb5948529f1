"""Many steps at once, added as if one after another: checked together, then written in runs.

A run is a step and those after it that continue it in every environment. Its first step goes the way of every row; the
others need no look at the pending observation, and are copied chunk by chunk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.engine.appender import Appender
from diskreplay.errors import InputError
from diskreplay.schema import CONTINUES, OBS, TERMINATED, TRUNCATED, VALID

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Steps:
    """Checked steps; every array is ``(steps, num_envs, *shape)``, or ``(steps, *shape)`` with one environment.

    Attributes:
        obs, next_obs: by leaf.
        values: of each column, in the order of the store's.
        ended: the step ended an episode, or is no transition.
        follows: ``(steps,)``; the step continues the one before it in every environment.
    """

    obs: list[Array]
    next_obs: list[Array]
    values: list[Array]
    ended: Array
    follows: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.follows)


def checked(
    appender: Appender, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
    extra: Mapping[str, Any],
) -> Steps:  # fmt: skip
    """The steps; InputError where an argument breaks its rule."""
    schema, flags = appender.schema, appender.flag
    rewards = np.asarray(reward)
    if rewards.ndim != 1 + appender.lead:
        raise InputError(f"reward must lead with the steps, got shape {rewards.shape}")
    count = len(rewards)
    is_valid = None if valid is None else flags[VALID].check_steps(valid, count)
    counts = True if is_valid is None else is_valid
    leaves, following = (
        [
            slot.check_steps(part, count, counts)
            for slot, part in zip(slots, spaces.flatten(schema.obs_tree, given, what), strict=True)
        ]
        for what, slots, given in ((OBS, appender.obs, obs), ("next_obs", appender.next_obs, next_obs))
    )
    actions = spaces.flatten(schema.action_tree, action, "action")
    values = [slot.check_steps(part, count, counts) for slot, part in zip(appender.actions, actions, strict=True)]
    rewards = appender.reward.check_steps(rewards, count)
    if not np.isfinite(rewards).all():
        step = int(np.argwhere(~np.isfinite(rewards))[0, 0])
        raise InputError(f"reward of step {step} must be finite, got {rewards[step]}; nothing was added")
    ends, cuts = flags[TERMINATED].check_steps(terminated, count), flags[TRUNCATED].check_steps(truncated, count)
    if is_valid is None:
        is_valid = np.ones(ends.shape, bool)
    appender.check_columns(extra)
    extras = [slot.check_steps(extra[name], count, counts) for name, slot in appender.extras.items()]
    starts = np.full(ends.shape, CONTINUES, np.uint8)
    ended = ends | cuts | ~is_valid
    return Steps(
        leaves, following, [*leaves, *values, rewards, ends, cuts, is_valid, starts, *extras], ended,
        _follows(leaves, following, ended, is_valid),
    )  # fmt: skip


def one(appender: Appender, steps: Steps, at: int) -> tuple[Any, ...]:
    """The arguments of ``Appender.add`` for a step."""
    schema, first = appender.schema, len(steps.obs)
    row = [values[at] for values in steps.values]
    actions = row[first : first + len(appender.actions)]
    reward, terminated, truncated, valid, _, *extras = row[first + len(actions) :]
    obs, next_obs = ([values[at] for values in leaves] for leaves in (steps.obs, steps.next_obs))
    return (
        spaces.unflatten(schema.obs_tree, obs), spaces.unflatten(schema.action_tree, actions), reward,
        spaces.unflatten(schema.obs_tree, next_obs), terminated, truncated, valid,
        dict(zip(appender.extras, extras, strict=True)),
    )  # fmt: skip


def _follows(obs: list[Array], next_obs: list[Array], ended: Array, valid: Array) -> NDArray[np.bool_]:
    follows = np.zeros(len(ended), bool)
    going_on = ~ended[:-1] & valid[1:]
    going_on = going_on.all(axis=tuple(range(1, going_on.ndim)), keepdims=True).ravel()
    for at in np.flatnonzero(going_on).tolist():
        follows[at + 1] = all(
            after[at].tobytes() == given[at + 1].tobytes() for given, after in zip(obs, next_obs, strict=True)
        )
    return follows
