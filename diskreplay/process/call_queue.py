"""Calls that a thread makes in the place of the one that puts them into a bounded queue, in their order.

1. Who puts a call waits only while the queue is full. Nothing that was put is dropped.
2. But a call that fails ends a series: the thread drops the calls behind it. Who has seen the error puts a mark, behind
   which another series begins.
3. Who wants to know that all calls were made puts a mark, too, and waits until the thread has reached it.

The one that puts may be interrupted at any moment and go on, so nothing between the threads is built of Python's
conditions (:mod:`diskreplay.process.prefetch` says why): a wait that was interrupted leaves a mark that nobody misses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
import threading
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

from diskreplay.errors import StateError
from diskreplay.process import exits, forks
from diskreplay.process.locks import uninterrupted
from diskreplay.process.workers import start_thread

Call = Callable[[], object]

POLL_SECONDS = 0.1
"""The seconds after which one that waits looks whether the thread is still there."""


@dataclasses.dataclass(frozen=True)
class Waited:
    """How often a call waited for room in a queue that was full, and the longest of these waits."""

    count: int = 0
    longest_seconds: float = 0.0


class CallQueue:
    """A thread that makes calls, and the queue before it.

    Dropping the last reference, and the end of the interpreter, end it as :meth:`end` does; an error that nobody was
    told of is a ResourceWarning then.

    Args:
        most: the calls that may wait; one more is being made.
        name: the name of the thread, and of what it does in errors.
        last: the call that :meth:`end` has made last.
        note: a function that says, after an error, what came of the calls; the error gets it as a note.

    Attributes:
        waited: how often :meth:`put` had to wait.
        settle: has the last call made after all earlier ones, and waits for it. It raises nothing, does nothing in a
            forked process and in the thread itself, and keeps no reference to the queue.
    """

    def __init__(self, most: int, name: str, last: Call, note: Callable[[], str]) -> None:
        self._most = most
        self._name = name
        self._note = note
        # The thread holds no reference to this object, so that one which nobody holds any more is ended.
        self._shared = _Calls(last, name)
        self.settle: Callable[[], None] = self._shared.settle
        self.waited = Waited()
        self._call_off = exits.when_forgotten(self, functools.partial(_end, self._shared, note))

    def put(self, call: Call) -> None:
        """Have the thread make a call, after all earlier ones; wait while the queue is full."""
        self._here()
        if self._shared.waiting.qsize() >= self._most:
            begun = time.monotonic()
            self._shared.wait_for_room(self._most)
            longest = max(self.waited.longest_seconds, time.monotonic() - begun)
            self.waited = Waited(self.waited.count + 1, longest)
        self._shared.waiting.put(call)

    def check(self) -> None:
        """Raise the error of a call that failed, once; calls that are put from then on are made again."""
        self._here()
        if self._shared.error is not None:
            self._shared.reach()  # what was put before is dropped
            self._tell()

    @uninterrupted
    def _tell(self) -> None:
        """Raise the error, and forget it. An interrupt comes with the error, not in its place."""
        error, self._shared.error = self._shared.error, None
        if error is not None:
            error.add_note(self._note())
            raise error

    def end(self) -> None:
        """Make all calls, then the last one, end the thread, and raise the error of a call; a second time do nothing.

        It does nothing in a forked process.
        """
        if self._shared.here:
            self._shared.end()
            self._call_off()
            self.check()

    def _here(self) -> None:
        if not self._shared.here:
            raise StateError(
                f"the {self._name} thread is in the process that this one was forked from; make another one here"
            )


class _Mark(NamedTuple):
    """A place in a queue; ``reached`` gets an item when the thread comes there."""

    reached: queue.SimpleQueue[None]
    stop: bool


class _Calls:
    """The state that the two threads share."""

    def __init__(self, last: Call, name: str) -> None:
        self._process = forks.process
        self._last = last
        self.waiting: queue.SimpleQueue[Call | _Mark] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the one that waits for room; a wake that is lost costs it one poll."""
        self.error: BaseException | None = None
        """The error of the call that failed; the thread drops calls while there is one."""
        self._thread = start_thread(self._run, f"diskreplay-{name}")

    @property
    def here(self) -> bool:
        """False in a process that was forked since; there no queue may be touched, whose lock may be held for ever."""
        return forks.process == self._process

    def wait_for_room(self, most: int) -> None:
        while self.waiting.qsize() >= most and self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._room.get(timeout=POLL_SECONDS)

    def reach(self, stop: bool = False) -> None:
        """Put a mark and wait until the thread is there."""
        mark = _Mark(queue.SimpleQueue(), stop)
        self.waiting.put(mark)
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                mark.reached.get(timeout=POLL_SECONDS)
                return

    def settle(self) -> None:
        if self.here and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self.waiting.put(self._last)
            self.reach()

    def end(self) -> None:
        """Make all calls, and end the thread."""
        if self._thread.is_alive():
            self.waiting.put(self._last)
            self.reach(stop=True)
        self._thread.join()
        self._last = nothing  # with all that it holds: whoever has `settle` holds this

    def _run(self) -> None:
        while True:
            call = self.waiting.get()
            if isinstance(call, _Mark):
                call.reached.put(None)
                if call.stop:
                    return
                continue
            if self.error is None:
                try:
                    call()
                except BaseException as error:  # handed to the one that puts, who raises it
                    self.error = error
            del call  # and its arrays, before it waits for another
            if self._room.empty():
                self._room.put(None)


def nothing() -> None:
    """Do nothing, as a last call."""


def _end(calls: _Calls, note: Callable[[], str], ending: bool) -> None:
    """End a queue that nobody holds any more, or that is there when the interpreter ends."""
    calls.end()
    if calls.error is not None:
        text = f"{type(calls.error).__name__}: {calls.error}\n{note()}"
        warnings.warn(text, ResourceWarning, stacklevel=2)
