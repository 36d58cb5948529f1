"""Batches that a background thread samples ahead.

The consumer may be interrupted at any moment and go on. So nothing between the two threads is built of Python's
conditions, which keep their lock when they are interrupted inside: batches go through one of the interpreter's own
queues, and another one wakes the thread when a batch was taken. A lost wake costs it one poll.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from diskreplay.views.batch import Batch

POLL_SECONDS = 0.1


class Loader:
    """An endless iterator of batches; also a context manager. :meth:`close` ends its thread, as does forgetting it.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        # The thread holds no reference to the loader, so that one which nobody holds any more is ended.
        self._work = _Work(sample, prefetch)
        weakref.finalize(self, self._work.stop)
        self._thread = threading.Thread(target=self._work.run, name="diskreplay-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        item = self._work.next()
        if isinstance(item, BaseException):
            self.close()
            raise item
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """Stops sampling and waits for the thread."""
        self._work.stop()
        self._thread.join()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Work:
    """What the two threads share."""

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        self._sample = sample
        self._prefetch = prefetch
        self._ready: queue.SimpleQueue[Batch | BaseException] = queue.SimpleQueue()
        self._taken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def next(self) -> Batch | BaseException | None:
        """The next batch, or the error that ended sampling; None after the end."""
        while not self._stopped:
            try:
                item = self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if self._taken.empty():
                self._taken.put(None)
            return item
        return None

    def run(self) -> None:
        """Samples ahead, in a thread of its own: as many batches as may wait, and one in its hand."""
        item: Batch | BaseException | None = None
        while not self._stopped and not isinstance(item, BaseException):
            try:
                item = self._sample()
            except BaseException as error:  # handed to the consumer, who raises it
                item = error
            while not self._stopped and self._ready.qsize() >= self._prefetch:
                with contextlib.suppress(queue.Empty):
                    self._taken.get(timeout=POLL_SECONDS)
            self._ready.put(item)
