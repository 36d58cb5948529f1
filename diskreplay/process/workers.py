"""The pool of threads for compiled work without the interpreter's lock: compressing, decoding, copying.

Nothing depends on the threads. Whoever needs what a task gives does the task, unless a thread is at it already. So the
thread that asks does all of the work where the processors are busy, in a process that was forked, and at the end of the
interpreter.

Nothing here is left half-done by an interrupt: the queue and the locks are the interpreter's own. (The executors of
``concurrent.futures`` are built of Python's conditions: interrupted inside, they keep a lock or lose a task.)
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from diskreplay.errors import StateError
from diskreplay.process.forks import at_fork
from diskreplay.process.locks import never_wait

Result = TypeVar("Result")
Work = Callable[[int, int], int]
"""A function that works from ``begin`` to ``end``, and returns how far it came."""

WAIT_SECONDS = 0.1
"""The seconds between two looks whether the thread that is at a task is still there."""
MOST_HELPERS = 7
"""The most threads that help: more copy no faster, since they wait for the memory."""


def start_thread(target: Callable[[], object], name: str) -> threading.Thread:
    """Start a daemon thread; raise StateError if the system has none to give."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise StateError(
            f"the thread {name!r} cannot be started: {error}; raise the limit of processes (ulimit -u, or that of the "
            "container), or end other threads"
        ) from error
    return thread


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


THREADS = min(MOST_HELPERS + 1, processors())
"""The threads of the pool."""

_helpers = THREADS - 1
"""The number of threads that help the one that calls :func:`side_by_side`."""


class Task(Generic[Result]):
    """A call that a thread of the pool makes, or whoever needs its result.

    A call that fails in a thread of the pool is made again by whoever needs the result, and raises to that one.
    """

    __slots__ = ("_call", "_process", "_result", "_turn")

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._process = os.getpid()
        self._result: Result | None = None
        self._turn = threading.RLock()
        """The lock of the thread that makes the call; one interrupted before or after the call may ask again."""

    @property
    def done(self) -> bool:
        """True if the result is there."""
        return self._call is None

    def run(self) -> None:
        """Make the call, unless that is done, or another thread is at it."""
        if self._turn.acquire(blocking=False):
            try:
                self._make()
            finally:
                self._turn.release()

    def call_off(self) -> None:
        """Have the call not made, unless a thread is at it: nobody needs its result."""
        if self._turn.acquire(blocking=False):
            self._call = None
            self._turn.release()

    def wait(self) -> None:
        """Wait for the thread that is at it, if one is."""
        while not self._turn.acquire(timeout=WAIT_SECONDS):
            if os.getpid() != self._process or sys.is_finalizing():  # that thread is not here, or will not go on
                self._turn = threading.RLock()
        self._turn.release()

    def result(self) -> Result:
        """Return what the call gave, after waiting for the thread that is at it, or after making the call here."""
        while self._call is not None:
            self.run()
            self.wait()
        return cast(Result, self._result)

    def _make(self) -> None:
        if self._call is not None:
            self._result = self._call()
            self._call = None  # with the arrays and files that it holds: the task itself may still be in the queue


_tasks: queue.SimpleQueue[Task[Any]] = queue.SimpleQueue()
_started = 0


def submit(call: Callable[[], Result]) -> Task[Result]:
    """Hand a call to the next thread that is free; the queue takes it even in the handler of a signal."""
    task = Task(call)
    _give(task)
    return task


def _give(task: Task[Any]) -> None:
    if _started < THREADS:
        _start()
    if _started:  # else nobody would ever take it out
        _tasks.put(task)


def _start() -> None:
    """Start one more thread, if the system has one to give, which ends with the process and keeps nobody waiting."""
    global _started
    if not sys.is_finalizing():  # where a thread that is started may never run
        with contextlib.suppress(RuntimeError):
            _thread.start_new_thread(_serve, (_tasks,))
            _started += 1


def _serve(tasks: queue.SimpleQueue[Task[Any]]) -> None:
    never_wait()
    while True:
        with contextlib.suppress(BaseException):  # such as that no memory is left: who needs the result meets it again
            tasks.get().run()


def _forked() -> None:
    """Forget, in a forked child, the threads, which are the parent's, and a queue whose lock may be held."""
    global _tasks, _started
    _tasks, _started = queue.SimpleQueue(), 0


at_fork(in_child=_forked)


def count() -> int:
    """Return how many threads work at once in :func:`side_by_side`, with the one that calls."""
    return _helpers + 1


def side_by_side(work: Work, borders: Sequence[int]) -> int:
    """Do the parts between the borders, several at once; return the place up to which all is done.

    What a part raises is raised once all are over. Whoever is interrupted leaves threads that go on for a moment.
    """
    if len(borders) == 2:
        return work(*borders)
    parts = [Task(functools.partial(work, begin, end)) for begin, end in itertools.pairwise(borders)]
    for part in parts[1:] if _helpers else ():
        _give(part)
    errors: list[BaseException] = []
    for part in parts:
        try:
            part.run()
        except BaseException as error:
            errors.append(error)
    for part in parts:
        part.wait()
    if errors:
        raise errors[0]
    ends = [part.result() for part in parts]
    return next((end for end, border in zip(ends, borders[1:], strict=True) if end < border), borders[-1])
