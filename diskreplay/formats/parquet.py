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

1. Single numbers are numbers, arrays are lists of fixed size, nested for more than one axis.
2. Images, uint8 with 1, 3 or 4 channels as the last axis or with none, are PNG, as Hugging Face's ``Image`` has them:
   a struct of ``bytes`` and ``path``. With the compressions "zstd" and "none" they are raw bytes in C order.
3. The schema's metadata hold the layout (``diskreplay``), and what ``datasets`` is to decode (``huggingface``).

What comes in is a file, or a directory of them, read in the order of their names; of LeRobot's datasets those below
``data``. It needs ``action``, observations, and either ``episode_index`` or flags. Columns of text and the like are not
read, nor are videos that lie beside.
"""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.flat import FlatArrays, flags
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, Shape, column_name
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.rows import BLOCK_BYTES
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.core.untrusted import check_size, parse_json, stored_bytes
from diskreplay.formats.files import images
from diskreplay.formats.files.arrow import damage
from diskreplay.schema import ACTION, DTYPES, OBS, REWARD, TERMINATED, TRUNCATED

MAGIC = b"PAR1"
GROUP_BYTES = 32 << 20
"""Decoded bytes of a row group."""
COMPRESSIONS = {"png": "zstd", "zstd": "zstd", "none": "none"}
DESCRIPTION = b"diskreplay"
EPISODE, FRAME, INDEX, DONE = "/episode", "/frame", "/index", "/done"
"""Our names of what is no column of a store, where no column can have such a name."""
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


# Writing


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Writes a source to a new file; see the module's docstring."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout, keys, png = source.layout, _keys(source.layout), compression == "png"
    schema = _schema(layout, keys, png)
    episode = frame = done = size = 0
    waiting = []
    with pq.ParquetWriter(target, schema, compression=COMPRESSIONS[compression]) as out:
        for steps in source.blocks():
            count = len(steps)
            number = np.cumsum(steps.last) - steps.last
            starts = np.concatenate([[0], np.flatnonzero(steps.last) + 1])
            within = np.arange(count) - starts[number]
            within[number == 0] += frame
            columns = _arrow(steps, layout, keys, png)
            for key, values in ((EPISODE, episode + number), (FRAME, within), (INDEX, done + np.arange(count))):
                columns[PLACES[key]] = pa.array(values, pa.int64())
            columns[PLACES[DONE]] = pa.array(steps.last)
            waiting.append(pa.table([columns[field.name] for field in schema], schema=schema))
            ended = bool(steps.last[-1])
            episode, frame = episode + int(number[-1]) + ended, 0 if ended else int(within[-1]) + 1
            done += count
            size += count * layout.step_bytes
            if size >= GROUP_BYTES:
                out.write_table(pa.concat_tables(waiting), row_group_size=1 << 30)
                waiting, size = [], 0
        if waiting:
            out.write_table(pa.concat_tables(waiting), row_group_size=1 << 30)


def _shapes(layout: Layout) -> dict[str, Shape]:
    """Shape and dtype of each column by our name, final observations included."""
    found: dict[str, Shape] = {**layout.obs, **layout.action, REWARD: ((), layout.reward_dtype)}
    found |= {name: ((), np.dtype(bool)) for name in (TERMINATED, TRUNCATED)}
    return {**found, **{_final(name): shape for name, shape in layout.obs.items()}, **layout.columns}


def _final(name: str) -> str:
    """Our name of the final observations of a leaf: of ``obs/camera`` it is ``next_obs/camera``."""
    return name.replace(OBS, FINAL, 1)


def _keys(layout: Layout) -> dict[str, str]:
    """The Parquet column of each of ours; names that meet get a dot."""
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

    fields, pictures = [], {}
    for name, (shape, dtype) in _shapes(layout).items():
        if not images.is_image(shape, dtype):
            kind = pa.from_numpy_dtype(dtype)
            for length in reversed(shape):
                kind = pa.list_(kind, length)
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
    """The columns of some steps by their Parquet names."""
    import pyarrow as pa

    ends = np.flatnonzero(steps.last)
    at = np.full(len(steps), -1)
    at[ends] = np.arange(len(ends))
    places = pa.array(at, mask=at < 0)
    found = {keys[name]: _values(values, png) for name, values in steps.columns().items()}
    for name in layout.obs:
        found[keys[_final(name)]] = _values(steps.next_obs[name][ends], png).take(places)
    return found


def _values(values: Array, png: bool) -> Any:
    """Values ``(n, *shape)`` as an Arrow array."""
    import pyarrow as pa

    if not images.is_image(values.shape[1:], values.dtype):
        found = pa.array(np.ascontiguousarray(values).reshape(-1))
        for length in reversed(values.shape[1:]):
            found = pa.FixedSizeListArray.from_arrays(found, length)
        return found
    if not png:
        return pa.array([value.tobytes() for value in values], pa.binary())
    pictures = pa.array(images.encoded(values), pa.binary())
    return pa.StructArray.from_arrays([pictures, pa.nulls(len(values), pa.string())], ["bytes", "path"])


# Reading


class ParquetArray:
    """One column of some files, read forwards: asking for rows before those read last begins anew.

    Args:
        files: in order.
        key: of the column.
        count: rows in them that are wanted.
        known: shape and dtype; found from the first row if None.
        present: ``(rows,)`` bool: which rows have a value, others being null; all of them if None.
    """

    def __init__(
        self, files: Sequence[pathlib.Path], key: str, count: int, known: Shape | None = None,
        present: Array | None = None,
    ) -> None:  # fmt: skip
        self._files, self._key, self._known, self._present = files, key, known, present
        self._size = 1
        self._begin()
        if known is None:
            first = self._some(1) if count else np.empty(0, np.float32)
            known = first.shape[1:], first.dtype
        self.dtype = known[1]
        self.shape = (count, *known[0])
        item = int(np.prod(known[0], dtype=np.int64)) * self.dtype.itemsize
        self._size = max(1, min(1 << 16, BLOCK_BYTES // max(1, item)))
        self._begin()

    @property
    def where(self) -> str:
        return f"{self._files[0] if len(self._files) == 1 else self._files[0].parent}: {self._key}"

    def _begin(self) -> None:
        self._at = 0
        self._rest: list[Array] = []
        self._batches = self._read()

    def _read(self) -> Iterator[Array]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = 0
        for path in self._files:
            with damage(path), pq.ParquetFile(path) as file:
                groups = range(file.num_row_groups)  # one by one: Arrow keeps what it has read of all that it is given
                for batch in itertools.chain.from_iterable(
                    file.iter_batches(self._size, [group], [self._key], use_threads=False) for group in groups
                ):
                    column = batch.column(0)
                    if isinstance(column, pa.ExtensionArray):
                        column = column.storage
                    present: Any = True if self._present is None else self._present[done : done + len(column)]
                    if (column.is_valid().to_numpy(zero_copy_only=False) != present).any():
                        raise InputError(f"{self.where}: has rows without a value, or with one where none belongs")
                    done += len(column)
                    column = column.drop_null()
                    if len(column):
                        yield self._decoded(column)

    def _decoded(self, column: Any) -> Array:
        import pyarrow as pa

        kind = column.type
        if pa.types.is_struct(kind):
            column = column.field("bytes")
            kind = column.type
            if column.null_count:
                raise InputError(f"{self.where}: has images that are not in the file")
        elif self._known is not None and _is_binary(kind):
            return self._raw(column)
        if _is_binary(kind):
            each = images.decoded(column.to_pylist(), self.where)
            if len({value.shape for value in each}) > 1:
                raise InputError(f"{self.where}: has images of several sizes")
            return self._shaped(np.stack(each), len(each))
        return self._listed(column)

    def _raw(self, column: Any) -> Array:
        assert self._known is not None
        shape, dtype = self._known
        data = b"".join(column.to_pylist())
        if len(data) != len(column) * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
            raise InputError(f"{self.where}: has values that are not {dtype} {shape}")
        return np.frombuffer(data, dtype).reshape(len(column), *shape)

    def _shaped(self, values: Array, count: int) -> Array:
        if self._known is None:
            return values
        shape, dtype = self._known
        if values.size != count * int(np.prod(shape, dtype=np.int64)) or values.dtype != dtype:
            raise InputError(f"{self.where}: has values of {values.dtype} {values.shape[1:]}, not of {dtype} {shape}")
        return values.reshape(count, *shape)

    def _listed(self, column: Any) -> Array:
        """Numbers, or lists of lists of them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        count, shape = len(column), [len(column)]
        while pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or _is_fixed(column.type):
            length = pc.min_max(pc.list_value_length(column)).as_py()
            if length["min"] != length["max"] or column.null_count:
                raise InputError(f"{self.where}: has lists of several lengths")
            shape.append(length["min"])
            column = column.flatten()
        if column.null_count:
            raise InputError(f"{self.where}: has lists with values missing")
        return self._shaped(column.to_numpy(zero_copy_only=False).reshape(shape), count)

    def _some(self, count: int) -> Array:
        """The next rows."""
        there = sum(map(len, self._rest))
        while there < count:
            batch = next(self._batches, None)
            if batch is None:
                raise InputError(f"{self.where}: has too few rows with a value")
            if self._rest and batch.shape[1:] != self._rest[0].shape[1:]:
                raise InputError(f"{self.where}: has values of several shapes")
            self._rest.append(batch)
            there += len(batch)
        whole = self._rest[0] if len(self._rest) == 1 else np.concatenate(self._rest)
        self._rest = [whole[count:]]
        return whole[:count]

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        if start < self._at:
            self._begin()
        while self._at < start:
            self._at += len(self._some(min(self._size, start - self._at)))
        if start >= stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        self._at = stop
        found = self._some(stop - start)
        if found.shape[1:] != self.shape[1:] or found.dtype != self.dtype:
            raise InputError(f"{self.where}: has values of several shapes")
        return found


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_fixed(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_list(kind))


