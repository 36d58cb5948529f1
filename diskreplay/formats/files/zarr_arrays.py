"""Zarr hierarchies of versions 2 and 3, in a directory or a zip archive, read and written a few MB at a time."""

from __future__ import annotations

import contextlib
import functools
import lzma
import pathlib
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numcodecs.errors import UnknownCodecError
from zarr.errors import ZarrUserWarning

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.container import ATTRIBUTES, ChunkedOutput, Kind
from diskreplay.formats.core.untrusted import DOCUMENT_BYTES, check_chunk, check_size, stored_bytes

COMPRESSIONS = ("zstd", "none")
CHUNK_FILE_BYTES = 300 << 20
"""The most bytes of a chunk's file, which Zarr reads whole: more than any chunk has that is decoded."""
DOCUMENTS = (".zgroup", ".zattrs", ".zarray", ".zmetadata", "zarr.json")
"""The documents that Zarr reads whole."""
PICKLE = "pickle"
"""The name of a codec of numcodecs that loads whatever a chunk holds."""
DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, ZeroDivisionError,
    RuntimeError, OverflowError, NotImplementedError, MemoryError, SystemError, zlib.error, lzma.LZMAError,
    zipfile.BadZipFile,
)  # fmt: skip
"""The errors of a damaged hierarchy: Zarr checks little of what its documents say, or of sizes in a chunk."""


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Raise InputError for what Zarr and its codecs raise for a damaged hierarchy."""
    with untrusted.damage(where, DAMAGE), warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # of what lies beside and is no part of a hierarchy
        try:
            yield
        except UnknownCodecError as error:
            raise InputError(
                f"{where}: is compressed by a codec that is not installed here: {error.codec_id}"
            ) from error


def is_zarr(path: pathlib.Path) -> bool:
    """Tell whether a path is a Zarr hierarchy, in a directory or in a zip archive."""
    roots = (".zgroup", "zarr.json")
    if path.is_dir():
        return any((path / name).is_file() for name in roots)
    with contextlib.suppress(InputError, OSError), damage(str(path)), zipfile.ZipFile(path) as archive:
        return any(name in archive.NameToInfo for name in roots)
    return False


def _check_files(path: pathlib.Path) -> None:
    """Raise InputError for documents and chunks that are too large to be read whole."""
    if path.is_file():
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
    else:
        sizes = {str(file): file.stat().st_size for file in path.rglob("*") if file.is_file()}
    for name, size in sizes.items():
        most = DOCUMENT_BYTES if name.rpartition("/")[2] in DOCUMENTS else CHUNK_FILE_BYTES
        if size > most:
            raise InputError(f"{path}: {name!r} is no part of a Zarr hierarchy: it has more than {most:,} bytes")


class ZarrHierarchy:
    """An open hierarchy as a container of arrays and attributes."""

    def __init__(self, root: zarr.Group, path: pathlib.Path) -> None:
        self._root, self._path = root, path

    @functools.cached_property
    def _stored(self) -> int:
        return stored_bytes(self._path)

    @functools.cached_property
    def _nodes(self) -> dict[str, Any]:
        with damage(str(self._path)):
            return {"": self._root, **dict(self._root.members(max_depth=None))}

    def names(self) -> list[str]:
        found = []
        for path, node in self._nodes.items():
            with damage(f"{self._path}: {path}"):  # attributes that are no object
                found += [f"{path}{ATTRIBUTES}{key}" for key in node.attrs]
            if not isinstance(node, zarr.Group):
                found.append(path)
        return found

    def array(self, name: str) -> ZarrArray:
        node = self._nodes.get(name)
        if node is None or isinstance(node, zarr.Group):
            raise InputError(f"{self._path}: the array {name!r} is missing")
        return ZarrArray(node, self._path, lambda: self._stored)

    def value(self, name: str) -> Any:
        path, attribute_of, key = name.rpartition(ATTRIBUTES)
        if attribute_of:
            return self._nodes[path].attrs[key] if path in self._nodes else None
        return self.array(name)[slice(None)]


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[ZarrHierarchy]:
    """Open a hierarchy; raise InputError for anything else."""
    if not is_zarr(path):
        raise InputError(f"{str(path)!r} is no Zarr hierarchy, nor a zip archive of one: it lacks the groups")
    _check_files(path)
    with damage(str(path)):
        store = zarr.storage.ZipStore(path, mode="r") if path.is_file() else str(path)
        root = zarr.open_group(store, mode="r")
    try:
        yield ZarrHierarchy(root, path)
    finally:
        root.store.close()


KIND = Kind("Zarr hierarchy", is_zarr, opened, "zarr.open({!r}, mode='r')")


class ZarrArray:
    """One array, read as it is asked for; InputError is raised for what cannot be read, or would run code."""

    def __init__(self, array: Any, path: pathlib.Path, stored: Callable[[], int]) -> None:
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
        check_size(self.where, self.shape, self.dtype.itemsize, stored)
        check_chunk(self.where, self.chunks, self.dtype.itemsize)

    def __getitem__(self, rows: slice) -> Array:
        with damage(self.where):
            return np.asarray(self._array[rows])


class ZarrWriter(ChunkedOutput):
    """A hierarchy of version 2 to be written."""

    def __init__(self, root: zarr.Group, compression: str) -> None:
        super().__init__()
        self._root, self._codec = root, None if compression == "none" else Blosc("zstd", 5, Blosc.SHUFFLE)
        self._arrays: dict[str, Any] = {}

    def put(self, name: str, value: Any) -> None:
        """Write an attribute of the root."""
        self._root.attrs[name.removeprefix(ATTRIBUTES)] = value

    def grow(self, name: str, values: Array, rows: int) -> None:
        shape = values.shape[1:]
        if name not in self._arrays:
            group, _, key = name.rpartition("/")
            self._arrays[name] = self._root.require_group(group).create_array(
                key, shape=(0, *shape), dtype=values.dtype, chunks=(rows, *shape), compressors=self._codec
            )
        self._arrays[name].append(values)

    def finish(self, name: str, values: Array) -> None:
        self.grow(name, values, max(1, len(values)))


@contextlib.contextmanager
def created(path: pathlib.Path, compression: str) -> Iterator[ZarrWriter]:
    """Make a hierarchy to be written, where nothing may be yet."""
    out = ZarrWriter(zarr.create_group(str(path), zarr_format=2), compression)
    yield out
    out.end()
