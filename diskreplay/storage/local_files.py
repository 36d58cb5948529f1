"""The local file system, behind the seam of :mod:`diskreplay.storage.files`."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar

from diskreplay.process.lifecycle import at_fork
from diskreplay.storage import handles
from diskreplay.storage.callers import caller
from diskreplay.storage.files import NO_DESCRIPTORS, NOTHING_THERE, THIS_PROCESS, File, FileLock, Files, Kind, lacking

Given = ParamSpec("Given")
Opened = TypeVar("Opened")

NOT_OFFERED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
"""The system's errors for what a file system cannot do at all."""
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""The flags of a file to be read: a link could lead out of the store, and a pipe would block, so both are refused."""
WRITE = READ | os.O_RDWR | os.O_CREAT
"""The flags of a file to be written; also of one to be locked, as network file systems lock no others exclusively."""
WRITE_BYTES = 1 << 18
"""The bytes from which parts are written without being joined to more."""
SMALL_BYTES = 1 << 14
"""The bytes from which on a file is not read with many others."""


def with_room(opening: Callable[Given, Opened], *given: Given.args, **options: Given.kwargs) -> Opened:
    """Return what ``opening`` returns; if no descriptor is left, close files of the pool and call it again."""
    while True:
        try:
            return opening(*given, **options)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not handles.POOL.shed():
                raise


def _of_what_is_there(ask: Callable[Given, Opened], *given: Given.args, **options: Given.kwargs) -> Opened | None:
    """Return what ``ask`` returns, or None if nothing is at the path that it is asked for."""
    try:
        return ask(*given, **options)
    except OSError as error:
        if error.errno in NOTHING_THERE:
            return None
        raise


def _joined(parts: Sequence[bytes]) -> Iterator[memoryview]:
    """Return the parts, small ones joined: joining holds the interpreter's lock, for the parts of a commit too long."""
    begin = size = 0
    for end, part in enumerate(parts, 1):
        size += len(part)
        if size >= WRITE_BYTES or end == len(parts):
            yield memoryview(b"".join(parts[begin:end]))
            begin, size = end, 0


class LocalFile(File):
    """A file of the local file system."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, *, write: bool) -> None:
        self._fd = -1
        self._fd = with_room(os.open, path, WRITE if write else READ, 0o666)
        mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file", path)

    def pread(self, size: int, offset: int, /) -> bytes:
        data = os.pread(self._fd, size, offset)
        parts, left = [data], size - len(data)
        while left and parts[-1]:  # one call may give less, as on FUSE with direct_io
            parts.append(os.pread(self._fd, left, offset + size - left))
            left -= len(parts[-1])
        return b"".join(parts) if len(parts) > 1 else data

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        for data in _joined(parts):
            while data:
                written = os.pwrite(self._fd, data, offset)
                data, offset = data[written:], offset + written

    def truncate(self, size: int, /) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def descriptor(self) -> int | None:
        """Return the descriptor, which is closed with the file, or None in a class derived from this one."""
        return self._fd if type(self) is LocalFile else None  # what is derived may watch each read

    def will_need(self, offset: int, size: int, /) -> None:
        """Tell the system, if it takes advice."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # it was advice
                os.posix_fadvise(self._fd, offset, size, os.POSIX_FADV_WILLNEED)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)  # an interrupt may have come before there was one
        # When the interpreter ends, modules lose their names: the system closes what is open then.
        if fd >= 0 and getattr(os, "close", None):
            self._fd = -1
            os.close(fd)


