"""The end of a store that the program did not close: its rows are committed when its buffer or the interpreter ends.

:mod:`diskreplay.process.exits` says when. The engine outlives the buffer, so no part of it, such as a lock or a
thread, is garbage before the rows are committed.

Nothing is committed in a forked process. Rows are lost if the store was moved or removed, or if a thread holds
``write_lock`` while the interpreter ends. A ResourceWarning then says how many. Python does not show it by default;
under ``-W error`` Python prints it as an ignored error, and the exit status stays. Python prints in any case how many
rows are lost by an error of the disk, also if the program was told of that before.
"""

from __future__ import annotations

import functools
import warnings

from diskreplay.engine.engine import Engine
from diskreplay.errors import SamplerWarning, StateError
from diskreplay.process import exits

EXIT_SECONDS = 10.0
"""The most seconds for which the end of the interpreter waits for a thread that adds or commits."""


def watch(owner: object, engine: Engine) -> None:
    """Have the rows of a written store committed when its buffer, ``owner``, ends without closing it."""
    if engine.streams.writer is not None:
        engine.call_off = exits.when_forgotten(owner, functools.partial(_end, engine))


def give_up(engine: Engine) -> None:
    """Close a store that is about to be removed, without a commit."""
    with engine.write_lock:
        if not engine.gate.closed:
            engine.finish()


def _end(engine: Engine, ending: bool) -> None:
    writer = engine.streams.writer
    if engine.gate.closed or engine.gate.ending or writer is None or not writer.held:
        return
    # No other thread can hold the locks of a forgotten buffer.
    if not engine.write_lock.acquire(timeout=EXIT_SECONDS if ending else 0):
        _warn(engine, "a thread still holds the buffer's lock")
        return
    try:
        engine.commits.wait()
        if not ending or writer.failure is not None:
            engine.close()
        else:
            engine.commit()  # the store stays open, for threads and exit handlers that still run
            if engine.companion is None and (why := engine.save_sampler()):
                warnings.warn(why, SamplerWarning, stacklevel=2)
    except StateError as error:
        _warn(engine, str(error))
    finally:
        engine.write_lock.release()


def _warn(engine: Engine, why: str) -> None:
    writer = engine.streams.writer
    rows = writer.end - writer.commit_record.end if writer else 0
    warnings.warn(
        f"the buffer {engine.path!r} was not closed, and {rows} rows are lost: {why}", ResourceWarning, stacklevel=2
    )
