"""The dataset directories of Minari in its storage "arrow".

As in :mod:`diskreplay.formats.minari`, but with a directory for every episode in place of the HDF5 file:

===============================  ====================================================================================
``data/<i>/part-0.arrow``        one record batch of Arrow's file format; nested spaces are structs, the parts of a
                                 Tuple are ``<i>``, arrays are lists of fixed size
``data/<i>/metadata.json``       ``id`` and ``total_steps``
===============================  ====================================================================================

1. All columns of a batch are equally long: ``actions``, ``rewards`` and flags have an entry more, which means nothing.
2. Minari reads an episode as one batch of Arrow's, which has at most ``BATCH_ROWS`` entries. Longer ones are refused.
3. One episode is in RAM, where the other formats have a few MB of it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import array_slice
from diskreplay.formats.core.flat import ArrayLike, code_points
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, nothing, whole, whole_episodes
from diskreplay.formats.core.untrusted import declared_count, read_json
from diskreplay.formats.files import minari_dataset
from diskreplay.formats.files.arrow import damage, is_text, text_array
from diskreplay.formats.files.images import EncodedImages
from diskreplay.formats.files.minari_dataset import METADATA
from diskreplay.ragged import Lists
from diskreplay.schema import DTYPES

STORAGE, FILE = "arrow", "part-0.arrow"
BATCH_ROWS = 131_072
"""The most entries that Arrow's reader of datasets puts into a batch, unless it is told otherwise."""
OF_STEPS = ("actions", "rewards", "terminations", "truncations")
"""The columns whose last entry means nothing."""
OF_TEXTS = ("observations", "actions", "infos")
"""The columns that may hold texts."""
COMPRESSIONS = ("zstd", "lz4", "none")

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    import pyarrow

    data = target / "data"
    data.mkdir(parents=True)
    options = pyarrow.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    episodes = 0
    for number, steps in enumerate(whole_episodes(source.blocks())):
        if len(steps) >= BATCH_ROWS:
            raise InputError(
                f"minari-arrow holds episodes of at most {BATCH_ROWS - 1:,} steps, episode {number} has "
                f"{len(steps):,}; the format minari holds it"
            )
        directory = data / str(number)
        directory.mkdir()
        batch = _batch(steps, source.layout)
        with pyarrow.ipc.new_file(str(directory / FILE), batch.schema, options=options) as file:
            file.write_batch(batch)
        told = minari_dataset.told(source, number)
        (directory / METADATA).write_text(json.dumps({"id": number, "total_steps": len(steps), **told}))
        episodes = number + 1
    minari_dataset.write_metadata(data, STORAGE, source, episodes)


def _batch(steps: Transitions, layout: Layout) -> Any:
    """Return an episode as a pyarrow.RecordBatch."""
    import pyarrow

    leaves = {name: whole([values, steps.next_obs[name][-1:]]) for name, values in steps.obs.items()}
    leaves |= {name: whole([values, nothing(values)]) for name, values in steps.action.items()}
    flags = {"rewards": steps.reward, "terminations": steps.terminated, "truncations": steps.truncated}
    columns = {
        "observations": _nested(layout.obs_tree, leaves),
        "actions": _nested(layout.action_tree, leaves),
        **{key: pyarrow.array(np.concatenate([v, np.zeros_like(v[:1])])) for key, v in flags.items()},
    }
    if steps.extra:
        infos = {name: whole([nothing(values), values]) for name, values in steps.extra.items()}
        arrays = [_leaf(name, values) for name, values in infos.items()]
        fields = [
            pyarrow.field(name, array.type, metadata=_shape_note(infos[name]))
            for name, array in zip(infos, arrays, strict=True)
        ]
        columns["infos"] = pyarrow.StructArray.from_arrays(arrays, fields=fields)
    return pyarrow.RecordBatch.from_pydict(columns)


def _nested(tree: spaces.Tree, leaves: Mapping[str, Any]) -> Any:
    """Return a nested value of every step as an Arrow array."""
    import pyarrow

    if isinstance(tree, str):
        return _leaf(tree, leaves[tree])
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    arrays = {str(key): _nested(child, leaves) for key, child in children}
    return pyarrow.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def _leaf(name: str, values: Any) -> Any:
    import pyarrow

    if isinstance(values, Lists):
        return text_array(name, values)
    items = pyarrow.array(values.reshape(-1))
    return items if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(items, values[0].size)


