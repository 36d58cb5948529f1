"""The holding back of signals while something is changed, so that their handlers run between changes.

A Python handler, such as the one that raises KeyboardInterrupt, runs between two steps of the main thread, whatever
that is doing. One that ends what it interrupts, and one that returns after it used a buffer, must not come in the
middle of a change. So each change, and each draw, is a block that holds signals back:

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
import gc
import threading
import time
from _thread import get_ident
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar, cast

from diskreplay.errors import StateError
from diskreplay.native import core
from diskreplay.process.forks import at_fork

Call = TypeVar("Call", bound=Callable[..., Any])

POLL_SECONDS = 0.02
"""The seconds that the main thread waits for a lock before it lets handlers run."""
NUMBERS = tuple(sorted(_signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}))
"""The signals that can have handlers."""

Handlers = tuple[tuple[int, Any], ...]
"""The numbers of signals, and a handler of each."""

# The functions of C alone: those of the module `signal` convert to enumerations, which takes several times as long.
_handler, _install = _signal.getsignal, _signal.signal

_main = threading.main_thread().ident
_held = False
"""True if the main thread is in a block."""
_replaced: Handlers = ()
"""The handlers that the outermost of these blocks has to put back."""
_noted: dict[int, Any] = {}
"""The handler that each signal had when it was last replaced."""
_came: dict[int, FrameType | None] = {}
"""The signals that wait, in the order in which they came."""
_seen: list[Any] = []
"""The handlers of NUMBERS at the last look."""
_python: Handlers = ()
"""The handlers at the last look that are Python's, with their signals."""


_workers: dict[int, tuple[Lock, ...]] = {}
"""The threads that others wait for while they hold locks, each with the locks that it may wait for all the same."""


def never_wait() -> None:
    """Have this thread never wait for a :class:`Lock`: others wait for it while they hold some."""
    _workers[get_ident()] = ()


@contextlib.contextmanager
def waiting_only_for(*locks: Lock) -> Iterator[None]:
    """Have this thread wait for no other :class:`Lock` in a block: others wait for it while they hold some."""
    thread = get_ident()
    before = _workers.get(thread)
    _workers[thread] = locks
    try:
        yield
    finally:
        if before is None:
            _workers.pop(thread, None)  # another thread may get its number
        else:
            _workers[thread] = before


def _note(number: int, frame: FrameType | None) -> None:
    _came.setdefault(number, frame)


def _hold() -> None:
    """Begin an outermost block, in the main thread."""
    global _held, _replaced
    if list(map(_handler, NUMBERS)) != _seen:
        _look()
    replaced = _python
    try:
        for number, handler in replaced:
            if (newer := _install(number, _note)) is not handler:  # one that ran since the look has installed it
                _noted[number] = newer
                replaced = tuple((n, newer if n == number else handler) for n, handler in replaced)
    except BaseException:  # out of a handler that ran before it was replaced
        _put_back(replaced)
        raise
    _replaced, _held = replaced, True


def _look() -> None:
    """Find the signals that have Python handlers."""
    global _seen, _python
    _seen = list(map(_handler, NUMBERS))
    # In a handler that runs while an outer block begins or ends, some are noted already, by that block.
    _python = tuple(
        (number, handler) for number, handler in zip(NUMBERS, _seen, strict=True)
        if callable(handler) and handler is not _note
    )  # fmt: skip
    _noted.update(_python)


def _let_go() -> None:
    """End an outermost block: the handlers are back, and those of the signals that came run."""
    global _held, _replaced
    replaced, _replaced, _held = _replaced, (), False
    try:
        for number, handler in replaced:
            if _handler(number) is _note:  # else the block has installed another
                _install(number, handler)
    except BaseException:  # out of a handler that was back
        _put_back(replaced)
        raise
    finally:
        if _came:
            _deliver()


def _put_back(replaced: Handlers) -> None:
    """Give signals their handlers back, all of them, whatever one that runs meanwhile raises."""
    try:
        for number, handler in replaced:
            if _handler(number) is _note:
                _install(number, handler)
    except BaseException:
        _put_back(replaced)
        raise


def _deliver() -> None:
    """Run the handlers of the signals that came, all of them, whatever one raises."""
    while _came:
        number = next(iter(_came))
        frame = _came.pop(number)
        try:
            if callable(_noted[number]):
                _noted[number](number, frame)
        finally:
            if _came:
                _deliver()


def _forked() -> None:
    """Forget, in a forked child, signals that are the parent's, and a main thread that is not there."""
    global _main, _held, _replaced
    _came.clear()
    _workers.clear()
    if get_ident() != _main:
        replaced, _replaced = _replaced, ()
        _main, _held = get_ident(), False
        _put_back(replaced)


at_fork(in_child=_forked)


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


def uninterrupted(call: Call, block: type[held_back] = held_back) -> Call:
    """Make each call of ``call`` a block, as it makes several changes."""

    @functools.wraps(call)
    def held(*arguments: Any, **options: Any) -> Any:
        with block():
            return call(*arguments, **options)

    return cast(Call, held)


class undisturbed(held_back):
    """A block into which no other code comes on this thread: signals wait, and the garbage collector rests.

    For what is not reentrant and belongs to others, such as imports: finalizers may call anything.
    """

    __slots__ = ()
    _blocks = 0
    """The number of these blocks under way, in all threads."""
    _collects = False
    """True if the collector was on before the first of them."""
    _counting = threading.RLock()

    def __enter__(self) -> None:
        super().__enter__()
        with undisturbed._counting:
            if not undisturbed._blocks:
                undisturbed._collects = gc.isenabled()
                gc.disable()
            undisturbed._blocks += 1

    def __exit__(self, *exception: object) -> None:
        with undisturbed._counting:
            undisturbed._blocks -= 1
            if not undisturbed._blocks and undisturbed._collects:
                gc.enable()
        super().__exit__(*exception)


class Lock:
    """A reentrant lock; as long as the main thread holds it, signals wait.

    Who may come in a second time on the same thread is code that a change calls, a finalizer that the collector runs or
    a function of the user's own. StateError keeps it out of an :attr:`exclusive` block, and out of a lock that has to
    be taken before one that the thread holds; before anything has changed.

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

    def _is_owned(self) -> bool:
        """Tell whether this thread holds it, as threading.Condition asks."""
        return self.owned

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
        if self not in _workers.get(get_ident(), (self,)):
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
