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

4. Texts are strings.

What comes in is a file, or a directory of them, read in the natural order of their names; those below ``data`` where
there is such a directory. It needs ``action``, observations, and either ``episode_index`` or flags. ``episode_index``
and ``frame_index`` must ascend without gaps, over all files. Texts in observations and actions are Text spaces of the
characters that occur; others are ragged columns of code points, with their names in ``provenance["parquet"]["text"]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import WHOLE, Choice, named_kind
from diskreplay.formats.core.ends import DONE, TELLING, EndsUnknown, ends_of
from diskreplay.formats.core.episodes import single_integers
from diskreplay.formats.core.flat import FlatArrays, flags, leaves_of
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, Shape, column_name, infer_text, read_description
from diskreplay.formats.core.names import Names, files_below, numbered
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.core.untrusted import check_size, parse_json, stored_bytes
from diskreplay.formats.files import images
from diskreplay.formats.files.arrow import damage, number_array, text_array
from diskreplay.formats.files.minari_dataset import refuse_parquet
from diskreplay.formats.files.parquet_array import ParquetArray, Texts
from diskreplay.formats.files.parquet_table import ParquetTable, table_files
from diskreplay.ragged import Lists
from diskreplay.schema import ACTION, DTYPES, OBS, REWARD, TERMINATED, TRUNCATED

GROUP_BYTES = 32 << 20
"""The number of decoded bytes of a row group."""
COMPRESSIONS = {"png": "zstd", "zstd": "zstd", "none": "none"}
DESCRIPTION = b"diskreplay"
EPISODE, FRAME, INDEX = "/episode", "/frame", "/index"
"""The names here of what is not a column of a store: no column can have such a name."""
PLACES = {EPISODE: "episode_index", FRAME: "frame_index", INDEX: "index", DONE: "next.done"}
FLAGS = {REWARD: "next.reward", TERMINATED: "next.terminated", TRUNCATED: "next.truncated"}
ENDS = (TERMINATED, TRUNCATED)
TOLD = {REWARD, *ENDS, *PLACES, *TELLING}
"""Our names of what is always read, beside the action."""
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


def _own(name: str) -> str:
    """Return the name of the leaf of final observations, and any other name as it is."""
    return name.replace(FINAL, OBS, 1) if leaves_of({name: name}, FINAL) else name


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
    ragged, texts = _ragged(layout), layout.texts
    for name, (shape, dtype) in _shapes(layout).items():
        if _own(name) in texts:
            kind = pa.string()
        elif name in ragged or not images.is_image(shape, dtype):
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
    texts = layout.texts
    found = {keys[name]: _values(values, png, name in texts) for name, values in steps.columns().items()}
    for name in layout.obs:
        finals = _values(steps.next_obs[name][ends], png, name in texts, sized=False)
        found[keys[_final(name)]] = finals.take(places)
    return found


def _values(values: Any, png: bool, text: bool, sized: bool = True) -> Any:
    """Return values ``(n, *shape)``, or Lists, as an Arrow array; lists of arrays are of a fixed size if ``sized``."""
    import pyarrow as pa

    if text:
        return text_array("a text", values)
    if isinstance(values, Lists):
        return pa.ListArray.from_arrays(values.offsets.astype(np.int32), number_array(values.values, sized))
    if not images.is_image(values.shape[1:], values.dtype):
        return number_array(values, sized)
    if not png:
        return pa.array([value.tobytes() for value in values], pa.binary())
    pictures = pa.array(images.encoded(values), pa.binary())
    return pa.StructArray.from_arrays([pictures, pa.nulls(len(values), pa.string())], ["bytes", "path"])


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a file, or a directory of files, as a source, as the module's docstring says."""
    refuse_parquet(path)
    table = ParquetTable.of(path)
    where, count = table.where, table.count
    check_size(where, (count,), 1, lambda: stored_bytes(path))
    layout, described = _description(table.schemas[0], where) if not choice.map else (None, {})
    layout = None if layout is None else layout.only(choice.columns)
    keys = _meanings(table, described, choice)
    for key in keys.values():
        table.check_column(key)
    texts = {name: one for name, key in keys.items() if name not in TOLD and (one := table.texts(key)) is not None}
    shapes, ragged = ({}, set[str]()) if layout is None else (_shapes(layout), _ragged(layout))

    def array(name: str, present: Array | None = None) -> ParquetArray:
        rows = count if present is None else int(present.sum())
        known, some = shapes.get(name), name in ragged
        return ParquetArray(table.files, keys[name], rows, known, present, some, texts.get(name))

    told = {name: flags(where, keys[name], array(name), count) for name in (*ENDS, DONE) if name in keys}
    told |= {name: table.numbers(keys[name]) for name in TELLING if name in keys}
    if EPISODE in keys:
        table.check_order(keys[EPISODE], keys.get(FRAME), np.zeros(count, bool))
    try:
        ends = ends_of(where, told, keys, count, choice=choice)
    except EndsUnknown as error:
        raise InputError(f"{error}; {table.by_hand()}") from error
    if EPISODE not in keys:
        table.check_order(None, keys.get(FRAME), ends.last)
    obs, action = ({name: array(name) for name in leaves_of(keys, root)} for root in (OBS, ACTION))
    if not obs or not action:
        raise InputError(
            f"{where}: must have the columns observation and action (--map obs=NAME says which); {table.by_hand()}"
        )
    finals = {name: array(name, ends.last) for name in leaves_of(keys, FINAL)}
    columns = {name: array(name) for name in keys if name not in {*obs, *action, *finals, *TOLD}}
    found = FlatArrays(
        where, obs, action if layout is not None else single_integers(action), ends.terminated, ends.truncated,
        ends.last, array(REWARD) if REWARD in keys else None, columns,
        finals={name.replace(FINAL, OBS, 1): array for name, array in finals.items()} or None,
        layout=layout, names=_names(path, table, keys),
    ).source()  # fmt: skip
    if layout is None:
        found = dataclasses.replace(found, layout=_with_texts(found.layout, texts))
    yield dataclasses.replace(found, notes=ends.notes)


