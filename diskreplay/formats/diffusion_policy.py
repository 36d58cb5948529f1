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

import numpy as np
import zarr
from numcodecs import Blosc

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.convention import LAYOUT, Convention
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.files.zarr_arrays import KIND, ZarrArrayWriter
from diskreplay.schema import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

CHUNK_BYTES = 1 << 20
"""The number of decoded bytes of a chunk."""
ATTRIBUTE = "diskreplay"


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


def _written(layout: Layout) -> dict[str, str]:
    return {**{name: f"data/{key}" for name, key in _keys(layout).items()}, "/stops": "meta/episode_ends"}


TABLE = Convention(
    {"data/action": ACTION, "data/reward": REWARD, "data/terminated": TERMINATED, "data/truncated": TRUNCATED,
     "data/*": OBS, "meta/episode_ends": "/stops", f".attrs/{ATTRIBUTE}": LAYOUT},
    marks=frozenset({"meta/episode_ends"}), required=(OBS, ACTION, "/stops"), single=OBS,
    written=_written,
)  # fmt: skip


FORMATS = (
    array_format(
        "diffusion-policy", "diffusion_policy: a Zarr v2 hierarchy of flat arrays", "directory", KIND, (TABLE,),
        Holds(final_obs=False, next_obs=False), write, ("zstd", "none"),
    ),
)  # fmt: skip
