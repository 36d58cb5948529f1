"""Arrays as ``numpy.save`` writes them, without pickles, never whole in RAM."""

from __future__ import annotations

import contextlib
import functools
import io
import lzma
import math
import pathlib
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.flat import native
from diskreplay.formats.core.untrusted import check_size, stored_bytes

DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError, RuntimeError, OverflowError, MemoryError,
    SyntaxError, tokenize.TokenError, struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""The errors of a damaged array; RuntimeError is an encrypted entry of an archive."""
damage = functools.partial(untrusted.damage, errors=DAMAGE)
HEADER_BYTES = 12 + 10_000
"""The most bytes before an array's values: NumPy takes no longer header for safe."""


class NpyArray:
    """One array, best read forwards: of compressed bytes, all before a row are read again to go back to it.

    Args:
        opened: opens the array's bytes, from their begin.
        where: the name of the array in errors.
        path: the path of the file that holds the array.

    Raises InputError for pickles, for other orders than C's and where the bytes are damaged.
    """

    def __init__(self, opened: Callable[[], IO[bytes]], where: str, path: pathlib.Path) -> None:
        self._opened, self.where, self._path = opened, where, path
        self._file: IO[bytes] | None = None
        with damage(where), opened() as file:
            begin = io.BytesIO(file.read(HEADER_BYTES))
        self.shape, self.dtype = self._header(begin)
        self._begin = begin.tell()
        check_size(where, self.shape, self.dtype.itemsize, lambda: stored_bytes(path))

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if file.read(1) == b"\x80":
            raise InputError(f"{self.where}: holds a pickle, which is never loaded: it can run any code")
        file.seek(0)
        with damage(self.where), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python 2
            first = npy_format.read_magic(file) == (1, 0)
            read = npy_format.read_array_header_1_0 if first else npy_format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise InputError(
                f"{self.where}: holds pickled objects, which are never loaded; --columns leaves columns out"
            )
        if not dtype.itemsize or dtype.kind == "V" or min(shape, default=0) < 0:
            raise InputError(f"{self.where}: holds values of no bytes, or of several fields: {dtype}, {shape}")
        if fortran and len(shape) > 1:
            raise InputError(f"{self.where}: is stored in Fortran order; save it again from np.ascontiguousarray")
        return shape, dtype

    def __getitem__(self, rows: slice) -> Array:
        if not self.shape:
            raise InputError(f"{self.where}: is a single value, not an array of steps")
        start, stop, _ = rows.indices(self.shape[0])
        return self._values(start, (max(start, stop) - start, *self.shape[1:]))

    def value(self) -> Array:
        """Return all of a small array, of any dimension."""
        with contextlib.closing(self):
            return self._values(0, self.shape)

    def _values(self, start: int, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape) * self.dtype.itemsize
        if not size:  # nothing is read, for what is read forwards would go on
            return np.empty(shape, native(self.dtype))
        with damage(self.where):
            self._file = self._file or self._opened()
            self._file.seek(self._begin + start * math.prod(self.shape[1:]) * self.dtype.itemsize)
            data = self._file.read(size)
        if len(data) != size:
            raise InputError(f"{self.where}: ends too early")
        return np.frombuffer(data, self.dtype).reshape(shape).astype(native(self.dtype), copy=False)

    def again(self) -> NpyArray:
        """Return the same array, which is read for itself."""
        return NpyArray(self._opened, self.where, self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
