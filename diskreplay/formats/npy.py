"""Arrays as ``numpy.save`` writes them, without pickles, read forwards from compressed files that are never in RAM."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import DiskReplayError, InputError
from diskreplay.formats.flat import native

DAMAGE = (
    OSError, EOFError, ValueError, SyntaxError, NotImplementedError, RuntimeError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""RuntimeError: an encrypted entry of an archive."""

Array = NDArray[Any]


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """What goes wrong in a damaged file, as InputError."""
    try:
        yield
    except DiskReplayError:
        raise
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{where} is damaged: {error}") from error


class NpyArray:
    """One array, read forwards: asking for rows before those read last begins anew.

    Args:
        opened: opens the array's bytes, from their begin.
        where: what to call it in errors.

    Raises InputError for pickles, for other orders than C's and where the bytes are damaged.
    """

    def __init__(self, opened: Callable[[], IO[bytes]], where: str) -> None:
        self._opened, self.where = opened, where
        self._file: IO[bytes] | None = None
        self._at = 0
        with damage(where), opened() as file:
            self.shape, self.dtype = self._header(file)
        self._item_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array that follows."""
        begin = file.read(1)
        if begin == b"\x80":
            raise InputError(f"{self.where}: holds a pickle, which is never loaded: it can run any code")
        file.seek(0)
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise InputError(f"{self.where}: holds pickled objects, which are never loaded: they can run any code")
        if fortran and len(shape) > 1:
            raise InputError(f"{self.where}: is stored in Fortran order; save it again from np.ascontiguousarray")
        return shape, dtype

    def __getitem__(self, rows: slice) -> Array:
        if not self.shape:
            raise InputError(f"{self.where}: is a single value, not an array of steps")
        start, stop, _ = rows.indices(self.shape[0])
        stop = max(start, stop)
        with damage(self.where):
            if self._file is None or start < self._at:
                self.close()
                self._file = self._opened()
                self._header(self._file)
                self._at = 0
            self._file.seek((start - self._at) * self._item_bytes, io.SEEK_CUR)
            data = self._file.read((stop - start) * self._item_bytes)
        if len(data) != (stop - start) * self._item_bytes:
            raise InputError(f"{self.where}: ends too early")
        self._at = stop
        found = np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])
        return found.astype(native(self.dtype), copy=False)

    def value(self) -> Array:
        """All of a small array, of any dimension."""
        with damage(self.where), self._opened() as file:
            self._header(file)
            return np.frombuffer(file.read(), self.dtype).reshape(self.shape)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
