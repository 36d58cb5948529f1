"""A crash at every operation of a commit that a thread writes while rows are added."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from unittest import mock

import pytest
from helpers.commits import PATH, Held, check, in_commit
from helpers.effort import examples
from helpers.line import add, create
from helpers.patience import PATIENCE
from helpers.testing import WRITES, FaultyFiles, SimulatedDisk, small_thresholds
from helpers.threads import beside

import diskreplay as dr
from diskreplay.engine import commits


class Turns(Held):
    """A disk on which the thread of a commit waits for its turn before each operation; what a crash would leave then.

    Attributes:
        images: a disk after a crash, and the numbers of rows that it may hold.
    """

    def __init__(self) -> None:
        super().__init__()
        self.images: list[tuple[SimulatedDisk, set[int]]] = []
        self.waits, self.turn = threading.Semaphore(0), threading.Semaphore(0)
        self.buffer: dr.ReplayBuffer | None = None

    def ask(self, name: str, path: str, size: int = 0, target: str = "") -> None:
        if in_commit() and name in WRITES:
            assert self.buffer is not None
            self.waits.release()
            assert self.turn.acquire(timeout=PATIENCE)
            assert isinstance(self.inner, SimulatedDisk)
            engine = self.buffer.engine
            may = {engine.appender.writer.commit_record.end, engine.commits.begun_end}
            at = random.Random(len(self.images))
            for image in (self.inner.after_kill(), self.inner.after_power_loss(), self.inner.after_power_loss(at)):
                self.images.append((image, may))
        FaultyFiles.ask(self, name, path, size, target)

    def step(self, running: Callable[[], bool]) -> None:
        """The thread of a commit, if there is one, has a turn."""
        while running() and not self.waits.acquire(timeout=0.01):
            pass
        if running():
            self.turn.release()


@pytest.mark.long
@pytest.mark.parametrize("capacity", [5, 12, 1000])
def test_a_crash_at_every_operation_while_rows_are_added(capacity: int) -> None:
    with small_thresholds(), mock.patch.object(commits, "COMMIT_BYTES", 1 << 30):
        files = Turns()
        buffer = files.buffer = create(PATH, capacity, files=files, commit_rows=7, chunk_rows=2, shard_rows=4)
        rows = 0
        while rows < 200:
            add(buffer, 1, rows)
            rows += 1
            files.step(buffer.engine.commits.is_running)
        with beside(buffer.close):
            while not buffer.engine.gate.closed:
                files.step(buffer.engine.commits.is_running)
        check(files, rows, capacity)
        assert len(files.images) > 400
        for number in random.Random(0).sample(range(len(files.images)), examples(200)):
            disk, may = files.images[number]
            with dr.ReplayBuffer.open(PATH, files=disk) as found:
                found_rows = found.stats()["streams"]["0"]["end"]
                assert found_rows in may
                add(found, 3, found_rows)
            check(disk, found_rows + 3, capacity)
