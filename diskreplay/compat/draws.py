"""Draws of a buffer's own sampler and generator that its public methods do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.compat.rows import window

Ids = NDArray[np.int64]


def draw(buffer: SampledBuffer[Any], size: int, rng: Any = None) -> tuple[Ids, NDArray[np.float32]]:
    """``size`` ids and their weights, as the sampler draws them; more than there are transitions too.

    ``rng`` has ``random(size)``; the buffer's own generator if None.
    """
    with buffer._lock:
        buffer._check_open()
        rng = buffer._rng if rng is None else rng
        return buffer.sampler.sample(rng, buffer._streams.windows(), buffer._standing, size)


def draw_unique(buffer: SampledBuffer[Any], size: int) -> Ids:
    """``size`` different ids of the window's, uniformly drawn by the buffer's own generator."""
    with buffer._lock:
        buffer._check_open()
        first = window(buffer).begin * buffer.num_envs
        found: Ids = first + buffer._rng.choice(len(buffer), size, replace=False)
        return found


def integers(buffer: SampledBuffer[Any], most: int, size: int) -> Ids:
    """``size`` whole numbers below ``most``, of the buffer's own generator."""
    with buffer._lock:
        return buffer._rng.integers(most, size=size)


def probabilities(buffer: SampledBuffer[Any], ids: Ids) -> NDArray[np.float64]:
    """Of ids in the next draw."""
    with buffer._lock:
        buffer._check_open()
        return buffer.sampler.probability(ids, buffer._streams.windows(), buffer._standing)
