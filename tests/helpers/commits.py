"""Commits that a thread writes while rows are added."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from helpers.line import add, create
from helpers.patience import PATIENCE
from helpers.testing import FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.engine import commits
from diskreplay.errors import StateError
from diskreplay.ops.verify import verify

PATH = "/shelf/a.replay"
DUE = 10
"""The rows after which a commit is due."""


def settled(buffer: dr.ReplayBuffer) -> None:
    """Waits until no commit is being written."""
    with buffer.engine.write_lock:
        buffer.engine.commits.wait()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """A commit that is due is written before adding goes on, as where the system has no thread to give."""
    with mock.patch.object(commits, "start_thread", side_effect=StateError("no thread")):
        yield


def in_commit() -> bool:
    """Whether this thread writes a commit."""
    return threading.current_thread().name == "diskreplay-commit"


class Held(FaultyFiles):
    """A disk on which the thread of a commit stands still before an operation, until it may go on.

    Attributes:
        arrived: set once it stands there.
        go: set when it may go on.
    """

    def __init__(self, at: str = "sync") -> None:
        disk = SimulatedDisk()
        disk.mkdir("/shelf")
        disk.sync_dir("/")
        self.at = at
        self.arrived, self.go = threading.Event(), threading.Event()
        super().__init__(disk)

    def ask(self, name: str, path: str, size: int = 0, target: str = "") -> None:
        if name == self.at and in_commit():
            self.arrived.set()
            assert self.go.wait(PATIENCE)
        super().ask(name, path, size, target)

    def stuck(self, **options: Any) -> dr.ReplayBuffer:
        """A buffer whose first commit is being written, and stands still."""
        buffer = create(PATH, files=self, commit_rows=DUE, **options)
        add(buffer, DUE)
        assert self.arrived.wait(PATIENCE)
        return buffer


def check(files: Any, rows: int, capacity: int = 100) -> None:
    """The store has so many rows, each as it was added, and no damage."""
    assert verify(PATH, files=files).problems == ()
    with dr.ReplayBuffer.open(PATH, mode="r", files=files) as reader:
        batch = reader.get(reader.items())
    wanted = np.arange(max(0, rows - capacity), rows)
    assert batch.index.tolist() == batch.reward.tolist() == batch.obs[:, 0].tolist() == wanted.tolist()
    assert batch.next_obs[:, 0].tolist() == (wanted + 1).tolist()