def _names(path: pathlib.Path, table: ParquetTable, keys: Mapping[str, str]) -> Names:
    """Return the names of all columns, and of all files if there are several, without those that are read."""
    names = Names([*table.kinds, *(files_below(path) if path.is_dir() else ())], numbered)
    names.take(
        *(key for name, key in keys.items() if name != INDEX),
        *(file.relative_to(path).as_posix() for file in table.files),
    )
    for key in filter(None, [keys.get(INDEX)]):
        with contextlib.suppress(InputError):
            if (np.diff(table.numbers(key)) == 1).all():
                names.take(key)  # the order of the rows tells it
    return names


def _with_texts(layout: Layout, texts: Mapping[str, Texts]) -> Layout:
    """Return an inferred layout with spaces of texts, and with the names of columns of texts in its provenance."""
    found = {}
    for name in texts.keys() & {*layout.obs, *layout.action}:
        each = [texts[one] for one in (name, _final(name)) if one in texts]
        found[name] = infer_text("".join(one.charset for one in each), max(one.longest for one in each))
    columns = [name for name in layout.columns if name in texts]
    provenance = {"parquet": {"text": columns}} if columns else {}
    return dataclasses.replace(layout.with_texts(found), provenance=provenance)


def _description(schema: Any, where: str) -> tuple[Layout | None, dict[str, str]]:
    """Return the layout and the columns' names that :func:`write` left, or None and nothing if it did not."""
    stored = (schema.metadata or {}).get(DESCRIPTION)
    if stored is None:
        return None, {}
    return read_description(parse_json(stored, where), where)


def _meanings(table: ParquetTable, described: Mapping[str, str], choice: Choice) -> dict[str, str]:
    """Return the Parquet column of each of our names that is to be read; what the caller maps goes first."""
    kind, ends = named_kind(choice.ends) if choice.ends not in (None, WHOLE) else ("", "")
    told = {ends: f"/{kind}"} if ends else {}
    for name, key in (*choice.map.items(), *((kind, key) for key in told)):
        if key not in table.kinds:
            raise InputError(f"{table.where}: there is no column {key!r} for {name}; {table.by_hand()}")
    found = dict(choice.map)
    for key in table.kinds:
        name = told.get(key) or described.get(key) or SYNONYMS.get(key) or _meaning(key)
        if key in choice.map.values() or not table.is_readable(key) or any(_meet(name, one) for one in choice.map):
            continue
        if name in found:
            raise InputError(f"{table.where}: the columns {found[name]!r} and {key!r} both are its {name}")
        found[name] = key
    optional = {name: _own(name) for name in found if name not in TOLD and not leaves_of({name: name}, ACTION)}
    own = [name for name, column in optional.items() if name == column]
    choice.check_columns(leaves_of(dict.fromkeys(own), OBS), [name for name in own if name.partition("/")[0] != OBS])
    found = {name: key for name, key in found.items() if name not in optional or choice.wants(optional[name])}
    for one, other in itertools.permutations(found, 2):
        if other.startswith(f"{one}/"):
            raise InputError(
                f"{table.where}: the column {found[other]!r} is a part of {found[one]!r}, which is an array"
            )
    return found


def _meet(one: str, other: str) -> bool:
    """Tell whether two names are the same, or one is a part of the other."""
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


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
        return bool(table_files(path)) if path.exists() else False
    files = table_files(path) if path.exists() else []
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
        told=frozenset({"map", "ends", "max_episode_steps"}),
    ),
)  # fmt: skip
