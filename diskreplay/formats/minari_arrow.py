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

import functools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import array_slice
from diskreplay.formats.core.flat import ArrayLike, code_points, utf8
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.order import natural
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, whole, whole_episodes
from diskreplay.formats.core.untrusted import declared_count, read_json
from diskreplay.formats.files import minari_dataset
from diskreplay.formats.files.arrow import damage
from diskreplay.formats.files.images import EncodedImages
from diskreplay.formats.files.minari_dataset import METADATA
from diskreplay.ragged import Lists
from diskreplay.schema import DTYPES

STORAGE, FILE = "arrow", "part-0.arrow"
BATCH_ROWS = 131_072
"""The most entries that Arrow's reader of datasets puts into a batch, unless it is told otherwise."""
OF_STEPS = ("actions", "rewards", "terminations", "truncations")
"""The columns whose last entry means nothing."""
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
    leaves |= {name: whole([values, _nothing(values)]) for name, values in steps.action.items()}
    flags = {"rewards": steps.reward, "terminations": steps.terminated, "truncations": steps.truncated}
    columns = {
        "observations": _nested(layout.obs_tree, leaves),
        "actions": _nested(layout.action_tree, leaves),
        **{key: pyarrow.array(np.concatenate([v, np.zeros_like(v[:1])])) for key, v in flags.items()},
    }
    if steps.extra:
        infos = {name: np.concatenate([np.zeros_like(v[:1]), v]) for name, v in steps.extra.items()}
        arrays = [_leaf(values) for values in infos.values()]
        fields = [
            pyarrow.field(name, array.type, metadata=_shape_note(infos[name]))
            for name, array in zip(infos, arrays, strict=True)
        ]
        columns["infos"] = pyarrow.StructArray.from_arrays(arrays, fields=fields)
    return pyarrow.RecordBatch.from_pydict(columns)


def _nothing(values: Any) -> Any:
    """Return an entry that means nothing, for an array or Lists."""
    return Lists(values.values[:0], np.zeros(2, np.int64)) if isinstance(values, Lists) else np.zeros_like(values[:1])


def _nested(tree: spaces.Tree, leaves: Mapping[str, Any]) -> Any:
    """Return a nested value of every step as an Arrow array."""
    import pyarrow

    if isinstance(tree, str):
        values = leaves[tree]
        texts = [text.decode() for text in utf8(tree, values)] if isinstance(values, Lists) else None
        return _leaf(values) if texts is None else pyarrow.array(texts)
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    arrays = {str(key): _nested(child, leaves) for key, child in children}
    return pyarrow.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def _leaf(values: Array) -> Any:
    import pyarrow

    items = pyarrow.array(values.reshape(-1))
    return items if values.ndim == 1 else pyarrow.FixedSizeListArray.from_arrays(items, values[0].size)


def _shape_note(values: Array) -> dict[str, str] | None:
    """Return the note in which Minari finds the shape of an info."""
    return {"shape": ",".join(map(str, values.shape[1:]))} if values.ndim > 1 else None


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a dataset as a source, as the module's docstring says."""
    metadata, data = minari_dataset.read_metadata(path, STORAGE, choice), minari_dataset.data_directory(path)
    root, names = "data/{}/" if data != path else "{}/", metadata.names

    def arrays(number: int) -> minari_dataset.Arrays:
        files, found = _arrays(data / str(number))
        names.add(*(root.format(number) + key for key in found))
        names.take(*(root.format(number) + file.name for file in files))
        return found

    def length(number: int) -> int:
        try:
            return declared_count(told(number)["total_steps"], f"{data / str(number) / METADATA}: total_steps")
        except (KeyError, TypeError) as error:
            file = data / str(number) / METADATA
            raise InputError(f"{file}: does not say how many steps the episode has: {error!r}") from error

    def told(number: int) -> dict[str, Any]:
        found = read_json(data / str(number) / METADATA)
        found = found if isinstance(found, dict) else {}
        described = root.format(number) + METADATA
        names.add(*(f"{described}/{key}" for key in minari_dataset.filled(found)))
        names.take(described)
        return {key: found.get(key) for key in found}

    stored = minari_dataset.StoredEpisodes(str(data), root, f"{root}{METADATA}/", arrays, length, told)
    yield minari_dataset.source(metadata, stored, choice)


def _arrays(directory: pathlib.Path) -> tuple[list[pathlib.Path], minari_dataset.Arrays]:
    """Return the files of an episode, and functions that open its arrays by path."""
    import pyarrow

    files = sorted(directory.glob("*.arrow"), key=lambda file: natural(file.name))
    if not files:
        raise InputError(f"{directory}: holds no Arrow file")
    with damage(directory):
        table = pyarrow.concat_tables([_table(file) for file in files])
        leaves = [leaf for field, column in zip(table.schema, table.columns, strict=True)
                  for leaf in _leaves(field.name, field, column.chunks)]  # fmt: skip
    found: dict[str, Callable[[], ArrayLike | None]] = {}
    for path, field, chunks in leaves if table.num_rows else ():
        while path in found:  # two columns of one name
            path += " again"
        found[path] = functools.partial(_opened, directory, path, field, chunks)
    return files, found


def _table(file: pathlib.Path) -> Any:
    import pyarrow

    with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_file(mapped) as opened:
        table = opened.read_all()
        table.validate()
        return table


def _leaves(path: str, field: Any, chunks: list[Any]) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield the leaves of an Arrow column: path, field and arrays."""
    import pyarrow

    if not pyarrow.types.is_struct(field.type):
        yield path, field, chunks
        return
    for at, child in enumerate(field.type):
        yield from _leaves(f"{path}/{child.name}", child, [chunk.field(at) for chunk in chunks])


def _opened(directory: pathlib.Path, path: str, field: Any, chunks: list[Any]) -> ArrayLike | None:
    """Return a leaf without the entry that means nothing; None if it holds neither numbers, texts nor images."""
    import pyarrow

    with damage(directory):
        for chunk in chunks:
            chunk.validate(full=True)  # offsets and lengths are what the file says
        whole = chunks[0] if len(chunks) == 1 else pyarrow.concat_arrays(chunks)
        array = _values(path, field, whole, f"{directory}: {path}")
    if array is not None and path.startswith(OF_STEPS):
        return array_slice(array, 0, max(0, array.shape[0] - 1))
    return array


def _values(path: str, field: Any, array: Any, where: str) -> ArrayLike | None:
    import pyarrow

    kinds = pyarrow.types
    if kinds.is_string(array.type) and path.startswith(("observations", "actions")) and not array[:-1].null_count:
        return code_points(where, [(text or "").encode() for text in array.to_pylist()])
    if array.null_count:
        return None
    if kinds.is_binary(array.type):
        return EncodedImages(where, lambda start, stop: array[start:stop].to_pylist(), len(array))
    if kinds.is_fixed_size_list(array.type) and _is_number(array.type.value_type):
        note = (field.metadata or {}).get(b"shape")
        shape = [array.type.list_size] if note is None else [int(size) for size in note.split(b",") if size]
        values: Array = array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), *shape)
        return values
    numbers: Array | None = array.to_numpy(zero_copy_only=False) if _is_number(array.type) else None
    return numbers


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
