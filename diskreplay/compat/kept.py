"""A store under another library's buffer, which finds again what that one was when it was closed.

1. Closing writes priorities, random state and what the other library keeps in RAM (:class:`Held`) into a checkpoint of
   its own. It counts as long as the store's committed rows are those that it was made with, and goes when a commit has
   made newer ones durable, or the next one has its name. So a crash leaves what was saved, or newer rows.
2. What follows from the rows is asked of the store, and counted nowhere else. What does not is changed by
   :meth:`Keeping.change`, which has happened once it begins: what an interrupt leaves undone the next call does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.sampled import SampledBuffer, SomeBatch
from diskreplay.buffers.state import restore_sampler, set_rng
from diskreplay.compat.window import column, window, written
from diskreplay.errors import InputError
from diskreplay.storage.store import FIRST_STREAM, Checkpoint
from diskreplay.storage.stream import StreamWriter
from diskreplay.views.batch import Batch

Array = NDArray[Any]
Ids = NDArray[np.int64]

Assignment = Callable[[], object]
"""Gives something in RAM a value that is known already: to do it twice does no harm."""

HELD = "held"
NAMES = HELD, f"{HELD}-2"
"""Of checkpoints: one is there while the other is made."""
SLOT = "slot"
"""The column of rows that know their place in the other library's ring."""


def set_item(container: Any, key: Any, value: Any) -> Assignment:
    """Sets ``container[key]``."""
    return functools.partial(operator.setitem, container, key, value)


def set_attribute(owner: Any, name: str, value: Any) -> Assignment:
    """Sets ``owner.name``."""
    return functools.partial(setattr, owner, name, value)


@dataclasses.dataclass
class Held:
    """What a buffer keeps in RAM, and finds again.

    Attributes:
        ptr, size: of XuanCe's ring.
        marks: a number for each environment, such as ``start_ids``, int64.
        arrays: mappings whose numpy arrays are kept, but those of objects; what else is in them is not.
        fills: what stands in arrays where nothing was stored, by name; 0 where it is not said here.
        lasting: names of marks and of mappings that stay when the rows are forgotten.
    """

    ptr: int = 0
    size: int = 0
    marks: dict[str, Ids] = dataclasses.field(default_factory=dict)
    arrays: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    fills: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lasting: Collection[str] = ()

    def forget(self) -> None:
        """Empties the ring; arrays are made anew."""
        self.ptr = self.size = 0
        for name, values in self.marks.items():
            if name not in self.lasting:
                values[:] = 0
        for group, found in self.arrays.items():
            for name, array in found.items() if group not in self.lasting else ():
                if isinstance(array, np.ndarray):
                    found[name] = np.full_like(array, self.fills.get(name, 0))

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
            if isinstance(values, np.ndarray) and not values.dtype.hasobject
        ]


