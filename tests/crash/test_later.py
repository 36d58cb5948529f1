"""A crash at every operation that writes values later: those of a commit are there with it, or it is not."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.crashing import PATH, leftovers, survivors, verify
from helpers.effort import examples, stride

import diskreplay as dr
from diskreplay.buffers import stored
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops.compact import compact
from diskreplay.testing import WRITES, Crash, FaultyFiles, Operation, SimulatedDisk, small_thresholds

LINE, TURN = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
LATER: dict[str, Any] = {"state": ((2,), np.float32), "wide": ((300,), np.float32)}
"""One in RAM, one on disk."""

Seen = list[tuple[int, bytes | None, bytes | None]]


def seen(buffer: dr.ReplayBuffer) -> Seen:
    """The rows of the window, with the values that they have."""
    batch = buffer.get(buffer.items())
    values = [
        [one.tobytes() if known else None for one, known in
         zip(batch.extra[name], batch.extra[f"{name}_known"], strict=True)]
        for name in LATER
    ]  # fmt: skip
    return list(zip(batch.index.tolist(), *values, strict=True))


class Tale:
    """A workload on a disk in RAM; before each operation that writes, the disk is taken as a crash would leave it.

    Attributes:
        states: what the store may hold, the last acknowledged first; None where there need not be one.
        checkpoints: those that must be there, with what they hold; ``unsure`` those being made or dropped.
        points: crash points explored.
    """

    def __init__(self, capacity: int) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir("/shelf")
        self.disk.sync_dir("/")
        self.files = FaultyFiles(self.disk)
        self.files.decide = self.look
        self.states: list[Seen | None] = [None]
        self.checkpoints: dict[str, Seen] = {}
        self.unsure: dict[str, Seen] = {}
        self.capacity = capacity
        self.rng = np.random.default_rng(0)
        self.points = 0
        self.known: set[int] = set()
        self.situations: set[tuple[str, str]] = set()
        self.every = stride(30, "crash points")
        self.step = 0

    # The workload

    def create(self) -> None:
        self.states = [None, []]
        self.buffer = dr.ReplayBuffer.create(
            PATH, LINE, TURN, capacity=self.capacity, files=self.files, later=LATER, **OPEN
        )
        self.states = [[]]

    def rows(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            self.buffer.add([self.step], 0, 1.0, [self.step + 1], False, False)

    def write(self, count: int, name: str | None = None) -> None:
        """Values for random rows of the window; of both columns if none is named."""
        for each in LATER if name is None else [name]:
            number = count if each == "state" else 1
            index = self.rng.choice(self.buffer.items(), number)
            self.buffer.write(each, index, self.rng.random((number, *LATER[each][0]), np.float32))

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        now = seen(self.buffer)
        self.states = [self.states[0], now]
        yield
        self.states = [now]

    def commit(self) -> None:
        with self.coming():
            self.buffer.commit()

    def checkpoint(self, name: str) -> None:
        self.unsure[name] = seen(self.buffer)
        with self.coming():
            self.buffer.checkpoint(name)
        self.checkpoints[name] = self.unsure.pop(name)

    def drop(self, name: str) -> None:
        self.unsure[name] = self.checkpoints.pop(name)
        self.buffer.drop_checkpoint(name)
        del self.unsure[name]

    def close(self) -> None:
        with self.coming():
            self.buffer.commit()
        self.buffer.close()

    def open(self, checkpoint: str | None = None) -> None:
        if checkpoint is not None:
            self.states = [self.states[0], self.checkpoints[checkpoint]]
        self.buffer = dr.ReplayBuffer.open(PATH, files=self.files, checkpoint=checkpoint, **OPEN)
        self.states = [seen(self.buffer)]
        self.step += 1000

    # The moments

    def look(self, operation: Operation) -> None:
        if operation.name not in WRITES:
            return
        for kind, disk in survivors(self.disk, self.points, examples(1)):
            self.points += 1
            print_of = hash((repr(disk.contents()), repr(disk.after_power_loss().contents()), repr(self.states)))
            if print_of in self.known:
                continue
            self.known.add(print_of)
            situation = operation.name, kind.split()[0] + " some of it" * ("." in kind)
            if len(self.known) % self.every and situation in self.situations:
                continue
            self.situations.add(situation)
            try:
                self.check(disk)
            except BaseException as error:
                error.add_note(f"crash point {self.points}: {kind} before {operation}")
                raise

    def check(self, disk: SimulatedDisk) -> None:
        """What is on a disk after a crash is what was promised, goes on, and is there after the next one."""
        try:
            with dr.ReplayBuffer.open(PATH, mode="r", files=disk) as reader:
                found = seen(reader)
                names = reader.checkpoints
        except StoreNotFoundError:
            assert None in self.states
            return
        assert found in self.states
        assert self.checkpoints.keys() <= set(names) <= (self.checkpoints | self.unsure).keys()
        self.check_checkpoints(disk, names)
        with dr.ReplayBuffer.open(PATH, files=disk, **OPEN) as buffer:
            assert seen(buffer) == found
            buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)
            index = buffer.items()[-3:]
            buffer.write("state", index, np.full((len(index), 2), 7, np.float32))
            buffer.write("wide", index[:1], np.full((1, 300), 8, np.float32))
            expected = seen(buffer)
            assert expected[-1][1] == np.full(2, 7, np.float32).tobytes()
        verify(disk)
        assert leftovers(disk) == []
        after = disk.after_power_loss()
        with dr.ReplayBuffer.open(PATH, mode="r", files=after) as reader:
            assert seen(reader) == expected
        self.check_checkpoints(after, names)

    def check_checkpoints(self, disk: SimulatedDisk, names: list[str]) -> None:
        for name in names:
            with dr.ReplayBuffer.open(PATH, mode="r", checkpoint=name, files=disk) as then:
                assert seen(then) == (self.checkpoints | self.unsure)[name]


def a_life(tale: Tale) -> None:
    """No values, the first ones, values without new rows, both; a checkpoint; another opening."""
    tale.create()
    tale.rows(5)
    tale.commit()  # there is no log yet
    tale.write(4)
    tale.commit()  # of no new row
    tale.rows(3)
    tale.write(3)
    tale.checkpoint("one")
    tale.write(5, "state")
    tale.close()
    tale.open()
    tale.rows(2)
    tale.write(2)
    tale.close()


def evictions(tale: Tale) -> None:
    """The log grows over shards, what lives is written again, and shards go; a checkpoint keeps some."""
    tale.create()
    for number in range(6):
        tale.rows(4)
        tale.write(3)
        tale.commit()
        if number == 3:
            tale.checkpoint("middle")
    tale.drop("middle")
    for _ in range(3):
        tale.rows(4)
        tale.write(2, "state")
        tale.commit()
    tale.close()


def the_same_rows(tale: Tale) -> None:
    """Values of a window that stays are replaced again and again."""
    tale.create()
    tale.rows(6)
    for _ in range(8):
        tale.write(4)
        tale.commit()
    tale.close()


def going_back(tale: Tale) -> None:
    """A checkpoint with values, one with others of the same rows, and back to the first."""
    tale.create()
    tale.rows(6)
    tale.write(3)
    tale.checkpoint("first")
    tale.write(4)
    tale.checkpoint("second")
    tale.rows(3)
    tale.close()
    tale.open()
    tale.drop("second")
    tale.close()
    tale.open("first")
    tale.rows(2)
    tale.write(3)
    tale.close()


def compaction(tale: Tale) -> None:
    """Shards with dead bytes are written anew."""
    tale.create()
    for _ in range(5):
        tale.rows(3)
        tale.write(3)
        tale.commit()
    tale.close()
    compact(PATH, files=tale.files)
    tale.open()
    tale.write(2)
    tale.close()


@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
@pytest.mark.parametrize(
    ("workload", "capacity"),
    [(a_life, 1000), (evictions, 12), (the_same_rows, 1000), (going_back, 1000), (compaction, 1000)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_values_after_a_crash_at_every_operation(workload: Callable[[Tale], None], capacity: int, small: bool) -> None:
    with small_thresholds() if small else contextlib.nullcontext(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "COMMIT_BYTES", 1 << 30)  # the tale says when it commits
        tale = Tale(capacity)
        workload(tale)
        assert tale.points > 50


@pytest.mark.parametrize("seed", range(examples(20, least=3)))
def test_values_through_crash_after_crash(seed: int) -> None:
    """Dies at a random operation of a commit, again and again; what it finds is what was, or what was on its way."""
    rng = random.Random(seed)
    with small_thresholds(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "COMMIT_BYTES", 1 << 30)
        tale = Tale(20)
        tale.files.decide = lambda operation: None
        tale.create()
        for _ in range(12):
            for _ in range(rng.randrange(1, 4)):
                tale.rows(rng.randrange(1, 5))
                tale.write(rng.randrange(1, 5))
            possible = [tale.states[0], seen(tale.buffer)]
            tale.files.crash_at(rng.randrange(1, 60))
            try:
                tale.buffer.commit()
                possible = possible[1:]
                tale.files.heal()
                tale.buffer.close()
            except Crash:
                tale.disk = rng.choice([tale.disk.after_kill(), tale.disk.after_power_loss(rng)])
            tale.files = FaultyFiles(tale.disk)
            with dr.ReplayBuffer.open(PATH, mode="r", files=tale.disk) as reader:
                assert seen(reader) in possible
            tale.open()
            assert tale.states[0] in possible
            verify(tale.disk)
