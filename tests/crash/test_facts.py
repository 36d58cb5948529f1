"""A crash at every operation that writes facts of episodes: those of a commit are there with it, or it is not."""

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
from diskreplay import schema
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops.compact import compact
from diskreplay.testing import WRITES, Crash, FaultyFiles, Operation, SimulatedDisk, small_thresholds

LINE, TURN = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32), gymnasium.spaces.Discrete(2)
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}

Seen = list[tuple[int, int, dict[str, Any]]]


def seen(buffer: dr.ReplayBuffer) -> Seen:
    """The episodes with their rows and facts."""
    return [(episode.start, episode.stop, episode.facts) for episode in buffer.episodes]


class Tale:
    """A workload on a disk in RAM; before each operation that writes, the disk is taken as a crash would leave it.

    Attributes:
        states: what the store may hold, the last acknowledged first; None where there need not be one.
        checkpoints: those that must be there, with what they hold; ``unsure`` those being made or dropped.
        points: crash points explored.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir("/shelf")
        self.disk.sync_dir("/")
        self.files = FaultyFiles(self.disk)
        self.files.decide = self.look
        self.states: list[Seen | None] = [None]
        self.checkpoints: dict[str, Seen] = {}
        self.unsure: dict[str, Seen] = {}
        self.capacity = capacity
        self.points = 0
        self.known: set[int] = set()
        self.situations: set[tuple[str, str]] = set()
        self.every = stride(100, "crash points")
        self.said = 0
        self.step = 0

    # The workload

    def create(self) -> None:
        self.states = [None, []]
        self.buffer = dr.ReplayBuffer.create(PATH, LINE, TURN, capacity=self.capacity, files=self.files, **OPEN)
        self.states = [[]]

    def episode(self, length: int = 4, ends: bool = True, tell: str = "both") -> None:
        """An episode whose facts are given at its start, at its end, both or never."""
        self.said += 1
        if tell in ("start", "both"):
            self.buffer.begin_episode(seed=self.said, tags=["expert"] * (self.said % 2))
        for at in range(length):
            self.step += 1
            self.buffer.add([self.step], 0, 1.0, [self.step + 1], ends and at == length - 1, False)
        self.step += 10
        if tell in ("end", "both"):
            self.buffer.annotate_episode(success=bool(self.said % 3), note=f"episode {self.said} " * (self.said % 4))

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
            buffer.begin_episode(seed=77)
            buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)
            buffer.annotate_episode(success=True)
            expected = seen(buffer)
            assert expected[-1][2] == {"seed": 77, "success": True}
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
    """Facts at the start, at the end, in the middle of an episode that a commit cuts; episodes without any."""
    tale.create()
    tale.episode(tell="never")
    tale.commit()  # there is no array of facts yet
    for tell in ("start", "end", "both", "never"):
        tale.episode(tell=tell)
    tale.commit()
    tale.episode(ends=False, tell="start")
    tale.commit()
    tale.buffer.annotate_episode(success=True)
    tale.commit()  # of no new row
    tale.episode(tell="end")
    tale.checkpoint("one")
    tale.episode()
    tale.close()
    tale.open()
    tale.episode()
    tale.close()


def evictions(tale: Tale) -> None:
    """The log of facts grows over shards, is written again, and its shards go; a checkpoint keeps some."""
    tale.create()
    for number in range(6):
        tale.episode()
        tale.episode(tell=("never", "start")[number % 2])
        tale.commit()
        if number == 3:
            tale.checkpoint("middle")
    tale.drop("middle")
    for _ in range(3):
        tale.episode()
        tale.commit()
    tale.close()


def many_words(tale: Tale) -> None:
    """The facts of one episode that goes on change again and again."""
    tale.create()
    tale.episode(ends=False)
    for number in range(10):
        tale.buffer.annotate_episode(progress=number / 10)
        tale.commit()
    tale.close()


def going_back(tale: Tale) -> None:
    """A checkpoint with facts, one with more of the same rows, and back to the first."""
    tale.create()
    tale.episode(ends=False)
    tale.checkpoint("first")
    tale.buffer.annotate_episode(success=False)
    tale.checkpoint("second")
    tale.episode()
    tale.close()
    tale.open()
    tale.drop("second")
    tale.close()
    tale.open("first")
    tale.episode()
    tale.close()


def compaction(tale: Tale) -> None:
    """Shards of facts with dead bytes are written anew."""
    tale.create()
    for _ in range(6):
        tale.episode()
        tale.commit()
    tale.close()
    assert compact(PATH, files=tale.files).shards or schema.INFO_SHARD_ROWS > 1 << 10
    tale.open()
    tale.episode()
    tale.close()


@pytest.mark.share(2)
@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
@pytest.mark.parametrize(
    ("workload", "capacity"),
    [(a_life, 1000), (evictions, 12), (many_words, 1000), (going_back, 1000), (compaction, 1000)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_facts_after_a_crash_at_every_operation(workload: Callable[[Tale], None], capacity: int, small: bool) -> None:
    with small_thresholds() if small else contextlib.nullcontext():
        tale = Tale(capacity)
        workload(tale)
        assert tale.points > 50


@pytest.mark.parametrize("seed", range(examples(20, least=3)))
def test_facts_through_crash_after_crash(seed: int) -> None:
    """Dies at a random operation of a commit, again and again; what it finds is what was, or what was on its way."""
    rng = random.Random(seed)
    with small_thresholds():
        tale = Tale(20)
        tale.files.decide = lambda operation: None
        tale.create()
        for _ in range(12):
            for _ in range(rng.randrange(1, 4)):
                tale.episode(rng.randrange(1, 6), tell=rng.choice(["start", "end", "both", "never"]))
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