class Keeping(SampledBuffer[SomeBatch]):
    """What a buffer of rows needs to be found again as it was."""

    held: Held | None = None
    _begun: tuple[Assignment, ...] = ()
    """What a change has still to do."""
    _saving = False
    """Closing saves what is held; not before that is what was saved last."""

    # Rows

    @property
    def end(self) -> int:
        """Rows ever added."""
        return window(self).end

    @property
    def begin(self) -> int:
        """The window's first row."""
        return window(self).begin

    @property
    def ring(self) -> tuple[int, int]:
        """The slot that is written next, and how many are taken: of a ring as long as the window."""
        with self._lock:
            log = written(self)
            if log.begin == log.end:
                return 0, 0
            newest = column(self, SLOT, log.end - 1, log.end)[0, 0]
            return (int(newest) + 1) % log.rows, log.end - log.begin

    def ids(self, rows: Ids, envs: Ids | int) -> Ids:
        """Of rows and environments, as ``get`` takes them."""
        found: Ids = np.asarray(rows) * self.num_envs + envs
        return found

    def rows_of(self, ptr: int, n_size: int, slots: Ids) -> Ids:
        """The newest rows in slots of a ring whose next entry is ``ptr``."""
        rows: Ids = self.end - 1 - (ptr - 1 - slots) % n_size
        return rows

    def column(self, name: str, start: int | None = None, stop: int | None = None) -> Array:
        """A small column of the window, or of rows ``[start, stop)`` of it, ``(rows, num_envs, *shape)``."""
        begin, end = window(self)
        return column(self, name, begin if start is None else start, end if stop is None else stop)

    def batch(self, ids: Ids) -> SomeBatch:
        """What ids name, each read once."""
        wanted, where = np.unique(ids, return_inverse=True)
        batch = self.get(wanted)
        return batch if len(wanted) == len(ids) and (wanted == ids).all() else batch.map(lambda array: array[where])

    # Changes

    def change(self, *assignments: Assignment) -> None:
        """Does them all, though an interrupt may leave some to the next call; ClosedError where this is closed."""
        with self._lock:
            self._check_open()
            self._begun = assignments
            self._settle()

    def settle(self) -> None:
        """Does what an interrupted call left undone."""
        self._settled()

    def _torn(self) -> bool:
        return bool(self._begun) or super()._torn()

    def _settle(self) -> None:
        if self._clearing:
            self._forget()
        super()._settle()
        for assign in self._begun:
            assign()
        self._begun = ()

    def _forget(self) -> None:
        """Forgets what goes with the rows; may be called again."""
        if self.held is not None:
            self.held.forget()

    # What is kept

    def take_back(self, draws: bool = True) -> bool:
        """Goes on as the buffer was closed; False where it was not closed, or never before.

        Args:
            draws: whether the random state comes back too.
        """
        for stale in self._kept()[:-1]:
            self.drop_checkpoint(stale.name)
        found = self._kept()
        if not found or not self._is_newest(found[0]):
            return False
        checkpoint = found[0]
        if self.held is not None and not checkpoint.state.get(HELD):
            return False  # an older version saved, whose opening was interrupted: it held nothing yet
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

    def _kept(self) -> list[Checkpoint]:
        """What was saved, that which counts last: two where that was interrupted."""
        return sorted(self._store.checkpoints(NAMES), key=self._is_newest)

    def _is_newest(self, checkpoint: Checkpoint) -> bool:
        """Whether no commit since has other rows."""
        cut, now = checkpoint.cut[FIRST_STREAM], self._streams.commits[FIRST_STREAM]
        return (cut.begin, cut.end, cut.timeline) == (now.begin, now.end, now.timeline)

    def commit(self) -> None:
        with self._write_lock:
            super().commit()
            for checkpoint in self._kept():
                if not self._is_newest(checkpoint):
                    self.drop_checkpoint(checkpoint.name)  # it would keep the space of rows that are gone

    def flush(self) -> None:
        """Takes over what waits in RAM."""

    def save(self) -> None:
        """Commits, and makes what is held durable."""
        with self._write_lock:
            self.flush()
            self.commit()
            for checkpoint in self._kept()[:-1]:  # of a save that was interrupted
                self.drop_checkpoint(checkpoint.name)
            older = [checkpoint.name for checkpoint in self._kept()]
            self.checkpoint(next(name for name in NAMES if name not in older))
            for name in older:
                self.drop_checkpoint(name)

    def _commit_last(self, writer: StreamWriter) -> None:
        if not self._saving:
            super()._commit_last(writer)
        elif writer.failure is None:
            self.save()
        elif writer.cut_short:  # what is held cannot be saved
            writer.check()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Around what is done until a buffer is ready; what ends that half-way closes the store, as it was saved."""
        try:
            yield
        except BaseException:  # not left to the collector: a traceback that somebody keeps would hold the lock
            self.abandon()
            raise
        self._saving = True

    def abandon(self) -> None:
        """Closes, and leaves what was saved before as it is."""
        self._saving = False
        self.close()


class Lagging(Keeping[SomeBatch]):
    """Rows whose next observation comes with the row after them."""

    _newest: tuple[int, dict[str, Any]] | None = None
    """The row that the newest step becomes, and the step."""

    def _waiting(self) -> dict[str, Any] | None:
        """The newest step, where it is no row yet."""
        end, newest = self.end, self._newest  # in this order: the first may end what an interrupted call has begun
        return newest[1] if newest is not None and newest[0] == end else None

    def put(self, *assignments: Assignment, **step: Any) -> None:
        """Adds the row that waits, whose next observation this step has; the step waits in its place.

        What goes with the step is done as by :meth:`change`.
        """
        with self._write_lock:
            self._release(step)
            self.change(set_attribute(self, "_newest", (self.end, step)), *assignments)

    def cut_off(self, env: int) -> list[Assignment]:
        """What says that the episode of an environment ended with the newest step."""
        step = self._waiting()
        return [] if step is None else [set_item(step["truncated"], env, not step["terminated"][env])]

    def flush(self) -> None:
        """Adds the row that waits, with its own observation in the place of the next one, which nobody reads."""
        with self._write_lock:
            super().flush()
            self._release(self._waiting() or {})

    def _forget(self) -> None:
        self._newest = None
        super()._forget()

    def _release(self, following: Mapping[str, Any]) -> None:
        step = self._waiting()
        if step is not None:
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


class Ringed(Closing):
    """Likewise, its entries being a ring."""

    def _ring(self) -> tuple[int, int]:
        """``ptr`` and ``size``."""
        raise NotImplementedError

    # In the base classes of XuanCe's these can be set; mypy would have them so in all.
    ptr: Any = property(lambda self: self._ring()[0], doc="The entry to be written next.")
    size: Any = property(lambda self: self._ring()[1], doc="Entries that are there.")


class InHeld(Ringed):
    """Likewise, pointer and size being in what is kept."""

    _held: Held

    def _ring(self) -> tuple[int, int]:
        self.engine.settle()
        return self._held.ptr, self._held.size


class InRows(Ringed):
    """Likewise, its ring being found in the rows."""

    def _ring(self) -> tuple[int, int]:
        ring: tuple[int, int] = self.engine.ring
        return ring


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
