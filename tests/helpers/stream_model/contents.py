"""What the files of a stream say: its record, the blocks of its tail, the chunks and indexes of its shards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from helpers.stream_model.disk import Bytes, Damage, Disk, Missing, size

ARRAYS = {"obs": ("rows", 2), "start": ("rows", 4), "items": ("items", 2)}
"""The table and the rows of a chunk of each array."""
SHARD_CHUNKS, WINDOW, FILL = 2, 6, "fill"
STREAMS = ("0", "1")

Value = Any
Rows = Mapping[tuple[str, int] | str, Value]
"""(array, row) -> value, and ``newest``: the newest next observation."""


class Shards(NamedTuple):
    """What a record says of an array (docs/format.md, 4.1)."""

    shard: int
    bytes: int
    rows: int
    chunk_rows: int
    shard_rows: int


class Tail(NamedTuple):
    """What a record says of the tail (4.8)."""

    n: int = 0
    bytes: int = 0
    oldest: int = 0


NO_TAIL = Tail()


@dataclasses.dataclass(frozen=True)
class Record:
    """A stream's record (5.1); ``content`` is the model's own: the number of what was written."""

    stream: str
    content: int
    sequence: int = 0
    timeline: int = 0
    floor: int = 0
    begin: int = 0
    end: int = 0
    first_item: int = 0
    end_item: int = 0
    arrays: Mapping[str, Shards] = dataclasses.field(default_factory=dict)
    tail: Tail = NO_TAIL
    back: bool = False

    def span(self, array: str) -> tuple[int, int]:
        """``needed_from`` and ``end`` of the array's table."""
        return (self.floor, self.end) if ARRAYS[array][0] == "rows" else (self.first_item, self.end_item)

    def in_shards(self, array: str) -> int:
        """One past the last row of an array that its shards hold."""
        return self.arrays[array].rows if array in self.arrays else 0


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's document (9.1)."""

    cut: Mapping[str, Record]
    pending: bool = False


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of a tail, its seal (stream, n, offset), and the record without its tail."""

    seal: tuple[str, int, int]
    rows: Mapping[str, tuple[int, tuple[Value, ...]]]
    record: Record


@dataclasses.dataclass(frozen=True)
class Chunk:
    stream: str
    array: str
    number: int
    values: tuple[Value, ...]


@dataclasses.dataclass(frozen=True)
class Index:
    """The index of a shard: its seal (stream, array, shard, rows), and where each chunk begins."""

    seal: tuple[str, str, int, int]
    chunks: Mapping[int, int]


def document(disk: Disk, path: str) -> Any:
    """A whole document; None where there is none."""
    file = disk.names.get(path)
    if file is None:
        return None
    if len(file.data) != 1 or file.data[0].kind != "document":
        raise Damage(f"{path} is no document: {file.data}")
    return file.data[0].payload


def record_of(disk: Disk, stream: str) -> Record:
    record = document(disk, f"{stream}/zarr.json")
    assert isinstance(record, Record)
    return record


def checkpoints(disk: Disk) -> dict[str, Checkpoint]:
    """All that pin, by name."""
    return {path.rpartition("/")[2]: document(disk, path) for path in disk.list("checkpoints")}


def cuts_of(disk: Disk, stream: str) -> list[Record]:
    """What the checkpoints name of a stream, pending or not."""
    return [checkpoint.cut[stream] for checkpoint in checkpoints(disk).values() if stream in checkpoint.cut]


def tails_of(disk: Disk, stream: str) -> dict[int, str]:
    """The files of a stream's tails by their numbers, in order."""
    found = {int(path.rpartition(".")[2]): path for path in disk.list(f"{stream}/start", "tail.")}
    return dict(sorted(found.items()))


def shards_of(disk: Disk, stream: str, array: str) -> dict[int, str]:
    """The files of an array's shards by their numbers, in order."""
    found = {int(path.rpartition(".")[2]): path for path in disk.list(f"{stream}/{array}", "c.")}
    return dict(sorted(found.items()))


def most_named(cuts: Iterable[Record], n: int) -> int:
    """The greatest bytes that a cut names of a tail, 0 where none does."""
    return max((cut.tail.bytes for cut in cuts if cut.tail.n == n), default=0)


def pinned(cuts: Iterable[Record], array: str, shard: int, rows: int) -> bool:
    """9.1: whether a cut has rows of a shard, or names it as its last."""
    return any(
        (cut.span(array)[0] < (shard + 1) * rows and shard * rows < cut.span(array)[1])
        or (array in cut.arrays and cut.arrays[array].shard == shard)
        for cut in cuts
    )


