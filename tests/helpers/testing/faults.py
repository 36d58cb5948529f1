"""A file system that records every operation, and fails or dies at the one it is told to."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
import weakref
from collections.abc import Callable, Collection, Sequence

from diskreplay.storage.files import File, FileLock, Files, Kind
from diskreplay.storage.local_files import LocalFiles

WRITES = ("open_write", "pwrite", "truncate", "sync", "mkdir", "rename", "unlink", "rmdir", "sync_dir")
"""The names of the operations that may change something."""
READS = ("open_read", "read", "pread", "list", "size", "kind")
"""The names of the operations that change nothing; ``lock``, ``lock_holder`` and ``is_at`` are neither."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation on the file system.

    Attributes:
        name: the name of a method of :class:`diskreplay.storage.files.Files` or ``File``; ``open_read`` and
            ``open_write`` for ``open``.
        path: the path of the file or directory; of a rename, the source.
        size: bytes read or written, or the new size; 0 where that means nothing.
        target: the target of a rename.
    """

    name: str
    path: str
    size: int = 0
    target: str = ""


class Crash(BaseException):
    """Raised where the simulated process died, which is no error that a program could handle."""


class FaultyFiles(Files):
    """Another file system with faults, as ``files=`` of ``ReplayBuffer.create`` and ``open``.

    Every write reaches the other file system in two halves, each an operation of its own: failing or dying at the
    second one tears it, as a full disk or a kill does.

    Attributes:
        inner: the file system below.
        operations: all since the last :meth:`heal`, those that failed among them.
        decide: asked before each operation: an errno to fail with, or None to go on; may raise :class:`Crash`.
        crashed: True if it did; then every further operation raises it too, and the locks are given back.
    """

    def __init__(self, inner: Files | None = None) -> None:
        """Take another file system, the local one if ``inner`` is None."""
        self.inner: Files = LocalFiles() if inner is None else inner
        self.crashed = False
        self._ask = threading.Lock()
        self._locks: weakref.WeakSet[FileLock] = weakref.WeakSet()  # a lock that is forgotten is free
        self.heal()

    def heal(self) -> None:
        """End all faults, and forget the recorded operations."""
        self.decide: Callable[[Operation], int | None] = lambda operation: None
        self.operations: list[Operation] = []

    def count(self, names: Collection[str] = WRITES) -> int:
        """Return how many operations of these names were recorded."""
        return sum(operation.name in names for operation in self.operations)

    def fail_at(
        self, count: int, number: int = errno.ENOSPC, names: Collection[str] = WRITES, times: int | None = None
    ) -> None:
        """Heal, then have the operation with this index among those of these names fail, and those after it.

        Args:
            count: operations that still succeed.
            number: errno.
            names: the names of the operations that are counted and fail.
            times: the number of calls that fail; all from then on if None.
        """
        passed = 0

        def decide(operation: Operation) -> int | None:
            nonlocal passed
            passed += operation.name in names
            late = times is not None and passed > count + times
            return number if operation.name in names and passed > count and not late else None

        self.heal()
        self.decide = decide

    def crash_at(self, count: int, names: Collection[str] = WRITES) -> None:
        """Heal, then raise Crash at the operation with this index among those of these names, and every later one."""
        passed = 0

        def decide(operation: Operation) -> None:
            nonlocal passed
            passed += operation.name in names
            if passed > count:
                raise Crash(operation)

        self.heal()
        self.decide = decide

    def ask(self, name: str, path: str, size: int = 0, target: str = "") -> None:
        """Record an operation, and raise what was asked for."""
        with self._ask:
            operation = Operation(name, path, size, target)
            if self.crashed:
                raise Crash(operation)
            self.operations.append(operation)
            try:
                number = self.decide(operation)
            except Crash:
                self.crashed = True
                for lock in list(self._locks):
                    lock.release()
                raise
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        self.ask("open_write" if write else "open_read", path)
        return FaultyFile(self.inner.open(path, write=write), path, self)

    def read(self, path: str) -> bytes:
        self.ask("read", path)
        return self.inner.read(path)

    def list(self, path: str) -> list[str]:
        self.ask("list", path)
        return self.inner.list(path)

    def size(self, path: str) -> int | None:
        self.ask("size", path)
        return self.inner.size(path)

    def kind(self, path: str) -> Kind | None:
        self.ask("kind", path)
        return self.inner.kind(path)

    def mkdir(self, path: str) -> None:
        self.ask("mkdir", path)
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.ask("rename", source, target=target)
        self.inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self.ask("unlink", path)
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self.ask("rmdir", path)
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.ask("sync_dir", path)
        self.inner.sync_dir(path)

    def lock(self, path: str) -> FileLock | None:
        self.ask("lock", path)
        if self.inner.size(path) is None:
            self.ask("open_write", path)
        lock = self.inner.lock(path)
        if lock is None:
            return None
        self._locks.add(lock)
        return FaultyLock(lock, self)

    def lock_holder(self, path: str) -> str:
        self.ask("lock_holder", path)
        return self.inner.lock_holder(path)


class FaultyLock:
    """A lock of a :class:`FaultyFiles`; see :class:`diskreplay.storage.files.FileLock`."""

    def __init__(self, inner: FileLock, files: FaultyFiles) -> None:
        self._inner = inner
        self._files = files

    def release(self) -> None:
        self._inner.release()

    def held(self) -> bool:
        return self._inner.held()

    def is_at(self, path: str) -> bool:
        self._files.ask("is_at", path)
        return self._inner.is_at(path)


class FaultyFile(File):
    """An open file of a :class:`FaultyFiles`."""

    def __init__(self, inner: File, path: str, files: FaultyFiles) -> None:
        self._inner = inner
        self._path = path
        self._files = files

    def pread(self, size: int, offset: int, /) -> bytes:
        self._files.ask("pread", self._path, size)
        return self._inner.pread(size, offset)

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        data = b"".join(parts)
        half = len(data) // 2
        for start, part in ((0, data[:half]), (half, data[half:])):
            if part or not data:
                self._files.ask("pwrite", self._path, len(part))
                self._inner.pwrite([part], offset + start)

    def truncate(self, size: int, /) -> None:
        self._files.ask("truncate", self._path, size)
        self._inner.truncate(size)

    def sync(self) -> None:
        self._files.ask("sync", self._path)
        self._inner.sync()

    def size(self) -> int:
        self._files.ask("size", self._path)
        return self._inner.size()
