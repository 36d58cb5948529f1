"""The facts that d3rlpy asks of a dataset: signatures of its arrays, and the kind of its actions."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from d3rlpy.constants import ActionSpace
from d3rlpy.dataset import DatasetInfo, Signature
from gymnasium import spaces
from numpy.typing import DTypeLike

from diskreplay.checks import Array
from diskreplay.compat.arguments import numbers
from diskreplay.errors import InputError
from diskreplay.schema.columns import REWARD, Schema, Stack
from diskreplay.schema.spaces import flatten, leaf_spaces

Shape = tuple[int, ...]


def of_gymnasium(space: Any) -> Any:
    """Return a space of Gym's, whose environments d3rlpy takes too, as one of Gymnasium's, and any other as it is."""
    if not type(space).__module__.startswith("gym."):
        return space
    match type(space).__name__:
        case "Box":
            return spaces.Box(space.low, space.high, space.shape, space.dtype)
        case "Discrete":
            return spaces.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
        case "Dict":
            return spaces.Dict({key: of_gymnasium(part) for key, part in space.spaces.items()})
        case "Tuple":
            return spaces.Tuple([of_gymnasium(part) for part in space.spaces])
    return space


def dataset_info(schema: Schema) -> DatasetInfo:
    """Return the dataset's facts; raise InputError if d3rlpy has no place for the store's observations or actions."""
    kind, size, action = actions(schema.action_space)
    leaves, reward = boxes(schema.observation_space), schema.column(REWARD).dtype
    shapes = [_shape(space.shape, space.dtype, stack) for space, stack in zip(leaves, schema.stacks, strict=True)]
    return DatasetInfo(
        observation_signature=Signature(dtype=[space.dtype for space in leaves], shape=shapes),
        action_signature=Signature(dtype=[schema.action_space.dtype], shape=[action]),
        reward_signature=Signature(dtype=[np.dtype(reward)], shape=[(1,)]),
        action_space=kind,
        action_size=size,
    )


def actions(space: Any) -> tuple[ActionSpace, int, Shape]:
    """Return the kind of a space's actions, how many there are (or numbers in one), and the shape of one in d3rlpy."""
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ActionSpace.DISCRETE, int(space.n), (1,)
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return ActionSpace.CONTINUOUS, space.shape[0], space.shape
    raise InputError(
        f"d3rlpy takes actions of a Box with one axis, or of a Discrete space that starts at 0, not of {space}"
    )


def boxes(space: Any) -> list[spaces.Box]:
    """Return the leaves of a space of observations; raise InputError for one that is not a Box."""
    leaves = leaf_spaces(space)
    for leaf in leaves:
        if not isinstance(leaf, spaces.Box):
            raise InputError(f"d3rlpy takes observations that are a Box, or several of them, not {leaf}")
    return cast(list[spaces.Box], leaves)


def _shape(shape: Shape, dtype: DTypeLike | None, stack: Stack) -> Shape:
    """Return a leaf's shape in d3rlpy: a vector for a number, a channel for a picture's frame."""
    if stack.frames > 1 and stack.axis is None:
        if len(shape) == 3 and shape[0] <= shape[-1]:
            return (stack.frames * shape[0], *shape[1:])
        return (stack.frames, *shape)
    if len(shape) == 2 and dtype == np.uint8:
        return (1, *shape)
    return shape or (1,)


def joined(leaves: list[Array]) -> Any:
    """Return leaves as d3rlpy has them: an array if there is one leaf, else a list."""
    return leaves[0] if len(leaves) == 1 else leaves


class ObservationLeaves:
    """The observations of a store's batches as lists of arrays, or one array, ``(n, *shape)``."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.info = dataset_info(schema)
        self.shapes: list[Shape] = list(self.info.observation_signature.shape)
        self.dtypes: list[Any] = list(self.info.observation_signature.dtype)

    def leaves(self, observations: Any) -> list[Array]:
        """Return the leaves ``(n, *shape)`` of a batch's ``obs`` or ``next_obs``."""
        found = flatten(self._schema.obs_tree, observations, "obs")
        return [leaf.reshape(len(leaf), *shape) for leaf, shape in zip(found, self.shapes, strict=True)]

    def empty(self, steps: int) -> list[Array]:
        """Return zeros ``(steps, *shape)`` a leaf."""
        return [np.zeros((steps, *shape), dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)]

    def as_stored(self, observation: Any) -> list[Array]:
        """Return copies of an observation as the store takes them: ``(*shape)`` a leaf.

        InputError for one of another shape, and for NaN and infinity in a store that was made to refuse them.
        """
        space = self._schema.observation_space
        if isinstance(space, spaces.Dict | spaces.Tuple) and not isinstance(observation, list):
            parts = flatten(self._schema.obs_tree, observation, "observation")
        else:
            parts = observation if isinstance(observation, list) else [observation]
        leaves = leaf_spaces(space)
        if len(parts) != len(leaves):
            raise InputError(f"the observation has {len(parts)} arrays, the dataset {len(leaves)}")
        finite = self._schema.finite
        return [
            numbers("observation", part, cast(Shape, leaf.shape), leaf.dtype, finite=finite).copy()
            for part, leaf in zip(parts, leaves, strict=True)
        ]

    @property
    def action_shape(self) -> Shape:
        return tuple(self.info.action_signature.shape[0])

    @property
    def action_dtype(self) -> Any:
        return self.info.action_signature.dtype[0]

    @property
    def step_bytes(self) -> int:
        """The number of bytes of one observation."""
        return sum(math.prod(s) * np.dtype(d).itemsize for s, d in zip(self.shapes, self.dtypes, strict=True))
