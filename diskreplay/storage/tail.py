"""The tail of a stream: an append-only log of the rows that no shard holds yet, one block for each commit record.

A block has rows of each array, the record without its own place in the tail, and a seal, which says that the block is
of this stream, this file and this place in it. Of several blocks of one file that hold a row the last one counts. A
record names the file and how many of its bytes count; whoever reads it keeps in RAM what the blocks hold.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError
from diskreplay.schema.columns import Codec
from diskreplay.storage import chunks
from diskreplay.storage import files as fs
from diskreplay.storage.commit import NO_TAIL, Tail

HEAD = struct.Struct("<IIQ")
"""The bytes of the list of parts, of the record, and of the whole block."""
LZ4 = Codec("lz4", 1)
RAW_BYTES = 64
"""The size up to which values are never compressed: it would not make them smaller."""
NAME = "tail."
DEAD_BYTES = 1 << 16
"""The dead bytes up to which no new tail is begun."""
LEFT_SECONDS, LEFT_BYTES = 60.0, 1 << 19
"""How long a tail that was left stays, for readers of an older record, and how many bytes such tails may take."""


class Part(NamedTuple):
    """Rows of one array in a block.

    Attributes:
        path: the array's path below the stream's group.
        first, rows: the first row, and their number.
        packed: True if the bytes are compressed.
        data: the bytes of ``(rows, num_envs, *shape)``.
    """

    path: str
    first: int
    rows: int
    packed: bool
    data: bytes

    @classmethod
    def of(cls, path: str, first: int, values: NDArray[Any]) -> Part:
        """Return the part with rows ``(n, num_envs, *shape)``."""
        raw = values.tobytes()
        packed = chunks.compress(LZ4, np.frombuffer(raw, values.dtype)) if len(raw) > RAW_BYTES else raw
        smaller = len(packed) < len(raw)
        return cls(path, first, len(values), smaller, packed if smaller else raw)

    def values(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the rows, ``(rows, *shape)``; raise DamagedError if the bytes do not hold just these."""
        size = chunks.decoded_bytes(self.data) if self.packed else len(self.data)
        if size != self.rows * dtype.itemsize * int(np.prod(shape)):
            raise chunks.DamagedError(f"{self.rows} rows of {self.path!r} cannot have {size} bytes")
        if not self.packed:
            return np.frombuffer(self.data, np.uint8).view(dtype).reshape(self.rows, *shape)
        out = np.empty((self.rows, *shape), dtype)
        chunks.decompress(self.data, out)
        return out


class Read(NamedTuple):
    """What was read of a tail.

    Attributes:
        parts: the rows of the blocks, in order.
        record: the record of the last block, as JSON; empty without a block.
    """

    parts: list[Part]
    record: bytes


def block(seal: str, offset: int, record: dict[str, Any], parts: Iterable[Part]) -> bytes:
    """Return the block of a record at byte ``offset`` of a tail, which ``seal`` names."""
    given = list(parts)
    listed = _dump([[p.path, p.first, p.rows, len(p.data), "lz4" if p.packed else "raw"] for p in given])
    said = _dump({name: value for name, value in record.items() if name != "tail"})
    size = HEAD.size + len(listed) + len(said) + sum(len(p.data) for p in given) + chunks.CRC_BYTES
    body = b"".join([HEAD.pack(len(listed), len(said), size), listed, said, *(p.data for p in given)])
    return body + _sealed(seal, offset, body)


def blocks(seal: str, offset: int, data: bytes) -> Iterator[tuple[int, list[Part], bytes]]:
    """Yield of each block its end in the file, its parts, and its record; ``data`` begins at byte ``offset``.

    Raises DamagedError at the first block that is not whole.
    """
    at = 0
    while at < len(data):
        size, parts, record = _block(seal, offset + at, data, at)
        at += size
        yield offset + at, parts, record


