"""The array of a stream: the chunks in its shards, the rows in RAM that the tail holds, and how both grow.

Reading: chunk ``k`` holds rows ``[k * chunk_rows, (k + 1) * chunk_rows)``; it exists once for each *group* of
``chunk_envs`` environments. The chunk directory, a ring in RAM, gives the offset and bytes of every chunk of the
retained shards. The shards hold the rows below ``stored_rows``. All rows
from there on, and the newest next observation behind the last of them, are in RAM: the tail holds them on disk.

Writing: rows gather in a write buffer; every ``chunk_rows`` rows it is *sealed*: compressed by background threads and
kept in RAM until a commit appends it to its shard. A chunk that closing appended partly filled is appended again when
it has more rows; the bytes of its older version stay in the shard as a hole.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import workers
from diskreplay.errors import CorruptionError, EvictedError, SchemaError
from diskreplay.schema.columns import MAX_CHUNK_BYTES, Codec, Column, StoredColumn
from diskreplay.schema.ring import Ring
from diskreplay.storage import chunks, handles, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.commit import Stored
from diskreplay.storage.handles import Handles
from diskreplay.workers import Task

GROUPS_A_TASK = 8
MAX_BACKLOG_BYTES = 128 << 20
HURRY_BYTES = 16 << 20
"""The decoded bytes that wait for their compression before it is made a light one; see docs/design/0002."""
MOST_DEAD_BYTES = 1 << 16
"""The bytes that may be dead in a shard in any case when its stream is closed."""

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


@dataclasses.dataclass
class Waiting:
    """A chunk in RAM, with its values ``(groups, *chunk_shape)`` until it is compressed, its bytes from then on."""

    values: NDArray[Any] | None
    tasks: list[Task[list[bytes]]] = dataclasses.field(default_factory=list)
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


class ColumnReader:
    """The committed chunks of one column; all methods raise CorruptionError with the exact place."""

    def __init__(
        self,
        files: fs.Files,
        directory: str,
        stream: str,
        column: StoredColumn,
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
        self.num_envs = num_envs
        self.identity = identity
        self.lay_out(column)
        self.stored: Stored | None = None
        """What the shards hold, or None as long as there is none."""
        self.stored_rows = 0
        """One past the last row that shards hold."""
        self.end = self.committed = 0
        """One past the last row; of those that a commit has."""
        self.needed_from = 0
        """The first row that has to be there."""
        self.handles = Handles()
        self.waiting: dict[int, Waiting] = {}
        """The chunks in RAM, by number, with rows from ``stored_rows`` on."""
        self._rows: list[tuple[int, NDArray[Any]]] = []
        """The rows from ``stored_rows`` on that were read from the tail: the first, and ``(n, num_envs, *shape)``."""

    def lay_out(self, column: StoredColumn) -> None:
        """Take the layout of the array, which has no chunk yet."""
        self.column = column
        self.groups = self.num_envs // column.chunk_envs
        self.group_envs = column.chunk_envs
        self.shard_chunks = column.shard_rows // column.chunk_rows
        self.chunk_items = column.chunk_rows * self.group_envs
        """The number of values of a chunk."""
        self.chunk_shape = (column.chunk_rows, self.group_envs, *column.shape)
        self.decoded_bytes = self.chunk_items * column.item_bytes
        if self.decoded_bytes > MAX_CHUNK_BYTES:
            raise CorruptionError(
                f"{self.directory!r}: a chunk of {self.group_envs} environments has {self.decoded_bytes} bytes, above "
                f"{MAX_CHUNK_BYTES}", file=self.directory, stream=self.stream, column=column.name,
            )  # fmt: skip
        self.entries = Ring((self.groups, 2), np.int64)

    @property
    def index_bytes(self) -> int:
        return chunks.index_bytes(self.shard_chunks * self.groups)

    def load(self, stored: Stored | None, needed_from: int, end: int, *, again: bool = False) -> None:
        """Read the indexes of the shards that hold needed rows, but for what is known already.

        The caller asks afterwards, of all columns at once, whether it is :attr:`still_current`.

        Args:
            stored: what the shards hold.
            needed_from, end: the rows of the array that have to be there, half-open.
            again: True if the last shard may be another file than the one that is open.
        """
        if stored is not None and stored != self.stored:
            if self.stored is None and (column := stored.column(self.column)) != self.column:
                self.lay_out(column)
                self.waiting.clear()
            first_shard = min(needed_from // stored.shard_rows, stored.shard)
            known = first_shard if self.stored is None else self.stored.shard
            if again:
                self.handles.files.pop(known, None)
            if known < first_shard or not self.entries.end:
                known = first_shard
                self.entries.restart(known * self.shard_chunks)
            self.entries.end = known * self.shard_chunks
            for shard in range(known, stored.shard + 1):
                size = stored.size if shard == stored.shard else None
                self.entries.extend(self.read_index(shard, size, stored.rows, ask=False))
            self.stored, self.stored_rows = stored, stored.rows
        self.end = self.committed = end
        self.trim(needed_from)

    def put(self, first: int, values: NDArray[Any]) -> None:
        """Take in rows ``(n, num_envs, *shape)`` from ``first`` on that the tail holds; later ones count."""
        self._rows.append((first, values))
        rows = self.column.chunk_rows
        for chunk in range(first // rows, -(-(first + len(values)) // rows)):
            self.waiting.pop(chunk, None)

    def forget_held(self) -> None:
        """Forget the rows of the tail: another one is read from its beginning."""
        self._rows.clear()
        self.waiting.clear()

    def trim(self, needed_from: int) -> None:
        """Forget the shards that hold only rows below ``needed_from``, and rows in RAM that shards hold."""
        self.needed_from = needed_from
        if self.stored is not None:
            shard = min(needed_from // self.column.shard_rows, self.stored.shard)
            self.handles.drop_below(shard)
            self.entries.trim(min(shard * self.shard_chunks, self.entries.end))
        least = max(needed_from, self.stored_rows)
        self._rows = [(first, values) for first, values in self._rows if first + len(values) > least]
        for chunk in [chunk for chunk in self.waiting if (chunk + 1) * self.column.chunk_rows <= self.stored_rows]:
            del self.waiting[chunk]

    @property
    def in_ram(self) -> int:
        """The first chunk that is read from RAM."""
        if self.stored_rows >= self.end and not self._rows:
            return -(-self.stored_rows // self.column.chunk_rows)
        return self.stored_rows // self.column.chunk_rows

    def held(self, chunk: int) -> Waiting:
        """Return a chunk from :attr:`in_ram` on; what of it shards hold is read now."""
        found = self.waiting.get(chunk)
        if found is None:
            values = np.zeros((self.groups, *self.chunk_shape), self.column.dtype)
            first, stop = chunk * self.column.chunk_rows, (chunk + 1) * self.column.chunk_rows
            if first < self.stored_rows:
                for group in range(self.groups):
                    self.read_chunk(chunk, group, values[group])
            slots = values.swapaxes(0, 1)
            for begin, rows in self._rows:
                low, high = max(begin, first, self.stored_rows), min(begin + len(rows), stop)
                if low < high:
                    slots[low - first : high - first] = rows[low - begin : high - begin].reshape(-1, *slots.shape[1:])
            found = self.waiting[chunk] = Waiting(values)
        return found

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
        held = self._hold(distinct)  # before the entries: it may find other ones
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
        """Return a copy of rows ``[start, stop)``, ``(rows, num_envs, *shape)``, that a commit has."""
        out = np.zeros((stop - start, self.num_envs, *self.column.shape), self.column.dtype)
        if (stored := min(stop, self.stored_rows)) > start:
            self._read_stored(start, stored, out)
        if (first := max(start, self.stored_rows)) < stop:
            self._copy_held(first, stop, out[first - start :])
        return out

    def _read_stored(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with rows that shards hold."""
        rows = self.column.chunk_rows
        scratch = np.empty(self.chunk_shape, self.column.dtype)
        wanted = np.arange(start // rows, -(-stop // rows))
        chunk, group = np.repeat(wanted, self.groups), np.tile(np.arange(self.groups), len(wanted))
        while len(chunk):
            places = self.locate(chunk, group)
            for at, one in enumerate(chunk[: len(places)].tolist()):
                self.decode(places[at], scratch, one)
                low, high = max(start, one * rows), min(stop, (one + 1) * rows)
                envs = slice(group[at] * self.group_envs, (group[at] + 1) * self.group_envs)
                out[low - start : high - start, envs] = scratch[low - one * rows : high - one * rows]
            chunk, group = chunk[len(places) :], group[len(places) :]

    def _copy_held(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with rows that the tail holds."""
        for first, values in self._rows:
            low, high = max(start, first), min(stop, first + len(values))
            if low < high:
                out[low - start : high - start] = values[low - first : high - first]

    def check_held(self, end: int) -> None:
        """Raise CorruptionError if a needed row below ``end`` is neither in the shards nor in the tail."""
        reached = max(self.needed_from, self.stored_rows)
        for first, values in sorted(self._rows, key=operator.itemgetter(0)):
            if first > reached:
                break
            reached = max(reached, first + len(values))
        if reached < end:
            raise CorruptionError(
                f"row {reached} of column {self.column.name!r} in stream {self.stream!r} is neither in the shards, "
                f"which end at row {self.stored_rows}, nor in the tail; run 'diskreplay verify' for the whole extent",
                file=self.directory, stream=self.stream, column=self.column.name, rows=(reached, end),
            )  # fmt: skip

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


def array_reader(files: fs.Files, directory: str, stream: str, column: StoredColumn, length: int) -> ColumnReader:
    """Return a reader of an array of one environment that is complete, with ``length`` rows."""
    reader = ColumnReader(files, directory, stream, column, 1)
    if length:
        last = (length - 1) // column.shard_rows
        size = files.size(reader.shard_path(last)) or 0
        reader.load(Stored.of(column, last, size, length), 0, length)
    return reader


@dataclasses.dataclass(frozen=True)
class ShardAppend:
    """The addition of a commit to a shard: parts from ``offset`` on, and what follows from it.

    Attributes:
        chunks, entries: the chunks, and their directory entries.
        stored: what the shards hold with it.
    """

    shard: int
    offset: int
    parts: list[bytes]
    chunks: list[int]
    entries: NDArray[np.int64]
    stored: Stored


class ColumnWriter(ColumnReader):
    """A column that grows, not thread-safe: the stream serialises its writers."""

    def __init__(
        self, files: fs.Files, directory: str, stream: str, column: StoredColumn, num_envs: int, identity: str
    ) -> None:
        super().__init__(files, directory, stream, column, num_envs, identity)
        if 1 < self.group_envs < num_envs:
            raise SchemaError(
                f"column {column.name!r} of stream {stream!r} has chunks of {self.group_envs} of {num_envs} "
                "environments, to which rows cannot be added"
            )
        self.append_at = 0
        """The bytes of the last shard's file: what is added stands behind them."""
        self._unsettled: collections.deque[Waiting] = collections.deque()
        self._counted = 0, 0
        """The first chunk that :meth:`waiting_bytes` has not counted yet, and the bytes of those before it."""

    def _fresh(self) -> None:
        """Make a new write buffer, for the chunk of row ``end``."""
        self._write_into(np.empty((self.groups, *self.chunk_shape), self.column.dtype))

    def _write_into(self, buffer: NDArray[Any]) -> None:
        """Make ``buffer`` (groups, *chunk_shape) the write buffer; ``slots[i]`` takes row ``i``, all environments."""
        self.buffer = buffer
        self.waiting[self.end // self.column.chunk_rows] = Waiting(buffer)
        slots = self._slots(buffer)
        self.slots: NDArray[Any] = slots
        self.single: NDArray[Any] = slots[:, 0] if self.num_envs == 1 else slots
        """The slots, without the environment's axis when there is only one environment."""

    def _slots(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view ``(chunk_rows, num_envs, *shape)`` of the values ``(groups, *chunk_shape)`` of a chunk."""
        return values[0] if self.groups == 1 else values[:, :, 0].swapaxes(0, 1)

    @property
    def in_ram(self) -> int:
        return self.stored_rows // self.column.chunk_rows

    def resume(self, newest: bool) -> None:
        """Go on after the rows of the commit that was loaded; ``newest`` tells that a next observation is behind them.

        What the tail holds goes to write buffers, together with the rows of the last chunk that a shard holds.
        """
        end, rows = self.end, self.column.chunk_rows
        first = max(self.stored_rows, min(self.needed_from, end)) // rows * rows
        values = self.read_rows(first, end + newest)
        self._rows.clear()
        self.waiting.clear()
        self.end = first
        self._fresh()
        self.append(values[: end - first, 0] if self.num_envs == 1 else values[: end - first])
        if newest:
            self.slots[end % rows] = values[-1]
        self.committed = end
        self.append_at = self.stored.size if self.stored is not None else 0
        self._count_anew()

    def _copy_held(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with rows in RAM: until :meth:`resume`, with those that were read from the tail."""
        if not self.waiting:
            return super()._copy_held(start, stop, out)
        rows = self.column.chunk_rows
        for chunk in range(start // rows, -(-stop // rows)):
            low, high = max(start, chunk * rows), min(stop, (chunk + 1) * rows)
            slots = self._slots(self._values(chunk))
            out[low - start : high - start] = slots[low - chunk * rows : high - chunk * rows]

    def _values(self, chunk: int) -> NDArray[Any]:
        """Return the values ``(groups, *chunk_shape)`` of a chunk in RAM, decoded if it is only compressed."""
        waiting = self.waiting[chunk]
        if (values := waiting.values) is None:
            values = np.empty_like(self.buffer)
            for group, data in enumerate(waiting.encoded):
                chunks.decode(self.column.codec, data, values[group])
        return values

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
        sealed = self.waiting[self.end // self.column.chunk_rows - 1]
        sealed.tasks = [workers.submit(functools.partial(_encode, codec, batch)) for batch in batches]
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
        """Return the encoded bytes in RAM of the chunks that are compressed and in no shard."""
        chunk, count = self._counted
        while (sealed := self.waiting.get(chunk)) is not None and sealed.values is None:
            count += sum(map(len, sealed.encoded))
            chunk += 1
        self._counted = chunk, count
        return count

    def _count_anew(self) -> None:
        """Begin to count waiting bytes at the first chunk in RAM."""
        self._counted = min(self.waiting), 0

    def rewind(self, end: int) -> None:
        """Take back the rows from ``end`` on, none of which is committed; interrupted, it can be done again."""
        self._count_anew()
        first = end // self.column.chunk_rows
        if first < self.end // self.column.chunk_rows:  # its chunk was filled: it becomes the write buffer again
            values = self._values(first)
            self.end = end
            self._write_into(values)
            for chunk in [chunk for chunk in self.waiting if chunk > first]:
                del self.waiting[chunk]
        self.end = min(self.end, end)

    def full(self) -> list[tuple[int, list[bytes]]]:
        """Return the chunks in RAM that are full, and the bytes of each group."""
        full = self.end // self.column.chunk_rows
        return [(chunk, sealed.settle()) for chunk, sealed in sorted(self.waiting.items()) if chunk < full]

    def partial(self) -> list[tuple[int, list[bytes]]]:
        """Return the last chunk, and the bytes of each group, if it has rows that no shard holds."""
        filled = self.end % self.column.chunk_rows
        if not filled or self.end == self.stored_rows:
            return []
        values = self.buffer.copy()
        values[:, filled:] = 0
        return [(self.end // self.column.chunk_rows, _encode(self.column.codec, values))]

    def stage(self, added: list[tuple[int, list[bytes]]]) -> list[ShardAppend]:
        """Return what a commit must append so that these chunks are in shards; nothing is changed."""
        shards: dict[int, list[tuple[int, list[bytes]]]] = {}
        for chunk, encoded in added:
            shards.setdefault(chunk // self.shard_chunks, []).append((chunk, encoded))
        return [self._append(shard, new) for shard, new in shards.items()]

    def _append(self, shard: int, new: Sequence[tuple[int, list[bytes]]]) -> ShardAppend:
        goes_on = self.stored is not None and shard == self.stored.shard
        offset = self.append_at if goes_on else 0
        first = shard * self.shard_chunks
        index = np.full((self.shard_chunks, self.groups, 2), -1, np.int64)
        low, high = max(first, self.entries.begin), min(first + self.shard_chunks, self.entries.end)
        if goes_on and low < high:
            index[low - first : high - first] = self.entries.span(low, high)
        sizes = np.array([[len(data) for data in encoded] for _, encoded in new], np.int64)
        ends = offset + np.cumsum(sizes).reshape(sizes.shape)
        numbers = [chunk for chunk, _ in new]
        entries = np.stack([ends - sizes, sizes], axis=2)
        index[np.array(numbers) - first] = entries
        parts = [data for _, encoded in new for data in encoded]
        rows = min(self.end, (numbers[-1] + 1) * self.column.chunk_rows)
        parts.append(chunks.encode_index(index, self.seal(shard, rows)))
        stored = Stored.of(self.column, shard, offset + sum(map(len, parts)), rows)
        return ShardAppend(shard, offset, parts, numbers, entries, stored)

    def mostly_dead(self, appended: ShardAppend) -> bool:
        """Tell whether more than half of a shard, and 64 kB, would be dead with what is appended."""
        first = appended.shard * self.shard_chunks
        low, high = max(first, self.entries.begin), min(appended.chunks[0], self.entries.end)
        alive = self.entries.span(low, high)[:, :, 1].clip(0).sum() if low < high else 0
        alive += appended.entries[:, :, 1].sum() + self.index_bytes
        return bool(appended.stored.size - alive > max(MOST_DEAD_BYTES, appended.stored.size // 2))

    def publish(self, appended: list[ShardAppend], end: int) -> None:
        """Take the rows below ``end`` for durable, and read those that were appended from shards from now on."""
        for append in appended:
            first = append.chunks[0]
            if first > self.entries.end or not self.entries.end:  # the chunks before it were never needed
                begin = append.shard * self.shard_chunks
                if first // self.shard_chunks * self.shard_chunks > self.entries.end:
                    self.entries.restart(begin)
                self.entries.extend(np.full((first - self.entries.end, self.groups, 2), -1, np.int64))
            self.entries.write(first, append.entries)
            self.stored, self.append_at = append.stored, append.stored.size
        self.committed = end
        if appended:
            self.stored_rows = appended[-1].stored.rows  # only now: until here these rows were read from RAM
            for chunk in [chunk for chunk in self.waiting if chunk <= appended[-1].chunks[-1]]:
                if (chunk + 1) * self.column.chunk_rows <= self.stored_rows:
                    del self.waiting[chunk]
        self._count_anew()

    def describe(self, shard: int) -> None:
        """Make the array's document hold ``shard``, and its layout, before its first shard has a name."""
        rows = (shard + 1) * self.column.shard_rows
        document = metadata.array_document(self.column, self.num_envs, rows)
        if self.stored is not None or metadata.read(self.files, self.directory) != document:
            metadata.write(self.files, self.directory, document)


def _encode(codec: Codec, groups: NDArray[Any]) -> list[bytes]:
    return [chunks.encode(codec, values) for values in groups]
