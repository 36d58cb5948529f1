"""A target of two arrays takes what one array of all steps takes, and so does the compiled copy."""

from unittest import mock

import numpy as np
import pytest
from helpers.effort import examples
from helpers.forged import blocks_of
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.native import core
from diskreplay.process import background
from diskreplay.reading import compiled
from diskreplay.reading.target import Target

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


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_two_arrays_are_as_one(data: st.DataObject) -> None:
    two, one = pair()
    places = st.integers(0, BATCH - 1)
    for number in range(1, 8):
        place, step = data.draw(places), data.draw(st.integers(0, FRAMES))
        repeated = data.draw(st.booleans())
        count = data.draw(st.integers(1, FRAMES + 1 - step))
        for target in (two, one):
            if repeated:
                target.repeat(place, min(step, FRAMES - 1))
            else:
                target.put(place, step, SOURCE[number : number + count])
        check(two, one)


CHUNK_ROWS = 4
SLAB = SOURCE.reshape(-1, CHUNK_ROWS, WIDTH)
BLOCKS = np.array([[chunk.ctypes.data, chunk.nbytes, 0, 0, 0] for chunk in SLAB])


def chunks_in_ram() -> core.Chunks:
    """Two lists of chunks: all but the last two, and all but the first two."""
    found = blocks_of([BLOCKS[:-2], BLOCKS[2:]], CHUNK_ROWS)
    for column in found.columns:
        column.column.item_bytes = SOURCE.itemsize * WIDTH
    return found


def a_piece_for_each_place(rng: np.random.Generator) -> np.ndarray:
    """Pieces ``(BATCH, 13)``, each from a slot."""
    row, step = rng.integers(CHUNK_ROWS, size=BATCH), rng.integers(FRAMES + 1, size=BATCH)
    rows = 1 + rng.integers(np.minimum(CHUNK_ROWS - row, FRAMES + 1 - step))
    none = np.zeros(BATCH, np.int64)
    slots, stream = rng.integers(len(SLAB) - 2, size=BATCH), rng.integers(2, size=BATCH)
    return np.stack(
        [rng.permutation(BATCH), step, row, rows, none, none, stream, slots, *[none] * 2, none + 1, *[none] * 2], axis=1
    )


@pytest.mark.parametrize("helpers", [0, 3])
def test_pieces_of_decoded_chunks(helpers: int) -> None:
    rng = np.random.default_rng(0)
    with mock.patch.object(background, "THREADS", helpers + 1), mock.patch.object(compiled, "LEAST_HITS", 1):
        for _ in range(50):
            pieces = a_piece_for_each_place(rng)
            two, one = pair()
            expected = np.zeros_like(one.first)
            for place, step, row, rows, _, _, stream, slot, *_ in pieces.tolist():
                expected[place, step : step + rows] = SLAB[slot + 2 * stream, row : row + rows]
            for target in (two, one):
                assert compiled.take(chunks_in_ram(), pieces, target) == 0
            np.testing.assert_array_equal(one.first, expected)
            check(two, one)


def test_no_piece_is_copied_that_does_not_fit() -> None:
    good, (two, _) = a_piece_for_each_place(np.random.default_rng(0)), pair()
    chunks = chunks_in_ram()
    wrong = [(0, BATCH), (1, FRAMES + 1), (2, CHUNK_ROWS), (3, 0), (3, CHUNK_ROWS + 1), (6, 2), (7, len(SLAB) - 2)]
    for part, value in [*wrong, *((part, -1) for part in (0, 1, 2, 3, 6, 7))]:  # whatever asks for it
        pieces = good.copy()
        pieces[3, part] = value
        assert chunks.take(pieces, 0, BATCH, 2 * WIDTH, np.zeros(1, np.int64), True, *two.bytes) == 3


@given(data=st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_run_fills_places_one_after_another(data: st.DataObject) -> None:
    """Each place of a run has a row and, in the other array, the one after it; nothing else is touched."""
    twice, place, places = data.draw(st.booleans()), data.draw(st.integers(0, 2)), data.draw(st.integers(1, BATCH - 2))
    step = data.draw(st.integers(0, places - 1 + twice))
    row = data.draw(st.integers(0, CHUNK_ROWS - 1))
    rows = data.draw(st.integers(1, min(CHUNK_ROWS - row, places + twice - step)))
    expected = np.full((2, BATCH, WIDTH), -1, np.int16)
    for at in range(step, step + rows):
        if at < places:
            expected[0, place + at] = SLAB[0, row + at - step]
        if at > 0 and twice:
            expected[1, place + at - 1] = SLAB[0, row + at - step]
    piece = np.array([[place, step, row, rows, 0, 0, 0, 0, 0, 0, places, 0, 0]])
    for copy in (
        lambda target: target.put(place, step, SLAB[0, row : row + rows], places),
        lambda target: compiled.take(chunks_in_ram(), piece, target),
    ):
        both = np.full((2, BATCH, 1, WIDTH), -1, np.int16)
        copy(Target(*both) if twice else Target(both[0]))
        np.testing.assert_array_equal(both[:, :, 0], expected)
