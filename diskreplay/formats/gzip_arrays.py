"""NumPy arrays in gzip files, as ``numpy.save`` writes them through ``gzip.GzipFile``, without pickles.

They are written and read a few MB at a time, and compressed in threads.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import pathlib
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import DiskReplayError, InputError
from diskreplay.formats.flat import native
from diskreplay.formats.hdf5 import WORKERS

GZIP_LEVEL = 4
MEMBER_BYTES = 1 << 20
"""Decoded bytes that are compressed at once."""

Array = NDArray[Any]


@contextlib.contextmanager
def damage(path: pathlib.Path) -> Iterator[None]:
    """What goes wrong in a damaged file, as InputError."""
    try:
        yield
    except DiskReplayError:
        raise
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{path}: is damaged: {error}") from error


def compressed(data: bytes) -> bytes:
    """A gzip file of these bytes."""
    return gzip.compress(data, GZIP_LEVEL, mtime=0)


def decompressed(path: pathlib.Path) -> bytes:
    """The bytes of a small gzip file."""
    return gzip.decompress(path.read_bytes())


class GzipWriter:
    """One array that is written as ``numpy.save`` does, compressed in parts of their own, several at a time in threads.

    A gzip file may consist of several; the first one, which is not compressed, is the array's header, and is written
    again when the number of rows is known.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype[Any], pool: ThreadPoolExecutor):
        self._shape, self._dtype, self._pool = shape, dtype, pool
        self._file = path.open("wb")
        self._waiting: deque[Future[bytes]] = deque()
        self._parts: list[bytes] = []
        self._size = self._rows = 0
        self._file.write(self._header())

    def _header(self) -> bytes:
        text = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            text,
            {
                "descr": np.lib.format.dtype_to_descr(self._dtype),
                "fortran_order": False,
                "shape": (self._rows, *self._shape),
            },
        )
        return gzip.compress(text.getvalue(), 0, mtime=0)

    def append(self, values: Array) -> None:
        """Takes ``(n, *shape)``."""
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        self._parts.append(data)
        self._rows += len(values)
        self._size += len(data)
        if self._size >= MEMBER_BYTES:
            self._submit()

    def _submit(self) -> None:
        self._waiting.append(self._pool.submit(compressed, b"".join(self._parts)))
        self._parts, self._size = [], 0
        while len(self._waiting) > 2 * WORKERS:
            self._file.write(self._waiting.popleft().result())

    def finish(self) -> None:
        """Writes what waits, and the header."""
        self._submit()
        while self._waiting:
            self._file.write(self._waiting.popleft().result())
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def close(self) -> None:
        self._file.close()


class GzipArray:
    """One array of a file, read forwards: asking for rows before those read last begins anew."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._file: gzip.GzipFile | None = None
        self._at = 0
        with damage(path), gzip.open(path) as file:
            self.shape, self.dtype = self._header(file)
        self._item_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def _header(self, file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape and dtype of the array that follows; InputError for a pickle."""
        begin = file.read(2)
        if begin[:1] == b"\x80":
            raise InputError(f"{self.path}: holds a pickle, which is never loaded: it can run any code")
        file.seek(0)
        version = np.lib.format.read_magic(file)
        read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise InputError(f"{self.path}: holds pickled objects, which are never loaded: they can run any code")
        if fortran and len(shape) > 1:
            raise InputError(f"{self.path}: is stored in Fortran order; save it again from np.ascontiguousarray")
        return shape, dtype

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        with damage(self.path):
            if self._file is None or start < self._at:
                self.close()
                self._file = gzip.open(self.path)  # noqa: SIM115  # stays open until close()
                self._header(self._file)
                self._at = 0
            self._file.seek((start - self._at) * self._item_bytes, io.SEEK_CUR)
            data = self._file.read((stop - start) * self._item_bytes)
        if len(data) != (stop - start) * self._item_bytes:
            raise InputError(f"{self.path}: ends too early")
        self._at = stop
        found = np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])
        return found.astype(native(self.dtype), copy=False)

    def value(self) -> Array:
        """All of a small array, of any dimension."""
        with damage(self.path), gzip.open(self.path) as file:
            self._header(file)
            return np.frombuffer(file.read(), self.dtype).reshape(self.shape)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
