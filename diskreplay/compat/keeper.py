"""What another library's buffer keeps beside its rows, so that a store that is opened goes on as it was closed.

1. Closing writes priorities, random state and the :class:`RamState` into a checkpoint of its own. It counts as long as
   the committed rows are those that it was made with. It is dropped once a commit has made newer ones durable, or the
   next one is there. So a crash leaves what was saved, or newer rows.
2. What follows from the rows is asked of the store, and counted nowhere else. What does not is changed by
   :meth:`Keeper.change`, which has happened once it begins: what an interrupt leaves undone the next call does.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.buffers.state import restore_sampler, set_rng
from diskreplay.compat.place import Place, close_with
from diskreplay.compat.rows import window
from diskreplay.errors import InputError
from diskreplay.ids import Ids
from diskreplay.storage.store import FIRST_STREAM, Checkpoint
from diskreplay.views.registry import same_items

Array = NDArray[Any]

Assignment = Callable[[], object]
"""Gives something in RAM a value that is known already: to do it twice does no harm."""

STATE = "held"
NAMES = STATE, f"{STATE}-2"
"""Of checkpoints: one is there while the other is made."""


def set_item(container: Any, key: Any, value: Any) -> Assignment:
    """Sets ``container[key]``."""
    return functools.partial(operator.setitem, container, key, value)


def set_attribute(owner: Any, name: str, value: Any) -> Assignment:
    """Sets ``owner.name``."""
    return functools.partial(setattr, owner, name, value)


def ring_part(number: int, doc: str) -> Any:
    """A property: ``ptr`` (0) or ``size`` (1), of a buffer that has a method ``_ring``.

    Typed as Any, since in XuanCe's base classes these are plain attributes, which mypy lets no property override.
    """
    return property(lambda buffer: buffer._ring()[number], doc=doc)


@dataclasses.dataclass
class RamState:
    """What a buffer has in RAM that does not follow from its rows.

    Attributes:
        ptr, size: of the ring, where its slots are no column of the rows.
        marks: a number for each environment, such as ``start_ids``, int64.
        arrays: by group and name. Arrays of objects, and what is no numpy array, are not saved.
        fills: the value of an array's empty entries by its name; 0 if not named.
        lasting: marks and groups of arrays that stay when the buffer is cleared.
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
        arrays = {f"{STATE}-{group}-{name}": values.ravel() for group, name, values in self._saved()}
        return {"ptr": self.ptr, "size": self.size, "marks": marks}, arrays

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Takes over what :meth:`to_state` gave, of a buffer with the same arguments."""
        self.ptr, self.size = facts["ptr"], facts["size"]
        for name, values in facts["marks"].items():
            self.marks[name][:] = values
        for group, name, values in self._saved():
            values[...] = arrays[f"{STATE}-{group}-{name}"].reshape(values.shape)

    def _saved(self) -> list[tuple[str, str, Array]]:
        return [
            (group, name, values)
            for group, found in self.arrays.items()
            for name, values in found.items()
            if isinstance(values, np.ndarray) and not values.dtype.hasobject
        ]


class Keeper:
    """Keeps what goes with a buffer's rows; a :class:`~diskreplay.buffers.companion.Companion` of it.

    Args:
        buffer: that was just created or opened.
        ram: what its owner has in RAM; None for nothing.
    """

    def __init__(self, buffer: SampledBuffer[Any], ram: RamState | None = None) -> None:
        self.buffer = buffer
        self._ram = ram
        self._begun: tuple[Assignment, ...] = ()
        """What a change has still to do."""

    def opening(self, owner: object) -> _Opening:
        """Around what is done until ``owner``, the other library's buffer, is ready.

        Afterwards closing saves. What ends it half-way closes the store, and leaves what was saved before.
        """
        return _Opening(self, owner)

    # What is in RAM

    @property
    def ram(self) -> RamState:
        """What is in RAM; ends a change that was interrupted."""
        self.finish_change()
        assert self._ram is not None
        return self._ram

    def ring(self) -> tuple[int, int]:
        """``ptr`` and ``size`` of what is in RAM, after what waits there was added."""
        self.flush()
        return self.ram.ptr, self.ram.size

    def finish_change(self) -> None:
        """Ends a change that was interrupted."""
        self.buffer._settled()

    def change(self, *assignments: Assignment) -> None:
        """Does them all, though an interrupt may leave some to the next call; ClosedError if the buffer is closed."""
        with self.buffer._lock:
            self.buffer._check_open()
            with self.buffer._lock.exclusive:
                self._begun = assignments
                self.settle()

    def flush(self) -> None:
        """Adds to the buffer what waits in RAM; nothing does here."""

    # As the buffer's companion

    @property
    def torn(self) -> bool:
        return bool(self._begun)

    def settle(self) -> None:
        for assign in self._begun:
            assign()
        self._begun = ()

    def forget(self) -> None:
        if self._ram is not None:
            self._ram.forget()

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = self._ram.to_state() if self._ram else ({}, {})
        return {STATE: facts}, arrays

    def committed(self) -> None:
        for checkpoint in self._saved():
            if not self._is_newest(checkpoint):
                self.buffer.drop_checkpoint(checkpoint.name)  # it would keep the space of rows that are gone

    def save(self) -> None:
        """Commits, and makes what is kept durable."""
        buffer = self.buffer
        with buffer._write_lock:
            self.flush()
            buffer.commit()
            for checkpoint in self._saved()[:-1]:  # of a save that was interrupted
                buffer.drop_checkpoint(checkpoint.name)
            older = [checkpoint.name for checkpoint in self._saved()]
            buffer.checkpoint(next(name for name in NAMES if name not in older))
            for name in older:
                buffer.drop_checkpoint(name)

    # What was saved

    def restore(self, draws: bool = True, checkpoint: str | None = None) -> bool:
        """Goes on as the buffer was closed; False where it was not closed, or never before.

        Args:
            draws: whether the random state comes back too.
            checkpoint: that the buffer was opened at, whose state counts instead.
        """
        buffer = self.buffer
        for stale in self._saved()[:-1]:
            buffer.drop_checkpoint(stale.name)
        if checkpoint is not None:
            return self._take(buffer._store.checkpoint(checkpoint), draws)
        found = self._saved()
        return bool(found) and self._is_newest(found[0]) and self._take(found[0], draws)

    def _take(self, checkpoint: Checkpoint, draws: bool) -> bool:
        """Takes over what a checkpoint holds; False where it has nothing of what is kept here."""
        buffer = self.buffer
        if self._ram is not None and not checkpoint.state.get(STATE):
            return False  # an older version saved, whose opening was interrupted: it had nothing in RAM yet
        arrays = buffer._store.read_arrays(checkpoint)
        if self._ram is not None:
            try:
                self._ram.restore(checkpoint.state[STATE], arrays)
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"the store at {buffer.path!r} was made by a buffer with other arguments: {error}"
                ) from error
        if same_items(checkpoint.state.get("view", {}), buffer.view.to_json()):  # priorities of others name no items
            restore_sampler(buffer.sampler, checkpoint.state.get("priorities"), arrays, checkpoint.name)
        if draws:
            set_rng(buffer._rng, checkpoint.state, checkpoint.name)
        return True

    def _saved(self) -> list[Checkpoint]:
        """What was saved, that which counts last: two where that was interrupted."""
        return sorted(self.buffer._store.checkpoints(NAMES), key=self._is_newest)

    def _is_newest(self, checkpoint: Checkpoint) -> bool:
        """Whether no commit since has other rows."""
        cut, now = checkpoint.cut[FIRST_STREAM], self.buffer._streams.commits[FIRST_STREAM]
        return (cut.begin, cut.end, cut.timeline) == (now.begin, now.end, now.timeline)


def drop_saved(kind: type[SampledBuffer[Any]], place: Place, others: Collection[str] = ()) -> None:
    """Drops what closing has saved in the store at a place, which would keep it from going back to a checkpoint.

    ``others`` are further checkpoints that count for nothing.
    """
    with kind.open(place.path) as buffer:
        for name in {*NAMES, *others}.intersection(buffer.checkpoints):
            buffer.drop_checkpoint(name)


class PendingStep(Keeper):
    """Holds the newest step back until the next one comes, whose observation is its next observation.

    Args:
        buffer, ram: as of :class:`Keeper`.
        add: adds a step's row to the buffer; gets the step, and the one that follows, or {} where none does.
    """

    def __init__(
        self, buffer: SampledBuffer[Any], ram: RamState,
        add: Callable[[dict[str, Any], Mapping[str, Any]], None],
    ) -> None:  # fmt: skip
        super().__init__(buffer, ram)
        self._add = add
        self._newest: tuple[int, dict[str, Any]] | None = None
        """The row that the newest step becomes, and the step."""

    def _waiting(self) -> dict[str, Any] | None:
        """The newest step, where it is no row yet."""
        end = window(self.buffer).end  # first: it may end what an interrupted call has begun
        newest = self._newest
        return newest[1] if newest is not None and newest[0] == end else None

    def put(self, step: dict[str, Any], *assignments: Assignment) -> None:
        """Adds the step before as a row, and holds ``step`` back; the assignments are done as by :meth:`change`."""
        with self.buffer._write_lock:
            self._release(step)
            self.change(set_attribute(self, "_newest", (window(self.buffer).end, step)), *assignments)

    def cut(self, env: int) -> list[Assignment]:
        """What marks the newest step as the last of an environment's episode, truncated if it is not terminal."""
        step = self._waiting()
        return [] if step is None else [set_item(step["truncated"], env, not step["terminated"][env])]

    def flush(self) -> None:
        """Adds the newest step's row now. Its next observation is its own: XuanCe's on-policy buffers show none."""
        with self.buffer._write_lock:
            self._release(self._waiting() or {})

    def forget(self) -> None:
        self._newest = None
        super().forget()

    def _release(self, following: Mapping[str, Any]) -> None:
        step = self._waiting()
        if step is not None:
            self._add(step, following)


class _Opening:
    """The block of :meth:`Keeper.opening`; no generator, whose own end could be interrupted with the store open."""

    def __init__(self, keeper: Keeper, owner: object) -> None:
        self._keeper = keeper
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *exception: object) -> None:
        try:
            if kind is None:
                close_with(self._owner, self._keeper.buffer)
                self._keeper.buffer._companion = self._keeper
        except BaseException:
            self._keeper.buffer.close()
            raise
        if kind is not None:
            self._keeper.buffer.close()
