"""The Zarr layout of diffusion_policy.

It is that of Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion": a Zarr v2 hierarchy,
one entry a step, episodes one after another:

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

import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import zarr
from numcodecs import Blosc
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.flat import FlatArrays, flags, leaves_of
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, read_description
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import check_size, stored_bytes
from diskreplay.formats.files.zarr_arrays import ZarrArray, ZarrArrayWriter, damage, open_hierarchy
from diskreplay.schema import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

CHUNK_BYTES = 1 << 20
"""The number of decoded bytes of a chunk."""
ATTRIBUTE = "diskreplay"
STEP_KEYS = (ACTION, REWARD, TERMINATED, TRUNCATED)
"""The arrays below ``data`` that have our names, and are no observations."""

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    layout = source.layout
    root = zarr.create_group(str(target), zarr_format=2)
    data, meta = root.create_group("data"), root.create_group("meta")
    root.attrs[ATTRIBUTE] = {"layout": json.dumps(layout.to_json()), "keys": _keys(layout)}
    codec = None if compression == "none" else Blosc("zstd", 5, Blosc.SHUFFLE)
    columns, shapes = {}, layout.step_shapes
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
    """Return the array of each column, below ``data``; names that meet get a dot."""
    keys: dict[str, str] = {}
    for name in (ACTION, REWARD, TERMINATED, TRUNCATED, *layout.obs, *layout.action, *layout.columns):
        if name == ACTION and name not in layout.action:
            continue
        key = name.removeprefix(f"{OBS}/").replace("/", ".")
        while key in keys.values():
            key += "."
        keys.setdefault(name, key)
    return keys


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a directory as a source, as the module's docstring says."""
    where = str(path)
    with damage(f"{where}, or lacks the groups data and meta with episode_ends: it"):
        root = open_hierarchy(path)
        data, meta = root["data"], root["meta"]
        found = {key: ZarrArray(array, path) for key, array in data.arrays()}  # type: ignore[union-attr]
        ends = _episode_ends(where, ZarrArray(meta["episode_ends"], path))  # type: ignore[index]
        described = root.attrs.get(ATTRIBUTE)
    count = int(ends[-1]) if len(ends) else 0
    check_size(f"{where}: meta/episode_ends", (count,), 1, lambda: stored_bytes(path))
    layout, names = (
        (None, _guessed_names(found))
        if described is None
        else read_description(described, f"{where}, the attribute {ATTRIBUTE!r}")
    )
    arrays = {names[key]: array for key, array in found.items() if key in names}
    obs, action = leaves_of(arrays, OBS), leaves_of(arrays, ACTION)
    if not obs or not action:
        raise InputError(f"{where}: data must hold action and observations; there are {', '.join(found) or 'none'}")
    last = np.zeros(count, bool)
    last[ends - 1] = True
    terminated, truncated = (flags(where, name, arrays.get(name), count) for name in (TERMINATED, TRUNCATED))
    if TERMINATED not in arrays and TRUNCATED not in arrays:
        truncated = last.copy()
    yield FlatArrays(
        where, obs, action, terminated, truncated, last | terminated | truncated, arrays.get(REWARD),
        {name: array for name, array in arrays.items() if layout is not None and name in layout.columns},
        layout=layout, names=Names(set(found) - set(names)),
    ).source()  # fmt: skip


def _episode_ends(where: str, array: ZarrArray) -> NDArray[np.int64]:
    """Return one past the last step of each episode; raise InputError if these do not grow."""
    ends = array[:] if len(array.shape) == 1 else np.empty(0)
    if ends.dtype.kind not in "iu" or (np.diff(ends.astype(np.int64), prepend=0) < 1).any():
        raise InputError(f"{where}: meta/episode_ends must grow from episode to episode")
    return ends.astype(np.int64)


def _guessed_names(keys: Iterable[str]) -> dict[str, str]:
    """Guess our name of each array below ``data``: an array without another meaning is an observation."""
    names = {key: key if key in STEP_KEYS else f"{OBS}/{key}" for key in keys}
    if set(names) - set(STEP_KEYS) == {OBS}:
        names[OBS] = OBS
    return names


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a Zarr hierarchy with ``data`` and ``meta/episode_ends``."""
    names = (".zgroup", "zarr.json", ".zarray")
    return all(
        any((path / part / name).is_file() for name in names) for part in ("", "data", "meta", "meta/episode_ends")
    )


FORMATS = (
    Format(
        "diffusion-policy", "diffusion_policy: a Zarr v2 hierarchy of flat arrays", "directory",
        Holds(final_obs=False, next_obs=False), recognise, read, write, compressions=("zstd", "none"),
    ),
)  # fmt: skip
