"""Sizes, counts and documents of foreign files: what is taken, and what is not."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest

from diskreplay.errors import InputError
from diskreplay.formats.core.untrusted import check_size, declared_count, parse_json, read_json
from diskreplay.formats.files import hdf5


@pytest.mark.parametrize(
    ("shape", "item", "stored"),
    [
        ((1_000_000, 84, 84), 1, 400 << 20),  # a log of Atari
        ((100_000, 84, 84), 1, 20_000),  # black frames
        ((50_000_000, 3), 4, 100 << 20),
        ((4_000_000,), 1, 2_000),  # flags that are never set
        ((10, 2160, 3840, 3), 1, 1000),
        ((), 8, 0),
        ((0, 5), 4, 0),
    ],
)
def test_sizes_that_real_datasets_have(shape: tuple[int, ...], item: int, stored: int) -> None:
    check_size("x", shape, item, lambda: stored)


@pytest.mark.parametrize(
    ("shape", "item", "stored"),
    [
        ((1 << 40,), 1, 1 << 20),
        ((1 << 24, 3), 4, 10_000),
        ((1 << 22, 1 << 20), 1, 10_000),
        ((1, 1 << 30), 1, 1 << 30),
        ((1 << 63, 1 << 63), 8, 1 << 40),
    ],
)
def test_sizes_that_none_has(shape: tuple[int, ...], item: int, stored: int) -> None:
    with pytest.raises(InputError, match="x: declares the shape"):
        check_size("x", shape, item, lambda: stored)


def test_the_size_of_a_small_array_is_not_asked_for() -> None:
    check_size("x", (1000, 84, 84), 1, lambda: pytest.fail("it was"))


@pytest.mark.parametrize("value", [0, 7, 7.0, np.int64(7), np.array([7]), np.array([[7]], np.uint8), np.float32(7)])
def test_whole_numbers(value: Any) -> None:
    assert declared_count(value, "x") == np.ravel(value)[0]


@pytest.mark.parametrize(
    "value",
    [-1, 0.5, float("nan"), float("inf"), True, None, "7", [7], {}, np.arange(2), np.empty(0), 1 << 48, 10**400],
)
def test_what_is_no_whole_number(value: Any) -> None:
    with pytest.raises(InputError, match="x must be one whole number"):
        declared_count(value, "x")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", "9" * 5000, None])
def test_what_is_no_json(text: Any) -> None:
    with pytest.raises(InputError, match="x: its JSON cannot be read"):
        parse_json(text, "x")


def test_documents_that_are_missing(tmp_path: pathlib.Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="missing, or no file"):
            read_json(path)


def test_groups_in_groups(tmp_path: pathlib.Path) -> None:
    """In a circle each is looked at once; nested without end they are refused."""
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["a/b/values"] = [1, 2]
        file["a/b/again"] = file["a"]
        group = file.create_group("deep")
        for _ in range(3000):
            group = group.create_group("x")
    with hdf5.open_file(tmp_path / "a.hdf5", "r") as file:
        assert hdf5.Hdf5File(file["a"], "x").names() == ["b/values"]
        with pytest.raises(InputError, match="damaged"):
            hdf5.Hdf5File(file["deep"], "x").names()
