"""A pytest plugin: Tianshou's vector buffers are ours, and its collectors' buffer of one environment is one of ours."""

from __future__ import annotations

from typing import Any

import pytest
import tianshou.data

from diskreplay.compat.tianshou import DiskPrioritizedVectorReplayBuffer, DiskVectorReplayBuffer

tianshou.data.VectorReplayBuffer = DiskVectorReplayBuffer
tianshou.data.PrioritizedVectorReplayBuffer = DiskPrioritizedVectorReplayBuffer


class ReplayBuffer(DiskVectorReplayBuffer):
    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(size, 1, **options)


class PrioritizedReplayBuffer(DiskPrioritizedVectorReplayBuffer):
    def __init__(self, size: int, alpha: float, beta: float, **options: Any) -> None:
        super().__init__(size, 1, alpha=alpha, beta=beta, **options)


def pytest_collection_finish(session: pytest.Session) -> None:
    """In the collectors' tests alone: those of the buffer itself add steps without an axis of environments."""
    for item in session.items:
        if item.nodeid.startswith("test/base/test_collector.py"):
            item.module.ReplayBuffer = ReplayBuffer
            item.module.PrioritizedReplayBuffer = PrioritizedReplayBuffer
