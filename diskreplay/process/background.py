"""Threads that work for others: that compress, decode and copy; that make items ahead; that make calls one by one.

The pool of threads is for compiled work without the interpreter's lock. Nothing depends on its threads: whoever needs
what a :class:`Task` gives does the task, unless a thread is at it already. So the thread that asks does all of the work
where the processors are busy, in a process that was forked, and at the end of the interpreter. A
:class:`Prefetcher` makes items ahead of their use, a :class:`CallQueue` makes calls in the place of the thread that
puts them.

Whoever waits here may be interrupted at any moment and go on. So nothing between two threads is built of Python's
conditions, which keep their lock when they are interrupted inside; nor of ``concurrent.futures``, which has them: only
of the interpreter's own queues and locks. A wake that an interrupt loses costs one poll.
"""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import functools
import itertools
import os
import queue
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar, cast

from diskreplay.errors import StateError
from diskreplay.process import lifecycle
from diskreplay.process.locks import helpers, uninterrupted

Item = TypeVar("Item", covariant=True)
Result = TypeVar("Result")
Call = Callable[[], Any]
Work = Callable[[int, int], int]
"""A function that works from ``begin`` to ``end``, and returns how far it came."""

POLL_SECONDS = 0.1
"""The seconds between two looks whether the other thread is still there, or whether there is room."""
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


# The pool


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


THREADS = min(MOST_HELPERS + 1, processors())
"""The threads of the pool; and those that work at once in :func:`side_by_side`, with the one that calls."""


class Task(Generic[Result]):
    """A call that a thread of the pool makes, or whoever needs its result.

    A call that fails in a thread of the pool is made again by whoever needs the result, and raises to that one.
    """

    __slots__ = ("_call", "_process", "_result", "_turn")

    def __init__(self, call: Callable[[], Result]) -> None:
        self._call: Callable[[], Result] | None = call
        self._process = lifecycle.process
        self._result: Result | None = None
        self._turn = threading.RLock()
        """The lock of the thread that makes the call; one interrupted before or after the call may ask again."""

    @property
    def done(self) -> bool:
        """True if the result is there."""
        return self._call is None

    @property
    def mine(self) -> bool:
        """True if this thread is at it."""
        return self._turn._is_owned()  # type: ignore[attr-defined,no-any-return]

    def run(self) -> None:
        """Make the call, unless that is done, or another thread is at it."""
        if self._turn.acquire(blocking=False):
            try:
                if self._call is not None:
                    self._result = self._call()
                    self._call = None  # with what it holds: the task itself may still be in the queue
            finally:
                self._turn.release()

    def call_off(self) -> None:
        """Have the call not made, unless a thread is at it: nobody needs its result."""
        if self._turn.acquire(blocking=False):
            self._call = None
            self._turn.release()

    def wait(self) -> None:
        """Wait for the thread that is at it, if one is."""
        while not self._turn.acquire(timeout=POLL_SECONDS):
            if lifecycle.process != self._process or sys.is_finalizing():  # that thread is not here, or will not go on
                self._turn = threading.RLock()
        self._turn.release()

    def result(self) -> Result:
        """Return what the call gave, after waiting for the thread that is at it, or after making the call here."""
        while self._call is not None:
            self.run()
            self.wait()
        return cast(Result, self._result)


_tasks: queue.SimpleQueue[Task[Any]] = queue.SimpleQueue()
_started = 0


def submit(call: Callable[[], Result]) -> Task[Result]:
    """Hand a call to the next thread that is free; the queue takes it even in the handler of a signal."""
    task = Task(call)
    _give(task)
    return task


def _give(task: Task[Any]) -> None:
    global _started
    if _started < THREADS and not sys.is_finalizing():  # where a thread that is started may never run
        with contextlib.suppress(RuntimeError):  # the system has none to give
            _thread.start_new_thread(_serve, (_tasks,))
            _started += 1
    if _started:  # else nobody would ever take it out
        _tasks.put(task)


def _serve(tasks: queue.SimpleQueue[Task[Any]]) -> None:
    helpers[threading.get_ident()] = ()
    while True:
        with contextlib.suppress(BaseException):  # such as that no memory is left: who needs the result meets it again
            tasks.get().run()


def _forked() -> None:
    """Forget, in a forked child, the threads, which are the parent's, and a queue whose lock may be held."""
    global _tasks, _started
    _tasks, _started = queue.SimpleQueue(), 0


