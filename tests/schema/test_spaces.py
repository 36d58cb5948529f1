"""Spaces as columns: structure, values and JSON."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import CorruptionError, InputError, SchemaError
from diskreplay.schema import spaces as ours
from diskreplay.schema.spec import build

INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]

shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = draw(shapes)
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(INTEGERS))
        info = np.iinfo(dtype)
        # Half of the range: Gymnasium cannot sample the whole of 64 bits.
        low = draw(st.integers(int(info.min) // 4, int(info.max) // 4 - 1))
        high = draw(st.integers(low + 1, int(info.max) // 4))
        bounds = np.full(shape, low, dtype), np.full(shape, high, dtype)
    else:
        dtype = draw(st.sampled_from(FLOATS))
        values = st.floats(-1000, 1000, width=16)
        low = np.array(draw(st.lists(values, min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))), dtype)
        bounds = low.reshape(shape), (low + 7).reshape(shape)
        if draw(st.booleans()):
            bounds = np.full(shape, -np.inf, dtype), bounds[1]
    return spaces.Box(*bounds, shape, dtype)


leaf_spaces = st.one_of(
    boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-5, 5)),
    st.lists(st.integers(1, 5), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    st.just(spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), dtype=np.int32)),
    st.integers(1, 4).map(spaces.MultiBinary),
    st.just(spaces.MultiBinary([2, 3])),
)
keys = st.text("abcxyz_-09", min_size=1, max_size=6).filter(lambda key: not key.startswith("__"))
any_space = st.recursive(
    leaf_spaces,
    lambda inner: st.one_of(
        st.dictionaries(keys, inner, min_size=1, max_size=3).map(lambda parts: spaces.Dict(list(parts.items()))),
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


@given(any_space)
@settings(max_examples=examples(100), deadline=None)
def test_json_gives_the_space_back(space: gymnasium.Space[Any]) -> None:
    found = ours.from_json(json.loads(json.dumps(ours.to_json(space), allow_nan=False)))
    assert found == space
    assert ours.tree(found, "obs") == ours.tree(space, "obs")
    assert [s.dtype for s in ours.leaf_spaces(found)] == [s.dtype for s in ours.leaf_spaces(space)]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_largest_bounds(dtype: Any) -> None:
    info = np.iinfo(dtype)
    bounds = np.array([info.min, 0], dtype), np.array([info.max, info.max], dtype)
    space = spaces.Box(*bounds, (2,), dtype)
    assert ours.from_json(json.loads(json.dumps(ours.to_json(space)))) == space


@given(any_space)
@settings(max_examples=examples(100), deadline=None)
def test_values_come_out_as_they_went_in(space: gymnasium.Space[Any]) -> None:
    tree = ours.tree(space, "obs")
    value = space.sample()
    flat = ours.flatten(tree, value, "obs")
    assert len(flat) == len(ours.leaves(tree)) == len(ours.leaf_spaces(space))
    for name, part, leaf in zip(ours.leaves(tree), flat, ours.leaf_spaces(space), strict=True):
        shape, dtype = ours.leaf_layout(leaf, name)
        assert np.asarray(part).shape == shape
        assert np.asarray(part).dtype == dtype
    again = ours.flatten(tree, ours.unflatten(tree, flat), "obs")
    assert all(a is b for a, b in zip(again, flat, strict=True))
    assert type(ours.unflatten(tree, flat)) is type(value)


def test_leaf_names_follow_the_structure() -> None:
    box = spaces.Box(0, 1, (2,))
    space = spaces.Dict([("b", spaces.Tuple([box, spaces.Dict({"c": box})])), ("a", box)])
    assert ours.leaves(ours.tree(space, "obs")) == ["obs/b/0", "obs/b/1/c", "obs/a"]


@pytest.mark.parametrize(
    "document",
    [
        None, 5, [], {}, {"kind": "Box"}, {"kind": "Sphere"}, {"kind": "Dict", "spaces": []},
        {"kind": "Dict", "spaces": {"a": {"kind": "None"}}}, {"kind": "Tuple", "spaces": 3},
        {"kind": "Box", "shape": [2], "dtype": "nothing", "low": 0, "high": 1},
        {"kind": "Box", "shape": [2], "dtype": "float32", "low": [0], "high": 1},
        {"kind": "Box", "shape": [1 << 40], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "Box", "shape": [-2], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "Box", "shape": [True], "dtype": "float32", "low": 0, "high": 1},
        {"kind": "Box", "shape": [2], "dtype": "uint8", "low": -1, "high": 1},
        {"kind": "Box", "shape": "ab", "dtype": "uint8", "low": 0, "high": 1},
        {"kind": "Discrete", "n": 0, "start": 0, "dtype": "int64"}, {"kind": "Discrete", "n": "x", "start": 0},
        {"kind": "MultiDiscrete", "nvec": [0], "start": [0], "dtype": "int64"}, {"kind": "MultiBinary", "shape": None},
    ],
    ids=repr,
)  # fmt: skip
def test_documents_that_are_no_space(document: Any) -> None:
    with pytest.raises(CorruptionError, match="cannot be read"):
        ours.from_json(document)


HUGE: list[dict[str, Any]] = [
    {"kind": "Box", "shape": [1 << 29], "dtype": "uint8", "low": 0, "high": 1},
    {"kind": "MultiBinary", "shape": [1 << 20, 1 << 20]},
    {"kind": "Tuple", "spaces": [{"kind": "Box", "shape": [1 << 26], "dtype": "int8", "low": 0, "high": 1}] * 5},
]


@pytest.mark.parametrize("document", [*HUGE, {"kind": "Dict", "spaces": {"a": HUGE[0]}}], ids=str)
def test_a_short_document_does_not_fill_the_memory(document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_from_json", None)  # refused before anything is made
    with pytest.raises(CorruptionError, match=r"elements is too large; at most 268,435,456 are read"):
        ours.from_json(document)


def test_a_space_that_could_not_be_read_back_is_refused() -> None:
    large = spaces.MultiBinary(1 << 28)
    with pytest.raises(
        SchemaError, match="obs: a value may have 268,435,456 elements, all leaves together, got 268,435,457"
    ):
        build(spaces.Tuple([large, spaces.Discrete(2)]), spaces.Discrete(2), capacity=1)


def test_nested_values_are_checked_on_the_way() -> None:
    box = spaces.Box(0, 1, (2,))
    tree = ours.tree(spaces.Dict({"a": spaces.Tuple([box, spaces.Dict({"b": box})])}), "obs")
    with pytest.raises(InputError, match=r"obs\['a'\]\[1\]: must be a dict with the keys \['b'\], got \['c'\]"):
        ours.flatten(tree, {"a": (0, {"c": 1})}, "obs")
    with pytest.raises(InputError, match=r"obs\['a'\]: must be a tuple of 2 values"):
        ours.flatten(tree, {"a": (0,)}, "obs")


def test_bounds_are_stored_compactly() -> None:
    """One number where all are one, in the shortest decimal that gives it back."""
    third = np.full((4, 4), 1 / 3, np.float32)
    space = spaces.Box(-third, third, dtype=np.float32)
    assert ours.to_json(space)["high"] == 0.33333334
    assert ours.from_json(ours.to_json(space)) == space
    low = np.array([0.1, -0.1, 1e-45, -3.4e38], np.float32)
    space = spaces.Box(low, np.float32(np.inf), dtype=np.float32)
    assert ours.to_json(space)["low"] == [0.1, -0.1, 1e-45, -3.4e38]
    assert ours.to_json(space)["high"] == "inf"
    assert ours.from_json(json.loads(json.dumps(ours.to_json(space)))) == space


@pytest.mark.parametrize("shape", [[1 << 31], [1 << 28], [1 << 20, 1 << 20]])
def test_a_value_that_no_chunk_holds(shape: list[int]) -> None:
    document = {"kind": "Box", "shape": shape, "dtype": "float64", "low": 0.0, "high": 1.0}
    with pytest.raises(CorruptionError, match="too large"):
        ours.from_json(document)


def test_spaces_nested_too_deeply() -> None:
    space: gymnasium.Space[Any] = spaces.Discrete(2)
    for _ in range(101):
        space = spaces.Tuple([space])
    with pytest.raises(SchemaError, match="100 deep"):
        ours.tree(space, "obs")
    assert ours.leaves(ours.tree(space.spaces[0], "obs")) == ["obs" + "/0" * 100]


@pytest.mark.parametrize(
    ("space", "choices"),
    [
        (spaces.Discrete(3, start=-1), (-1, 1)),
        (spaces.MultiDiscrete([3, 3]), (0, 2)),
        (spaces.MultiDiscrete([3, 5], start=[1, 0]), ([1, 0], [3, 4])),
        (spaces.MultiBinary(4), (0, 1)),
        (spaces.Box(0, 1, (2,), np.int8), None),
    ],
)
def test_choices(space: gymnasium.Space[Any], choices: Any) -> None:
    found = ours.choices(space)
    assert found == choices if found is None else [np.asarray(part).tolist() for part in found] == list(choices)
