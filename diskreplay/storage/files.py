"""The one seam to the file system: every read, write, fsync, rename and unlink of a store goes through here.

:class:`Files` names the operations, :class:`LocalFiles` does them, and a test puts another implementation in its
place to fail, tear or lose them. Paths are plain strings. Assumptions about the medium: a rename within the
file system is atomic; what was fsynced before a crash is there after it; an fsync of a directory makes its
entries durable.

Errors of the operating system come out as they are; :func:`translate` turns them into this package's own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import stat
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol

from diskreplay.callers import caller
from diskreplay.errors import DiskFullError, DiskReplayError, ReadFailedError, WriteFailedError
from diskreplay.storage.handles import NO_DESCRIPTORS, with_room

Kind = Literal["file", "directory", "link", "other"]
THIS_PROCESS = "this very process"
"""The first words of :meth:`Files.lock_holder` where no other process holds the lock."""
NO_NAMES = (errno.ELOOP, errno.ENAMETOOLONG)
"""The system's errors for names that nothing can have: links that lead in a circle, and names that are too long."""
NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, *NO_NAMES)
"""The system's errors for names that lead nowhere."""


class File(Protocol):
    """An open file. It is closed when the last reference to it goes, so that no reader loses it half-way."""

    def pread(self, size: int, offset: int, /) -> bytes: ...
    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None: ...
    def truncate(self, size: int, /) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...


class Lock(Protocol):
    """A held advisory lock on a directory."""

    def release(self) -> None: ...

    def held(self) -> bool:
        """Whether it was not released since, nor left behind by a fork."""

    def is_at(self, path: str) -> bool:
        """Whether the locked directory is what stands at ``path`` now: not when it was moved away, or removed."""


class Files(Protocol):
    """The operations a store needs of a file system."""

    def open(self, path: str, *, write: bool = False) -> File:
        """Opens a file; with ``write`` creates it when it is missing."""

    def read(self, path: str) -> bytes:
        """The whole file."""

    def list(self, path: str) -> list[str]:
        """Sorted names in a directory; an empty list when there is none."""

    def size(self, path: str) -> int | None:
        """Bytes of a file; None when there is none."""

    def kind(self, path: str) -> Kind | None:
        """What a name stands for, a link itself and not what it points to; None when there is nothing."""

    def mkdir(self, path: str) -> None:
        """Creates one directory; FileExistsError when it is there."""

    def rename(self, source: str, target: str) -> None:
        """Atomically gives a file or directory another name, replacing a file or an empty directory of that name."""

    def unlink(self, path: str) -> None:
        """Removes a name that is no directory's."""

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""

    def sync_dir(self, path: str) -> None:
        """Makes the entries of a directory durable."""

    def lock(self, path: str) -> Lock | None:
        """An exclusive lock on a directory, or None when another process or object holds it."""

    def lock_holder(self, path: str) -> str:
        """Who holds the lock on a directory, in words, as far as the system tells."""


def _open(path: str, flags: int) -> int:
    """A descriptor, though files of the pool must be closed for it."""
    return with_room(lambda: os.open(path, flags, 0o666))


class LocalFile:
    """A file of the local file system; see :class:`File`."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, *, write: bool) -> None:
        self._fd = -1
        # A link could lead out of the store, and a pipe would block: both are refused.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = _open(path, flags | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY))
        mode = os.fstat(self._fd).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file", path)

    def pread(self, size: int, offset: int, /) -> bytes:
        return os.pread(self._fd, size, offset)

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        data = memoryview(b"".join(parts))
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def truncate(self, size: int, /) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fsync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """The descriptor; it is the file's own and closed with it."""
        return self._fd

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)  # an interrupt may have come before there was one
        # When the interpreter ends, modules lose their names: the system closes what is open then.
        if fd >= 0 and getattr(os, "close", None):
            self._fd = -1
            os.close(fd)


def descriptor(file: File) -> int | None:
    """The descriptor of a file whose ``pread`` is the system's own and nothing else; None for any other file.

    The file of a remote store waits until it has a local copy.
    """
    if type(file) is LocalFile:
        return file.fileno()
    found = getattr(file, "descriptor", None)
    return None if found is None else int(found())


