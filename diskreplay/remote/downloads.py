"""Several downloads at a time, each object once.

Threads are made when there is something to do and end when there is not. They are daemons: the program's end, a fork or
a signal waits for none of them, and a copy that is half written is no copy (:mod:`diskreplay.remote.mirror`).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import queue
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from diskreplay.errors import StateError
from diskreplay.process.background import start_thread
from diskreplay.process.locks import Lock

MOST_THREADS = 16

Result = TypeVar("Result")


AfterDownload: TypeAlias = "Callable[[Download[Any]], None]"


class CalledOffError(Exception):
    """Raised by a download that was called off."""


class Download(Generic[Result]):
    """A download that was begun.

    Args:
        work: downloads, and calls :meth:`check` of this object meanwhile, if it may be called off.

    Attributes:
        called_off: True if nobody wants it any more.
        error: what the download has raised, or None.
        then: functions that are called with this object by the thread of the download when that is over.
    """

    def __init__(self, work: Callable[[Download[Result]], Result]) -> None:
        self.called_off = False
        self.error: BaseException | None = None
        self.then: list[AfterDownload] = []
        self._work = work
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Gets an item when the download ends, which each that waits puts back."""
        self._ended = False
        self._result: Result | None = None

    def check(self) -> None:
        """Raise CalledOffError if it was called off."""
        if self.called_off:
            raise CalledOffError

    def run(self, before_end: Callable[[], None] = lambda: None) -> None:
        try:
            self.check()
            self._result = self._work(self)
        except BaseException as error:
            self.error = error
        finally:
            before_end()
            self._ended = True
            self._over.put(None)

    def wait(self, seconds: float) -> None:
        """Wait for the download, at most ``seconds``."""
        if not self._ended:
            with contextlib.suppress(queue.Empty):
                self._over.get(timeout=max(0.0, seconds))
                self._over.put(None)

    def result(self) -> Result:
        """Wait for the download, and return its result or raise what it raised."""
        while not self._ended:
            self.wait(1.0)  # a Ctrl-C that another thread received is looked for in between
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]


def call_off(downloads: Sequence[Download[Any]], seconds: float) -> None:
    """Call off downloads, and wait for them, at most ``seconds``."""
    stop = time.monotonic() + seconds
    for download in downloads:
        download.called_off = True
    for download in downloads:
        download.wait(stop - time.monotonic())


class Downloads(Generic[Result]):
    """The downloads that are under way, by name.

    Args:
        most_threads: the most threads that download at the same time.
    """

    def __init__(self, most_threads: int = MOST_THREADS) -> None:
        self._most_threads = most_threads
        self._lock = Lock("the downloads of a mirror")
        self._waiting: collections.deque[tuple[Hashable, Download[Result]]] = collections.deque()
        self._under_way: dict[Hashable, Download[Result]] = {}
        self._threads = 0

    def begin(
        self, name: Hashable, work: Callable[[Download[Result]], Result], then: AfterDownload | None = None
    ) -> Download[Result]:
        """Begin a download, or return the one of the same name that is under way; ``then`` is called after it."""
        with self._lock:
            found = self._under_way.get(name)
            if found is None:
                found = Download(work)
                if self._threads < self._most_threads:
                    try:
                        start_thread(self._run, "diskreplay-download")
                        self._threads += 1
                    except StateError:  # the system has no more threads
                        if not self._threads:
                            raise
                # In this order: what is under way is run, wherever an exception ends this.
                self._waiting.append((name, found))
                self._under_way[name] = found
            if then is not None:
                found.then.append(then)
            return found

    def under_way(self) -> list[Download[Result]]:
        with self._lock:
            return list(self._under_way.values())

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                name, download = self._waiting.popleft()
            download.run(functools.partial(self._forget, name, download))

    def _forget(self, name: Hashable, download: Download[Result]) -> None:
        """Forget a download just before its end: who begins it again after that gets a new one."""
        with self._lock:
            self._under_way.pop(name, None)
        for then in download.then:
            then(download)
