"""Frames that are fewer than the places: each place gets its own or none, never another's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from helpers.effort import examples

from diskreplay.ops.patch_frames import MAX_MISSING, matched


class Table:
    """A patch table as a writer fills it that is interrupted now and then, between a patch's place and its frame.

    ``values``: how many different frames there are; the fewer, the less can be told apart.
    """

    def __init__(self, rng: random.Random, envs: int, rows: int, values: int) -> None:
        self.rng, self.values = rng, values
        self.places: list[tuple[int, int, int]] = []
        self.truth: list[int] = []
        self.frames: list[int] = []
        self.phantoms: set[int] = set()
        self.after: dict[tuple[int, int], int] = {}  # the frame of the next row, where that continues
        pending = [self.frame() for _ in range(envs)]
        patched = [True] * envs
        for row in range(rows):
            for env in range(envs):
                cut = rng.random() < 0.2
                if row and not cut:
                    self.after[row - 1, env] = pending[env]
                elif row and not patched[env]:
                    self.patch(row - 1, env, pending[env])
                pending[env], patched[env] = self.frame(), False
            if rng.random() < 0.4 or row == rows - 1:
                interrupted = rng.randrange(envs) if rng.random() < 0.3 else envs
                for env in range(interrupted):
                    self.patch(row, env, pending[env])
                    patched[env] = True
                if interrupted < envs:
                    self.phantoms.add(len(self.places))
                    self.places.append((row, interrupted, 1))
                    self.truth.append(pending[interrupted])
                    if row == rows - 1 or rng.random() < 0.5:  # the commit was tried again at once
                        for env in range(interrupted, envs):
                            self.patch(row, env, pending[env])
                            patched[env] = True
        self.end = rows

    def frame(self) -> int:
        return self.rng.randrange(self.values) if self.values else len(self.frames) * 1000 + self.rng.randrange(1000)

    def patch(self, row: int, env: int, frame: int) -> None:
        self.places.append((row, env, 1))
        self.truth.append(frame)
        self.frames.append(frame)

    def matched(self, first: int, unreadable: set[int]) -> Any:
        """The frames of the places from ``first`` on; of the frames before, as many are left as may be theirs."""
        missing = len(self.places) - len(self.frames)
        low = max(0, first - missing)
        frames = np.array(self.frames[low:], np.int64)
        readable = np.array([at + low not in unreadable for at in range(len(frames))])
        places = np.array(self.places[first:], np.int64).reshape(-1, 3)
        following = [np.int64(self.after[row, env]) if (row, env) in self.after else None for row, env, _ in places]
        goes_on = np.array([(row, env) in self.after for row, env, _ in places.tolist()])
        found = matched(places, frames, readable, following, goes_on, first - low)
        assert len(found) == len(places)
        return [None if at < 0 else int(frames[at]) for at in found.tolist()]


@pytest.mark.parametrize("values", [0, 2, 5, 40])
@pytest.mark.parametrize("envs", [1, 2, 3])
def test_never_another_frame(values: int, envs: int) -> None:
    rng = random.Random(f"{values}-{envs}")
    missing = known = 0
    for _ in range(examples(100, least=50)):
        table = Table(rng, envs, rng.randrange(2, 30), values)
        first = rng.choice([0, rng.randrange(len(table.places))])
        unreadable = {at for at in range(len(table.frames)) if rng.random() < 0.05} if rng.random() < 0.3 else set()
        if len(table.places) == len(table.frames):
            continue
        missing += 1
        found = table.matched(first, unreadable)
        for number, frame in enumerate(found, first):
            assert frame is None or frame == table.truth[number], (number, table.places, table.truth, table.frames)
            known += frame is not None
        if not values and not unreadable and not first:
            assert all(frame is not None for number, frame in enumerate(found, first) if number not in table.phantoms)
    assert missing > 20
    assert known > 20 * missing / 10


def test_as_many_as_there_are() -> None:
    places = np.array([[0, 0, 1], [3, 0, 1]])
    frames = np.array([7, 8])
    assert matched(places, frames, np.ones(2, bool), [None, None], np.zeros(2, bool), 0).tolist() == [0, 1]


@pytest.mark.parametrize("missing", [-1, MAX_MISSING + 1])
def test_a_difference_that_no_interrupt_made(missing: int) -> None:
    places = np.array([[row, 0, 1] for row in range(100)])
    frames = np.arange(100 - missing)
    found = matched(places, frames, np.ones(len(frames), bool), [None] * 100, np.ones(100, bool), 0)
    assert (found == -1).all()
