"""A replay buffer under one of another library's, which finds again what that one was when it was closed.

Closing writes priorities, random state and what the other library keeps in RAM (:class:`Held`) into a checkpoint of its
own. It counts as long as the store's newest rows are those that it was made with, and goes with the next row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.state import restore_sampler, set_rng
from diskreplay.compat.xuance_marl_steps import HELD, Held
from diskreplay.errors import InputError
from diskreplay.storage.store import FIRST_STREAM

Array = NDArray[Any]
Ids = NDArray[np.int64]


class Kept(ReplayBuffer):
    """The rows of one buffer."""

    held: Held | None = None
    _stale: bool = False
    """There is a checkpoint of older rows."""

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
        if HELD not in self.checkpoints:
            return False
        checkpoint = self._store.checkpoint(HELD)
        self._stale = True
        cut, now = checkpoint.cut[FIRST_STREAM], self._streams.commits[FIRST_STREAM]
        if (cut.begin, cut.end, cut.timeline) != (now.begin, now.end, now.timeline):
            return False
        arrays = self._store.read_arrays(checkpoint)
        if self.held is not None:
            try:
                self.held.restore(checkpoint.state[HELD], arrays)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"the store at {self.path!r} was made by a buffer with other arguments: {error}"
                ) from error
        restore_sampler(self._sampler, checkpoint.state.get("priorities"), arrays, HELD)
        if draws:
            set_rng(self._rng, checkpoint.state, HELD)
        return True

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = super()._state()
        more, kept = self.held.to_state() if self.held else ({}, {})
        return {**facts, HELD: more}, {**arrays, **kept}

    def _add(self, *arguments: Any, **options: Any) -> None:
        self._forget_held()
        super()._add(*arguments, **options)

    def _extend(self, *arguments: Any, **options: Any) -> None:
        self._forget_held()
        super()._extend(*arguments, **options)

    def clear(self) -> None:
        self._forget_held()
        super().clear()

    def _forget_held(self) -> None:
        """Drops the checkpoint of older rows, which would keep their space."""
        if self._stale:
            self._stale = False
            self.drop_checkpoint(HELD)

    def flush(self) -> None:
        """Takes over what waits in RAM."""

    def save(self) -> None:
        """Commits, and makes what is held durable."""
        self.flush()
        self._forget_held()
        self.checkpoint(HELD)
        self._stale = True

    def abandon(self) -> None:
        """Closes, and leaves what was saved before as it is."""
        super().close()

    def close(self) -> None:
        """Saves, and closes."""
        if not self._closed and self._streams.writer is not None and self._streams.writer.failure is None:
            self.save()
        super().close()
