"""The statistics of a LeRobotDataset, of each episode and of all, number for number as LeRobot 0.4.4 computes them.

1. Of an episode and feature: least, greatest, mean, standard deviation and five quantiles for each component, or for
   each channel of a camera, whose values are divided by 255; and the number of frames.
2. Quantiles come from a histogram with ``BINS`` bins between the least and the greatest value.
3. Of a camera's frames some are looked at, and of a large picture some rows and columns.
4. Squares are taken in the values' own dtype, so that those of pixels overflow, and their standard deviation is wrong.
   Who trains with LeRobot's numbers gets LeRobot's.
5. Those of all episodes are the weighted means of those of each, added one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diskreplay.checks import Array

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
BINS, PADDING = 5000, 1e-10
SMALL_PIXELS, REDUCED_PIXELS = 300, 150
Stats = Mapping[str, Array]


def of_values(values: Array) -> dict[str, Array]:
    """Return the statistics of an episode's values ``(n, *shape)``."""
    flat = values.reshape(len(values), -1) if values.ndim == 1 else values.reshape(-1, values.shape[-1])
    found = _of_vectors(flat)
    return {**found, "count": np.array([len(values)])}


def of_pictures(pictures: Array) -> dict[str, Array]:
    """Return the statistics of some frames of an episode, uint8 ``(n, height, width, 3)`` from :func:`reduced`."""
    found = _of_vectors(pictures.reshape(-1, 3))
    shaped = {name: value.reshape(3, 1, 1) / 255.0 for name, value in found.items()}
    return {**shaped, "count": np.array([len(pictures)])}


def reduced(picture: Array) -> Array:
    """Return a picture, ``(height, width)`` or with channels last, as the ``(h, w, 3)`` that statistics look at."""
    channels = picture.reshape(*picture.shape[:2], -1)
    coloured = np.repeat(channels, 3, axis=2) if channels.shape[2] == 1 else channels[..., :3]
    height, width = coloured.shape[:2]
    if max(height, width) < SMALL_PIXELS:
        return coloured
    step = max(height, width) // REDUCED_PIXELS
    return coloured[::step, ::step]


def chosen(length: int) -> list[int]:
    """Return the frames of an episode of some length that statistics look at."""
    count = max(min(100, length), min(int(length**0.75), 10_000))
    return [int(number) for number in np.round(np.linspace(0, length - 1, count))]


def _of_vectors(values: Array) -> dict[str, Array]:
    low, high, mean = values.min(axis=0), values.max(axis=0), np.mean(values, axis=0)
    if len(values) < 2:
        return {"min": low, "max": high, "mean": mean, "std": np.std(values, axis=0), **dict.fromkeys(QUANTILES, mean)}
    variance = np.mean(values**2, axis=0) - mean**2
    found = {"min": low, "max": high, "mean": mean, "std": np.sqrt(np.maximum(0, variance))}
    histograms = [_histogram(values[:, at]) for at in range(values.shape[1])]
    for name, share in QUANTILES.items():
        found[name] = np.array([_quantile(*each, share * len(values)) for each in histograms])
    return found


def _histogram(values: Array) -> tuple[Array, Array]:
    if values.dtype == np.float16:  # whose edges could fall, or be infinite
        values = values.astype(np.float32)
    edges = np.linspace(values.min() - PADDING, values.max() + PADDING, BINS + 1)
    numbers = values.view(np.uint8) if values.dtype == bool else values
    return np.cumsum(np.histogram(numbers, bins=edges)[0].astype(np.float64)), edges


def _quantile(cumulative: Array, edges: Array, count: float) -> float:
    at = int(np.searchsorted(cumulative, count))
    if at == 0 or at == len(cumulative):
        return float(edges[0] if at == 0 else edges[-1])
    before, within = cumulative[at - 1], cumulative[at] - cumulative[at - 1]
    return float(edges[at] + (count - before) / within * (edges[at + 1] - edges[at]))


def added(total: Mapping[str, Stats] | None, episode: Mapping[str, Stats]) -> dict[str, dict[str, Array]]:
    """Return the statistics of all features with one more episode; those of the first are its own."""
    if total is None:
        return {key: dict(stats) for key, stats in episode.items()}
    return {key: weighted(total[key], episode[key]) for key in episode}


def weighted(*each: Stats) -> dict[str, Array]:
    """Return the statistics of all values, of those of several parts; quantiles where each part has them."""

    def stacked(name: str) -> Array:
        return np.stack([stats[name] for stats in each])

    means, counts = stacked("mean"), stacked("count")
    total = counts.sum(axis=0)
    weights = counts.reshape(*counts.shape, *[1] * (means.ndim - counts.ndim))
    mean = (means * weights).sum(axis=0) / total
    variance = ((np.stack([stats["std"] ** 2 for stats in each]) + (means - mean) ** 2) * weights).sum(axis=0) / total
    quantiles = {name: (stacked(name) * weights).sum(axis=0) / total for name in QUANTILES
                 if all(name in stats for stats in each)}  # fmt: skip
    low, high = stacked("min").min(axis=0), stacked("max").max(axis=0)
    return {"min": low, "max": high, "mean": mean, "std": np.sqrt(variance), "count": total, **quantiles}