def _is_read(kind: Any) -> bool:
    """Whether values of an Arrow type are numbers, lists of them, or images."""
    import pyarrow as pa

    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_binary(kind.field("bytes").type)
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or _is_fixed(kind):
        kind = kind.value_type
    return bool(
        _is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)
    )


@reader
def read(path: pathlib.Path) -> Iterator[Source]:
    """Opens a file, or a directory of them, as a source; see the module's docstring."""
    import pyarrow.parquet as pq

    where, files = str(path), _files(path)
    if not files:
        raise InputError(f"{where!r} is no Parquet file")
    count = 0
    schemas = []
    for file in files:
        with damage(file), pq.ParquetFile(file) as opened:
            schemas.append(opened.schema_arrow)
            count += opened.metadata.num_rows
        if schemas[-1].names != schemas[0].names:
            raise InputError(f"{file}: its columns are not those of {files[0].name}")
    check_size(where, (count,), 1, lambda: stored_bytes(path))
    schema = schemas[0]
    layout, keys = _description(schema, where)
    usable = [field.name for field in schema if _is_read(field.type)]
    found = _meanings(usable, keys, where)
    known = {} if layout is None else _shapes(layout)

    def array(name: str) -> ParquetArray:
        return ParquetArray(files, found[name], count, known.get(name))

    def below(root: str, make: Callable[[str], ParquetArray] = array) -> dict[str, Any]:
        return {name: make(name) for name in found if name == root or name.startswith(f"{root}/")}

    obs, action = below(OBS), below(ACTION)
    if not obs or not action:
        raise InputError(f"{where}: must have the columns observation and action; there are {', '.join(schema.names)}")
    terminated, truncated, done = (
        flags(where, found[name], array(name), count) if name in found else None
        for name in (TERMINATED, TRUNCATED, DONE)
    )
    last = np.zeros(count, bool) if done is None else done.copy()
    if EPISODE in found and count:
        numbers = array(EPISODE)[slice(None)]
        if numbers.ndim != 1:
            raise InputError(f"{where}: {found[EPISODE]} must be one number a step")
        last |= np.append(numbers[1:] != numbers[:-1], True)
    elif terminated is None and truncated is None and done is None:
        raise InputError(f"{where}: nothing tells where episodes end: there is no {PLACES[EPISODE]}, and no flags")
    if terminated is None:
        terminated = np.zeros(count, bool) if done is None else done
        truncated = last & ~terminated if truncated is None else truncated
    truncated = np.zeros(count, bool) if truncated is None else truncated
    last |= terminated | truncated
    ends = int(last.sum())
    finals = below(FINAL, lambda name: ParquetArray(files, found[name], ends, known.get(name), last))
    others = (EPISODE, FRAME, INDEX, DONE, REWARD, TERMINATED, TRUNCATED)
    extra = [name for name in found if name not in (*obs, *action, *finals, *others)]
    yield FlatArrays(
        where, obs, action, terminated, truncated, last, array(REWARD) if REWARD in found else None,
        {name: array(name) for name in extra}, finals={name.replace(FINAL, OBS, 1): a for name, a in finals.items()}
        or None, layout=layout, ignored=tuple(sorted(set(schema.names) - set(usable))),
    ).source()  # fmt: skip


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    """The files of a dataset in order; of a directory that has one, those below ``data``, two levels deep at most."""
    if path.is_file():
        return [path] if _is_parquet(path) else []
    below = path / "data" if (path / "data").is_dir() else path
    found = [*below.glob("*.parquet"), *below.glob("*/*.parquet")]
    return sorted(file for file in found if file.is_file() and _is_parquet(file))


def _is_parquet(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _description(schema: Any, where: str) -> tuple[Layout | None, dict[str, str]]:
    """The layout and the columns' names that :func:`write` left; None and nothing where it did not."""
    stored = (schema.metadata or {}).get(DESCRIPTION)
    if stored is None:
        return None, {}
    described = parse_json(stored, where)
    try:
        keys = {str(key): str(name) for name, key in described["keys"].items()}
        return Layout.from_json(json.dumps(described["layout"]), where), keys
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: the description that diskreplay left there cannot be read: {error}") from error


def _meanings(columns: Sequence[str], keys: Mapping[str, str], where: str) -> dict[str, str]:
    """The Parquet column of each of our names."""
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
    """Parquet with actions and observations; as far as can be told without pyarrow."""
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
        Holds(dtypes=frozenset(name for name in DTYPES if not name.startswith("complex"))), recognise, read, write,
        tuple(COMPRESSIONS), ("pyarrow",), "arrow",
    ),
)  # fmt: skip
