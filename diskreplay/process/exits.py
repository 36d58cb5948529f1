"""The work that is left once an object is forgotten, or the interpreter ends: done once, at a safe moment.

1. The last reference to the owner goes by itself (``del``, the end of a function, of a thread): at once, there.
2. The garbage collector finds the owner, which it may do in the middle of anything, with any lock held: then the work
   waits until a store is opened in this process, or the interpreter ends.
3. The interpreter ends, also by ``sys.exit`` or an exception: what was promised last is done first, after the threads
   that are not daemons have ended, and before the exit handlers that were registered earlier. A child of
   :mod:`multiprocessing` does it when its function has returned. Nothing is done after ``os._exit`` or a signal that
   kills.
4. An error is printed by ``sys.unraisablehook``, as that of a finalizer is; the exit status stays.
5. A process that was forked since does none of it: the owners are its parent's.
"""

from __future__ import annotations

import atexit
import collections
import gc
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

Work = Callable[[bool], None]
"""A function that is told whether the interpreter ends: then owners may still be in use."""

_numbers = itertools.count()
_promised: dict[int, tuple[Work, int]] = {}
"""The work that is left, in the order of its promises, and its process; it must not reach its owner."""
_waiting: collections.deque[int] = collections.deque()
"""The numbers of work whose owner the collector found."""
_registered: set[int] = set()
"""The children of multiprocessing that this process is, or comes from, whose end is looked after."""
_phases = collections.OrderedDict.fromkeys(("start", "stop"))
"""The phases of the collector; it came to the last of them just now."""
_newest: dict[str, object] = {}
_own = threading.local()
"""What the collector said at each phase: last of all, and in this thread."""


def when_forgotten(owner: object, work: Work) -> Callable[[], None]:
    """Do ``work`` once nobody holds ``owner`` any more, or the interpreter ends; the result calls it off."""
    number = next(_numbers)
    _promised[number] = work, os.getpid()
    weakref.finalize(owner, _forgotten, number).atexit = False
    _register()
    return lambda: _take_back(number)


def catch_up() -> None:
    """Do what waits since the collector ran, for a caller that holds no lock of another store."""
    while _waiting:
        _do_aside(_waiting.popleft(), ending=False)


def _register() -> None:
    """Have :func:`_end` called when this process ends."""
    # Anew after the first finalizer of the process: its own exit handler, which removes temporary directories with
    # stores in them, then comes later.
    atexit.unregister(_end)
    atexit.register(_end)
    if "multiprocessing.util" not in sys.modules:
        return
    from multiprocessing import process, util

    # Forked children of multiprocessing call no exit handlers, and forget their parents' finalizers.
    if process.parent_process() is not None and os.getpid() not in _registered:
        _registered.add(os.getpid())
        util.Finalize(None, _end, exitpriority=0)


def _take_back(number: int) -> None:
    _promised.pop(number, None)


def _forgotten(number: int) -> None:
    if _collecting():
        _waiting.append(number)
    else:
        _do(number, ending=False)


def _do(number: int, ending: bool) -> None:
    work, process = _promised.pop(number, (None, 0))
    if work is not None and process == os.getpid():
        work(ending)


def _do_aside(number: int, ending: bool) -> None:
    """Do work as a finalizer does, whose errors are printed and do not reach the caller."""
    owner = _Owner()
    reference = weakref.ref(owner, lambda _: _do(number, ending))
    del owner, reference


class _Owner:
    """Somebody to be forgotten."""


def _end() -> None:
    for number in sorted(_promised, reverse=True):
        _do_aside(number, ending=True)


def _collecting() -> bool:
    """Tell whether the collector runs, in this thread."""
    return next(reversed(_phases)) == "start" and getattr(_own, "start", None) is _newest["start"]


WATCHING: tuple[Callable[[Any, Any], None], ...] = (_phases.move_to_end, _newest.__setitem__, _own.__setattr__)
"""Methods that are no Python: a function in Python would get the Ctrl-C that came in a collection, and lose it."""
gc.callbacks.extend(WATCHING)
