"""Checks of arguments: what is taken comes back in a type of Python's, anything else is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from diskreplay.checks import check_count, check_flag, check_key, check_share, checked_number
from diskreplay.errors import InputError, SchemaError


@pytest.mark.parametrize(
    ("check", "given", "taken"),
    [
        (check_count, np.uint8(3), 3),
        (check_share, np.float32(0.5), 0.5),
        (check_share, 1, 1.0),
        (checked_number, np.int64(2), 2.0),
        (checked_number, 0, 0.0),
        (check_flag, np.bool_(True), True),
    ],
)
def test_numbers_of_numpy_become_those_of_python(check: Callable[..., Any], given: Any, taken: Any) -> None:
    found = check("it", given)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("check", "given"),
    [
        *((check_count, given) for given in (0, -1, 1 << 49, 1.0, True, "1", None)),
        *((check_share, given) for given in (-0.1, 1.1, float("nan"), "1", None)),
        *((checked_number, given) for given in (-1, float("inf"), float("nan"), True, "1", None)),
        *((check_flag, given) for given in (0, 1, "True", None)),
    ],
)
def test_what_breaks_the_rule_is_named(check: Callable[..., Any], given: Any) -> None:
    with pytest.raises(InputError, match=r"^it must be "):
        check("it", given)


def test_a_number_that_must_be_above_zero() -> None:
    assert checked_number("it", 1e-300, above=True) == 1e-300
    with pytest.raises(InputError, match="above 0, got 0"):
        checked_number("it", 0, above=True)


@pytest.mark.parametrize(
    "key", ["", "a/b", "..", ".a", "__x", "a\0", "a\n", "a\\b", "zarr.json", 5, None, "k" * 129, "c:"]
)
def test_keys_that_name_no_array(key: Any) -> None:
    with pytest.raises(SchemaError, match="key"):
        check_key(key, "obs")


@pytest.mark.parametrize("key", ["camera", "a b", "größe", "x.y", "0", "A-1_2", "c.0.0"])
def test_keys_that_name_one(key: str) -> None:
    assert check_key(key, "obs") == key
