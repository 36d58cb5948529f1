"""The ring of another library's buffer, over a store that its first step makes where that shows what is stacked.

A step of all environments is a row. What is asked of the ring before there is a store is that of an empty one.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from diskreplay.buffers.checkpointed import OverStores
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.compat import given
from diskreplay.compat.disk_array import DiskArray, Shape
from diskreplay.compat.location import Location, close_with
from diskreplay.compat.positions import RingPositions, rows_of_ring
from diskreplay.compat.stacks import images_of, stacks_named, stacks_seen
from diskreplay.compat.stores import check_alike, open_or_create
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.storage.paths import PathLike, full_path
from diskreplay.views.batch import Batch, map_arrays

FrameStack = int | Mapping[str, int] | Literal["auto"]


class Hold:
    """A store, closed when no buffer holds it any more; until then others of this process may find it by its path."""

    _all: ClassVar[weakref.WeakValueDictionary[str, Hold]] = weakref.WeakValueDictionary()

    def __init__(self, path: PathLike | None) -> None:
        self.place = Location(path, self)
        self.store: Store | None = None

    @property
    def is_open(self) -> bool:
        return self.store is not None and not self.store.engine.closed

    @classmethod
    def at(cls, path: PathLike | None) -> Hold:
        """One that is open, else a new one."""
        found = None if path is None else cls._all.get(full_path(path))
        return found if found is not None and found.is_open else cls(path)

    def keep(self, store: Store) -> None:
        self.store = store
        self._all[self.place.path] = self
        close_with(self, store)


class FirstStepRing:
    """Rows of a store in the order of a ring.

    Args:
        hold: the hold on the store, or on the place where the store is to be made.
        facts: the arguments of ``create`` that a store must fit. With a sampler the ring cannot become larger, because
            priorities are kept by places.
        settings: arguments of ``create`` and ``open``.
        options: the caller's.
        frame_stack: frames of an image observation, one number or by key; "auto" sees it from the first step.
        checkpoint: the checkpoint of the existing store to go back to.
        single: keys of observations that are no stacks, whatever the first step shows.
        opened: a function, called with the store once it is there.
    """

    def __init__(
        self, hold: Hold, facts: Mapping[str, Any], settings: Mapping[str, Any], options: Mapping[str, Any],
        frame_stack: FrameStack, *, checkpoint: str | None = None, single: Collection[str] = (),
        opened: Callable[[Store], object] = lambda store: None,
    ) -> None:  # fmt: skip
        self._hold, self._facts, self._settings, self._options = hold, facts, settings, options
        self._opened = opened
        self._grows = "sampler" not in facts
        self._positions: RingPositions | None = None
        self._lead = (facts["num_envs"],)
        self._finite = bool(options.get("finite", False))
        images = images_of(facts["observation_space"])
        self._images = {key: shape for key, shape in images.items() if key not in single}
        if hold.store is not None:
            check_alike(hold.store, facts, self._grows)
        elif hold.place.exists:
            self._make({}, checkpoint)
        elif checkpoint is not None:
            raise InputError(f"there is no store, and so no checkpoint {checkpoint!r}, at {hold.place.path!r}")
        elif frame_stack != "auto":
            self._make(stacks_named(images, frame_stack))
        elif not images:
            self._make({})

    def _make(self, stacked: Mapping[str, Any], checkpoint: str | None = None) -> Store:
        """Make the store, or open the one that is there."""
        settings = {**self._settings, **({} if checkpoint is None else {"checkpoint": checkpoint})}
        create = {**self._facts, **stacked}
        store = open_or_create(
            Store, self._hold.place, self._options, create, self._facts, grows=self._grows, **settings
        )
        self._hold.keep(store)
        self._opened(store)
        return store

    @property
    def place(self) -> Location:
        """The path at which the store is, or is to be made."""
        return self._hold.place

    @property
    def store(self) -> Store | None:
        """The store; None before the first step where that makes it."""
        return self._hold.store

    def filled(self) -> Store:
        """Return the store; raise NotEnoughDataError if it holds nothing."""
        if self.store is None or not len(self.store):
            raise NotEnoughDataError("the buffer is empty; add some steps")
        return self.store

    @property
    def positions(self) -> RingPositions | None:
        """The positions of the rows; None before there is a store."""
        if self._positions is None and self.store is not None:
            self._positions = RingPositions.of_rows(self.store)
        return self._positions

    @property
    def pos(self) -> int:
        """The position of the next row."""
        return 0 if self.positions is None else self.positions.pos

    @property
    def full(self) -> bool:
        """True if the ring has come round."""
        return self.positions is not None and self.positions.full

    def checked(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any, action_space: spaces.Space[Any]
    ) -> tuple[Any, ...]:
        """Return a step as :meth:`add` takes it, from arrays that lead with the environments.

        Args:
            obs, next_obs, action, reward, done: the parts of the step.
            infos: say of which a done is due to a time limit; None where none is.
            action_space: the space of the actions; what is stored has the shape and dtype of the store's.

        Raises InputError for wrong shapes, values that do not fit, and rewards that are not finite.
        """
        lead, finite = self._lead, self._finite
        space, stored = self._facts["observation_space"], self._facts["action_space"]
        timeout = np.zeros(lead, bool) if infos is None else given.time_limits(infos, *lead)
        before = given.of_space("obs", obs, space, lead, finite=finite)
        after = given.of_space("next_obs", next_obs, space, lead, finite=finite)
        chosen = given.actions("action", action, action_space, lead, stored.dtype, finite=finite)
        ended, rewards = given.flags("done", done, lead), given.rewards("reward", reward, lead)
        return before, chosen.reshape(*lead, *stored.shape), rewards, after, ended & ~timeout, timeout

    def add(self, steps: Sequence[tuple[Any, ...]]) -> None:
        """Add rows.

        Args:
            steps: arguments of ``store.add``, which lead with the environments, all checked.
        """
        if not steps:
            return
        store = self.store
        if store is None:
            store = self._make(stacks_seen(self._images, steps[0][0], steps[0][3]))
        assert self.positions is not None
        self.positions.look()
        if self._lead == (1,):
            first = operator.itemgetter(0)
            steps = [tuple([map_arrays(first, part) for part in step]) for step in steps]
        if len(steps) == 1:
            store.add(*steps[0])
        else:
            store.extend(*(given.stacked(parts) for parts in zip(*steps, strict=True)))

    def array(
        self, pick: Callable[[Batch], NDArray[Any]], shape: Shape, dtype: Any,
        make: Callable[..., DiskArray] = DiskArray,
    ) -> DiskArray:  # fmt: skip
        """Return a field of single steps by position, ``(size, num_envs, *shape)``, zeros where none was added."""
        whole = (self._facts["capacity"] // self._lead[0], *self._lead, *shape)
        return rows_of_ring(self.filled, lambda: self.positions, whole, dtype, pick, make)

    def clear(self) -> None:
        """Forgets all rows."""
        if self.store is not None:
            self.store.clear()


class OnRing(OverStores):
    """A buffer whose rows are those of a :class:`FirstStepRing`, its attribute ``_ring``."""

    _ring: FirstStepRing

    @property
    def store(self) -> Store | None:
        return self._ring.store

    @property
    def pos(self) -> int:
        return self._ring.pos


class OnVectorRing(OnRing):
    """Such a buffer of several environments, which shows the columns of single steps as arrays."""

    @property
    def full(self) -> bool:
        return self._ring.full

    @property
    def rewards(self) -> DiskArray:
        return self._ring.array(lambda batch: batch.reward, (), np.float32)

    @property
    def timeouts(self) -> DiskArray:
        return self._ring.array(lambda batch: batch.truncated, (), np.float32)
