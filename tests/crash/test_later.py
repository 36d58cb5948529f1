"""A crash at every operation that writes values later: those of a commit are there with it, or it is not."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest
from helpers import tale as tales
from helpers.effort import examples, stride
from helpers.testing import small_thresholds

import diskreplay as dr
from diskreplay.engine import commits

LATER: dict[str, Any] = {"state": ((2,), np.float32), "wide": ((300,), np.float32)}
"""One in RAM, one on disk."""


class Tale(tales.Tale):
    """Rows with values that were written later."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, stride(400, "crash points"), later=LATER)
        self.rng = np.random.default_rng(0)

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        """The rows of the window, with the values that they have."""
        batch = buffer.get(buffer.items())
        values = [
            [one.tobytes() if known else None for one, known in
             zip(batch.extra[name], batch.extra[f"{name}_known"], strict=True)]
            for name in LATER
        ]  # fmt: skip
        return list(zip(batch.index.tolist(), *values, strict=True))

    def touch(self, buffer: dr.ReplayBuffer) -> None:
        buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)
        index = buffer.items()[-3:]
        buffer.write("state", index, np.full((len(index), 2), 7, np.float32))
        buffer.write("wide", index[:1], np.full((1, 300), 8, np.float32))
        assert self.seen(buffer)[-1][1] == np.full(2, 7, np.float32).tobytes()

    def write(self, count: int, name: str | None = None) -> None:
        """Values for random rows of the window; of both columns if none is named."""
        for each in LATER if name is None else [name]:
            number = count if each == "state" else 1
            index = self.rng.choice(self.buffer.items(), number)
            self.buffer.write(each, index, self.rng.random((number, *LATER[each][0]), np.float32))


ROUND = "rows 4, write 3, commit,"
WORKLOADS: dict[str, str] = {
    # No values, the first ones, values without new rows, both; a checkpoint; another opening.
    "a_life": "create, rows 5, commit, write 4, commit,"  # there is no log yet; of no new row
    "rows 3, write 3, checkpoint one, write 5 state, reopen, rows 2, write 2, close",
    # The log grows over shards, what lives is written again, and shards go; a checkpoint keeps some.
    "evictions": f"create, {ROUND * 4} checkpoint middle, {ROUND * 2} drop middle,"
    f"{'rows 4, write 2 state, commit,' * 3} close",
    # Values of a window that stays are replaced again and again.
    "the_same_rows": f"create, rows 6, {'write 4, commit,' * 8} close",
    # A checkpoint with values, one with others of the same rows, and back to the first.
    "going_back": "create, rows 6, write 3, checkpoint first, write 4, checkpoint second, rows 3, reopen, drop second,"
    "reopen first, rows 2, write 3, close",
}


@pytest.mark.long
@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_values_after_a_crash_at_every_operation(workload: str, small: bool) -> None:
    with small_thresholds() if small else contextlib.nullcontext(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "COMMIT_BYTES", 1 << 30)  # the tale says when it commits
        tale = Tale(12 if workload == "evictions" else 1000)
        tales.scripted(WORKLOADS[workload])(tale)
        assert tale.points > 50


@pytest.mark.parametrize("seed", range(examples(20, least=2)))
def test_values_through_crash_after_crash(seed: int) -> None:
    with small_thresholds(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "COMMIT_BYTES", 1 << 30)
        told = Tale(20)

        def more(rng: random.Random) -> None:
            told.rows(rng.randrange(1, 5))
            told.write(rng.randrange(1, 5))

        told.through_crashes(seed, more)
