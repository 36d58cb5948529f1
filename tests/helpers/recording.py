"""A buffer and the naive oracle, filled side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers.configs import Config
from helpers.model import KINDS, Actor, Log, arguments, check_buffer

import diskreplay as dr


class Recording:
    """Rows for a buffer of one kind, and what the buffer must say about them."""

    def __init__(self, config: Config, seed: int = 0) -> None:
        self.config = config
        self.rng = np.random.default_rng(seed)
        self.log = config.log()
        self.actor = Actor(self.log, self.rng, config.action, config.extra)

    def add(self, buffer: dr.ReplayBuffer, count: int, special: float = 0.2, commit: bool = False) -> None:
        """Adds rows, and commits them if told; about this share of the steps is out of the ordinary."""
        for _ in range(count):
            kinds = [kind if self.rng.random() < special else "step" for kind in self.rng.choice(KINDS[3:], 5)]
            row = self.actor.row(kinds, next_step=bool(self.rng.random() < 0.5))
            buffer.add(**arguments(self.config.obs, row))
            self.log.rows.append(row)
        if commit:
            buffer.commit()

    def lose(self, end: int) -> None:
        """Rows from ``end`` on were lost; the environments start anew."""
        self.log.rows = self.log.rows[:end]
        self.actor.restart()

    def check(self, buffer: dr.ReplayBuffer) -> None:
        """The buffer holds just what was added."""
        check_buffer(buffer, [self.log], self.config.n_step, self.config.gamma)


def reopen(config: Config, path: str, **options: Any) -> dr.ReplayBuffer:
    """The buffer as :meth:`Config.create` made it."""
    given: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": config.cache_bytes}
    return dr.ReplayBuffer.open(path, **given | options)


@contextlib.contextmanager
def recorded_in(
    config: Config, path: Any, rows: int = 0, special: float = 0.2, commit: bool = False, seed: int = 0, **options: Any
) -> Iterator[tuple[dr.ReplayBuffer, Recording]]:
    """A new buffer with so many rows, and what was recorded into it."""
    recording = Recording(config, seed)
    with config.create(path, **options) as buffer:
        recording.add(buffer, rows, special, commit)
        yield buffer, recording


def recorded_store(config: Config, path: Any, rows: int, special: float = 0.2, **options: Any) -> Recording:
    """What was recorded into a new buffer, which is closed."""
    with recorded_in(config, path, rows, special, **options) as (_, recording):
        return recording


@contextlib.contextmanager
def recorded(config: Config, path: str) -> Iterator[dr.ReplayBuffer]:
    """A reader of 100 rows."""
    with config.create(path) as buffer:
        Recording(config).add(buffer, 100)
    with reopen(config, path, mode="r", seed=1) as buffer:
        yield buffer


def went_on(holder: Any, newest: dict[str, Log]) -> bool:
    """Whether a holder's buffer went on by itself to the newest commits of the others, as it must where it was outrun.

    Args:
        holder: of a ``buffer``, and of ``others``: their logs as it saw them last, which become the newest.
        newest: of each of the others.
    """
    windows = {name: (facts["begin"], facts["end"]) for name, facts in holder.buffer.stats()["streams"].items()}
    if all(windows[name] == (log.begin, log.end) for name, log in holder.others.items()):
        return False
    assert any(newest[name].outran(log) for name, log in holder.others.items()), "all that it saw is still there"
    assert {name: windows[name] for name in newest} == {n: (log.begin, log.end) for n, log in newest.items()}
    holder.others = newest
    return True


def leaves(batch: Any) -> list[Any]:
    """The arrays of a batch, in their order."""
    found: list[Any] = []
    batch.map(found.append)
    return found
