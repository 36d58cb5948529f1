"""The base of the samplers with priorities: whose places they are, what is counted, and the state.

A subclass keeps a value for each place in an index of its own, a tree, and gives tree and places to the core, which
holds them (native/priorities.pxi): it moves the windows, draws and updates, each in one change that nothing cuts short.
The batches that are drawn at once use what is held here, too. Where a window needs other places, a new tree is made.
"""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Floats, checked_number
from diskreplay.index.ranks import Ranks
from diskreplay.index.sum_tree import WideSumTree
from diskreplay.native import core
from diskreplay.sampling.places import Places
from diskreplay.sampling.window import Prioritized, Standings, Windows, checked_updates, refused_update
from diskreplay.schema.ids import Ids, checked_ids

Tree = TypeVar("Tree", Ranks, WideSumTree)
Held = TypeVar("Held", core.Masses, core.Ranked)
IGNORED, SAMPLES = range(2)
"""The positions of the updates of ids that had left their window, and of the draws, among the counts."""


class Priorities(Prioritized, Generic[Tree, Held]):
    """The priorities of the one buffer that a sampler is given to.

    Args:
        beta: the exponent of the importance weights.
        most: the largest priority that is taken.
        by_env: True if each environment has a distribution of its own.
    """

    _array: ClassVar[str]
    """The name of the tree's values in the state."""
    _nothing: ClassVar[float]
    """The value of an id that is no transition."""
    _tree: Tree
    _held: Held
    """What the core holds of all that is here."""

    def __init__(self, beta: float, most: float, by_env: bool = False) -> None:
        self._beta = checked_number("beta", beta)
        self._most = most
        self._by_env = by_env
        self.clear()

    def clear(self) -> None:
        """Forget all priorities and counts, as if the sampler was new; its arguments stay."""
        places = Places(self._by_env)
        self._hold(places, self._new_tree(0), np.ones(places.groups), np.zeros(2, np.int64), np.empty(0, np.int64))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        try:
            self._held.check_writable()
        except TypeError:  # a copy in memory that processes share
            self.restore(*self.state())

    @property
    def is_new(self) -> bool:
        """True if it knows nothing of any buffer yet, or was cleared."""
        return not len(self._places.table)

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
        return int(self._counts[IGNORED])

    def update(self, ids: Any, priorities: Any, windows: Windows, standing: Standings) -> None:
        """Set the TD errors, or their magnitudes, ``(B,)``, of ids ``(B,)``; of a repeated id the last one counts.

        Ids that have left the window are ignored and counted. Raises InputError, and changes no priority, where an id
        is that of no transition or a priority is not finite.
        """
        ids, priorities = checked_updates(ids, priorities)
        wrong = self._catch_up(windows, standing).update(ids, priorities)
        if wrong >= 0:
            raise refused_update(ids[wrong], priorities[wrong], self._most)

    def probability(self, ids: Any, windows: Windows, standing: Standings) -> Floats:
        """Return ``P(i)`` of ids ``(B,)`` in the next draw, float64 ``(B,)``; 0 for what cannot be drawn."""
        ids = checked_ids(ids)
        held = self._catch_up(windows, standing)
        slots = self._places.to_slots(ids)
        found = np.zeros(len(ids))
        found[slots >= 0] = self._chances(held, slots[slots >= 0])
        return found

    def forget(self, stream: int) -> None:
        """Forget the priorities of a stream whose rows were taken back; they count as new from now on."""
        if self._by_env:
            self._maxima[self._places.groups_in(stream)] = 1.0
        self._held.follow(self._places.spans_without(stream), None)

    def _catch_up(self, windows: Windows, standing: Standings) -> Held:
        """Follow the windows, and return what the core holds then."""
        places = self._places.laid_out(windows)
        if places is not self._places:
            self._move(places)
        self._held.follow(places.spans(windows), standing)
        return self._held

    def _move(self, places: Places) -> None:
        """Have the priorities stand in other places."""
        ids = self._places.held()
        before, slots = self._places.to_slots(ids), places.to_slots(ids)
        if np.array_equal(slots, before):
            tree = self._tree.grown(places.slots)
        else:
            stay = slots >= 0
            tree = self._restored(places, slots[stay], self._values(self._tree, before[stay]))
        maxima = np.append(self._maxima, np.ones(max(0, places.groups - len(self._maxima))))
        self._hold(places, tree, maxima, self._counts, self._held.waiting())

    def _hold(self, places: Places, tree: Tree, maxima: Floats, counts: Ids, waiting: Ids) -> None:
        held: Held = self._given(places, tree, maxima, counts, waiting)
        self._places, self._tree, self._maxima, self._counts, self._held = places, tree, maxima, counts, held

    # The tree

    @abc.abstractmethod
    def _new_tree(self, slots: int) -> Tree:
        """Return a tree with room for ``slots`` places and nothing in them."""

    @abc.abstractmethod
    def _given(self, places: Places, tree: Tree, maxima: Floats, counts: Ids, waiting: Ids) -> Held:
        """Return what the core holds of all these; ``waiting`` are the ids that may still become transitions."""

    @abc.abstractmethod
    def _chances(self, held: Held, slots: Ids) -> Floats:
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
        places = self._places
        runs, waiting = places.state(self._held.waiting())
        facts = {"maxima": self._maxima.tolist(), "ignored_updates": self.ignored_updates, "streams": runs}
        return facts, {self._array: self._values(self._tree, places.to_slots(places.held())), "waiting": waiting}

    def restore(self, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`state` gave; what the windows hold now is seen by the next call.

        Raises ValueError, KeyError, TypeError or OverflowError, and changes nothing, where that is no state of such a
        sampler.
        """
        places, waiting = Places.restored(self._by_env, facts["streams"], arrays["waiting"])
        maxima, counts = np.array(facts["maxima"], np.float64), np.zeros(2, np.int64)
        counts[IGNORED] = int(facts["ignored_updates"])
        if maxima.shape != (places.groups,) or not ((maxima >= 1) & np.isfinite(maxima)).all():
            raise ValueError(f"stored maxima must be {places.groups} priorities of at least 1, got {maxima}")
        ids, values = places.held(), np.asarray(arrays[self._array], np.float64)
        if values.shape != ids.shape:
            raise ValueError(f"stored priorities must be {len(ids)}, got {values.shape}")
        if (values[np.isin(ids, waiting)] != self._nothing).any():
            raise ValueError("stored rows that wait must have no priority yet")
        self._hold(places, self._restored(places, places.to_slots(ids), values), maxima, counts, waiting)
