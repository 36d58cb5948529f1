"""Stopping at a good moment: a signal that asks to end is noted, and acted on between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def noted(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """An event that the signals set (SIGINT and SIGTERM by default) while the block runs, instead of ending it.

    Only the main thread can take signals; in any other the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        event.set()

    kept = {number: signal.signal(number, note) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
