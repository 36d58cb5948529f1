"""Compiled work in parts, done by several threads at once: it runs without the interpreter's lock.

The thread that calls does the first part, then every part that no helper has begun yet, and waits for the others. So
nothing depends on the helpers: where the processors are busy, in a process that was forked, at the end of the
interpreter, it does all parts itself.

Whoever is interrupted while it waits leaves helpers that go on for a moment. They hold on to all that their part needs.
"""

from __future__ import annotations

import itertools
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence

from diskreplay.interrupts import never_wait

Work = Callable[[int, int], int]
"""Does ``begin`` to ``end``, and says how far it came."""

FORK_SECONDS = 1.0
"""After which a thread that waits looks whether it is in a child of the process that it began in."""
MOST_HELPERS = 7
"""More threads than that copy no faster: they wait for the memory."""


class _Part:
    """A part of some work, which one thread does, whoever comes first."""

    def __init__(self, work: Work, begin: int, end: int) -> None:
        self.work, self.begin, self.end = work, begin, end
        self.done = begin
        self.error: BaseException | None = None
        self._process = os.getpid()
        self._begun = threading.Lock()
        self._over = threading.Lock()
        self._over.acquire()

    def run(self) -> bool:
        """Does it; False if another thread has begun."""
        if not self._begun.acquire(blocking=False):
            return False
        try:
            self.done = self.work(self.begin, self.end)
        except BaseException as error:
            self.error = error
        finally:
            del self.work  # with the arrays and files that it holds: the part itself may still be in the queue
            self._over.release()
        return True

    def wait(self) -> None:
        while not self._over.acquire(timeout=FORK_SECONDS):
            if os.getpid() != self._process:  # a signal's handler forked: whoever began this part is not here
                if hasattr(self, "work"):
                    self._begun = threading.Lock()
                    self.run()
                return


# Its put is safe in the handler of a signal that comes in the midst of another put.
_parts: queue.SimpleQueue[_Part] = queue.SimpleQueue()
_helpers: list[threading.Thread] = []


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_most = min(MOST_HELPERS, processors() - 1)


def count() -> int:
    """Threads that work at once."""
    return _most + 1


def run(work: Work, borders: Sequence[int]) -> int:
    """Does the parts between the borders, side by side; the first place to which the work did not come, or the end.

    What a part raises is raised once all are over.
    """
    if len(borders) == 2:
        return work(*borders)
    parts = [_Part(work, begin, end) for begin, end in itertools.pairwise(borders)]
    if len(_helpers) < min(_most, len(parts) - 1):
        _start()
    for part in parts[1:]:
        if _helpers:
            _parts.put(part)
    for part in parts:
        part.run()
    for part in parts:
        part.wait()
    for part in parts:
        if part.error is not None:
            raise part.error
    return next((part.done for part in parts if part.done < part.end), borders[-1])


def _start() -> None:
    """One more helper, if the system has one to give."""
    if sys.is_finalizing():  # where a thread that is started may never run
        return
    helper = threading.Thread(target=_help, args=(_parts,), name="diskreplay-read", daemon=True)
    try:
        helper.start()
    except RuntimeError:  # no more threads, or the interpreter ends
        return
    _helpers.append(helper)


def _help(parts: queue.SimpleQueue[_Part]) -> None:
    never_wait()
    while True:
        parts.get().run()


def _forked() -> None:
    """In a forked child: the helpers are its parent's, and the queue's lock may have been held."""
    global _parts
    _parts = queue.SimpleQueue()
    _helpers.clear()


os.register_at_fork(after_in_child=_forked)
