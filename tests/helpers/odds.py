"""With what probability a buffer draws what."""

from typing import Any

import numpy as np

import diskreplay as dr

ALPHA, EPSILON = 0.6, 1e-6
"""Of the samplers whose probabilities :func:`by_formula` knows: their defaults."""


def chances_of(buffer: Any, ids: Any = None) -> np.ndarray:
    """The probability that its sampler states for each of these items; of all items without `ids`."""
    items = buffer.items() if ids is None else ids
    found: np.ndarray = buffer.sampler.probability(items, buffer.engine.streams.windows(), buffer.draws.standing)
    return found


def by_formula(sampler: Any, ids: Any, told: Any, envs: Any = None) -> np.ndarray:
    """The probability of each item by the formulas of Schaul et al. (2016).

    Args:
        sampler: with ALPHA and EPSILON.
        ids: of the items.
        told: the last priority of each, NaN where none was told; none is above 1, which is what new ones get.
        envs: the environment of each, whose totals are made equal; None if they are not.
    """
    ids, told = np.asarray(ids), np.asarray(told, np.float64)
    new = np.isnan(told)
    if isinstance(sampler, dr.RankBased):
        order = np.lexsort((-ids, -np.where(new, 1.0, told)))
        masses = np.empty(len(ids))
        masses[order] = np.arange(1, len(ids) + 1) ** -ALPHA
    elif isinstance(sampler, dr.Proportional):
        masses = np.where(new, 1.0, told + EPSILON) ** ALPHA
    else:
        masses = np.ones(len(ids))
    if envs is None:
        return masses / masses.sum()
    totals = np.bincount(envs, masses)
    return masses / totals[envs] / np.count_nonzero(totals)
