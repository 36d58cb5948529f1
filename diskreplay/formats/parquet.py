"""Parquet, one row a step, as ``datasets.load_dataset("parquet", ...)`` reads it; columns are named as in LeRobot.

=======================  ===============  =====================================================================
column                   of               from
=======================  ===============  =====================================================================
``observation``          each value       ``obs``; of nested spaces ``observation.<name>``
``action``               each value       ``action``; of nested spaces ``action.<name>``
``next.reward``          number           ``reward``
``next.terminated``      bool             ``terminated``
``next.truncated``       bool             ``truncated``
``next.done``            bool             the step is the last of its episode, in whatever way
``final_observation``    each value       the true next observation of an episode's last step; null in all other rows
``episode_index``        int64            the episode's number
``frame_index``          int64            the step's number in its episode
``index``                int64            the row's number
``<name>``               each value       the user's own columns
=======================  ===============  =====================================================================

1. Single numbers are numbers, arrays are lists of fixed size, nested for more than one axis. In ``final_observation``
   their size is not fixed, because pyarrow before 26 reads no nulls among lists of a fixed size. Earlier versions wrote
   such files, which pyarrow 26 reads. Rows of a ragged column are lists of any size of its items.
2. Images, uint8 with 1, 3 or 4 channels as the last axis or with none, are PNG, as Hugging Face's ``Image`` has them:
   a struct of ``bytes`` and ``path``. With the compressions "zstd" and "none" they are raw bytes in C order.
3. The schema's metadata hold the layout (``diskreplay``), and what ``datasets`` is to decode (``huggingface``).

What comes in is a file, or a directory of them, read in the order of their names; of LeRobot's datasets those below
``data``. It needs ``action``, observations, and either ``episode_index`` or flags. Columns of text and the like are not
read, nor are videos that lie beside.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.flat import FlatArrays, flags, leaves_of
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, Shape, column_name, read_description
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.core.untrusted import check_size, parse_json, stored_bytes
from diskreplay.formats.files import images
from diskreplay.formats.files.arrow import damage, number_array
from diskreplay.formats.files.minari_dataset import refuse_parquet
from diskreplay.formats.files.parquet_array import ParquetArray, is_parquet, is_readable
from diskreplay.ragged import Lists
from diskreplay.schema import ACTION, DTYPES, OBS, REWARD, TERMINATED, TRUNCATED

GROUP_BYTES = 32 << 20
"""The number of decoded bytes of a row group."""
COMPRESSIONS = {"png": "zstd", "zstd": "zstd", "none": "none"}
DESCRIPTION = b"diskreplay"
EPISODE, FRAME, INDEX, DONE = "/episode", "/frame", "/index", "/done"
"""The names here of what is not a column of a store: no column can have such a name."""
PLACES = {EPISODE: "episode_index", FRAME: "frame_index", INDEX: "index", DONE: "next.done"}
FLAGS = {REWARD: "next.reward", TERMINATED: "next.terminated", TRUNCATED: "next.truncated"}
FINAL = "next_obs"
ROOTS = {
    "observation": OBS, "observations": OBS, OBS: OBS, "action": ACTION, "actions": ACTION, "final_observation": FINAL,
}  # fmt: skip
SYNONYMS = {
    "rewards": REWARD, "terminals": TERMINATED, "terminal": TERMINATED, "terminations": TERMINATED,
    "timeouts": TRUNCATED, "truncations": TRUNCATED, "done": DONE, "dones": DONE,
    REWARD: REWARD, TERMINATED: TERMINATED, TRUNCATED: TRUNCATED,
    **{key: name for name, key in (*FLAGS.items(), *PLACES.items())},
}  # fmt: skip

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout, keys, png = source.layout, _keys(source.layout), compression == "png"
    schema, numbers = _schema(layout, keys, png), _RowNumbers()
    waiting: list[Any] = []
    size = 0
    with pq.ParquetWriter(target, schema, compression=COMPRESSIONS[compression]) as out:

        def write_group() -> None:
            out.write_table(pa.concat_tables(waiting), row_group_size=1 << 30)
            waiting.clear()

        for steps in source.blocks():
            columns = _arrow(steps, layout, keys, png)
            columns |= {PLACES[name]: pa.array(values, pa.int64()) for name, values in numbers.next(steps.last).items()}
            columns[PLACES[DONE]] = pa.array(steps.last)
            waiting.append(pa.table([columns[field.name] for field in schema], schema=schema))
            lists = [values.values.nbytes for values in steps.columns().values() if isinstance(values, Lists)]
            size += len(steps) * layout.step_bytes + sum(lists)
            if size >= GROUP_BYTES:
                write_group()
                size = 0
        if waiting:
            write_group()


class _RowNumbers:
    """A counter that numbers episodes, their steps, and all rows, over any blocks of steps."""

    def __init__(self) -> None:
        self._episode = self._frame = self._index = 0

    def next(self, last: Array) -> dict[str, Array]:
        """Return the numbers of the next rows; ``last`` says which of them end an episode."""
        number = np.cumsum(last) - last
        starts = np.concatenate([[0], np.flatnonzero(last) + 1])
        frame = np.arange(len(last)) - starts[number]
        frame[number == 0] += self._frame
        found = {EPISODE: self._episode + number, FRAME: frame, INDEX: self._index + np.arange(len(last))}
        ended = bool(last[-1])
        self._episode, self._frame = self._episode + int(number[-1]) + ended, 0 if ended else int(frame[-1]) + 1
        self._index += len(last)
        return found


def _shapes(layout: Layout) -> dict[str, Shape]:
    """Return the shape and dtype of each column by our name, with final observations."""
    found: dict[str, Shape] = {**layout.obs, **layout.action, REWARD: ((), layout.reward_dtype)}
    found |= {name: ((), np.dtype(bool)) for name in (TERMINATED, TRUNCATED)}
    return {**found, **{_final(name): shape for name, shape in layout.obs.items()}, **layout.columns}


def _ragged(layout: Layout) -> set[str]:
    """Return our names of the ragged columns, with final observations."""
    return layout.ragged | {_final(name) for name in layout.ragged & layout.obs.keys()}


def _final(name: str) -> str:
    """Return our name of the final observations of a leaf: ``next_obs/camera`` for ``obs/camera``."""
    return name.replace(OBS, FINAL, 1)


def _keys(layout: Layout) -> dict[str, str]:
    """Return the Parquet column of each of ours; names that meet get a dot."""
    roots = {OBS: "observation", FINAL: "final_observation"}
    keys = dict(PLACES)
    for name in _shapes(layout):
        root, _, rest = name.partition("/")
        key = FLAGS.get(name) or ".".join([roots.get(root, root), *filter(None, rest.split("/"))])
        key = name if name in layout.columns else key
        while key in keys.values():
            key += "."
        keys[name] = key
    return keys


def _schema(layout: Layout, keys: Mapping[str, str], png: bool) -> Any:
    import pyarrow as pa

    fields, pictures, finals = [], {}, {_final(name) for name in layout.obs}
    ragged = _ragged(layout)
    for name, (shape, dtype) in _shapes(layout).items():
        if name in ragged or not images.is_image(shape, dtype):
            kind = pa.from_numpy_dtype(dtype)
            for length in reversed(shape):
                kind = pa.list_(kind, -1 if name in finals else length)
            kind = pa.list_(kind) if name in ragged else kind
        elif png:
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            pictures[keys[name]] = {"_type": "Image"}
        else:
            kind = pa.binary()
        fields.append(pa.field(keys[name], kind))
    fields += [pa.field(PLACES[name], pa.int64()) for name in (EPISODE, FRAME, INDEX)]
    fields.append(pa.field(PLACES[DONE], pa.bool_()))
    described = {"layout": layout.to_json(), "keys": dict(keys)}
    metadata = {DESCRIPTION: json.dumps(described).encode()}
    if pictures:
        metadata[b"huggingface"] = json.dumps({"info": {"features": pictures}}).encode()
    return pa.schema(fields, metadata)


def _arrow(steps: Transitions, layout: Layout, keys: Mapping[str, str], png: bool) -> dict[str, Any]:
    """Return the columns of some steps by their Parquet names."""
    import pyarrow as pa

    ends = np.flatnonzero(steps.last)
    at = np.full(len(steps), -1)
    at[ends] = np.arange(len(ends))
    places = pa.array(at, mask=at < 0)
    found = {keys[name]: _values(values, png) for name, values in steps.columns().items()}
    for name in layout.obs:
        found[keys[_final(name)]] = _values(steps.next_obs[name][ends], png, sized=False).take(places)
    return found


def _values(values: Any, png: bool, sized: bool = True) -> Any:
    """Return values ``(n, *shape)``, or Lists, as an Arrow array; lists of arrays are of a fixed size if ``sized``."""
    import pyarrow as pa

    if isinstance(values, Lists):
        return pa.ListArray.from_arrays(values.offsets.astype(np.int32), number_array(values.values, sized))
    if not images.is_image(values.shape[1:], values.dtype):
        return number_array(values, sized)
    if not png:
        return pa.array([value.tobytes() for value in values], pa.binary())
    pictures = pa.array(images.encoded(values), pa.binary())
    return pa.StructArray.from_arrays([pictures, pa.nulls(len(values), pa.string())], ["bytes", "path"])


@dataclasses.dataclass(frozen=True)
class _Columns:
    """The columns of a dataset.

    Attributes:
        where: the name of the dataset in errors.
        files: the files of the dataset, in order.
        count: rows in them.
        keys: the Parquet column of each of our names.
        shapes: the shapes of the columns whose shape and dtype are known, by name.
        ragged: the names of the ragged ones.
    """

    where: str
    files: Sequence[pathlib.Path]
    count: int
    keys: Mapping[str, str]
    shapes: Mapping[str, Shape]
    ragged: set[str]

    def array(self, name: str, present: Array | None = None) -> ParquetArray:
        """Return the values of a column: of all rows, or of those that are ``present``."""
        count = self.count if present is None else int(present.sum())
        known = self.shapes.get(name)
        return ParquetArray(self.files, self.keys[name], count, known, present, ragged=name in self.ragged)

    def below(self, root: str, present: Array | None = None) -> dict[str, ParquetArray]:
        """Return the leaves of observations, actions or final observations."""
        return {name: self.array(name, present) for name in leaves_of(self.keys, root)}

    def flags(self, name: str) -> Array | None:
        """Return a column of flags as ``(count,)`` bool, or None if there is no such column."""
        return flags(self.where, self.keys[name], self.array(name), self.count) if name in self.keys else None

    def changes(self, name: str) -> Array:
        """Tell which rows, ``(count,)`` bool, another number of a column follows; the very last is one of them."""
        numbers = self.array(name)[slice(None)]
        if numbers.ndim != 1:
            raise InputError(f"{self.where}: {self.keys[name]} must be one number a step")
        return np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a file, or a directory of files, as a source, as the module's docstring says."""
    refuse_parquet(path)
    where, files = str(path), _files(path)
    if not files:
        raise InputError(f"{where!r} is no Parquet file")
    schema, count = _common_schema(files)
    check_size(where, (count,), 1, lambda: stored_bytes(path))
    layout, described = _description(schema, where)
    readable = [field.name for field in schema if is_readable(field.type)]
    keys = _meanings(readable, described, where)
    shapes, ragged = ({}, set()) if layout is None else (_shapes(layout), _ragged(layout))
    columns = _Columns(where, files, count, keys, shapes, ragged)
    obs, action = columns.below(OBS), columns.below(ACTION)
    if not obs or not action:
        raise InputError(f"{where}: must have the columns observation and action; there are {', '.join(schema.names)}")
    terminated, truncated, last = _ends(columns)
    finals = columns.below(FINAL, last)
    others = {*obs, *action, *finals, *PLACES, *FLAGS}
    yield FlatArrays(
        where, obs, action, terminated, truncated, last, columns.array(REWARD) if REWARD in keys else None,
        {name: columns.array(name) for name in keys if name not in others},
        finals={name.replace(FINAL, OBS, 1): array for name, array in finals.items()} or None,
        layout=layout, names=Names(set(schema.names) - set(readable)),
    ).source()  # fmt: skip


