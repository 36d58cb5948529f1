"""The base of the samplers with priorities: whose places they are, what is counted, and the state.

A subclass keeps a value for each place in an index of its own, a tree, and says what a new place, a vacated one and
updated ones do to it.

Places and tree belong together. To follow the windows the slots that will change are listed first, which may ask a
view of the user's own; then the tree is changed, and has new places. Signals wait meanwhile. What cuts that short all
the same, such as a lack of memory, leaves a sampler that refuses to draw. An update of priorities is one compiled call;
so is a window's step forward, where the tree offers that.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import checked_number
from diskreplay.errors import StateError
from diskreplay.interrupts import undisturbed
from diskreplay.loading import warn_if_unkept
from diskreplay.sampling.window import (
    Prioritized,
    Remembered,
    Standings,
    Window,
    Windows,
    checked_updates,
    refused_update,
)
from diskreplay.schema.ids import Ids, checked_ids

if TYPE_CHECKING:  # loads numba, which only those pay for who sample with priorities
    from diskreplay.sampling.places import Changes, Places

Floats = NDArray[np.float64]
Tree = TypeVar("Tree")


class Priorities(Prioritized, Generic[Tree]):
    """The priorities of the one buffer that a sampler is given to.

    Args:
        beta: the exponent of the importance weights.
        most: the largest priority that is taken.
        by_env: True if each environment has a distribution of its own.
    """

    _array: ClassVar[str]
    """The name of the tree's values in the state."""

    def __init__(self, beta: float, most: float, by_env: bool = False) -> None:
        self._beta = checked_number("beta", beta)
        self._most = most
        self._by_env = by_env
        self.clear()

    def clear(self) -> None:
        """Forget all priorities and counts, as if the sampler was new; its arguments stay."""
        self._maxima = np.ones(0 if self._by_env else 1)
        self._ignored = np.zeros(1, np.int64)
        self._cut_short = ""
        """The error that ended a change of the tree half-way."""
        self._tree: Tree | None = None
        self._places: Places | None = None

    def prepare(self) -> None:
        """Import the compiled code of the tree, and numba: not within a draw, where a handler could meet half of it."""
        from diskreplay.sampling import places  # noqa: F401

        self._new_tree(0)
        warn_if_unkept()

    @property
    def is_new(self) -> bool:
        """True if it knows nothing of any buffer yet, or was cleared."""
        return self._places is None

    @property
    def beta(self) -> float:
        """The part of the bias that the weights of the next sample take back; can be set."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        self._beta = checked_number("beta", beta)

    @property
    def maximum(self) -> float:
        """The largest priority so far, of any environment, 1 at first."""
        return float(self._maxima.max(initial=1.0))

    @property
    def ignored_updates(self) -> int:
        """The number of priorities that came after their transition had left the window."""
        return int(self._ignored[0])

    def update(self, ids: Any, priorities: Any, windows: Windows, standing: Standings) -> None:
        """Set the TD errors, or their magnitudes, ``(B,)``, of ids ``(B,)``; of a repeated id the last one counts.

        Ids that have left the window are ignored and counted. Raises InputError, and changes no priority, where an id
        is that of no transition or a priority is not finite.
        """
        ids, priorities = checked_updates(ids, priorities)
        places, tree = self._catch_up(windows, standing)
        wrong = self._change(places, tree, places.to_slots(ids), priorities)
        if wrong >= 0:
            raise refused_update(ids[wrong], priorities[wrong], self._most)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> Floats:
        """Return ``P(i)`` of ids ``(B,)`` in the next draw, float64 ``(B,)``; 0 for what cannot be drawn."""
        ids = checked_ids(ids)
        places, tree = self._catch_up(windows, standing)
        slots = places.to_slots(ids)
        found = np.zeros(len(ids))
        found[slots >= 0] = self._chances(places, tree, slots[slots >= 0])
        return found

    def forget(self, stream: int) -> None:
        """Forget the priorities of a stream whose rows were taken back; they count as new from now on."""
        if self._places is not None and self._tree is not None:
            moved, changes = self._places.forgotten(stream)
            if changes is not None:
                if self._by_env:
                    self._maxima[self._places.groups_in(stream)] = 1.0
                self._move(self._tree, moved, changes)

    def _parts(self) -> tuple[Places, Tree]:
        if self._cut_short:
            raise StateError(
                f"{self!r} has lost its priorities, as {self._cut_short} cut a change of them short; open the store "
                "again with a new sampler, or from a checkpoint"
            )
        if self._places is None or self._tree is None:
            with undisturbed():
                from diskreplay.sampling.places import Places

                self._tree = self._new_tree(0)
            self._places = Places(self._by_env)
        return self._places, self._tree

    def _catch_up(self, windows: Windows, standing: Standings) -> tuple[Places, Tree]:
        places, tree = self._parts()
        listed = list(windows)
        if listed == places.windows:
            return places, tree
        standing = Remembered(standing)
        if self._advance(places, tree, listed, standing):
            places.windows = listed
            return places, tree
        places, tree = self._resized(places, tree, listed)
        moved, changes = places.caught_up(listed, standing)
        self._move(tree, moved, changes)
        return moved, tree

    def _resized(self, places: Places, tree: Tree, listed: list[Window]) -> tuple[Places, Tree]:
        resized = places.resized(listed)
        if resized is None:
            return places, tree
        moved, left = resized
        self._tree, self._places = self._restored(moved, moved.held(), self._values(tree, left)), moved
        return self._places, self._tree

    def _move(self, tree: Tree, moved: Places, changes: Changes) -> None:
        """Change the tree, then replace the places by ``moved``, as the module's docstring says."""
        try:
            if moved.groups > len(self._maxima):
                self._maxima = np.append(self._maxima, np.ones(moved.groups - len(self._maxima)))
            self._grow(tree, moved.slots)
            if len(changes.slots):
                self._enter(tree, changes, moved)
            elif len(changes.vacated):
                self._leave(tree, changes.vacated)
            self._places = moved
        except BaseException as error:
            self._cut_short = repr(error)
            raise

    # The tree

    @abc.abstractmethod
    def _new_tree(self, slots: int) -> Tree:
        """Return a tree with room for ``slots`` places and nothing in them."""

    @abc.abstractmethod
    def _grow(self, tree: Tree, slots: int) -> None:
        """Make room for ``slots`` places."""

    def _advance(self, places: Places, tree: Tree, listed: list[Window], standing: Standings) -> bool:
        """Follow windows that only went forward, each in one compiled call that changes tree and places.

        False where that does not apply; windows may have been followed all the same.
        """
        return False

    @abc.abstractmethod
    def _enter(self, tree: Tree, changes: Changes, moved: Places) -> None:
        """Empty the vacated slots, then give new transitions the largest priority of their group."""

    @abc.abstractmethod
    def _leave(self, tree: Tree, slots: Ids) -> None:
        """Empty slots; some may be empty."""

    @abc.abstractmethod
    def _change(self, places: Places, tree: Tree, slots: Ids, priorities: Floats) -> int:
        """Set priorities, raise maxima and count evicted slots, in one compiled call.

        The position of the first entry that is wrong, or -1; where there is one, nothing is changed.
        """

    @abc.abstractmethod
    def _chances(self, places: Places, tree: Tree, slots: Ids) -> Floats:
        """Return the probabilities of slots of the windows."""

    @abc.abstractmethod
    def _values(self, tree: Tree, slots: Ids) -> Floats:
        """Return the values of slots for the state."""

    @abc.abstractmethod
    def _restored(self, places: Places, slots: Ids, values: Floats) -> Tree:
        """Return the tree with these values; raise ValueError if they are not valid."""

    # State

    def state(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return all that the next draws depend on but windows and arguments, as facts for JSON and arrays.

        ``waiting`` int64: the numbers, in their streams, of rows that may still become transitions; and a value of
        float64 for each id of all windows, one window after another.
        """
        places, tree = self._parts()
        runs, waiting = places.state()
        maxima = self._maxima[: places.groups].tolist()
        facts = {"maxima": maxima, "ignored_updates": self.ignored_updates, "streams": runs}
        return facts, {self._array: self._values(tree, places.held()), "waiting": waiting}

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`state` gave; what the windows hold now is seen by the next call.

        Raises ValueError, KeyError or TypeError, and changes nothing, where that is no state of such a sampler.
        """
        with undisturbed():
            from diskreplay.sampling.places import Places

        places = Places.restored(self._by_env, facts["streams"], arrays["waiting"])
        maxima, ignored = np.array(facts["maxima"], np.float64), int(facts["ignored_updates"])
        if maxima.shape != (places.groups,) or not (maxima >= 1).all():
            raise ValueError(f"stored maxima must be {places.groups} priorities of at least 1, got {maxima}")
        held, values = places.held(), np.asarray(arrays[self._array], np.float64)
        if values.shape != held.shape:
            raise ValueError(f"stored priorities must be {len(held)}, got {values.shape}")
        self._tree = self._restored(places, held, values)
        self._places, self._maxima, self._ignored = places, maxima, np.array([ignored])
        self._cut_short = ""
