"""XuanCe's memory tools: arrays in RAM for steps of several environments, the base of its buffers, and one episode."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from diskreplay.checks import Array, check_count
from diskreplay.errors import InputError
from diskreplay.views.batch import map_arrays

Shape = tuple[int, ...]
Shapes = Shape | dict[str, Shape]


def create_memory(shape: Any, n_envs: int, n_size: int, dtype: DTypeLike = np.float32) -> Any:
    """Return zeros in RAM for the steps of several environments.

    Args:
        shape: the shape of one entry; a dict of such, where None stands for Python objects; None for no memory.
        n_envs, n_size: environments, and steps of each.
        dtype: the dtype of the arrays, except those of Python objects.

    Returns:
        An array ``(n_envs, n_size, *shape)``, a dict of such, or None.

    Raises InputError for what is no shape.
    """
    n_envs, n_size = check_count("n_envs", n_envs), check_count("n_size", n_size)
    if shape is None:
        return None
    if isinstance(shape, Mapping):
        return {
            key: np.zeros((n_envs, n_size), object) if value is None else _zeros(value, n_envs, n_size, dtype)
            for key, value in shape.items()
        }
    return _zeros(shape, n_envs, n_size, dtype)


def _zeros(shape: Any, n_envs: int, n_size: int, dtype: DTypeLike) -> Array:
    return np.zeros((n_envs, n_size, *checked_shape("shape", shape)), dtype)


def store_element(data: Any, memory: Any, ptr: int) -> None:
    """Write one step of all environments into a memory.

    Args:
        data: ``(n_envs, *shape)``, or what numpy broadcasts to that; a dict of such for a memory that is one, whose
            other keys stay as they are; None for nothing.
        memory: a memory that :func:`create_memory` made.
        ptr: the step.

    Raises InputError, with nothing written, where ``data`` does not fit.
    """
    if data is None:
        return
    if memory is None:
        raise InputError("there is no memory for this element: it was created with the shape None")
    if isinstance(data, Mapping) != isinstance(memory, Mapping):
        raise InputError(
            f"data for a memory that is a {type(memory).__name__} must be one too, got {type(data).__name__}"
        )
    parts = dict(data) if isinstance(data, Mapping) else {None: data}
    places = memory if isinstance(memory, Mapping) else {None: memory}
    unknown = [key for key in parts if key not in places]
    if unknown:
        raise InputError(f"the memory has no entry {unknown[0]!r}; it has {list(places)}")
    for key, value in parts.items():
        _write(key, value, places[key][:, ptr].copy())
    for key, value in parts.items():
        _write(key, value, places[key][:, ptr])


def _write(key: Any, value: Any, into: Array) -> None:
    try:
        into[...] = value
    except (TypeError, ValueError) as error:
        what = "data" if key is None else f"data[{key!r}]"
        raise InputError(f"{what} must have the shape {into.shape}: {error}") from error


def sample_batch(memory: Any, index: Any) -> Any:
    """Return entries of a memory.

    Args:
        memory: a memory that :func:`create_memory` made.
        index: an index as numpy takes it, such as a tuple of environments ``(B,)`` and steps ``(B,)``.

    Returns:
        ``memory[index]``, a dict of such, or None where the memory is None.
    """
    return map_arrays(operator.itemgetter(index), memory)


class Buffer(ABC):
    """The base of XuanCe's buffers.

    Args:
        observation_space, action_space: Gymnasium's, or of another library that has ``shape``; a Dict of such.
        auxiliary_info_shape: shapes of further values by name; None for no values.

    Attributes:
        observation_space, action_space: the arguments of these names.
        auxiliary_shape: ``auxiliary_info_shape``.
        n_size: steps (or episodes) that the buffer holds, set by the subclass.
        ptr, size: the place that is written next, and how many are there.
    """

    n_size: int
    ptr: int = 0
    size: int = 0

    def __init__(
        self, observation_space: Any, action_space: Any, auxiliary_info_shape: Mapping[str, Any] | None
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.auxiliary_shape = auxiliary_info_shape

    @property
    def full(self) -> bool:
        """True if every place is taken."""
        return bool(self.size >= self.n_size)

    @abstractmethod
    def store(self, *args: Any, **kwargs: Any) -> None:
        """Add an entry."""

    @abstractmethod
    def clear(self, *args: Any) -> None:
        """Empty the buffer."""

    @abstractmethod
    def sample(self, *args: Any) -> Any:
        """Return a batch."""

    def finish_path(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing when an episode has ended."""
        return


class EpisodeBuffer:
    """One episode, in RAM.

    The first observation is appended to ``obs`` before the first :meth:`put`, which adds the observation after each
    action, so that ``obs`` ends one longer than the others.

    Attributes:
        obs, action, reward, done: lists of what came.
    """

    def __init__(self) -> None:
        self.obs: list[Any] = []
        self.action: list[Any] = []
        self.reward: list[Any] = []
        self.done: list[Any] = []

    def put(self, transition: Any) -> None:
        """Add ``[next_obs, action, reward, done]``; raise InputError, with nothing added, for anything else."""
        try:
            obs, action, reward, done = transition
        except (TypeError, ValueError) as error:
            raise InputError(f"a transition must be [obs, action, reward, done]: {error}") from error
        self.obs.append(obs)
        self.action.append(action)
        self.reward.append(reward)
        self.done.append(done)

    def sample(self, lookup_step: int | None = None, idx: int | None = None) -> dict[str, Array]:
        """Return ``lookup_step`` steps from step ``idx`` on.

        Args:
            lookup_step: the number of steps; all that follow if None.
            idx: the first; 0 if None.

        Returns:
            ``obs`` ``(lookup_step + 1, ...)``, ``acts``, ``rews`` and ``done`` ``(lookup_step, ...)``; fewer where the
            episode ends before.
        """
        first = check_count("idx", 0 if idx is None else idx, least=0)
        count = len(self) - first if lookup_step is None else check_count("lookup_step", lookup_step, least=0)
        last = first + max(count, 0)
        return {
            "obs": np.array(self.obs[first : last + 1]),
            "acts": np.array(self.action[first:last]),
            "rews": np.array(self.reward[first:last]),
            "done": np.array(self.done[first:last]),
        }

    def __len__(self) -> int:
        return len(self.action)


def space_shape(what: str, space: Any) -> Shapes:
    """Return the shape of a space's values, by key for a Dict, or a shape as it is; raise InputError for others."""
    parts = getattr(space, "spaces", space)
    if isinstance(parts, Mapping):
        return {key: _leaf_shape(f"{what}[{key!r}]", part) for key, part in parts.items()}
    return _leaf_shape(what, space)


def _leaf_shape(what: str, space: Any) -> Shape:
    shape = space if isinstance(space, tuple | list) else getattr(space, "shape", None)
    if shape is None:
        raise InputError(f"{what} must be a space with a shape, or a Dict of such, got {space!r}")
    return checked_shape(what, shape)


def checked_shape(what: str, shape: Any) -> Shape:
    """Return a shape as a tuple; raise InputError if it is none."""
    try:
        return tuple(check_count(what, n) for n in shape)
    except TypeError as error:
        raise InputError(f"{what} must be a shape, a tuple or list of integers, got {shape!r}") from error