lifecycle.at_fork(_forked)


def side_by_side(work: Work, borders: Sequence[int]) -> int:
    """Do the parts between the borders, several at once; return the place up to which all is done.

    What a part raises is raised once all are over. Whoever is interrupted leaves threads that go on for a moment.
    """
    if len(borders) == 2:
        return work(*borders)
    parts = [Task(functools.partial(work, begin, end)) for begin, end in itertools.pairwise(borders)]
    for part in parts[1:] if THREADS > 1 else ():
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


# Threads of their own


class _Bounded(Generic[Result]):
    """A queue in which about ``most`` items wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def full(self) -> bool:
        return self._items.qsize() >= self._most

    def put(self, item: Result, wanted: Callable[[], bool] = lambda: False) -> None:
        """Put an item; first wait for room as long as ``wanted`` says that somebody takes items out."""
        while self.full and wanted():
            with contextlib.suppress(queue.Empty):
                self._room.get(timeout=POLL_SECONDS)
        self._items.put(item)

    def get(self, timeout: float | None = None) -> Result:
        """Return the next item; raise queue.Empty if none comes in ``timeout`` seconds."""
        item = self._items.get(timeout=timeout)
        self.wake()
        return item

    def wake(self) -> None:
        """Have who waits for room look again."""
        if self._room.empty():
            self._room.put(None)


class _End(NamedTuple):
    """Nothing more comes; ``error`` says why, or is None."""

    error: BaseException | None


class Prefetcher(Generic[Item]):
    """The items of an iterator, in the same order, while a thread asks it for more; also a context manager.

    :meth:`close` ends the thread, as does forgetting the prefetcher. An error of the iterator is raised by ``next`` in
    its turn, and ends the prefetcher.

    Args:
        items: a function that makes the iterator; called in the thread.
        waiting: items that may wait; one more is being made.
        name: the name of the prefetcher in errors, and of its thread.

    Raises StateError if no thread can be started, and, from ``next``, in a process that was forked from the one that
    made it.
    """

    def __init__(self, items: Callable[[], Iterator[Item]], waiting: int, name: str) -> None:
        self._process = lifecycle.process
        self._name = name
        # The thread holds no reference to the prefetcher, so that one which nobody holds any more is ended.
        self._ready: _Bounded[tuple[Item] | _End] = _Bounded(waiting)
        self._stopped: list[None] = []
        weakref.finalize(self, self._stopped.append, None)
        make = functools.partial(_make_ahead, items, self._ready, self._stopped)
        self._thread = start_thread(make, f"diskreplay-{name}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if lifecycle.process != self._process:  # nor may the queue be touched: the thread may have held its lock
            raise StateError(
                f"the {self._name}'s thread is in the process that this one was forked from: make a {self._name} here"
            )
        while not self._stopped:
            with contextlib.suppress(queue.Empty):
                found = self._ready.get(timeout=POLL_SECONDS)
                if isinstance(found, _End):
                    self.close()
                    raise found.error or StopIteration
                return found[0]
        raise StopIteration

    def close(self) -> None:
        """Stop making items and wait for the thread."""
        if lifecycle.process == self._process:
            self._stopped.append(None)
            self._ready.wake()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _make_ahead(
    items: Callable[[], Iterator[Item]], ready: _Bounded[tuple[Item] | _End], stopped: list[None]
) -> None:  # fmt: skip
    """Make items, in a thread of its own: as many as may wait, and one in its hand."""
    error = None
    try:
        for item in items():
            ready.put((item,), lambda: not stopped)
            if stopped:
                break
    except BaseException as found:  # handed to the consumer, who raises it
        error = found
    ready.put(_End(error), lambda: not stopped)


@dataclasses.dataclass(frozen=True)
class Waited:
    """How often a call waited for room in a queue that was full, and the longest of these waits."""

    count: int = 0
    longest_seconds: float = 0.0


class CallQueue:
    """A thread that makes calls in the place of the one that puts them into a bounded queue, in their order.

    Who puts a call waits only while the queue is full, and nothing that was put is dropped. But a call that fails ends
    a series: the thread drops the calls behind it, until :meth:`check` has raised the error. Dropping the last
    reference, and the end of the interpreter, end it as :meth:`end` does; an error that nobody was told of is a
    ResourceWarning then.

    Args:
        most: the calls that may wait; one more is being made.
        name: the name of the thread, and of what it does in errors.
        last: the call that :attr:`settle` and :meth:`end` have made last.
        note: a function that says, after an error, what came of the calls; the error gets it as a note.

    Attributes:
        waited: how often :meth:`put` had to wait.
        settle: has the last call made after all earlier ones, and waits for it. It raises nothing, does nothing in a
            forked process and in the thread itself, and keeps no reference to the queue.
    """

    def __init__(self, most: int, name: str, last: Call, note: Callable[[], str]) -> None:
        self._name = name
        self._note = note
        # The thread holds no reference to this object, so that one which nobody holds any more is ended.
        self._calls = _Calls(most, name, last)
        self.settle: Call = self._calls.settle
        self.waited = Waited()
        self._call_off = lifecycle.when_forgotten(self, functools.partial(_end, self._calls, note))

    def put(self, call: Call) -> None:
        """Have the thread make a call, after all earlier ones; wait while the queue is full."""
        self._check_here()
        if not self._calls.waiting.full:
            self._calls.waiting.put((call, False))
            return
        begun = time.monotonic()
        self._calls.waiting.put((call, False), self._calls.thread.is_alive)
        longest = max(self.waited.longest_seconds, time.monotonic() - begun)
        self.waited = Waited(self.waited.count + 1, longest)

    def check(self) -> None:
        """Raise the error of a call that failed, once; calls that are put from then on are made again."""
        self._check_here()
        if self._calls.errors:
            self._calls.reach()  # what was put before is dropped
            self._tell()

    @uninterrupted
    def _tell(self) -> None:
        """Raise the error, and forget it. An interrupt comes with the error, not in its place."""
        if self._calls.errors:
            error = self._calls.errors.pop()
            error.add_note(self._note())
            raise error

    def end(self) -> None:
        """Make all calls, then the last one, end the thread, and raise the error of a call; a second time do nothing.

        It does nothing in a forked process.
        """
        if self._calls.here:
            self._calls.end()
            self._call_off()
            self.check()

    def _check_here(self) -> None:
        if not self._calls.here:
            raise StateError(
                f"the {self._name} thread is in the process that this one was forked from; make another one here"
            )


class _Calls:
    """What a :class:`CallQueue` and its thread share.

    Attributes:
        waiting: the calls, and whether each is made although one before it failed; None ends the thread.
        errors: that of the call that failed, if one did.
    """

    def __init__(self, most: int, name: str, last: Call) -> None:
        self._process = lifecycle.process
        self._last = last
        self.waiting: _Bounded[tuple[Call, bool] | None] = _Bounded(most)
        self.errors: list[BaseException] = []
        self.thread = start_thread(self._run, f"diskreplay-{name}")

    @property
    def here(self) -> bool:
        """False in a process that was forked since; there no queue may be touched, whose lock may be held for ever."""
        return lifecycle.process == self._process

    def reach(self) -> None:
        """Wait until the thread is here; a wait that is interrupted leaves a mark that nobody misses."""
        reached: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.waiting.put((functools.partial(reached.put, None), True))
        while self.thread.is_alive():
            with contextlib.suppress(queue.Empty):
                reached.get(timeout=POLL_SECONDS)
                return

    def settle(self) -> None:
        if self.here and self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.waiting.put((self._last, False))
            self.reach()

    def end(self) -> None:
        """Make all calls, and end the thread."""
        if self.thread.is_alive():
            self.waiting.put((self._last, False))
            self.waiting.put(None)
        self.thread.join()
        self._last = nothing  # with all that it holds: whoever has `settle` holds this

    def _run(self) -> None:
        for call, always in iter(self.waiting.get, None):
            if always or not self.errors:
                try:
                    call()
                except BaseException as error:  # handed to the one that puts, who raises it
                    self.errors.append(error)
            del call  # and its arrays, before it waits for another


def nothing() -> None:
    """Do nothing, as a last call."""


def _end(calls: _Calls, note: Callable[[], str], ending: bool) -> None:
    """End a queue that nobody holds any more, or that is there when the interpreter ends."""
    calls.end()
    for error in calls.errors:
        warnings.warn(f"{type(error).__name__}: {error}\n{note()}", ResourceWarning, stacklevel=2)
