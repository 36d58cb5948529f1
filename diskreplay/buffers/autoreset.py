"""Vector environments that reset by themselves: the modes, and the final observations that they hide."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import vector

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


def final_observations(next_obs: Any, info: Mapping[str, Any]) -> Any:
    """Return the true next observations of a vector environment that resets in the same step.

    With Gymnasium's ``AutoresetMode.SAME_STEP`` (and Gymnasium 0.29's vector environments) ``step`` returns the
    observation after the reset, and the final one in ``info["final_obs"]`` (``info["final_observation"]``), an object
    array with an entry where ``info["_final_obs"]`` is True.

    Args:
        next_obs: the next observations that ``step`` returned, ``(num_envs, *obs_shape)``, nested as the space; of a
            ragged space a list with one for each environment.
        info: the infos that ``step`` returned.

    Returns:
        A copy of ``next_obs`` with the final observations in their places; ``next_obs`` itself where none ended.

    >>> info = {"final_obs": np.array([None, np.ones(2)], object), "_final_obs": np.array([False, True])}
    >>> final_observations(np.zeros((2, 2)), info).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    key = "final_obs" if "final_obs" in info else "final_observation"
    if key not in info:
        return next_obs
    finals = info[key]
    ended = np.flatnonzero(info[f"_{key}"])

    def put(value: Any, at: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: put(part, lambda env, name=name: at(env)[name]) for name, part in value.items()}
        if isinstance(value, tuple):
            return tuple(put(part, lambda env, i=i: at(env)[i]) for i, part in enumerate(value))
        filled = list(value) if isinstance(value, list) else np.array(value)
        for env in ended:
            filled[env] = at(env)
        return filled

    if isinstance(finals, Mapping):  # nested spaces: a mapping of object arrays

        def entry(env: int, node: Any = finals) -> Any:
            return {k: entry(env, v) for k, v in node.items()} if isinstance(node, Mapping) else node[env]

        return put(next_obs, entry)
    return put(next_obs, lambda env: finals[env])
