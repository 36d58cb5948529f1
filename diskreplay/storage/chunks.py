"""Chunks and shard indexes: bytes in, arrays out, each closed by a CRC-32C.

A chunk is Blosc's output (or the raw bytes) of a C-ordered array, followed by the little-endian CRC-32C of it. A
shard's index is ``(offset, nbytes)`` as little-endian uint64 for each chunk in C order, followed likewise; a chunk
that is not there has both set to 2**64 - 1. (Zarr v3: codecs ``blosc``, ``crc32c``, ``sharding_indexed``.)

Checksums do not notice a whole file in another's place. So a *seal* stands before each index, dead bytes to Zarr: the
CRC-32C of a text that says which shard of which array of which store this is, as of how many rows, and of the index.
"""

from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from diskreplay.schema.columns import Codec
from diskreplay.storage import blosc

CRC_BYTES = 4
ENTRY_BYTES = 16
OVERHEAD_BYTES = blosc.HEADER_BYTES + CRC_BYTES
"""The bytes of an encoded chunk beyond the decoded one: Blosc's header, the checksum."""
MISSING = np.iinfo(np.uint64).max
RESIDUE = 0x48674BC7
"""The CRC-32C of any bytes followed by their own little-endian CRC-32C."""
_sizes = struct.Struct("<I4xI").unpack_from  # of Blosc's header, from byte 4: decoded bytes, encoded bytes


class DamagedError(ValueError):
    """Raised for bytes that are not what was written; the caller knows where they stand and says so."""


def seal(data: bytes) -> bytes:
    """Return ``data`` and its checksum."""
    return data + struct.pack("<I", google_crc32c.value(data))


def encode(codec: Codec, values: NDArray[Any]) -> bytes:
    """Return the chunk of a C-contiguous array."""
    return seal(values.tobytes() if codec.name == "none" else compress(codec, values))


def is_copy(codec: Codec, data: bytes) -> bool:
    """Tell whether a chunk did not shrink, so that its Blosc buffer has the values as they are, behind the header."""
    return codec.name != "none" and bool(data[2] & blosc.COPIED)


def encode_copy(header: bytes, values: NDArray[Any]) -> bytes:
    """Return the chunk of a C-contiguous array that is not compressed; ``header`` is that of another such chunk."""
    checksum = google_crc32c.extend(google_crc32c.value(header), values)
    return b"".join((header, values.data, struct.pack("<I", checksum)))


def compress(codec: Codec, values: NDArray[Any]) -> bytes:
    """Return the Blosc buffer of a C-contiguous array."""
    shuffle = values.dtype.kind in "iufc" and values.itemsize > 1
    return blosc.compress(values, codec.name, codec.level, shuffle)


def decode(codec: Codec, data: bytes, out: NDArray[Any]) -> None:
    """Fill the C-contiguous ``out`` with a chunk's values; raise DamagedError if they are not those encoded."""
    if not is_whole(data):
        raise DamagedError("the checksum does not match")
    if codec.name == "none":
        if len(data) - CRC_BYTES != out.nbytes:
            raise DamagedError(f"it holds {len(data) - CRC_BYTES} bytes instead of {out.nbytes}")
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8, out.nbytes)
        return
    decompress(data, out, CRC_BYTES)


def decompress(data: bytes, out: NDArray[Any], behind: int = 0) -> None:
    """Fill the C-contiguous ``out`` from a Blosc buffer with ``behind`` bytes behind it, or raise DamagedError."""
    if len(data) < blosc.HEADER_BYTES + behind or _sizes(data, 4) != (out.nbytes, len(data) - behind):
        raise DamagedError("its Blosc header does not fit the chunk")
    try:
        blosc.decompress(data, out)
    except (RuntimeError, ValueError) as error:
        raise DamagedError(f"Blosc cannot decode it: {error}") from error


def decoded_bytes(data: bytes) -> int:
    """Return the decoded bytes of a Blosc buffer by its header, or raise DamagedError if it has none."""
    if len(data) < blosc.HEADER_BYTES:
        raise DamagedError("it has no Blosc header")
    return int(_sizes(data, 4)[0])


def is_whole(data: bytes) -> bool:
    """Tell whether the bytes end in their own checksum."""
    return bool(google_crc32c.value(data) == RESIDUE)


def encode_index(entries: NDArray[np.int64], identity: str = "") -> bytes:
    """Return the index of ``entries`` (chunks, groups, 2) of offset and bytes; an offset below 0 is a missing chunk.

    A seal stands before it where ``identity`` is not empty.
    """
    index = seal(np.where(entries < 0, MISSING, entries.astype("<u8")).astype("<u8").tobytes())
    return _seal_of(identity, index) + index if identity else index


def _seal_of(identity: str, index: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.value(identity.encode() + index))


def index_bytes(chunks: int) -> int:
    """Return the number of bytes of an index of ``chunks`` chunks."""
    return chunks * ENTRY_BYTES + CRC_BYTES


def decode_index(
    data: bytes, chunks: int, groups: int, limit: int, *, seal: str = "", most: int = 1 << 62
) -> NDArray[np.int64]:
    """Return offset and bytes of chunks, ``(chunks, groups, 2)``, -1 where missing.

    DamagedError when a chunk ends after byte ``limit`` or has more than ``most`` bytes, or where the index is not
    sealed with ``seal``; an empty ``seal`` is not looked for.
    """
    if seal:
        before, data = data[:CRC_BYTES], data[CRC_BYTES:]
    if len(data) != index_bytes(chunks * groups) or google_crc32c.value(data) != RESIDUE:
        raise DamagedError("the checksum of the shard's index does not match")
    if seal and before != _seal_of(seal, data):
        raise DamagedError("the index is whole, but of another file or another commit: its seal does not match")
    stored = np.frombuffer(data, "<u8", chunks * groups * 2).reshape(chunks, groups, 2)
    offsets, sizes = stored[:, :, 0], stored[:, :, 1]
    missing = (offsets == MISSING) & (sizes == MISSING)
    inside = (offsets <= limit) & (sizes <= min(limit, most)) & (offsets + sizes <= limit)
    if not (missing | inside).all():
        raise DamagedError("the shard's index points outside of the shard")
    return stored.astype(np.int64)  # of what is missing -1
