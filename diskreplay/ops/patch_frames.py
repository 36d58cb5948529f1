"""Which frame belongs to which place of a patch table, where a leaf has fewer frames than there are places.

A writer that was interrupted while it added a patch, and went on, could leave a place without its frame: all frames
after it are then one place too early. The missing frame is a next observation, which the writer then added once more,
with its place, or which the next row holds. So where frames are missing is found by comparing: a patch with the next
row that holds the same frame, and a patch with its repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAX_MISSING = 64
"""Frames; with more of them missing it was no interrupt."""


def matched(
    places: Array, frames: Array, readable: Array, following: Sequence[Array | None], may_miss: Array, late: int
) -> Array:  # fmt: skip
    """The frame of each place, an index into ``frames``; -1 where it is missing or not certain.

    Args:
        places: row, environment and offset, ``(n, 3)``.
        frames: ``(m, *shape)``, of which the last is that of the last place.
        readable: which of them can be read, ``(m,)``.
        following: of each place the frame that it must have, as the next row continues it; None where unknown.
        may_miss: whether a place's frame may be missing where the place is not there again, ``(n,)``: the next row
            has it.
        late: where in ``frames`` the first place's would be, were none missing.
    """
    count, missing = len(places), len(places) + late - len(frames)
    found = np.full(count, -1, np.int64)
    if not count or not 0 <= missing <= MAX_MISSING:
        return found
    twice = np.zeros(count, bool)
    twice[1:] = (places[1:] == places[:-1]).all(axis=1)
    gap = (places[:, 2] == 1) & (may_miss | np.append(twice[1:], False))

    def same(at: int, expected: Array | None) -> bool:
        if at < 0 or at >= len(frames):
            return False
        return expected is None or not readable[at] or frames[at].tobytes() == expected.tobytes()

    def fits(number: int, shift: int, paired: bool) -> bool:
        """Whether a place may have the frame that stands ``shift`` too early; ``paired``: the one before has its."""
        at = number + late - shift
        if not same(at, following[number]):
            return False
        other = at - 1
        pair = paired and twice[number] and other >= 0 and bool(readable[other] and readable[at])
        return not pair or frames[other].tobytes() == frames[at].tobytes()

    # State: how many frames are missing before a place (0 to ``missing``), and whether the place has one.
    forward = np.zeros((count + 1, missing + 1, 2), bool)
    forward[0, :, 0] = True  # some may be missing before the first place
    for number in range(count):
        for shift in range(missing + 1):
            lacked, had = forward[number, shift]
            if not (lacked or had):
                continue
            if gap[number] and shift < missing and (lacked or not twice[number]):
                forward[number + 1, shift + 1, 0] = True
            if (lacked and fits(number, shift, False)) or (had and fits(number, shift, True)):
                forward[number + 1, shift, 1] = True
    backward = np.zeros_like(forward)
    backward[count, missing] = True
    for number in range(count - 1, -1, -1):
        used: set[int] = set()
        lacks = False
        for shift in range(missing + 1):
            for has in (0, 1):
                if not forward[number, shift, has]:
                    continue
                free = gap[number] and shift < missing and not (has and twice[number])
                if free and backward[number + 1, shift + 1, 0]:
                    backward[number, shift, has] = lacks = True
                if backward[number + 1, shift, 1] and fits(number, shift, bool(has)):
                    backward[number, shift, has] = True
                    used.add(number + late - shift)
        certain = not lacks and len({frames[at].tobytes() if readable[at] else at for at in used}) == 1
        best = min(used, default=-1)
        found[number] = best if certain and readable[best] else -1
    return found
