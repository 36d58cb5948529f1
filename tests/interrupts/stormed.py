"""A program that adds, samples, updates, commits and checkpoints under thousands of real signals, by a timer.

``python -m interrupts.stormed PATH SAMPLER SIGNALS SEED`` prints how many came, how many raised, and what it did. Each
handler looks whether it sees a half-made change, and every few of them draw, update, or raise KeyboardInterrupt. What
a row holds is a function of its number, so all that is read can be compared.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sys
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy import testing

import diskreplay as dr
from diskreplay.ops.verify import verify

FLOATS = 17
LENGTH = 9
"""The steps of an episode."""
SECONDS = 4e-4
"""The longest time between two signals."""


def obs(row: Any) -> np.ndarray:
    """Observations of rows, ``(..., FLOATS)``; that of a row below zero is the final one of an episode."""
    return (np.asarray(row, np.float64)[..., None] + np.arange(FLOATS) / 32).astype(np.float32)


def check(batch: dr.Batch) -> None:
    row = batch.index
    last = row % LENGTH == LENGTH - 1
    testing.assert_array_equal(batch.obs, obs(row))
    testing.assert_array_equal(batch.next_obs, obs(np.where(last, -row, row + 1)))
    testing.assert_array_equal(batch.action, row % 5)
    testing.assert_array_equal(batch.reward, (row % 1000).astype(np.float32))
    testing.assert_array_equal(batch.terminated, last)
    testing.assert_array_equal(batch.weight > 0, np.ones(len(row), bool))


class Program:
    """A buffer, and what is done with it.

    Attributes:
        came, raised: the signals, and those whose handler raised.
        wanted: the number of signals after which no more come.
        inside: True where an interrupt is caught.
        done: how often each operation came to its end.
    """

    def __init__(self, path: str, sampler: str, seed: int) -> None:
        self.rng = random.Random(seed)
        box, made = spaces.Box(-np.inf, np.inf, (FLOATS,), np.float32), getattr(dr, sampler)()
        options = {"capacity": 700, "sampler": made, "seed": seed, "commit_rows": 150, "commit_seconds": 1e9}
        self.buffer = dr.ReplayBuffer.create(path, box, spaces.Discrete(5), **options)
        self.ranked = sampler != "Uniform"
        self.came = self.raised = self.wanted = 0
        self.inside = False
        self.done = dict.fromkeys(("add", "sample", "commit", "checkpoint"), 0)
        self.columns = list(self.buffer.engine.appender.writer.rows.values())
        for _ in range(50):
            self.add()

    @property
    def end(self) -> int:
        return self.buffer.engine.appender.log.end

    def add(self) -> None:
        row, last = self.end, self.end % LENGTH == LENGTH - 1
        after = -row if last else row + 1
        with self.happens_or_not():
            self.buffer.add(obs(row), row % 5, float(row % 1000), obs(after), last, False)

    @contextlib.contextmanager
    def happens_or_not(self) -> Any:
        before = self.end
        yield
        assert self.end == before + 1

    def sample(self) -> None:
        batch = self.buffer.sample(self.rng.choice([4, 32]))
        check(batch)
        if self.ranked:
            self.buffer.update_priorities(batch.index, self.rng.random() + batch.index % 3)

    def commit(self) -> None:
        self.buffer.commit()

    def checkpoint(self) -> None:
        self.buffer.checkpoint(f"at-{self.end}-{self.came}", keep=2)

    def run(self, signals: int) -> None:
        """Go on until so many signals came; after the last none is under way."""
        self.wanted = signals
        signal.signal(signal.SIGALRM, self.handle)
        self.arm()
        while self.came < signals:
            what = self.rng.choices(list(self.done), [60, 30, 1, 0.3])[0]
            with contextlib.suppress(KeyboardInterrupt):
                self.inside = True
                getattr(self, what)()
                self.done[what] += 1
                self.inside = False

    def arm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, SECONDS))

    def handle(self, number: int, frame: Any) -> None:
        self.came += 1
        ends = {column.end for column in self.columns}
        assert ends == {self.end}, f"a handler saw columns that end at {ends}, and a log that ends at {self.end}"
        if self.came % 5 == 0:
            self.sample()
        if self.came < self.wanted:
            self.arm()
        if self.came % 3 == 0 and self.inside:
            self.raised += 1
            self.inside = False
            raise KeyboardInterrupt

    def check_all(self) -> None:
        items = self.buffer.items()
        check(self.buffer.get(items))
        assert len(items) == len(self.buffer) == min(self.end, 700)


def main(path: str, sampler: str, signals: int, seed: int) -> None:
    program = Program(path, sampler, seed)
    program.run(signals)
    program.check_all()
    end = program.end
    program.buffer.close()
    assert verify(path).problems == ()
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        kept = buffer.checkpoints
        assert int(buffer.items()[-1]) == end - 1
    for checkpoint in (None, *kept):
        with dr.ReplayBuffer.open(path, mode="r", checkpoint=checkpoint) as buffer:
            check(buffer.get(buffer.items()))
    print(json.dumps([program.came, program.raised, program.done]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
