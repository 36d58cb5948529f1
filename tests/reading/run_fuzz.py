"""Blocks of runs, made and forged, between pages that nobody may touch; a process that might die of it.

Arguments: a seed, how many. Prints how many blocks were taken as they are, and how many were refused.
"""

from __future__ import annotations

import collections
import json
import sys

import numpy as np
from helpers.forged import blocks_of
from reading.plan_fuzz import ROOMS, between_guards

from diskreplay.native import core


def take(
    block: np.ndarray, key: np.ndarray, count: int, width: int, rng: np.random.Generator, at_end: bool
) -> tuple[bool, np.ndarray]:
    """All rows of a block, as single steps; and whether all were taken."""
    facts = between_guards(np.array([[block.ctypes.data, block.nbytes, key.ctypes.data, 0, 0]]), at_end)
    chunks = blocks_of([facts], count)
    pieces = np.zeros((count, 13), np.int64)
    pieces[:, 0] = pieces[:, 2] = np.arange(count)
    pieces[:, 3] = pieces[:, 10] = 1
    out = between_guards(np.full((count, width), 7, np.uint8), at_end)
    packed = np.zeros(1, np.int64)
    done = chunks.take(pieces, 0, count, width, packed, True, out)
    assert packed[0] == done
    # And as runs of steps, into two arrays.
    length = int(rng.integers(1, count + 1))
    first, following = (between_guards(np.zeros((1, length * width), np.uint8), at_end) for _ in range(2))
    begin = int(rng.integers(0, count - length + 1))
    here = min(count - begin, length + 1)
    piece = np.array([[0, 0, begin, here, *[0] * 6, 1, 0, 0]])
    if chunks.take(piece, 0, 1, width, packed, True, first, following) and done == count:
        both = out[begin : begin + here]
        assert (first[0, : here * width] == both[:length].reshape(-1)[: here * width]).all()
        assert (following[0, : (here - 1) * width] == both[1:].reshape(-1)).all()
    return done == count, out


def one(rng: np.random.Generator) -> collections.Counter[str]:
    at_end = bool(rng.integers(2))
    count, width = (
        int(rng.integers(1, 7)),
        int(rng.choice([8, 9, 15, 16, 40, 300, 70_000], p=[0.1] * 4 + [0.3, 0.2, 0.1])),
    )
    key = between_guards(rng.integers(0, 4, width).astype(np.uint8), at_end)
    rows = np.repeat(key[None], count, axis=0)
    share = rng.choice([0, 0.01, 0.3, 1])
    rows = np.where(rng.random(rows.shape) < share, rng.integers(0, 4, rows.shape), rows).astype(np.uint8)
    rows = between_guards(rows, at_end)
    room = between_guards(np.zeros(rows.nbytes * 5 + 4 * count + 4, np.uint8), at_end)
    size = core.pack(rows, key, room)
    assert size > 0
    block = between_guards(np.zeros(size, np.uint8), at_end)
    assert core.pack(rows, key, block) == size
    assert core.pack(rows, key, between_guards(np.zeros(size - 1, np.uint8), at_end)) == 0
    whole, found = take(block, key, count, width, rng, at_end)
    assert whole
    assert (found == rows).all()
    core.majority(rows, between_guards(np.zeros(width, np.uint8), at_end))
    ended: collections.Counter[str] = collections.Counter()
    for _ in range(4):
        forged = block.copy()
        places = rng.integers(0, size, int(rng.integers(1, 4)))
        if rng.random() < 0.5:  # where the rows begin
            places %= 4 * (count + 1)
        forged[places] = rng.choice([0, 1, 4, 255, int(rng.integers(256))], len(places))
        forged = forged[: size - int(rng.choice([0, 0, 1, min(size, 9)]))]
        whole, _ = take(between_guards(forged, at_end), key, count, width, rng, at_end)
        ended["taken" if whole else "refused"] += 1
    return ended


def main() -> None:
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    ended: collections.Counter[str] = collections.Counter()
    for number in range(count):
        ended += one(np.random.default_rng([seed, number]))
        ROOMS.clear()
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
