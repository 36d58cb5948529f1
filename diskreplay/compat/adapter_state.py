"""The state that another library's buffer keeps beside its rows, so that an opened store goes on as it was closed.

1. Closing, and :meth:`AdapterState.save`, keep priorities, random state and the :class:`RamState` as
   :mod:`diskreplay.buffers.saved_sampler` does. They count as long as the committed rows are those that they were kept
   with, though priorities were updated since: a crash leaves what was saved, or newer rows.
2. What follows from the rows is asked of the store, and counted nowhere else. All other state changes through
   :meth:`AdapterState.changing`, all of it or nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.sampled import SampledBuffer
from diskreplay.checks import Array
from diskreplay.compat.location import close_with
from diskreplay.compat.ring import Ring
from diskreplay.engine.generator import set_rng
from diskreplay.errors import InputError
from diskreplay.schema.ids import Ids

STATE, MARKS = "held", "marks"


@dataclasses.dataclass
class RamState:
    """The state that a buffer has in RAM and that does not follow from its rows.

    Attributes:
        arrays: the arrays by group and name. Arrays of objects, and what is no numpy array, are not saved.
        fills: the value of an array's empty entries by its name; 0 if not named.
        lasting: groups of arrays that stay when the buffer is cleared.
    """

    arrays: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    fills: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lasting: Collection[str] = ()

    @property
    def marks(self) -> dict[str, Ids]:
        """The group of arrays that are a number for each environment, such as ``start_ids``, int64."""
        return self.arrays[MARKS]

    def forget(self) -> None:
        """Make arrays anew."""
        for group, found in self.arrays.items():
            for name, array in found.items() if group not in self.lasting else ():
                if isinstance(array, np.ndarray):
                    found[name] = np.full_like(array, self.fills.get(name, 0))

    def to_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return facts for JSON, and arrays ``(n,)``."""
        return {}, {f"{STATE}-{group}-{name}": values.ravel() for group, name, values in self._saved()}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Take over what :meth:`to_state` gave, for a buffer with the same arguments."""
        for group, name, values in self._saved():
            values[...] = arrays[f"{STATE}-{group}-{name}"].reshape(values.shape)

    def _saved(self) -> list[tuple[str, str, Array]]:
        return [
            (group, name, values)
            for group, found in self.arrays.items()
            for name, values in found.items()
            if isinstance(values, np.ndarray) and not values.dtype.hasobject
        ]


class AdapterState:
    """A :class:`~diskreplay.engine.hooks.Companion` of a buffer that keeps what goes with its rows.

    Args:
        buffer: the buffer that was just created or opened.
        ram: the parts of the owner that are in RAM; None for nothing.
        ring: the positions of its entries, where these are no rows.

    Attributes:
        ring: the positions of the entries; that of the next one is kept, too.
    """

    def __init__(self, buffer: SampledBuffer[Any], ram: RamState | None = None, ring: Ring | None = None) -> None:
        self.buffer, self._ram = buffer, ram or RamState()
        self.ring = Ring(buffer) if ring is None else ring

    def attach(self, owner: object) -> None:
        """Have the buffer closed with ``owner``, the other library's, which is ready now; from here on closing saves.

        Before, closing leaves what was saved.
        """
        close_with(owner, self.buffer)
        self.buffer.engine.companion = self

    # What is in RAM

    @property
    def ram(self) -> RamState:
        """The state in RAM; raises StateError if a change of it was cut short."""
        self.check_whole()
        return self._ram

    def check_whole(self) -> None:
        """Raise StateError if a change was cut short, by a lack of memory or the like."""
        with self.buffer.engine.lock:
            self.buffer.engine.checked_streams()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Run a block that assigns what is known already, while signals wait; raise ClosedError if it is closed."""
        with self.buffer.engine.lock:
            self.buffer.engine.check_open()
            with self.buffer.engine.lock.change:
                yield

    def flush(self) -> None:
        """Add to the buffer what waits in RAM; here nothing does."""

    # As the buffer's companion

    def forget(self) -> None:
        self._ram.forget()

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        facts, arrays = self._ram.to_state()
        return {STATE: {"ptr": self.ring.pos, **facts}}, arrays

    def save(self) -> None:
        """Commit, and make what is kept durable."""
        buffer = self.buffer
        with buffer.engine.write_lock:
            self.flush()
            buffer.commit()
            if why := buffer.engine.save_sampler():
                raise InputError(why)

    # What was saved

    def restore(self, draws: bool = True, checkpoint: str | None = None) -> bool:
        """Go on as the buffer was closed; return False if it was not closed, or never before.

        The buffer has taken the priorities over already.

        Args:
            draws: True if the random state comes back too.
            checkpoint: the checkpoint at which the buffer was opened, whose state counts instead.
        """
        buffer, saved = self.buffer, self.buffer.saved_sampler
        assert saved is not None  # it writes
        found = saved.found if checkpoint is None else buffer.engine.store.checkpoint(checkpoint)
        held = None if found is None else found.state.get(STATE)
        if found is None or not held:
            return False
        arrays = saved.arrays() if checkpoint is None else buffer.engine.store.read_arrays(found)
        try:
            self._ram.restore(held, arrays)
        except (KeyError, ValueError) as error:
            raise InputError(
                f"the store at {buffer.path!r} was made by a buffer with other arguments: {error}; choose another path"
            ) from error
        self.ring.turn(held["ptr"])
        if draws:
            set_rng(buffer.engine.rng, found.state, found.name)
        return True
