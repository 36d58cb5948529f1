"""HDF5 files as formats read them: opened with clear errors, a few MB at a time."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.container import ATTRIBUTES, Kind
from diskreplay.formats.core.untrusted import begins, check_chunk, check_size, stored_bytes
from diskreplay.formats.files.hdf5_output import Output

MAGIC = b"\x89HDF\r\n\x1a\n"
MAX_ENTRIES = 1 << 16
"""The most entries of an array that is not a column: names, counts, a flag."""
MAX_LINKS = 16
"""The most soft links that lead to each other."""
MAX_GROUPS = 100
"""The most groups in each other."""
DAMAGE = (
    OSError,
    RuntimeError,
    KeyError,
    ValueError,
    TypeError,
    OverflowError,
    NotImplementedError,
    MemoryError,
    zlib.error,
)
"""The errors of h5py and HDF5 for a damaged file; MemoryError is a damaged size, of an attribute or a string."""
damage = functools.partial(untrusted.damage, errors=DAMAGE)
PLUGINS = {32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2"}
"""Filters that are no part of HDF5, by their registered numbers."""
DEFLATE, SHUFFLE = 1, 2
"""The numbers that HDF5 gives to these filters."""
METADATA_BYTES = 1 << 20
"""The most bytes of a file's structure that HDF5 keeps, several times as much in RAM.

