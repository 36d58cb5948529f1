"""Named arrays in one file or folder, whatever holds them: HDF5, Zarr, NPZ, Parquet."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from diskreplay.checks import Array
from diskreplay.formats.core.flat import ArrayLike

ATTRIBUTES = ".attrs/"
"""What stands between the name of a group or array and that of its attribute."""
CHUNK_BYTES = 1 << 20
"""The number of decoded bytes of a chunk: h5py advises no more, and its chunk cache holds as much."""
MAX_CHUNK_ROWS = 1 << 14


class Container(Protocol):
    """An open file or folder of named arrays."""

    def names(self) -> Iterable[str]:
        """Return the names of all arrays and attributes, with slashes between groups."""

    def array(self, name: str) -> ArrayLike:
        """Return an array, of which nothing is read yet; raise InputError if it cannot be read, or is missing."""

    def value(self, name: str) -> Any:
        """Return all of a small array, a single value, or an attribute; raise InputError likewise."""


class Output(Protocol):
    """A new container that is open to be written."""

    def append(self, name: str, values: Array) -> None:
        """Take the next entries of an array, ``(n, *shape)``; they must not change any more."""

    def end(self) -> None:
        """Write what waits: the arrays so far are whole."""


class ChunkedOutput:
    """Arrays that grow by whole chunks; what is less than a chunk waits in RAM."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Array]] = {}

    def append(self, name: str, values: Array) -> None:
        parts = [part for part in self._waiting.get(name, []) if len(part)] + [values]
        self._waiting[name] = parts
        item = int(np.prod(values.shape[1:], dtype=np.int64)) * values.itemsize
        rows = max(1, min(CHUNK_BYTES // max(1, item), MAX_CHUNK_ROWS))
        if sum(map(len, parts)) > rows:
            waiting = np.concatenate(parts) if len(parts) > 1 else values
            whole = len(waiting) // rows * rows
            self.grow(name, waiting[:whole], rows)
            self._waiting[name] = [waiting[whole:].copy()]

    def end(self) -> None:
        for name, parts in self._waiting.items():
            self.finish(name, np.concatenate(parts))
        self._waiting = {}

    def grow(self, name: str, values: Array, rows: int) -> None:
        """Write some whole chunks, of ``rows`` entries each; a shorter one only at the end."""
        raise NotImplementedError

    def finish(self, name: str, values: Array) -> None:
        """Write the last entries of an array, which may be all or none; they are no more than a chunk."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of container.

    Attributes:
        title: what one is called in errors.
        recognise: tells whether a path is one.
        opened: opens it; raises InputError if it is none, or damaged.
        loads, item: how Python opens one, and takes an array from it.
        parts: returns the files that are read of one, or folders of such.
        folders: whether a folder of them is recognised as a dataset.
    """

    title: str
    recognise: Callable[[pathlib.Path], bool]
    opened: Callable[[pathlib.Path], AbstractContextManager[Container]]
    loads: str
    item: str = "f[{!r}][:]"
    parts: Callable[[pathlib.Path], Iterable[pathlib.Path]] = lambda path: (path,)
    folders: bool = True


def is_attribute(name: str) -> bool:
    """Tell whether a name is that of an attribute."""
    return ATTRIBUTES in name
