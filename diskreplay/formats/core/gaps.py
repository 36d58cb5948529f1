"""Steps that are taken away from episodes, and what is left of these.

1. Which steps go says a mask ``gone`` over the steps of an episode, or of several one after another.
2. Each run of steps that stay is a part, and an episode of its own: no view spans a gap.
3. Where a part ends before its episode did, its last step is truncated, and keeps its true next observation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from diskreplay.checks import Mask
from diskreplay.formats.core.transitions import Transitions

PLACES = ("begin", "middle", "end", "whole")
"""The places in an episode from which steps go; ``whole`` if none of its steps stays."""


def in_ranges(length: int, ranges: Sequence[slice]) -> Mask:
    """Return which steps of an episode of some length lie in one of the ranges, as Python counts them."""
    found = np.zeros(length, bool)
    for one in ranges:
        found[one] = True
    return found


def joined(masks: Iterable[Mask]) -> Mask:
    """Return the masks of several episodes as one."""
    return np.concatenate([np.empty(0, bool), *masks])


def parts(gone: Mask) -> list[tuple[int, int]]:
    """Return the parts of an episode that stay, as half-open ranges of its steps.

    >>> parts(np.array([True, False, False, True, False]))
    [(1, 3), (4, 5)]
    """
    edges = np.flatnonzero(np.diff(~gone, prepend=False, append=False))
    return [(start, stop) for start, stop in edges.reshape(-1, 2).tolist()]


def by_place(gone: Mask) -> dict[str, int]:
    """Return how many steps go from each place of an episode, without zeros."""
    left = parts(gone)
    if not left:
        return {"whole": len(gone)}
    begin, end = left[0][0], len(gone) - left[-1][1]
    middle = int(np.count_nonzero(gone)) - begin - end
    return {name: count for name, count in zip(PLACES, (begin, middle, end), strict=False) if count}


def remaining(blocks: Iterable[Transitions], gone: Mask) -> Iterator[Transitions]:
    """Yield the steps that stay, with the ends that the gaps make; ``gone`` has a value for each step of the blocks."""
    stays = np.append(~gone, True)
    at = 0
    for steps in blocks:
        now, after = stays[at : at + len(steps)], stays[at + 1 : at + len(steps) + 1]
        at += len(steps)
        ends = ~after & ~steps.last
        if now.any():
            ended = dataclasses.replace(steps, truncated=steps.truncated | ends, last=steps.last | ends)
            yield ended.only(now)
