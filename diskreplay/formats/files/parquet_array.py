"""Columns of Parquet files, read forwards a few MB at a time: numbers, lists of them, texts, or images."""

from __future__ import annotations

import functools
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.flat import code_points
from diskreplay.formats.core.layout import CODE_POINTS, Shape
from diskreplay.formats.core.transitions import BLOCK_BYTES, whole
from diskreplay.formats.core.untrusted import check_chunk, check_size
from diskreplay.formats.files import images
from diskreplay.formats.files.arrow import damage, is_number, is_text
from diskreplay.schema.ragged import Lists, offsets_of

MAGIC = b"PAR1"


class ParquetArray:
    """One column of some files, read forwards; a request for rows before those read last begins anew.

    Args:
        files: the files, in order.
        key: the key of the column.
        count: rows in them that are wanted.
        known: shape and dtype; found from the first row, when they are asked for, if None.
        present: ``(rows,)`` bool: which rows have a value, others being null; all of them if None.
        ragged: True if rows are lists of any size of values that are ``known``.
        text: True for a column of texts, whose rows are their code points.
    """

    def __init__(
        self, files: Sequence[pathlib.Path], key: str, count: int, known: Shape | None = None,
        present: Array | None = None, ragged: bool = False, text: bool = False,
    ) -> None:  # fmt: skip
        self.files, self.key, self._count, self._present = files, key, count, present
        self._known, self._ragged = (CODE_POINTS, True) if text else (known, ragged)
        self._size, self._text, self._strict = 1, text, False
        self._begin()

    def among(self, present: Array) -> ParquetArray:
        """Return the same column as one that has values in some rows, ``(rows,)`` bool, and none in the others."""
        count = int(present.sum())
        return ParquetArray(self.files, self.key, count, self._known, present, self._ragged, self._text)

    @functools.cached_property
    def _value(self) -> Shape:
        """The shape and dtype of a value; only once they are known all rows are checked, some MB at a time."""
        for path in self.files:
            _check_column(path, self.key, self._text)
        found = self._known
        if found is None:
            first = self._some(1) if self._count else np.empty(0, np.float32)
            found = first.shape[1:], first.dtype
        self._strict = True
        item = math.prod(found[0]) * found[1].itemsize
        self._size = max(1, min(1 << 16, BLOCK_BYTES // max(1, self.row_bytes or item)))
        self._begin()
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        return self._count, *self._value[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value[1]

    @functools.cached_property
    def row_bytes(self) -> int | None:
        """The bytes of a row of a ragged column on average, None for others."""
        if not self._ragged:
            return None
        shape, dtype = cast(Shape, self._known)
        item = math.prod(shape) * dtype.itemsize
        items = self._items(item) if self.texts is None else self.texts.characters
        return items * item // max(1, self._count) + 1

    @functools.cached_property
    def texts(self) -> Texts | None:
        """The facts of a column of texts, None for others."""
        return texts_of(self.files, self.key) if self._text else None

    @property
    def where(self) -> str:
        return f"{self.files[0] if len(self.files) == 1 else self.files[0].parent}: {self.key}"

    def _items(self, item_bytes: int) -> int:
        """Return the number of items in all lists; raise InputError if the files cannot hold so many."""
        import pyarrow.parquet as pq

        found = 0
        for path in self.files:
            with damage(path), pq.ParquetFile(path) as file:
                groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
            for column in (group.column(at) for group in groups for at in range(group.num_columns)):
                if column.path_in_schema.startswith(f"{self.key}."):
                    check_chunk(self.where, (column.num_values,), item_bytes)
                    found += column.num_values
        check_size(self.where, (found,), item_bytes, lambda: sum(path.stat().st_size for path in self.files))
        return found

    def _begin(self) -> None:
        self._at = 0
        self._rest: list[Any] = []
        self._batches = self._read()

    def _read(self) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = 0
        for path in self.files:
            with damage(path), pq.ParquetFile(path) as file:
                for column in _chunks(file, self.key, self._size):
                    if isinstance(column, pa.ExtensionArray):
                        column = column.storage
                    present: Any = True if self._present is None else self._present[done : done + len(column)]
                    if self._strict and (column.is_valid().to_numpy(zero_copy_only=False) != present).any():
                        raise InputError(
                            f"{self.where}: has rows without a value, or with one where none belongs; --columns leaves "
                            "it out"
                        )
                    done += len(column)
                    column = column.drop_null()
                    if len(column):
                        yield self._decoded(column)

    def _lists(self, column: Any) -> Lists:
        import pyarrow.compute as pc

        shape, dtype = cast(Shape, self._known)
        if self._text:
            return code_points(self.where, (text.encode() for text in column.to_pylist()))[:]
        if not _is_list(column.type):
            raise InputError(f"{self.where}: has values of {column.type}, not lists of {dtype} {shape}")
        items = column.flatten()
        offsets = offsets_of(pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64))
        return Lists(self._listed(items) if len(items) else np.empty((0, *shape), dtype), offsets)

    def _decoded(self, column: Any) -> Any:
        import pyarrow as pa

        if self._ragged:
            return self._lists(column)
        if pa.types.is_struct(column.type):
            column = column.field("bytes")
            if column.null_count:
                raise InputError(f"{self.where}: has images that are not in the file")
        elif self._known is not None and _is_binary(column.type):
            return self._raw(column)
        if not _is_binary(column.type):
            return self._listed(column)
        each = images.decoded(column.to_pylist(), self.where)
        if len({value.shape for value in each}) > 1:
            raise InputError(f"{self.where}: has images of several sizes")
        return self._shaped(np.stack(each))

    def _raw(self, column: Any) -> Array:
        shape, dtype = cast(Shape, self._known)
        data = b"".join(column.to_pylist())
        if len(data) != len(column) * math.prod(shape) * dtype.itemsize:
            raise InputError(f"{self.where}: has values that are not {dtype} {shape}")
        return np.frombuffer(data, dtype).reshape(len(column), *shape)

    def _shaped(self, values: Array) -> Array:
        shape, dtype = self._known or (values.shape[1:], values.dtype)
        if values.size != len(values) * math.prod(shape) or values.dtype != dtype:
            raise InputError(f"{self.where}: has values of {values.dtype} {values.shape[1:]}, not of {dtype} {shape}")
        return values.reshape(len(values), *shape)

    def _listed(self, column: Any) -> Array:
        import pyarrow.compute as pc

        shape = [len(column)]
        while _is_list(column.type):
            length = pc.min_max(pc.list_value_length(column)).as_py()
            if length["min"] != length["max"] or column.null_count:
                raise InputError(f"{self.where}: has lists of several lengths")
            shape.append(length["min"])
            column = column.flatten()
        if column.null_count:
            raise InputError(f"{self.where}: has lists with values missing")
        return self._shaped(column.to_numpy(zero_copy_only=False).reshape(shape))

    def _some(self, count: int) -> Any:
        while sum(map(len, self._rest)) < count:
            batch = next(self._batches, None)
            if batch is None:
                raise InputError(f"{self.where}: has too few rows with a value")
            if self._rest and not self._ragged and batch.shape[1:] != self._rest[0].shape[1:]:
                raise InputError(f"{self.where}: has values of several shapes")
            self._rest.append(batch)
        found = self._rest[0] if len(self._rest) == 1 else whole(self._rest)
        self._rest = [found[count:]]
        return found[:count]

    def __getitem__(self, rows: slice) -> Any:
        start, stop, _ = rows.indices(self.shape[0])
        if start < self._at:
            self._begin()
        while self._at < start:
            self._at += len(self._some(min(self._size, start - self._at)))
        if start >= stop:
            none = np.empty((0, *self.shape[1:]), self.dtype)
            return Lists(none, offsets_of(np.empty(0, np.int64))) if self._ragged else none
        self._at = stop
        found = self._some(stop - start)
        if not self._ragged and (found.shape[1:] != self.shape[1:] or found.dtype != self.dtype):
            raise InputError(f"{self.where}: has values of several shapes")
        return found


class Texts(NamedTuple):
    """The facts of a column of texts: the characters that occur, the length of the longest, and of all together."""

    charset: str
    longest: int
    characters: int


def texts_of(files: Sequence[pathlib.Path], key: str) -> Texts:
    """Return the facts of a column of texts; those that repeat take no memory.

    Raises InputError for files without such a column, and for a text that no row of a store could hold.
    """
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    charset: set[str] = set()
    longest = characters = 0
    for path in files:
        _check_column(path, key, texts=True)
        with damage(path), pq.ParquetFile(path, read_dictionary=[key]) as file:
            for column in _chunks(file, key, 1 << 16):
                lengths = pc.utf8_length(column.dictionary).to_numpy()
                charset.update(*column.dictionary.to_pylist())
                longest = max(longest, int(lengths.max(initial=0)))
                characters += int(lengths[column.indices.drop_null().to_numpy()].sum())
    check_chunk(f"{files[0].parent}: {key}", (longest,), CODE_POINTS[1].itemsize)
    return Texts("".join(sorted(charset)), longest, characters)


def _chunks(file: Any, key: str, size: int) -> Iterator[Any]:
    """Yield a column of a Parquet file, at most ``size`` rows at a time."""
    for group in range(file.num_row_groups):  # one by one: Arrow keeps what it has read of all that it is given
        for batch in file.iter_batches(size, [group], [key], use_threads=False):
            yield batch.column(0)


def _check_column(path: pathlib.Path, key: str, texts: bool) -> None:
    import pyarrow.parquet as pq

    with damage(path):
        schema = pq.read_schema(path)
    if key not in schema.names:
        raise InputError(f"{str(path)!r} has no column {key!r}, as others have; leave it out (--columns)")
    if schema.names.count(key) != 1 or not (is_text if texts else is_readable)(schema.field(key).type):
        raise InputError(f"{str(path)!r} has no one column {key!r} of {'texts' if texts else 'numbers or images'}")


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_readable(kind: Any) -> bool:
    """Tell whether values of an Arrow type are numbers, lists of them, or images."""
    import pyarrow as pa

    if isinstance(kind, pa.ExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_binary(kind.field("bytes").type)
    while _is_list(kind):
        kind = kind.value_type
    return _is_binary(kind) or is_number(kind)
