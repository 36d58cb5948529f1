"""The language of selections, beside plain Python over random values; and what it refuses, with the place."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.errors import InputError
from diskreplay.index import where as language
from diskreplay.index.fact_values import MISSING, FactValues, values_of
from diskreplay.index.sliding import Sliding
from diskreplay.index.where import Where

OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
COLUMNS: dict[str, Any] = {
    "return": np.array([-1.5, 0.0, 100.0, 100.5]),
    "length": np.array([1, 2, 3, 4]),
    "environment": np.array([0, 1, 0, 1]),
    "end": ["terminated", "truncated", "cut", "running"],
    "stream": ["0", "0", "actor-1", "actor-1"],
    "tags": [["expert"], ["expert", "human"], [], ["it's"]],
    "success": [True, False, MISSING, True],
    "seed": [0, 2**63 + 1, MISSING, 2**63],
    "policy": ["a", 3, None, [1, "b"]],
}


def chosen(text: str, columns: dict[str, Any] = COLUMNS) -> list[int]:
    found = Where(text).matches(columns.__getitem__, 4)
    assert found.dtype == bool
    return np.flatnonzero(found).tolist()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("return > 100", [3]),
        ("return >= 1e2 and length < 4", [2]),
        ("return > 100 or tag == 'expert'", [0, 1, 3]),
        ("not (return > 100 or tag == 'expert')", [2]),
        ("not return > 100 and not success", [1, 2]),
        ("tag == 'expert' and tag == 'human'", [1]),
        ("tags != 'expert'", [2, 3]),
        ("tag == \"it's\" or tag == 'it\\'s'", [3]),
        ("success", [0, 3]),
        ("success == false", [1]),
        ("success != true", [1]),
        ("success == null", [2]),
        ("success != null", [0, 1, 3]),
        ("seed == 9223372036854775809", [1]),
        ("seed > 9223372036854775807", [1, 3]),
        ("env == 1 and stream == 'actor-1'", [3]),
        ("end in ('cut', 'running')", [2, 3]),
        ("end not in ('cut', 'running')", [0, 1]),
        ("policy == 'a' or policy == 3.0", [0, 1]),
        ("policy != 'a'", [1, 3]),
        ("policy == 'b'", [3]),
        ("policy > 0", [1, 3]),
        ("policy == null", [2]),
        ("length == 1 or length != 2 and length >= 4", [0, 3]),
        ("length > 99999999999999999999999", []),
        ("  length==1  ", [0]),
    ],
)
def test_what_a_text_selects(text: str, wanted: list[int]) -> None:
    assert chosen(text) == wanted


VALUES = st.one_of(
    st.integers(-3, 3), st.sampled_from([-2.5, 0.0, 2.0]), st.sampled_from(["", "a", "b"]), st.booleans(), st.none()
)


def holds(value: Any, sign: str, literal: Any) -> bool:
    """The rules in words of Python."""
    if value is MISSING:
        return literal is None and sign == "=="
    if literal is None and not isinstance(value, list):
        return (value is None) == (sign == "==")
    if literal is None:
        return sign == "!="
    if value is None:
        return False
    if isinstance(value, list):
        each = [holds(part, sign, literal) for part in value]
        return all(each) if sign == "!=" else any(each)

    def kind(one: Any) -> str:
        return "number" if type(one) in (int, float) else type(one).__name__

    if kind(value) != kind(literal):
        return sign == "!="
    return bool(OPERATORS[sign](value, literal))


def written(literal: Any) -> str:
    if literal is None or isinstance(literal, bool):
        return {None: "null", True: "true", False: "false"}[literal]
    return repr(literal)


TREES = st.recursive(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(list(OPERATORS)), VALUES),
    lambda inner: st.tuples(st.sampled_from(["and", "or"]), inner, inner) | st.tuples(st.just("not"), inner),
    max_leaves=8,
)


def text_of(tree: Any) -> str:
    if tree[0] == "not":
        return f"not ({text_of(tree[1])})"
    if tree[0] in ("and", "or"):
        return f"({text_of(tree[1])}) {tree[0]} ({text_of(tree[2])})"
    name, sign, literal = tree
    sign = "==" if sign not in ("==", "!=") and (literal is None or isinstance(literal, bool)) else sign
    return f"{name} {sign} {written(literal)}"


def truth(tree: Any, row: dict[str, Any]) -> bool:
    if tree[0] == "not":
        return not truth(tree[1], row)
    if tree[0] in ("and", "or"):
        each = truth(tree[1], row), truth(tree[2], row)
        return all(each) if tree[0] == "and" else any(each)
    name, sign, literal = tree
    sign = "==" if sign not in ("==", "!=") and (literal is None or isinstance(literal, bool)) else sign
    return holds(row[name], sign, literal)


@settings(max_examples=examples(300), deadline=None)
@given(TREES, st.lists(st.tuples(*[st.one_of(VALUES, st.just(MISSING), st.lists(VALUES, max_size=3))] * 2), max_size=6))
def test_random_conditions_are_true_as_in_python(tree: Any, rows: list[tuple[Any, Any]]) -> None:
    columns = {"x": [x for x, _ in rows], "y": [y for _, y in rows]}
    found = Where(text_of(tree)).matches(columns.__getitem__, len(rows)).tolist()
    assert found == [truth(tree, {"x": x, "y": y}) for x, y in rows]


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("", 1, "invalid syntax"),
        ("return >", 9, "invalid syntax"),
        ("return > 'a'", 10, "is a number"),
        ("return > true", 10, "is a number"),
        ("end == 3", 8, "is text"),
        ("end == 'won'", 8, "an end is one of"),
        ("stream == 0", 11, "is text"),
        ("return", 1, "a comparison"),
        ("success and return", 13, "a comparison"),
        ("tag == 'expert", 8, "unterminated string"),
        ("tag == expert", 8, "a number, a text"),
        ("(return > 1", 1, "'(' was never closed"),
        ("return > 1)", 11, "unmatched ')'"),
        ("return > 1 tag == 'a'", 12, "invalid syntax"),
        ("return > 1 and", 15, "invalid syntax"),
        ("success < true", 11, "neither less nor more"),
        ("x > null", 5, "neither less nor more"),
        ("x in 3", 6, "literals in parentheses"),
        ("x in ('a')", 7, "literals in parentheses"),
        ("x in ()", 6, "at least one literal"),
        ("x not 3", 7, "invalid syntax"),
        ("x == 1e999", 6, "too large"),
        ("x == -1e999", 6, "too large"),
        ("__import__('os')", 1, "is not allowed"),
        ("x; y", 2, "invalid syntax"),
        ("x == 1 & y == 2", 1, "is not allowed"),
        ("(x == 1) & (y == 2)", 1, "is not allowed"),
        ("x == 3abc", 6, "invalid decimal literal"),
        ("x..y == 3", 3, "invalid syntax"),
        ("x == 1 -- y", 6, "a number, a text"),
        ("1 < return < 3", 1, "is not allowed"),
        ("3 < return", 1, "a name such as return"),
        ("null == x", 1, "a name such as return"),
        ("x is null", 3, "invalid syntax"),
        ("x == b'a'", 6, "a number, a text"),
        ("x == f'{y}'", 6, "a number, a text"),
        ("x == 3j", 6, "a number, a text"),
        ("x == ('a', 'b')", 6, "a number, a text"),
        ("x in ('a', y)", 12, "a number, a text"),
        ("(x := 3)", 2, "is not allowed"),
        ("x if y else z", 3, "invalid syntax"),
        ("lambda: 3", 7, "invalid syntax"),
        ("tag = 'expert'", 5, "write == instead of ="),
        ("note == 'a=b' and tag='c'", 22, "write == instead of ="),
        ("length <> 2", 8, "write != instead of <>"),
        ("tag == 'it''s'", 12, "a text follows a text"),
        ("tag == 'é' and length > 'é'", 25, "is a number"),
        ("  tag == 3 +", 13, "invalid syntax"),
    ],
)
def test_what_is_not_in_the_language_is_named_with_its_place(text: str, place: int, what: str) -> None:
    with pytest.raises(InputError, match=f"at character {place} ") as caught:
        Where(text)
    assert what in str(caught.value)


def test_hostile_texts_are_refused_and_cost_little() -> None:
    Where("not " * language.MAX_DEPTH + "x == 1")
    Where(f"{'(' * language.MAX_DEPTH}x == 1{')' * language.MAX_DEPTH}")
    for text in ("(" * 2000 + "x == 1" + ")" * 2000, "not " * 1000 + "x"):
        with pytest.raises(InputError, match=r"nested|too many"):
            Where(text)
    with pytest.raises(InputError):
        Where("x == 'a\0b'")
    with pytest.raises(InputError, match="characters"):
        Where("x" * (language.MAX_LENGTH + 1))
    with pytest.raises(InputError, match="must be text"):
        Where(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="too large"):
        Where("length > " + "9" * 4000)


# Values as arrays


LARGE = st.sampled_from([2**53 - 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63, 10**300, 2**1022])
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([-2.5, 0.0, -0.0, 2.0, 2.0**53, 1e300]), LARGE)
SCALARS = st.one_of(NUMBERS, st.booleans(), st.sampled_from(["", "a"]), st.none())
KINDS_OF_VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.just({"a": 1}), st.just(MISSING), NUMBERS)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(KINDS_OF_VALUES, max_size=12), st.sampled_from(list(OPERATORS)), SCALARS)
def test_comparisons_are_those_of_python(values: list[Any], sign: str, literal: Any) -> None:
    if (literal is None or isinstance(literal, bool)) and sign not in ("==", "!="):
        sign = "=="
    where = Where(f"x {sign} {written(literal)}")
    wanted = [holds(value, sign, literal) for value in values]
    assert where.matches(lambda name: FactValues.of(values), len(values)).tolist() == wanted
    assert where.matches(lambda name: values, len(values)).tolist() == wanted


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(KINDS_OF_VALUES, max_size=12))
def test_arrays_hold_the_numbers_that_a_float_holds(values: list[Any]) -> None:
    whole = FactValues.of(values)
    assert whole.values.tolist() == values
    exact = [type(value) is not int or abs(value) <= 2**53 for value in values]
    plain = [type(v) in (bool, int, float) and ok for v, ok in zip(values, exact, strict=True)]
    assert [not math.isnan(number) for number in whole.numbers.tolist()] == plain


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_sliding_arrays_are_those_of_lists(data: st.DataObject) -> None:
    columns = Sliding([np.empty(0, np.int64), np.empty(0, object)])
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 30))):
        first = data.draw(st.integers(0, len(held)))
        stop = data.draw(st.integers(first, len(held)))
        lead = data.draw(st.lists(st.integers(0, 9), max_size=min(first, 3)))
        tail = data.draw(st.lists(st.integers(0, 9), max_size=4))
        columns.replace(*(first, stop), *([np.array(part, np.int64), np.array(part, object)] for part in (lead, tail)))
        held = [*lead, *held[first:stop], *tail]
        assert [array.tolist() for array in columns.arrays()] == [held, held]


def test_a_path_with_points_looks_into_objects() -> None:
    known: list[dict[str, Any]] = [{"a": {"b": 1}}, {"a": 2}, {}, {"a": {"b": {"c": 3}}}]
    assert values_of(known, "a.b").values.tolist() == [1, MISSING, MISSING, {"c": 3}]
    assert values_of(known, "a.b.c").numbers[3] == 3
    assert values_of(known, "tags").values.tolist() == [[], [], [], []]
