"""The language of conditions that select episodes, such as ``return > 100 and tag = 'expert'``.

A condition is parsed here, and is never run as Python. It consists of comparisons of a name with a literal, and of
``and``, ``or``, ``not`` and parentheses.

==============================================  ======================================================================
``return``, ``length``                          numbers, of the episode's steps in the window
``environment`` (``env``)                       the environment's number
``end``                                         ``'terminated'``, ``'truncated'``, ``'both'``, ``'cut'``, ``'running'``
``stream``                                      the stream's name
``seed``, ``success``, ``tags`` (``tag``)       facts, as are all other names; ``scene.floor``: a member of an object
``= != < <= > >=``, ``in ('a', 'b')``           ``==`` means ``=``, and ``<>`` means ``!=``
``12``, ``-0.5``, ``1e3``, ``'it''s'``, ``"a"``  literals; also ``true``, ``false`` and ``null``
==============================================  ======================================================================

If an episode does not have a fact, or its value is null, ``fact = null`` is true. Every other comparison of such a fact
is false, even one with ``!=``. For such a fact ``in`` is true only if null is listed. ``not in`` is always the opposite
of ``in``. For the fact ``tags`` there is an exception: an episode without it counts as one with an empty list.

Two values of different kinds, such as a text and a number, are not equal, and neither is less than the other.

If a fact is a list, a comparison with ``!=`` is true if it is true for every element, and any other comparison if it is
true for at least one. But a list itself is not null, even if null is in it, so ``fact != null`` is true. The name of a
fact alone means that the fact is ``true``, or a list that contains ``true``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.index.fact_values import MISSING, NONE, FactValues, Mask

MAX_LENGTH = 4096
"""The most characters of a condition."""
LARGEST_BITS = 1023
"""The most bits of an integer. Every such integer can be converted to a float64."""
MAX_DEPTH = 64
"""The most levels of parentheses and ``not``."""

NUMBERS, TEXTS = ("return", "length", "environment"), ("end", "stream")
"""The names that every episode has: those with numbers, and those with texts."""
ENDS = ("terminated", "truncated", "both", "cut", "running")
ALIASES = {"tag": "tags", "env": "environment"}
WORDS = ("and", "or", "not", "in", "true", "false", "null")
OWN = frozenset((*NUMBERS, *TEXTS, *ALIASES, *WORDS))
"""The names that no fact can have."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Columns = Callable[[str], Sequence[Any] | NDArray[Any] | FactValues]
"""A function from a name to the values of all episodes.

For a fact they are FactValues, or a sequence in which MISSING stands for the episodes without it.
"""
Test = Callable[[Columns, int], Mask]

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)
      | (?P<sign><=|>=|!=|<>|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_SIGNS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class Where:
    """A parsed condition.

    Attributes:
        facts: the names of the facts in the condition.

    >>> where = Where("length >= 2 and tag = 'expert'")
    >>> columns = {"length": np.array([1, 2, 3]), "tags": [["expert"], ["expert"], []]}
    >>> where.matches(columns.__getitem__, 3).tolist()
    [False, True, False]
    """

    def __init__(self, text: str) -> None:
        """Parse a condition.

        If it is not in the language, raise InputError, which names the character where parsing stopped. If it is no
        text, or too long, raise InputError, too.
        """
        if not isinstance(text, str):
            raise InputError(f"where must be text such as \"return > 100 and tag = 'expert'\", got {text!r}")
        if len(text) > MAX_LENGTH:
            raise InputError(f"where has {len(text):,} characters; at most {MAX_LENGTH:,} are read")
        self.text = text
        self.facts: set[str] = set()
        self._tokens = _tokens(text)
        self._next = 0
        self._test = self._any(0)
        if self._peek().kind != "end":
            raise self._wrong("'and', 'or' or the end")

    def __repr__(self) -> str:
        return f"Where({self.text!r})"

    def matches(self, columns: Columns, count: int) -> Mask:
        """Tell which of ``count`` episodes the condition selects, bool ``(count,)``."""
        return self._test(columns, count)

    # Reading

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *words: str) -> _Token | None:
        """Return the next token if it is one of these words or signs, or None."""
        token = self._peek()
        if token.kind in ("name", "sign") and token.text in words:
            self._next += 1
            return token
        return None

    def _wrong(self, wanted: str) -> InputError:
        token = self._peek()
        found = "the text ends" if token.kind == "end" else f"there is {token.text[:40]!r}"
        return InputError(f"where: at character {token.at + 1} {wanted} must come, but {found}: {_short(self.text)}")

    def _need(self, sign: str) -> None:
        if self._take(sign) is None:
            raise self._wrong(repr(sign))

    def _any(self, depth: int) -> Test:
        parts = [self._all(depth)]
        while self._take("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else lambda c, n: np.logical_or.reduce([part(c, n) for part in parts])

    def _all(self, depth: int) -> Test:
        parts = [self._one(depth)]
        while self._take("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else lambda c, n: np.logical_and.reduce([part(c, n) for part in parts])

    def _one(self, depth: int) -> Test:
        if depth > MAX_DEPTH:
            raise InputError(f"where: at character {self._peek().at + 1} it is nested more than {MAX_DEPTH} deep")
        if self._take("not"):
            denied = self._one(depth + 1)
            return lambda c, n: ~denied(c, n)
        if self._take("("):
            inner = self._any(depth + 1)
            self._need(")")
            return inner
        return self._comparison()

    def _comparison(self) -> Test:
        token = self._peek()
        if token.kind != "name" or token.text in WORDS:
            raise self._wrong("a name such as return, length, tag or a fact, 'not' or '('")
        self._next += 1
        name = ALIASES.get(token.text, token.text)
        if name not in (*NUMBERS, *TEXTS):
            self.facts.add(name.partition(".")[0])
        sign = self._take(*_SIGNS)
        if sign is not None:
            return self._compared(name, _SIGNS[sign.text])
        denied = self._take("not") is not None
        if self._take("in"):
            self._need("(")
            parts = [self._compared(name, "=")]
            while self._take(","):
                parts.append(self._compared(name, "="))
            self._need(")")
            if denied:
                return lambda c, n: ~np.logical_or.reduce([part(c, n) for part in parts])
            return lambda c, n: np.logical_or.reduce([part(c, n) for part in parts])
        if denied or name in (*NUMBERS, *TEXTS):
            raise self._wrong("'in'" if denied else "a comparison")
        return lambda c, n: _facts(c(name)).compared(
            operator.eq, True, False, lambda values: [_has_true(value) for value in values]
        )

    def _compared(self, name: str, sign: str) -> Test:
        at = self._peek()
        literal = self._literal()
        where = f"where: at character {at.at + 1}"
        if name in NUMBERS and type(literal) not in (int, float):
            raise InputError(f"{where} {name!r} is a number and is compared with {at.text[:40]}: {_short(self.text)}")
        if name in TEXTS and not isinstance(literal, str):
            raise InputError(f"{where} {name!r} is text, which stands in quotes, not {at.text[:40]}")
        if name == "end" and sign in ("=", "!=") and literal not in ENDS:
            raise InputError(f"{where} an end is one of {', '.join(ENDS)}, not {literal!r}")
        if (literal is None or isinstance(literal, bool)) and sign not in ("=", "!="):
            raise InputError(f"{where} {at.text} is neither less nor more than anything")
        if literal is None:
            there = sign == "!="
            return lambda c, n: _compared_with_null(_facts(c(name)), there)
        test = _TESTS[sign]
        if name in NUMBERS:
            return lambda c, n: np.asarray(test(np.asarray(c(name)), literal), bool)
        kinds = (int, float) if type(literal) in (int, float) else (type(literal),)
        unlike = sign == "!="

        def holds(value: Any) -> bool:
            if type(value) in kinds:
                return bool(test(value, literal))
            if type(value) is list:
                return all(map(holds, value)) if unlike else any(map(holds, value))
            return unlike and value is not MISSING and value is not None

        def others(values: Sequence[Any]) -> list[bool]:
            if name == "tags" and sign == "=" and isinstance(literal, str):  # the most frequent condition, made fast
                return [literal in v if type(v) is list else holds(v) for v in values]
            kind = kinds[0]
            return [test(v, literal) if type(v) is kind else holds(v) for v in values]

        if name in TEXTS:
            return lambda c, n: np.array(others(cast(Sequence[Any], c(name))), bool)
        return lambda c, n: _facts(c(name)).compared(test, literal, unlike, others)

    def _literal(self) -> Any:
        token = self._peek()
        if token.kind == "number":
            self._next += 1
            number = float(token.text) if set(token.text) & set(".eE") else int(token.text)
            if number.bit_length() > LARGEST_BITS if isinstance(number, int) else not math.isfinite(number):
                raise InputError(f"where: at character {token.at + 1} the number {token.text[:40]} is too large")
            return number
        if token.kind == "text":
            self._next += 1
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        word = self._take("true", "false", "null")
        if word is None:
            raise self._wrong("a number, a text in quotes, true, false or null")
        return {"true": True, "false": False, "null": None}[word.text]


def _facts(values: Any) -> FactValues:
    return values if isinstance(values, FactValues) else FactValues.of(values)


def _compared_with_null(values: FactValues, there: bool) -> Mask:
    """Tell which values are null or missing. If ``there`` is True, tell which are neither."""
    plain = (values.kinds != NONE) == there
    return values.told(plain, lambda some: [(value is not None) == there for value in some])


def _has_true(value: Any) -> bool:
    return type(value) is list and any(part is True or _has_true(part) for part in value)


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _tokens(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            quoted = text[start] in "'\""
            what = "the text has no closing quote" if quoted else f"{text[start]!r} is not allowed (write and, or, not)"
            raise InputError(f"where: at character {start + 1} {what}: {_short(text)}")
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return [*found, _Token("end", "", len(text))]
