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

import contextlib
import functools
import io
import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

from diskreplay.errors import InputError
from diskreplay.formats.core.array_writer import write_episodes
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.convention import FINAL_OBS
from diskreplay.formats.core.flat import ArrayLike, code_points, utf8
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, nothing, whole
from diskreplay.formats.files import hdf5, minari_dataset
from diskreplay.formats.files.hdf5_writer import COMPRESSIONS, created
from diskreplay.formats.files.images import EncodedImages
from diskreplay.schema.columns import OBS, REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.ragged import Lists

STORAGE, MAIN = "hdf5", "main_data.hdf5"


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    data = target / "data"
    data.mkdir(parents=True)
    layout, count = source.layout, 0
    names = minari_dataset.leaf_paths(layout, STORAGE)
    names |= {name.replace(OBS, FINAL_OBS, 1): names[name] for name in layout.obs}  # behind the others
    names |= {REWARD: "rewards", TERMINATED: "terminations", TRUNCATED: "truncations"}
    names |= {name: f"infos/{name}" for name in layout.columns}

    def stored(name: str, values: Any, before: int) -> Any:
        if name in layout.columns and not before:
            values = whole([nothing(values), values])
        if not isinstance(values, Lists):
            return values
        texts = utf8(name, values)
        if any(b"\0" in text for text in texts):
            raise InputError(f"minari cannot hold {name}: HDF5 has no text with the character 0")
        return np.array(texts, object)

    with created(data / MAIN, compression) as out:
        for episode in write_episodes(source, out, names, "episode_{}/{}".format, stored):
            told = minari_dataset.told(source, episode.number)
            out.file[f"episode_{episode.number}"].attrs.update(
                {"id": episode.number, "total_steps": episode.stop, **told}
            )
            count = episode.number + 1
    minari_dataset.write_metadata(data, STORAGE, source, count)


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a dataset as a source, as the module's docstring says."""
    dataset = minari_dataset.Dataset(path, STORAGE, choice)
    main = dataset.data / MAIN
    dataset.names.take(main.relative_to(path).as_posix())
    none = functools.partial(h5py.File, io.BytesIO(), "w")
    with hdf5.opened(main) if dataset.episodes else contextlib.nullcontext(hdf5.Hdf5File(none(), str(main))) as file:
        yield dataset.source(_Episodes(file, dataset.declared), str(main))


class _Episodes:
    """A file whose arrays are values, texts, or images that are encoded; ``declared`` has their shapes."""

    def __init__(self, file: hdf5.Hdf5File, declared: Layout) -> None:
        self._file, self.names, self.value = file, file.names, file.value
        paths = minari_dataset.leaf_paths(declared, STORAGE)
        self._shapes = {path: declared.step_shapes[name][0] for name, path in paths.items()}

    def array(self, name: str) -> ArrayLike:
        array, path = self._file.array(name), name.partition("/")[2]
        if len(array.shape) == 1 and h5py.check_string_dtype(array.dtype):
            return code_points(array.where, array[:])
        varying = len(array.shape) == 1 and h5py.check_vlen_dtype(array.dtype) == np.uint8
        padded = len(array.shape) == 2 and len(self._shapes.get(path, ())) > 1 and array.dtype == np.uint8
        if not (varying or padded):
            return array
        return EncodedImages(
            array.where, lambda start, stop: [row.tobytes() for row in array[start:stop]], array.shape[0]
        )


FORMATS = (
    Format(
        "minari", "Minari: a dataset directory, stored as HDF5", "directory",
        Holds(next_obs=False, facts=True, text=True),
        functools.partial(minari_dataset.is_dataset, storage=STORAGE), read, write, COMPRESSIONS,
    ),
)  # fmt: skip
