"""Threads that compress and decompress, one set for the process, made when there is something for them.

The thread that hands chunks over may be the one that adds rows, and be interrupted at any moment. Nothing here can be
left half-done by that: what a task has come to is said by single assignments, the queue and the locks are the
interpreter's own, and whoever needs the result of a task that no thread works at does it itself. (The executors of
``concurrent.futures`` are built of Python's conditions: interrupted inside, they keep a lock or lose a task.)
"""

from __future__ import annotations

import _thread
import contextlib
import os
import queue
import sys
from _thread import get_ident
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from diskreplay.interrupts import never_wait

THREADS = min(4, os.cpu_count() or 1)
WAIT_SECONDS = 0.1
"""How long to wait before looking whether the thread that works at a task still lives."""

Result = TypeVar("Result")


class Task(Generic[Result]):
    """Something to compress or decompress, done by one of the threads or by whoever asks for it first; never None."""

    __slots__ = ("_asked", "_encode", "_process", "_result", "_wake", "_worker")

    def __init__(self, encode: Callable[[], Result]) -> None:
        self._encode = encode
        self._process = os.getpid()
        self._worker = 0
        """The thread that works at it."""
        self._asked = False
        """Whoever needs the result does the task: no thread is to begin it, too. Who is interrupted will ask again."""
        self._result: Result | None = None
        self._wake = _thread.allocate_lock()
        """Held as long as the task waits or is worked at."""
        self._wake.acquire()

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    def work(self) -> None:
        """Does the task, in a thread of its own."""
        if self._asked:
            return
        self._worker = get_ident()
        try:
            # An error, such as that no memory is left, is met again by whoever needs the result.
            with contextlib.suppress(BaseException):
                self._result = self._encode()
        finally:
            self._worker = 0
            self._wake.release()

    @property
    def _awaited(self) -> bool:
        """Whether another thread works at it, which is there."""
        working = self._result is None and self._worker not in (0, get_ident())
        return working and self._process == os.getpid() and not sys.is_finalizing()

    def result(self) -> Result:
        """What came of it; waits for the thread that works at it, and does it here where there is none."""
        while self._awaited:
            if self._wake.acquire(timeout=WAIT_SECONDS):
                self._wake.release()
        if self._result is None:
            self._asked = True
            self._result = self._encode()
        return self._result


class Encoders:
    """The threads; see the module's docstring. They end with the process and keep nobody waiting."""

    _made: ClassVar[Encoders | None] = None

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task[Any]] = queue.SimpleQueue()
        self._process = os.getpid()
        with contextlib.suppress(RuntimeError):  # no more threads are to be had: tasks are done by who needs them
            for _ in range(THREADS):
                _thread.start_new_thread(self._work, ())

    def _work(self) -> None:
        never_wait()
        while True:
            self._tasks.get().work()

    @classmethod
    def submit(cls, encode: Callable[[], Result]) -> Task[Result]:
        """A task for the next thread that is free."""
        made = cls._made
        if made is None or made._process != os.getpid():  # a forked child has none of its parent's threads
            made = cls._made = Encoders()
        task = Task(encode)
        made._tasks.put(task)
        return task