def _shape_note(values: Any) -> dict[str, str] | None:
    """Return the note in which Minari finds the shape of an info."""
    is_array = not isinstance(values, Lists) and values.ndim > 1
    return {"shape": ",".join(map(str, values.shape[1:]))} if is_array else None


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a dataset as a source, as the module's docstring says."""
    metadata, data = minari_dataset.read_metadata(path, STORAGE), minari_dataset.data_directory(path)

    def arrays(number: int) -> dict[str, ArrayLike]:
        return _arrays(data / str(number))

    def length(number: int) -> int:
        file = data / str(number) / METADATA
        try:
            return declared_count(read_json(file)["total_steps"], f"{file}: total_steps")
        except (KeyError, TypeError) as error:
            raise InputError(f"{file}: does not say how many steps the episode has: {error!r}") from error

    def told(number: int) -> dict[str, Any]:
        found = read_json(data / str(number) / METADATA)
        keys = (*minari_dataset.TOLD_OF_EPISODES, minari_dataset.OPTIONS)
        return {key: found.get(key) for key in keys} if isinstance(found, dict) else {}

    yield minari_dataset.source(str(data), metadata, arrays, length, told)


def _arrays(directory: pathlib.Path) -> dict[str, ArrayLike]:
    """Return all arrays of an episode by path, without the entries that mean nothing."""
    import pyarrow

    files = sorted(directory.glob("*.arrow"))
    if not files:
        raise InputError(f"{directory}: holds no Arrow file")
    with damage(directory):
        table = pyarrow.concat_tables([_table(file) for file in files]).combine_chunks()
    found: dict[str, ArrayLike] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        with damage(directory):
            if column.chunks:
                found |= dict(_leaves(field.name, column.chunks[0], field, f"{directory}: {field.name}"))
    return {
        path: array_slice(array, 0, max(0, array.shape[0] - 1)) if path.startswith(OF_STEPS) else array
        for path, array in found.items()
    }


def _said(path: str, array: Any) -> Any:
    """Return the entries of an Arrow array that mean something."""
    return array[:-1] if path.startswith(OF_STEPS) else array


def _table(file: pathlib.Path) -> Any:
    import pyarrow

    with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_file(mapped) as opened:
        table = opened.read_all()
        table.validate(full=True)  # offsets and lengths are what the file says
        return table


def _leaves(path: str, array: Any, field: Any, where: str) -> Iterator[tuple[str, ArrayLike]]:
    """Yield the leaves of an Arrow array by path, but none of what holds neither numbers nor images."""
    import pyarrow

    kinds = pyarrow.types
    if kinds.is_struct(array.type):
        for at, child in enumerate(array.type):
            yield from _leaves(f"{path}/{child.name}", array.field(at), child, where)
    elif kinds.is_binary(array.type) and not array.null_count:
        yield path, EncodedImages(where, lambda start, stop: array[start:stop].to_pylist(), len(array))
    elif path.startswith(OF_TEXTS) and is_text(array.type) and not _said(path, array).null_count:
        yield path, code_points(where, [(text or "").encode() for text in array.to_pylist()])
    elif kinds.is_fixed_size_list(array.type) and _is_number(array.type.value_type) and not array.null_count:
        note = (field.metadata or {}).get(b"shape")
        shape = [array.type.list_size] if note is None else [int(size) for size in note.split(b",") if size]
        yield path, array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), *shape)
    elif _is_number(array.type) and not array.null_count:
        yield path, array.to_numpy(zero_copy_only=False)


def _is_number(kind: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind))


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory with Minari's metadata."""
    return minari_dataset.is_dataset(path, STORAGE)


FORMATS = (
    Format(
        "minari-arrow", "Minari: a dataset directory, stored as Arrow", "directory",
        Holds(next_obs=False, facts=True, text=True, dtypes=DTYPES - {"complex64", "complex128"}), recognise, read,
        write, COMPRESSIONS, requires=("pyarrow",), extra="arrow",
    ),
)  # fmt: skip
