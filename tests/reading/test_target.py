"""A target of two arrays takes what one array of all steps takes, and so does the compiled copy."""

import dataclasses
from unittest import mock

import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay import workers
from diskreplay.reading import compiled
from diskreplay.reading.target import Target
from diskreplay.schema.columns import CHOSEN, Column

FRAMES, WIDTH, BATCH = 3, 5, 6
SOURCE = np.arange(40 * WIDTH, dtype=np.int16).reshape(40, WIDTH)


def pair() -> tuple[Target, Target]:
    """A target of two arrays, and one of a single array for all steps; all are zeros."""
    two = Target(np.zeros((BATCH, FRAMES, WIDTH), np.int16), np.zeros((BATCH, FRAMES, WIDTH), np.int16))
    return two, Target(np.zeros((BATCH, FRAMES + 1, WIDTH), np.int16))


def check(two: Target, one: Target) -> None:
    assert two.following is not None
    np.testing.assert_array_equal(two.first, one.first[:, :FRAMES])
    np.testing.assert_array_equal(two.following, one.first[:, 1:])
    assert two.steps == one.steps == FRAMES + 1
    assert len(two) == len(one) == BATCH


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_two_arrays_are_as_one(data: st.DataObject) -> None:
    two, one = pair()
    places = st.integers(0, BATCH - 1)
    for number in range(1, 8):
        place, step = data.draw(places), data.draw(st.integers(0, FRAMES))
        way = data.draw(st.sampled_from(["run", "a step for all", "a step each", "repeat"]))
        count = data.draw(st.integers(1, FRAMES + 1 - step))
        for target in (two, one):
            if way == "run":
                target.put(place, step, SOURCE[number : number + count])
            elif way == "a step for all":
                target.put_each(np.array([place, (place + 1) % BATCH]), step, SOURCE[number : number + 2])
            elif way == "a step each":
                steps = step + np.arange(count)
                target.put_each(np.full(count, place), steps, SOURCE[number : number + count])
            else:
                target.repeat(place, min(step, FRAMES - 1))
        check(two, one)


CHUNK_ROWS = 4
SLAB = SOURCE.reshape(-1, CHUNK_ROWS, WIDTH)
COLUMN = Column("frames", (WIDTH,), np.dtype(np.int16), CHOSEN)
BLOCKS = np.array([[chunk.ctypes.data, chunk.nbytes, 0] for chunk in SLAB])
SLABS = np.array([[BLOCKS.ctypes.data, len(SLAB) - 2], [BLOCKS[2:].ctypes.data, len(SLAB) - 2]])
"""Two lists of chunks: all but the last two, and all but the first two."""


def a_piece_for_each_place(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Slots, and pieces ``(7, BATCH)`` of the chunks in them."""
    row, step = rng.integers(CHUNK_ROWS, size=BATCH), rng.integers(FRAMES + 1, size=BATCH)
    rows = 1 + rng.integers(np.minimum(CHUNK_ROWS - row, FRAMES + 1 - step))
    none = np.zeros(BATCH, np.int64)
    slots, slab = rng.integers(len(SLAB) - 2, size=BATCH), rng.integers(2, size=BATCH)
    return slots, np.array([rng.permutation(BATCH), step, row, rows, none, none, slab])


@pytest.mark.parametrize("helpers", [0, 3])
def test_pieces_of_decoded_chunks(helpers: int) -> None:
    assert compiled.KERNEL.now() is not None
    rng = np.random.default_rng(0)
    with mock.patch.object(workers, "_helpers", helpers), mock.patch.object(compiled, "LEAST_HITS", 1):
        for _ in range(50):
            slots, pieces = a_piece_for_each_place(rng)
            two, one = pair()
            expected = np.zeros_like(one.first)
            for slot, (place, step, row, rows, _, _, slab) in zip(slots.tolist(), pieces.T.tolist(), strict=True):
                expected[place, step : step + rows] = SLAB[slot + 2 * slab, row : row + rows]
            for target in (two, one):
                assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, slots, pieces, target) == (BATCH, 0)
            np.testing.assert_array_equal(one.first, expected)
            check(two, one)


def test_what_the_compiled_copy_leaves_to_python() -> None:
    assert compiled.KERNEL.now() is not None
    slots, pieces = a_piece_for_each_place(np.random.default_rng(0))
    two, _ = pair()
    wider = dataclasses.replace(COLUMN, dtype=np.dtype(np.int32))
    assert compiled.take(wider, CHUNK_ROWS, SLABS, slots, pieces, two) == (0, 0)
    crosswise = Target(np.zeros((FRAMES, BATCH, WIDTH), np.int16).swapaxes(0, 1))
    assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, slots, pieces, crosswise) == (0, 0)
    wrong = [(0, BATCH), (1, FRAMES + 1), (2, CHUNK_ROWS), (3, 0), (3, CHUNK_ROWS + 1)]
    for part, value in [*wrong, *((part, -1) for part in range(4))]:  # never to be copied, whatever asks for it
        odd = pieces.copy()
        odd[part, 3] = value
        assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, slots, odd, two)[0] == 3
    for slot in (-1, len(SLAB) - 2):
        one_odd = np.where(np.arange(BATCH) == 3, slot, slots)
        assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, one_odd, pieces, two)[0] == 3
    for slab in (-1, 2):
        odd = pieces.copy()
        odd[6, 3] = slab
        assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, slots, odd, two)[0] == 3
    with mock.patch.object(compiled.KERNEL, "code", None):
        assert compiled.take(COLUMN, CHUNK_ROWS, SLABS, slots, pieces, two) == (0, 0)
