"""NPZ archives as containers: zip files of arrays, each read from the archive as it is needed."""

from __future__ import annotations

import contextlib
import functools
import pathlib
import zipfile
from collections.abc import Iterator
from typing import Any

from diskreplay.errors import InputError
from diskreplay.formats.core.container import Kind
from diskreplay.formats.files.npy import NpyArray, damage

ENDING = ".npy"


class NpzArchive:
    """An open archive; members that are no arrays are named, too."""

    def __init__(self, archive: zipfile.ZipFile, path: pathlib.Path) -> None:
        self._archive, self._path = archive, path
        self._opened = contextlib.ExitStack()

    def names(self) -> list[str]:
        return [name.removesuffix(ENDING) for name in self._archive.namelist()]

    def array(self, name: str) -> NpyArray:
        member, where = f"{name}{ENDING}", f"{self._path}: {name}"
        if member not in self._archive.NameToInfo:
            raise InputError(f"{self._path}: the array {name!r} is missing")
        found = NpyArray(functools.partial(self._archive.open, member), where, self._path)
        self._opened.callback(found.close)
        return found

    def value(self, name: str) -> Any:
        return self.array(name).value()

    def close(self) -> None:
        self._opened.close()
        self._archive.close()


def is_npz(path: pathlib.Path) -> bool:
    """Tell whether a file is a zip archive with NumPy arrays."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with damage(str(path)), zipfile.ZipFile(path) as archive:
            return any(name.endswith(ENDING) for name in archive.namelist())
    except InputError:
        return False


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[NpzArchive]:
    """Open an archive; raise InputError for anything else."""
    where = str(path)
    if not zipfile.is_zipfile(path):
        raise InputError(f"{where!r} is no NPZ archive")
    with damage(where):
        archive = NpzArchive(zipfile.ZipFile(path), path)
    with contextlib.closing(archive):
        yield archive


KIND = Kind("NPZ archive", is_npz, opened, "numpy.load({!r})", "f[{!r}]")
