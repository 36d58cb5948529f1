"""How an observation leaf is taken in: which frames of the given array are stored."""

from __future__ import annotations

import numpy as np

from diskreplay.checks import Array
from diskreplay.schema.columns import Column, Stack


class ObsLeaf:
    """An observation leaf as ``add`` is given it."""

    def __init__(self, column: Column, stack: Stack) -> None:
        self.name = column.name
        self.stack = stack
        self.stacked = stack.axis is not None
        self.frame_shape = column.shape
        shape = column.shape
        if stack.axis == 0:
            shape = (stack.frames * shape[0], *shape[1:]) if stack.channels else (stack.frames, *shape)
        elif stack.axis == -1:
            shape = (*shape[:-1], stack.frames * shape[-1]) if stack.channels else (*shape, stack.frames)
        self.shape = shape
        """The shape of one environment's given value."""

    def frames(self, given: Array) -> Array:
        """Return the stacks of given values, which lead with the environments, as a view, oldest first.

        The view is ``(num_envs, frames, *frame_shape)``.
        """
        count = self.stack.frames
        if self.stack.axis == 0:
            if not self.stack.channels:
                return given
            return given.reshape(len(given), count, *self.frame_shape)
        if self.stack.channels:
            given = given.reshape(*given.shape[:-1], count, self.frame_shape[-1])
            return np.moveaxis(given, -2, 1)
        return np.moveaxis(given, -1, 1)

    def split(self, given: Array) -> tuple[Array, Array]:
        """Return given values as stacks of frames, if they are stacks, and their newest frames."""
        if not self.stacked:
            return given, given
        frames = self.frames(given)
        return frames, frames[:, -1]


def split(leaves: list[ObsLeaf], given: list[Array]) -> tuple[list[Array], list[Array]]:
    """Return the leaves as stacks of frames, those that are given so, and their newest frames."""
    pairs = [leaf.split(value) for leaf, value in zip(leaves, given, strict=True)]
    return [stack for stack, _ in pairs], [frame for _, frame in pairs]
