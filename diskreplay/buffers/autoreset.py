"""Vector environments that reset by themselves: the modes, and the final observations that they hide."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import vector
from numpy.typing import NDArray

from diskreplay.checks import arrays, check_array, first_axis
from diskreplay.errors import InputError, MisuseWarning, warn_outside

if hasattr(vector, "AutoresetMode"):
    AutoresetMode = vector.AutoresetMode
    NEXT_STEP: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    """The argument of a vector environment that asks for this mode."""
else:  # Gymnasium 1.0 has one mode, and no name for it

    class AutoresetMode(enum.Enum):  # type: ignore[no-redef]
        """The modes of resetting, as in Gymnasium 1.1."""

        NEXT_STEP = "NextStep"
        SAME_STEP = "SameStep"
        DISABLED = "Disabled"

    NEXT_STEP = {}

FINAL_OBS = ("final_obs", "final_observation")
HIDDEN = {*FINAL_OBS, "terminal_observation"}
"""The keys under which the info of one environment may hide its final observation."""
NO_MASK = (
    "info has {0!r}, but no '_{0}' that says which environments have ended, so that those of all environments are "
    "taken: give final_observations(next_obs, info, terminated | truncated)"
)
LISTED = (
    "info must be a mapping with arrays, as Gymnasium's vector environments give it, got {}. Stable-Baselines3's give "
    "a list, and hide final observations there, under 'terminal_observation'{}: put each in the place of its next_obs, "
    "and call ReplayBuffer.add, or use diskreplay.compat.sb3.DiskReplayBuffer"
)


def final_observations(next_obs: Any, info: Mapping[str, Any], done: Any = None) -> Any:
    """Return the true next observations of a vector environment that resets in the same step.

    With Gymnasium's ``AutoresetMode.SAME_STEP`` (and Gymnasium 0.29's vector environments) ``step`` returns the
    observation after the reset, and the final one in ``info["final_obs"]`` (``info["final_observation"]``). That is an
    object array with an entry where ``info["_final_obs"]`` is True, or arrays like those of ``next_obs``. Some
    environments give arrays without such a mask, which hold anything where no episode has ended. They need ``done``.

    Args:
        next_obs: the next observations that ``step`` returned, ``(num_envs, *obs_shape)``, nested as the space; of a
            ragged space a list with one for each environment.
        info: the infos that ``step`` returned.
        done: which episodes have ended, ``terminated | truncated``, bool ``(num_envs,)``. If None, those of the mask;
            if there is none either, the final observations of all environments are taken, with a MisuseWarning.

    Returns:
        A copy of ``next_obs``, as arrays, with the final observations in their places; ``next_obs`` itself where none
        ended.

    Raises InputError for infos that are a list, as those of Stable-Baselines3; where the final observation of an
    environment that has ended is missing; and where one does not fit ``next_obs``.

    >>> info = {"final_obs": np.array([None, np.ones(2)], object), "_final_obs": np.array([False, True])}
    >>> final_observations(np.zeros((2, 2)), info, done=[False, True]).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    key = next((key for key in FINAL_OBS if key in checked_info(info)), None)
    given = {"done": done, f"_{key}": info.get(f"_{key}")}
    ended, mask = (None if one is None else check_array(name, one).astype(bool) for name, one in given.items())
    if ended is not None:
        there = np.full(ended.shape, key is not None) if mask is None else mask
        lacking = np.flatnonzero(ended & ~there).tolist() if ended.shape == there.shape else "all"
        if lacking:
            raise InputError(
                f"info lacks the final observations of the environments {lacking}, which SAME_STEP promises as "
                "info['final_obs']"
            )
        mask = ended
    if key is None or (mask is not None and not mask.any()):
        return next_obs
    found = _put(key, arrays("next_obs", next_obs), arrays(key, info[key]), mask)
    if mask is None:
        warn_outside(NO_MASK.format(key), MisuseWarning)
    return found


def checked_info(info: Any, needed: bool = True) -> Mapping[str, Any]:
    """Return the infos of a step; raise InputError if they are no mapping.

    A list with one for each environment counts as an empty mapping if it is not ``needed``, and hides no observation.
    """
    if isinstance(info, Mapping):
        return info
    each = info if isinstance(info, list | tuple) else []
    hidden = [env for env, one in enumerate(each) if isinstance(one, Mapping) and HIDDEN & one.keys()]
    if needed or hidden or not each:
        raise InputError(LISTED.format(type(info).__name__, f" (here of the environments {hidden})" if hidden else ""))
    return {}


def _put(what: str, value: Any, finals: Any, ended: NDArray[np.bool_] | None) -> Any:
    """Return a copy of next observations with the final ones of some environments, or of all, in their places."""
    if isinstance(value, Mapping | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        put = {key: _put(f"{what}/{key}", part, _part(what, finals, key, type(value)), ended) for key, part in parts}
        return put if isinstance(value, Mapping) else tuple(put.values())
    envs = list(range(len(value))) if ended is None else np.flatnonzero(ended).tolist()
    if {first_axis(finals), len(value) if ended is None else ended.size} != {len(value)}:
        raise InputError(f"info[{what!r}] must have an entry for each of {len(value)} environments, got {finals!r:.80}")
    rows, ragged = {env: arrays(what, finals[env]) for env in envs}, isinstance(value, list)
    filled = value if ragged else np.array(value)
    if wrong := [env for env, one in rows.items() if one is None or not (ragged or np.shape(one) == filled.shape[1:])]:
        rule = "must be there" if ragged else f"must be arrays of shape {filled.shape[1:]}, as in next_obs"
        raise InputError(f"info[{what!r}]: the final observations of the environments {wrong} {rule}")
    if ragged:
        return [rows.get(env, one) for env, one in enumerate(value)]
    got = np.stack(list(rows.values()))
    if not np.can_cast(got.dtype, filled.dtype, "same_kind"):  # refused when it is added, unless no value changes
        filled = filled.astype(np.result_type(got, filled))
    filled[envs] = got
    return filled


def _part(what: str, finals: Any, key: Any, kind: type) -> Any:
    """Return the final observations of one part of a Dict or Tuple space, which may stand in an entry of each."""
    try:
        if isinstance(finals, Mapping) or (isinstance(finals, tuple) and issubclass(kind, tuple)):
            return finals[key]
        return [None if one is None else one[key] for one in finals]
    except (IndexError, KeyError, TypeError) as error:
        raise InputError(f"info[{what!r}] has no {key!r}, which next_obs has") from error
