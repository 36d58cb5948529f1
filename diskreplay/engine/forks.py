"""Open stores in a forked process: readers go on there, writers refuse, and nobody waits for ever.

1. A fork waits until no other thread is in the middle of anything with a store's index in RAM, so that the child's
   copy is whole. After FORK_SECONDS it waits no longer, and the child's copy is not used.
2. Locks that threads of the parent held are free in the child, where those threads are not.
3. The child of a store with ``mode="r"`` draws batches of its own: its generator is seeded from the parent's, as it
   was, and from the number of forks of that store so far. So children differ from each other and from their parent,
   and with the same seed, the same calls and the same forks they draw the same again.
4. The child of a store that writes neither writes nor samples: what its parent commits, evicts and compacts later, it
   would not notice.

Processes that are started without Python's fork (spawn, forkserver, subprocess) have no copy of any open store.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from typing import Any, NoReturn

import numpy as np

from diskreplay.engine.engine import Engine
from diskreplay.engine.generator import reseeded
from diskreplay.errors import StateError
from diskreplay.forks import at_fork

FORK_SECONDS = 30.0

_numbers = itertools.count()
_open: dict[int, weakref.ref[Engine]] = {}
_forks: weakref.WeakKeyDictionary[Engine, int] = weakref.WeakKeyDictionary()
"""The number of times that the process was forked since a store was opened, or inherited."""
_held = threading.local()
"""The forks that this thread is at, one of them perhaps in a signal's handler during another.

Each has the engines that it found, and those of their locks that it could take.
"""


def watch(engine: Engine) -> None:
    """Make forks of this process safe for an open store from now on."""
    number = next(_numbers)
    _open[number] = weakref.ref(engine, lambda _: _open.pop(number, None))


def opened() -> list[Engine]:
    """Return the engines of this process that are open."""
    found = (reference() for reference in list(_open.values()))
    return [engine for engine in found if engine is not None and not engine.closed]


def _before() -> None:
    engines = opened()
    locks = _take([lock for engine in engines for lock in _locks(engine)], FORK_SECONDS)
    for engine in engines:
        _forks[engine] = _forks.get(engine, 0) + 1
    _held.__dict__.setdefault("forks", []).append((engines, locks))


def _locks(engine: Engine) -> list[Any]:
    """Return the locks that guard what is in RAM."""
    return [engine.lock, engine.streams.cache.lock]


def _take(locks: list[Any], seconds: float) -> list[Any]:
    """Take all locks, or those that are free when the time is over.

    It never waits with a lock in hand that somebody else might be waiting for.
    """
    deadline = time.monotonic() + seconds
    while True:
        taken = []
        for lock in locks:
            if lock.acquire(timeout=0):
                taken.append(lock)
        missing = next((lock for lock in locks if lock not in taken), None)
        if missing is None or time.monotonic() >= deadline:
            return taken
        _release(taken)
        if missing.acquire(timeout=max(0.0, deadline - time.monotonic())):
            missing.release()


def _release(locks: list[Any]) -> None:
    for lock in reversed(locks):
        lock.release()


def _after_in_parent() -> None:
    _, locks = _held.forks.pop()
    _release(locks)


def _after_in_child() -> None:
    engines, locks = _held.forks.pop()
    for engine in engines:
        whole = all(lock in locks for lock in _locks(engine))
        for lock in (*_locks(engine), engine.write_lock):
            if lock not in locks and not lock.owned:
                lock.renew()
        if engine.streams.writer is not None:
            _refuse(engine, "this process was forked from the one that writes the stream")
        elif not whole:
            _refuse(engine, "this process was forked while another thread was using the buffer")
        else:
            engine.rng.bit_generator.state = reseeded(engine.rng, _forks[engine]).bit_generator.state
        _forks[engine] = 0
    _release(locks)


def _refuse(engine: Engine, why: str) -> None:
    """Have every call that needs more than the numbers in RAM raise StateError, even in a pass under way."""
    engine.refused = f"{why}: open the store {engine.path!r} here, with mode='r' or a stream of its own"

    def refuse() -> NoReturn:
        raise StateError(engine.refused)

    for stream in engine.streams:
        for _, column in stream.disk.columns():
            column.still_current = refuse


def next_generator(engine: Engine) -> np.random.Generator:
    """Return the generator of a store's next copy, which is counted as a fork is."""
    _forks[engine] = _forks.get(engine, 0) + 1
    return reseeded(engine.rng, _forks[engine])


at_fork(before=_before, in_parent=_after_in_parent, in_child=_after_in_child)
