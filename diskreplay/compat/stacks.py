"""The number of frames that another library's observations stack: as the user says, or as the first step shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

OBS = "obs"


def images_of(space: spaces.Space[Any]) -> dict[str, tuple[int, ...]]:
    """Return shapes of the observations that may be stacked images, by key, ``obs`` if there is but one."""
    parts = space.spaces if isinstance(space, spaces.Dict) else {OBS: space}
    return {key: part.shape for key, part in parts.items() if part.shape is not None and len(part.shape) >= 3}


def stacks_named(images: Mapping[str, tuple[int, ...]], frame_stack: int | Mapping[str, int]) -> dict[str, Any]:
    """Return the frames and their axis as a caller names them; the axis is the shorter one of the first and the last.

    They are arguments of ``create``, as those of :func:`stacks_seen` are.
    """
    frames = dict(frame_stack) if isinstance(frame_stack, Mapping) else dict.fromkeys(images, frame_stack)
    shapes = [images[key] for key, count in frames.items() if key in images and count != 1]
    return {"frame_stack": frames, "stack_axis": 0 if all(shape[0] <= shape[-1] for shape in shapes) else -1}


def stacks_seen(images: Mapping[str, tuple[int, ...]], before: Any, after: Any) -> dict[str, Any]:
    """Return the frames and their axis as the first step shows them."""
    seen = {}
    for key, shape in images.items():
        pair = (before, after) if key == OBS and not isinstance(before, Mapping) else (before[key], after[key])
        seen[key] = next(((axis, count) for axis in _axes(shape) if (count := _frames(*pair, axis)) > 1), (0, 1))
    axis = next((axis for axis, count in seen.values() if count > 1), 0)
    return {"frame_stack": {key: count if at == axis else 1 for key, (at, count) in seen.items()}, "stack_axis": axis}


def _axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes along which frames may be stacked: never those of a picture, which may scroll."""
    if len(shape) > 3 or shape[0] == shape[-1]:
        return 0, -1
    first, middle, last = shape
    if middle in (first, last):  # the two of a square
        return (-1,) if middle == first else (0,)
    return (0,) if first < last else (-1,)


def _frames(before: NDArray[Any], after: NDArray[Any], axis: int) -> int:
    """Return how many frames are stacked: the most for which a stack is the one before it, moved on by a frame.

    Where all entries of the axis look the same there is nothing to see. Then three of uint8 are the colours of one
    frame, and any other number that is smaller than the other axes' are frames.
    """
    first, second = (np.moveaxis(array, axis + 1 if axis == 0 else -1, 0) for array in (before, after))
    count = len(first)
    if (first == first[:1]).all() and (second == first[:1]).all():
        image = first.ndim == 4 and first.dtype == np.uint8 and count < min(first.shape[2:])
        return count // (1 if count % 3 else 3) if image else 1
    depths = (depth for depth in range(1, count) if count % depth == 0)
    return next((count // depth for depth in depths if (second[:-depth] == first[depth:]).all()), 1)
