"""The language of conditions that select episodes, such as ``return > 100 and tag == 'expert'``.

A condition is written as in Python, whose :mod:`ast` parses it, but is never run. It consists of comparisons of a name
with a literal, and of ``and``, ``or``, ``not`` and parentheses.

==============================================  ======================================================================
``return``, ``length``                          numbers, of the episode's steps in the window
``environment`` (``env``)                       the environment's number
``end``                                         ``'terminated'``, ``'truncated'``, ``'both'``, ``'cut'``, ``'running'``
``stream``                                      the stream's name
``seed``, ``success``, ``tags`` (``tag``)       facts, as are all other names; ``scene.floor``: a member of an object
``== != < <= > >=``, ``in ('a', 'b')``          comparisons; also ``not in``
``12``, ``-0.5``, ``1e3``, ``'a'``, ``"it's"``  literals; also ``true``, ``false`` and ``null``
==============================================  ======================================================================

If an episode does not have a fact, or its value is null, ``fact == null`` is true. Every other comparison of such a
fact is false, even one with ``!=``. For such a fact ``in`` is true only if null is listed. ``not in`` is always the
opposite of ``in``. For the fact ``tags`` there is an exception: an episode without it counts as one with an empty list.

Two values of different kinds, such as a text and a number, are not equal, and neither is less than the other.

If a fact is a list, a comparison with ``!=`` is true if it is true for every element, and any other comparison if it is
true for at least one. But a list itself is not null, even if null is in it, so ``fact != null`` is true. The name of a
fact alone means that the fact is ``true``, or a list that contains ``true``.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Mask
from diskreplay.errors import InputError
from diskreplay.index.fact_values import MISSING, NONE, FactValues

MAX_LENGTH = 4096
"""The most characters of a condition."""
LARGEST_BITS = 1023
"""The most bits of an integer. Every such integer can be converted to a float64."""
MAX_DEPTH = 64
"""The most levels of ``and``, ``or`` and ``not`` within each other."""

NUMBERS, TEXTS = ("return", "length", "environment"), ("end", "stream")
"""The names that every episode has: those with numbers, and those with texts."""
ENDS = ("terminated", "truncated", "both", "cut", "running")
ALIASES = {"tag": "tags", "env": "environment"}
LITERALS = {"true": True, "false": False, "null": None}
WORDS = ("and", "or", "not", "in", *LITERALS)
OWN = frozenset((*NUMBERS, *TEXTS, *ALIASES, *WORDS))
"""The names that no fact can have."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Columns = Callable[[str], Sequence[Any] | NDArray[Any] | FactValues]
"""A function from a name to the values of all episodes.

For a fact they are FactValues, or a sequence in which MISSING stands for the episodes without it.
"""
Test = Callable[[Columns, int], Mask]

