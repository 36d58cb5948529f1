"""NumPy arrays in gzip files, as ``numpy.save`` writes them through ``gzip.GzipFile``, without pickles.

They are written and read a few MB at a time, and compressed in threads.
"""

from __future__ import annotations

import functools
import gzip
import io
import pathlib
from collections import deque
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay import workers
from diskreplay.formats.core.untrusted import DOCUMENT_BYTES, check_document
from diskreplay.formats.files.npy import NpyArray
from diskreplay.workers import THREADS, Task

GZIP_LEVEL = 4
MEMBER_BYTES = 1 << 20
"""The number of decoded bytes that are compressed at once."""

Array = NDArray[Any]


def compressed(data: bytes) -> bytes:
    """Return a gzip file of these bytes."""
    return gzip.compress(data, GZIP_LEVEL, mtime=0)


def decompressed(path: pathlib.Path) -> bytes:
    """Return the bytes of a small gzip file; raise ValueError or InputError for more than a document may have."""
    check_document(path)  # gzip skips zeros behind the end, however many they are
    with gzip.open(path) as file:
        data = file.read(DOCUMENT_BYTES + 1)
    if len(data) > DOCUMENT_BYTES:
        raise ValueError(f"it has more than {DOCUMENT_BYTES:,} bytes")
    return data


class GzipWriter:
    """One array, written as ``numpy.save`` does and compressed in threads.

    A gzip file may have several members. The first one here is the array's header, not compressed, so that it can be
    written again when the number of rows is known; the others are the values, ``MEMBER_BYTES`` at a time.
    """

    def __init__(self, path: pathlib.Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._dtype = shape, dtype
        self._file = path.open("wb")
        self._waiting: deque[Task[bytes]] = deque()
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
        """Take values ``(n, *shape)``."""
        data = np.ascontiguousarray(values, self._dtype).tobytes()
        self._parts.append(data)
        self._rows += len(values)
        self._size += len(data)
        if self._size >= MEMBER_BYTES:
            self._submit()

    def _submit(self) -> None:
        self._waiting.append(workers.submit(functools.partial(compressed, b"".join(self._parts))))
        self._parts, self._size = [], 0
        while len(self._waiting) > 2 * THREADS:
            self._file.write(self._waiting.popleft().result())

    def finish(self) -> None:
        """Write what waits, and the header."""
        self._submit()
        while self._waiting:
            self._file.write(self._waiting.popleft().result())
        self._file.seek(0)
        self._file.write(self._header())
        self._file.close()

    def close(self) -> None:
        self._file.close()


def gzip_array(path: pathlib.Path) -> NpyArray:
    """Return the array of a file."""
    return NpyArray(lambda: cast(IO[bytes], gzip.open(path)), str(path), path)
