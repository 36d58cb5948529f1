"""The column of a stream on disk: where its chunks stand, how they are read, how new ones are written.

Reading: chunk ``k`` holds rows ``[k * chunk_rows, (k + 1) * chunk_rows)``; in a column that is not resident it exists
once for each environment (its *group*), in a resident one once for all. The chunk directory, a ring in RAM, gives
the offset and bytes of every chunk of the retained shards.

Writing: rows gather in a write buffer; every ``chunk_rows`` rows it is *sealed*: compressed by background threads and
kept in RAM until a commit appends it to its shard. The commit also appends the partly filled last chunk, which
is written again when it has more rows; the bytes of its older version stay in the shard as a hole.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import workers
from diskreplay.errors import CorruptionError, EvictedError
from diskreplay.schema.columns import Codec, Column
from diskreplay.schema.ring import Ring
from diskreplay.storage import chunks, handles, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.commit import Tail
from diskreplay.storage.handles import Handles
from diskreplay.workers import Task

GROUPS_A_TASK = 8
MAX_BACKLOG_BYTES = 128 << 20
HURRY_BYTES = 16 << 20
"""The decoded bytes that wait for their compression before it is made a light one; see docs/design/0002."""
MAX_CHUNK_BYTES = 1 << 30
"""The most decoded bytes of a chunk, of all its environments."""

Location = tuple[fs.Readable, int, int]
"""The place of a chunk: file, offset, bytes."""


@dataclasses.dataclass(frozen=True)
class Locations:
    """The places of chunks, whose files stay open as long as this lives.

    Attributes:
        files: the files.
        array: ``(3, n)``: the file's position in ``files``, offset, bytes.
    """

    files: Sequence[fs.Readable]
    array: NDArray[np.int64]

    @classmethod
    def none(cls) -> Locations:
        return cls([], np.empty((3, 0), np.int64))

    def __len__(self) -> int:
        return len(self.array[0])

    def __getitem__(self, which: int) -> Location:
        file, offset, size = self.array[:, which].tolist()
        return self.files[file], offset, size


def shard_name(shard: int, column: Column) -> str:
    """Return the Zarr chunk key of a shard: the file's name in the array's directory."""
    return f"c.{shard}" + ".0" * (1 + len(column.shape))


def shard_number(name: str, column: Column) -> int | None:
    """Return the shard that a file's name belongs to, or None if it is not a shard's."""
    digits = name.split(".")[1] if name.startswith("c.") else ""
    return int(digits) if digits.isdecimal() and shard_name(int(digits), column) == name else None


class ColumnReader:
    """The committed chunks of one column; all methods raise CorruptionError with the exact place."""

    def __init__(
        self,
        files: fs.Files,
        directory: str,
        stream: str,
        column: Column,
        num_envs: int,
        identity: str = "",
        still_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the array at ``directory``; nothing is read before :meth:`load`.

        Args:
            identity: names the array in the seals of its shards; empty for a checkpoint's arrays, which have none.
            still_current: asked when files have been opened: whether these are the files that the chunk directory
                describes.
        """
        self.still_current = still_current
        self.files = files
        self.directory = directory
        self.stream = stream
        self.column = column
        self.num_envs = num_envs
        self.groups = 1 if column.resident else num_envs
        self.group_envs = num_envs if column.resident else 1
        self.shard_chunks = column.shard_rows // column.chunk_rows
        self.chunk_items = column.chunk_rows * self.group_envs
        """The number of values of a chunk."""
        self.chunk_shape = (column.chunk_rows, self.group_envs, *column.shape)
        self.decoded_bytes = self.chunk_items * column.item_bytes
        if self.decoded_bytes > MAX_CHUNK_BYTES:
            raise CorruptionError(
                f"{directory!r}: a chunk of {num_envs} environments has {self.decoded_bytes} bytes, above "
                f"{MAX_CHUNK_BYTES}", file=directory, stream=stream, column=column.name,
            )  # fmt: skip
        self.entries = Ring((self.groups, 2), np.int64)
        self.identity = identity
        self.tail = Tail(0, 0)
        self.end = 0
        self.committed = 0
        self.handles = Handles()

    @property
    def index_bytes(self) -> int:
        return chunks.index_bytes(self.shard_chunks * self.groups)

    def load(self, first_row: int, end_row: int, tail: Tail) -> None:
        """Read the indexes of the shards that hold rows ``[first_row, end_row)``, but for what is known already.

        The caller asks afterwards, of all columns at once, whether it is :attr:`still_current`.
        """
        first_shard = first_row // self.column.shard_rows
        # The tail of an empty window: its shard, if not full, is what the next rows are added to.
        if (end_row > first_row or end_row % self.column.shard_rows) and tail != self.tail:
            known = self.tail.shard  # its shards below the old tail do not change any more
            if known < first_shard or not self.entries.end:
                known = first_shard
                self.entries.restart(known * self.shard_chunks)
            self.entries.end = known * self.shard_chunks
            for shard in range(known, (end_row - 1) // self.column.shard_rows + 1):
                size = tail.size if shard == tail.shard else None
                self.entries.extend(self.read_index(shard, size, end_row, ask=False))
            self.tail = tail
        self.end = self.committed = end_row
        self.trim(first_row)

    def trim(self, first_row: int) -> None:
        """Forget the shards that hold only rows below ``first_row``."""
        shard = min(first_row // self.column.shard_rows, self.tail.shard)
        self.handles.drop_below(shard)
        self.entries.trim(min(shard * self.shard_chunks, self.entries.end))

    def shard_path(self, shard: int) -> str:
        return os.path.join(self.directory, shard_name(shard, self.column))

    def handle(self, shard: int) -> fs.File:
        """Return the open file of a shard."""
        return self._hold([shard])[shard]

    def _hold(self, shards: Collection[int], *, ask: bool = True) -> dict[int, fs.File]:
        """Return the files of the first of these shards: as many as may be read at once, and one at least."""
        held: dict[int, fs.File] = {}
        opened: dict[int, fs.File] = {}
        for shard in itertools.islice(shards, handles.POOL.most_held()):
            file = self.handles.get(shard)
            if file is None:
                handles.POOL.make_room(len(opened) + 1)
                file = self._open(shard, needed=not held)
                if file is None:
                    if len(held) > 1 and opened:  # what follows needs a descriptor, too
                        del held[opened.popitem()[0]]
                    break
                opened[shard] = file
            held[shard] = file
        if opened:
            # Asked once, after the last: then all of them were opened before any going back.
            if ask and not self.still_current():
                raise self.damage(next(iter(opened)), None, "the stream has gone back to a checkpoint; refresh")
            self.handles.keep(opened)
        return held

    def _open(self, shard: int, needed: bool) -> fs.File | None:
        """Open the file of a shard; return None if no descriptor is left for it and it is not ``needed`` now."""
        try:
            return self.files.open(self.shard_path(shard))
        except FileNotFoundError as error:
            raise self.damage(shard, None, "the shard's file is missing") from error
        except OSError as error:
            if error.errno in fs.NO_DESCRIPTORS and not needed:
                return None
            raise fs.unreadable(self.shard_path(shard), error) from error

    def _size(self, file: fs.File, shard: int) -> int:
        try:
            return file.size()
        except OSError as error:
            raise fs.unreadable(self.shard_path(shard), error) from error

    def seal(self, shard: int, end: int) -> str:
        """Return the text by which a commit of rows below ``end`` seals a shard's index, empty without an identity."""
        rows = min(end, (shard + 1) * self.column.shard_rows)
        return self.identity and f"{self.identity}/{shard}/{rows}"

    def close_files(self) -> None:
        """Close the open files: they are not needed any more, or others stand in their places."""
        self.handles.close()

    def read_index(self, shard: int, size: int | None, end: int, *, ask: bool = True) -> NDArray[np.int64]:
        """Return the index ``(shard_chunks, groups, 2)`` that ends at byte ``size`` of the shard, or at its end.

        ``end`` is one past the last row of the commit that it belongs to; ``ask``, whether it is still current.
        """
        file = self._hold([shard], ask=ask)[shard]
        if size is not None:
            return self._read_index(file, shard, size, end)
        return self._read_index(file, shard, self._size(file, shard), end)

    def _read_index(self, file: fs.File, shard: int, size: int, end: int) -> NDArray[np.int64]:
        """Return the index as :meth:`read_index`, from an open file."""
        seal = self.seal(shard, end)
        length = self.index_bytes + (chunks.CRC_BYTES if seal else 0)
        offset = size - length
        try:
            data = file.pread(length, offset) if offset >= 0 else b""
            return chunks.decode_index(
                data, self.shard_chunks, self.groups, max(offset, 0), seal=seal,
                most=self.decoded_bytes + chunks.OVERHEAD_BYTES,
            )  # fmt: skip
        except chunks.DamagedError as error:
            raise self.damage(shard, max(offset, 0), str(error)) from error
        except OSError as error:
            raise fs.unreadable(self.shard_path(shard), error) from error

    def locate(self, chunk: NDArray[np.int64], group: NDArray[np.int64]) -> Locations:
        """Return the places of the first of these committed chunks (n,): those that may be read at once."""
        if not len(chunk):
            return Locations.none()
        if int(chunk.min()) < self.entries.begin or int(chunk.max()) >= self.entries.end:
            raise EvictedError(
                f"chunks {chunk.min()} to {chunk.max()} of column {self.column.name!r} in stream {self.stream!r} are "
                f"not all retained; the first that is, is {self.entries.begin}"
            )
        shards = chunk // self.shard_chunks
        each = shards.tolist()
        distinct = dict.fromkeys(each)
        held = self._hold(distinct)
        if len(held) < len(distinct):
            count = next(at for at, shard in enumerate(each) if shard not in held)
            shards, chunk, group = shards[:count], chunk[:count], group[:count]
        found = np.zeros((3, len(chunk)), np.int64)
        if len(held) > 1:
            known = list(held)
            first = min(known)
            position = np.empty(max(known) + 1 - first, np.int64)
            position[np.array(known) - first] = np.arange(len(known))
            found[0] = position[shards - first]
        found[1:] = self.entries.array[chunk % self.entries.length, group].T
        if found[1].min() < 0:
            lost = int(chunk[found[1].argmin()])
            raise self.damage(lost // self.shard_chunks, None, f"chunk {lost} is missing", lost)
        return Locations(list(held.values()), found)

    def decode(self, place: Location, out: NDArray[Any], chunk: int) -> None:
        """Read and decode a chunk that :meth:`locate` found into ``out``, contiguous, of a chunk's size."""
        file, offset, size = place
        try:
            chunks.decode(self.column.codec, file.pread(size, offset), out)
        except chunks.DamagedError as error:
            raise self.damage(chunk // self.shard_chunks, offset, str(error), chunk) from error
        except OSError as error:
            raise fs.unreadable(self.shard_path(chunk // self.shard_chunks), error) from error

    def read_chunk(self, chunk: int, group: int, out: NDArray[Any]) -> None:
        """Read and decode one chunk into ``out`` (chunk_shape)."""
        self.decode(self.locate(np.array([chunk]), np.array([group]))[0], out, chunk)

    def read_rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return a copy of committed rows ``[start, stop)``, ``(rows, num_envs, *shape)``."""
        out = np.empty((stop - start, self.num_envs, *self.column.shape), self.column.dtype)
        rows = self.column.chunk_rows
        scratch = np.empty(self.chunk_shape, self.column.dtype)
        wanted = np.arange(start // rows, -(-stop // rows) if stop > start else start // rows)
        chunk, group = np.repeat(wanted, self.groups), np.tile(np.arange(self.groups), len(wanted))
        while len(chunk):
            places = self.locate(chunk, group)
            for at, one in enumerate(chunk[: len(places)].tolist()):
                self.decode(places[at], scratch, one)
                low, high = max(start, one * rows), min(stop, (one + 1) * rows)
                envs = slice(group[at] * self.group_envs, (group[at] + 1) * self.group_envs)
                out[low - start : high - start, envs] = scratch[low - one * rows : high - one * rows]
            chunk, group = chunk[len(places) :], group[len(places) :]
        if self.column.resident:
            self.close_files()  # read once, and from then on in RAM
        return out

    def shards_on_disk(self) -> Iterator[tuple[int, str]]:
        """Yield the number and path of every shard's file in the array's directory."""
        for name in self.files.list(self.directory):
            shard = shard_number(name, self.column)
            if shard is not None:
                yield shard, os.path.join(self.directory, name)

    def damage(self, shard: int, offset: int | None, what: str, chunk: int | None = None) -> CorruptionError:
        rows, count = (self.column.shard_rows, shard) if chunk is None else (self.column.chunk_rows, chunk)
        lost = (count * rows, (count + 1) * rows)
        place = "" if offset is None else f" at byte {offset}"
        path = self.shard_path(shard)
        if self.files.forget(path):  # the next call downloads it again
            self.close_files()
        return CorruptionError(
            f"{path!r}{place}: {what} (stream {self.stream!r}, column {self.column.name!r}, "
            f"rows {lost[0]} to {lost[1]}); run 'diskreplay verify' for the whole extent",
            file=path, offset=offset, stream=self.stream, column=self.column.name, rows=lost,
        )  # fmt: skip


@dataclasses.dataclass
class SealedChunk:
    """A full chunk on its way to the disk, with its values until it is compressed, its bytes from then on."""

    values: NDArray[Any] | None
    tasks: list[Task[list[bytes]]]
    encoded: list[bytes] = dataclasses.field(default_factory=list)

    def settle(self) -> list[bytes]:
        """Wait for the compression, and return the bytes of each group."""
        if self.values is not None:
            self.encoded = [data for task in self.tasks for data in task.result()]
            self.values = None
            self.tasks = []
        return self.encoded

    @property
    def done(self) -> bool:
        """True if :meth:`settle` need not wait."""
        return all(task.done for task in self.tasks)


@dataclasses.dataclass(frozen=True)
class ShardAppend:
    """The addition of a commit to a shard: parts from ``offset`` on, and the directory entries and tail that follow."""

    shard: int
    offset: int
    parts: list[bytes]
    chunks: list[int]
    entries: NDArray[np.int64]
    tail: Tail


class ColumnWriter(ColumnReader):
    """A column that grows, not thread-safe: the stream serialises its writers."""

    def __init__(
        self, files: fs.Files, directory: str, stream: str, column: Column, num_envs: int, identity: str
    ) -> None:
        super().__init__(files, directory, stream, column, num_envs, identity)
        self.sealed: dict[int, SealedChunk] = {}
        self._unsettled: collections.deque[SealedChunk] = collections.deque()
        self._counted = 0, 0
        """The first chunk that :meth:`waiting_bytes` has not counted yet, and the bytes of those before it."""
        self._fresh()

    def _fresh(self) -> None:
        """Make a new write buffer, for the chunk of row ``end``."""
        self._write_into(np.empty((self.groups, *self.chunk_shape), self.column.dtype))

    def _write_into(self, buffer: NDArray[Any]) -> None:
        """Make ``buffer`` (groups, *chunk_shape) the write buffer; ``slots[i]`` takes row ``i``, all environments."""
        self.buffer = buffer
        slots = buffer[0] if self.column.resident else buffer[:, :, 0].swapaxes(0, 1)
        self.slots: NDArray[Any] = slots
        self.single: NDArray[Any] = slots[:, 0] if self.num_envs == 1 else slots
        """The slots, without the environment's axis when there is only one environment."""

    def resume(self, end: int) -> None:
        """Go on after the committed row ``end``: the last chunk's rows come back into the write buffer."""
        self.end = self.committed = end
        self._count_anew()
        filled = end % self.column.chunk_rows
        if filled:
            for group in range(self.groups):
                self.read_chunk(end // self.column.chunk_rows, group, self.buffer[group])

    def advance(self, hurry: bool = False) -> None:
        """Go on to the next slot once row ``end`` is in its own, and seal the chunk when it is full.

        ``hurry`` has the chunk compressed lightly where many others wait to be compressed.
        """
        self.end += 1
        if self.end % self.column.chunk_rows:
            return
        values = self.buffer
        batches = [values[i : i + GROUPS_A_TASK] for i in range(0, self.groups, GROUPS_A_TASK)]
        behind = hurry and len(self._unsettled) * values.nbytes > HURRY_BYTES
        codec = self.column.codec.lightest if behind else self.column.codec
        sealed = SealedChunk(values, [workers.submit(functools.partial(_encode, codec, batch)) for batch in batches])
        self.sealed[self.end // self.column.chunk_rows - 1] = sealed
        self._unsettled.append(sealed)
        while self._unsettled and (self._unsettled[0].done or len(self._unsettled) * values.nbytes > MAX_BACKLOG_BYTES):
            self._unsettled[0].settle()
            self._unsettled.popleft()
        self._fresh()

    def append(self, values: NDArray[Any]) -> None:
        """Put rows ``(n, [num_envs,] *shape)`` behind the others; ``rewind`` takes them back."""
        rows = self.column.chunk_rows
        while len(values):
            at = self.end % rows
            part, values = values[: rows - at], values[rows - at :]
            self.single[at : at + len(part)] = part
            if at + len(part) == rows:
                self.end += len(part) - 1
                self.advance()
            else:
                self.end += len(part)

    def waiting_bytes(self) -> int:
        """Return the encoded bytes in RAM of the chunks that are compressed and wait for a commit."""
        chunk, count = self._counted
        while (sealed := self.sealed.get(chunk)) is not None and sealed.values is None:
            count += sum(map(len, sealed.encoded))
            chunk += 1
        self._counted = chunk, count
        return count

    def _count_anew(self) -> None:
        """Begin to count waiting bytes at the first chunk that is not committed whole."""
        self._counted = self.committed // self.column.chunk_rows, 0

    def rewind(self, end: int) -> None:
        """Take back the rows from ``end`` on, none of which is committed; interrupted, it can be done again."""
        self._count_anew()
        first = end // self.column.chunk_rows
        if first in self.sealed:  # its chunk was filled: it becomes the write buffer again
            sealed = self.sealed[first]
            values = np.empty_like(self.buffer) if sealed.values is None else sealed.values
            if sealed.values is None:
                for group, data in enumerate(sealed.encoded):
                    chunks.decode(self.column.codec, data, values[group])
            self._write_into(values)
            for chunk in sorted((chunk for chunk in self.sealed if chunk >= first), reverse=True):
                del self.sealed[chunk]
        self.end = min(self.end, end)

    def stage(self) -> list[ShardAppend]:
        """Return what a commit must append so that every row below ``end`` is on disk; nothing is changed."""
        if self.end == self.committed:
            return []
        waiting = [(chunk, sealed.settle()) for chunk, sealed in self.sealed.items()]
        filled = self.end % self.column.chunk_rows
        if filled:
            partial = self.buffer.copy()
            partial[:, filled:] = 0
            waiting.append((self.end // self.column.chunk_rows, _encode(self.column.codec, partial)))
        shards: dict[int, list[tuple[int, list[bytes]]]] = {}
        for chunk, encoded in waiting:
            shards.setdefault(chunk // self.shard_chunks, []).append((chunk, encoded))
        return [self._append(shard, new) for shard, new in shards.items()]

    def _append(self, shard: int, new: Sequence[tuple[int, list[bytes]]]) -> ShardAppend:
        offset = self.tail.size if shard == self.tail.shard else 0
        first = shard * self.shard_chunks
        index = np.full((self.shard_chunks, self.groups, 2), -1, np.int64)
        low, high = max(first, self.entries.begin), min(first + self.shard_chunks, self.entries.end)
        if low < high:
            index[low - first : high - first] = self.entries.span(low, high)
        sizes = np.array([[len(data) for data in encoded] for _, encoded in new], np.int64)
        ends = offset + np.cumsum(sizes).reshape(sizes.shape)
        numbers = [chunk for chunk, _ in new]
        entries = np.stack([ends - sizes, sizes], axis=2)
        index[np.array(numbers) - first] = entries
        parts = [data for _, encoded in new for data in encoded]
        parts.append(chunks.encode_index(index, self.seal(shard, self.end)))
        tail = Tail(shard, offset + sum(map(len, parts)))
        return ShardAppend(shard, offset, parts, numbers, entries, tail)

    def publish(self, appended: list[ShardAppend], end: int) -> None:
        """Take the staged rows below ``end`` for durable: reads go to the disk from now on."""
        for append in appended:
            self.entries.write(append.chunks[0], append.entries)
            self.tail = append.tail
        self.committed = end
        # Only now: until here these rows were read from RAM.
        for append in appended:
            for chunk in append.chunks:
                self.sealed.pop(chunk, None)
        self._count_anew()

    def grow(self, shard: int) -> None:
        """Make the array's shape hold ``shard``."""
        rows = (shard + 1) * self.column.shard_rows
        metadata.write(self.files, self.directory, metadata.array_document(self.column, self.num_envs, rows))


def _encode(codec: Codec, groups: NDArray[Any]) -> list[bytes]:
    return [chunks.encode(codec, values) for values in groups]
