"""The draws from an open store: its sampler chooses them, its view makes batches of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
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
from diskreplay.native import core
from diskreplay.reading import in_core as reading
from diskreplay.reading.open_stream import OpenStream
from diskreplay.reading.out import Out
from diskreplay.reading.reads import Reads
from diskreplay.sampling import in_core
from diskreplay.sampling.composed import with_parts
from diskreplay.sampling.counting import Counting
from diskreplay.sampling.registry import is_own
from diskreplay.sampling.window import Prioritized, Sampler, Standings, checked_draw
from diskreplay.schema.columns import REWARD
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import SomeBatch
from diskreplay.views.padded_episodes import PaddedEpisodes
from diskreplay.views.sequence import Sequence
from diskreplay.views.sequence import maker as maker_of_sequences
from diskreplay.views.transition import Transition, maker
from diskreplay.views.view import Explains, View

OUT = ""
"""The key of the last step of all in :attr:`.reads.Reads.last`; no column has this name."""

Drawn = tuple[Ids, NDArray[np.float32]]
"""Ids that were drawn, and their weights."""


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
        view, shown, sampler: the arguments of these names.
        told: whether the sampler knows priorities that somebody gave it, or counts of draws: ever, and since closing
            saved them last.
        priorities: the sampler, if it has some, or another state.
        counting: the sampler, or what it is made of, that counts draws; None if none does.
    """

    def __init__(self, engine: Engine, view: View, shown: View[SomeBatch], sampler: Sampler, updated: bool) -> None:
        self.view = view
        self.sampler = sampler
        self.priorities = sampler if isinstance(sampler, Prioritized) else None
        self.counting = next((part for part in with_parts(sampler) if isinstance(part, Counting)), None)
        self.told = core.Told(updated)
        self._schema = engine.schema
        self._streams = engine.streams
        self._rng = engine.rng
        self._facts = {"view": view.to_json(), "sampler": sampler_facts(sampler), "priorities": None}
        self._checked = not is_own(sampler)
        """True if the sampler is a user's own, whose draws are checked."""
        self._alone = contextlib.nullcontext() if self._checked else engine.lock.exclusive
        """The context of what a sampler does: one of the user's own may ask the buffer."""
        self._gate = engine.gate
        self.shown = shown

    @property
    def shown(self) -> View[SomeBatch]:
        """The view that makes the batches: ``view``, or one over it."""
        return self._shown

    @shown.setter
    def shown(self, shown: View[SomeBatch]) -> None:
        self._shown = shown
        self._batches = self._in_core()
        self._like: SomeBatch | None = None
        """A batch of no items."""

    def _in_core(self) -> core.Batches | None:
        """Return what makes whole batches in the core, or None if view or columns are not ordinary."""
        view, schema = self.shown, self._schema
        if not reading.can_be(schema) or self._streams.reward != REWARD:
            return None
        draw = in_core.draws(self.sampler, self._rng) or core.Draw()
        made: Callable[[list[Any]], Any]
        if type(view) is Transition and (view.n_step == 1 or schema.column(REWARD).dtype in (np.float32, np.float64)):
            n_step, gamma, sequence, made = view.n_step, view.gamma, None, maker(schema)
        elif type(view) is Sequence:
            sequence = view.steps, view.burn_in + 1 if view.pad else view.steps, view.stride, view.across
            n_step, gamma, made = 1, view.gamma, maker_of_sequences(schema, view.steps)
        else:
            return None
        return core.Batches(self._gate, self._streams, draw, n_step, gamma, sequence, made, self.told)

    def out(self, given: Any, batch_size: int, engine: Engine) -> Out:
        """Return the caller's arrays for a batch; raise InputError if the batch is not like those of the view."""
        if self._like is None:
            self._like = engine.read(self.draft_ids, np.empty(0, np.int64))
        like, view, schema = self._like, self.shown, self._schema
        if type(given) is not type(like):
            raise InputError(f"out must be a {type(like).__name__}, got {type(given).__name__}")
        direct, why_apart = type(view) in (Sequence, PaddedEpisodes), None
        if not direct:
            why_apart = f"{view!r} shows no consecutive steps"
        elif getattr(view, "across", False):
            why_apart = "with across=True an episode's last next_obs is not the next step's obs"
        elif schema.continuity != "observations":
            why_apart = "with continuity='flags' a next_obs need not be the next step's obs"
        is_plain = direct or (type(view) is Transition and view.n_step == 1)
        return Out(vars(given), vars(like), batch_size, is_plain, why_apart)

    def update_at_once(self, index: Any, priorities: Any) -> bool:
        """Have one call of the core do :meth:`update`; return False, with nothing changed, if it cannot."""
        return self._batches is not None and self._batches.update(index, priorities)

    def at_once(self, batch_size: int, draw_only: bool = False) -> SomeBatch | Drawn | None:
        """Return a batch that one call of the core has drawn, or ids and weights alone for :meth:`draft_drawn`.

        None, with nothing changed, if :meth:`draft` must draw it.
        """
        return None if self._batches is None else self._batches.sample(batch_size, draw_only)

    def get_at_once(self, ids: Ids) -> SomeBatch | None:
        """Return the batch that one call of the core makes of the items that ids name; None for :meth:`draft_ids`."""
        return None if self._batches is None else self._batches.get(ids)

    def draft_drawn(self, drawn: list[Drawn], batch_size: int, reads: Reads) -> SomeBatch:
        """Return the items that were just drawn; if one has left the windows, or this is called again, draw others."""
        ids, weights = drawn.pop() if drawn else (np.empty(0, np.int64), np.empty(0, np.float32))
        if not len(ids) or not shuffle.in_windows(self._streams.all, ids).all():
            return self.draft(batch_size, reads)
        return self.shown.draft(self._schema, self._streams.all, ids, weights, self._rng, reads)

    # Drafts of batches, as `Engine.read` takes them

    def draft_into(self, out: Out, draft: Callable[..., SomeBatch], *args: Any) -> None:
        """Draw a batch by another draft, and have it read into the caller's arrays."""
        reads: Reads = args[-1]
        out.begin()
        reads.out = out
        out.take(vars(draft(*args)))
        reads.last[OUT] = out

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
            return within.draw(self._rng, standing, count), ones[:count]

        standing = self.standing if whole else self._standing_now
        if self.counting is None:
            ids, _ = draw(standing, batch_size)
        else:
            with self._alone:
                ids, _ = self.counting.counted(draw, self._rng, self._streams.windows(), standing, batch_size)
            self.told.updated = self.told.unsaved = True
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
            self.told.updated = self.told.unsaved = True
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
        self.told.updated = self.told.unsaved = True

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
        now = {"sampler": sampler_facts(self.sampler), "priorities": priorities, UPDATED: self.told.updated}
        return {**self._facts, **now}, arrays

    def forget(self) -> None:
        written = self._streams.written
        if self.priorities is not None and written is not None and len(self._streams.all) > 1:
            self.priorities.forget(written.log.stream)  # what is known of others' rows stays
            return
        if self.priorities is not None:
            self.priorities.clear()
        self.told.updated = False
