"""Open stores in a forked process: readers go on in the child, writers refuse there, and no thread waits for ever.

1. A fork waits until it holds the locks of all open stores, so that the child's copy is whole. After FORK_SECONDS it
   waits no longer, and the child refuses to use a copy that may not be whole.
2. Locks that threads of the parent held are free in the child, because those threads do not exist there.
3. In the child, a store with ``mode="r"`` draws batches of its own. Its generator is seeded from the state of the
   parent's generator and from the number of forks of that store so far. So children differ from each other and from
   their parent. The same seed, calls and forks give the same draws again.
4. In the child, a store that was opened to write neither writes nor samples, because it would not notice what its
   parent commits and evicts later.

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
from diskreplay.process.forks import at_fork

FORK_SECONDS = 30.0

_numbers = itertools.count()
_open: dict[int, weakref.ref[Engine]] = {}
_forks: weakref.WeakKeyDictionary[Engine, int] = weakref.WeakKeyDictionary()
"""The number of forks of this process since a store was opened here, or inherited by a fork."""
_held = threading.local()
"""The forks that this thread has begun; a signal's handler may begin one during another.

Each fork has the engines that it found, and those of their locks that it could take.
"""


def watch(engine: Engine) -> None:
    """Make forks of this process safe for an open store from now on."""
    number = next(_numbers)
    _open[number] = weakref.ref(engine, lambda _: _open.pop(number, None))


def opened() -> list[Engine]:
    """Return the engines of this process that are open."""
    found = (reference() for reference in list(_open.values()))
    return [engine for engine in found if engine is not None and not engine.gate.closed]


def _before() -> None:
    engines = opened()
    locks = _take([lock for engine in engines for lock in _locks(engine)], FORK_SECONDS)
    for engine in engines:
        _forks[engine] = _forks.get(engine, 0) + 1
    _held.__dict__.setdefault("forks", []).append((engines, locks))


def _locks(engine: Engine) -> list[Any]:
    return [engine.lock, engine.streams.cache.lock]


def _take(locks: list[Any], seconds: float) -> list[Any]:
    """Take all locks, or those that are free when the time is over; return them.

    While it waits for a lock, it holds none for which another thread might wait.
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
    """Have every later call raise StateError, and also every read from disk of a pass that has begun."""
    engine.gate.refused = True
    engine.refused = f"{why}: open the store {engine.path!r} here, with mode='r' or a stream of its own"

    def refuse() -> NoReturn:
        raise StateError(engine.refused)

    for stream in engine.streams:
        for column in stream.disk.columns.values():
            column.still_current = refuse


def next_generator(engine: Engine) -> np.random.Generator:
    """Return the generator for the next copy of a store; the copy counts as a fork."""
    _forks[engine] = _forks.get(engine, 0) + 1
    return reseeded(engine.rng, _forks[engine])


at_fork(before=_before, in_parent=_after_in_parent, in_child=_after_in_child)
