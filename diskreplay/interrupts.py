"""Holding back the signals that interrupt a program, while something is done that must be done whole.

A Python handler, such as the one that raises KeyboardInterrupt, runs between two steps of the main thread, whatever
that is doing. :class:`held_back` puts a handler in the place of each that only takes a note, and runs those that came
when the block is done. Signals that are ignored, that end the process at once, or whose handlers are not Python's stay
as they are; so does everything in other threads, where Python runs no handlers. Blocks may stand inside each other.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class held_back:  # reads as a word: `with held_back():`
    """A block that SIGINT and SIGTERM do not interrupt; what came meanwhile is delivered at its end."""

    __slots__ = ("_came", "_handlers")

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Any]] = []
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):  # the system's own two, and those of other languages, are not
                    self._handlers.append((number, handler))
                    signal.signal(number, self._note)
        except BaseException:  # a handler of the program's own ran before it was replaced
            self._give_back()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _give_back(self) -> None:
        while self._handlers:
            number, handler = self._handlers[-1]
            if signal.getsignal(number) == self._note:  # the block may have installed another
                signal.signal(number, handler)
            self._handlers.pop()

    def __exit__(self, *exception: object) -> None:
        if not self._handlers:
            return
        handlers = dict(self._handlers)
        try:
            self._give_back()
        finally:
            self._deliver(handlers)

    def _deliver(self, handlers: dict[int, Any]) -> None:
        """Runs the handlers of the signals that came, all of them, whatever one raises."""
        while self._came:
            number, frame = self._came.pop(0)
            try:
                handlers[number](number, frame)
            finally:
                self._deliver(handlers)
