"""An array on disk indexes as numpy's arrays do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from helpers.keys import check_keys

from diskreplay.compat.disk_array import DiskArray, fit
from diskreplay.errors import InputError

VALUES = np.arange(7 * 3 * 2, dtype=np.int16).reshape(7, 3, 2)
KEYS = [
    0, -1, np.int64(3), slice(None), slice(2, 5), slice(None, None, -2), slice(9, 12), [4, 1, 4], np.array([], int),
    np.array([[0, 1], [6, 0]]), np.arange(7) % 2 == 0, ..., None, (2, 1), (2, 1, 0), (slice(1, 3), 2), (..., 0),
    ([0, 3, 3], [1, 2, 0]), ([0, 3, 3], [1, 2, 0], slice(None)), ([5, 1], slice(1, None)), (-2, slice(None), 1),
]  # fmt: skip


def rows(values: np.ndarray = VALUES) -> DiskArray:
    def read(positions: np.ndarray) -> np.ndarray:
        assert positions.ndim == 1
        assert ((positions >= 0) & (positions < len(values))).all()
        return values[positions]

    return DiskArray(values.shape[:1], values.shape[1:], values.dtype, read)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys(key: Any) -> None:
    found, expected = rows()[key], VALUES[key]
    assert (np.shape(found), found.dtype) == (np.shape(expected), expected.dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "key", [*KEYS, (slice(2), [1, 0]), ([0, 2], [1, 2], [1, 0]), (slice(None), 1, [0, 1])], ids=str
)
def test_keys_of_two_leading_axes(key: Any) -> None:
    """An array as the last of three keys was not paired with the others."""
    found = DiskArray((7, 3), (2,), VALUES.dtype, lambda positions: VALUES.reshape(21, 2)[positions])[key]
    np.testing.assert_array_equal(found, VALUES[key])


GRID = np.arange(3 * 2 * 2 * 3, dtype=np.int16).reshape(3, 2, 2, 3)


def grid(lead: int) -> DiskArray:
    shape = GRID.shape[lead:]
    flat = GRID.reshape(-1, *shape)

    def read(positions: np.ndarray) -> np.ndarray:
        assert (np.diff(positions) > 0).all()
        return flat[positions]

    return DiskArray(GRID.shape[:lead], shape, GRID.dtype, read)


@pytest.mark.parametrize("lead", [1, 2, 3])
@pytest.mark.parametrize(
    "key",
    [
        (slice(None), [0, 1], slice(None), 0), ([0, 1], slice(None), 0), (slice(None), [[1], [0]], 0, slice(None)),
        (1, slice(None), [0, 1], 2), (slice(None), 1, slice(None), [0, 2]), ([2, 0], slice(1), [0, 1], slice(None)),
    ],
    ids=str,
)  # fmt: skip
def test_an_integer_joins_a_list(lead: int, key: Any) -> None:
    """Regression: behind a slice it did not, and the axes came in another order."""
    np.testing.assert_array_equal(grid(lead)[key], GRID[key], strict=True)


@pytest.mark.parametrize("lead", [1, 2, 3])
def test_random_keys_are_numpys(lead: int) -> None:
    check_keys(grid(lead), GRID, examples(1_000), seed=lead)


def test_what_a_key_does_not_name_is_not_read() -> None:
    values, asked = np.arange(20 * 30).reshape(20, 30, 1), []

    def read(positions: np.ndarray) -> np.ndarray:
        asked.extend(positions.tolist())
        return values.reshape(600, 1)[positions]

    array = DiskArray((20, 30), (1,), values.dtype, read)
    for key, count in (
        ((slice(2, 4), [5, 1, 5]), 4), (([5, 1], [6, 0], 0), 2), ((3, slice(4, 9), 0), 5), (7, 30),
        ((slice(0, 2), [0, 1], 0), 4),
    ):  # fmt: skip
        asked.clear()
        np.testing.assert_array_equal(array[key], values[key])
        assert len(asked) == count


@pytest.mark.parametrize("key", [7, -8, (0, 3), [9]], ids=str)
def test_what_is_outside(key: Any) -> None:
    with pytest.raises(IndexError):
        rows()[key]


def test_numbers_by_row() -> None:
    numbers = rows(np.arange(5.0))
    assert numbers[3] == 3.0
    np.testing.assert_array_equal(numbers[[1, 1]], [1.0, 1.0])


def test_as_an_array() -> None:
    found = rows()
    assert (found.shape, found.ndim, found.size, found.nbytes, len(found)) == ((7, 3, 2), 3, 42, 84, 7)
    np.testing.assert_array_equal(np.asarray(found), VALUES)
    assert np.asarray(found, np.float32).dtype == np.float32
    assert (found == VALUES).all()
    np.testing.assert_array_equal(list(found), list(VALUES))
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(found, copy=False)
    with pytest.raises(TypeError):
        found[0] = 1  # type: ignore[index]  # nothing can be written


@pytest.mark.parametrize("value", [1e300, [1e300], np.array([[0.0], [-1e300]])])
def test_numbers_that_do_not_fit(value: Any) -> None:
    """They became infinite, as in an assignment of numpy's."""
    with pytest.raises(InputError, match=r"^x: -?1e\+300 is too large for float32"):
        fit("x", value, (2, 1), np.float32)
    np.testing.assert_array_equal(fit("x", np.inf, (2, 1), np.float32), [[np.inf], [np.inf]])
