"""NumPy arrays in gzip files, as ``numpy.save`` writes them through ``gzip.GzipFile``, without pickles.

They are written and read a few MB at a time.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import pathlib
from typing import IO, Any, cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.untrusted import DOCUMENT_BYTES, check_document
from diskreplay.formats.files.npy import NpyArray

GZIP_LEVEL = 4
PADDING_BYTES = 1 << 16
"""The most zeros that may follow a file of gzip."""


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
    """One array, written as ``numpy.save`` does.

    A gzip file may have several members. The first one here is the array's header, not compressed, so that it can be
    written again when the number of rows is known; the other has the values.
    """

    def __init__(self, file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], level: int = GZIP_LEVEL) -> None:
        self._file, self._shape, self._dtype = file, shape, dtype
        self._rows = 0
        self._write_header()
        self._values = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=level, mtime=0, filename="")

    def _write_header(self) -> None:
        text = io.BytesIO()
        described = np.lib.format.dtype_to_descr(self._dtype)
        shape = self._rows, *self._shape
        np.lib.format.write_array_header_1_0(text, {"descr": described, "fortran_order": False, "shape": shape})
        self._file.seek(0)
        self._file.write(gzip.compress(text.getvalue(), 0, mtime=0))

    def append(self, values: Array) -> None:
        """Take values ``(n, *shape)``."""
        self._values.write(np.ascontiguousarray(values, self._dtype).tobytes())
        self._rows += len(values)

    def finish(self) -> None:
        """Write what waits, and the header; the file stays open."""
        self._values.close()
        self._write_header()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # of what waits, after an error
            self._values.close()
        self._file.close()


def gzip_array(path: pathlib.Path) -> NpyArray:
    """Return the array of a file; raise InputError for a hole behind it, whose zeros gzip would skip one by one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - PADDING_BYTES))
        if not any(file.read(PADDING_BYTES)) and size > PADDING_BYTES:
            raise InputError(f"{path} is damaged: it has more than {PADDING_BYTES:,} zeros behind its end")
    return NpyArray(lambda: cast(IO[bytes], gzip.open(path)), str(path), path)
