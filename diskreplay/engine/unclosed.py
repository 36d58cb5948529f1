"""The end of a store that nobody closed: its rows are committed when its buffer or the interpreter goes.

:mod:`diskreplay.exits` says when. The engine outlives the buffer, so nothing of it, its locks and its threads among
them, is garbage before the rows are committed.

Nothing is committed where the engine stopped writing, which it said then, and nothing in a forked process. Where the
store was moved or removed, or a thread that still runs holds the lock of writers while the interpreter ends, rows are
lost, and a ResourceWarning says how many: by default Python does not show it, and under ``-W error`` it is printed as
an error that was ignored; the exit status stays. An error of the disk is printed in any case.
"""

from __future__ import annotations

import functools
import warnings

from diskreplay import exits
from diskreplay.engine.engine import Engine
from diskreplay.errors import SamplerWarning, StateError

EXIT_SECONDS = 10.0
"""The seconds for which the end of the interpreter waits for a thread that adds or commits."""


def watch(owner: object, engine: Engine) -> None:
    """Have rows of a written store committed when ``owner``, its buffer, ends without closing it."""
    if engine.streams.writer is not None:
        engine.call_off = exits.when_forgotten(owner, functools.partial(_end, engine))


def give_up(engine: Engine) -> None:
    """Close a store that is about to be removed, without a commit."""
    with engine.write_lock:
        if not engine.closed:
            engine.finish()


def _end(engine: Engine, ending: bool) -> None:
    writer = engine.streams.writer
    if engine.closed or engine.ending or writer is None or not writer.held:
        return
    # Nobody else can hold the locks of what is forgotten.
    if not engine.write_lock.acquire(timeout=EXIT_SECONDS if ending else 0):
        _warn(engine, "a thread still holds the buffer's lock")
        return
    try:
        if not ending:
            engine.close()
        elif writer.failure is None:
            engine.commit()  # and stays open, for threads and exit handlers that are still to come
            if engine.companion is None and (why := engine.keep()):
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