def _block(seal: str, offset: int, data: bytes, begin: int) -> tuple[int, list[Part], bytes]:
    """Return size, parts and record of the block at ``begin`` of ``data``, byte ``offset`` of the file."""
    listed, said, size = HEAD.unpack_from(data, begin) if len(data) - begin >= HEAD.size else (0, 0, 0)
    if not HEAD.size + listed + said + chunks.CRC_BYTES <= size <= len(data) - begin:
        raise chunks.DamagedError(f"no block begins at byte {offset}")
    end = begin + size - chunks.CRC_BYTES
    body = data[begin:end]
    if data[end : begin + size] != _sealed(seal, offset, body):
        raise chunks.DamagedError(f"the block at byte {offset} is damaged, or of another file")
    at, parts = HEAD.size + listed + said, []
    try:
        for path, first, rows, length, encoding in json.loads(body[HEAD.size : HEAD.size + listed]):
            if {type(first), type(rows), type(length)} != {int} or min(first, rows, length) < 0:
                raise ValueError(f"no part has rows {first!r:.50} and {rows!r:.50} more")
            parts.append(Part(str(path), first, rows, encoding == "lz4", body[at : at + length]))
            at += length
    except (ValueError, TypeError, RecursionError) as error:
        raise chunks.DamagedError(f"the parts of the block at byte {offset} cannot be read: {error}") from error
    return size, parts, body[HEAD.size + listed : HEAD.size + listed + said]


def _sealed(seal: str, offset: int, body: bytes) -> bytes:
    return struct.pack("<I", google_crc32c.extend(google_crc32c.value(f"{seal}/{offset}".encode()), body))


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def name(number: int) -> str:
    """Return the name of the file of a tail."""
    return f"{NAME}{number}"


def number_of(file: str) -> int | None:
    """Return the number of the tail of a file's name, or None if it is not a tail's."""
    digits = file.removeprefix(NAME)
    return int(digits) if digits.isdecimal() and name(int(digits)) == file and digits != "0" else None


def is_tail(path: str | None) -> bool:
    """Tell whether a path is that of a tail."""
    return path is not None and number_of(os.path.basename(path)) is not None


def on_disk(files: fs.Files, directory: str) -> list[int]:
    """Return the numbers of the tails in a stream's scratch directory, ascending."""
    return sorted(n for file in files.list(directory) if (n := number_of(file)) is not None)


def newest_record(files: fs.Files, directory: str, identity: str) -> tuple[dict[str, Any], Tail] | None:
    """Return the last whole record of the highest tail that has one, as JSON, and its place, or None if none has."""
    numbers = on_disk(files, directory)
    found = (last_record(files, directory, identity, Tail(number, sys.maxsize, numbers[0])) for number in numbers[::-1])
    return next(filter(None, found), None)


def last_record(files: fs.Files, directory: str, identity: str, place: Tail) -> tuple[dict[str, Any], Tail] | None:
    """Return the record before the first block of a tail that is not whole, as JSON, and its place, or None."""
    path, found = os.path.join(directory, name(place.number)), None
    unread = ValueError, TypeError, KeyError, RecursionError, struct.error, FileNotFoundError  # behind what is whole
    with contextlib.suppress(*unread), fs.translate_reads(path):
        data = files.read(path)[: place.size]
        listed, said, _ = HEAD.unpack_from(data)
        stream = json.loads(data[HEAD.size + listed : HEAD.size + listed + said])["stream"]
        for end, _, record in blocks(f"{identity}/{stream}/tail/{place.number}", 0, data):
            found = json.loads(record), place._replace(size=end)
    return found


def read(files: fs.Files, directory: str, stream: str, seal: str, tail: Tail, known: int) -> Read:
    """Return what a committed tail has behind its first ``known`` bytes; raise CorruptionError."""
    path = os.path.join(directory, name(tail.number))
    try:
        try:
            return _read(files, path, seal, tail, known)
        except chunks.DamagedError:
            if not files.forget(path):  # else it was a copy
                raise
            return _read(files, path, seal, tail, known)
    except FileNotFoundError as error:
        raise CorruptionError(f"{path!r} is missing (stream {stream!r})", file=path, stream=stream) from error
    except (ValueError, TypeError) as error:
        raise CorruptionError(
            f"{path!r}: {error} (stream {stream!r}); run 'diskreplay verify' for the whole extent", file=path,
            stream=stream,
        ) from error  # fmt: skip
    except OSError as error:
        raise fs.unreadable(path, error) from error


def read_whole(files: fs.Files, directory: str, seal: str, tail: Tail) -> tuple[Read, int]:
    """Return what can be read of a committed tail, up to its first damaged block, and the bytes of that."""
    read, size = Read([], b""), 0
    with contextlib.suppress(OSError, ValueError):
        data = files.open(os.path.join(directory, name(tail.number))).pread(tail.size, 0)
        for end, found, record in blocks(f"{seal}/{tail.number}", 0, data):
            read, size = Read(read.parts + found, record), end
    return read, size


