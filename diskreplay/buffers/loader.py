"""Batches that a background thread samples ahead."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from types import TracebackType

from diskreplay.buffers.batch import Batch


class Loader:
    """An endless iterator of batches; also a context manager. :meth:`close` ends its thread.

    An error of sampling is raised by ``next``, and ends the loader.
    """

    def __init__(self, sample: Callable[[], Batch], prefetch: int) -> None:
        self._sample = sample
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(prefetch)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="diskreplay-loader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            item: Batch | BaseException
            try:
                item = self._sample()
            except BaseException as error:  # handed to the consumer, who raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._ready.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        while not self._stop.is_set():
            try:
                item = self._ready.get(timeout=0.1)
            except queue.Empty:
                continue
            if isinstance(item, BaseException):
                self.close()
                raise item
            return item
        raise StopIteration

    def close(self) -> None:
        """Stops sampling and waits for the thread."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
