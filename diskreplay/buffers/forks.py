"""Open buffers in a process that was forked: readers go on there, writers refuse, and nobody waits for ever.

1. A fork waits until no other thread is in the middle of anything with a buffer's index in RAM, so that the child's
   copy is whole. After FORK_SECONDS it waits no longer, and the child's copy is not used.
2. Locks that threads of the parent held are free in the child, where those threads are not.
3. The child of a buffer with ``mode="r"`` draws batches of its own: its generator is seeded from the parent's, as it
   was, and from the number of forks of that buffer so far. So children differ from each other and from their parent,
   and with the same seed, the same calls and the same forks they draw the same again.
4. The child of a buffer that writes neither writes nor samples: what its parent commits, evicts and compacts later, it
   would not notice.

Processes that are started without Python's fork (spawn, forkserver, subprocess) have no copy of any buffer.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # see the end of this module
import itertools
import logging  # noqa: F401  # as above
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from diskreplay.errors import StateError

if TYPE_CHECKING:
    from diskreplay.buffers.stored import StoredBuffer

FORK_SECONDS = 30.0

_numbers = itertools.count()
_open: dict[int, weakref.ref[StoredBuffer]] = {}
_forks: weakref.WeakKeyDictionary[StoredBuffer, int] = weakref.WeakKeyDictionary()
"""How often the process was forked since a buffer was opened, or inherited."""
_held = threading.local()
"""``forks`` that this thread is at, one in the handler of a signal that came in another: the buffers that each found,
and those of their locks that it could have."""


def watch(buffer: StoredBuffer) -> None:
    """Makes forks of this process safe for a buffer from now on."""
    number = next(_numbers)
    _open[number] = weakref.ref(buffer, lambda _: _open.pop(number, None))


def opened() -> list[StoredBuffer]:
    """The buffers of this process that are open."""
    found = (reference() for reference in list(_open.values()))
    return [buffer for buffer in found if buffer is not None and not buffer._closed]


def _before() -> None:
    buffers = opened()
    locks = _take([lock for buffer in buffers for lock in _locks(buffer)], FORK_SECONDS)
    for buffer in buffers:
        _forks[buffer] = _forks.get(buffer, 0) + 1
    _held.__dict__.setdefault("forks", []).append((buffers, locks))


def _locks(buffer: StoredBuffer) -> list[Any]:
    """Those that guard what is in RAM."""
    return [buffer._lock, buffer._streams.cache._lock]


def _take(locks: list[Any], seconds: float) -> list[Any]:
    """Takes all of them, or those that are free when the time is over.

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
    buffers, locks = _held.forks.pop()
    for buffer in buffers:
        whole = all(lock in locks for lock in _locks(buffer))
        for lock in (*_locks(buffer), buffer._write_lock):
            if lock not in locks and not lock.owned:
                lock.renew()
        if buffer._streams.writer is not None:
            _refuse(buffer, "this process was forked from the one that writes the stream")
        elif not whole:
            _refuse(buffer, "this process was forked while another thread was using the buffer")
        else:
            buffer._rng.bit_generator.state = _reseeded(buffer._rng, _forks[buffer]).bit_generator.state
        _forks[buffer] = 0
    _release(locks)


def _refuse(buffer: StoredBuffer, why: str) -> None:
    """Has every call that needs more than the numbers in RAM raise StateError, a pass that is under way too."""
    buffer._forked = f"{why}: open the store {buffer.path!r} here, with mode='r' or a stream of its own"

    def refuse() -> NoReturn:
        raise StateError(buffer._forked)

    for stream in buffer._streams:
        for _, column in stream.disk.columns():
            column._still_current = refuse


def next_generator(buffer: StoredBuffer) -> np.random.Generator:
    """The generator of a buffer's next copy, which is counted as a fork is."""
    _forks[buffer] = _forks.get(buffer, 0) + 1
    return _reseeded(buffer._rng, _forks[buffer])


def _reseeded(rng: np.random.Generator, fork: int) -> np.random.Generator:
    """Another generator, which follows from the state of one and the number of the fork."""
    state: Any = rng.bit_generator.state["state"]
    return np.random.Generator(np.random.PCG64([state["state"], state["inc"], fork]))


# What is registered last is called first before a fork, and last after it. Others take locks of theirs before a fork,
# too. Were `logging` imported later, a fork would hold its lock while it waits for a thread that imports numba within a
# batch, and needs that lock. Were `concurrent.futures` imported later, a handler that ran at the end of a fork, and
# forks, would wait for the lock that the first fork holds.
os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