_TESTS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_SIGNS = {"=": "==", "<>": "!="}
_PART = re.compile(
    r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?:\s*(?P<next>['"]))?"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<sign>(?<![=!<>:])=(?!=)|<>)"""
)
"""A text in quotes with the quote of a text that follows it; a name; a sign that Python does not have."""
_KEYWORDS = frozenset(keyword.kwlist).difference(WORDS, ("True", "False", "None"))


class Where:
    """A parsed condition.

    Attributes:
        facts: the names of the facts in the condition.

    >>> where = Where("length >= 2 and tag == 'expert'")
    >>> columns = {"length": np.array([1, 2, 3]), "tags": [["expert"], ["expert"], []]}
    >>> where.matches(columns.__getitem__, 3).tolist()
    [False, True, False]
    """

    def __init__(self, text: str) -> None:
        """Parse a condition.

        If it is not in the language, raise InputError, which names the character that is wrong. If it is no text, or
        too long, raise InputError, too.
        """
        if not isinstance(text, str):
            raise InputError(f"where must be text such as \"return > 100 and tag == 'expert'\", got {text!r}")
        if len(text) > MAX_LENGTH:
            raise InputError(f"where has {len(text):,} characters; at most {MAX_LENGTH:,} are read")
        self.text = text
        self.facts: set[str] = set()
        self._test = self._condition(self._parsed(), 0)

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def matches(self, columns: Columns, count: int) -> Mask:
        """Tell which of ``count`` episodes the condition selects, bool ``(count,)``."""
        return self._test(columns, count)

    # Reading

    def _parsed(self) -> ast.expr:
        source = self.text
        for found in _PART.finditer(self.text):
            at = found.start()
            if found["next"]:
                raise self._wrong(found.start("next"), "a text follows a text; for a quote in one write \\' or \\\"")
            if found["sign"]:
                raise self._wrong(at, f"write {_SIGNS[found['sign']]} instead of {found['sign']}")
            if found["name"] in _KEYWORDS:  # a wide first letter: Python takes it for the plain one of a mere name
                source = source[:at] + chr(ord(source[at]) + 0xFEE0) + source[at + 1 :]
        self._begin = len(source) - len(source.lstrip())
        self._source = source[self._begin :].replace("\n", " ")
        try:
            return ast.parse(self._source, mode="eval").body
        except SyntaxError as error:
            raise self._wrong(self._begin + (error.offset or len(self._source) + 1) - 1, error.msg) from None
        except (MemoryError, RecursionError, ValueError) as error:  # ValueError: of a null character
            raise self._wrong(0, f"it cannot be read: {error or 'it is nested too deep'}") from None

    def _shown(self, node: ast.expr) -> str:
        return (ast.get_source_segment(self.text[self._begin :], node) or "")[:40]

    def _wrong(self, place: ast.expr | int, what: str) -> InputError:
        if isinstance(place, ast.expr):
            place = self._begin + len(self._source.encode()[: place.col_offset].decode())
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return InputError(f"where: at character {min(place, len(self.text)) + 1} {what}: {shown}")

    def _condition(self, node: ast.expr, depth: int) -> Test:
        if depth > MAX_DEPTH:
            raise self._wrong(node, f"it is nested more than {MAX_DEPTH} deep")
        match node:
            case ast.BoolOp():
                parts = [self._condition(part, depth + 1) for part in node.values]
                joined = np.logical_or if isinstance(node.op, ast.Or) else np.logical_and
                return lambda c, n: joined.reduce([part(c, n) for part in parts])
            case ast.UnaryOp(op=ast.Not()):
                denied = self._condition(node.operand, depth + 1)
                return lambda c, n: ~denied(c, n)
            case ast.Compare(ops=[ast.In() | ast.NotIn() as sign], comparators=[ast.Tuple() | ast.List() as listed]):
                name = self._name(node.left)
                parts = [self._compared(name, ast.Eq(), part) for part in listed.elts]
                if not parts:
                    raise self._wrong(listed, "at least one literal must be listed")
                if isinstance(sign, ast.NotIn):
                    return lambda c, n: ~np.logical_or.reduce([part(c, n) for part in parts])
                return lambda c, n: np.logical_or.reduce([part(c, n) for part in parts])
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[right]):
                raise self._wrong(right, "literals in parentheses must come after 'in', as in ('a', 'b')")
            case ast.Compare(ops=[sign], comparators=[right]) if type(sign) in _TESTS:
                return self._compared(self._name(node.left), sign, right)
            case ast.Name() | ast.Attribute():
                name = self._name(node)
                if name in (*NUMBERS, *TEXTS):
                    raise self._wrong(node, f"a comparison of {name!r} must come")
                return lambda c, n: _facts(c(name)).compared(
                    operator.eq, True, False, lambda values: [_has_true(value) for value in values]
                )
        raise self._wrong(
            node, f"{self._shown(node)!r} is not allowed: compare a name with a literal; join by and, or, not"
        )

    def _name(self, node: ast.expr) -> str:
        name, inner = "", node
        while isinstance(inner, ast.Attribute):
            name, inner = f".{inner.attr}{name}", inner.value
        if not isinstance(inner, ast.Name) or inner.id in LITERALS:
            raise self._wrong(
                node, f"a name such as return, length, tag or a fact must come, not {self._shown(node)!r}"
            )
        name = ALIASES.get(inner.id + name, inner.id + name)
        if name not in (*NUMBERS, *TEXTS):
            self.facts.add(name.partition(".")[0])
        return name

    def _compared(self, name: str, sign: ast.cmpop, right: ast.expr) -> Test:
        literal = self._literal(right)
        shown, equal = self._shown(right), isinstance(sign, ast.Eq | ast.NotEq)
        if name in NUMBERS and type(literal) not in (int, float):
            raise self._wrong(right, f"{name!r} is a number and is compared with {shown}")
        if name in TEXTS and not isinstance(literal, str):
            raise self._wrong(right, f"{name!r} is text, which stands in quotes, not {shown}")
        if name == "end" and equal and literal not in ENDS:
            raise self._wrong(right, f"an end is one of {', '.join(ENDS)}, not {literal!r}")
        if (literal is None or isinstance(literal, bool)) and not equal:
            raise self._wrong(right, f"{shown} is neither less nor more than anything")
        unlike = isinstance(sign, ast.NotEq)
        if literal is None:
            return lambda c, n: _compared_with_null(_facts(c(name)), unlike)
        test = _TESTS[type(sign)]
        if name in NUMBERS:
            return lambda c, n: np.asarray(test(np.asarray(c(name)), literal), bool)
        kinds = (int, float) if type(literal) in (int, float) else (type(literal),)

        def holds(value: Any) -> bool:
            if type(value) in kinds:
                return bool(test(value, literal))
            if type(value) is list:
                return all(map(holds, value)) if unlike else any(map(holds, value))
            return unlike and value is not MISSING and value is not None

        def others(values: Sequence[Any]) -> list[bool]:
            if name == "tags" and isinstance(sign, ast.Eq) and isinstance(literal, str):  # the most frequent, made fast
                return [literal in v if type(v) is list else holds(v) for v in values]
            kind = kinds[0]
            return [test(v, literal) if type(v) is kind else holds(v) for v in values]

        if name in TEXTS:
            return lambda c, n: np.array(others(cast(Sequence[Any], c(name))), bool)
        return lambda c, n: _facts(c(name)).compared(test, literal, unlike, others)

    def _literal(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in LITERALS:
            return LITERALS[node.id]
        try:
            found = ast.literal_eval(node)
        except ValueError:
            found = ...
        if found is not None and type(found) not in (int, float, bool, str):
            raise self._wrong(
                node, f"a number, a text in quotes, true, false or null must come, not {self._shown(node)!r}"
            )
        if found.bit_length() > LARGEST_BITS if type(found) is int else found in (math.inf, -math.inf):
            raise self._wrong(node, f"the number {self._shown(node)} is too large")
        return found


def _facts(values: Any) -> FactValues:
    return values if isinstance(values, FactValues) else FactValues.of(values)


def _compared_with_null(values: FactValues, there: bool) -> Mask:
    """Tell which values are null or missing. If ``there`` is True, tell which are neither."""
    plain = (values.kinds != NONE) == there
    return values.told(plain, lambda some: [(value is not None) == there for value in some])


def _has_true(value: Any) -> bool:
    return type(value) is list and any(part is True or _has_true(part) for part in value)