def begin(files: Iterable[File]) -> None:
    """Has those of the files that are remote begin to be downloaded, all at once."""
    for file in files:
        if type(file) is not LocalFile and hasattr(file, "begin"):
            file.begin()


def is_absent(file: File) -> bool:
    """Whether a file is remote, and no copy of it is open here."""
    return type(file) is not LocalFile and getattr(file, "absent", False)


def fetch(file: Any, places: Iterable[Sequence[int]]) -> Any:
    """Has parts ``(offset, bytes)`` of an absent file begin to be downloaded; a file with those alone.

    None where they need not be: there is a copy after all, or it comes whole.
    """
    return file.fetch((offset, offset + size) for offset, size in places)


def will_need(file: File, offset: int, size: int) -> None:
    """Tells the system, where it takes advice, what of a local file is read soon."""
    if type(file) is not LocalFile:
        begin([file])
    elif hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # it was advice
            os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_WILLNEED)


class LocalLock:
    """flock(2) on a directory: it goes with the process, however that ends.

    A forked child shares the lock of its parent, and would keep it when that is killed: so it lets go at once.

    Args:
        path: of the directory.
    """

    _fd = -1
    _held: ClassVar[weakref.WeakSet[LocalLock]] = weakref.WeakSet()

    def __init__(self, path: str) -> None:
        self._owner = os.getpid()
        self._taken_by = ""
        self._held.add(self)
        self._fd = _open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def take(self) -> bool:
        """Takes the lock; False where somebody else holds it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            raise
        self._taken_by = caller()
        return True

    @classmethod
    def taken_by(cls, path: str) -> str | None:
        """The line of this process's program that took the lock on a directory; None where this process has it not."""
        here = (lock for lock in list(cls._held) if lock._taken_by and lock.held() and lock.is_at(path))
        return next((lock._taken_by for lock in here), None)

    @classmethod
    def let_go_in_child(cls) -> None:
        """Closes what a forked child has inherited; the parent's lock stays."""
        for lock in list(cls._held):
            lock.release()

    def release(self) -> None:
        if self._fd >= 0:
            if os.getpid() == self._owner:
                # A child that was forked past Python's own fork holds the same lock: closing would leave it there.
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            fd, self._fd = self._fd, -1  # unlocked already: an interrupt here keeps no lock
            os.close(fd)

    def held(self) -> bool:
        return self._fd >= 0

    def is_at(self, path: str) -> bool:
        try:
            there = os.stat(path)
        except OSError as error:
            if error.errno in NOTHING_THERE:
                return False
            raise
        # No other directory has the inode's number while this descriptor keeps it.
        return os.path.samestat(there, os.fstat(self._fd))

    def __del__(self) -> None:
        # When the interpreter ends, modules lose their names, one after another: the lock goes with the process then.
        if getattr(os, "close", None) and getattr(fcntl, "flock", None):
            self.release()


os.register_at_fork(after_in_child=LocalLock.let_go_in_child)


class LocalFiles:
    """The local file system; see :class:`Files`."""

    def open(self, path: str, *, write: bool = False) -> File:
        return LocalFile(path, write=write)

    def read(self, path: str) -> bytes:
        file = LocalFile(path, write=False)
        return file.pread(file.size(), 0)

    def list(self, path: str) -> list[str]:
        try:
            return sorted(with_room(lambda: os.listdir(path)))
        except OSError as error:
            if error.errno in NOTHING_THERE:
                return []
            raise

    def size(self, path: str) -> int | None:
        try:
            return os.lstat(path).st_size
        except OSError as error:
            if error.errno in NOTHING_THERE:
                return None
            raise

    def kind(self, path: str) -> Kind | None:
        try:
            mode = os.lstat(path).st_mode
        except OSError as error:
            if error.errno in NOTHING_THERE:
                return None
            raise
        kinds: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
        return kinds.get(stat.S_IFMT(mode), "other")

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def sync_dir(self, path: str) -> None:
        fd = _open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str) -> Lock | None:
        lock = LocalLock(path)
        try:
            if not lock.take():
                return None
            if not os.access(path, os.W_OK):  # who writes asks for the lock: better refused here than at a commit
                read_only = os.statvfs(path).f_flag & os.ST_RDONLY
                code = errno.EROFS if read_only else errno.EACCES
                raise OSError(code, os.strerror(code), path)
            return lock
        except BaseException:  # not left to the collector: a traceback that somebody keeps would hold the lock
            lock.release()
            raise

    def lock_holder(self, path: str) -> str:
        if line := LocalLock.taken_by(path):
            return f"{THIS_PROCESS}, which opened it in {line}"
        inode = os.stat(path).st_ino
        with contextlib.suppress(OSError):
            for line in pathlib.Path("/proc/locks").read_text().splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                    pid = fields[4]
                    command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    return f"process {pid} ({' '.join(command.split())[:120]})"
        return "another process"


