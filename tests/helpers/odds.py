"""With what probability a buffer draws what."""

from typing import Any

import numpy as np


def chances_of(buffer: Any, ids: Any = None) -> np.ndarray:
    """The probability that its sampler states for each of these items; of all items without `ids`."""
    items = buffer.items() if ids is None else ids
    found: np.ndarray = buffer.sampler.probability(items, buffer.engine.streams.windows(), buffer.draws.standing)
    return found
