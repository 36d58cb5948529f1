"""A replay buffer under one of another library's, which finds again what that one was when it was closed.

Closing writes priorities, random state and what the other library keeps in RAM (:class:`Held`) into a checkpoint of its
own. It counts as long as the store's committed rows are those that it was made with, and goes when a commit has made
newer ones durable; the next one has its name before it goes. So a crash leaves what was saved, or newer rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.state import restore_sampler, set_rng
from diskreplay.compat.xuance_marl_steps import HELD, Held
from diskreplay.errors import InputError
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import FIRST_STREAM

Array = NDArray[Any]
Ids = NDArray[np.int64]

NAMES = HELD, f"{HELD}-2"
"""Of checkpoints: one is there while the other is made."""


class Kept(ReplayBuffer):
    """The rows of one buffer."""

    held: Held | None = None
    _saved: str | None = None
    """The checkpoint that is there."""

    # Rows

    @property
    def end(self) -> int:
        """Rows ever added."""
        return int(self._rows.end)

    @property
    def begin(self) -> int:
        """The window's first row."""
        return int(self._rows.begin)

    @property
    def _rows(self) -> Any:
        part = self._streams.written
        assert part is not None, "compat buffers write their store"
        return part.log

    # Draws

    def draw(self, size: int) -> Ids:
        """``size`` ids, as the sampler draws them; more than there are transitions too."""
        with self._lock:
            self._check_open()
            return self._sampler.sample(self._rng, self._streams.windows(), self._standing, size)[0]

    def draw_unique(self, size: int) -> Ids:
        """``size`` different ids of the window's, uniformly drawn."""
        with self._lock:
            self._check_open()
            found: Ids = self.begin * self.num_envs + self._rng.choice(len(self), size, replace=False)
            return found

    def probabilities(self, ids: Ids) -> NDArray[np.float64]:
        """Of ids in the next draw."""
        with self._lock:
            self._check_open()
            return self._sampler.probability(ids, self._streams.windows(), self._standing)

    # What is kept

    def take_back(self, draws: bool = True) -> bool:
        """Goes on as the buffer was closed; False where it was not closed, or never before.

        Args:
            draws: whether the random state comes back too.
        """
        found = [name for name in self.checkpoints if name in NAMES]
        for name in found[:-1]:
            self.drop_checkpoint(name)
        if not found:
            return False
        self._saved = found[-1]
        checkpoint = self._store.checkpoint(found[-1])
        if not self._is_newest(checkpoint.cut[FIRST_STREAM]):
            return False
        arrays = self._store.read_arrays(checkpoint)
        if self.held is not None:
            try:
                self.held.restore(checkpoint.state[HELD], arrays)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"the store at {self.path!r} was made by a buffer with other arguments: {error}"
                ) from error
        restore_sampler(self._sampler, checkpoint.state.get("priorities"), arrays, checkpoint.name)
        if draws:
            set_rng(self._rng, checkpoint.state, checkpoint.name)
        return True

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = super()._state()
        more, kept = self.held.to_state() if self.held else ({}, {})
        return {**facts, HELD: more}, {**arrays, **kept}

    def _is_newest(self, cut: Commit) -> bool:
        """Whether no commit since has other rows."""
        now = self._streams.commits[FIRST_STREAM]
        return (cut.begin, cut.end, cut.timeline) == (now.begin, now.end, now.timeline)

    def commit(self) -> None:
        with self._write_lock:
            super().commit()
            name = self._saved
            if name and not self._is_newest(self._store.checkpoint(name).cut[FIRST_STREAM]):
                self._saved = None
                self.drop_checkpoint(name)  # it would keep the space of rows that are gone

    def flush(self) -> None:
        """Takes over what waits in RAM."""

    def save(self) -> None:
        """Commits, and makes what is held durable."""
        self.flush()
        with self._write_lock:
            older, self._saved = self._saved, None  # out of reach of commit()
            name = next(name for name in NAMES if name != older)
            try:
                self.checkpoint(name)
            except BaseException:
                self._saved = older
                raise
            if older:
                self.drop_checkpoint(older)
            self._saved = name

    def abandon(self) -> None:
        """Closes, and leaves what was saved before as it is."""
        super().close()

    def close(self) -> None:
        """Saves, and closes."""
        if not self._closed and self._streams.writer is not None and self._streams.writer.failure is None:
            self.save()
        super().close()