@contextlib.contextmanager
def translate(action: str, path: str, kept: str = "the last commit is intact") -> Iterator[None]:
    """Turns an OSError inside into WriteFailedError or DiskFullError that names the action, the path, and what is kept.

    ``kept`` is "" where nothing was there before: then there is nothing to open either.
    """
    try:
        yield
    except DiskReplayError:
        raise
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = DiskFullError if full else WriteFailedError
        cure = "make room" if full else "choose another path" if error.errno in NO_NAMES else "mend the cause"
        after = f"{kept}: {cure} and reopen the store" if kept else f"nothing was made: {cure} and try again"
        if kept and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            after += ", or open it with mode='r'"
        raise kind(
            error.errno, f"{action} {path!r} failed: {os.strerror(error.errno) if error.errno else error}; {after}"
        ) from error


def unreadable(path: str, error: OSError) -> OSError:
    """What to raise when a file that is there cannot be read."""
    if isinstance(error, DiskReplayError):
        return error  # of the disk that was to take its copy, or of the storage that has it
    if error.errno in NO_DESCRIPTORS:
        cure = "close files, or raise the limit (ulimit -n)"
    elif error.errno in NO_NAMES:
        cure = "a store holds no symbolic links: put the file itself there, or name another path"
    else:
        cure = "mend the disk"
    return ReadFailedError(
        error.errno, f"reading {path!r} failed: {os.strerror(error.errno) if error.errno else error}; {cure}"
    )


@contextlib.contextmanager
def translate_reads(path: str) -> Iterator[None]:
    """Turns an OSError inside into ReadFailedError, one that says that nothing is there excepted."""
    try:
        yield
    except (DiskReplayError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from error


def write(files: Files, path: str, data: bytes) -> None:
    """Makes ``data`` the content of a file, which is synced; its name is not."""
    file = files.open(path, write=True)
    file.truncate(0)
    file.pwrite([data], 0)
    file.sync()


def replace(files: Files, path: str, data: bytes, temporary: str | None = None) -> None:
    """Atomically and durably makes ``data`` the content of ``path``: write beside, fsync, rename, fsync directory."""
    temporary = temporary or f"{path}.tmp"
    write(files, temporary, data)
    files.rename(temporary, path)
    files.sync_dir(os.path.dirname(path))


def make_dirs(files: Files, path: str) -> None:
    """Durably makes a directory and those above it that are missing."""
    if files.kind(path) is None:
        parent = os.path.dirname(path)
        make_dirs(files, parent)
        with contextlib.suppress(FileExistsError):  # another process makes it too
            files.mkdir(path)
        files.sync_dir(parent)


def remove(files: Files, path: str) -> None:
    """Removes a file, or a directory and everything below it; a link is removed, never followed."""
    if files.kind(path) != "directory":
        files.unlink(path)
        return
    for name in files.list(path):
        remove(files, os.path.join(path, name))
    files.rmdir(path)


def clear(files: Files, path: str) -> None:
    """Removes what an operation that failed half-way may have left under a temporary name."""
    with contextlib.suppress(FileNotFoundError):
        remove(files, path)
