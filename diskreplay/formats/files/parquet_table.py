"""The rows of one or several Parquet files as one table: a container of its columns, whose rows must be in order."""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.container import ATTRIBUTES, Kind
from diskreplay.formats.core.layout import Shape, read_description
from diskreplay.formats.core.names import natural
from diskreplay.formats.core.untrusted import begins, check_size, parse_json, stored_bytes
from diskreplay.formats.files.arrow import damage, is_text
from diskreplay.formats.files.minari_dataset import refuse_parquet
from diskreplay.formats.files.parquet_array import MAGIC, ParquetArray, is_readable
from diskreplay.schema.columns import OBS

METADATA = b"diskreplay"
"""The name in a schema's metadata of the description that an export leaves."""
DESCRIPTION = f"{ATTRIBUTES}diskreplay"
INDEX = "index"
"""The column that numbers all rows."""


def table_files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a table in natural order: itself, or those at most two levels below it or below its ``data``.

    Files whose names begin with a dot or an underscore are none of it.
    """
    if path.is_file():
        return [path] if begins(path, MAGIC) else []
    below = path / "data" if (path / "data").is_dir() else path
    found = [*below.glob("*.parquet"), *below.glob("*/*.parquet")]
    kept = [file for file in found if file.is_file() and not file.name.startswith((".", "_"))]
    return sorted(kept, key=lambda file: natural(file.relative_to(path).as_posix()))


def _recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a table; the rows of a LeRobotDataset are not all of it, so that it has its own format."""
    return not (path / "meta" / "info.json").is_file() and path.exists() and bool(table_files(path))


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[ParquetTable]:
    """Open a table; raise InputError for anything else."""
    refuse_parquet(path)
    yield ParquetTable(path)


KIND = Kind(
    "Parquet table", _recognise, opened, "pyarrow.parquet.read_table({!r})", "numpy.stack(f[{!r}].to_numpy())",
    table_files, folders=False,
)  # fmt: skip


class ParquetTable:
    """Some Parquet files as a container; its columns are read forwards, each for itself."""

    def __init__(self, path: pathlib.Path) -> None:
        import pyarrow.parquet as pq

        self._path, self._files, self._schemas, self._count = path, table_files(path), list[Any](), 0
        if not self._files:
            raise InputError(f"{str(path)!r} is no Parquet file")
        for file in self._files:
            with damage(file), pq.ParquetFile(file) as found:
                self._schemas.append(found.schema_arrow)
                self._count += found.metadata.num_rows
        check_size(str(path), (self._count,), 1, lambda: stored_bytes(path))
        self._kinds = {field.name: field.type for schema in reversed(self._schemas) for field in schema}
        self._metadata = self._schemas[0].metadata or {}
        self._arrays: dict[str, ParquetArray] = {}

    def names(self) -> list[str]:
        """Return the columns, but for numbers of rows that the rows' order says again, and the description's name."""
        columns = dict.fromkeys(key for schema in self._schemas for key in schema.names)
        with contextlib.suppress(InputError):
            if INDEX in columns and (np.diff(whole_numbers(self.array(INDEX))) == 1).all():
                del columns[INDEX]
        return [*[DESCRIPTION] * (METADATA in self._metadata), *columns]

    def array(self, name: str) -> ParquetArray:
        kind = self._kinds.get(name)
        if kind is None or not (is_readable(kind) or is_text(kind)):
            found = "is missing" if kind is None else f"holds {kind}, neither numbers, texts nor images"
            raise InputError(f"{self._path}: the column {name!r} {found}")
        if name not in self._arrays:
            known, ragged = self._described.get(name, (None, False))
            self._arrays[name] = ParquetArray(self._files, name, self._count, known, None, ragged, is_text(kind))
        return self._arrays[name]

    def value(self, name: str) -> Any:
        if name == DESCRIPTION:
            return parse_json(self._metadata.get(METADATA), str(self._path))
        return self.array(name)[slice(None)]

    @functools.cached_property
    def _described(self) -> Mapping[str, tuple[Shape, bool]]:
        if METADATA not in self._metadata:
            return {}
        layout, names = read_description(self.value(DESCRIPTION), str(self._path))
        shapes = layout.step_shapes
        ours = {
            key: name if name in shapes else re.sub(r"^(next|\.final)_obs", OBS, name) for key, name in names.items()
        }
        return {key: (shapes[name], name in layout.ragged) for key, name in ours.items() if name in shapes}


def whole_numbers(array: ParquetArray) -> Array:
    """Return a column of whole numbers, int64 ``(count,)``, whatever their type; raise InputError for others."""
    count, values = array.shape[0], np.asarray(array[slice(None)])
    with np.errstate(invalid="ignore"):
        found: Array = values.astype(np.int64)
    if values.size != count or (found != values).any():
        raise InputError(f"{array.where} must be one whole number a row")
    return found.reshape(count)


def check_order(episode: ParquetArray | None, frame: ParquetArray | None) -> None:
    """Raise InputError for the first row that is not where its numbers say.

    Args:
        episode: the column that numbers episodes: by one more from one to the next.
        frame: the column that numbers the steps of each episode from 0.
    """
    columns = [array for array in (episode, frame) if array is not None and array.shape[0]]
    numbers = {array.key: whole_numbers(array) for array in columns}
    if not columns:
        return
    first, steps = numbers[columns[0].key], numbers[columns[-1].key]
    step = first[1:] == 0 if episode is None else np.diff(first)
    wrong = np.append(False, ~np.isin(step, (0, 1)))
    if frame is not None:
        wrong |= steps != np.append(0, np.where(step == 0, steps[:-1] + 1, 0))
    if wrong.any():
        raise InputError(_not_in_order(columns[0], numbers, int(np.argmax(wrong))))


def _not_in_order(column: ParquetArray, numbers: Mapping[str, Array], row: int) -> str:
    import pyarrow.parquet as pq

    starts = [0, *itertools.accumulate(pq.read_metadata(file).num_rows for file in column.files)]
    at = int(np.searchsorted(starts, row, side="right")) - 1
    has, after = (
        " and ".join(f"{key} {each[one]}" for key, each in numbers.items()) if one >= 0 else "nothing"
        for one in (row, row - 1)
    )
    by = ", ".join(f'("{key}", "ascending")' for key in numbers)
    return (
        f"{str(column.files[at])!r}: row {row - starts[at]:,} has {has}, after {after}: they must ascend without gaps, "
        f"steps from 0 on. If no row is missing, sort them with pyarrow: table.sort_by([{by}])"
    )
