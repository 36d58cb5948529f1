"""The reading of sets of numbers, of Python or NumPy's int64, from pickles, token by token: nothing is ever loaded."""

from __future__ import annotations

import pathlib
import pickletools

from diskreplay.errors import InputError
from diskreplay.formats.files.gzip_arrays import decompressed
from diskreplay.formats.files.npy import damage

DESCRIBED = 64
"""The most integers that describe NumPy's type."""
INTEGERS = ("BININT", "BININT1", "BININT2", "LONG1")
TOKENS = 16
"""The most tokens of a number: NumPy's have eight, and a few more in the first one.

It bounds the time, as a pickle of tokens that do nothing shrinks to a thousandth of its size.
"""
NUMPY_SCALAR = {"numpy._core.multiarray", "numpy.core.multiarray", "scalar", "numpy", "dtype", "i8", "<"}
HARMLESS = {
    *INTEGERS, "PROTO", "FRAME", "EMPTY_SET", "MEMOIZE", "MARK", "ADDITEMS", "STOP", "STACK_GLOBAL", "NEWFALSE",
    "NEWTRUE", "NONE", "TUPLE", "TUPLE2", "TUPLE3", "REDUCE", "BUILD", "BINGET", "LONG_BINGET", "SHORT_BINUNICODE",
    "SHORT_BINBYTES",
}  # fmt: skip


def pickled_set(path: pathlib.Path, rows: int) -> list[int]:
    """Return the numbers of a set, at most about ``rows``; raise InputError for a pickle of anything else.

    A NumPy number is eight bytes; Python's integers then are no more than parts of the description of its type.
    """
    integers: list[int] = []
    numbers: list[int] = []
    names, words = set(), set()
    harmless = True
    with damage(str(path)):
        for count, (code, value, _) in enumerate(pickletools.genops(decompressed(path))):
            names.add(code.name)
            if code.name in INTEGERS and isinstance(value, int):
                integers.append(value)
            elif code.name == "SHORT_BINBYTES" and isinstance(value, bytes):
                numbers.append(int.from_bytes(value, "little", signed=True))
                harmless &= len(value) == 8
            elif code.name == "SHORT_BINUNICODE":
                words.add(value)
            harmless &= code.name in HARMLESS and len(integers) + len(numbers) <= rows + DESCRIBED
            harmless &= count < TOKENS * (rows + DESCRIBED)
            if not harmless:
                break
    if not harmless or "EMPTY_SET" not in names or words - NUMPY_SCALAR:
        raise InputError(
            f"{path}: is a pickle of more than a set of numbers, which is never loaded; without this file only "
            f"terminal rows end an episode"
        )
    return numbers if words else integers
