"""The order of names that are numbered: that of all numbers in them."""

from __future__ import annotations

import re

NUMBER = re.compile("([0-9]+)")


def natural(name: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return a key by which names sort in the order of all numbers in them, whatever digits these have.

    >>> sorted(["ep_10_1", "ep_2_10", "ep_2_9", "ep_002_8"], key=natural)
    ['ep_002_8', 'ep_2_9', 'ep_2_10', 'ep_10_1']
    """
    parts = NUMBER.split(name)  # texts and numbers in turn
    # A number is compared by its length, then its digits: Python makes no integer of thousands of digits.
    numbered = ((len(part.lstrip("0")), part.lstrip("0")) if at % 2 else (0, part) for at, part in enumerate(parts))
    return tuple(numbered), name
