"""How much is tried: what every random or exhaustive test asks here, and what the end of a run says about it.

``DISKREPLAY_TEST_EFFORT`` is 1 if it is not set: all that the tests name. More than 1: so many times as many random
examples. Less than 1: that share of them, and of what is exhaustive so much as each test says: the sampled form, which
``make test`` runs.
"""

from __future__ import annotations

import math
import os

VARIABLE = "DISKREPLAY_TEST_EFFORT"


def read(variable: str, such: str, text: str) -> float:
    """A setting; ValueError where it is no number above 0, ``such`` as these."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"{variable} must be a number above 0, such as {such}, got {text!r}")
    return number


EFFORT = read(VARIABLE, "0.1, 1 or 20", os.environ.get(VARIABLE, "1"))
SAMPLED = EFFORT < 1

left_out: set[tuple[str, int, int]] = set()
"""What a run does in part: its name, how many are done, of how many."""


def examples(count: int, what: str = "random examples", *, least: int = 1) -> int:
    """How many of ``count`` random examples to try; in the sampled form ``least`` at the least."""
    done = max(round(count * EFFORT), min(least, count))
    if done < count:
        left_out.add((what, done, count))
    return done


def places(count: int, what: str, *, least: int = 1) -> int:
    """How many of ``count`` places of an exhaustive test to try."""
    return min(count, examples(count, what, least=least))


def stride(every: int, what: str) -> int:
    """The distance between two places of an exhaustive test: 1, or ``every`` in the sampled form."""
    if not SAMPLED or every == 1:
        return 1
    left_out.add((what, 1, every))
    return every


def summary(parts: set[tuple[str, int, int]]) -> str:
    """A line about what was left out, empty if nothing was."""
    if not parts:
        return ""
    shares: dict[str, list[int]] = {}
    for what, done, count in sorted(parts):
        shares.setdefault(what, []).append(round(count / done))
    said = (f"1 of {' to '.join(dict.fromkeys((str(min(each)), str(max(each)))))} {w}" for w, each in shares.items())
    return f"sampled: {', '.join(said)}; `make exhaustive` runs all"
