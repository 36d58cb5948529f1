"""The dataset directories of Minari, version 0.5, in its storage "hdf5".

Minari is of Younis et al. 2024, "Minari: A Standard Offline Reinforcement Learning Format".
``minari.load_dataset("pong-v0")`` reads what stands in ``pong-v0`` below ``$MINARI_DATASETS_PATH``:

===========================  =========================================================================================
``data/metadata.json``       spaces as JSON, totals, ``dataset_id``, and the layout as JSON in ``diskreplay``, which
                             Minari does not read
``data/main_data.hdf5``      a group ``episode_<i>`` for every episode, with the attributes ``id`` and ``total_steps``,
                             ``seed`` where it is known, and all facts of the episode as JSON in ``diskreplay``
===========================  =========================================================================================

Nested spaces are nested groups; the parts of a Tuple are ``_index_<i>``. What an episode holds says
:mod:`diskreplay.formats.files.minari_dataset`.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core import flat
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks
from diskreplay.formats.core.flat import ArrayLike, code_points, utf8
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import declared_count
from diskreplay.formats.files import hdf5, minari_dataset
from diskreplay.formats.files.hdf5_writer import COMPRESSIONS, created
from diskreplay.formats.files.images import EncodedImages
from diskreplay.ragged import Lists

STORAGE, MAIN = "hdf5", "main_data.hdf5"

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    data = target / "data"
    data.mkdir(parents=True)
    paths, episodes = minari_dataset.leaf_paths(source.layout, STORAGE), 0
    texts: dict[str, list[bytes]] = collections.defaultdict(list)
    with created(data / MAIN, compression) as out:
        for episode in episode_blocks(source.blocks()):
            group = f"episode_{episode.number}"
            for key, values in _entries(episode, paths):
                if isinstance(values, Lists):
                    texts[key] += utf8(key, values)
                else:
                    out.append(f"{group}/{key}", values)
            if episode.ends:
                out.end()
                for key, each in texts.items():
                    if any(b"\0" in text for text in each):
                        raise InputError(f"minari cannot hold {key}: HDF5 has no text with the character 0")
                    out.file.create_dataset(f"{group}/{key}", data=each, dtype=h5py.string_dtype())
                texts.clear()
                told = minari_dataset.told(source, episode.number)
                out.file[group].attrs.update({"id": episode.number, "total_steps": episode.stop, **told})
                episodes = episode.number + 1
    minari_dataset.write_metadata(data, STORAGE, source, episodes)


def _entries(episode: EpisodeBlock, paths: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    steps = episode.steps
    for name, values in steps.obs.items():
        yield paths[name], values
        if episode.ends:
            yield paths[name], steps.next_obs[name][-1:]
    for name, values in steps.action.items():
        yield paths[name], values
    yield "rewards", steps.reward
    yield "terminations", steps.terminated
    yield "truncations", steps.truncated
    for name, values in steps.extra.items():
        if not episode.start:
            yield f"infos/{name}", np.zeros_like(values[:1])
        yield f"infos/{name}", values


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a dataset as a source, as the module's docstring says."""
    metadata = minari_dataset.read_metadata(path, STORAGE, choice)
    main, names = minari_dataset.data_directory(path) / MAIN, metadata.names
    leaves = {**metadata.declared.obs, **metadata.declared.action}
    paths = minari_dataset.leaf_paths(metadata.declared, STORAGE)
    shapes = {paths[name]: None if name in metadata.declared.texts else shape for name, (shape, _) in leaves.items()}
    groups = [f"episode_{number}" for number in range(metadata.episodes)]
    with hdf5.opened(main) if metadata.episodes else contextlib.nullcontext() as file:

        def group(number: int) -> h5py.Group:
            assert file is not None
            return hdf5.subgroup(file, groups[number], str(main))

        def arrays(number: int) -> minari_dataset.Arrays:
            where = f"{main}, episode {number}"
            found, attributes = hdf5.openers(group(number), where, groups[number])
            names.add(*found, *attributes)
            each = {name.removeprefix(f"{groups[number]}/"): open for name, open in found.items()}
            return {path: functools.partial(_opened, open, shapes.get(path, ())) for path, open in each.items()}

        def length(number: int) -> int:
            where = f"{main}, episode {number}"
            declared = hdf5.attribute(group(number), "total_steps", where)
            if declared is not None:
                return declared_count(declared, f"{where}: total_steps")
            return flat.length(where, "rewards", hdf5.dataset(group(number), "rewards", where))

        def told(number: int) -> dict[str, Any]:
            where = f"{main}, episode {number}"
            return {key: hdf5.attribute(group(number), key, where) for key in minari_dataset.OF_EPISODES}

        if file is not None:
            names.add(*itertools.chain(*hdf5.openers(file, str(main), skipped=groups)))
        names.take(main.relative_to(path).as_posix())
        roots = "episode_{}/", "episode_{}.attrs/"
        stored = minari_dataset.StoredEpisodes(str(main), *roots, arrays, length, told)
        yield minari_dataset.source(metadata, stored, choice)


def _opened(open: Callable[[], hdf5.Hdf5Array], shape: tuple[int, ...] | None) -> ArrayLike:
    """Open an array of values of a shape, or the images that it holds, each encoded in any number of bytes.

    Texts, whose shape is None, are read at once.
    """
    array = open()
    if shape is None:
        is_text = len(array.shape) == 1 and h5py.check_string_dtype(array.dtype)
        return code_points(array.where, array[:]) if is_text else array
    if len(array.shape) == 1:
        encoded = h5py.check_vlen_dtype(array.dtype) == np.uint8
    else:
        encoded = len(array.shape) == 2 and len(shape) > 1 and array.dtype == np.uint8
    if not encoded:
        return array
    return EncodedImages(array.where, lambda start, stop: [row.tobytes() for row in array[start:stop]], array.shape[0])


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory with Minari's metadata."""
    return minari_dataset.is_dataset(path, STORAGE)


FORMATS = (
    Format(
        "minari", "Minari: a dataset directory, stored as HDF5", "directory",
        Holds(next_obs=False, facts=True, text=True),
        recognise, read, write, COMPRESSIONS,
    ),
)  # fmt: skip
