"""The state of a sampler that closing keeps, and with which the next opening to write goes on (docs/design/0029).

It counts for the rows that it was kept with, until priorities are updated: before the first update since, a mark takes
its place on disk. Counts of draws without priorities count for later rows, too, of which none was drawn yet. So whoever
opens the store finds what fits its rows, or is told that there was more.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from numpy.typing import NDArray

from diskreplay.buffers.draws import Draws
from diskreplay.buffers.state import UPDATED, begins_anew, resume_sampler
from diskreplay.engine.engine import Engine
from diskreplay.engine.hooks import State
from diskreplay.errors import CorruptionError
from diskreplay.sampling.composed import has_priorities, with_parts
from diskreplay.sampling.counting import Counting
from diskreplay.sampling.window import Sampler
from diskreplay.storage import kept
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import Checkpoint
from diskreplay.storage.stream import StreamWriter

LOG = logging.getLogger("diskreplay.buffers")
WHAT = "the priorities that were there"
COUNTS = "the counts of draws that were there"


def kept_at_close(sampler: Sampler) -> bool:
    """Tell whether a sampler knows what closing keeps: priorities, or how often it has drawn each transition."""
    return has_priorities(sampler) or any(isinstance(part, Counting) for part in with_parts(sampler))


class Keeping:
    """The kept state of the sampler of a store that is written; the lock of writers guards every call.

    ``draws.ready`` says whether priorities may be updated, and draws counted: what is on disk promises nothing of them.

    Args:
        engine: the store.
        draws: its sampler and view.
        writer: the writer of the stream that is written.
        take: have a new sampler go on from what is kept, or warn that it cannot.

    Attributes:
        found: the state on disk, if it was kept with just the rows that the store was opened at.
    """

    def __init__(self, engine: Engine, draws: Draws, writer: StreamWriter, take: bool) -> None:
        self._writer = writer
        self._draws = draws
        draws.ready = False
        self.found: Checkpoint | None = None
        self._rows: kept.Rows | None = {}
        """The rows on disk, none for those of a mark or of something damaged; None if nothing is there."""
        usable: Checkpoint | None = None
        self._taken = False
        """True if the sampler knows what is on disk, and nothing else."""
        try:
            there = kept.read(writer.files, writer.path)
            self._rows = None if there is None else kept.rows(there.cut)
            if there is None:
                kept.remove(writer)  # ends a removal that was killed
                return
            if not there.cut:
                why = "the program that updated them ended without close; a checkpoint has those of its time"
            elif self._rows == (now := kept.rows(_cut(engine))):
                self.found = usable = there
            elif not has_priorities(draws.sampler) and kept.went_on(kept.rows(there.cut), now):
                usable = there
            else:
                why = "rows were committed since they were kept, by a program that kept none, or the stream went back"
        except CorruptionError as error:
            why = str(error)
        sampler = draws.sampler
        if not take or draws.updated or not kept_at_close(sampler):
            return
        what = WHAT if has_priorities(sampler) else COUNTS
        try:
            if usable is not None:
                arrays = functools.partial(kept.read_arrays, writer.files, writer.path, usable)
                self._taken = resume_sampler(sampler, draws.view, usable.state, arrays, what)
                draws.updated = self._taken and usable.state.get(UPDATED, True)
                return
        except CorruptionError as error:
            why = str(error)
        begins_anew(sampler, what, why)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays ``(n,)`` of the state that was found, by name; raise CorruptionError for damaged ones."""
        assert self.found is not None
        return kept.read_arrays(self._writer.files, self._writer.path, self.found)

    def before_update(self, engine: Engine) -> None:
        """See to it that nobody finds priorities from before an update, whatever ends the program after it.

        A buffer with a companion goes back to what was saved, as to a checkpoint. One that stopped writing does so,
        too: none of its newer rows is there either.
        """
        needed = kept_at_close(self._draws.sampler) and (engine.companion is None or self._rows is None)
        if needed and self._writer.failure is None:
            kept.replace(self._writer, kept.document(self._writer, {}, {}, {}), {})
            self._rows = {}
        self._draws.ready = True

    def keep(self, engine: Engine) -> str:
        """Keep what the next opening goes on with, if that is new; return why it cannot be kept, or ""."""
        companion, writer, draws = engine.companion, self._writer, self._draws
        if writer.failure is not None:
            return ""
        with engine.lock:
            engine.whole()
            cut = _cut(engine)
            same = self._rows == kept.rows(cut)
            if companion is not None or (draws.updated and (draws.ready or not (same and self._taken))):
                try:
                    state, arrays = _state(engine)
                    document = kept.document(writer, state, arrays, cut)
                except MemoryError:  # which whoever closes may try again
                    raise
                except Exception as error:  # of a sampler's own code, which must not keep the store from being closed
                    return f"the state of {draws.sampler!r} is not kept: {error!r}"
            else:
                document = None
            draws.ready = companion is not None  # who draws or updates now waits, and puts a mark over it
        if document is not None:
            with engine.write_lock.exclusive:
                kept.replace(writer, document, arrays)
            self._rows, self._taken = kept.rows(cut), True
        elif self._rows is not None and not draws.updated and not same and kept_at_close(draws.sampler):
            with engine.write_lock.exclusive:
                kept.remove(writer)  # the sampler began anew, which was said, or was cleared
            self._rows = None
        else:
            LOG.debug("%s: there is nothing new of the sampler to keep", engine.path)
        return ""


def _state(engine: Engine) -> State:
    """Return what a checkpoint holds beside rows, but the random state only if a companion needs it."""
    state, arrays = engine.state()
    if engine.companion is None:
        del state["rng"]
    return state, arrays


def _cut(engine: Engine) -> dict[str, Commit]:
    """Return the commit at which each stream of a store stands, by its name."""
    return {stream.disk.name: stream.disk.commit_record for stream in engine.streams}
