"""A store under another library's buffer, which finds again what that one was when it was closed.

Closing writes priorities, random state and what the other library keeps in RAM (:class:`Held`) into a checkpoint of its
own. It counts as long as the store's committed rows are those that it was made with, and goes when a commit has made
newer ones durable; the next one has its name before it goes. So a crash leaves what was saved, or newer rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer, SomeBatch
from diskreplay.buffers.state import restore_sampler, set_rng
from diskreplay.errors import InputError
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import FIRST_STREAM
from diskreplay.views.batch import Batch

Array = NDArray[Any]
Ids = NDArray[np.int64]

HELD = "held"
NAMES = HELD, f"{HELD}-2"
"""Of checkpoints: one is there while the other is made."""


@dataclasses.dataclass
class Held:
    """What a buffer keeps in RAM, and finds again.

    Attributes:
        ptr, size: of XuanCe's ring.
        marks: a number for each environment, such as ``start_ids``, int64.
        arrays: mappings whose numpy arrays are kept; what else is in them is not.
    """

    ptr: int = 0
    size: int = 0
    marks: dict[str, Ids] = dataclasses.field(default_factory=dict)
    arrays: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def to_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Facts for JSON, and arrays ``(n,)``."""
        marks = {name: values.tolist() for name, values in self.marks.items()}
        arrays = {f"{HELD}-{group}-{name}": values.ravel() for group, name, values in self._arrays()}
        return {"ptr": self.ptr, "size": self.size, "marks": marks}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Takes over what :meth:`to_state` gave, of a buffer with the same arguments."""
        self.ptr, self.size = facts["ptr"], facts["size"]
        for name, values in facts["marks"].items():
            self.marks[name][:] = values
        for group, name, values in self._arrays():
            values[...] = arrays[f"{HELD}-{group}-{name}"].reshape(values.shape)

    def _arrays(self) -> list[tuple[str, str, Array]]:
        return [
            (group, name, values)
            for group, found in self.arrays.items()
            for name, values in found.items()
            if isinstance(values, np.ndarray)
        ]


class Keeping(SampledBuffer[SomeBatch]):
    """What a buffer of rows needs to be found again as it was."""

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
        part = self._settled().written
        assert part is not None, "compat buffers write their store"
        return part.log

    def ids(self, rows: Ids, envs: Ids | int) -> Ids:
        """Of rows and environments, as ``get`` takes them."""
        found: Ids = np.asarray(rows) * self.num_envs + envs
        return found

    def rows_of(self, ptr: int, n_size: int, slots: Ids) -> Ids:
        """The newest rows in slots of a ring whose next entry is ``ptr``."""
        rows: Ids = self.end - 1 - (ptr - 1 - slots) % n_size
        return rows

    def column(self, name: str) -> Array:
        """A small column of the window, ``(rows, num_envs, *shape)``."""
        with self._lock:
            taken: Array = self._rows.span(name, self.begin, self.end)
            return taken

    def batch(self, ids: Ids) -> SomeBatch:
        """What ids name, each read once."""
        wanted, where = np.unique(ids, return_inverse=True)
        batch = self.get(wanted)
        return batch if len(wanted) == len(ids) and (wanted == ids).all() else batch.map(lambda array: array[where])

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


class Lagging(Keeping[SomeBatch]):
    """Rows whose next observation comes with the row after them."""

    _waiting: dict[str, Any] | None = None

    def put(self, **step: Any) -> None:
        """Adds the row that waits, whose next observation this step has; the step waits in its place."""
        self._release(step)
        self._waiting = step

    def cut(self, env: int) -> None:
        """The episode of an environment ended with the newest step."""
        if self._waiting is not None:
            self._waiting["truncated"][env] = not self._waiting["terminated"][env]

    def flush(self) -> None:
        """Adds the row that waits, with its own observation in the place of the next one, which nobody reads."""
        if self._waiting is not None:
            self._release(self._waiting)

    def forget(self) -> None:
        """Empties the window."""
        self._waiting = None
        self.clear()

    def _release(self, following: Mapping[str, Any]) -> None:
        if self._waiting is not None:
            step, self._waiting = self._waiting, None
            self._put(step, following)

    def _put(self, step: dict[str, Any], following: Mapping[str, Any]) -> None:
        """Adds a step with the observations of the one that follows."""
        raise NotImplementedError


class Closing:
    """A buffer over a store that keeps what it is."""

    engine: Any

    def commit(self) -> None:
        """Makes everything durable, what is in RAM too."""
        self.engine.save()

    def close(self) -> None:
        """Commits, and lets the store go."""
        self.engine.close()


class InHeld(Closing):
    """Likewise, its ring's pointer and size being in what is kept."""

    _held: Held

    @property
    def ptr(self) -> int:
        """The entry to be written next."""
        return self._held.ptr

    @ptr.setter
    def ptr(self, value: int) -> None:
        self._held.ptr = value

    @property
    def size(self) -> int:
        """Entries that are there."""
        return self._held.size

    @size.setter
    def size(self, value: int) -> None:
        self._held.size = value


class Kept(Keeping[Batch], ReplayBuffer):
    """The rows of one buffer."""

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
