"""Zarr hierarchies of versions 2 and 3, read and written a few MB at a time."""

from __future__ import annotations

import contextlib
import itertools
import lzma
import pathlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.untrusted import check_chunk, check_document, check_size, stored_bytes

CHUNK_FILE_BYTES = 300 << 20
"""The most bytes of a chunk's file, which Zarr reads whole: more than any chunk has that is decoded."""
DOCUMENTS, LEVELS = (".zgroup", ".zattrs", ".zarray", ".zmetadata", "zarr.json"), ("", "*/", "*/*/")
"""The documents that Zarr reads whole, and the levels at which they stand."""
PICKLE = "pickle"
"""The name of a codec of numcodecs that loads whatever a chunk holds."""
DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, ZeroDivisionError,
    RuntimeError, OverflowError, NotImplementedError, MemoryError, SystemError, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""The errors of a damaged hierarchy: Zarr checks little of what its documents say, or of sizes in a chunk."""

Array = NDArray[Any]


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Raise InputError for what Zarr and its codecs raise for a damaged hierarchy."""
    with untrusted.damage(where, DAMAGE), warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # of what lies beside and is no part of a hierarchy
        yield


def open_hierarchy(path: pathlib.Path) -> zarr.Group:
    """Return the group at a path, within :func:`damage`; raise InputError for documents that are too large."""
    for document in itertools.chain.from_iterable(
        path.glob(f"{level}{name}") for level in LEVELS for name in DOCUMENTS
    ):
        check_document(document)
    return zarr.open_group(str(path), mode="r")


class ZarrArray:
    """One array, read as it is asked for; InputError is raised for what cannot be read, or would run code."""

    def __init__(self, array: Any, path: pathlib.Path) -> None:
        self._array, self.where = array, f"{path}: {array.path}"
        self.shape: tuple[int, ...] = tuple(array.shape)
        if array.metadata.zarr_format == 2:
            codecs = [codec.codec_id for codec in (*(array.metadata.filters or ()), array.metadata.compressor) if codec]
            if PICKLE in codecs:
                raise InputError(f"{self.where}: holds pickles, which are never loaded: they can run any code")
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        if self.dtype.kind not in "biufc":
            raise InputError(f"{self.where}: holds values of {self.dtype}, not numbers")
        self.chunks: tuple[int, ...] = tuple(array.chunks)
        check_size(self.where, self.shape, self.dtype.itemsize, lambda: stored_bytes(path))
        check_chunk(self.where, self.chunks, self.dtype.itemsize)
        if array.metadata.zarr_format == 2:
            for file in (path / array.path).rglob("*"):
                if file.is_file() and file.stat().st_size > CHUNK_FILE_BYTES:
                    raise InputError(f"{str(file)!r} is no chunk: it has more than {CHUNK_FILE_BYTES:,} bytes")

    def __getitem__(self, rows: slice) -> Array:
        with damage(self.where):
            return np.asarray(self._array[rows])


class ZarrArrayWriter:
    """One array that is filled from its first entry to its last, whole chunks at a time."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._rows = int(array.chunks[0])
        self._waiting: list[Array] = []
        self._count = self._end = 0

    def append(self, values: Array) -> None:
        """Take values ``(n, *shape)``."""
        self._waiting.append(values)
        self._count += len(values)
        if self._count >= self._rows:
            self._write(self._count // self._rows * self._rows)

    def _write(self, rows: int) -> None:
        values = np.concatenate(self._waiting)
        self._array[self._end : self._end + rows] = values[:rows]
        self._end += rows
        self._waiting, self._count = [values[rows:].copy()], len(values) - rows

    def finish(self) -> None:
        """Write the rest."""
        if self._count:
            self._write(self._count)
