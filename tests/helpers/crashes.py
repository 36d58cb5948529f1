"""The death of a writer, as far as one process can see it; and objects that nobody collects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import diskreplay as dr


def kill(buffer: dr.ReplayBuffer) -> None:
    """Leaves the store as a killed process would: nothing more is written, and the system gives the lock back."""
    writer = buffer.engine.streams.writer
    assert writer is not None
    writer.release()


def die(buffer: dr.ReplayBuffer) -> None:
    """Likewise, of an open store whose ``close`` would write: it does nothing from now on."""
    buffer.engine.streams.release()
    buffer.engine.closed = True


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The collector of garbage has run, and does not again: what goes now is no reference cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
