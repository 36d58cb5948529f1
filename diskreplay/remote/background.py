"""Pushes in the background: a thread brings the remote store up to each commit.

The thread is there while there is something to push. Nothing waits for it but :meth:`BackgroundPush.wait`: a network
that fails delays pushes, and never a commit. What waits stands on the disk, so that it is bounded by the window; rows
that are evicted before they were sent are counted.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import time
from collections.abc import Callable
from typing import Any

from diskreplay.errors import RemoteConflictError, RemoteError, StateError
from diskreplay.process.background import start_thread
from diskreplay.process.locks import Lock
from diskreplay.remote.push import Push
from diskreplay.storage.commit import Commit

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""The seconds before a push that failed is tried again: the first time, and at most.

Each pause is drawn from up to twice as long as the one before.
"""


class BackgroundPush:
    """The pushes of one stream, begun whenever there is a commit.

    Args:
        push: the push of the stream; nobody else uses it.
        push_seconds: the least seconds between the beginnings of two pushes, unless somebody waits: each push sends
            whole what still grows.
    """

    def __init__(self, push: Push, push_seconds: float = 0.0) -> None:
        self._push = push
        self.url = push.url
        self._push_seconds = push_seconds
        self._begun = -math.inf
        """The time at which the last push began."""
        self._waiting: list[queue.SimpleQueue[None]] = []
        """The queues that wake threads waiting for a push: such a thread holds no lock, so that handlers may run."""
        self._process = os.getpid()
        self.lock = Lock(f"the pushes to {push.url!r}")
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the thread that pushes: it looks again what there is to do."""
        self._newest: Commit | None = None
        self._waits_since = time.monotonic()
        """The time at which this process learnt of the oldest commit that is not remote."""
        self._asked = 0
        """The number of times that something was committed, or waited for."""
        self._done = 0
        """The part of that number that the last push has seen."""
        self._failures = 0
        self._error: Exception | None = None
        self._said = ""
        """The conflict that was last warned of."""
        self._unsaid = ""
        """A conflict that was not warned of yet, whatever was tried since without an end."""
        self._taken: set[str] = set()
        """The names of checkpoints that were warned of."""
        self._ended = False
        self._left: Exception | None = None
        """The error that kept the rest from being sent at the end."""
        self._at_work = False
        """True if there is a thread."""

    def check_going_back(self, timeline: int) -> None:
        """Raise what :meth:`Push.check_going_back` raises; nothing was committed yet."""
        self._push.check_going_back(timeline)

    def committed(self, commit: Commit) -> None:
        """Note that there is a newer commit, or checkpoint, and start a thread if none is at work."""
        if os.getpid() != self._process:
            return  # a forked process writes nothing, and pushes nothing
        with self.lock:
            if self._newest is None:
                self._push.sent.begin = commit.begin
            if self._newest is None or self._push.sent.sequence >= self._newest.sequence:
                self._waits_since = time.monotonic()
            self._newest = commit
            self._ask()

    def _ask(self) -> None:
        self._asked += 1
        if not self._ended and not self._at_work:
            self._error = None  # of an attempt that is over: what was in the way may be gone
            try:
                start_thread(self._run, "diskreplay-push")
                self._at_work = True
            except StateError as error:  # the next commit tries again
                self._error = error
        self._wake()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until what was committed is remote.

        Raises RemoteError with the last failure when ``timeout`` seconds have passed; at once RemoteConflictError, and
        what else no second try would mend.
        """
        if os.getpid() != self._process:
            raise StateError("this process was forked from the one that pushes: open a stream of its own")
        stop = None if timeout is None else time.monotonic() + timeout
        woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        with self.lock:
            self._waiting.append(woken)
            if not isinstance(self._error, RemoteError):
                self._error = None  # of an attempt that is over: there may be room on the disk now
            self._ask()
            asked = self._asked
        try:
            while (left := self._still(asked, stop, timeout)) > 0:
                with contextlib.suppress(queue.Empty):
                    woken.get(timeout=left)
        finally:
            with self.lock:
                self._waiting.remove(woken)

    def _still(self, asked: int, stop: float | None, timeout: float | None) -> float:
        """Return the seconds to wait before looking again, 0 if it is done; raise what :meth:`wait` does."""
        with self.lock:
            if self._done < asked:
                if isinstance(self._error, RemoteConflictError):
                    self._said, self._unsaid = str(self._error), ""
                    raise RemoteConflictError(str(self._error)) from self._error
                if self._error is not None and not isinstance(self._error, RemoteError):
                    raise self._error
                if self._ended:
                    raise StateError("the buffer is closed, and pushes no more")
                left = None if stop is None else stop - time.monotonic()
                if left is not None and left <= 0:
                    raise RemoteError(
                        f"not everything is pushed after {timeout:g} seconds"
                        + (f": {self._error}" if self._error else "; try again")
                    ) from self._error
                return left if left is not None else 1.0
        return 0.0

    def _wake(self) -> None:
        """Have all threads look again that wait for something; the caller holds the lock."""
        for woken in (self._woken, *self._waiting):
            if woken.empty():
                woken.put(None)

    def new_conflict(self) -> str | None:
        """Return, once, a conflict that no second try would mend."""
        with self.lock:
            if not self._unsaid:
                return None
            self._said, self._unsaid = self._unsaid, ""
            return self._said

    def newly_taken(self) -> tuple[str, ...]:
        """Return, once, the names of checkpoints that are not remote because another's has the name there."""
        with self.lock:
            found = tuple(name for name in self._push.sent.taken if name not in self._taken)
            self._taken = set(self._push.sent.taken)
            return found

    def stats(self) -> dict[str, Any]:
        """Return as JSON what was sent, how far that is behind, and what failed."""
        sent = self._push.sent
        with self.lock:
            newest, behind, lost = self._newest, 0, sent.lost_rows
            if newest is not None and newest.sequence > sent.sequence:
                reached = sent.reached(newest)
                behind, lost = newest.end - max(reached, newest.begin), lost + max(0, newest.begin - reached)
            return {
                "url": self.url,
                "pushed_rows": sent.end,
                "lag_rows": behind,
                "lag_seconds": round(time.monotonic() - self._waits_since, 3) if behind else 0.0,
                "lost_rows": lost,
                "taken_checkpoints": list(sent.taken),
                "requests": sent.requests,
                "puts": sent.puts,
                "sent_bytes": sent.sent_bytes,
                "failures": self._failures,
                "error": None if self._error is None else str(self._error),
            }

    def end(self, timeout: float | None) -> Exception | None:
        """Push what is left within ``timeout`` seconds, then no more; return the error that stopped it, or None."""
        if os.getpid() != self._process:
            return None
        left = None
        try:
            if not self._ended:
                self.wait(timeout)  # interrupted, it is not the end
        except Exception as error:
            left = error
        with self.lock:
            if not self._ended:
                self._ended, self._left = True, left
                self._wake()
            return self._left

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            with self.lock:
                if self._ended or self._done == self._asked:
                    self._at_work = False
                    return
                asked = self._asked
                early = 0.0 if self._waiting else self._begun + self._push_seconds - time.monotonic()
                if early <= 0:
                    self._begun = time.monotonic()
            if early > 0:
                self._pause(early, lambda: bool(self._waiting))
                continue
            try:
                self._push.run()
            except RemoteConflictError as error:
                self._failed(error, last=True)
                return
            except Exception as error:
                self._failed(error)
                pause = min(LONGEST_PAUSE, random.uniform(pause, 2 * pause))
                self._pause(pause, lambda: self._asked != asked)  # noqa: B023
            else:
                pause = FIRST_PAUSE
                with self.lock:
                    self._error, self._unsaid = None, ""
                    self._done = asked
                    self._wake()

    def _pause(self, seconds: float, over: Callable[[], bool]) -> None:
        """Wait, at most ``seconds``, until it is ``over``, or all is."""
        stop = time.monotonic() + seconds
        while not (self._ended or over()) and (left := stop - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._woken.get(timeout=left)

    def _failed(self, error: Exception, last: bool = False) -> None:
        with self.lock:
            if last:
                self._at_work = False
            self._failures += 1
            self._error = error
            if isinstance(error, RemoteConflictError) and str(error) != self._said:
                self._unsaid = str(error)
            self._wake()
