"""The rows of one or several Parquet files as one table: which columns there are, and whether rows are in order."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.order import natural
from diskreplay.formats.core.refusing import by_hand, listed
from diskreplay.formats.files.arrow import damage, is_text
from diskreplay.formats.files.parquet_array import ParquetArray, Texts, is_parquet, is_readable, texts_of

Array = NDArray[Any]


def table_files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a table in natural order: itself, or those at most two levels below it or below its ``data``.

    Files whose names begin with a dot or an underscore are none of it.
    """
    if path.is_file():
        return [path] if is_parquet(path) else []
    below = path / "data" if (path / "data").is_dir() else path
    found = [*below.glob("*.parquet"), *below.glob("*/*.parquet")]
    kept = [file for file in found if file.is_file() and not file.name.startswith((".", "_"))]
    return sorted(kept, key=lambda file: natural(file.relative_to(path).as_posix()))


@dataclasses.dataclass(frozen=True)
class ParquetTable:
    """Some Parquet files.

    Attributes:
        where: the name of the table in errors.
        files: the files, in order.
        schemas: the schema of each.
        counts: the rows of each.
    """

    where: str
    files: Sequence[pathlib.Path]
    schemas: Sequence[Any]
    counts: Sequence[int]

    @classmethod
    def of(cls, path: pathlib.Path) -> ParquetTable:
        """Return the table at a path; raise InputError if there is none."""
        import pyarrow.parquet as pq

        files, schemas, counts = table_files(path), [], []
        if not files:
            raise InputError(f"{str(path)!r} is no Parquet file")
        for file in files:
            with damage(file), pq.ParquetFile(file) as opened:
                schemas.append(opened.schema_arrow)
                counts.append(opened.metadata.num_rows)
        return cls(str(path), files, schemas, counts)

    @property
    def count(self) -> int:
        return sum(self.counts)

    @functools.cached_property
    def kinds(self) -> Mapping[str, Any]:
        """The Arrow type of each column, in the first of the files that have it."""
        found: dict[str, Any] = {}
        for schema in self.schemas:
            found |= {field.name: field.type for field in schema if field.name not in found}
        return found

    def by_hand(self) -> str:
        """Return what is there, for an error, and the line of Python that imports it."""
        shapes = [(name, (self.count,), str(kind)) for name, kind in self.kinds.items()]
        line = by_hand(self.files[0], "pyarrow.parquet.read_table({!r})", "numpy.stack(f[{!r}].to_numpy())", shapes)
        return f"there are {listed(shapes)}; {line}"

    def is_text(self, key: str) -> bool:
        return is_text(self.kinds[key])

    def is_readable(self, key: str) -> bool:
        return is_readable(self.kinds[key]) or self.is_text(key)

    def check_column(self, key: str) -> None:
        """Raise InputError unless all files have a column."""
        for file, schema in zip(self.files, self.schemas, strict=True):
            if key not in schema.names:
                raise InputError(f"{str(file)!r} has no column {key!r}, as others have; leave it out (--columns)")

    def texts(self, key: str) -> Texts | None:
        """Return the facts of a column of texts, and None for others."""
        return texts_of(self.files, key) if self.is_text(key) else None

    def numbers(self, key: str) -> Array:
        """Return a column of whole numbers, int64 ``(count,)``, whatever their type; raise InputError for others."""
        values = ParquetArray(self.files, key, self.count)[slice(None)]
        with np.errstate(invalid="ignore"):
            found: Array = values.astype(np.int64)
        if values.size != self.count or (found != values).any():
            raise InputError(f"{self.where}: {key} must be one whole number a row")
        return found.reshape(self.count)

    def check_order(self, episode: str | None, frame: str | None, last: Array) -> None:
        """Raise InputError for the first row that is not where its numbers say.

        Args:
            episode: the column that numbers episodes: by one more from one to the next.
            frame: the column that numbers the steps of each episode from 0.
            last: ``(count,)`` bool: which rows end an episode, where no column numbers them.
        """
        begins, wrong = np.append(True, last[:-1])[: self.count], np.zeros(self.count, bool)
        if episode is not None and self.count:
            step = np.diff(self.numbers(episode))
            begins[1:], wrong[1:] = step != 0, (step != 0) & (step != 1)
        if frame is not None:
            starts = np.flatnonzero(begins)
            place = np.arange(self.count)
            wrong |= self.numbers(frame) != place - starts[np.cumsum(begins) - 1]
        if wrong.any():
            raise InputError(self._not_in_order(int(np.argmax(wrong)), [key for key in (episode, frame) if key]))

    def _not_in_order(self, row: int, keys: Sequence[str]) -> str:
        """Return what is wrong with a row whose numbers do not follow those of the row before."""
        stops = np.cumsum(self.counts)
        at = int(np.searchsorted(stops, row, side="right"))
        first = row - (int(stops[at]) - self.counts[at])
        numbers = {key: self.numbers(key) for key in keys}
        has, after = (
            " and ".join(f"{key} {each[one]}" for key, each in numbers.items()) if one >= 0 else "nothing"
            for one in (row, row - 1)
        )
        by = ", ".join(f'("{key}", "ascending")' for key in keys)
        return (
            f"{str(self.files[at])!r}: row {first:,} has {has}, after {after}: they must ascend without gaps, steps "
            f"from 0 on. If no row is missing, sort them with pyarrow: table.sort_by([{by}])"
        )
