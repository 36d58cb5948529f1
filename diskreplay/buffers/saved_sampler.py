"""The state of a sampler that closing keeps, and with which the next opening to write goes on (docs/design/0029).

1. The last step of an opening replaces what it took over by a mark. From then on a kill is found out: the next opening
   finds the mark, and warns that priorities or counts begin anew.
2. Closing replaces the mark: by what was there if nothing has changed, by the new state, or by nothing if the sampler
   knows nothing.
3. A state counts for the rows that it was kept with. Counts of draws without priorities count for later rows, too, of
   which none was drawn yet.
4. An adapter's state stays where it is when the store is opened: its buffer goes back to the last ``commit()``, as to a
   checkpoint, any number of times.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from numpy.typing import NDArray

from diskreplay.buffers.draws import Draws
from diskreplay.buffers.state import UPDATED, begins_anew, resumption
from diskreplay.engine.engine import Engine
from diskreplay.engine.hooks import State
from diskreplay.errors import CorruptionError
from diskreplay.sampling.composed import has_priorities
from diskreplay.storage import saved_state
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Checkpoint
from diskreplay.storage.stream import StreamWriter

RNG = "rng"
"""The key of the random state, which only an adapter's state has."""


class SavedSampler:
    """The state on disk of the sampler of a store that is written.

    Args:
        engine: the store.
        draws: its sampler and view.
        writer: the writer of the stream that is written.
        take: have a new sampler go on from what is kept, or warn that it cannot.

    Attributes:
        found: the state on disk, or below the mark, if it was kept with just the rows that are committed.
    """

    def __init__(self, engine: Engine, draws: Draws, writer: StreamWriter, take: bool) -> None:
        self._writer = writer
        self._draws = draws
        priorities = has_priorities(draws.sampler)
        self._saves = priorities or draws.counting is not None
        self.found: Checkpoint | None = None
        what = "the priorities that were there" if priorities else "the counts of draws that were there"
        take = take and self._saves and not draws.told.updated
        marks = self._saves
        try:
            there = saved_state.read(writer.files, writer.path)
            why = "" if there is None else self._take(there, saved_state.rows(_cut(engine)), what, take)
            marks = marks and (there is None or RNG not in there.state)
        except CorruptionError as error:  # the damage is as good as a mark, and `verify` finds it
            there, why, marks = None, str(error), False
        if why and take:
            begins_anew(draws.sampler, what, why)
        if marks:  # also in the place of another mark, which may not be durable
            mark = saved_state.new(writer, {}, {}, {}) if there is None else dataclasses.replace(there, cut={})
            with engine.write_lock.exclusive:
                saved_state.replace(writer, mark, {})

    def _take(self, there: Checkpoint, now: saved_state.Rows, what: str, take: bool) -> str:
        """Have the sampler go on from a state if it counts for the rows of now; return why it does not, or ""."""
        if not there.cut:
            return "the last program that had them ended without close; a checkpoint has those of its time"
        draws, before = self._draws, saved_state.rows(there.cut)
        if before == now:
            self.found = there
        elif has_priorities(draws.sampler) or not saved_state.went_on(before, now):
            return "rows were committed since they were kept, by a program that kept none, or the stream went back"
        if take:
            arrays = functools.partial(saved_state.read_arrays, self._writer.files, self._writer.path, there)
            taken = resumption(draws.sampler, draws.view, there.state, arrays, what)()
            draws.told.updated = taken and there.state.get(UPDATED, True)
        return ""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays ``(n,)`` of the state that was found, by name; raise CorruptionError for damaged ones."""
        assert self.found is not None
        return saved_state.read_arrays(self._writer.files, self._writer.path, self.found)

    def save(self, engine: Engine, closing: bool) -> str:
        """Save what the next opening goes on with; return why it cannot be saved, or ""."""
        companion, writer, draws = engine.companion, self._writer, self._draws
        if writer.failure is not None:
            return ""
        arrays: dict[str, NDArray[Any]] = {}
        with engine.lock:
            engine.checked_streams()
            cut = _cut(engine)
            there = self.found
            if there is not None and saved_state.rows(there.cut) != saved_state.rows(cut):
                there = None
            if companion is not None or (draws.told.updated and (draws.told.unsaved or there is None)):
                try:
                    state, arrays = _state(engine)
                    there = saved_state.new(writer, state, arrays, cut)
                except MemoryError:  # which whoever closes may try again
                    raise
                except Exception as error:  # of a sampler's own code, which must not keep the store from being closed
                    return f"the state of {draws.sampler!r} is not kept: {error!r}"
            draws.told.unsaved = False
            engine.gate.closed = closing  # what a thread draws or updates from now on would not be kept: it is told so
        try:
            with engine.write_lock.exclusive:
                if there is None and self._saves:
                    saved_state.remove(writer)  # the sampler began anew, which was said, was cleared, or knows nothing
                elif there is not None and (self._saves or companion is not None):
                    saved_state.replace(writer, there, arrays)
        except BaseException:  # it stays open, to be closed again
            engine.gate.closed, draws.told.unsaved = False, True
            raise
        self.found = there
        return ""


def _state(engine: Engine) -> State:
    """Return what a checkpoint holds beside rows, but the random state only if a companion needs it."""
    state, arrays = engine.state()
    if engine.companion is None:
        del state[RNG]
    return state, arrays


def _cut(engine: Engine) -> dict[str, Commit]:
    """Return the commit at which each stream of a store stands, by its name."""
    return {stream.disk.name: stream.disk.commit_record for stream in engine.streams}