def _read(files: fs.Files, path: str, seal: str, tail: Tail, known: int) -> Read:
    data = files.open(path).pread(tail.size - known, known)
    if len(data) < tail.size - known:
        raise chunks.DamagedError(f"the file ends before its {tail.size} committed bytes")
    found = list(blocks(f"{seal}/{tail.number}", known, data))
    return Read([part for _, parts, _ in found for part in parts], found[-1][2] if found else b"")


class TailWriter:
    """The tail that a writer appends to, and those that it has left.

    Attributes:
        tail: the committed place of the newest record in it.
        logged: for each array, one past the last row that the file holds, the newest next observation not counted.
        newest: for each array that has one, the bytes of the newest next observation that the file holds.
    """

    def __init__(self, files: fs.Files, directory: str, seal: str) -> None:
        self._files, self._directory, self._seal = files, directory, seal
        self.tail = NO_TAIL
        self.logged: dict[str, int] = {}
        self.newest: dict[str, bytes] = {}
        self._held: dict[str, collections.deque[tuple[int, int]]] = {}
        """For each array, one past the last row of each part of the file, and the part's bytes."""
        self._record_bytes = 0
        self._left: dict[int, tuple[float, int]] = {}
        """The tails that were left: since when by the monotonic clock, and their bytes."""
        self.renew = True
        """True if the next block must begin a tail."""

    def go_on(self, tail: Tail, parts: Iterable[Part], there: Iterable[int]) -> None:
        """Take over a tail with its ``parts``, beside others that are ``there``."""
        now = time.monotonic()
        self.tail, self.renew = tail, not tail.number
        self._forget()
        for part in parts:
            self._note(part)
        for number in there:
            if number != tail.number:
                self._left[number] = now, self._files.size(self.path(number)) or 0

    def path(self, number: int) -> str:
        """Return the path of a tail's file."""
        return os.path.join(self._directory, name(number))

    def _forget(self) -> None:
        self.logged, self.newest, self._held, self._record_bytes = {}, {}, {}, 0

    def _note(self, part: Part) -> None:
        self._held.setdefault(part.path, collections.deque()).append((part.first + part.rows, len(part.data)))

    def begins(self, live: Mapping[str, int]) -> bool:
        """Tell whether a block should begin a tail: if more is dead than lives.

        ``live`` has for each array the first row that neither a shard holds nor nobody needs.
        """
        if self.renew:
            return True
        alive = self._record_bytes
        for path, held in self._held.items():
            while held and held[0][0] <= live[path]:
                held.popleft()
            alive += sum(size for _, size in held)
        dead = self.tail.size - alive
        if dead <= max(DEAD_BYTES, self.tail.size // 2):
            return False
        return self._files.room(self._directory) > 2 * alive + DEAD_BYTES

    def oldest(self, number: int) -> int:
        """Return the least number of a tail to keep, if the newest one has a number; it never becomes less."""
        now, found, size = time.monotonic(), number, 0
        for left in sorted((left for left in self._left if left >= self.tail.oldest), reverse=True):
            since, taken = self._left[left]
            size += taken
            if found < number and (now - since > LEFT_SECONDS or size > LEFT_BYTES):
                break
            found = left
        return found

    def append(self, record: dict[str, Any], parts: Sequence[Part], begin: int | None, oldest: int | None) -> Tail:
        """Write a block, durably, and return its place for the record.

        Args:
            record: the record, as JSON.
            parts: the rows of the block.
            begin: the number of a tail to begin with it; None to go on.
            oldest: the least number of a tail to keep; None for :meth:`oldest`.
        """
        if begin is not None and self.tail.number:
            self._left[self.tail.number] = time.monotonic(), self.tail.size
        number, offset = (self.tail.number, self.tail.size) if begin is None else (begin, 0)
        file = self._files.open(self.path(number), write=True)
        if not offset:
            file.truncate(0)
        data = block(f"{self._seal}/{number}", offset, record, parts)
        file.pwrite([data], offset)
        file.sync()
        if begin is not None:
            self._files.sync_dir(self._directory)
            self._forget()
        for part in parts:
            self._note(part)
        self._record_bytes = len(data) - sum(len(part.data) for part in parts)
        self.renew = False
        self.tail = Tail(number, offset + len(data), self.oldest(number) if oldest is None else oldest)
        return self.tail

    def gone(self, number: int) -> None:
        """Forget a tail that was unlinked, or that checkpoints alone keep."""
        self._left.pop(number, None)

    def outdated(self) -> list[int]:
        """Return the tails that were left and are below the oldest one to keep."""
        return [number for number in self._left if number < self.tail.oldest]
