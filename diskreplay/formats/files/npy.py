"""Arrays as ``numpy.save`` writes them, without pickles, read forwards and never whole from compressed files."""

from __future__ import annotations

import functools
import io
import lzma
import math
import pathlib
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.flat import native
from diskreplay.formats.core.untrusted import check_size, stored_bytes

DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, NotImplementedError, RuntimeError, OverflowError, struct.error,
    zlib.error, lzma.LZMAError, zipfile.BadZipFile,
)  # fmt: skip
"""The errors of a damaged array; RuntimeError is an encrypted entry of an archive."""
damage = functools.partial(untrusted.damage, errors=DAMAGE)
MAGIC = b"\x93NUMPY"
MAX_HEADER = 10_000
DTYPE = re.compile(r"""['"]descr['"]: *['"]([<>|=]?[a-zA-Z]\d*)['"]""")
ORDER = re.compile(r"""['"]fortran_order['"]: *(True|False)""")
SHAPE = re.compile(r"""['"]shape['"]: *\(((?: *\d{1,19}L? *,?)*)\)""")
"""The shape in a header, matched as text: parsed as Python, a hostile one could recurse, or take memory."""

Array = NDArray[Any]


class NpyArray:
    """One array, read forwards; a request for rows before those read last begins anew.

    Args:
        opened: opens the array's bytes, from their begin.
        where: the name of the array in errors.
        path: the path of the file that holds the array.

    Raises InputError for pickles, for other orders than C's and where the bytes are damaged.
    """

    def __init__(self, opened: Callable[[], IO[bytes]], where: str, path: pathlib.Path) -> None:
        self._opened, self.where, self._path = opened, where, path
        self._file: IO[bytes] | None = None
        self._at = 0
        with damage(where), opened() as file:
            self.shape, self.dtype = self._header(file)
        check_size(where, self.shape, self.dtype.itemsize, lambda: stored_bytes(path))
        self._item_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of the array that follows."""
        begin = file.read(1)
        if begin == b"\x80":
            raise InputError(f"{self.where}: holds a pickle, which is never loaded: it can run any code")
        magic = begin + file.read(len(MAGIC) + 1)
        if magic[:-2] != MAGIC or magic[-2] not in (1, 2, 3):
            raise InputError(f"{self.where} is damaged: it does not begin as numpy.save does")
        size = int.from_bytes(file.read(2 if magic[-2] == 1 else 4), "little")
        text = file.read(min(size, MAX_HEADER)).decode("latin1")
        dtype, order, shape = (pattern.search(text) for pattern in (DTYPE, ORDER, SHAPE))
        if size > MAX_HEADER or len(text) != size or dtype is None or order is None or shape is None:
            raise InputError(f"{self.where} is damaged, or of several fields: its header is {text[:80]!r}")
        found, sizes = (
            np.dtype(dtype[1]),
            tuple(int(number.strip(" L")) for number in shape[1].split(",") if number.strip()),
        )
        if found.hasobject:
            raise InputError(f"{self.where}: holds pickled objects, which are never loaded: they can run any code")
        if not found.itemsize:
            raise InputError(f"{self.where}: holds values of no bytes")
        if order[1] == "True" and len(sizes) > 1:
            raise InputError(f"{self.where}: is stored in Fortran order; save it again from np.ascontiguousarray")
        return sizes, found

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
        """Return all of a small array, of any dimension."""
        with damage(self.where), self._opened() as file:
            self._header(file)
            size = math.prod(self.shape) * self.dtype.itemsize
            return np.frombuffer(file.read(size), self.dtype).reshape(self.shape)

    def again(self) -> NpyArray:
        """Return the same array, which is read for itself."""
        return NpyArray(self._opened, self.where, self._path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
