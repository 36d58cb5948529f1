"""The shards that are kept open: one pool of files for the whole process.

Each column has a :class:`Handles`, its open files by shard. What they hold together is bounded by the pool: a share of
the descriptors that the system allows, looked at whenever a file is to be opened. Where it is full, the file that was
used least recently leaves it.

A file is closed when nobody refers to it any more. So who reads holds the file itself, and it stays open whatever
becomes of the pool, the column, or the file's name. The pool refers to columns weakly: one that goes takes its files
with it.

All threads may use the pool, without a lock: each step is one operation of a dict, which no other thread divides. Each
step leaves a state that is right, so that an interrupt may come between any two: at worst a file is not counted until
it is used again. A :class:`Handles` is guarded by the lock of its buffer, but the pool may close any file at any time.
"""

from __future__ import annotations

import collections
import contextlib
import resource
import weakref
from collections.abc import Callable

from diskreplay.storage.files import File

LEAST_FILES = 16
MOST_FILES = 4096


def limit() -> int:
    """Return how many files the pool may keep open: half of what the process may; the rest is the program's own."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_FILES if soft == resource.RLIM_INFINITY else min(max(soft // 2, LEAST_FILES), MOST_FILES)


class Pool:
    """The order in which the files of all columns were used.

    Attributes:
        limit: a function that returns the number of files that may be open.
    """

    def __init__(self, limit: Callable[[], int] = limit) -> None:
        self.limit = limit
        self._recent: collections.OrderedDict[tuple[int, int], weakref.ref[Handles]] = collections.OrderedDict()
        """The columns by themselves (``id``) and shard, the least recently used first; some files may be closed."""

    def __len__(self) -> int:
        """Return the number of open files."""
        columns = [(ref(), shard) for (_, shard), ref in list(self._recent.items())]
        return sum(column is not None and shard in column.files for column, shard in columns)

    def most_held(self) -> int:
        """Return how many files a batch may hold, and read from besides: both together are within the limit."""
        return max(self.limit() // 2, 1)

    def note(self, column: Handles, shard: int) -> None:
        """Note a file as the one that was used most recently."""
        key = id(column), shard
        self._recent.pop(key, None)
        self._recent[key] = weakref.ref(column)

    def make_room(self, files: int) -> None:
        """Close those that were used least recently until so many more may be opened."""
        most = self.limit() - files
        while len(self._recent) > most and self._close_one():
            pass

    def shed(self) -> bool:
        """Close the half that was used least recently; return False if none is open."""
        half = (len(self._recent) + 1) // 2
        return sum(self._close_one() for _ in range(half)) > 0

    def _close_one(self) -> bool:
        """Close the file that was used least recently; return False if there is none."""
        with contextlib.suppress(KeyError):
            (_, shard), ref = self._recent.popitem(last=False)
            column = ref()
            if column is not None:
                column.files.pop(shard, None)
            return True
        return False


POOL = Pool()


class Handles:
    """The open files of one column, by shard."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}

    def get(self, shard: int) -> File | None:
        """Return the file of a shard, from now on the most recently used one, or None if it is not open."""
        file = self.files.get(shard)
        if file is not None:
            POOL.note(self, shard)
        return file

    def keep(self, opened: dict[int, File]) -> None:
        """Take in files that were opened, by shard."""
        self.files.update(opened)
        for shard in opened:
            POOL.note(self, shard)

    def drop_below(self, shard: int) -> None:
        """Give up the files of the shards below one."""
        for known in list(self.files):
            if known < shard:
                self.files.pop(known, None)

    def close(self) -> None:
        """Give up all files."""
        self.files.clear()
