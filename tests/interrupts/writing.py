"""Programs that write values for rows that are already there, interrupted once."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import line
from helpers.testing import SimulatedDisk
from interrupts.programs import OPTIONS, PATH, Shown

import diskreplay as dr

LATER: dict[str, Any] = {"state": ((3,), np.float32), "wide": ((300,), np.float32)}
"""One in RAM, one on disk."""

Seen = dict[int, dict[str, bytes]]


def seen(buffer: dr.ReplayBuffer) -> Seen:
    """The values of all rows of the window."""
    batch = buffer.get(buffer.items())
    return {
        int(number): {
            name: batch.extra[name][at].tobytes() for name in LATER if batch.extra[f"{name}_known"][at]
        }
        for at, number in enumerate(batch.index)
    }  # fmt: skip


class Writing(Shown):
    """Two environments; values of rows in RAM, on disk and evicted, some in no commit.

    ``states`` are those that are allowed.
    """

    seen = staticmethod(seen)

    def __init__(self, folder: pathlib.Path, call: str) -> None:
        super().__init__(folder)
        self.name = call
        self.files = SimulatedDisk()
        self.rng = np.random.default_rng(0)
        self.at = 0.0
        self.buffer = line.create(PATH, 24, 2, files=self.files, later=LATER, **OPTIONS)
        for number in range(3):
            self.rows(5)
            self.write("state", 6)
            self.write("wide", 2)
            if number == 1:
                self.buffer.commit()
        self.reader = dr.ReplayBuffer.open(PATH, mode="r", files=self.files, seed=0)
        if call == "refresh":
            self.buffer.commit()
        name = "wide" if call == "write large" else "state"
        self.index = self.rng.choice(self.buffer.items(), 9)
        self.values = self.rng.random((9, *LATER[name][0]), np.float32)
        before = seen(self.buffer)
        self.states = [before]
        if call in ("write", "write large"):
            after = {number: dict(values) for number, values in before.items()}
            for number, value in zip(self.index.tolist(), self.values, strict=True):
                after[number][name] = value.tobytes()
            self.states.append(after)
        if call == "add":
            end = self.buffer.stats()["streams"]["0"]["end"]
            rows = {number: values for number, values in before.items() if number >= min(before) + 2}
            self.states.append({**rows, 2 * end: {}, 2 * end + 1: {}})

    def rows(self, count: int) -> None:
        line.add(self.buffer, count, self.at)
        self.at += count

    def write(self, name: str, count: int) -> None:
        values = self.rng.random((count, *LATER[name][0]), np.float32)
        self.buffer.write(name, self.rng.choice(self.buffer.items(), count), values)

    def call(self) -> object:
        return CALLS[self.name](self)

    def look(self) -> None:
        self.values[:] = 0  # they are the program's again
        now = seen(self.buffer)
        assert now in self.states
        self.states = [now]
        self.reader.refresh()

    def go_on(self) -> None:
        self.at += 100
        self.write("state", 4)
        self.rows(2)
        self.write("wide", 2)
        now = seen(self.buffer)
        self.buffer.commit()
        assert seen(self.buffer) == now
        self.reader.refresh()
        assert seen(self.reader) == now
        self.states = [now]

    def add_again(self) -> None:
        self.at += 1000
        self.rows(1)
        self.write("state", 3)


CALLS: dict[str, Callable[[Writing], object]] = {
    "write": lambda it: it.buffer.write("state", it.index, it.values),
    "write large": lambda it: it.buffer.write("wide", it.index, it.values),
    "add": lambda it: it.rows(1),
    "commit": lambda it: it.buffer.commit(),
    "sample": lambda it: it.buffer.sample(5),
    "refresh": lambda it: it.reader.refresh(),
}
