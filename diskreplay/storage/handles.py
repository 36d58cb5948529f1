"""The shards that are kept open: one pool of files for the whole process.

Each column has a :class:`Handles`, its open files by shard. What they hold together is bounded by the pool: a share of
the descriptors that the system allows, looked at whenever a file is to be opened. Where it is full, the file that was
used least recently is closed.

A file that is needed for longer than the moment is on *loan*. It stays open as long as somebody has the :class:`Loan`,
whatever becomes of the column or of the file's name, and the pool closes others.

Files belong to their columns and the pool refers to them weakly: a column that goes takes its files with it.

All threads may use the pool; a :class:`Handles` is guarded by the lock of its buffer. Every step leaves a state that is
right, so that an interrupt may come between any two: at worst a file is not counted until it is used again.
"""

from __future__ import annotations

import collections
import itertools
import resource
import weakref
from collections.abc import Callable, Collection, Iterable

from diskreplay.forks import at_fork
from diskreplay.interrupts import Lock
from diskreplay.storage.files import File

LEAST_FILES = 16
MOST_FILES = 4096
MOST_LOOKED_AT = 64
"""The number of files that are looked at to close one that is not on loan."""


def limit() -> int:
    """Return how many files the pool may keep open: half of what the process may; the rest is the program's own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else min(max(soft // 2, LEAST_FILES), MOST_FILES)


class Loan:
    """A promise that keeps a file open.

    Attributes:
        file: the file that is on loan.
        used: since the pool looked at it last, by who took it from :attr:`PooledFile.standing`.
    """

    __slots__ = ("__weakref__", "file", "used")

    def __init__(self, file: File) -> None:
        self.file = file
        self.used = False


class PooledFile:
    """A file that the pool may close, after which ``file`` is None.

    Attributes:
        file: the file that is open.
        standing: the loan that was given last, until the pool takes it back; whoever has read it from here has the
            file on loan, without the pool's lock.
    """

    __slots__ = ("__weakref__", "_loan", "file", "standing")

    def __init__(self, file: File) -> None:
        self.file: File | None = file
        self.standing: Loan | None = None
        self._loan: weakref.ref[Loan] | None = None

    def lend(self) -> Loan | None:
        """Return the file on loan, or None if it was closed; the caller holds the pool's lock."""
        loan = self._loan() if self._loan is not None else None
        if loan is None and self.file is not None:
            loan = Loan(self.file)
            self._loan = weakref.ref(loan)
        self.standing = loan
        return loan

    def close(self) -> bool:
        """Close the file unless it is on loan, and return True if it was not; the caller holds the pool's lock."""
        self.standing = None  # first: who has read it before keeps the loan alive, and who reads it now asks the pool
        if self._loan is not None and self._loan() is not None:
            return False
        self.file = None
        return True


class Pool:
    """The pool of the open files of all columns, which closes those that were used least recently.

    Attributes:
        limit: a function that returns the number of files that may be open.
    """

    def __init__(self, limit: Callable[[], int] = limit) -> None:
        self.limit = limit
        self.renew_lock()
        self._recent: collections.OrderedDict[int, weakref.ref[PooledFile]] = collections.OrderedDict()
        """The files by the ids of their objects, the least recently used first; some may be closed, or gone."""

    def __len__(self) -> int:
        """Return the number of open files."""
        with self._lock:
            return sum(
                pooled is not None and pooled.file is not None for pooled in [ref() for ref in self._recent.values()]
            )

    def renew_lock(self) -> None:
        """Renew the lock in a forked child: a thread that is not there any more may have held the old one."""
        self._lock = Lock("the open files")

    def use(self, files: Iterable[PooledFile]) -> list[Loan]:
        """Return files on loan, as the most recently used ones, up to the first that was closed."""
        loans: list[Loan] = []
        with self._lock:
            for pooled in files:
                loan = pooled.lend()
                if loan is None:
                    break
                self._recent[id(pooled)] = weakref.ref(pooled)
                self._recent.move_to_end(id(pooled))
                loans.append(loan)
        return loans

    def make_room(self) -> bool:
        """Close the least recently used until one more file may be opened; return False if too many are on loan."""
        most = self.limit()
        if len(self._recent) < most:  # as mostly: without the lock
            return True
        with self._lock:
            looked_at = 0
            while looked_at < MOST_LOOKED_AT:
                if len(self._recent) < most:
                    return True
                key, ref = next(iter(self._recent.items()))
                if self._was_used(ref):
                    self._recent.move_to_end(key)
                else:
                    self._close(key, ref)
                    looked_at += 1
            return False

    def _was_used(self, ref: weakref.ref[PooledFile]) -> bool:
        """Tell whether a file was used since the last look by a reader that did not tell the pool."""
        pooled = ref()
        loan = pooled.standing if pooled is not None else None
        used = loan is not None and loan.used
        if loan is not None:
            loan.used = False
        return used

    def shed(self) -> bool:
        """Close the half that was used least recently; return False if nothing could be closed."""
        with self._lock:
            before = list(self._recent.items())
            closed = 0
            for key, ref in before:
                closed += self._close(key, ref)
                if 2 * closed >= len(before):
                    break
            return closed > 0

    def _close(self, key: int, ref: weakref.ref[PooledFile]) -> bool:
        """Close one file, unless it is on loan and so in use; return True if it was open."""
        pooled = ref()
        was_open = pooled is not None and pooled.file is not None
        closed = pooled is None or pooled.close()
        self._recent.pop(key, None)
        if not closed:
            self._recent[key] = ref
        return was_open and closed


POOL = Pool()
at_fork(in_child=POOL.renew_lock)


class Handles:
    """The open files of one column, by shard; the buffer's lock guards every call."""

    def __init__(self) -> None:
        self.files: dict[int, PooledFile] = {}
        """The files by shard; some may be closed."""

    def lend(self, shard: int) -> Loan | None:
        """Return the file of a shard if it is open, as the most recently used one, or None."""
        return self.lend_first([shard]).get(shard)

    def lend_first(self, shards: Collection[int]) -> dict[int, Loan]:
        """Return the files of these shards as :meth:`lend`, up to the first that is not open."""
        files = list(map(self.files.__getitem__, itertools.takewhile(self.files.__contains__, shards)))
        return dict(zip(shards, POOL.use(files), strict=False)) if files else {}

    def keep(self, opened: dict[int, PooledFile]) -> None:
        """Take in files that were opened, by shard."""
        self.files.update(opened)

    def drop_below(self, shard: int) -> None:
        """Close the files of the shards below one, but for those on loan."""
        self.files = {known: pooled for known, pooled in self.files.items() if known >= shard}

    def close(self) -> None:
        """Close all files but those on loan."""
        self.files = {}
