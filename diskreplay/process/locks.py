"""Locks, and the holding back of signals while something is changed, so that their handlers run between changes.

A Python handler, such as the one that raises KeyboardInterrupt, runs between two steps of the main thread, whatever
that is doing. It may end what it interrupts, or use a buffer and return; neither may happen in the middle of a change.
So each change made in Python, and each draw, is a block that holds signals back:

1. Where the block begins, each signal that has a Python handler now gets another, which only takes a note. Signals that
   are ignored, that end the process at once, or whose handlers are not Python's stay as they are. In other threads
   Python runs no handlers, and nothing is done.
2. Where the block ends, the handlers come back, and run for the signals that came; each once, however often it came, as
   the system does with signals that wait.
3. Blocks may stand inside each other: only the outermost one does that.

The block is :class:`held_back` itself, or the one of a :class:`Lock`. The main thread has signals held back as long as
it holds any such lock, so a handler never waits for a lock that waits for the handler's end. While the main thread
waits for its first lock handlers run: it tries the lock with signals held back, for a moment each time.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import os
import threading
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, cast

from diskreplay.errors import StateError
from diskreplay.native import core

Call = TypeVar("Call", bound=Callable[..., Any])

POLL_SECONDS = 0.02
"""The seconds that the main thread waits for a lock before it lets handlers run."""
NUMBERS = tuple(sorted(_signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}))
"""The signals that can have handlers."""
ENDING = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)
"""The signals that ask to end."""

# The functions of C alone: those of the module `signal` convert to enumerations, which takes several times as long.
_handler, _install = _signal.getsignal, _signal.signal

_main = threading.main_thread().ident
_held = False
"""True if the main thread is in a block."""
_replaced: dict[int, Any] = {}
"""The handlers that the outermost of these blocks has to put back, by the numbers of their signals."""
_seen: list[Any] = []
"""The handlers of NUMBERS at the last look."""
_python: list[tuple[int, Any]] = []
"""The signals whose handlers at the last look were Python's, with these."""
_came: dict[int, FrameType | None] = {}
"""The signals that wait, in the order in which they came."""
helpers: dict[int, tuple[Lock, ...]] = {}
"""The threads for which others wait while they hold locks, each with the only locks that it waits for itself."""


def in_main_thread() -> bool:
    """Tell whether this thread is the one that handles signals."""
    return get_ident() == _main


@contextlib.contextmanager
def waiting_only_for(*locks: Lock) -> Iterator[None]:
    """Have this thread wait for no other :class:`Lock` in a block: others wait for it while they hold some."""
    thread = get_ident()
    before = helpers.get(thread)
    helpers[thread] = locks
    try:
        yield
    finally:
        if before is None:
            helpers.pop(thread, None)  # another thread may get its number
        else:
            helpers[thread] = before


def _note(number: int, frame: FrameType | None) -> None:
    _came.setdefault(number, frame)


def _hold() -> None:
    """Begin an outermost block, in the main thread."""
    global _held, _replaced, _seen, _python
    if (handlers := list(map(_handler, NUMBERS))) != _seen:
        # In a handler that runs while an outer block begins or ends, some are noted already, by that block.
        found = zip(NUMBERS, handlers, strict=True)
        _seen, _python = handlers, [(number, each) for number, each in found if callable(each) and each is not _note]
    replaced = {}
    try:
        for number, handler in _python:
            replaced[number] = handler  # should another handler end this between replacing and keeping
            replaced[number] = _install(number, _note)  # one that ran since the look may have installed another
    except BaseException:  # out of a handler that ran before it was replaced
        _put_back(replaced)
        raise
    _replaced, _held = replaced, True


def _let_go() -> None:
    """End an outermost block: the handlers are back, and those of the signals that came run."""
    global _held, _replaced
    replaced, _replaced, _held = _replaced, {}, False
    try:
        _put_back(replaced)
    finally:
        if _came:
            _deliver()


def _put_back(replaced: dict[int, Any]) -> None:
    """Give signals their handlers back, all of them, whatever one that is back raises meanwhile."""
    try:
        for number, handler in replaced.items():
            if _handler(number) is _note:  # else the block has installed another
                _install(number, handler)
    except BaseException:
        _put_back(replaced)
        raise


def _deliver() -> None:
    """Run the handlers of the signals that came, all of them, whatever one raises."""
    for number in [*_came]:
        handler = _handler(number)
        if handler is _note:  # an outer block begins or ends, and delivers it
            continue
        frame = _came.pop(number, None)
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException:
            _deliver()
            raise


def _forked() -> None:
    """Forget, in a forked child, signals that are the parent's, and a main thread that is not there."""
    global _main, _held, _replaced
    _came.clear()
    helpers.clear()
    if get_ident() != _main:
        replaced, _replaced = _replaced, {}
        _main, _held = get_ident(), False
        _put_back(replaced)


os.register_at_fork(after_in_child=_forked)


