"""Named arrays in one file or folder, whatever holds them: HDF5, Zarr, NPZ."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from diskreplay.formats.core.flat import ArrayLike

ATTRIBUTES = ".attrs/"
"""What stands between the name of a group or array and that of its attribute."""


class Container(Protocol):
    """An open file or folder of named arrays."""

    def names(self) -> Iterable[str]:
        """Return the names of all arrays and attributes, with slashes between groups."""

    def array(self, name: str) -> ArrayLike:
        """Return an array, of which nothing is read yet; raise InputError if it cannot be read, or is missing."""

    def value(self, name: str) -> Any:
        """Return all of a small array, a single value, or an attribute; raise InputError likewise."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of container.

    Attributes:
        title: what one is called in errors.
        recognise: tells whether a path is one.
        opened: opens it; raises InputError if it is none, or damaged.
        loads, item: how Python opens one, and takes an array from it.
    """

    title: str
    recognise: Callable[[pathlib.Path], bool]
    opened: Callable[[pathlib.Path], AbstractContextManager[Container]]
    loads: str
    item: str = "f[{!r}][:]"


def is_attribute(name: str) -> bool:
    """Tell whether a name is that of an attribute."""
    return ATTRIBUTES in name
