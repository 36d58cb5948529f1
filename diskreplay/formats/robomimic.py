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
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.buffers.provenance import checked
from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.array_writer import write_episodes
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import LAYOUT, NEXT_OBS, Convention
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import parse_json
from diskreplay.formats.files import hdf5, hdf5_writer
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

PLACE = "diskreplay"
FLAT = "flat"
"""The name by which robomimic calls an observation that has no parts."""
GYM_TYPE = 2
"""The number by which robomimic calls Gym environments."""
ENV_ARGS, TOTAL = "data.attrs/env_args", "data.attrs/total"
KNOWN = ("obs", "next_obs", "actions", "rewards", "dones", "truncated")


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    layout = source.layout
    with hdf5_writer.created(target, compression) as out:
        out.put(TOTAL, source.steps)
        out.put(ENV_ARGS, json.dumps(_env_args(layout.provenance)))
        out.put(PLACE, json.dumps(layout.to_json()))
        for episode in write_episodes(source, out, _written(layout), "data/demo_{}/{}".format, _stored):
            out.put(f"data/demo_{episode.number}.attrs/num_samples", episode.stop)


def _stored(name: str, values: Array, before: int) -> Array:
    if name == ACTION and values.ndim == 1:
        return values[:, None]
    return values.astype(np.int64) if name == TERMINATED else values


def _env_args(provenance: Mapping[str, Any]) -> dict[str, Any]:
    spec = provenance.get("env_spec")
    arguments = spec.get("kwargs") if isinstance(spec, dict) else None
    name = provenance.get("env_id", "")
    return {
        "env_name": name if isinstance(name, str) else "", "type": GYM_TYPE,
        "env_kwargs": arguments if isinstance(arguments, dict) else {},
    }  # fmt: skip


def _provenance(container: Container, where: str) -> dict[str, Any]:
    with contextlib.suppress(InputError):
        found = parse_json(container.value(ENV_ARGS), where)
        if isinstance(found, dict):
            name = found.get("env_name")
            known = {"env_id": name} if isinstance(name, str) and name else {}
            return checked({**known, "env_args": found}) if found else {}
    return {}


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


def _written(layout: Layout) -> dict[str, str]:
    following = {name.replace(OBS, NEXT_OBS, 1): f"next_obs/{_key(name)}" for name in layout.obs}
    known = {ACTION: "actions", REWARD: "rewards", TERMINATED: "dones", TRUNCATED: "truncated"}
    return {
        **{name: f"obs/{_key(name)}" for name in layout.obs}, **following, **known,
        **{name: name for name in layout.columns},
    }  # fmt: skip


def _check(container: Container, where: str) -> None:
    if not any(name.startswith("data") for name in container.names()):
        raise InputError(f"{where}: the group 'data' is missing")


TABLE = Convention(
    {"obs": OBS, "next_obs": NEXT_OBS, "actions": ACTION, "rewards": REWARD, "dones": TERMINATED,
     "truncated": TRUNCATED, PLACE: LAYOUT},
    episode=r"data/demo_(?P<episode>\d+)(?P<name>/.+|\.attrs/.+)", label="demo_{}",
    length=".attrs/num_samples", columns=True, single=FLAT, closed=True, written=_written, own=(ENV_ARGS, TOTAL),
    missing="has no observations; robomimic extracts them from states (dataset_states_to_obs)",
    provenance=_provenance, check=_check,
)  # fmt: skip


FORMATS = (
    array_format(
        "robomimic", "robomimic and Isaac Lab: one HDF5 file with a group for each episode", "file", hdf5.KIND,
        (TABLE,), Holds(nested_action=False), write, hdf5_writer.COMPRESSIONS, check=check,
    ),
)  # fmt: skip