class held_back:  # reads as a word: `with held_back():`
    """A block that no handler of a signal interrupts; the handlers of signals that came run at its end."""

    __slots__ = ("_holds",)

    def __enter__(self) -> None:
        self._holds = not _held and get_ident() == _main
        if self._holds:
            _hold()

    def __exit__(self, *exception: object) -> None:
        if self._holds:
            _let_go()


def uninterrupted(call: Call) -> Call:
    """Make each call of ``call`` a block, as it makes several changes."""

    @functools.wraps(call)
    def held(*arguments: Any, **options: Any) -> Any:
        with held_back():
            return call(*arguments, **options)

    return cast(Call, held)


@contextlib.contextmanager
def noted() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a signal asked to end, which does nothing else while the block runs.

    Signals that are ignored, as SIGHUP under nohup, stay so: whoever started the process wants it to go on. In a thread
    that is not the main one the function returns False.
    """
    came: list[int] = []
    before = {number: _handler(number) for number in ENDING if get_ident() == _main}
    heard = [number for number, handler in before.items() if handler not in (_signal.SIG_IGN, None)]
    try:
        for number in heard:
            _install(number, lambda number, frame: came.append(number))
        yield lambda: bool(came)
    finally:
        for number in heard:
            _install(number, before[number])


class Lock:
    """A reentrant lock; as long as the main thread holds it, signals wait.

    A thread can come in a second time: from code that a change calls, a finalizer that the collector runs or a function
    of the user's own. StateError keeps it out of an :attr:`exclusive` block, and out of a lock that has to be taken
    before one that the thread holds; before anything has changed.

    Args:
        what: the words for the lock, for messages.
        then: a lock that may be taken while this one is held; never the other way round.
        reentrant: the lock below, of which the calls of the core see whether somebody holds it; a new one if None.
    """

    __slots__ = ("_busy", "_holds", "_lock", "_then", "_what", "change", "exclusive")

    def __init__(self, what: str, then: Lock | None = None, reentrant: core.RLock | None = None) -> None:
        self._what = what
        self._lock = core.RLock() if reentrant is None else reentrant
        self._then = then
        self._busy = False
        self._holds = False
        """True if signals are let go when this lock is; only its holder sets and reads it."""
        self.exclusive = Block(self)
        """The block of what is not reentrant, such as a draw."""
        self.change = Block(self)
        """The block of a change, whose ``change.stop`` is called if the change is cut short."""

    @property
    def owned(self) -> bool:
        """True if this thread holds it."""
        return self._lock._is_owned()

    def acquire(self, timeout: float = -1) -> bool:
        """Take it or give up after ``timeout`` seconds, and return which; raise StateError if this thread must not."""
        lock, then = self._lock, self._then
        if lock._is_owned():
            if self._busy or (then is not None and then._busy and then._lock._is_owned()):
                raise self._refused()
            return lock.acquire()
        if then is not None and then._lock._is_owned():
            raise self._refused()
        if _held or get_ident() != _main:
            if lock.acquire(False) or (self._may_wait() and lock.acquire(True, timeout)):
                self._holds = False
                return True
            return False
        _hold()
        if lock.acquire(False):
            self._holds = True
            return True
        _let_go()
        return self._wait(timeout)

    __enter__ = acquire

    def _wait(self, timeout: float) -> bool:
        """Take it as the first lock of the main thread: while that waits, handlers run now and then."""
        deadline = None if timeout < 0 else time.monotonic() + timeout
        while True:
            left = POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic())
            if left <= 0:
                return False
            _hold()
            if self._lock.acquire(True, left):
                self._holds = True
                return True
            _let_go()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        lock, holds = self._lock, self._holds
        lock.release()
        if holds and not lock._is_owned():
            _let_go()

    def release(self) -> None:
        """Give it back."""
        self.__exit__(None, None, None)

    def renew(self) -> None:
        """Make it free in a forked child: a thread that is not there held it."""
        self._lock._at_fork_reinit()
        self._busy = False

    def _may_wait(self) -> bool:
        """Return True; raise StateError in a thread for which the holder of the lock may be waiting."""
        if self not in helpers.get(get_ident(), (self,)):
            raise StateError(
                f"{self._what}: this call came from a finalizer that the garbage collector ran in a thread of "
                "diskreplay, while another thread was using the buffer; call it in a thread of the program's own"
            )
        return True

    def _refused(self) -> StateError:
        return StateError(
            f"{self._what}: this call came out of another one of this thread that is under way, such as from a "
            "finalizer, a view or a sampler that the other call ran; call it when that has returned"
        )


class Block:
    """A block of a :class:`Lock`: a thread in it does not come into any block of the lock again.

    Attributes:
        stop: a function, called with what ends the block half-way, before the lock is released; None for none.
    """

    __slots__ = ("_lock", "stop")

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.stop: Callable[[object], None] | None = None

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        lock._busy = True

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        lock = self._lock
        if kind is not None and self.stop is not None:
            self.stop(error)
        lock._busy = False
        lock.__exit__(kind, error, trace)
