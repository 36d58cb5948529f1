"""A buffer that nobody closed: its rows are committed when it is forgotten, or the interpreter ends.

:mod:`diskreplay.exits` says when. What outlives the buffer is a twin, an object of the same class that shares its
attributes: so nothing of it, its lock and its threads among them, is garbage before the rows are committed.

Nothing is committed where the buffer stopped writing, which it said then, and nothing in a forked process. Where the
store was moved or removed, or a thread that still runs holds the buffer's lock while the interpreter ends, rows are
lost, and a ResourceWarning says how many: by default Python does not show it, and under ``-W error`` it is printed as
an error that was ignored; the exit status stays. An error of the disk is printed in any case.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from diskreplay import exits
from diskreplay.errors import StateError

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

EXIT_SECONDS = 10.0
"""How long the end of the interpreter waits for a thread that adds or commits."""


def watch(buffer: StoredBuffer) -> Callable[[], None]:
    """Commits a buffer's rows when it ends unclosed; to be called off when it is closed."""
    twin = object.__new__(type(buffer))
    twin.__dict__ = buffer.__dict__
    return exits.when_forgotten(buffer, functools.partial(_end, twin))


def give_up(buffer: StoredBuffer) -> None:
    """Closes a buffer whose store is about to be removed: nothing is committed."""
    with buffer._write_lock:
        if not buffer._closed:
            buffer._finish()


def _end(buffer: StoredBuffer, ending: bool) -> None:
    writer = buffer._streams.writer
    if buffer._closed or buffer._ending or writer is None or not writer.held:
        return
    # Nobody else can hold the locks of what is forgotten.
    if not buffer._write_lock.acquire(timeout=EXIT_SECONDS if ending else 0):
        _warn(buffer, "a thread still holds the buffer's lock")
        return
    try:
        if not ending:
            buffer.close()
        elif writer.failure is None:
            buffer.commit()  # and stays open, for threads and exit handlers that are still to come
    except StateError as error:
        _warn(buffer, str(error))
    finally:
        buffer._write_lock.release()


def _warn(buffer: StoredBuffer, why: str) -> None:
    writer = buffer._streams.writer
    rows = writer.end - writer.commit_record.end if writer else 0
    warnings.warn(
        f"the buffer {buffer.path!r} was not closed, and {rows} rows are lost: {why}", ResourceWarning, stacklevel=2
    )