def _common_schema(files: Sequence[pathlib.Path]) -> tuple[Any, int]:
    """Return the schema of the first file, and the rows of all; raise InputError if their columns differ."""
    import pyarrow.parquet as pq

    schemas, count = [], 0
    for file in files:
        with damage(file), pq.ParquetFile(file) as opened:
            schemas.append(opened.schema_arrow)
            count += opened.metadata.num_rows
        if schemas[-1].names != schemas[0].names:
            raise InputError(f"{file}: its columns are not those of {files[0].name}")
    return schemas[0], count


def _ends(columns: _Columns) -> tuple[Array, Array, Array]:
    """Return ``terminated``, ``truncated`` and ``last``, from the flags and episode numbers that there are."""
    terminated, truncated, done = (columns.flags(name) for name in (TERMINATED, TRUNCATED, DONE))
    never = np.zeros(columns.count, bool)
    last = never if done is None else done
    if EPISODE in columns.keys:
        last = last | columns.changes(EPISODE)
    elif terminated is None and truncated is None and done is None:
        raise InputError(
            f"{columns.where}: nothing tells where episodes end: there is no {PLACES[EPISODE]}, and no flags"
        )
    if terminated is None:
        terminated = never if done is None else done
        truncated = last & ~terminated if truncated is None else truncated
    truncated = never if truncated is None else truncated
    return terminated, truncated, last | terminated | truncated


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a dataset in order, those below ``data`` if it has that, two levels deep at most."""
    if path.is_file():
        return [path] if is_parquet(path) else []
    below = path / "data" if (path / "data").is_dir() else path
    found = [*below.glob("*.parquet"), *below.glob("*/*.parquet")]
    return sorted(file for file in found if file.is_file() and is_parquet(file))


def _description(schema: Any, where: str) -> tuple[Layout | None, dict[str, str]]:
    """Return the layout and the columns' names that :func:`write` left, or None and nothing if it did not."""
    stored = (schema.metadata or {}).get(DESCRIPTION)
    if stored is None:
        return None, {}
    return read_description(parse_json(stored, where), where)


