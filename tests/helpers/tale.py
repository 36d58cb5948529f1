"""Workloads on a disk in RAM, cut short by a crash at every operation that writes."""

from __future__ import annotations

import abc
import ast
import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

from helpers.crashing import PATH, leftovers, survivors, verify
from helpers.effort import examples
from helpers.line import LINE, OPEN, TURN
from helpers.testing import WRITES, Crash, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError

Seen = list[Any]


def scripted(script: str) -> Callable[[Any], None]:
    """The workload of a script, such as ``"create, add 5, open b num_envs=2"``: methods, and what each is given."""

    def workload(subject: Any) -> None:
        for name, *words in map(str.split, script.split(",")):
            given = [value(word) for word in words if "=" not in word]
            named = dict(word.split("=") for word in words if "=" in word)
            getattr(subject, name)(*given, **{key: value(word) for key, word in named.items()})

    return workload


def value(word: str) -> Any:
    """A number, a constant, or the word itself."""
    try:
        return ast.literal_eval(word)
    except ValueError:
        return word


class Tale(abc.ABC):
    """A workload on a disk in RAM; before each operation that writes, the disk is taken as a crash would leave it.

    Attributes:
        states: what the store may hold, the last acknowledged first; None where there need not be one.
        checkpoints: those that must be there, with what they hold; ``unsure`` those being made or dropped.
        points: crash points explored.
    """

    @staticmethod
    @abc.abstractmethod
    def seen(buffer: dr.ReplayBuffer) -> Seen:
        """All that a store holds of what the tale is about."""

    @abc.abstractmethod
    def touch(self, buffer: dr.ReplayBuffer) -> None:
        """A writer that goes on after a crash, and finds what it has given."""

    def __init__(self, capacity: int, every: int, **options: Any) -> None:
        """Of crash points that are like others it looks at one of ``every``; ``options`` are those of ``create``."""
        self.disk = SimulatedDisk()
        self.disk.mkdir("/shelf")
        self.disk.sync_dir("/")
        self.files = FaultyFiles(self.disk)
        self.files.decide = self.look
        self.states: list[Seen | None] = [None]
        self.checkpoints: dict[str, Seen] = {}
        self.unsure: dict[str, Seen] = {}
        self.capacity, self.options = capacity, options
        self.points = 0
        self.known: set[int] = set()
        self.situations: set[tuple[str, str]] = set()
        self.every = every
        self.step = 0

    # The workload

    def create(self) -> None:
        self.states = [None, []]
        options = {"capacity": self.capacity, "files": self.files, **self.options, **OPEN}
        self.buffer = dr.ReplayBuffer.create(PATH, LINE, TURN, **options)
        self.states = [[]]

    def rows(self, count: int) -> None:
        for _ in range(count):
            self.step += 1
            self.buffer.add([self.step], 0, 1.0, [self.step + 1], False, False)

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        now = self.seen(self.buffer)
        self.states = [self.states[0], now]
        yield
        self.states = [now]

    def commit(self) -> None:
        with self.coming():
            self.buffer.commit()

    def checkpoint(self, name: str) -> None:
        self.unsure[name] = self.seen(self.buffer)
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
        self.states = [self.seen(self.buffer)]
        self.step += 1000

    def reopen(self, checkpoint: str | None = None) -> None:
        self.close()
        self.open(checkpoint)

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
                found = self.seen(reader)
                names = reader.checkpoints
        except StoreNotFoundError:
            assert None in self.states
            return
        assert found in self.states
        assert self.checkpoints.keys() <= set(names) <= (self.checkpoints | self.unsure).keys()
        self.check_checkpoints(disk, names)
        with dr.ReplayBuffer.open(PATH, files=disk, **OPEN) as buffer:
            assert self.seen(buffer) == found
            self.touch(buffer)
            expected = self.seen(buffer)
        verify(disk)
        assert leftovers(disk) == []
        after = disk.after_power_loss()
        with dr.ReplayBuffer.open(PATH, mode="r", files=after) as reader:
            assert self.seen(reader) == expected
        self.check_checkpoints(after, names)

    def check_checkpoints(self, disk: SimulatedDisk, names: list[str]) -> None:
        for name in names:
            with dr.ReplayBuffer.open(PATH, mode="r", checkpoint=name, files=disk) as then:
                assert self.seen(then) == (self.checkpoints | self.unsure)[name]

    # Crash after crash

    def through_crashes(self, seed: int, more: Callable[[random.Random], None]) -> None:
        """Dies at a random operation of a commit, again and again; what it finds is what was, or what was on its way.

        ``more`` does something that a commit has to write.
        """
        rng = random.Random(seed)
        self.files.decide = lambda operation: None
        self.create()
        for _ in range(12):
            for _ in range(rng.randrange(1, 4)):
                more(rng)
            possible = [self.states[0], self.seen(self.buffer)]
            self.files.crash_at(rng.randrange(1, 60))
            try:
                self.buffer.commit()
                possible = possible[1:]
                self.files.heal()
                self.buffer.close()
            except Crash:
                self.disk = rng.choice([self.disk.after_kill(), self.disk.after_power_loss(rng)])
            self.files = FaultyFiles(self.disk)
            with dr.ReplayBuffer.open(PATH, mode="r", files=self.disk) as reader:
                assert self.seen(reader) in possible
            self.open()
            assert self.states[0] in possible
            verify(self.disk)
