"""The one seam to the file system: every read, write, fsync, rename and unlink of a store goes through here.

:class:`Files` names the operations, `local_files` does them, and a test puts another implementation in its place to
fail, tear or lose them. Paths are plain strings. Assumptions about the medium: a rename within the file system is
atomic; what was fsynced before a crash is there after it; an fsync of a directory makes its entries durable.

Errors of the operating system come out as they are; :func:`translate` turns them into this package's own.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from diskreplay.errors import DiskFullError, DiskReplayError, FileSystemError, ReadFailedError, WriteFailedError
from diskreplay.schema.columns import Schema
from diskreplay.storage.commit import Commit

Kind = Literal["file", "directory", "link", "other"]
THIS_PROCESS = "this very process"
"""The first words of :meth:`Files.lock_holder` when no other process holds the lock."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""The system's errors when this process, or all together, have as many files open as they may."""
NO_NAMES = (errno.ELOOP, errno.ENAMETOOLONG)
"""The system's errors for names that nothing can have: links that lead in a circle, and names that are too long."""
NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, *NO_NAMES)
"""The system's errors for names that lead nowhere."""
TAKEN = (errno.EEXIST, errno.ENOTEMPTY)
HELD = (*TAKEN, errno.EBUSY, errno.ETXTBSY, errno.EXDEV, errno.EACCES, errno.EPERM, errno.ENOENT)
"""The system's errors for what it neither moves nor removes: it is open, not ours, in no place for that, or gone."""
HIDDEN = (".nfs", ".fuse_hidden")
"""The first letters of names that file systems give to files which were removed while somebody had them open."""
REFUSED = (errno.EACCES, errno.EPERM)
"""The system's errors for what this user may not do."""
LOOK_SECONDS = [0.001 * 2**look for look in range(8)]
"""The waits between looks for a file that is being replaced."""

Found = TypeVar("Found")


class Readable(Protocol):
    """The reading side of an open file; your own class inherits defaults that suit a file that is there."""

    __slots__ = ()

    def pread(self, size: int, offset: int, /) -> bytes:
        """Return these bytes, fewer only where the file ends."""

    def descriptor(self) -> int | None:
        """Return a descriptor of the system's for compiled code, or None if only ``pread`` reads the file."""
        return None

    def will_need(self, offset: int, size: int, /) -> None:
        """Take the advice that these bytes are read soon."""
        return

    @property
    def absent(self) -> bool:
        """True if the file is remote, and no copy of it is open here."""
        return False

    def begin(self) -> None:
        """Begin to download an absent file."""
        return

    def fetch(self, spans: Iterable[tuple[int, int]], /) -> Readable | None:
        """Begin to download bytes ``[begin, end)`` of an absent file, and return what reads those alone, or None.

        None where they need not be: there is a copy after all, or it comes whole.
        """
        return None


class File(Readable, Protocol):
    """An open file, closed when the last reference to it goes, so that no reader loses it half-way.

    A class of one's own derives from it.
    """

    __slots__ = ()

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None: ...
    def truncate(self, size: int, /) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...


class FileLock(Protocol):
    """A held advisory lock on a file."""

    def release(self) -> None: ...

    def held(self) -> bool:
        """Tell whether it was not released since, nor left behind by a fork."""

    def is_at(self, path: str) -> bool:
        """Tell whether the locked file still stands at ``path``, not moved away, removed or replaced."""


