"""The natural order of names."""

from __future__ import annotations

import random

import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.formats.core.names import natural


@pytest.mark.parametrize(
    "names",
    [
        ["ep_2", "ep_10"], ["ep_2.npz", "ep_10.npz", "ep_100.npz"], ["2", "10"], ["a", "a1", "a1b", "a1b2", "a1b10"],
        ["20230101T2-9-50", "20230101T2-10-50", "20230101T10-1-50"], ["a-9.x-00010-of-00012", "a-10.x-00002-of-00012"],
        ["chunk-9/file-10", "chunk-10/file-9"], ["ep_0", "ep_00", "ep_000", "ep_1"], ["", "0", "a"],
        ["demo_" + "9" * 5000, "demo_1" + "0" * 5000],
    ],
)  # fmt: skip
def test_names_in_their_order(names: list[str]) -> None:
    for seed in range(5):
        assert sorted(random.Random(seed).sample(names, len(names)), key=natural) == names


@settings(max_examples=examples(100))
@given(st.lists(st.lists(st.integers(0, 10**30), min_size=2, max_size=2), unique_by=tuple), st.integers(1, 12))
def test_numbers_decide_whatever_digits_they_have(numbers: list[list[int]], digits: int) -> None:
    names = {f"a{one:0{digits}}_b{two}.npz": (one, two) for one, two in numbers}
    assert [names[name] for name in sorted(names, key=natural)] == sorted(names.values())


@pytest.mark.long
@settings(max_examples=examples(100))
@given(st.text(), st.text())
def test_any_two_names_have_an_order(one: str, two: str) -> None:
    assert (natural(one) < natural(two)) == (one != two and not natural(two) < natural(one))
