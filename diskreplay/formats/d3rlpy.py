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

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks, episodes_source, reshaped
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, flags, length
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, column_name
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.files import hdf5
from diskreplay.formats.files.hdf5_writer import COMPRESSIONS, EpisodesFile
from diskreplay.schema import ACTION, OBS

VERSION, LAYOUT = "2.1", "diskreplay"
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated")
EXTRA = "extra/"

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    layout, count = source.layout, 0
    with EpisodesFile(target, compression) as out:
        for episode in episode_blocks(source.blocks()):
            for key, values in _entries(episode):
                out.append(key, values)
            if episode.ends:
                for name in ("terminated", "truncated"):
                    out.file[f"{name}_{episode.number}"] = bool(getattr(episode.steps, name)[-1])
                out.end_episode()
                count = episode.number + 1
        out.file["columns"] = [*COLUMNS, *(f"{EXTRA}{name}" for name in layout.columns)]
        out.file["num_episodes"] = count
        out.file["version"] = VERSION
        hdf5.write_layout(out.file, LAYOUT, layout)


def _entries(episode: EpisodeBlock) -> Iterator[tuple[str, Array]]:
    number, steps = episode.number, episode.steps
    for leaf, (name, values) in enumerate(steps.obs.items()):
        key = f"observations_{number}" if name == OBS else f"observations_{number}_{leaf}"
        yield key, values.reshape(len(values), *_stored_shape(values))
    yield f"actions_{number}", _as_vectors(steps.action[ACTION])
    yield f"rewards_{number}", _as_vectors(steps.reward)
    for name, values in steps.extra.items():
        yield f"{EXTRA}{name}_{number}", values


def _stored_shape(obs: Array) -> tuple[int, ...]:
    shape = obs.shape[1:]
    return (1, *shape) if not shape or (len(shape) == 2 and obs.dtype == np.uint8) else shape


def _as_vectors(values: Array) -> Array:
    return values[:, None] if values.ndim == 1 else values


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a file as a source, as the module's docstring says."""
    where = str(path)
    with hdf5.opened(path) as file:
        version = _text(hdf5.dataset(file, "version", where).value())
        if version != VERSION:
            raise InputError(f"{where}: is of d3rlpy's version {version!r}; {VERSION} is read")
        count = hdf5.number(file, "num_episodes", where)
        columns = [_text(name) for name in np.ravel(hdf5.dataset(file, "columns", where).value())]
        layout = hdf5.read_layout(file, LAYOUT, where)

        def opened(number: int, layout: Layout | None) -> FlatArrays:
            return _episode(file, where, number, columns, layout)

        keys = (f"rewards_{number}" for number in range(count))
        lengths = [length(where, key, hdf5.dataset(file, key, where)) for key in keys]
        source = episodes_source(where, range(count), lengths, opened, layout)
        if layout is None and isinstance(source.layout.observation_space, gymnasium.spaces.Dict):
            leaves = gymnasium.spaces.Tuple([*source.layout.observation_space.spaces.values()])
            source = dataclasses.replace(
                source, layout=dataclasses.replace(source.layout, observation_space=leaves, stacks=())
            )
        yield source


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _episode(file: h5py.File, where: str, number: int, columns: list[str], layout: Layout | None) -> FlatArrays:
    where = f"{where}, episode {number}"

    def has(key: str) -> bool:
        return hdf5.find(file, f"{key}_{number}", where) is not None

    def array(key: str) -> ArrayLike:
        return hdf5.dataset(file, f"{key}_{number}", where)

    rewards, action = array("rewards"), array("actions")
    count = length(where, "rewards", rewards)
    last = np.arange(count) == count - 1
    terminated = last & _flag(file, where, f"terminated_{number}")
    # Without a word about it, an episode that was not terminated was cut off by a time limit, as d3rlpy has it.
    truncated = last & (_flag(file, where, f"truncated_{number}") if has("truncated") else ~terminated)
    obs = _observations(file, number, where, layout)
    if layout is not None:
        obs = {name: reshaped(values, layout.obs[name][0]) if name in layout.obs else values
               for name, values in obs.items()}  # fmt: skip
        action = reshaped(action, layout.action[ACTION][0]) if ACTION in layout.action else action
    elif np.dtype(action.dtype).kind in "iu":
        action = reshaped(action, ())
    names = (key for key in columns if key not in COLUMNS and has(key))
    extra = {column_name(key.removeprefix(EXTRA)): array(key) for key in names}
    return FlatArrays(
        where, obs, {ACTION: action}, terminated, truncated, last, reshaped(rewards, ()), extra, layout=layout
    )  # fmt: skip


def _observations(file: h5py.File, number: int, where: str, layout: Layout | None) -> dict[str, ArrayLike]:
    """Return one array, or those of a tuple, by our names."""
    key = f"observations_{number}"
    keys: list[str] = []
    while hdf5.find(file, key, where) is None and hdf5.find(file, f"{key}_{len(keys)}", where) is not None:
        keys.append(f"{key}_{len(keys)}")
    if not keys:
        return {OBS: hdf5.dataset(file, key, where)}
    names = [f"{OBS}/{leaf}" for leaf in range(len(keys))] if layout is None else list(layout.obs)
    if len(names) != len(keys):
        raise InputError(f"{where}: has {len(keys)} observation arrays, where {len(names)} were described")
    return {name: hdf5.dataset(file, key, where) for name, key in zip(names, keys, strict=True)}


def _flag(file: h5py.File, where: str, key: str) -> bool:
    found = hdf5.dataset(file, key, where)
    return bool(flags(where, key, np.asarray(found.value()).reshape(-1), 1)[0])


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is an HDF5 file that numbers its episodes as d3rlpy does."""
    if not hdf5.is_hdf5(path):
        return False
    with hdf5.opened(path) as file:
        return {"columns", "num_episodes", "version"} <= set(hdf5.keys(file, str(path)))


FORMATS = (
    Format(
        "d3rlpy", "d3rlpy: one HDF5 file, version 2.1", "file",
        Holds(final_obs=False, next_obs=False, nested_action=False, empty=False), recognise, read, write, COMPRESSIONS,
    ),
)  # fmt: skip