def _meanings(columns: Sequence[str], keys: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the Parquet column of each of our names."""
    found: dict[str, str] = {}
    for key in columns:
        name = keys.get(key) or SYNONYMS.get(key) or _meaning(key)
        if name in found:
            raise InputError(f"{where}: the columns {found[name]!r} and {key!r} both are its {name}")
        found[name] = key
    for one, other in itertools.permutations(found, 2):
        if other.startswith(f"{one}/"):
            raise InputError(f"{where}: the column {found[other]!r} is a part of {found[one]!r}, which is an array")
    return found


def _meaning(key: str) -> str:
    root, _, rest = key.partition(".")
    if root in ROOTS:
        return "/".join([ROOTS[root], *filter(None, rest.split("."))])
    return column_name(key)


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is Parquet with actions and observations, as far as can be told without pyarrow.

    A LeRobotDataset, whose rows are not all of it, has a format of its own.
    """
    if (path / "meta" / "info.json").is_file():
        return False
    try:
        import pyarrow.parquet as pq
    except ImportError:
        return bool(_files(path)) if path.exists() else False
    files = _files(path) if path.exists() else []
    try:
        with damage(path):
            names = pq.read_schema(files[0]).names if files else []
    except (InputError, OSError):
        return False
    return {OBS, ACTION} <= {ROOTS.get(name.partition(".")[0]) for name in names}


FORMATS = (
    Format(
        "parquet", "Parquet for Hugging Face datasets: one row a step", "file",
        Holds(
            next_obs=False, dtypes=frozenset(name for name in DTYPES if not name.startswith("complex")), ragged=True
        ), recognise, read, write, tuple(COMPRESSIONS), ("pyarrow",), "arrow",
    ),
)  # fmt: skip
