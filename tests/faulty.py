"""A file system that fails on demand, behind the store's own seam."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

from diskreplay.storage.files import File, LocalFiles, Lock

Decide = Callable[[str, str], int | None]
"""Operation and path -> the errno to fail with, None to go on."""

WRITES = ("open", "pwrite", "truncate", "sync", "mkdir", "rename", "unlink", "rmdir", "sync_dir")
READS = ("read", "pread", "open_to_read")


class FaultyFile:
    def __init__(self, inner: File, path: str, files: FaultyFiles) -> None:
        self._inner = inner
        self._path = path
        self._files = files

    def pread(self, size: int, offset: int, /) -> bytes:
        self._files.ask("pread", self._path)
        return self._inner.pread(size, offset)

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        try:
            self._files.ask("pwrite", self._path)
        except OSError:
            data = b"".join(parts)
            self._inner.pwrite([data[: len(data) // 2]], offset)  # a full disk takes what still fits
            raise
        self._inner.pwrite(parts, offset)

    def truncate(self, size: int, /) -> None:
        self._files.ask("truncate", self._path)
        self._inner.truncate(size)

    def sync(self) -> None:
        self._files.ask("sync", self._path)

    def size(self) -> int:
        return self._inner.size()


class FaultyFiles:
    """The local file system with faults: ``decide`` is asked before each operation.

    Nothing is really synced: these tests lose no power, and there are thousands of syncs in them.
    """

    def __init__(self) -> None:
        self.inner = LocalFiles()
        self.decide: Decide = lambda operation, path: None
        self.seen: list[tuple[str, str]] = []

    def ask(self, operation: str, path: str) -> None:
        self.seen.append((operation, path))
        number = self.decide(operation, path)
        if number is not None:
            raise OSError(number, "injected", path)

    def heal(self) -> None:
        """No more faults; forgets what was seen."""
        self.decide = lambda operation, path: None
        self.seen = []

    def fail_at(self, count: int, number: int = errno.ENOSPC, operations: Sequence[str] = WRITES) -> None:
        """The operation with this index, of those named, fails, and so do all after it."""
        passed = 0

        def decide(operation: str, path: str) -> int | None:
            nonlocal passed
            passed += operation in operations
            return number if operation in operations and passed > count else None

        self.heal()
        self.decide = decide

    def count(self, operations: Sequence[str] = WRITES) -> int:
        """Operations of those named since the last :meth:`heal`."""
        return sum(operation in operations for operation, _ in self.seen)

    def open(self, path: str, *, write: bool = False) -> FaultyFile:
        self.ask("open" if write else "open_to_read", path)
        return FaultyFile(self.inner.open(path, write=write), path, self)

    def read(self, path: str) -> bytes:
        self.ask("read", path)
        return self.inner.read(path)

    def list(self, path: str) -> list[str]:
        return self.inner.list(path)

    def size(self, path: str) -> int | None:
        return self.inner.size(path)

    def mkdir(self, path: str) -> None:
        self.ask("mkdir", path)
        self.inner.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self.ask("rename", target)
        self.inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self.ask("unlink", path)
        self.inner.unlink(path)

    def rmdir(self, path: str) -> None:
        self.ask("rmdir", path)
        self.inner.rmdir(path)

    def sync_dir(self, path: str) -> None:
        self.ask("sync_dir", path)

    def lock(self, path: str) -> Lock | None:
        return self.inner.lock(path)

    def lock_holder(self, path: str) -> str:
        return self.inner.lock_holder(path)
