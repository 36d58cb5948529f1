"""The arrays that are pictures: which shapes are, and their pixels.

Values of two axes may as well be a sequence of vectors: :func:`are_vectors` tells.

A frame is ``(H, W)``, ``(H, W, channels)`` or ``(channels, H, W)`` with 1 to 4 channels, two of them side by side.
uint8 is shown as it is, everything else scaled from the bounds of its space, or from what it holds where the space is
unbounded.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.process.locks import held_back
from diskreplay.schema import spaces
from diskreplay.schema.columns import Column, Schema

CHANNELS = (1, 2, 3, 4)
"""The numbers of channels that an image may have."""

MOST_STACKED = 64
"""The most channels that a stack of pictures may have."""
LEAST_STACKED = 16
"""The least pixels of the sides of a stacked picture; smaller ones are taken for vectors."""


def leaves(schema: Schema) -> list[tuple[Column, gymnasium.Space[Any] | None]]:
    """Return the observation leaves with their spaces, then the video columns; video as its frames."""
    observed = zip(schema.obs_columns, spaces.leaf_spaces(schema.observation_space), strict=True)
    videos = ((column, None) for column in schema.extra_columns if column.name in schema.videos)
    return [(schema.picture(column), space) for column, space in (*observed, *videos)]


def is_image(shape: Sequence[int]) -> bool:
    """Tell whether values of this shape are pictures; very thin ones are taken for vectors."""
    if len(shape) == 2:
        return min(shape) >= 4
    if len(shape) != 3:
        return False
    return (shape[2] in CHANNELS and min(shape[:2]) >= 4) or (shape[0] in CHANNELS and min(shape[1:]) >= 4)


def are_vectors(shape: Sequence[int], dtype: np.dtype[Any], space: gymnasium.Space[Any] | None = None) -> bool:
    """Tell whether values of two axes are vectors, one after another, rather than a picture: curves show them.

    Numbers of one byte make pictures. Others do where both sides are long, and the space, if it is known, has a lower
    bound.
    """
    if len(shape) != 2 or dtype.itemsize == 1:
        return False
    unbounded = isinstance(space, gymnasium.spaces.Box) and not space.is_bounded("below")
    return min(shape) < LEAST_STACKED or unbounded


def pictures_of(shape: Sequence[int], dtype: np.dtype[Any], space: gymnasium.Space[Any] | None = None) -> bool:
    """Tell whether observations of this shape are shown as pictures: images, and stacks along a channel axis."""
    if are_vectors(shape, dtype, space):
        return False
    if is_image(shape):
        return True
    return len(shape) == 3 and any(
        shape[axis] <= MOST_STACKED and min(shape[other] for other in range(3) if other != axis) >= LEAST_STACKED
        for axis in (0, 2)
    )


def newest(frame: Array) -> Array:
    """Return the newest picture of a frame that may hold several along its channels, for :func:`to_pixels`.

    Four channels in front are a stack, four behind are colours and opacity; of more, every three are colours.
    """
    if frame.ndim != 3 or (is_image(frame.shape) and frame.shape[0] != 4):
        return frame
    if frame.shape[0] == 4 and frame.shape[2] in (1, 3, 4):
        return frame  # a thin image, channels last
    front = frame.shape[0] <= frame.shape[2]
    channels = frame.shape[0] if front else frame.shape[2]
    kept = 3 if channels > 4 and channels % 3 == 0 else 1
    return frame[-kept:] if front else frame[:, :, -kept:]


def space_bounds(space: gymnasium.Space[Any] | None, dtype: np.dtype[Any]) -> tuple[float, float] | None:
    """Return the values that are black and white by dtype and space, or None if only the values can tell."""
    if dtype == np.uint8:
        return 0.0, 255.0
    if isinstance(space, gymnasium.spaces.Box):
        low, high = float(np.min(space.low)), float(np.max(space.high))
        if space.dtype is not None and np.dtype(space.dtype).kind == "f":
            bounded = math.isfinite(low) and math.isfinite(high)
        else:
            bounded = high - low < 1 << 24  # not just the range of the integer type
        if bounded:
            return low, high
    return None


def to_pixels(frame: Array, low: float, high: float) -> NDArray[np.uint8]:
    """Return a frame in any layout that :func:`is_image` takes as ``(H, W)`` or ``(H, W, 3 | 4)`` uint8."""
    if frame.ndim == 3 and frame.shape[2] not in CHANNELS:
        frame = np.moveaxis(frame, 0, -1)
    if frame.ndim == 3 and frame.shape[2] <= 2:
        frame = np.concatenate([frame[:, :, channel] for channel in range(frame.shape[2])], axis=1)
    if frame.dtype != np.uint8:
        span = (high - low) or 1.0
        frame = (np.clip((frame.astype(np.float64) - low) / span, 0, 1) * 255).round()
        frame = np.nan_to_num(frame)
    return np.ascontiguousarray(frame, np.uint8)


def to_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return a PNG of ``(H, W)`` or ``(H, W, 3 | 4)`` uint8."""
    with held_back():
        from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def spread(frames: Iterable[Array]) -> tuple[float, float]:
    """Return the least and the largest finite value of some frames, or 0 and 1 if there are no two."""
    low, high = np.inf, -np.inf
    for frame in frames:
        finite = frame[np.isfinite(frame)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low < high else (0.0, 1.0)