def whole_blocks(data: Bytes, stream: str, n: int) -> list[tuple[int, Block]]:
    """The blocks from the beginning of a tail on that are whole, each with where it ends."""
    found, offset = [], 0
    for entry in data:
        if entry.kind != "block" or entry.payload.seal != (stream, n, offset):
            break
        offset += entry.length
        found.append((offset, entry.payload))
    return found


def blocks(data: Bytes, stream: str, n: int, committed: int) -> list[tuple[int, Block]]:
    """The blocks of a tail's committed bytes."""
    found = [(end, block) for end, block in whole_blocks(data, stream, n) if end <= committed]
    if (found[-1][0] if found else 0) != committed:
        raise Damage(f"tail.{n} of {stream} has not {committed} bytes in whole blocks")
    return found


def tail_rows(found: Iterable[tuple[int, Block]]) -> dict[str, dict[int, Value]]:
    """The rows of a tail: where blocks have the same one, the last counts."""
    rows: dict[str, dict[int, Value]] = {array: {} for array in ARRAYS}
    for _, block in found:
        for array, (at, values) in block.rows.items():
            rows[array].update(enumerate(values, at))
    return rows


def index_at(data: Bytes, length: int) -> Index | None:
    """The index that ends after so many bytes."""
    offset = 0
    for entry in data:
        offset += entry.length
        if offset == length:
            return entry.payload if entry.kind == "index" else None
    return None


def chunk_at(data: Bytes, at: int) -> Chunk | None:
    offset = 0
    for entry in data:
        if offset == at:
            return entry.payload if entry.kind == "chunk" else None
        offset += entry.length
    return None


def shard_rows(data: Bytes, record: Record, array: str, shard: int) -> dict[int, Value]:
    """The rows of a shard, as the index says that the record reaches (4.4)."""
    entry, where = record.arrays[array], f"{record.stream}/{array}/c.{shard}"
    index = index_at(data, entry.bytes if shard == entry.shard else size(data))
    if index is None:
        raise Damage(f"{where}: no index where it should end")
    if index.seal != (record.stream, array, shard, min(entry.rows, (shard + 1) * entry.shard_rows)):
        raise Damage(f"{where}: seal {index.seal}, rows {entry.rows}")
    rows: dict[int, Value] = {}
    for number, at in index.chunks.items():
        chunk = chunk_at(data, at)
        if chunk is None or (chunk.stream, chunk.array, chunk.number) != (record.stream, array, number):
            raise Damage(f"{where}: chunk {number} is not at {at}")
        rows.update(enumerate(chunk.values, number * entry.chunk_rows))
    return rows


def gather(
    record: Record, shard: Callable[[str, int], Mapping[int, Value]], tail: Mapping[str, Mapping[int, Value]]
) -> dict[tuple[str, int] | str, Value]:
    """What a record says: rows below ``rows`` of an array from its shards, the others from the tail."""
    found: dict[tuple[str, int] | str, Value] = {}
    for array in ARRAYS:
        low, high = record.span(array)
        read: dict[int, Mapping[int, Value]] = {}
        for row in range(low, high):
            if row < record.in_shards(array):
                number = row // record.arrays[array].shard_rows
                if number not in read:
                    read[number] = shard(array, number)
                value = read[number].get(row)
            else:
                value = tail[array].get(row)
            if value is None:
                raise Damage(f"{array}[{row}] is nowhere (rows in shards {record.in_shards(array)})")
            found[array, row] = value
    if record.end:
        if record.end not in tail["obs"]:
            raise Damage("no newest observation")
        found["newest"] = tail["obs"][record.end]
    return found


def load(disk: Disk, record: Record) -> dict[tuple[str, int] | str, Value]:
    """What a record says, read in one step."""
    n, committed, _ = record.tail
    path = f"{record.stream}/start/tail.{n}"
    if n and path not in disk.names:
        raise Missing(path)
    tail = tail_rows(blocks(disk.names[path].data, record.stream, n, committed) if n else [])

    def shard(array: str, number: int) -> dict[int, Value]:
        path = f"{record.stream}/{array}/c.{number}"
        if path not in disk.names:
            raise Missing(path)
        return shard_rows(disk.names[path].data, record, array, number)

    return gather(record, shard, tail)


def from_tail(disk: Disk, stream: str) -> Record | None:
    """The record of a stream whose document is lost (8.5)."""
    tails = tails_of(disk, stream)
    for n, path in reversed(tails.items()):
        for end, block in reversed(whole_blocks(disk.names[path].data, stream, n)):
            if all(
                (file := disk.names.get(f"{stream}/{array}/c.{entry.shard}")) and index_at(file.data, entry.bytes)
                for array, entry in block.record.arrays.items()
            ):
                return dataclasses.replace(block.record, tail=Tail(n, end, min(tails)))
    return None
