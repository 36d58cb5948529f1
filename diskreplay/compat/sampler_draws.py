"""Draws by a buffer's own sampler and generator that its public methods do not offer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.compat.rows import window
from diskreplay.schema.ids import Ids


def draw(buffer: SampledBuffer[Any], size: int, rng: Any = None) -> tuple[Ids, NDArray[np.float32]]:
    """Return ``size`` ids and their weights as the sampler draws them, even more than there are transitions.

    ``rng`` has ``random(size)``; the buffer's own generator if None.
    """
    with buffer.engine.lock:
        buffer.engine.check_open()
        return buffer.draws.draw(size, rng)


def draw_unique(buffer: SampledBuffer[Any], size: int) -> Ids:
    """Return ``size`` different ids of the window, drawn uniformly by the buffer's own generator."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        first = window(buffer).begin * buffer.num_envs
        return first + buffer.engine.rng.choice(len(buffer), size, replace=False)


def integers(buffer: SampledBuffer[Any], most: int, size: int) -> Ids:
    """Return ``size`` whole numbers below ``most``, drawn by the buffer's own generator."""
    with buffer.engine.lock:
        return buffer.engine.rng.integers(most, size=size)


def probabilities(buffer: SampledBuffer[Any], ids: Ids) -> NDArray[np.float64]:
    """Return the probability of each id in the next draw."""
    with buffer.engine.lock:
        buffer.engine.check_open()
        return buffer.sampler.probability(ids, buffer.engine.streams.windows(), buffer.draws.standing)


def priorities(buffer: SampledBuffer[Any]) -> NDArray[np.float64]:
    """Return what the sampler's index holds for each row: ``p^alpha``, or TD errors if ranks count."""
    with buffer.engine.lock:
        probabilities(buffer, np.empty(0, np.int64))  # shows the sampler the newest rows
        _, arrays = buffer.draws.state()
    return next(array for name, array in arrays.items() if name != "waiting")
