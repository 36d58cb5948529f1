"""The mirror: a directory with copies of objects, under a budget of bytes, which several processes may share.

A copy is named by its key and the tag of the object, so that it is never taken for another version. It is written
beside, made durable and renamed: a kill or a loss of power leaves whole copies, and files that the next process
removes. Where the budget is passed, the copies that were used least recently go, by the times of their files; a clock
that jumps makes others go, which are downloaded again. Who has one open reads on.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator

from diskreplay.errors import DiskFullError, RemoteError, WriteFailedError
from diskreplay.process.locks import Lock
from diskreplay.remote.objects import Object
from diskreplay.storage import files as fs
from diskreplay.storage import temporaries
from diskreplay.storage.local_files import LocalFiles

TEMPORARY = "copy"
SCRATCH = "checkpoint"
COPY = re.compile(r"@[0-9a-f]{24}$")
"""The end of the names of copies; whatever else lies in the directory is not touched."""
FULL = (errno.ENOSPC, errno.EDQUOT)
SWEEP_SHARE = 64
"""The part of the budget after whose download the directory is looked through."""


class Mirror:
    """The copies in a directory.

    Args:
        directory: the directory, which is made where it is missing.
        most_bytes: the most bytes that the copies take together, those of other processes among them. Copies that are
            open, and what several processes download at the same time, may be beyond that.
        url: the URL of the store whose objects they are.
    """

    def __init__(self, directory: str, most_bytes: int, url: str = "") -> None:
        self.directory = directory
        self.most_bytes = most_bytes
        self._url = url
        self._files = LocalFiles()
        self._lock = Lock(f"the mirror {directory!r}")
        self._coming = 0
        """The bytes of downloads that are under way."""
        self._since_sweep = most_bytes  # the first download looks
        with fs.translate("making the mirror", directory, kept=""):
            fs.make_dirs(self._files, directory)
            temporaries.sweep(self._files, directory, TEMPORARY)

    def path(self, of: Object) -> str:
        """Return the path of an object's copy, whether there is one or not."""
        of_all = f"{self._url}\n{of.key}\n{of.tag}\n{of.size}"
        digest = hashlib.blake2b(of_all.encode(errors="surrogatepass"), digest_size=12).hexdigest()
        name = re.sub(r"[^A-Za-z0-9_-]", "-", of.key)[-80:]  # for people
        return os.path.join(self.directory, f"{name}@{digest}")

    def takes(self, of: Object) -> bool:
        """Tell whether an object is small enough to be kept: copies of larger ones would only take others' places."""
        return 2 * of.size <= self.most_bytes

    def find(self, of: Object) -> str | None:
        """Return the path of an object's copy, from now on the most recently used one, or None if there is none."""
        path = self.path(of)
        try:
            os.utime(path)
            if os.stat(path).st_size == of.size:
                return path
        except OSError:
            return None
        self.drop(of)  # somebody cut it
        return None

    def drop(self, of: Object) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path(of))

    def keep(self, of: Object, pieces: Iterable[bytes]) -> str:
        """Make the copy of an object from its bytes, and return its path.

        Raises RemoteError where they are fewer or more than the object's, DiskFullError where the disk is full: every
        other copy is removed then; WriteFailedError where the directory takes no copy for another reason.
        """
        with self._lock:
            self._coming += of.size
        try:
            fs.make_dirs(self._files, self.directory)  # somebody may have removed it
            with self._lock:
                self._make_room(of.size)
            return self._write(of, pieces)
        except OSError as error:
            if error.errno not in FULL:
                raise WriteFailedError(
                    error.errno, f"the mirror {self.directory!r} takes no copy of {of.key!r}: {error.strerror}; "
                    "mend the cause, or name another directory (mirror=...)",
                ) from error  # fmt: skip
            self._sweep(0)
            raise DiskFullError(
                error.errno, f"the disk of the mirror {self.directory!r} is full; make room, lower mirror_bytes, or "
                "name another directory (mirror=...)",
            ) from error  # fmt: skip
        finally:
            with self._lock:
                self._coming -= of.size

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """Yield a directory beside the copies for what is to be uploaded; it is removed at the end, or by the next."""
        fs.make_dirs(self._files, self.directory)
        temporaries.sweep(self._files, self.directory, SCRATCH)
        temporary, lock = temporaries.take(self._files, self.directory, SCRATCH)
        try:
            yield temporary
        finally:
            fs.clear(self._files, temporary)
            lock.release()

    def room(self) -> int:
        """Return the bytes that fit beside all copies there or coming, at most what the disk has free."""
        try:
            disk = os.statvfs(self.directory)
        except OSError:  # somebody took the directory away
            return 0
        free = self.most_bytes - self.most_bytes // SWEEP_SHARE - self.used_bytes() - self._coming
        return min(free, disk.f_bavail * disk.f_frsize)

    def used_bytes(self) -> int:
        """Return the bytes of all copies that are there now."""
        return sum(size for _, size, _ in self._copies())

    def _write(self, of: Object, pieces: Iterable[bytes]) -> str:
        target = self.path(of)
        temporary, lock = temporaries.take(self._files, self.directory, TEMPORARY)
        try:
            inside = os.path.join(temporary, "copy")
            file = self._files.open(inside, write=True)
            at = 0
            for piece in pieces:
                file.pwrite([piece], at)
                at += len(piece)
                if at > of.size:
                    break
            if at != of.size:
                raise RemoteError(f"{of.key!r} gave {at:,} bytes instead of {of.size:,}; try again")
            file.sync()
            self._files.rename(inside, target)
        finally:
            with contextlib.suppress(OSError):
                fs.clear(self._files, temporary)
            lock.release()
        return target

    def _make_room(self, size: int) -> None:
        """Make room for what is coming and a little more, so that not every download has to look."""
        spare = self.most_bytes // SWEEP_SHARE
        self._since_sweep += size
        if self._since_sweep > spare:
            self._sweep(self.most_bytes - spare - self._coming)
            self._since_sweep = 0

    def _sweep(self, most: int) -> None:
        """Remove the copies that were used least recently, until the others have at most ``most`` bytes."""
        copies = sorted(self._copies())
        held = sum(size for _, size, _ in copies)
        for _, size, path in copies:
            if held <= most:
                return
            with contextlib.suppress(OSError):  # another process sweeps too
                os.unlink(path)
            held -= size

    def _copies(self) -> Iterator[tuple[int, int, str]]:
        """Yield of each copy when it was used, in nanoseconds, its bytes and its path."""
        for name in self._files.list(self.directory):
            if COPY.search(name):
                path = os.path.join(self.directory, name)
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    yield found.st_mtime_ns, found.st_size, path
