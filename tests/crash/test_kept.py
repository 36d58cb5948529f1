"""A crash at every operation of what closing keeps: priorities fit the rows, or a warning says that they are gone."""

from __future__ import annotations

import errno
import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from helpers import tale as tales
from helpers.crashes import die
from helpers.crashing import PATH, leftovers, verify
from helpers.effort import stride
from helpers.line import OPEN
from helpers.odds import chances_of
from helpers.testing import READS, WRITES, FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import DiskReplayError, SamplerWarning, StoreNotFoundError
from diskreplay.storage import checkpoint_arrays

State = tuple[tales.Seen, list[float]]
"""Rows, and what the sampler holds for each."""


def opened(files: Any) -> tuple[dr.ReplayBuffer, bool]:
    """A buffer that writes, and whether it was said that priorities begin anew."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SamplerWarning)
        buffer = dr.ReplayBuffer.open(PATH, files=files, **OPEN)
    return buffer, bool(said)


class Tale(tales.Tale):
    """Rows, and their priorities.

    Attributes:
        found: states that a writer may find without a warning.
        marked: whether a writer may be told that priorities begin anew.
    """

    def __init__(self, sampler: Any, capacity: int = 100) -> None:
        super().__init__(capacity, stride(120, "crash points"), sampler=sampler)
        self.found: list[State] = [([], [])]
        self.marked = True

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        return [(episode.start, episode.stop) for episode in buffer.episodes]

    def touch(self, buffer: dr.ReplayBuffer) -> None:
        raise NotImplementedError

    def state(self, buffer: dr.ReplayBuffer) -> State:
        sampler: Any = buffer.sampler
        # It shows the sampler the newest rows.
        chances_of(buffer)
        _, held = sampler.state()
        return self.seen(buffer), next(values for name, values in held.items() if name != "waiting").tolist()

    def update(self) -> None:
        items = self.buffer.items()
        self.buffer.update_priorities(items[::3], np.arange(1.0, 1 + len(items[::3])) * (1 + self.step))

    def clear(self) -> None:
        self.buffer.clear()

    def create(self) -> None:
        super().create()
        self.found = []

    def close(self) -> None:
        self.found = [self.state(self.buffer)]
        super().close()
        self.marked = False

    def open(self, checkpoint: str | None = None) -> None:
        assert checkpoint is None
        self.marked = True  # before the last step it is not; until then the state is found
        self.buffer, said = opened(self.files)
        assert not said
        assert self.state(self.buffer) in self.found
        self.states = [self.seen(self.buffer)]
        self.found = []

    def check(self, disk: SimulatedDisk) -> None:
        look = disk.after_kill()
        for again in (False, True):
            try:
                buffer, said = opened(look)
            except StoreNotFoundError:
                assert None in self.states
                return
            state = self.state(buffer)
            assert state[0] in self.states
            if said:
                assert self.marked or again
                assert len(set(state[1])) <= 1
            else:
                assert state in self.found
                assert not again
            buffer.engine.call_off()
            die(buffer)
            if not again:
                look = look.after_power_loss()
        verify(look)
        assert leftovers(look) == []
        buffer, _ = opened(disk)
        buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)
        after = self.state(buffer)
        buffer.close()
        buffer, said = opened(disk.after_power_loss())
        assert not said
        assert self.state(buffer) == after
        buffer.close()


@pytest.mark.long
@pytest.mark.parametrize("sampler", [dr.Proportional, dr.RankBased])
def test_priorities_are_those_of_the_rows_or_are_said_to_be_gone(sampler, monkeypatch):
    monkeypatch.setattr(checkpoint_arrays, "CHUNK_ROWS", 1 << 2)  # several chunks and shards
    monkeypatch.setattr(checkpoint_arrays, "SHARD_CHUNKS", 2)
    tale = Tale(sampler())
    tales.scripted(
        "create, rows 6, close,"  # nothing to keep
        "open, update, rows 3, commit, update, reopen, rows 2, close,"  # of rows alone
        "open, update, reopen, close,"  # an update makes no commit; closing, of nothing
        "open, clear, reopen, close"
    )(tale)
    assert tale.points > 100


@pytest.mark.long
def test_an_opening_that_fails_loses_nothing() -> None:
    """Up to the rename of its mark, at whatever operation; one that fails after it, as a sync, tells the next."""
    tale = Tale(dr.Proportional())
    tale.files.decide = lambda operation: None
    tale.create()
    tale.rows(4)
    tale.update()
    tale.close()
    step, failed = stride(3, "operations of an opening"), 0
    for name in (*WRITES, *READS):
        for count in itertools.count(step=step):
            files = FaultyFiles(tale.disk.after_kill())
            files.fail_at(count, errno.EIO, [name], times=1)
            try:
                buffer, said = opened(files)
            except DiskReplayError:
                failed += 1
                at = [index for index, one in enumerate(files.operations) if one.name == name][count]
                marked = any(one.target.endswith("start/kept/zarr.json") for one in files.operations[:at])
                buffer, said = opened(files.inner)
                assert said == marked
            else:
                assert not said
            assert buffer.engine.call_off is not None
            buffer.engine.call_off()
            die(buffer)
            if files.count([name]) <= count:
                break
    assert failed * step > 20
