"""A crash at every operation of what closing keeps: priorities fit the rows, or a warning says that they are gone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from helpers import tale as tales
from helpers.crashes import die
from helpers.crashing import PATH, leftovers, verify
from helpers.effort import stride
from helpers.testing import SimulatedDisk

import diskreplay as dr
from diskreplay.errors import SamplerWarning, StoreNotFoundError
from diskreplay.storage import checkpoint_arrays

State = tuple[tales.Seen, list[float]]
"""Rows, and what the sampler holds for each."""


def opened(files: Any) -> tuple[dr.ReplayBuffer, bool]:
    """A buffer that writes, and whether it was said that priorities begin anew."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", SamplerWarning)
        buffer = dr.ReplayBuffer.open(PATH, files=files, **tales.OPEN)
    return buffer, bool(said)


class Tale(tales.Tale):
    """Rows, and their priorities.

    Attributes:
        found: states that a writer may find without a warning.
        ever: whether priorities were updated, or are being.
    """

    def __init__(self, sampler: Any, capacity: int = 100) -> None:
        super().__init__(capacity, stride(40, "crash points"), sampler=sampler)
        self.found: list[State] = []
        self.ever = False

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        return [(episode.start, episode.stop) for episode in buffer.episodes]

    def touch(self, buffer: dr.ReplayBuffer) -> None:
        raise NotImplementedError

    def state(self, buffer: dr.ReplayBuffer) -> State:
        sampler: Any = buffer.sampler
        # It shows the sampler the newest rows.
        sampler.probability(buffer.items(), buffer.engine.streams.windows(), buffer.draws.standing)
        _, held = sampler.state()
        return self.seen(buffer), next(values for name, values in held.items() if name != "waiting").tolist()

    def update(self) -> None:
        self.ever = True
        items = self.buffer.items()
        self.buffer.update_priorities(items[::3], np.arange(1.0, 1 + len(items[::3])) * (1 + self.step))
        self.found = []

    def close(self) -> None:
        self.found.append(self.state(self.buffer))
        super().close()
        self.found = self.found[-1:]

    def open(self, checkpoint: str | None = None) -> None:
        assert checkpoint is None
        self.buffer, said = opened(self.files)
        assert not said
        assert self.state(self.buffer) in self.found
        self.states = [self.seen(self.buffer)]

    def check(self, disk: SimulatedDisk) -> None:
        for files in (disk, disk.after_kill()):  # a look and another crash change nothing
            try:
                buffer, said = opened(files)
            except StoreNotFoundError:
                assert None in self.states
                return
            state = self.state(buffer)
            assert state[0] in self.states
            if said:
                assert self.ever
            if said or not self.ever:
                assert len(set(state[1])) <= 1
            else:
                assert state in self.found
            buffer.engine.call_off()
            die(buffer)
        verify(disk)
        assert leftovers(disk) == []
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
    tale.create()
    tale.rows(6)
    tale.close()  # nothing to keep
    tale.open()
    tale.update()
    tale.rows(3)
    tale.commit()
    tale.update()
    tale.close()
    tale.open()
    tale.rows(2)
    tale.close()  # of rows alone
    tale.open()
    tale.update()  # makes no commit
    tale.close()
    tale.open()
    tale.close()  # of nothing
    tale.open()
    tale.buffer.clear()
    tale.close()
    tale.open()
    tale.close()
    assert tale.points > 100
