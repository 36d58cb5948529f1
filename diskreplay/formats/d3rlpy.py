"""The HDF5 layout "2.1" of d3rlpy (Seno and Imai 2022, "d3rlpy: An Offline Deep Reinforcement Learning Library").

Arrays of their own for every episode ``i``, with its number in their names:

===========================  ============================  ===========================================================
key                          shape                         from
===========================  ============================  ===========================================================
``observations_<i>``         ``(n, *obs_shape)``           ``obs``
``observations_<i>_<j>``     ``(n, *shape)``               leaf ``j`` of Dict and Tuple observations
``actions_<i>``              ``(n, *action_shape)``        ``action``; single integers as ``(n, 1)``
``rewards_<i>``              ``(n, 1)``                    ``reward``
``terminated_<i>``           bool                          whether the episode was terminated
``truncated_<i>``            bool                          whether it was truncated; d3rlpy itself knows no such array
``extra/<name>_<i>``         ``(n, *shape)``               the user's own columns, likewise
``columns``                  strings                       the names above, without numbers
``num_episodes, version``    an integer, ``"2.1"``
``diskreplay``               a string                      the layout as JSON, which d3rlpy does not read
===========================  ============================  ===========================================================

1. An episode has one observation a step, so that there is no place for a final one. d3rlpy's ``ReplayBuffer`` gives no
   transition for the last step of an episode that was not terminated; nor does an import, and the step before it
   becomes the episode's last.
2. Observations that are single numbers get an axis of length 1, and frames ``(height, width)`` of bytes one of a
   channel, because d3rlpy's encoders want vectors or ``(channels, height, width)``. Other images are not transposed.
3. What comes in without a layout: actions of one integer are Discrete, several observation arrays are a Tuple.
"""

from __future__ import annotations

import json
import pathlib

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.array_writer import write_episodes
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import EXTRA, LAYOUT, Convention
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import declared_count
from diskreplay.formats.files import hdf5, hdf5_writer
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

VERSION, PLACE = "2.1", "diskreplay"
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated")


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    layout, count = source.layout, 0
    names = {ours: name for ours, name in _written(layout).items() if ours not in (TERMINATED, TRUNCATED)}
    with hdf5_writer.created(target, compression) as out:
        for episode in write_episodes(source, out, names, _place, _stored):
            for name in (TERMINATED, TRUNCATED):
                out.put(f"{name}_{episode.number}", bool(getattr(episode.steps, name)[-1]))
            count = episode.number + 1
        out.put("columns", [*COLUMNS, *(f"{EXTRA}/{name}" for name in layout.columns)])
        out.put("num_episodes", count)
        out.put("version", VERSION)
        out.put(PLACE, json.dumps(layout.to_json()))


def _place(number: int, name: str) -> str:
    """Return the name of an episode's array: ``observations_3_0`` for ``observations/0``."""
    root, _, leaf = name.partition("/")
    return f"{root}_{number}_{leaf}" if root == "observations" and leaf else f"{name}_{number}"


def _stored(name: str, values: Array, before: int) -> Array:
    root = name.partition("/")[0]
    single = values.ndim == 1 and root in (OBS, ACTION, REWARD)
    return values[:, None] if single or (root == OBS and values.ndim == 3 and values.dtype == np.uint8) else values


def _written(layout: Layout) -> dict[str, str]:
    obs = list(layout.obs)
    names = {name: "observations" if obs == [OBS] else f"observations/{leaf}" for leaf, name in enumerate(obs)}
    known = {ACTION: "actions", REWARD: "rewards", TERMINATED: "terminated", TRUNCATED: "truncated"}
    return {**names, **known, **{name: f"{EXTRA}/{name}" for name in layout.columns}}


def _check(container: Container, where: str) -> None:
    version, _ = container.value("version"), container.value("columns")
    version = version.decode(errors="replace") if isinstance(version, bytes) else str(version)
    if version != VERSION:
        raise InputError(f"{where}: is of d3rlpy's version {version!r}; {VERSION} and 1.x are read")
    names = set(container.names())
    for number in range(declared_count(container.value("num_episodes"), f"{where}: num_episodes")):
        if f"rewards_{number}" not in names:
            raise InputError(f"{where}: the array 'rewards_{number}' is missing")


def _check_first(container: Container, where: str) -> None:
    if "version" not in container.names():
        raise InputError(
            f"{where}: has no version: before 1.0 d3rlpy put rewards one step later; load it "
            "there, and save it again with d3rlpy 1.x"
        )
    container.value("version")


TABLE = Convention(
    {"observations": OBS, "actions": ACTION, "rewards": REWARD, "terminated": TERMINATED, "truncated": TRUNCATED,
     "extra": EXTRA, PLACE: LAYOUT},
    marks=frozenset({"columns", "num_episodes", "version"}), count="num_episodes",
    episode=r"(?P<name>observations(?=_\d+(?:_\d+)?$)|(?!observations_).+)_(?P<episode>\d+)(?:_(?P<leaf>\d+))?",
    required=(OBS, ACTION, REWARD, TERMINATED), columns=True, closed=True, written=_written, check=_check,
)  # fmt: skip
FIRST = Convention(
    {"observations": OBS, "actions": ACTION, "rewards": REWARD, "terminals": TERMINATED, "episode_terminals": "/last"},
    marks=frozenset({"episode_terminals", "terminals"}), check=_check_first,
)  # fmt: skip
"""Flat arrays, as ``MDPDataset.dump`` of d3rlpy 1.x writes them."""
TABLES = (FIRST, TABLE)


FORMATS = (
    array_format(
        "d3rlpy", "d3rlpy: one HDF5 file, version 2.1; 1.x comes in", "file", hdf5.KIND, TABLES,
        Holds(final_obs=False, next_obs=False, nested_action=False, empty=False), write,
        hdf5_writer.COMPRESSIONS,
    ),
)  # fmt: skip