Left alone it goes up to 32 MB where a file of many episodes is walked through once.
"""


def open_file(path: pathlib.Path | Output, mode: str) -> h5py.File:
    """Return the file, with a metadata cache that stays small."""
    file = h5py.File(path, mode)
    cache = file.id.get_mdc_config()
    cache.set_initial_size = True
    cache.initial_size = cache.min_size = cache.max_size = METADATA_BYTES
    file.id.set_mdc_config(cache)
    return file


def is_hdf5(path: pathlib.Path) -> bool:
    """Tell whether a file begins as HDF5 does."""
    return begins(path, MAGIC)


class Hdf5Array:
    """An array that is read some entries at a time."""

    def __init__(self, data: h5py.Dataset, where: str) -> None:
        self._data = data
        self.where = where
        self.shape: tuple[int, ...] = data.shape or ()
        self.dtype: np.dtype[Any] = data.dtype
        self.chunks: tuple[int, ...] | None = data.chunks
        plan = data.id.get_create_plist()
        if plan.get_layout() == h5py.h5d.VIRTUAL or plan.get_external_count():
            raise InputError(f"{where}: its values lie in other files, which are not read")
        _check_filters(plan, where)
        check_size(where, self.shape, self.dtype.itemsize, lambda: stored_bytes(pathlib.Path(data.file.filename)))
        check_chunk(where, self.chunks or (), self.dtype.itemsize)
        if self.dtype.kind == "O" and data.id.get_offset() is not None:
            self._check_lengths(data.id.get_offset(), data.id.get_storage_size(), math.prod(self.shape))
        elif self.dtype.kind == "O" and self.chunks and not plan.get_nfilters():
            for chunk in map(data.id.get_chunk_info, range(data.id.get_num_chunks())):
                self._check_lengths(chunk.byte_offset, chunk.size, math.prod(self.chunks))

    def _check_lengths(self, offset: int, size: int, count: int) -> None:
        """Raise InputError for texts longer than the file: HDF5 would take the memory before it looks for them."""
        path = pathlib.Path(self._data.file.filename)
        with path.open("rb") as file:
            file.seek(offset)
            entries = np.frombuffer(file.read(min(size, MAX_ENTRIES * 16)), np.uint8)
        if count and len(entries) == size and size % count == 0 and size // count >= 4:
            lengths = entries.reshape(count, -1)[:, :4].copy().view("<u4")
            if lengths.max() > stored_bytes(path):
                raise InputError(f"{self.where}: has a text of {lengths.max():,} bytes, more than the file")

    def __getitem__(self, rows: slice) -> Array:
        with damage(self.where):
            return np.asarray(self._data[rows])

    def value(self) -> Any:
        """Return all of a small array, or a single value as h5py has it."""
        if math.prod(self.shape) > MAX_ENTRIES:
            raise InputError(f"{self.where}: has {math.prod(self.shape):,} entries, where {MAX_ENTRIES:,} are read")
        with damage(self.where):
            return self._data[()]


class Hdf5GzipArray(Hdf5Array):
    """An array of gzip chunks of whole entries, inflated here.

    HDF5 fills up a chunk that is too short with whatever memory holds, and takes all memory for one that never ends.
    """

    def __init__(self, data: h5py.Dataset, where: str, shuffled: bool) -> None:
        super().__init__(data, where)
        self._sizes: tuple[int, ...] = data.chunks
        self._shuffled = shuffled and self.dtype.itemsize > 1
        self._last: tuple[int, Array] = -1, np.empty(0)
        """The first entry and the values of the chunk that was read last."""

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        parts = [np.empty((0, *self.shape[1:]), self.dtype)]
        for first in range(start - start % self._sizes[0], stop, self._sizes[0]):
            if self._last[0] != first:
                self._last = first, self._inflated((first, *(0 for _ in self.shape[1:])))
            parts.append(self._last[1][max(start - first, 0) : stop - first])
        return np.concatenate(parts)

    def _inflated(self, offset: tuple[int, ...]) -> Array:
        size = math.prod(self._sizes) * self.dtype.itemsize
        with damage(self.where):
            if self._data.id.get_chunk_info_by_coord(offset).byte_offset is None:  # never written
                return np.full(self._sizes, self._data.fillvalue, self.dtype)
            left_out, data = self._data.id.read_direct_chunk(offset)
            if left_out:  # filters that did this chunk no good
                return np.asarray(self._data[offset[0] : offset[0] + self._sizes[0]])
            found = zlib.decompressobj().decompress(data, size + 1)
        if len(found) != size:
            raise InputError(f"{self.where} is damaged: a chunk has {len(found)} bytes, where {size} are needed")
        if self._shuffled:
            found = np.frombuffer(found, np.uint8).reshape(self.dtype.itemsize, -1).T.tobytes()
        return np.frombuffer(found, self.dtype).reshape(self._sizes)


def _check_filters(plan: h5py.h5p.PropDCID, where: str) -> None:
    """Raise InputError for a compression whose plugin is not there; plugins of hdf5plugin are loaded if installed."""
    for number, _, _, name in map(plan.get_filter, range(plan.get_nfilters())):
        if not h5py.h5z.filter_avail(number):
            with contextlib.suppress(ImportError):
                importlib.import_module("hdf5plugin")
        if not h5py.h5z.filter_avail(number):
            called = PLUGINS.get(number) or name.decode(errors="replace") or "unknown"
            raise InputError(
                f"{where}: is compressed by filter {number} ({called}), which HDF5 does not have here: "
                "pip install hdf5plugin, and from Python import hdf5plugin"
            )


def find(group: h5py.Group, path: str, where: str, depth: int = 0) -> Any:
    """Return the group or array at a path, or None if there is nothing; raise InputError for links into other files."""
    found: Any = group
    with damage(f"{where}: {path!r}"):
        for name in filter(None, path.split("/")):
            key = name.encode(errors="surrogateescape")
            if not isinstance(found, h5py.Group) or not found.id.links.exists(key):
                return None
            kind = found.id.links.get_info(key).type
            if kind == h5py.h5l.TYPE_HARD:
                found = found[name]
            elif kind == h5py.h5l.TYPE_SOFT and depth < MAX_LINKS:
                target = found.id.links.get_val(key).decode(errors="surrogateescape")
                found = find(found.file if target.startswith("/") else found, target, where, depth + 1)
            else:
                raise InputError(f"{where}: {path!r} is a link into another file or into itself, which is not followed")
    return found


class Hdf5File:
    """An open file as a container of arrays and attributes; links into other files are named, and not followed."""

    def __init__(self, file: h5py.File, where: str) -> None:
        self._file, self._where = file, where
        self._names: list[str] = []
        self._folder: tuple[str, Any] = "", file
        """The group that was looked into last, by its path."""

    def names(self) -> list[str]:
        if not self._names:
            with damage(self._where):
                self._names = list(self._below(self._file, "", set()))
        return self._names

    def _below(self, node: Any, path: str, seen: set[Any]) -> Iterator[str]:
        yield from (f"{path}{ATTRIBUTES}{key}" for key in node.attrs)
        if not isinstance(node, h5py.Group):
            yield path
            return
        if path.count("/") > MAX_GROUPS:
            raise InputError(f"{self._where} is damaged: it has more than {MAX_GROUPS} groups in each other")
        seen.add(node.id)
        for key in node:
            name = key if isinstance(key, str) else key.decode(errors="replace")
            full, below = f"{path}/{name}" if path else name, None
            with contextlib.suppress(InputError):  # of a link that is not followed
                below = find(node, name, self._where)
            if below is None:
                yield full
            elif not isinstance(below, h5py.Group) or below.id not in seen:
                yield from self._below(below, full, seen)

    def array(self, name: str) -> Hdf5Array:
        folder, _, last = name.rpartition("/")
        if folder != self._folder[0]:
            self._folder = folder, find(self._file, folder, self._where)
        found = find(self._folder[1], last, self._where)
        if not isinstance(found, h5py.Dataset):
            raise InputError(f"{self._where}: the array {name!r} is missing")
        where = f"{self._where}: {name}"
        with damage(where):
            plan, chunks = found.id.get_create_plist(), found.chunks
            filters = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
            whole = chunks is not None and found.shape and chunks[1:] == found.shape[1:]
            if whole and found.dtype.kind in "biuf" and filters in ([DEFLATE], [SHUFFLE, DEFLATE]):
                return Hdf5GzipArray(found, where, SHUFFLE in filters)
            return Hdf5Array(found, where)

    def value(self, name: str) -> Any:
        path, attribute_of, key = name.rpartition(ATTRIBUTES)
        if not attribute_of:
            return self.array(name).value()
        with damage(f"{self._where}: the attribute {name!r}"):
            return find(self._file, path, self._where).attrs.get(key)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[Hdf5File]:
    """Open a file to be read; raise InputError when it is not HDF5."""
    if not is_hdf5(path):
        raise InputError(f"{str(path)!r} is no HDF5 file")
    with damage(repr(str(path))):
        file = open_file(path, "r")
    with file:
        yield Hdf5File(file, str(path))


KIND = Kind("HDF5 file", is_hdf5, opened, "h5py.File({!r})")