class Files(Protocol):
    """The operations that a store needs of a file system; your own class derives from it."""

    __slots__ = ()

    def open(self, path: str, *, write: bool = False) -> File:
        """Open a file, and with ``write`` create it if it is missing."""

    def read(self, path: str) -> bytes:
        """Return the whole file."""

    def read_small(self, paths: Iterable[str]) -> list[bytes | None]:
        """Return the whole of each file, or None for one that cannot be read, or is large."""
        found: list[bytes | None] = []
        for path in paths:
            try:
                found.append(self.read(path))
            except OSError:
                found.append(None)
        return found

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory, empty if there is none."""

    def size(self, path: str) -> int | None:
        """Return the number of bytes of a file, or None if there is none."""

    def kind(self, path: str) -> Kind | None:
        """Return what a name stands for, a link itself and not what it points to, or None if nothing is there."""

    def mkdir(self, path: str) -> None:
        """Create one directory; raise FileExistsError if it is there."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically, replacing a file or an empty directory of that name."""

    def unlink(self, path: str) -> None:
        """Remove a name that is not a directory's."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def sync_dir(self, path: str) -> None:
        """Make the entries of a directory durable."""

    def lock(self, path: str) -> FileLock | None:
        """Return an exclusive lock on a file, made if it is missing, or None if another process or object holds it."""

    def lock_holder(self, path: str) -> str:
        """Return in words who holds the lock on a file, which may be missing, as far as the system tells."""

    # Of files that lie elsewhere, with defaults for those that lie here

    @property
    def remote(self) -> bool:
        """True if a read may wait for a network: then several batches are worth beginning at once."""
        return False

    def room(self, path: str) -> int:
        """Return how many bytes may still be written in a directory, as far as the system tells."""
        return 1 << 62

    def forget(self, path: str) -> bool:
        """Give up the copy of a remote file whose bytes are damaged, and return True if that may help."""
        return False

    def refresh(self) -> None:
        """Look again at what is there, as :meth:`.RemoteFiles.refresh`."""
        return

    def coming(self, schema: Schema, commits: Mapping[str, Commit]) -> contextlib.AbstractContextManager[None]:
        """Download at once what is read first, while commits of streams, given by name, are read."""
        return contextlib.nullcontext()

    def stop(self) -> None:
        """Stop reading ahead until something is asked for again."""
        return

    def stats(self) -> dict[str, Any]:
        """Return as JSON what was downloaded, empty for files that are here."""
        return {}

    def stored_bytes(self, path: str) -> int:
        """Return the bytes of a file, or of all below a directory; what goes away meanwhile does not count."""
        if self.kind(path) != "directory":
            return self.size(path) or 0
        return sum(self.stored_bytes(os.path.join(path, name)) for name in self.list(path))

    def zarr(self, path: str) -> Any:
        """Return the argument by which zarr-python opens a group at ``path``."""
        return path

    def elsewhere(self) -> dict[str, Any] | None:
        """Return options by which another process opens a store over files like these, or None if it cannot."""
        return None


@contextlib.contextmanager
def translate(action: str, path: str, kept: str = "the last commit is intact") -> Iterator[None]:
    """Turn an OSError inside into WriteFailedError or DiskFullError, with action, path, and what is kept.

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
        if error.errno in REFUSED:
            cure = f"get permission to write there{_owner(path)}"
        after = f"{kept}: {cure} and reopen the store" if kept else f"nothing was made: {cure} and try again"
        if kept and error.errno in (errno.EROFS, *REFUSED):
            after += ", or open it with mode='r'"
        raise kind(
            error.errno, f"{action} {path!r} failed: {os.strerror(error.errno) if error.errno else error}; {after}"
        ) from _as_raised(error)


