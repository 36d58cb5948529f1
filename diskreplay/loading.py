"""Compiled code, loaded by a thread of its own while Python goes on.

To import numba and a kernel takes from half a second to many, where nothing is kept of it yet. Whoever can do without
asks for it with :meth:`BackgroundImport.begin`, goes on, and has it some calls later. It is loaded once a process.

A fork waits for the thread: a child in which half of an import is missing could never load it, nor anything that needs
the same modules, and would keep numba's locks for ever. So does the end of a program: a thread that is ended within a
compiler takes the process along.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from diskreplay.errors import CompilerWarning, warn_outside
from diskreplay.forks import at_fork
from diskreplay.interrupts import undisturbed

Code = TypeVar("Code")

POLL_SECONDS = 0.005
FORK_SECONDS = 120.0
"""The longest that a fork waits, in seconds: a fork inside an import that the thread needs would wait for ever."""
IN_BACKGROUND = 1
"""0: who begins waits for the code, instead of going on without."""

_unkept = False
"""Something was compiled that is kept nowhere, of which nobody was told yet."""
_told = False


class BackgroundImport(Generic[Code]):
    """The code that ``load`` returns, called in a thread, or None if this process cannot have it.

    Attributes:
        code: the code, once :meth:`begin` found it loaded; else None.
        missing: True if ``load`` returned None or failed: numba is for some versions of Python and numpy only. Python
            then does the same work.
    """

    def __init__(self, load: Callable[[], Code | None]) -> None:
        self._load = load
        self.code: Code | None = None
        self.missing = False
        self._found: Code | None = None
        self._loading = threading.Lock()
        """Held from the start of the thread to its end."""
        self._thread = 0
        at_fork(before=lambda: self._wait(FORK_SECONDS), in_child=self._forked)

    def begin(self) -> Code | None:
        """Return the code, if it is there; else a thread loads it from now on, if none does."""
        if self.code is None and not self.missing:
            if self._found is None:
                self._start()
                self._wait(0 if IN_BACKGROUND else math.inf)
            if self._found is not None:
                self.code = self._found
                warn_if_unkept()
        return self.code

    def now(self) -> Code | None:
        """Wait for the code and return it."""
        self.begin()
        self._wait()
        return self.begin()

    def _start(self) -> None:
        """Start the thread, if the system has one to give, and none is at it."""
        with undisturbed():
            if not self._loading.acquire(blocking=False):
                return
            if self._found is None and not self.missing:  # nor did one end since that was looked at
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._run, name="diskreplay-compiled", daemon=False).start()
                    return
            self._loading.release()

    def _run(self) -> None:
        self._thread = threading.get_ident()
        try:
            with undisturbed():
                self._found = self._load()
            self.missing = self._found is None
        except MemoryError:  # the next who asks may have more luck
            pass
        except Exception:
            self.missing = True
        finally:
            self._loading.release()

    def _wait(self, seconds: float = math.inf) -> None:
        """Wait while the thread is at it; that one does not wait for itself."""
        end = time.monotonic() + seconds
        while self._loading.locked() and time.monotonic() < end and self._thread != threading.get_ident():
            time.sleep(POLL_SECONDS)

    def _forked(self) -> None:
        """Forget, in a forked child, a thread that was loading after all: it does not exist there."""
        if self._loading.locked():
            self.missing, self._loading = True, threading.Lock()


def unkept() -> None:
    """Note that what is compiled in this process is kept nowhere."""
    global _unkept
    _unkept = True


def warn_if_unkept() -> None:
    """Warns once, in the name of the line of the program that led here, where compiled code is kept nowhere."""
    global _told
    if _unkept and not _told:
        _told = True
        warn_outside(
            "compiled code can be kept nowhere, neither beside the installed package nor in a cache of this account: "
            "each process compiles it again, which takes some seconds; set NUMBA_CACHE_DIR to a folder that can be "
            "written",
            CompilerWarning,
        )
