"""Several downloads at a time, each object once.

Threads are made when there is something to do and end when there is not. They are daemons: the program's end, a fork or
a signal waits for none of them, and a copy that is half written is no copy (:mod:`diskreplay.remote.mirror`).
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from diskreplay.interrupts import Lock

MOST_THREADS = 16

Result = TypeVar("Result")


class Download(Generic[Result]):
    """A download that was begun."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._over = threading.Lock()
        """A lock held until the download ends; a signal's handler could wait for an event within another wait."""
        self._over.acquire()
        self._ended = False
        self._result: Result | None = None
        self._error: BaseException | None = None

    def run(self, before_end: Callable[[], None] = lambda: None) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error
        finally:
            before_end()
            self._ended = True
            self._over.release()

    def wait(self, seconds: float) -> None:
        """Wait for the download, at most ``seconds``."""
        if not self._ended and self._over.acquire(timeout=max(0.0, seconds)):
            self._over.release()

    def result(self) -> Result:
        """Wait for the download, and return its result or raise what it raised."""
        while not self._ended:
            self.wait(1.0)  # a Ctrl-C that another thread received is looked for in between
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Downloads(Generic[Result]):
    """The downloads that are under way, by name.

    Args:
        most_threads: the most threads that download at the same time.
    """

    def __init__(self, most_threads: int = MOST_THREADS) -> None:
        self._most_threads = most_threads
        self._lock = Lock("the downloads of a mirror")
        self._waiting: collections.deque[tuple[str, Download[Result]]] = collections.deque()
        self._under_way: dict[str, Download[Result]] = {}
        self._threads = 0

    def begin(self, name: str, work: Callable[[], Result]) -> Download[Result]:
        """Begin a download, or return the one of the same name that is under way."""
        with self._lock:
            found = self._under_way.get(name)
            if found is None:
                found = Download(work)
                if self._threads < self._most_threads:
                    try:
                        threading.Thread(target=self._run, name="diskreplay-download", daemon=True).start()
                        self._threads += 1
                    except RuntimeError:  # the system has no more threads
                        if not self._threads:
                            raise
                # In this order: what is under way is run, wherever an exception ends this.
                self._waiting.append((name, found))
                self._under_way[name] = found
            return found

    def under_way(self) -> list[Download[Result]]:
        """Return the downloads that are waiting or under way now."""
        with self._lock:
            return list(self._under_way.values())

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                name, download = self._waiting.popleft()
            download.run(functools.partial(self._forget, name))

    def _forget(self, name: str) -> None:
        """Forget a download just before its end: who begins it again after that gets a new one."""
        with self._lock:
            self._under_way.pop(name, None)
