"""NPZ archives as containers: zip files of arrays, each read from the archive as it is needed."""

from __future__ import annotations

import contextlib
import functools
import gzip
import pathlib
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.container import Kind
from diskreplay.formats.files.gzip_arrays import GzipWriter
from diskreplay.formats.files.npy import NpyArray, damage

ENDING = ".npy"
COMPRESSIONS = {"deflate": zipfile.ZIP_DEFLATED, "none": zipfile.ZIP_STORED}
WAITING_BYTES = 1 << 18
"""The most bytes of an array that wait in RAM, compressed, until the archive is written."""


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
    with contextlib.suppress(InputError, OSError), damage(str(path)), zipfile.ZipFile(path) as archive:
        return any(name.endswith(ENDING) for name in archive.namelist())
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


class NpzWriter:
    """A new archive of arrays, which wait beside it, lightly compressed: an archive takes one after another."""

    def __init__(self, path: pathlib.Path, compression: str, stack: contextlib.ExitStack) -> None:
        self._path, self._method, self._stack = path, COMPRESSIONS[compression], stack
        self._waiting: dict[str, tuple[IO[bytes], GzipWriter]] = {}
        self._single: dict[str, Array] = {}

    def put(self, name: str, value: Any) -> None:
        """Write a single value."""
        self._single[name] = np.array(value)

    def append(self, name: str, values: Array) -> None:
        if name not in self._waiting:
            folder = str(self._path.parent)
            spooled = tempfile.SpooledTemporaryFile(WAITING_BYTES, dir=folder)  # noqa: SIM115  # the stack closes it
            file: Any = self._stack.enter_context(spooled)
            self._waiting[name] = file, GzipWriter(file, values.shape[1:], values.dtype, level=1)
            self._stack.callback(self._waiting[name][1].close)
        self._waiting[name][1].append(values)

    def end(self) -> None:
        with zipfile.ZipFile(self._path, "w", self._method, compresslevel=4) as archive:
            for name, (file, array) in self._waiting.items():
                array.finish()
                file.seek(0)
                with archive.open(name + ENDING, "w", force_zip64=True) as member, gzip.open(file) as values:
                    shutil.copyfileobj(values, member, WAITING_BYTES)
            for name, value in self._single.items():
                with archive.open(name + ENDING, "w") as member:
                    np.lib.format.write_array(member, value, allow_pickle=False)


@contextlib.contextmanager
def created(path: pathlib.Path, compression: str) -> Iterator[NpzWriter]:
    """Make an archive to be written, where nothing may be yet."""
    with contextlib.ExitStack() as stack:
        out = NpzWriter(path, compression, stack)
        yield out
        out.end()


KIND = Kind("NPZ archive", is_npz, opened, "numpy.load({!r})", "f[{!r}]")