def _as_raised(error: OSError) -> OSError:
    """Return an error whose traceback is that of the block it comes from, without the context managers that got it.

    From Python 3.12 on the frame of such a generator refers to the one that handed it the error, and so to the error.
    This cycle would keep the buffer, which is in the block's frames, and its lock until the garbage collector runs.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_flags & inspect.CO_GENERATOR:
        trace = trace.tb_next
    return error.with_traceback(trace)


def unreadable(path: str, error: OSError) -> OSError:
    """Return the error to raise when a file that is there cannot be read."""
    if isinstance(error, DiskReplayError):
        return error  # of the disk that was to take its copy, or of the storage that has it
    if error.errno in NO_DESCRIPTORS:
        cure = "close files, or raise the limit (ulimit -n)"
    elif error.errno in NO_NAMES:
        cure = "a store holds no symbolic links: put the file itself there, or name another path"
    elif error.errno in REFUSED:
        cure = f"get permission to read it{_owner(path)}"
    elif error.errno == errno.ESTALE:
        cure = "another machine has replaced the file that was open here: call again"
    else:
        cure = "mend the disk"
    return ReadFailedError(
        error.errno, f"reading {path!r} failed: {os.strerror(error.errno) if error.errno else error}; {cure}"
    )


def _owner(path: str) -> str:
    """Return in words who owns the path, or the directory above it into which this user may not look."""
    place = pathlib.Path(path)
    for one in (place, *place.parents):
        with contextlib.suppress(OSError, KeyError):
            return f" from {one.owner()}, the owner of {str(one)!r}"
    return " from its owner"


def lacking(what: str, path: str, error: OSError) -> FileSystemError:
    """Return the error to raise where the file system does not do ``what`` a store needs."""
    return FileSystemError(
        error.errno, f"the file system of {os.path.dirname(path)!r} refuses {what}: {os.strerror(error.errno or 0)}; "
        "put the store on one that has them, such as a local disk, or have the container or the server allow them",
    )  # fmt: skip


def settled(files: Files, folder: str, look: Callable[[], Found]) -> Found:
    """Return what ``look`` returns; as long as a folder that is there lacks the file, it soon looks again.

    To replace a file that somebody has open takes some file systems (FUSE) two renames: in between it has no name.
    """
    for seconds in LOOK_SECONDS:
        try:
            return look()
        except OSError as error:
            gone = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
            if not gone or files.remote or files.kind(folder) != "directory":
                raise
            time.sleep(seconds)
    return look()


@contextlib.contextmanager
def translate_reads(path: str) -> Iterator[None]:
    """Turn an OSError inside into ReadFailedError, unless it says that nothing is there."""
    try:
        yield
    except (DiskReplayError, FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        raise unreadable(path, error) from _as_raised(error)


def write(files: Files, path: str, data: bytes) -> None:
    """Make ``data`` the content of a file, and sync the file but not its name."""
    file = files.open(path, write=True)
    file.truncate(0)
    file.pwrite([data], 0)
    file.sync()


def replace(files: Files, path: str, data: bytes, temporary: str | None = None) -> None:
    """Make ``data`` the content of ``path``, atomically and durably: write beside, fsync, rename, fsync directory."""
    temporary = temporary or f"{path}.tmp"
    write(files, temporary, data)
    files.rename(temporary, path)
    files.sync_dir(os.path.dirname(path))


def sync_tree(files: Files, path: str) -> None:
    """Make the names in a directory durable, and those in the directories below it."""
    for below in (os.path.join(path, name) for name in files.list(path)):
        if files.kind(below) == "directory":
            sync_tree(files, below)
    files.sync_dir(path)


def make_dirs(files: Files, path: str) -> None:
    """Make a directory, and those above it that are missing, durably."""
    if files.kind(path) is None:
        parent = os.path.dirname(path)
        make_dirs(files, parent)
        with contextlib.suppress(FileExistsError):  # another process makes it too
            files.mkdir(path)
        files.sync_dir(parent)


@contextlib.contextmanager
def made_dirs(files: Files, path: str) -> Iterator[None]:
    """Make directories as :func:`make_dirs`; if the block fails, remove those that were made and are empty."""
    missing = [path]
    while files.kind(missing[-1]) is None:
        missing.append(os.path.dirname(missing[-1]))
    try:
        make_dirs(files, path)
        yield
    except BaseException:
        for made in missing[:-1]:
            with contextlib.suppress(OSError):
                files.rmdir(made)
        raise


def clear(files: Files, path: str) -> None:
    """Remove what nobody needs any more: a file, or a directory with all below it; a link is never followed.

    What the system holds on to is left where it is, as :data:`HELD` says: the next one to clear it may be luckier.
    """
    directory = files.kind(path) == "directory"
    for name in files.list(path) if directory else ():
        clear(files, os.path.join(path, name))
    allowed(files.rmdir if directory else files.unlink, path)


def allowed(operation: Callable[..., None], *paths: str, refusals: Collection[int] = HELD) -> bool:
    """Remove or move something, and return True; return False if the system refuses that for one of these reasons."""
    try:
        operation(*paths)
        return True
    except OSError as error:
        if error.errno in refusals:
            return False
        raise


def unused(files: Files, path: str) -> str:
    """Return a temporary name of which nothing is left: this one once it is cleared, or one that begins with it."""
    clear(files, path)
    return path if files.kind(path) is None else f"{path}-{secrets.token_hex(4)}"
