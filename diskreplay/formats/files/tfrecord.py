"""The files of TFRecord: examples one after another, each read when it is asked for.

A record is the length of its data (8 bytes, little-endian), the masked CRC-32C of these bytes (4), the data, and their
masked CRC-32C (4). The data are a ``tf.train.Example``: a map of keys to bytes, float32 or int64. The library
``tfrecord`` knows that message. Its own reader compares no checksum, and takes the memory that a length declares.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import google_crc32c

from diskreplay.errors import InputError

CRC_BYTES = 4


@dataclasses.dataclass(frozen=True)
class StoredExample:
    """The place of an example: data of ``length`` bytes from ``start`` in a file, named ``where`` in errors."""

    path: pathlib.Path
    where: str
    start: int
    length: int

    def read(self) -> Mapping[str, Any]:
        """Return its ``tf.train.Feature`` by key; raise InputError for damage."""
        from google.protobuf.message import DecodeError
        from tfrecord.example_pb2 import Example

        with self.path.open("rb") as file:
            file.seek(self.start)
            data = _checked(file, self.length, self.where)
        try:
            found: Mapping[str, Any] = Example.FromString(data).features.feature
        except DecodeError as error:
            raise InputError(f"{self.where} is no tf.train.Example: {error}") from error
        return found


def examples(path: pathlib.Path) -> Iterator[StoredExample]:
    """Yield the examples of a file, of which only lengths are read; raise InputError for those that it cannot have."""
    with path.open("rb") as file:
        size, start, number = os.fstat(file.fileno()).st_size, 0, 0
        while start < size:
            file.seek(start)
            where, start = f"{path}, record {number}", start + 8 + CRC_BYTES
            length = int.from_bytes(_checked(file, 8, where), "little")
            if length + CRC_BYTES > size - start:
                raise InputError(f"{where}: declares {length:,} bytes, and the file has {size - start:,} left")
            yield StoredExample(path, where, start, length)
            start, number = start + length + CRC_BYTES, number + 1


def _checked(file: BinaryIO, count: int, where: str) -> bytes:
    data, stored = file.read(count), file.read(CRC_BYTES)
    crc = google_crc32c.value(data)
    if stored != struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF):
        raise InputError(f"{where} is damaged: its checksum is not that of its bytes")
    return data
