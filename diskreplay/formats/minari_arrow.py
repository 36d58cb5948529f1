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
from typing import Any, cast

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import array_slice
from diskreplay.formats.core.flat import ArrayLike, code_points
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import natural
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, nothing, whole, whole_episodes
from diskreplay.formats.core.untrusted import read_json
from diskreplay.formats.files import minari_dataset
from diskreplay.formats.files.arrow import damage, is_number, is_text, number_array, text_array
from diskreplay.formats.files.images import EncodedImages
from diskreplay.formats.files.minari_dataset import METADATA
from diskreplay.schema import spaces
from diskreplay.schema.columns import DTYPES
from diskreplay.schema.ragged import Lists

STORAGE, FILE = "arrow", "part-0.arrow"
BATCH_ROWS = 131_072
"""The most entries that Arrow's reader of datasets puts into a batch, unless it is told otherwise."""
OF_STEPS = ("actions", "rewards", "terminations", "truncations")
"""The columns whose last entry means nothing."""
COMPRESSIONS = ("zstd", "lz4", "none")


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
    import pyarrow

    leaves = {name: whole([values, steps.next_obs[name][-1:]]) for name, values in steps.obs.items()}
    leaves |= {name: whole([values, nothing(values)]) for name, values in steps.action.items()}
    flags = {"rewards": steps.reward, "terminations": steps.terminated, "truncations": steps.truncated}
    columns = {
        "observations": _nested(layout.obs_tree, leaves),
        "actions": _nested(layout.action_tree, leaves),
        **{key: pyarrow.array(whole([values, nothing(values)])) for key, values in flags.items()},
    }
    if steps.extra:
        arrays = {name: _leaf(name, whole([nothing(values), values])) for name, values in steps.extra.items()}
        shapes = {name: ",".join(map(str, shape)) for name, (shape, _) in layout.columns.items() if shape}
        fields = [  # Minari finds the shape of an info in a note
            pyarrow.field(name, array.type, metadata={"shape": shapes[name]} if name in shapes else None)
            for name, array in arrays.items()
        ]
        columns["infos"] = pyarrow.StructArray.from_arrays(list(arrays.values()), fields=fields)
    return pyarrow.RecordBatch.from_pydict(columns)


def _nested(tree: spaces.Tree, leaves: Mapping[str, Any]) -> Any:
    import pyarrow

    if isinstance(tree, str):
        return _leaf(tree, leaves[tree])
    children = tree.items() if isinstance(tree, dict) else enumerate(tree)
    arrays = {str(key): _nested(child, leaves) for key, child in children}
    return pyarrow.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def _leaf(name: str, values: Any) -> Any:
    if isinstance(values, Lists):
        return text_array(name, values)
    return number_array(values.reshape(len(values), -1) if values.ndim > 1 else values, sized=True)


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a dataset as a source, as the module's docstring says."""
    dataset = minari_dataset.Dataset(path, STORAGE, choice)
    container = _Episodes(dataset.data, "data/" if dataset.data != path else "", dataset.episodes)
    dataset.names.take(*container.files)
    yield dataset.source(container, str(dataset.data))


class _Episodes:
    """The directories of episodes as a container; the episode that was used last is in RAM.

    Attributes:
        files: the names of all files.
    """

    def __init__(self, data: pathlib.Path, root: str, episodes: int) -> None:
        self.files: list[str] = []
        self._told: dict[str, Any] = {}
        self._leaves: dict[str, tuple[pathlib.Path, Any, list[int]]] = {}
        self._table: tuple[pathlib.Path, Any] | None = None
        for number in range(episodes):
            folder, name = data / str(number), f"{root}{number}"
            self._told |= {f"{name}/{METADATA}/{key}": value for key, value in _described(folder / METADATA).items()}
            self.files += [f"{name}/{METADATA}", *(f"{name}/{file.name}" for file in folder.glob("*.arrow"))]
            for path, field, place in _leaves_of(_each(folder, lambda file: file.schema)[0], name, []):
                while path in self._leaves:  # two columns of one name
                    path += " again"
                self._leaves[path] = folder, field, place

    def names(self) -> list[str]:
        return [*self._leaves, *self._told]

    def value(self, name: str) -> Any:
        return self._told[name]

    def array(self, name: str) -> ArrayLike:
        """Return a leaf without the entry that means nothing."""
        import pyarrow

        folder, field, (at, *place) = self._leaves[name]
        path = name.removeprefix("data/").partition("/")[2]
        with damage(folder):
            if self._table is None or self._table[0] != folder:
                self._table = folder, pyarrow.concat_tables(_each(folder, lambda file: file.read_all()))
                self._table[1].validate()
            chunks = self._table[1].column(at).chunks
            for child in place:
                chunks = [chunk.field(child) for chunk in chunks]
            for chunk in chunks:
                chunk.validate(full=True)  # offsets and lengths are what the file says
            whole = chunks[0] if len(chunks) == 1 else pyarrow.concat_arrays(chunks)
            values = _values(f"{folder}: {path}", field, whole)
        return array_slice(values, 0, max(0, values.shape[0] - 1)) if path.startswith(OF_STEPS) else values


def _described(file: pathlib.Path) -> dict[str, Any]:
    told = read_json(file)
    try:
        return {**{key: told[key] for key in minari_dataset.filled(told)}, "total_steps": told["total_steps"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: does not say how many steps the episode has: {error!r}") from error


def _each(folder: pathlib.Path, take: Callable[[Any], Any]) -> list[Any]:
    import pyarrow

    found = []
    for path in sorted(folder.glob("*.arrow"), key=lambda path: natural(path.name)):
        with damage(folder), pyarrow.memory_map(str(path)) as mapped, pyarrow.ipc.open_file(mapped) as file:
            found.append(take(file))
    if not found:
        raise InputError(f"{folder}: holds no Arrow file")
    return found


def _leaves_of(fields: Any, path: str, place: list[int]) -> Iterator[tuple[str, Any, list[int]]]:
    import pyarrow

    for at, field in enumerate(fields):
        below = f"{path}/{field.name}", [*place, at]
        if pyarrow.types.is_struct(field.type):
            yield from _leaves_of(field.type, *below)
        else:
            yield below[0], field, below[1]


def _values(where: str, field: Any, array: Any) -> ArrayLike:
    import pyarrow

    kinds = pyarrow.types
    if is_text(array.type) and not array[:-1].null_count:
        return code_points(where, [(text or "").encode() for text in array.to_pylist()])
    if kinds.is_binary(array.type) and not array.null_count:
        return EncodedImages(where, lambda start, stop: array[start:stop].to_pylist(), len(array))
    if kinds.is_fixed_size_list(array.type) and is_number(array.type.value_type) and not array.null_count:
        note = (field.metadata or {}).get(b"shape")
        shape = [array.type.list_size] if note is None else [int(size) for size in note.split(b",") if size]
        return cast(Array, array.flatten().to_numpy(zero_copy_only=False).reshape(len(array), *shape))
    if is_number(array.type) and not array.null_count:
        return cast(Array, array.to_numpy(zero_copy_only=False))
    raise InputError(f"{where} has values of type {array.type}, or misses some; numbers, texts and images are read")


FORMATS = (
    Format(
        "minari-arrow", "Minari: a dataset directory, stored as Arrow", "directory",
        Holds(next_obs=False, facts=True, text=True, dtypes=DTYPES - {"complex64", "complex128"}),
        functools.partial(minari_dataset.is_dataset, storage=STORAGE), read, write, COMPRESSIONS,
        requires=("pyarrow",), extra="arrow",
    ),
)  # fmt: skip
