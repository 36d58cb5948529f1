"""A file that HDF5 writes into, on a disk that may be full.

HDF5 cannot give up a file that it could not write: closing it tries again, and ends the process. So the first error is
kept, what HDF5 writes after it stays in RAM, and :meth:`Output.check` raises the error where it can be dealt with.
"""

from __future__ import annotations

import io
import os
import pathlib


class Output(io.RawIOBase):
    """A new file at ``path``, as h5py wants a file object."""

    def __init__(self, path: pathlib.Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._at = self._size = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the OSError of the first write that failed."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # a buffer is what h5py gives
        view, at = memoryview(data), self._at
        if self._error is None:
            try:
                while view:
                    written = os.pwrite(self._descriptor, view, at)
                    view, at = view[written:], at + written
            except OSError as error:
                self._error = error
        if view:
            self._unwritten.append((at, bytes(view)))
        self._at += memoryview(data).nbytes
        self._size = max(self._size, self._at)
        return memoryview(data).nbytes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = bytearray(len(buffer))
        read = 0
        while data := os.pread(self._descriptor, len(buffer) - read, self._at + read):
            found[read : read + len(data)] = data
            read += len(data)
        for at, later in self._unwritten:
            low, high = max(at, self._at), min(at + len(later), self._at + len(found))
            if low < high:
                found[low - self._at : high - self._at] = later[low - at : high - at]
        buffer[:] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        self._size = self._at if size is None else size
        if self._error is None:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                self._error = error
        return self._size

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()
