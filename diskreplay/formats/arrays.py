"""Datasets that are in RAM: plain arrays, and Stable-Baselines3's replay buffers.

>>> import numpy, tempfile
>>> from diskreplay.formats.arrays import from_arrays
>>> from diskreplay.ops.convert import import_dataset
>>> source = from_arrays(obs=numpy.zeros((10, 3)), action=numpy.arange(10) % 2, terminated=numpy.arange(10) % 5 == 4)
>>> with tempfile.TemporaryDirectory() as folder:
...     import_dataset(source, f"{folder}/a.replay").episodes
2

Only views are made of what is given: it must not change until the import is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array, check_array
from diskreplay.errors import InputError
from diskreplay.formats.core.ends import EndsUnknown, ends_of
from diskreplay.formats.core.flat import FlatArrays, flags
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.schema import spaces
from diskreplay.schema.columns import ACTION, OBS, TERMINATED, TRUNCATED

Nested = Any
"""An array, or dicts and tuples of arrays."""


def from_arrays(
    obs: Nested, action: Nested, reward: Array | None = None, next_obs: Nested = None, terminated: Array | None = None,
    truncated: Array | None = None, *, last: Array | None = None, first: Array | None = None,
    lengths: Array | None = None, columns: Mapping[str, Array] | None = None,
    observation_space: gymnasium.Space[Any] | None = None, action_space: gymnasium.Space[Any] | None = None,
) -> Source:  # fmt: skip
    """Return arrays of steps as a source, with episodes one after another.

    Args:
        obs, action: ``(N, *shape)``, nested as the spaces.
        reward: ``(N,)``; zeros if None.
        next_obs: the next observations, like ``obs``; the next step's observation if None. Then the last step of an
            episode that was not terminated is left out: its next observation is not known.
        terminated, truncated: ``(N,)`` bool; False if None. Without ``truncated``, an end that ``first`` or ``lengths``
            tells and that is not terminated is truncated.
        last: ``(N,)`` bool: ends of episodes in neither flag.
        first: ``(N,)`` bool, or the numbers of the first steps of episodes.
        lengths: ``(episodes,)``: their numbers of steps.
        columns: further ones, ``(N, *shape)``.
        observation_space, action_space: both, or the widest that the arrays allow if None.

    Raises InputError where nothing tells the ends of episodes, for ragged lengths, and for arrays that are not of the
    spaces.
    """
    where = "the arrays given"
    observations, actions = _leaves(obs, OBS), _leaves(action, ACTION)
    leaf = next(iter(observations.values()))
    count = len(leaf) if leaf.shape else 0
    flagged = {TERMINATED: terminated, TRUNCATED: truncated, "/last": last}
    told = {
        name: flags(where, name.strip("/"), check_array(name.strip("/"), each), count)
        for name, each in flagged.items()
        if each is not None
    }
    numbered = {"/first": first, "/lengths": lengths}
    told |= {name: check_array(name.strip("/"), values) for name, values in numbered.items() if values is not None}
    if last is not None:
        told.setdefault(TRUNCATED, np.zeros(count, bool))
    try:
        ends = ends_of(where, told, {name: name.strip("/") for name in told}, count)
    except EndsUnknown as error:
        raise InputError(
            f"{where}: nothing tells where episodes end; give one of terminated, truncated, last, first or lengths "
            f"(lengths=[{count}] says that all are one episode)"
        ) from error
    further = {name: check_array(name, values) for name, values in (columns or {}).items()}
    rewards = None if reward is None else check_array("reward", reward)
    following = None if next_obs is None else _leaves(next_obs, OBS, "next_")
    arrays = FlatArrays(
        where, observations, actions, ends.terminated, ends.truncated, ends.last, rewards, further, following
    )  # fmt: skip
    if (observation_space is None) != (action_space is None):
        raise InputError("give both spaces, or none")
    if observation_space is not None and action_space is not None:
        inferred = arrays.source().layout
        layout = dataclasses.replace(
            inferred, observation_space=observation_space, action_space=action_space, stacks=()
        )
        arrays = dataclasses.replace(arrays, layout=layout)
    return arrays.source()


def _leaves(value: Nested, name: str, prefix: str = "") -> dict[str, Array]:
    if not isinstance(value, Mapping | tuple):
        return {name: check_array(f"{prefix}{name}", value)}
    parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    return {leaf: part for key, sub in parts for leaf, part in _leaves(sub, f"{name}/{key}", prefix).items()}


@dataclasses.dataclass(frozen=True)
class _EnvMajor:
    """An array ``(rows, envs, ...)`` as ``(envs * rows, *shape)``: environment by environment, rows in some order."""

    base: Array
    order: NDArray[np.int64]
    value_shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.order) * self.base.shape[1], *self.value_shape

    def __getitem__(self, rows: slice) -> Array:
        envs, at = np.divmod(np.arange(*rows.indices(self.shape[0])), max(1, len(self.order)))
        return self.base[self.order[at], envs].reshape(len(at), *self.value_shape).astype(self.dtype, copy=False)


def from_sb3(buffer: Any) -> Source:
    """Return Stable-Baselines3's ``ReplayBuffer`` or ``DictReplayBuffer`` as a source, environment by environment.

    Its timeouts become truncations. With ``optimize_memory_usage`` it holds no final observations. Continuous actions
    are as it keeps them: scaled to ``[-1, 1]`` by the algorithms that filled it.

    Raises InputError for an object that is no such buffer.
    """
    names = ("observations", "actions", "rewards", "dones", "pos", "full", "observation_space", "action_space")
    if missing := [name for name in names if not hasattr(buffer, name)]:
        raise InputError(f"{type(buffer).__name__} is no replay buffer of Stable-Baselines3: it has no {missing[0]!r}")
    shared = bool(getattr(buffer, "optimize_memory_usage", False))
    size, pos = buffer.rewards.shape[0], int(buffer.pos)
    # A shared array holds the newest next observation where the oldest row stood.
    order = (pos + shared + np.arange(size - shared)) % size if buffer.full else np.arange(pos)

    def flat(base: Array, shape: tuple[int, ...], dtype: Any) -> _EnvMajor:
        return _EnvMajor(base, order, shape, np.dtype(dtype))

    def leaves(space: gymnasium.Space[Any], values: Any, root: str) -> dict[str, _EnvMajor]:
        arrays = (
            {f"{root}/{key}": array for key, array in values.items()} if isinstance(values, dict) else {root: values}
        )
        named = spaces.named_leaves(space, root)
        return {name: flat(arrays[name], *spaces.leaf_layout(leaf, name)) for name, leaf in named.items()}

    dones, rewards = flat(buffer.dones, (), bool)[:], flat(buffer.rewards, (), np.float32)
    timeouts = flat(buffer.timeouts, (), bool)[:] if hasattr(buffer, "timeouts") else np.zeros_like(dones)
    envs = buffer.rewards.shape[1]
    newest = np.zeros((envs, len(order)), bool)
    newest[:, -1:] = True
    observation_space, action_space = buffer.observation_space, buffer.action_space
    return FlatArrays(
        type(buffer).__name__, leaves(observation_space, buffer.observations, OBS),
        leaves(action_space, buffer.actions, ACTION), dones & ~timeouts, dones & timeouts, dones | newest.reshape(-1),
        rewards, {}, None if shared else leaves(observation_space, buffer.next_observations, OBS),
        layout=Layout(observation_space, action_space),
    ).source()  # fmt: skip
