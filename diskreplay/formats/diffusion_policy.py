"""The Zarr layout of diffusion_policy (Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action
Diffusion").

A Zarr v2 hierarchy, one entry a step, episodes one after another:

======================  =======================  ======================================================
array                   shape                    from
======================  =======================  ======================================================
``data/obs``            ``(N, *obs_shape)``      ``obs``; of nested spaces ``data/<name>``
``data/action``         ``(N, *action_shape)``   ``action``; of nested spaces ``data/action.<name>``
``data/reward``         ``(N,)``                 ``reward``
``data/terminated``     ``(N,)`` bool            ``terminated``
``data/truncated``      ``(N,)`` bool            ``truncated``
``data/<name>``         ``(N, *shape)``          the user's own columns
``meta/episode_ends``   ``(episodes,)`` int64    one past the last step of each episode
======================  =======================  ======================================================

Every array below ``data`` has the same length, so that there is no place for final observations. What comes in needs
``data/action``, one more array, and ``meta/episode_ends``: every array that has no other meaning is an observation.
Rewards that are missing are 0; without flags, an episode's end is a truncation.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import lzma
import pathlib
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray
from zarr.errors import ZarrUserWarning

from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.core.flat import FlatArrays, flags
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import check_chunk, check_document, check_size, stored_bytes
from diskreplay.schema import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

CHUNK_BYTES = 1 << 20
"""Decoded bytes of a chunk."""
CHUNK_FILE_BYTES = 300 << 20
"""Of a chunk's file, which Zarr reads whole: more than any chunk has that is decoded."""
ATTRIBUTE = "diskreplay"
DOCUMENTS, LEVELS = (".zgroup", ".zattrs", ".zarray", ".zmetadata", "zarr.json"), ("", "*/", "*/*/")
"""What Zarr reads whole, and where."""
PICKLE = "pickle"
"""numcodecs has a codec of that name, which loads whatever a chunk holds."""
DAMAGE = (
    OSError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError, ZeroDivisionError,
    RuntimeError, OverflowError, NotImplementedError, MemoryError, SystemError, zlib.error, lzma.LZMAError,
)  # fmt: skip
"""Zarr checks little of what documents say before it uses it. MemoryError and SystemError: a damaged size in a
chunk."""

Array = NDArray[Any]


