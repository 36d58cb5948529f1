"""A target of two arrays takes what one array of all steps takes, and so does the compiled copy."""

import contextlib
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.reading import compiled, threads
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


@pytest.mark.parametrize("helpers", [0, 3])
@pytest.mark.parametrize("way", ["numpy", "compiled"])
def test_all_steps_at_once(way: str, helpers: int) -> None:
    assert compiled.load() is not None
    rng = np.random.default_rng(0)
    take: dict[str, Callable[[Target, np.ndarray], object]] = {
        "numpy": lambda target, rows: target.take(SOURCE, rows),
        "compiled": lambda target, rows: compiled.take(SOURCE, rows, target) or pytest.fail("left to numpy"),
    }
    with mock.patch.object(threads, "_most", helpers), mock.patch.object(compiled, "LEAST_PLACES", 1):
        for _ in range(20):
            two, one = pair()
            rows = rng.integers(len(SOURCE), size=(BATCH, FRAMES + 1))
            take[way](two, rows)
            take[way](one, rows)
            np.testing.assert_array_equal(one.first, SOURCE[rows])
            check(two, one)


def test_what_the_compiled_copy_leaves_to_numpy() -> None:
    assert compiled.load() is not None
    rows = np.zeros((BATCH, FRAMES + 1), np.int64)
    two, _ = pair()
    assert not compiled.take(SOURCE.astype(np.int32), rows, two)
    assert not compiled.take(SOURCE[:, ::2], rows, two)
    assert not compiled.take(SOURCE, rows, Target(np.zeros((FRAMES, BATCH, WIDTH), np.int16).swapaxes(0, 1)))
    for row in (-1, len(SOURCE)):  # never to be read, whatever asks for it
        rows[3, 1] = row
        assert not compiled.take(SOURCE, rows, two)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(compiled, "_kernel", None))
        assert not compiled.take(SOURCE, np.zeros_like(rows), two)
