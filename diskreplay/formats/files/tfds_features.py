"""The features of TensorFlow Datasets: what ``features.json`` says of an example, and its values as arrays.

1. A ``Tensor``, a ``Scalar`` and a ``ClassLabel`` are numbers. With an ``encoding``, values are the bytes of each, and
   ragged if the first size is unknown. A ``Sequence`` of numbers has those of all values, and how many are of each.
2. A ``Text``, or a ``Tensor`` of a string, is UTF-8, which becomes a ragged array of code points.
3. An ``Image`` of uint8 is PNG or JPEG. Features of other kinds are not read.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.formats.core.flat import ArrayLike, ListedArray, code_points
from diskreplay.formats.core.layout import CODE_POINTS
from diskreplay.formats.core.untrusted import VALUE_BYTES, damage, declared_count, read_json
from diskreplay.formats.files.images import EncodedImages
from diskreplay.schema.columns import DTYPES
from diskreplay.schema.ragged import offsets_of

TEXT, IMAGE, SEQUENCE, NUMBERS, RAW, ZLIB = "text", "image", "sequence", "none", "bytes", "zlib"
"""The ways in which values stand in an example; the last three are TensorFlow Datasets' own names."""
BAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, zlib.error)

Example = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ReadableFeature:
    """A feature whose values are read: its key in an example, and the way in which its values stand there.

    The shape is that of a value, or of an item of a ragged one; ``()`` for images of any size.
    """

    key: str
    coding: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ragged: bool = False

    def array(self, example: Example, where: str, count: int) -> ArrayLike:
        """Return the values of ``count`` steps; raise InputError, naming ``where``, if they are not as described."""
        where = f"{where}: {self.key}"
        with damage(where, BAD):
            if self.coding == NUMBERS:
                return _numbers(example, self.key, self.dtype).reshape(count, *self.shape)
            if self.coding == SEQUENCE:
                items = _numbers(example, f"{self.key}/ragged_flat_values", self.dtype)
                sizes = _numbers(example, f"{self.key}/ragged_row_lengths_0", np.dtype(np.int64))
                sizes = sizes * math.prod(self.shape[not self.ragged :])
            else:
                each = _values(example, self.key, "bytes_list")
                if self.coding == IMAGE and len(each) == count:
                    return EncodedImages(where, lambda start, stop: each[start:stop], count)
                if self.coding == TEXT and len(each) == count:
                    return code_points(where, each)
                raw = [self._decoded(value) for value in each]
                items = np.frombuffer(b"".join(raw), self.dtype.newbyteorder("<"))
                sizes = np.array([len(value) for value in raw], np.int64) // self.dtype.itemsize
            size = math.prod(self.shape)
            if len(sizes) != count or (sizes < 0).any() or ((sizes % size) if self.ragged else (sizes != size)).any():
                raise ValueError(f"there are not {count:,} values of the shape {self.shape}")
            if self.ragged:
                return ListedArray(where, items.reshape(-1, *self.shape), offsets_of(sizes // size))
            return items.reshape(count, *self.shape)

    def _decoded(self, value: bytes) -> bytes:
        most = VALUE_BYTES if self.ragged else math.prod(self.shape) * self.dtype.itemsize
        found = zlib.decompressobj().decompress(value, most + 1) if self.coding == ZLIB else value
        if len(found) > most or len(found) % self.dtype.itemsize:
            raise ValueError(f"a value is not of {self.dtype} {self.shape}")
        return found


def is_declared(key: str, features: Mapping[str, ReadableFeature | None]) -> bool:
    """Tell whether a key of an example is that of a feature, or one of several below it that the feature has."""
    above, slash, _ = key.rpartition("/")
    while slash and above not in features:
        above, slash, _ = above.rpartition("/")
    found = features.get(above)
    return key in features or (bool(slash) and (found is None or found.coding == SEQUENCE))


def _values(example: Example, key: str, wanted: str) -> Any:
    if key not in example:
        raise ValueError(f"{key} is missing in the record")
    kind = example[key].WhichOneof("kind") or wanted
    values = getattr(example[key], kind).value
    if kind != wanted and values:
        raise ValueError(f"there is a {kind}, where a {wanted} belongs")
    return values


def _numbers(example: Example, key: str, dtype: np.dtype[Any]) -> Array:
    floats = dtype.kind == "f"
    values = _values(example, key, "float_list" if floats else "int64_list")
    found: Array = np.fromiter(values, np.float32 if floats else np.int64, len(values))
    with np.errstate(over="ignore"):
        cast: Array = found.view(np.uint64) if dtype == np.uint64 else found.astype(dtype)
    if not floats and (cast.astype(np.int64) != found).any():
        raise ValueError(f"there are numbers that are not of {dtype}")
    return cast


def read_features(path: pathlib.Path) -> dict[str, ReadableFeature | None]:
    """Return the features of a ``features.json`` by key, None for those that are not read.

    Raises InputError for a file that describes no features.
    """
    found: dict[str, ReadableFeature | None] = {}

    def walk(node: Mapping[str, Any], key: str) -> None:
        if "featuresDict" in node:
            for name, child in node["featuresDict"]["features"].items():
                walk(child, f"{key}/{name}".lstrip("/"))
        elif key == "steps" and "sequence" in node:
            walk(node["sequence"]["feature"], key)
        else:
            found[key] = _feature(node, key)

    with damage(str(path), BAD):
        walk(read_json(path), "")
    return found


def _feature(node: Mapping[str, Any], key: str) -> ReadableFeature | None:
    described = node.get("tensor") or node.get("image") or {}
    dtype, coding = str(described.get("dtype", "uint8")), described.get("encoding") or NUMBERS
    sizes = [int(size) for size in described.get("shape", {}).get("dimensions", ())]
    if "text" in node or (dtype in ("string", "object") and not sizes):
        return ReadableFeature(key, TEXT, *CODE_POINTS, ragged=True)
    if "classLabel" in node:
        return ReadableFeature(key, NUMBERS, (), np.dtype(np.int64))
    if "sequence" in node:
        item, length = _feature(node["sequence"]["feature"], key), int(node["sequence"].get("length", -1))
        if item is None or item.coding != NUMBERS:
            return None
        shape = item.shape if length < 0 else (length, *item.shape)
        return dataclasses.replace(item, coding=SEQUENCE, shape=shape, ragged=length < 0)
    if "image" in node and dtype == "uint8":
        return ReadableFeature(key, IMAGE, tuple(sizes) if min(sizes, default=0) > 0 else (), np.dtype(np.uint8))
    ragged = coding in (RAW, ZLIB) and sizes[:1] == [-1]
    known = tuple(declared_count(size, "a size") for size in sizes[ragged:] if size > 0)
    fits = "tensor" in node and coding in (NUMBERS, RAW, ZLIB) and dtype in DTYPES and len(known) == len(sizes) - ragged
    return ReadableFeature(key, coding, known, np.dtype(dtype), ragged) if fits else None
