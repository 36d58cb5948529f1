"""Commits that a thread writes while rows are added."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import diskreplay as dr
from diskreplay.engine import commits
from diskreplay.errors import StateError


def settled(buffer: dr.ReplayBuffer) -> None:
    """Waits until no commit is being written."""
    with buffer.engine.write_lock:
        buffer.engine.commits.wait()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """A commit that is due is written before adding goes on, as where the system has no thread to give."""
    with mock.patch.object(commits, "start_thread", side_effect=StateError("no thread")):
        yield
