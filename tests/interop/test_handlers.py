"""Handlers of signals that use Stable-Baselines3's and CleanRL's buffers and return, in the middle of calls of them.

As those of :mod:`interrupts.handlers`, which need no other library.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from helpers.effort import examples
from interrupts import handlers, others

pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")

from diskreplay.compat import cleanrl, sb3


class InLockstep(others.Stamped):
    """A buffer with the ``add`` and the arrays that SB3 has."""

    kind: Any = None

    def make(self) -> None:
        self.buffer = self.kind(
            self.capacity, others.BOX, others.CHOICE, "cpu", path=self.path, frame_stack=1, **others.SMALL
        )

    def store(self, stamp: int) -> None:
        obs = np.full((1, 2), stamp, np.float32)
        self.buffer.add(obs, obs + 0.5, np.array([stamp % 5]), np.array([stamp]), np.array([False]), [{}])

    def commit(self) -> None:
        self.buffer.store.commit()
        self.committed = len(self.log)

    def read(self) -> list[int]:
        batch = self.buffer.store.get(self.buffer.store.items())
        return others.stamps(batch.reward, batch.obs, batch.next_obs - np.float32(0.5))

    def sample(self) -> None:
        """All rows that are drawn are whole."""
        batch = self.buffer.sample(6)
        rewards, obs, next_obs = batch.rewards.numpy(), batch.observations.numpy(), batch.next_observations.numpy()
        others.stamps(rewards, obs, next_obs - np.float32(0.5))
        assert (rewards.astype(int) % 5 == batch.actions.numpy()).all()


class SB3(InLockstep):
    kind = sb3.DiskReplayBuffer


class CleanRL(InLockstep):
    kind = cleanrl.ReplayBuffer


class Library(handlers.Adapted):
    changing = calls = ("add", "sample", "commit", "read_all")

    def sample(self) -> handlers.Change:
        self.inner.sample()
        return handlers.same

    def commit(self) -> handlers.Change:
        self.inner.buffer.store.commit()
        return handlers.same


class OfSB3(Library):
    kind = SB3


class OfCleanRL(Library):
    kind = CleanRL


@pytest.mark.parametrize("kind", [OfSB3, OfCleanRL])
def test_handlers_run_between_changes(tmp_path: pathlib.Path, kind: type[Library]) -> None:
    count = examples(400, "signals", least=50)
    assert handlers.run(kind(tmp_path), count, seed=1) >= count // 10
