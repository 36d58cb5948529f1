"""The end of a process, its forks, and objects that nobody holds any more.

What is left to do for an object is done once, at a safe moment:

1. The last reference to it goes by itself (``del``, the end of a function, of a thread): at once, there.
2. The garbage collector finds it, which it may do in the middle of anything, with any lock held: then the work waits
   until a store is opened in this process, or the interpreter ends.
3. The interpreter ends, also by ``sys.exit`` or an exception: after the threads that are not daemons, before the exit
   handlers that were registered earlier, the newest object first. A child of :mod:`multiprocessing` does it when its
   function has returned. Nothing is done after ``os._exit`` or a signal that kills.
4. Python prints an error as it prints one of a finalizer or an exit handler; the exit status stays.
5. A process that was forked since does nothing: the objects are its parent's.

A fork waits until it holds the locks of what a child inherits, so that the child's copy is whole. After FORK_SECONDS it
waits no longer: the child is told that its copy may not be whole. Locks that threads of the parent held are free in the
child, because those threads do not exist there. Signals wait until the fork is over.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import gc
import logging  # noqa: F401  # its lock is taken after ours: a thread that logs within a batch must not wait for a fork
import os
import sys
import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from typing import Any, NamedTuple

from diskreplay.errors import StateError
from diskreplay.process.locks import Lock, held_back

FORK_SECONDS = 1.0

process = os.getpid()
"""The number of this process: a forked child sees by it that something is its parent's."""
forks = 0
"""The number of forks that this process has begun, with those of its parent before its own."""

Work = Callable[[bool], None]
"""A function that is told whether the interpreter ends: then its object may still be in use. It must not hold it."""


def is_worker() -> bool:
    """Tell whether another process started this one by :mod:`multiprocessing`."""
    if "multiprocessing.util" not in sys.modules:
        return False
    from multiprocessing import parent_process

    return parent_process() is not None


class _Promise:
    """Work that is done at the latest when the process ends, unless it is called off."""

    def __init__(self, work: Work) -> None:
        self._work: Work | None = work
        self._process = process
        self._call_off: list[Callable[[], object]] = []

    def register(self) -> None:
        """Have it kept at the end of the process."""
        atexit.register(self.keep, True)
        self._call_off.append(lambda: atexit.unregister(self.keep))
        if is_worker():  # a forked one calls no exit handlers
            from multiprocessing import util

            self._call_off.append(util.Finalize(None, self.keep, (True,), exitpriority=0).cancel)

    def forgotten(self) -> None:
        """Keep it, or leave it for later if it is the collector that calls."""
        if next(reversed(_phases)) == "start":
            _waiting.append(self)
        else:
            self.keep(False)

    def keep(self, ending: bool) -> None:
        work = self._work
        self.call_off()
        if work is not None and self._process == os.getpid():
            work(ending)

    def call_off(self) -> None:
        self._work = None
        while self._call_off:
            self._call_off.pop()()


_waiting: collections.deque[_Promise] = collections.deque()
"""The promises whose objects the collector found."""
_phases = collections.OrderedDict.fromkeys(("start", "stop"))
"""The phases of the collector; it came to the last of them just now, in whatever thread."""
# No function in Python: that would get the Ctrl-C that came in a collection, and lose it.
gc.callbacks.append(_phases.move_to_end)  # type: ignore[arg-type]


def when_forgotten(owner: object, work: Work) -> Callable[[], None]:
    """Do ``work`` once nobody holds ``owner`` any more, or the interpreter ends; the result calls it off."""
    promise = _Promise(work)
    # Python's own handler, which removes temporary directories with stores in them, is registered by the first of all
    # finalizers, and comes after those that are registered from then on.
    weakref.finalize(owner, promise.forgotten).atexit = False
    promise.register()
    return promise.call_off


def catch_up() -> None:
    """Do what waits since the collector ran, for a caller that holds no lock of another store."""
    while _waiting:
        # By the end of an object of its own: errors are printed, and do not reach the caller.
        weakref.finalize(set(), _waiting.popleft().keep, False)


# Forks


class Inherited(NamedTuple):
    """What a forked child has a copy of: the locks that guard it, and a call in the child that is told of the copy."""

    owner: weakref.ref[Any]
    locks: tuple[Lock, ...]
    forked: Callable[[Any, bool], None]


_inherited: dict[int, Inherited] = {}
_begun: dict[int, tuple[held_back, list[Inherited], list[Lock]]] = {}
"""The fork that each thread has begun: what it found, and those of the locks that it could take."""


def inherit(owner: object, locks: tuple[Lock, ...], forked: Callable[[Any, bool], None]) -> None:
    """At each fork take ``locks`` before, and call ``forked(owner, whole)`` in the child, if ``owner`` is there.

    ``whole`` is False if other threads held a lock for too long.
    """
    key = id(owner)
    _inherited[key] = Inherited(weakref.ref(owner, lambda _: _inherited.pop(key, None)), locks, forked)


def inherited() -> list[Any]:
    """Return the objects of this process that a child would have copies of."""
    return [found for each in list(_inherited.values()) if (found := each.owner()) is not None]


def at_fork(in_child: Callable[[], None]) -> None:
    """Have a function called in each forked child, after those of modules that the caller's stands on."""
    os.register_at_fork(after_in_child=in_child)


def _before() -> None:
    global forks
    forks += 1
    block = held_back()
    block.__enter__()
    found, until = list(_inherited.values()), time.monotonic() + FORK_SECONDS
    taken: list[Lock] = []
    _begun[get_ident()] = block, found, taken
    for lock in (lock for each in found for lock in each.locks):
        with contextlib.suppress(StateError):  # this thread is in the middle of a change
            if lock.acquire(max(0.0, until - time.monotonic())):
                taken.append(lock)


def _over() -> None:
    block, _, taken = _begun.pop(get_ident())
    for lock in reversed(taken):
        lock.release()
    block.__exit__()


def _in_child() -> None:
    global process
    process = os.getpid()
    _, found, taken = _begun[get_ident()]
    for each in found:
        for lock in each.locks:
            if lock not in taken and not lock.owned:
                lock.renew()
        if (owner := each.owner()) is not None:
            each.forked(owner, all(lock in taken for lock in each.locks))
    _over()


os.register_at_fork(before=_before, after_in_parent=_over, after_in_child=_in_child)
