"""The stopping at a good moment: a signal that asks to end is noted, and acted on between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask to end."""

Progress = Callable[[int, int], None]
"""A function that is called now and then with what is done and what there is in all."""


@contextlib.contextmanager
def noted() -> Iterator[threading.Event]:
    """Yield an event, which a signal that asks to end sets while the block runs, instead of ending it.

    Signals that are ignored, as SIGHUP under nohup, stay so: whoever started the process wants it to go on. Only the
    main thread can take signals; in any other the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        event.set()

    heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
    kept = {number: signal.signal(number, note) for number in heard}
    try:
        yield event
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def stoppable(progress: Progress | None) -> Iterator[Progress]:
    """Yield a function that passes progress on, and raises KeyboardInterrupt once a signal asked to end."""
    with noted() as stopped:

        def report(done: int, total: int) -> None:
            if stopped.is_set():
                raise KeyboardInterrupt
            if progress is not None:
                progress(done, total)

        yield report