class ZarrArrayWriter:
    """One array that is filled from its first entry to its last, whole chunks at a time."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self._rows = int(array.chunks[0])
        self._waiting: list[Array] = []
        self._count = self._end = 0

    def append(self, values: Array) -> None:
        """Takes ``(n, *shape)``."""
        self._waiting.append(values)
        self._count += len(values)
        if self._count >= self._rows:
            self._write(self._count // self._rows * self._rows)

    def _write(self, rows: int) -> None:
        values = np.concatenate(self._waiting)
        self._array[self._end : self._end + rows] = values[:rows]
        self._end += rows
        self._waiting, self._count = [values[rows:].copy()], len(values) - rows

    def finish(self) -> None:
        """Writes the rest."""
        if self._count:
            self._write(self._count)


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Writes a source to a new directory; see the module's docstring."""
    layout = source.layout
    root = zarr.create_group(str(target), zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    root.attrs[ATTRIBUTE] = {"layout": json.dumps(layout.to_json()), "keys": _keys(layout)}
    codec = None if compression == "none" else Blosc("zstd", 5, Blosc.SHUFFLE)
    shapes = {**layout.obs, **layout.action, **layout.columns, REWARD: ((), layout.reward_dtype)}
    shapes |= {TERMINATED: ((), np.dtype(bool)), TRUNCATED: ((), np.dtype(bool))}
    columns = {}
    for name, key in _keys(layout).items():
        shape, dtype = shapes[name]
        rows = max(1, min(CHUNK_BYTES // max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize), source.steps))
        columns[name] = ZarrArrayWriter(
            data.create_array(key, shape=(source.steps, *shape), dtype=dtype, chunks=(rows, *shape), compressors=codec)
        )
    ends: list[int] = []
    done = 0
    for steps in source.blocks():
        for name, values in steps.columns().items():
            columns[name].append(values)
        ends += (done + 1 + np.flatnonzero(steps.last)).tolist()
        done += len(steps)
    if done and (not ends or ends[-1] != done):
        ends.append(done)
    for column in columns.values():
        column.finish()
    stored = meta.create_array("episode_ends", shape=(len(ends),), dtype=np.int64, chunks=(max(1, len(ends)),))
    stored[:] = np.array(ends, np.int64)


def _keys(layout: Layout) -> dict[str, str]:
    """The array of each column, below ``data``; names that meet get a dot."""
    keys: dict[str, str] = {}
    for name in (ACTION, REWARD, TERMINATED, TRUNCATED, *layout.obs, *layout.action, *layout.columns):
        if name == ACTION and name not in layout.action:
            continue
        key = name.removeprefix(f"{OBS}/").replace("/", ".")
        while key in keys.values():
            key += "."
        keys.setdefault(name, key)
    return keys


class ZarrArray:
    """One array, read as it is asked for; InputError for what cannot be read, or would run code."""

    def __init__(self, array: Any, path: pathlib.Path) -> None:
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
        check_size(self.where, self.shape, self.dtype.itemsize, lambda: stored_bytes(path))
        check_chunk(self.where, self.chunks, self.dtype.itemsize)
        if array.metadata.zarr_format == 2:
            for file in (path / array.path).rglob("*"):
                if file.is_file() and file.stat().st_size > CHUNK_FILE_BYTES:
                    raise InputError(f"{str(file)!r} is no chunk: it has more than {CHUNK_FILE_BYTES:,} bytes")

    def __getitem__(self, rows: slice) -> Array:
        with damage(self.where):
            return np.asarray(self._array[rows])


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """What Zarr and its codecs raise for a damaged hierarchy, as InputError."""
    with untrusted.damage(where, DAMAGE), warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # of what lies beside and is no part of a hierarchy
        yield


@reader
def read(path: pathlib.Path) -> Iterator[Source]:
    """Opens a directory as a source; see the module's docstring."""
    where = str(path)
    for document in itertools.chain.from_iterable(
        path.glob(f"{level}{name}") for level in LEVELS for name in DOCUMENTS
    ):
        check_document(document)
    with damage(f"{where}, or lacks the groups data and meta with episode_ends: it"):
        root = zarr.open_group(where, mode="r")
        data, meta = root["data"], root["meta"]
        found = {key: ZarrArray(array, path) for key, array in data.arrays()}  # type: ignore[union-attr]
        declared = ZarrArray(meta["episode_ends"], path)  # type: ignore[index]
        ends = declared[:] if len(declared.shape) == 1 else np.empty(0)
        described: Any = root.attrs.get(ATTRIBUTE)
    if ends.dtype.kind not in "iu" or (np.diff(ends.astype(np.int64), prepend=0) < 1).any():
        raise InputError(f"{where}: meta/episode_ends must grow from episode to episode")
    count = int(ends[-1]) if len(ends) else 0
    check_size(f"{where}: meta/episode_ends", (count,), 1, lambda: stored_bytes(path))
    layout = None
    keys = {key: key if key in (ACTION, REWARD, TERMINATED, TRUNCATED) else f"{OBS}/{key}" for key in found}
    if set(keys.values()) - {ACTION, REWARD, TERMINATED, TRUNCATED} == {f"{OBS}/{OBS}"}:
        keys[OBS] = OBS
    if described is not None:
        try:
            layout = Layout.from_json(described["layout"], where)
            keys = {str(key): str(name) for name, key in described["keys"].items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{where}: the attribute {ATTRIBUTE!r} cannot be read: {error}") from error
    arrays = {keys[key]: array for key, array in found.items() if key in keys}
    obs = {name: array for name, array in arrays.items() if name == OBS or name.startswith(f"{OBS}/")}
    action = {name: array for name, array in arrays.items() if name == ACTION or name.startswith(f"{ACTION}/")}
    if not obs or not action:
        raise InputError(f"{where}: data must hold action and observations; there are {', '.join(found) or 'none'}")
    extra = {name: array for name, array in arrays.items() if layout is not None and name in layout.columns}
    last = np.zeros(count, bool)
    last[ends.astype(np.int64) - 1] = True
    terminated, truncated = (flags(where, name, arrays.get(name), count) for name in (TERMINATED, TRUNCATED))
    if TERMINATED not in arrays and TRUNCATED not in arrays:
        truncated = last.copy()
    ignored = tuple(sorted(set(found) - set(keys)))
    yield FlatArrays(
        where, obs, action, terminated, truncated, last | terminated | truncated, arrays.get(REWARD), extra,
        layout=layout, ignored=ignored,
    ).source()  # fmt: skip


def recognise(path: pathlib.Path) -> bool:
    """A Zarr hierarchy with ``data`` and ``meta/episode_ends``."""
    names = (".zgroup", "zarr.json", ".zarray")
    return all(
        any((path / part / name).is_file() for name in names) for part in ("", "data", "meta", "meta/episode_ends")
    )


FORMATS = (
    Format(
        "diffusion-policy", "diffusion_policy: a Zarr v2 hierarchy of flat arrays", "directory",
        Holds(final_obs=False), recognise, read, write, compressions=("zstd", "none"),
    ),
)  # fmt: skip
