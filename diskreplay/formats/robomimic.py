"""The HDF5 layout of robomimic.

It is of Mandlekar et al. 2021, "What Matters in Learning from Offline Human Demonstrations for Robot Manipulation".
One group for every demonstration ``k``:

============================  ==========================  ============================================================
key                           shape                       from
============================  ==========================  ============================================================
``data/demo_<k>/obs/<key>``   ``(n, *shape)``             ``obs``: one that is not nested as ``flat``, leaves of nested
                                                          ones with dots: ``arm.joints``
``data/demo_<k>/next_obs/*``  ``(n, *shape)``             the true next observations
``data/demo_<k>/actions``     ``(n, *action_shape)``      ``action``; single numbers as ``(n, 1)``
``data/demo_<k>/rewards``     ``(n,)``                    ``reward``
``data/demo_<k>/dones``       ``(n,)`` int64              ``terminated``
``data/demo_<k>/truncated``   ``(n,)`` bool               ``truncated``; robomimic itself knows no such array
``data/demo_<k>/<name>``      ``(n, *shape)``             the user's own columns
``diskreplay``                a string                    the layout as JSON, which robomimic does not read
============================  ==========================  ============================================================

The group ``data`` has the attributes ``total`` (steps) and ``env_args`` (JSON: the environment's name and arguments,
without a name where it is not known), each demonstration has ``num_samples``.

1. robomimic wants actions as vectors in ``[-1, 1]`` and images ``(height, width, channels)`` of bytes; values are
   written as they are.
2. ``dones`` that come in may be set in the middle of a demonstration, once the task is solved: every one of them ends
   an episode. The last step of a demonstration that is not done is truncated.
3. Without ``next_obs`` the next step's observation is taken, and the last step of a demonstration that is not done is
   left out. Without ``rewards`` they are 0.
4. Other arrays of the first demonstration with an entry a step, such as ``states``, become columns. Filter keys
   (``mask``) and ``model_file`` are not read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay.buffers.provenance import checked
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks, episode_ends, episodes_source, reshaped
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, flags, length
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, column_name
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import declared_count, parse_json
from diskreplay.formats.files import hdf5
from diskreplay.formats.files.hdf5_writer import COMPRESSIONS, EpisodesFile
from diskreplay.schema import ACTION, DTYPES, OBS

LAYOUT = "diskreplay"
FLAT = "flat"
"""The name by which robomimic calls an observation that has no parts."""
GYM_TYPE = 2
"""The number by which robomimic calls Gym environments."""
DEMO = re.compile(r"demo_(\d+)")
KNOWN = ("obs", "next_obs", "actions", "rewards", "dones", "truncated")

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    with EpisodesFile(target, compression) as out:
        data = out.file.create_group("data")
        data.attrs["total"] = source.steps
        data.attrs["env_args"] = json.dumps(_env_args(source.layout.provenance))
        for episode in episode_blocks(source.blocks()):
            demo = f"data/demo_{episode.number}"
            for key, values in _entries(episode):
                out.append(f"{demo}/{key}", values)
            if episode.ends:
                out.end_episode()
                out.file[demo].attrs["num_samples"] = episode.stop
        hdf5.write_layout(out.file, LAYOUT, source.layout)


def _env_args(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment as robomimic makes it, without a name if it is not known."""
    spec = provenance.get("env_spec")
    arguments = spec.get("kwargs") if isinstance(spec, dict) else None
    name = provenance.get("env_id", "")
    return {
        "env_name": name if isinstance(name, str) else "", "type": GYM_TYPE,
        "env_kwargs": arguments if isinstance(arguments, dict) else {},
    }  # fmt: skip


def _provenance(data: h5py.Group, where: str) -> dict[str, Any]:
    """Return the origin of the steps that ``env_args`` of others tell, empty if they cannot be read."""
    with contextlib.suppress(InputError):
        found = parse_json(hdf5.attribute(data, "env_args", where), where)
        if isinstance(found, dict):
            name = found.get("env_name")
            known = {"env_id": name} if isinstance(name, str) and name else {}
            return checked({**known, "env_args": found}) if found else {}
    return {}


def _entries(episode: EpisodeBlock) -> Iterator[tuple[str, Array]]:
    steps = episode.steps
    for group, leaves in (("obs", steps.obs), ("next_obs", steps.next_obs)):
        for name, values in leaves.items():
            yield f"{group}/{_key(name)}", values
    action = steps.action[ACTION]
    yield "actions", action[:, None] if action.ndim == 1 else action
    yield "rewards", steps.reward
    yield "dones", steps.terminated.astype(np.int64)
    yield "truncated", steps.truncated
    yield from steps.extra.items()


def _key(name: str) -> str:
    """Return the observation key of a leaf: ``arm.joints`` for ``obs/arm/joints``."""
    return name.partition("/")[2].replace("/", ".") or FLAT


