"""Keys as numpy's arrays take them, at random."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_key(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """A key for an array of this shape: an axis has a slice, an integer or a list, or is left out at the end."""

    def part(size: int) -> Any:
        kind = rng.integers(6)
        if kind < 2:
            ends = [None if rng.random() < 0.5 else int(rng.integers(-size - 1, size + 2)) for _ in range(2)]
            return slice(*ends, [None, 1, 2, -1][rng.integers(4)])
        if kind < 4:
            return int(rng.integers(-size, size)) if kind == 2 else rng.integers(-size, size, dtype=np.int32)
        return rng.integers(-size, size, [(2,), (1,), (2, 2)][rng.integers(3)])

    if rng.random() < 0.05:
        return rng.random(shape[0]) < 0.5
    parts = [part(size) for size in shape[: rng.integers(len(shape) + 1)]]
    if rng.random() < 0.2:
        parts.insert(rng.integers(len(parts) + 1), None)
    elif rng.random() < 0.2:
        parts.append(...)
    return parts[0] if len(parts) == 1 and rng.random() < 0.5 else tuple(parts)


def check_keys(found: Any, wanted: np.ndarray, count: int, seed: int = 0) -> None:
    """``found[key]`` is ``wanted[key]`` for so many random keys, or an IndexError where that is one."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        key = random_key(rng, wanted.shape)
        try:
            expected = wanted[key]
        except IndexError:  # two lists of other lengths
            try:
                found[key]
            except IndexError:
                continue
            raise AssertionError(f"{key} must be refused, as numpy does") from None
        np.testing.assert_array_equal(found[key], expected, err_msg=str(key), strict=True)
