"""The making of items ahead of their use, in a thread: batches for a learner, blocks of a dataset for an import.

The consumer may be interrupted at any moment and go on. So nothing between the two threads is built of Python's
conditions, which keep their lock when they are interrupted inside: items go through one of the interpreter's own
queues, and another one wakes the thread when an item was taken. A lost wake costs it one poll.
"""

from __future__ import annotations

import contextlib
import os
import queue
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

from diskreplay.errors import StateError
from diskreplay.process.workers import start_thread

POLL_SECONDS = 0.1

Item = TypeVar("Item", covariant=True)


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
        self._process = os.getpid()
        self._name = name
        # The thread holds no reference to the prefetcher, so that one which nobody holds any more is ended.
        self._shared = _Shared(items, waiting)
        weakref.finalize(self, self._shared.stop)
        self._thread = start_thread(self._shared.run, f"diskreplay-{name}")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if os.getpid() != self._process:  # nor may the queue be touched: the thread may have held its lock
            raise StateError(
                f"the {self._name}'s thread is in the process that this one was forked from: make a {self._name} here"
            )
        found = self._shared.next()
        if isinstance(found, _End):
            self.close()
            raise found.error or StopIteration
        return found[0]

    def close(self) -> None:
        """Stop making items and wait for the thread."""
        if os.getpid() == self._process:
            self._shared.stop()
            self._shared.wake()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _End:
    """Nothing more comes; ``error`` says why, or is None."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class _Shared(Generic[Item]):
    """The state that the two threads share."""

    def __init__(self, items: Callable[[], Iterator[Item]], waiting: int) -> None:
        self._items = items
        self._waiting = waiting
        self._ready: queue.SimpleQueue[tuple[Item] | _End] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def stop(self) -> None:
        """Stop, without a queue: this runs at the end of forked processes too, where a lock may be held for ever."""
        self._stopped = True

    def wake(self) -> None:
        """Have the thread look whether there is room, or whether it was stopped."""
        if self._taken.empty():
            self._taken.put(None)

    def next(self) -> tuple[Item] | _End:
        while not self._stopped:
            try:
                found = self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            self.wake()
            return found
        return _End()

    def run(self) -> None:
        """Make items, in a thread of its own: as many as may wait, and one in its hand."""
        end = _End()
        try:
            for item in self._items():
                self._put((item,))
                if self._stopped:
                    break
        except BaseException as error:  # handed to the consumer, who raises it
            end = _End(error)
        self._put(end)

    def _put(self, found: tuple[Item] | _End) -> None:
        while not self._stopped and self._ready.qsize() >= self._waiting:
            with contextlib.suppress(queue.Empty):
                self._taken.get(timeout=POLL_SECONDS)
        self._ready.put(found)
