"""A local store whose rows say which they are, the URL that it is pushed to, and readers of that URL."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from helpers.testing.faulty_objects import SimulatedObjects

import diskreplay as dr
from diskreplay import remote
from diskreplay.remote import objects as storage
from diskreplay.remote import place
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

URL = "s3://simulated/a.replay"
CAPACITY = 60
WIDTH = 1100
"""Of an observation: above what the engine keeps in RAM, so that batches are read from the mirror."""
SPACES = spaces.Box(0, 255, (WIDTH,), np.uint8), spaces.Discrete(5)
LAYOUT: dict[str, Any] = {"shard_rows": {"obs": 8, "action": 16}, "chunk_rows": {"obs": 4, "action": 8}}
RUN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}

Rows = list[tuple[int, ...]]
"""Of a stream, each as (writer, timeline, number, reward)."""


class Life:
    """One writer: a local store, and which rows it must hold."""

    def __init__(self, path: pathlib.Path, writer: int = 0, capacity: int = CAPACITY, **options: Any) -> None:
        self.path = str(path)
        self.writer = writer
        self.timeline = 0
        self.capacity = capacity
        self.rows: Rows = []
        self.first = 0
        self.saved: dict[str, Rows] = {}
        make = dr.ReplayBuffer.open_or_create
        self.buffer = make(self.path, *SPACES, capacity=capacity, **LAYOUT, **RUN, **options)

    def add(self, count: int, to: storage.Objects | None = None) -> None:
        """Adds rows and commits them; they are pushed to the objects, if any."""
        for _ in range(count):
            row, after = (observation(self.writer, self.timeline, len(self.rows) + step) for step in (0, 1))
            reward = len(self.rows) + 1000 * self.timeline + 10_000 * self.writer
            self.buffer.add(row, len(self.rows) % 5, float(reward), after, False, len(self.rows) % 10 == 9)
            self.rows.append((self.writer, self.timeline, len(self.rows) % 200, reward))
        self.buffer.commit()
        if to is not None:
            self.push(to)

    def checkpoint(self, name: str) -> None:
        self.saved[name] = list(self.rows)
        self.buffer.checkpoint(name, attachments={"learner": str(self.saved[name]).encode()})

    def go_back(self, name: str) -> None:
        self.buffer.close()
        self.buffer = dr.ReplayBuffer.open(self.path, checkpoint=name, **RUN)
        self.rows = list(self.saved[name])
        self.timeline += 1

    def copy(self, path: pathlib.Path, writer: int | None = None) -> Life:
        """A copy of the directory as it is, and who writes it."""
        self.buffer.commit()
        shutil.copytree(self.path, path)
        other = Life(path, self.writer)
        other.rows, other.timeline, other.saved = list(self.rows), self.timeline, dict(self.saved)
        other.writer = self.writer if writer is None else writer
        return other

    def resize(self, capacity: int) -> None:
        self.first = len(self.rows) - min(len(self.window()), capacity)
        self.capacity = capacity
        self.buffer.resize(capacity)

    def window(self) -> Rows:
        return self.rows[max(self.first, len(self.rows) - self.capacity) :]

    def push(self, objects: storage.Objects, stream: str | None = None) -> Push:
        """A new process's push."""
        store = Store(self.path, LocalFiles())
        push = Push(store, stream or store.stream_names()[0], objects)
        push.run()
        return push


def lived(path: pathlib.Path, *deeds: int | str, **options: Any) -> Life:
    """A writer that adds rows, for a number, and makes checkpoints, for a name, one after another."""
    life = Life(path, **options)
    for deed in deeds:
        life.add(deed) if isinstance(deed, int) else life.checkpoint(deed)
    return life


def pushed(path: pathlib.Path, *deeds: int | str, **options: Any) -> tuple[Life, SimulatedObjects]:
    """Likewise, and the objects to which all was pushed then."""
    life, objects = lived(path, *deeds, **options), SimulatedObjects()
    life.push(objects)
    return life, objects


def observation(writer: int, timeline: int, number: int) -> np.ndarray:
    """Says which row it is of, in all its parts."""
    made = np.random.default_rng([writer, timeline, number % 200]).integers(0, 256, WIDTH, np.uint8)
    made[:3] = writer, timeline, number % 200
    return made


def rows_of(buffer: Any, items: Any = None) -> Rows:
    """Everything that a buffer says, row by row; what belongs together is checked to agree."""
    ids = buffer.items() if items is None else items
    if not len(ids):
        return []
    batch = buffer.get(ids)
    for obs, after, reward, action in zip(batch.obs, batch.next_obs, batch.reward, batch.action, strict=True):
        number = int(reward) % 1000
        where = int(obs[0]), int(obs[1])
        assert np.array_equal(obs, observation(*where, number)), (obs[:3], reward)
        assert np.array_equal(after, observation(int(after[0]), int(after[1]), number + 1)), (after[:3], reward)
        assert action == number % 5, (action, reward)
        assert int(reward) == number + 1000 * where[1] + 10_000 * where[0], (obs[:3], reward)
    return [(*map(int, obs[:3]), int(reward)) for obs, reward in zip(batch.obs, batch.reward, strict=True)]


def seen(url: str, mirror: pathlib.Path) -> Rows:
    """The rows that a reader of a URL sees, in order."""
    with dr.ReplayBuffer.open(url, mode="r", mirror=mirror) as buffer:
        return sorted(rows_of(buffer))


@contextlib.contextmanager
def under(objects: storage.Objects) -> Iterator[None]:
    """URLs lead to these objects."""
    modules: Any = remote, place
    before = [module.ObjectStore for module in modules]
    for module in modules:
        module.ObjectStore = lambda url: objects  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        for module, one in zip(modules, before, strict=True):
            module.ObjectStore = one  # type: ignore[misc]


def reader(objects: storage.Objects, mirror: pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    with under(objects):
        return dr.ReplayBuffer.open(objects.url, mode="r", mirror=mirror, **options)


def read(objects: storage.Objects, mirror: pathlib.Path, **options: Any) -> Rows | None:
    """What a reader that opens now sees, sorted; None where there is no store yet."""
    try:
        buffer = reader(objects, mirror, **options)
    except dr.errors.StoreNotFoundError:
        return None
    with buffer:
        return sorted(rows_of(buffer))
