"""A file that HDF5 writes into, on a disk that may be full.

HDF5 cannot give up a file that it could not write: closing it tries again, and ends the process. So the first error is
kept, what HDF5 writes after it stays in RAM, and :meth:`Output.check` raises the error where it can be dealt with.
"""

from __future__ import annotations

import io
import os
import pathlib


class Output(io.FileIO):
    """A new file at ``path``, as h5py wants a file object."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, "x+")
        self._size = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []

    def check(self) -> None:
        """Raise the OSError of the first write that failed."""
        if self._error is not None:
            raise self._error

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]  # a buffer is what h5py gives
        view, at = memoryview(data), self.tell()
        count = view.nbytes
        stop = self.seek(at + count)
        if self._error is None:
            try:
                while view:
                    written = os.pwrite(self.fileno(), view, at)
                    view, at = view[written:], at + written
            except OSError as error:
                self._error = error
        if view:
            self._unwritten.append((at, bytes(view)))
        self._size = max(self._size, stop)
        return count

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start, found, read = self.tell(), bytearray(len(buffer)), 0
        while data := os.pread(self.fileno(), len(buffer) - read, start + read):
            found[read : read + len(data)] = data
            read += len(data)
        for at, later in self._unwritten:
            low, high = max(at, start), min(at + len(later), start + len(found))
            if low < high:
                found[low - start : high - start] = later[low - at : high - at]
        buffer[:] = found
        self.seek(start + len(found))
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(offset + self._size) if whence == os.SEEK_END else super().seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        self._size = self.tell() if size is None else size
        if self._error is None:
            try:
                super().truncate(self._size)
            except OSError as error:
                self._error = error
        return self._size
