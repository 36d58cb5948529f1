"""The draws from an open store: its sampler chooses them, its view makes batches of them."""

from __future__ import annotations

import contextlib
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers import shuffle
from diskreplay.buffers.selection import Selection
from diskreplay.buffers.state import UPDATED, sampler_facts, sampler_state
from diskreplay.engine.engine import Engine
from diskreplay.engine.hooks import State
from diskreplay.errors import EvictedError, InputError, NotEnoughDataError
from diskreplay.index.log import NEVER
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.reads import Reads
from diskreplay.sampling.composed import with_parts
from diskreplay.sampling.counting import Counting
from diskreplay.sampling.registry import is_own
from diskreplay.sampling.window import Prioritized, Sampler, Standings, checked_draw
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import SomeBatch
from diskreplay.views.view import Explains, View


class Draws(Generic[SomeBatch]):
    """The draws of batches of one store; a hook of its engine, whose lock guards every call.

    It does not refer to the engine, which refers to it: a buffer that is forgotten is closed at once.

    Args:
        engine: the store.
        view: the view, which says what an item is.
        shown: the view that makes the batches: ``view``, or one over it.
        sampler: the sampler, which chooses the items.
        updated: True if the sampler knows priorities that somebody gave it.

    Attributes:
        view, shown, sampler, updated: the arguments of these names; ``updated`` changes.
        unsaved: True if ``updated`` by priorities, or counts of draws, that closing has not saved yet.
        priorities: the sampler, if it has some, or another state.
        counting: the sampler, or what it is made of, that counts draws; None if none does.
    """

    def __init__(self, engine: Engine, view: View, shown: View[SomeBatch], sampler: Sampler, updated: bool) -> None:
        self.view = view
        self.shown = shown
        self.sampler = sampler
        self.priorities = sampler if isinstance(sampler, Prioritized) else None
        self.counting = next((part for part in with_parts(sampler) if isinstance(part, Counting)), None)
        self.updated = self.unsaved = updated
        self._schema = engine.schema
        self._streams = engine.streams
        self._rng = engine.rng
        self._facts = {"view": view.to_json(), "sampler": sampler_facts(sampler), "priorities": None}
        self._checked = not is_own(sampler)
        """True if the sampler is a user's own, whose draws are checked."""
        self._alone = contextlib.nullcontext() if self._checked else engine.lock.exclusive
        """The context of what a sampler does: one of the user's own may ask the buffer."""

    # Drafts of batches, as `Engine.read` takes them

    def draft(self, batch_size: int, reads: Reads) -> SomeBatch:
        """Return as many items as asked for, drawn by the sampler; raise NotEnoughDataError if fewer are held."""
        held = len(self._streams)
        if batch_size > held:
            raise NotEnoughDataError(
                f"sample({batch_size}): the buffer holds {held} transitions; add more steps, or ask for fewer"
            )
        try:
            drawn = self.draw(batch_size)
        except NotEnoughDataError as error:
            lacking = self.view.lacking(self._streams.all) if isinstance(self.view, Explains) else None
            raise error if lacking is None else NotEnoughDataError(lacking) from error
        if self._checked:
            drawn = checked_draw(self.sampler, drawn, batch_size)
            try:
                self._streams.check(self.view, drawn[0])
            except (InputError, EvictedError) as error:
                raise InputError(f"{self.sampler!r}.sample gave an id that cannot be sampled: {error}") from error
        return self.shown.draft(self._schema, self._streams.all, *drawn, self._rng, reads)

    def draft_within(self, batch_size: int, within: Selection, reads: Reads) -> SomeBatch:
        """Return items of a selection, drawn uniformly."""
        streams = self._streams.all
        self.check_selection(within)
        whole = len(streams) == 1 and within.ranges.least >= streams[0].log.first_id
        ones = np.ones(batch_size, np.float32)

        def draw(standing: Standings, count: int) -> tuple[Ids, NDArray[np.float32]]:
            return within.ranges.sample(self._rng, standing, count), ones[:count]

        standing = self.standing if whole else self._standing_now
        if self.counting is None:
            ids, _ = draw(standing, batch_size)
        else:
            with self._alone:
                ids, _ = self.counting.counted(draw, self._rng, self._streams.windows(), standing, batch_size)
            self.updated = self.unsaved = True
        return self.shown.draft(self._schema, streams, ids, ones, self._rng, reads)

    def draft_ids(self, ids: Ids, reads: Reads) -> SomeBatch:
        """Return the items that ids name; raise EvictedError or InputError if one is none (any more)."""
        self._streams.check(self.view, ids)
        return self.shown.draft(self._schema, self._streams.all, ids, np.ones(len(ids), np.float32), None, reads)

    # The sampler

    def draw(self, count: int, rng: Any = None) -> tuple[Ids, NDArray[np.float32]]:
        """Have the sampler draw ids and weights, ``(count,)`` each, by the store's generator if ``rng`` is None."""
        with self._alone:
            drawn = self.sampler.sample(rng or self._rng, self._streams.windows(), self.standing, count)
        if self.counting is not None:
            self.updated = self.unsaved = True
        return drawn

    def take_back(self, ids: Ids) -> None:
        """Have draws of ids ``(B,)`` not counted after all, because no batch came of them."""
        if self.counting is not None:
            self.counting.take_back(ids)

    def times_sampled(self, ids: Ids) -> NDArray[np.int64]:
        """Return how often ids ``(B,)`` were drawn, int64 ``(B,)``; raise InputError if the sampler does not count."""
        if self.counting is None:
            raise InputError(
                f"{self.sampler!r} does not count its draws; create or open the store with sampler=Counting(...)"
            )
        self._streams.check(self.view, ids)
        self.counting.follow(self._streams.windows())
        return self.counting.times_sampled(ids)

    def standing(self, ids: Ids) -> NDArray[np.int8]:
        """Return the standing of ids of the windows as items of the view."""
        return self._streams.standing(self.view, ids)

    def _standing_now(self, ids: Ids) -> NDArray[np.int8]:
        """Return the standing of ids as :meth:`standing`, also of some that have left the windows."""
        here = shuffle.in_windows(self._streams.all, ids)
        found = np.full(len(ids), NEVER, np.int8)
        found[here] = self.standing(ids[here])
        return found

    def update(self, index: Any, priorities: Any) -> None:
        """Give the sampler priorities."""
        if self.priorities is None:
            raise InputError(f"{self.sampler!r} has no priorities; create or open the store with Proportional()")
        with self._alone:
            self.priorities.update(index, priorities, self._streams.windows(), self.standing)
        self.updated = self.unsaved = True

    def check_given(self, ids: Ids) -> None:
        """Raise InputError if an id is that of no item, and never was."""
        self._streams.check_given(self.view, ids)

    def check_selection(self, within: Any) -> None:
        """Raise InputError if it is not a selection of this store as it is now."""
        if not isinstance(within, Selection):
            raise InputError(f"within must be a selection, as rb.select(where) gives it, got {within!r:.100}")
        streams: list[OpenStream] = self._streams.all
        if not within.is_of(streams):
            raise InputError(
                f"{within!r} is of another buffer, or older than a return to a checkpoint; call select again"
            )

    # As a hook

    def state(self) -> State:
        if self.priorities is None:
            return self._facts, {}
        priorities, arrays = sampler_state(self.priorities)
        now = {"sampler": sampler_facts(self.sampler), "priorities": priorities, UPDATED: self.updated}
        return {**self._facts, **now}, arrays

    def forget(self) -> None:
        written = self._streams.written
        if self.priorities is not None and written is not None and len(self._streams.all) > 1:
            self.priorities.forget(written.log.stream)  # what is known of others' rows stays
            return
        if self.priorities is not None:
            self.priorities.clear()
        self.updated = False
