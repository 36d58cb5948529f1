"""The same random operations on a store and on a model of it: what is written beside rows, and goes where they go."""

from __future__ import annotations

import abc
import collections
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.commits import settled
from helpers.crashes import kill
from helpers.line import OPEN

import diskreplay as dr
from diskreplay.errors import CheckpointError
from diskreplay.ops.verify import verify


class Driver(abc.ABC):
    """Commits, checkpoints, returns to them, kills and readers; what is written is the business of the class over this.

    Attributes:
        model: what the buffer must hold; a ``copy()`` of it is what is there once that is committed.
        committed: what a reader must see.
        checkpoints: what those must hold, by name.
        counts: of the operations done.
    """

    def __init__(self, path: pathlib.Path, seed: int, rows: list[int]) -> None:
        """``rows`` are the windows of which it draws one."""
        self.path = path
        self.rng = np.random.default_rng(seed)
        self.envs = int(self.rng.choice([1, 1, 3]))
        self.buffer, self.model = self.create(int(self.rng.choice(rows)))
        self.committed = self.model.copy()
        self.checkpoints: dict[str, Any] = {}
        self.reader: dr.ReplayBuffer | None = None
        self.counts: collections.Counter[str] = collections.Counter()

    @abc.abstractmethod
    def create(self, rows: int) -> tuple[dr.ReplayBuffer, Any]:
        """A buffer with a window of so many rows, and the model of it."""

    @abc.abstractmethod
    def check(self, buffer: dr.ReplayBuffer, model: Any) -> None:
        """All that the buffer shows is what the model holds."""

    @abc.abstractmethod
    def weights(self) -> dict[Callable[[], None], float]:
        """How often each operation is done, as a share of all."""

    @abc.abstractmethod
    def jump(self) -> None:
        """Goes on with another observation than any before: the buffer was opened again."""

    def sequence(self) -> int:
        """Of the buffer's last commit."""
        found: int = self.buffer.stats()["streams"]["0"]["sequence"]
        return found

    def settle(self, before: int) -> None:
        """Where the buffer has committed by itself, as its sequence tells, the model has."""
        settled(self.buffer)
        if self.sequence() != before:
            self.committed = self.model.copy()

    def commit(self) -> None:
        self.buffer.commit()
        self.committed = self.model.copy()

    def close(self) -> None:
        self.buffer.close()
        self.committed = self.model.copy()

    def open(self, **options: Any) -> None:
        self.buffer = dr.ReplayBuffer.open(self.path, **OPEN, **options)

    def go_on(self, model: Any) -> None:
        self.model, self.committed = model.copy(), model.copy()
        self.jump()

    def reopen(self) -> None:
        if self.rng.random() < 0.5:
            self.close()
        else:
            kill(self.buffer)
        self.open()
        self.go_on(self.committed)

    def checkpoint(self) -> None:
        name = f"c{len(self.checkpoints)}-{self.counts['checkpoint']}"
        self.buffer.checkpoint(name)
        self.committed = self.model.copy()
        self.checkpoints[name] = self.model.copy()

    def look(self, name: str) -> None:
        with dr.ReplayBuffer.open(self.path, mode="r", checkpoint=name) as looking:
            self.check(looking, self.checkpoints[name])

    def go_back(self) -> None:
        if not self.checkpoints:
            return
        self.close()
        name = str(self.rng.choice(list(self.checkpoints)))
        self.look(name)
        try:
            self.open(checkpoint=name)
            self.go_on(self.checkpoints[name])
        except CheckpointError:
            self.open()
            doomed = list(self.checkpoints)[-1]
            self.buffer.drop_checkpoint(doomed)
            del self.checkpoints[doomed]
            self.go_on(self.committed)

    def read(self) -> None:
        if self.reader is None or self.rng.random() < 0.2:
            if self.reader is not None:
                self.reader.close()
            self.reader = dr.ReplayBuffer.open(self.path, mode="r")
        self.reader.refresh()
        self.check(self.reader, self.committed)

    def run(self, steps: int) -> None:
        weights = self.weights()
        shares = np.array(list(weights.values())) / sum(weights.values())
        for _ in range(steps):
            do = list(weights)[int(self.rng.choice(len(weights), p=shares))]
            self.counts[do.__name__] += 1
            do()
            self.check(self.buffer, self.model)
        self.buffer.close()
        assert verify(self.path).problems == ()
        for name in self.checkpoints:
            self.look(name)