class LocalLock:
    """A lock by flock(2) on a file, made if it is missing; the lock goes with the process, however that ends.

    A forked child shares the lock of its parent, and would keep it when that is killed: so it lets go at once.

    Args:
        path: the path of the file.
    """

    _fd = -1
    _held: ClassVar[weakref.WeakSet[LocalLock]] = weakref.WeakSet()

    def __init__(self, path: str) -> None:
        self._owner = os.getpid()
        self._path = path
        self._taken_by = ""
        self._held.add(self)
        self._fd = with_room(os.open, path, WRITE, 0o666)

    def take(self) -> bool:
        """Take the lock; return False if somebody else holds it, or removed the file meanwhile."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                return False
            raise lacking("locks of files (flock)", os.path.dirname(self._path), error) from error
        self._taken_by = caller()
        return self.is_at(self._path)

    @classmethod
    def taken_by(cls, path: str) -> str | None:
        """Return the line of this process's program that took the lock on a file, or None."""
        here = (lock for lock in list(cls._held) if lock._taken_by and lock.held() and lock.is_at(path))
        return next((lock._taken_by for lock in here), None)

    @classmethod
    def let_go_in_child(cls) -> None:
        """Close what a forked child has inherited; the parent's lock stays."""
        for lock in list(cls._held):
            lock.release()

    def release(self) -> None:
        if self._fd >= 0:
            if os.getpid() == self._owner:
                # A child that was forked past Python's own fork holds the same lock: closing would leave it there.
                with contextlib.suppress(OSError):  # it was never given
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            fd, self._fd = self._fd, -1  # unlocked already: an interrupt here keeps no lock
            os.close(fd)

    def held(self) -> bool:
        return self._fd >= 0

    def is_at(self, path: str) -> bool:
        there = _of_what_is_there(os.stat, path)
        # No other file has the inode's number while this descriptor keeps it.
        return there is not None and os.path.samestat(there, os.fstat(self._fd))

    def __del__(self) -> None:
        # When the interpreter ends, modules lose their names, one after another: the lock goes with the process then.
        if getattr(os, "close", None) and getattr(fcntl, "flock", None):
            self.release()


at_fork(LocalLock.let_go_in_child)


class LocalFiles(Files):
    """The local file system."""

    def open(self, path: str, *, write: bool = False) -> File:
        return LocalFile(path, write=write)

    def read(self, path: str) -> bytes:
        file = LocalFile(path, write=False)
        try:
            return file.pread(file.size(), 0)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            file = LocalFile(path, write=False)  # another machine has replaced it
        return file.pread(file.size(), 0)

    def read_small(self, paths: Iterable[str]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for path in paths:  # a file object for each would take twice the time
            try:
                fd = os.open(path, READ)
                try:
                    data = os.pread(fd, SMALL_BYTES, 0)
                finally:
                    os.close(fd)
            except OSError:
                data = b""
            found.append(data if 0 < len(data) < SMALL_BYTES else None)
        return found

    def list(self, path: str) -> list[str]:
        return sorted(_of_what_is_there(with_room, os.listdir, path) or ())

    def size(self, path: str) -> int | None:
        found = _of_what_is_there(os.lstat, path)
        return None if found is None else found.st_size

    def kind(self, path: str) -> Kind | None:
        found = _of_what_is_there(os.lstat, path)
        if found is None:
            return None
        kinds: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
        return kinds.get(stat.S_IFMT(found.st_mode), "other")

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = with_room(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno in NOT_OFFERED:
                raise lacking("fsync of directories", path, error) from error
            raise
        finally:
            os.close(fd)

    def lock(self, path: str) -> FileLock | None:
        lock = LocalLock(path)
        try:
            if lock.take():
                return lock
            lock.release()
            return None
        except BaseException:  # not left to the collector: a traceback that somebody keeps would hold the lock
            lock.release()
            raise

    def room(self, path: str) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def elsewhere(self) -> dict[str, Any] | None:
        return {}

    def lock_holder(self, path: str) -> str:
        if line := LocalLock.taken_by(path):
            return f"{THIS_PROCESS}, which opened it in {line}"
        with contextlib.suppress(OSError):
            inode = os.stat(path).st_ino
            for line in pathlib.Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                    pid = fields[4]
                    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    return f"process {pid} ({' '.join(command.split())[:120]})"
        return "another process"
