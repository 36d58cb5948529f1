"""Blosc, as numcodecs brings it: its functions are called where they stand, and numcodecs is not imported.

To import numcodecs takes longer than to make a store and to close it: it asks each installed package for codecs.
"""

from __future__ import annotations

import contextlib
import ctypes
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

HEADER_BYTES = 16
"""The bytes of a buffer's header, and the most by which a buffer is larger than what it holds."""

COPIED = 2
"""The flag in byte 2 of a header that says that the values follow as they are, as Blosc of level 0 makes them, too."""


def _library() -> ctypes.CDLL:
    """Return the library with Blosc, and with the LZ4 of Blosc; one without them if it cannot be loaded."""
    package = find_spec("numcodecs")
    module = package and PathFinder.find_spec("numcodecs.blosc", package.submodule_search_locations)
    with contextlib.suppress(OSError):
        return ctypes.CDLL(module.origin if module else None)
    return ctypes.CDLL(None)


def _imported() -> Any:
    """Return numcodecs' own module, for where the functions cannot be found."""
    from numcodecs import blosc

    blosc.use_threads = False  # each buffer is one block
    return blosc


def _function(name: str, *parameters: Any) -> Any:
    """Return a function of the library, which returns an int, or None if it is not to be found."""
    function = getattr(LIBRARY, name, None)
    if function is not None:
        function.argtypes = parameters
    return function


_size, _address = ctypes.c_size_t, ctypes.c_void_p
LIBRARY = _library()
_compress = _function(
    "blosc_compress_ctx", ctypes.c_int, ctypes.c_int, _size, _size, _address, _address, _size, ctypes.c_char_p, _size,
    ctypes.c_int,
)  # fmt: skip
_decompress = _function("blosc_decompress_ctx", ctypes.c_char_p, _address, _size, ctypes.c_int)
_module = None if _compress and _decompress else _imported()


def compress(values: NDArray[Any], compressor: str, level: int, shuffle: bool) -> bytes:
    """Return the buffer of a C-contiguous array.

    It is one block: Blosc's own choice cuts a chunk of frames, and matches across the cuts are lost.
    """
    assert values.flags.c_contiguous
    if _module is not None:
        elements = values.reshape(-1).view(f"V{values.itemsize}")  # of some dtypes numcodecs does not know the size
        packed: bytes = _module.compress(elements, compressor.encode(), level, int(shuffle), values.nbytes)
        return packed
    room = np.empty(values.nbytes + HEADER_BYTES, np.uint8)
    size = _compress(
        level, shuffle, values.itemsize, values.nbytes, values.ctypes.data, room.ctypes.data, room.nbytes,
        compressor.encode(), values.nbytes, 1,
    )  # fmt: skip
    if size <= 0:
        raise RuntimeError(f"error during blosc compression: {size}")
    return room[:size].tobytes()


def decompress(data: bytes, out: NDArray[Any]) -> None:
    """Fill the C-contiguous ``out`` from a buffer whose header has been checked; raise RuntimeError if it cannot be."""
    assert out.flags.carray
    if _module is not None:
        _module.decompress(data, out)
    elif (size := _decompress(data, out.ctypes.data, out.nbytes, 1)) != out.nbytes:
        raise RuntimeError(f"error during blosc decompression: {size}")
