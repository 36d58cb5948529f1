"""Batches that a background thread samples ahead."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from diskreplay.errors import StateError
from diskreplay.views.batch import Batch

POLL_SECONDS = 0.1


class Loader:
    """An endless iterator of batches; also a context manager. :meth:`close` ends its thread, as does forgetting it.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(prefetch)
        self._stop = threading.Event()
        self._process = os.getpid()
        # The thread holds no reference to the loader, so that one which nobody holds any more is ended.
        work = (sample, self._ready, self._stop)
        self._thread = threading.Thread(target=_sample_ahead, args=work, name="diskreplay-loader", daemon=True)
        weakref.finalize(self, self._stop.set)
        self._thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        self._check_process()
        while not self._stop.is_set():
            try:
                item = self._ready.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                self.close()
                raise item
            return item
        raise StopIteration

    def close(self) -> None:
        """Stops sampling and waits for the thread."""
        if os.getpid() == self._process:
            self._stop.set()
            self._thread.join()

    def _check_process(self) -> None:
        if os.getpid() != self._process:  # nor may the queue be touched: the thread may have held its lock
            raise StateError("the loader's thread is in the process that this one was forked from: make a loader here")

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sample_ahead(
    sample: Callable[[], Batch], ready: queue.Queue[Batch | BaseException], stop: threading.Event
) -> None:
    while not stop.is_set():
        item: Batch | BaseException
        try:
            item = sample()
        except BaseException as error:  # handed to the consumer, who raises it
            item = error
        while not stop.is_set():
            try:
                ready.put(item, timeout=POLL_SECONDS)
                break
            except queue.Full:
                continue
        if isinstance(item, BaseException):
            return