def check(layout: Layout) -> None:
    """Raise InputError if two arrays would have the same name."""
    names = [_key(name) for name in layout.obs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"robomimic cannot hold two observations by the name of {name!r}")
    for name in layout.columns:
        if name in KNOWN:
            raise InputError(f"robomimic cannot hold a column {name!r}: it has an array of that name")


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a file as a source, as the module's docstring says."""
    where = str(path)
    with hdf5.opened(path) as file:
        data = hdf5.subgroup(file, "data", where)
        names = hdf5.keys(data, where)
        demos = sorted((name for name in names if DEMO.fullmatch(name)), key=lambda name: int(name.partition("_")[2]))
        layout = hdf5.read_layout(file, LAYOUT, where)
        lengths = [_length(hdf5.subgroup(data, name, where), f"{where}, {name}") for name in demos]
        columns, ignored = _columns(hdf5.subgroup(data, demos[0], where), lengths[0], where) if demos else ([], [])
        ignored += [name for name in names if not DEMO.fullmatch(name)]
        ignored += [name for name in hdf5.keys(file, where) if name not in ("data", LAYOUT)]

        def opened(name: str, layout: Layout | None) -> FlatArrays:
            return _episode(hdf5.subgroup(data, name, where), f"{where}, {name}", columns, layout)

        source = episodes_source(where, demos, lengths, opened, layout, Names(ignored))
        if layout is None:
            source = dataclasses.replace(
                source, layout=dataclasses.replace(source.layout, provenance=_provenance(data, where))
            )
        yield source


def _length(demo: h5py.Group, where: str) -> int:
    """Return the steps of a demonstration: as many as it says, or as many as it has actions."""
    declared = hdf5.attribute(demo, "num_samples", where)
    if declared is not None:
        return declared_count(declared, f"{where}: num_samples")
    return length(where, "actions", hdf5.dataset(demo, "actions", where))


def _columns(demo: h5py.Group, count: int, where: str) -> tuple[list[str], list[str]]:
    """Return the arrays of a demonstration that become columns, and the names of what does not."""
    columns: list[str] = []
    with hdf5.damage(where):
        ignored = [name for name in demo.attrs if name != "num_samples"]
    for key, array in hdf5.datasets(demo, where).items():
        if key.partition("/")[0] not in KNOWN:
            fits = array.shape[:1] == (count,) and 0 not in array.shape[1:] and array.dtype.name in DTYPES
            (columns if fits else ignored).append(key)
    return columns, ignored


def _episode(demo: h5py.Group, where: str, columns: list[str], layout: Layout | None) -> FlatArrays:
    action: ArrayLike = hdf5.dataset(demo, "actions", where)
    count = length(where, "actions", action)
    obs, following = (hdf5.find(demo, key, where) for key in ("obs", "next_obs"))
    if obs is None:
        raise InputError(f"{where}: has no observations; robomimic extracts them from states (dataset_states_to_obs)")
    if layout is not None and ACTION in layout.action:
        action = reshaped(action, layout.action[ACTION][0])
    terminated = flags(where, "dones", hdf5.dataset(demo, "dones", where), count)
    declared = hdf5.optional(demo, "truncated", where)
    truncated = flags(where, "truncated", declared, count)
    last = episode_ends(terminated, truncated)
    if declared is None:
        truncated = last & ~terminated
    return FlatArrays(
        where, _leaves(obs, where, layout), {ACTION: action}, terminated, truncated, last,
        hdf5.optional(demo, "rewards", where),
        {column_name(key): hdf5.dataset(demo, key, where) for key in columns},
        None if following is None else _leaves(following, where, layout), layout=layout,
    )  # fmt: skip


def _leaves(group: Any, where: str, layout: Layout | None) -> dict[str, ArrayLike]:
    """Return the arrays of a group by our names."""
    if not isinstance(group, h5py.Group):
        raise InputError(f"{where}: the observations are no group")
    found = hdf5.datasets(group, where)
    if layout is not None:
        ours = {_key(name): name for name in layout.obs}
        return {ours.get(key, f"{OBS}/{key}"): array for key, array in found.items()}
    return {OBS if list(found) == [FLAT] else f"{OBS}/{key}": array for key, array in found.items()}


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is an HDF5 file with demonstrations, or with the attributes that tell of them."""
    if not hdf5.is_hdf5(path):
        return False
    with hdf5.opened(path) as file:
        data = hdf5.find(file, "data", str(path))
        if not isinstance(data, h5py.Group):
            return False
        told = hdf5.attribute(data, "env_args", str(path)) is not None
        return told or any(DEMO.fullmatch(name) for name in hdf5.keys(data, str(path)))


FORMATS = (
    Format(
        "robomimic", "robomimic: one HDF5 file with a group for each episode", "file", Holds(nested_action=False),
        recognise, read, write, COMPRESSIONS, check=check,
    ),
)  # fmt: skip
