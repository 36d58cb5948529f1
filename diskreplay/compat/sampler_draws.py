"""Draws of a buffer's own sampler and generator that its public methods do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.compat.rows import window
from diskreplay.ids import Ids


def draw(buffer: SampledBuffer[Any], size: int, rng: Any = None) -> tuple[Ids, NDArray[np.float32]]:
    """``size`` ids and their weights, as the sampler draws them; more than there are transitions too.

    ``rng`` has ``random(size)``; the buffer's own generator if None.
    """
    with buffer.engine.lock:
        buffer.engine.check_open()
        return buffer.draws.draw(size, rng)


def draw_unique(buffer: SampledBuffer[Any], size: int) -> Ids:
    """``size`` different ids of the window's, uniformly drawn by the buffer's own generator."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        first = window(buffer).begin * buffer.num_envs
        return first + buffer.engine.rng.choice(len(buffer), size, replace=False)


def integers(buffer: SampledBuffer[Any], most: int, size: int) -> Ids:
    """``size`` whole numbers below ``most``, of the buffer's own generator."""
    with buffer.engine.lock:
        return buffer.engine.rng.integers(most, size=size)


def probabilities(buffer: SampledBuffer[Any], ids: Ids) -> NDArray[np.float64]:
    """Of ids in the next draw."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        return buffer.sampler.probability(ids, buffer.engine.streams.windows(), buffer.draws.standing)
