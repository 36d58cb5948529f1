"""The array of a stream: the chunks in its shards, the rows in RAM that the tail holds, and how both grow.

Reading: chunk ``k`` holds rows ``[k * chunk_rows, (k + 1) * chunk_rows)``; it exists once for each *group* of
``chunk_envs`` environments. The chunk directory, a ring in RAM, gives the offset and bytes of every chunk of the
retained shards. The shards hold the rows below ``stored_rows``. All rows
from there on, and the newest next observation behind the last of them, are in RAM: the tail holds them on disk.

Writing: rows gather in a write buffer of one chunk or more. When it is full, its chunks are *sealed*: compressed by
background threads and kept in RAM until a commit appends them to their shards. Rows that leave the window before that
are not written. A chunk that closing appended partly filled is appended again when it has more rows; the bytes of its
older version stay in the shard as a hole.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError, EvictedError, SchemaError
from diskreplay.native import core
from diskreplay.process import background
from diskreplay.process.background import Task
from diskreplay.schema.columns import MAX_CHUNK_BYTES, Codec, Column, StoredColumn
from diskreplay.schema.ring import Ring
from diskreplay.storage import blosc, chunks, handles, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.commit import Stored
from diskreplay.storage.handles import Handles

TASK_BYTES = 1 << 20
"""The bytes of chunks that a thread compresses in one go, or one chunk if it has more."""
HANDED_ROWS = 64
"""A write buffer has one chunk of so many rows or more, or, of shorter ones, :data:`HANDED_BYTES`: for these the system
has large pages. Fresh small ones, which it clears one by one, take longer to come than rows to be copied to them. It
has no more than :data:`MOST_HANDED_ROWS`: a store may have hundreds of columns of few bytes."""
HANDED_BYTES = 8 << 20
MOST_HANDED_ROWS = 1 << 14
MAX_BACKLOG_BYTES = 128 << 20
HURRY_BYTES = 16 << 20
"""The decoded bytes that wait for their compression before it is made a light one; see docs/design/0002."""
TRIED_CHUNKS = 64
"""Of the chunks that follow one that did not shrink, each of this number is compressed, lightly; others are copies."""
MOST_DEAD_BYTES = 1 << 16
"""The bytes that may be dead in a shard in any case when its stream is closed."""

Location = tuple[fs.Readable, int, int]
"""The place of a chunk: file, offset, bytes."""


def shard_name(shard: int, column: Column) -> str:
    """Return the Zarr chunk key of a shard: the file's name in the array's directory."""
    return f"c.{shard}" + ".0" * (1 + len(column.shape))


def shard_number(name: str, column: Column) -> int | None:
    """Return the shard that a file's name belongs to, or None if it is not a shard's."""
    digits = name.split(".")[1] if name.startswith("c.") else ""
    return int(digits) if digits.isdecimal() and shard_name(int(digits), column) == name else None


class Held(NamedTuple):
    """A chunk in RAM: its values ``(groups, *chunk_shape)``, or the bytes of each group if there are none."""

    values: NDArray[Any] | None
    encoded: Sequence[bytes] = ()


class ColumnReader(core.Counted):
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
        self.waiting: dict[int, NDArray[Any]] = {}
        """The chunks that were made of rows of the tail and shards, ``(groups, *chunk_shape)``, by number."""
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

    def held(self, chunk: int) -> Held:
        """Return a chunk from :attr:`in_ram` on; what of it shards hold is read now."""
        values = self.waiting.get(chunk)
        if values is None:
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
            self.waiting[chunk] = values
        return Held(values)

    def shard_path(self, shard: int) -> str:
        return os.path.join(self.directory, shard_name(shard, self.column))

    def handle(self, shard: int) -> fs.File:
        """Return the open file of a shard."""
        return self.open_shards([shard])[shard]

    def open_shards(self, shards: Iterable[int], *, besides: int = 0, ask: bool = True) -> dict[int, fs.File]:
        """Return the files of the first of these shards: as many as may be read at once, and one at least.

        ``besides`` is the number of files that are held for the same batch already.
        """
        held: dict[int, fs.File] = {}
        opened: dict[int, fs.File] = {}
        for shard in shards:
            file = self.handles.get(shard)
            if file is None:
                count = besides + len(held)
                if count and count >= handles.POOL.most_held():
                    break
                handles.POOL.make_room(len(opened) + 1)
                file = self._open(shard, needed=not count)
                if file is None:
                    if count > 1 and opened:  # what follows needs a descriptor, too
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
        file = self.open_shards([shard], ask=ask)[shard]
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

    def locate(self, chunk: NDArray[np.int64], group: NDArray[np.int64]) -> list[Location]:
        """Return the places of the first of these committed chunks (n,): those that may be read at once.

        Their files stay open as long as somebody holds them.
        """
        if len(chunk) and (int(chunk.min()) < self.entries.begin or int(chunk.max()) >= self.entries.end):
            raise EvictedError(
                f"chunks {chunk.min()} to {chunk.max()} of column {self.column.name!r} in stream {self.stream!r} are "
                f"not all retained; the first that is, is {self.entries.begin}"
            )
        shards = (chunk // self.shard_chunks).tolist()
        held = self.open_shards(dict.fromkeys(shards))
        entries = self.entries.array[chunk % self.entries.length, group].tolist()
        found: list[Location] = []
        for one, shard, (offset, size) in zip(chunk.tolist(), shards, entries, strict=True):
            if shard not in held:
                break
            if offset < 0:
                raise self.damage(shard, None, f"chunk {one} is missing", one)
            found.append((held[shard], offset, size))
        return found

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
                self._copy_chunk(one, group[at], scratch, start, stop, out)
            chunk, group = chunk[len(places) :], group[len(places) :]

    def _copy_chunk(
        self, chunk: int, group: int, values: NDArray[Any], start: int, stop: int, out: NDArray[Any]
    ) -> None:
        """Copy those of a chunk's rows that are in ``[start, stop)`` to ``out``, which begins at row ``start``."""
        first = chunk * self.column.chunk_rows
        low, high = max(start, first), min(stop, first + self.column.chunk_rows)
        envs = slice(group * self.group_envs, (group + 1) * self.group_envs)
        out[low - start : high - start, envs] = values[low - first : high - first]

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
    chunks: range
    entries: NDArray[np.int64]
    stored: Stored


class Chunks(NamedTuple):
    """Chunks of a write buffer, whatever becomes of the buffer: their bytes by group, first those that are there.

    Of the parts the first ``skipped`` do not count.
    """

    encoded: list[bytes]
    tasks: list[Task[list[bytes]]]
    skipped: int

    def parts(self) -> list[bytes]:
        """Return the bytes of each group of each chunk, once all are compressed."""
        return (self.encoded + [data for task in self.tasks for data in task.result()])[self.skipped :]


class Taken(NamedTuple):
    """What a commit takes of an array.

    Attributes:
        stop: one past the last chunk that is full.
        chunks: the full chunks in RAM.
        newest: the newest next observation, ``(num_envs, *shape)``, where one stands behind the last row.
    """

    stop: int
    chunks: list[Chunks]
    newest: NDArray[Any] | None

    def parts(self) -> list[bytes]:
        """Return the bytes of each group of the full chunks, once all are compressed."""
        return [data for chunks in self.chunks for data in chunks.parts()]


class Encoder:
    """What threads encode the chunks of a column by: they try in vain to compress noise only now and then."""

    def __init__(self) -> None:
        self._header, self._copies = b"", 0

    def encode(self, codec: Codec, values: Iterable[NDArray[Any]]) -> list[bytes]:
        """Return the bytes of some chunks."""
        return [self._encode(codec, each) for each in values]

    def _encode(self, codec: Codec, values: NDArray[Any]) -> bytes:
        header = self._header  # read once: other threads change it, and may count less exactly
        if header and self._copies > 0:
            self._copies -= 1
            return chunks.encode_copy(header, values)
        data = chunks.encode(codec.lightest if header else codec, values)
        self._copies = TRIED_CHUNKS - 1
        self._header = data[: blosc.HEADER_BYTES] if chunks.is_copy(codec, data) else b""
        return data


class WriteBuffer:
    """Chunks that follow each other, in RAM: their values until all are compressed, and their bytes.

    Args:
        values: those of the chunks, ``(chunks, groups, *chunk_shape)``.
        first: the number of the first chunk.
        begin: the number of the first chunk with rows, which no shard holds.

    Attributes:
        values: None once all chunks are compressed.
        sealed: one past the last chunk that is compressed, or is being compressed.
        encoded: the bytes of each group of the compressed chunks from ``begin`` on.
        size: the number of these bytes.
    """

    def __init__(self, values: NDArray[Any], first: int, begin: int) -> None:
        self.values: NDArray[Any] | None = values
        self.first, self.stop = first, first + len(values)
        self.begin = self.sealed = begin
        self.groups = values.shape[1]
        self.encoded: list[bytes] = []
        self.size = 0
        self._tasks: list[Task[list[bytes]]] = []

    @property
    def done(self) -> bool:
        """True if :meth:`settle` need not wait."""
        return all(task.done for task in self._tasks)

    def seal(self, encode: Callable[[NDArray[Any]], list[bytes]], stop: int) -> None:
        """Have the chunks below ``stop`` encoded that are not yet, by a function of many chunks."""
        assert self.values is not None
        new = self.values[self.sealed - self.first : stop - self.first].reshape(-1, *self.values.shape[2:])
        many = max(1, TASK_BYTES // new[0].nbytes)
        parts = [new[at : at + many] for at in range(0, len(new), many)]
        tasks = [background.submit(functools.partial(encode, part)) for part in parts]
        self._tasks, self.sealed = self._tasks + tasks, stop

    def settle(self, wait: bool = True) -> None:
        """Take over the bytes of what is compressed; ``wait`` until all is that is sealed."""
        tasks = self._tasks if wait else [*itertools.takewhile(lambda task: task.done, self._tasks)]
        new = [data for task in tasks for data in task.result()]
        left, encoded, size = self._tasks[len(tasks) :], self.encoded + new, self.size + sum(map(len, new))
        self._tasks, self.encoded, self.size = left, encoded, size
        if self.sealed == self.stop and not left:
            self.values = None  # last: a reader looks here first

    def taken(self, chunk: int) -> Chunks:
        """Return the chunks from a number on that are compressed, or are being compressed."""
        return Chunks(self.encoded, self._tasks, max(0, chunk - self.begin) * self.groups)

    def waiting_bytes(self, chunk: int) -> int:
        """Return the bytes of the compressed chunks from a number on."""
        if chunk <= self.begin:
            return self.size
        return sum(map(len, self.encoded[(chunk - self.begin) * self.groups :]))

    def call_off(self) -> None:
        """Have nothing more compressed: nobody needs the rows any more."""
        for task in self._tasks:
            task.call_off()
        self._tasks = []

    def held(self, chunk: int) -> Held:
        """Return one of the chunks."""
        values = self.values  # read once: a commit may replace it by its bytes right now
        if values is not None:
            return Held(values[chunk - self.first])
        at = (chunk - self.begin) * self.groups
        return Held(None, self.encoded[at : at + self.groups])

    def keep(self, begin: int, sealed: int) -> None:
        """Forget the bytes of the chunks outside of ``[begin, sealed)``."""
        begin, sealed = max(begin, self.begin), min(sealed, self.sealed)
        self.encoded = self.encoded[(begin - self.begin) * self.groups : (sealed - self.begin) * self.groups]
        self.begin, self.sealed, self.size = begin, sealed, sum(map(len, self.encoded))


class ColumnWriter(ColumnReader):
    """A column that grows, not thread-safe: the stream serialises its writers.

    What :meth:`take` gave may be read, staged and written while rows are appended.
    """

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
        self.buffers: dict[int, WriteBuffer] = {}
        """The write buffers with rows that no shard holds; row ``n`` stands in that of ``n // buffer_rows``."""
        self._taken = 0
        """One past the last chunk that a commit has taken."""
        self._going = range(0)
        """The rows of a commit that was begun and is not over, with the place of the newest next observation."""
        self._unsettled: collections.deque[WriteBuffer] = collections.deque()

    def lay_out(self, column: StoredColumn) -> None:
        super().lay_out(column)
        self._encoder = Encoder()
        many = self.groups == 1 and column.chunk_rows < HANDED_ROWS
        most = -(-MOST_HANDED_ROWS // column.chunk_rows)
        self.buffer_chunks = min(-(-HANDED_BYTES // self.decoded_bytes), most) if many else 1
        self.buffer_rows = self.buffer_chunks * column.chunk_rows
        """The rows of the write buffer; row ``n`` stands at ``n % buffer_rows``."""

    def _fresh(self) -> None:
        """Go on in a new write buffer, from the chunk of row ``end`` on."""
        values = np.empty((self.buffer_chunks, self.groups, *self.chunk_shape), self.column.dtype)
        first = self.end // self.column.chunk_rows
        self.buffers[first // self.buffer_chunks] = WriteBuffer(values, first - first % self.buffer_chunks, first)
        self._write_to(values)

    def _write_to(self, values: NDArray[Any]) -> None:
        """Have rows written to an array ``(buffer_chunks, groups, *chunk_shape)``: ``slots[i]`` takes row ``i``."""
        self.buffer = values
        together = values.reshape(1, self.buffer_rows, *self.chunk_shape[1:]) if self.groups == 1 else values[0]
        self.slots: NDArray[Any] = self._slots(together)
        self.single: NDArray[Any] = self.slots[:, 0] if self.num_envs == 1 else self.slots
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
        self.end = first
        self._fresh()
        self.append(values[: end - first, 0] if self.num_envs == 1 else values[: end - first])
        if newest:
            self.slots[end % self.buffer_rows] = values[-1]
        self.committed = end
        self.append_at = self.stored.size if self.stored is not None else 0

    def _copy_held(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """Fill ``out`` with rows in RAM: until :meth:`resume`, with those that were read from the tail."""
        if not self.buffers:
            return super()._copy_held(start, stop, out)
        rows = self.column.chunk_rows
        for chunk in range(start // rows, -(-stop // rows)):
            low, high = max(start, chunk * rows), min(stop, (chunk + 1) * rows)
            slots = self._slots(self._values(chunk))
            out[low - start : high - start] = slots[low - chunk * rows : high - chunk * rows]

    def held(self, chunk: int) -> Held:
        return self.buffers[chunk // self.buffer_chunks].held(chunk)

    def _values(self, chunk: int) -> NDArray[Any]:
        """Return the values ``(groups, *chunk_shape)`` of a chunk in RAM, decoded if it is only compressed."""
        values, encoded = self.held(chunk)
        if values is None:
            values = np.empty((self.groups, *self.chunk_shape), self.column.dtype)
            for group, data in enumerate(encoded):
                chunks.decode(self.column.codec, data, values[group])
        return values

    def advance(self, hurry: bool = False, floor: int = 0) -> None:
        """Go on to the next slot once row ``end`` is in its own; seal the chunks of the write buffer when it is full.

        Args:
            hurry: True to have the chunks compressed lightly where many others wait to be compressed.
            floor: the first row that the window needs; what is not written by now of those before it never will be.
        """
        self.end += 1
        if not self.end % self.buffer_rows:
            self.compress(hurry, floor)
            self._fresh()

    def compress(self, hurry: bool = False, floor: int = 0) -> None:
        """Have the full chunks compressed that are not yet, and forget the write buffers before row ``floor``."""
        full = self.end // self.column.chunk_rows
        newest = self.buffers.get((full - 1) // self.buffer_chunks)
        if newest is not None and newest.sealed < full:
            behind = hurry and len(self._unsettled) * self.buffer.nbytes > HURRY_BYTES
            codec = self.column.codec.lightest if behind else self.column.codec
            newest.seal(functools.partial(self._encoder.encode, codec), full)
            self._unsettled.append(newest)
        for number in list(itertools.takewhile(lambda number: (number + 1) * self.buffer_rows <= floor, self.buffers)):
            if (number + 1) * self.buffer_rows <= self._going.start or number * self.buffer_rows >= self._going.stop:
                self.buffers.pop(number).call_off()
        while self._unsettled and (
            self._unsettled[0].done or len(self._unsettled) * self.buffer.nbytes > MAX_BACKLOG_BYTES
        ):
            self._unsettled[0].settle()
            self._unsettled.popleft()

    def append(self, values: NDArray[Any]) -> None:
        """Put rows ``(n, [num_envs,] *shape)`` behind the others; ``rewind`` takes them back."""
        rows = self.buffer_rows
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
        """Return the encoded bytes in RAM of the chunks that are compressed and that no commit has taken."""
        return sum(buffer.waiting_bytes(self._taken) for buffer in [*self.buffers.values()])  # a thread may commit

    def rewind(self, end: int) -> None:
        """Take back the rows from ``end`` on, none of which is committed; interrupted, it can be done again."""
        first = end // self.column.chunk_rows
        if first < self.end // self.column.chunk_rows:  # its chunk was filled: its write buffer is written again
            number = first // self.buffer_chunks
            buffer = self.buffers[number]
            buffer.settle()
            if buffer.values is None:
                values = np.empty((self.buffer_chunks, self.groups, *self.chunk_shape), self.column.dtype)
                for chunk in range(buffer.begin, first + 1):
                    values[chunk - buffer.first] = self._values(chunk)
                buffer.values = values
            buffer.keep(buffer.begin, first)
            for later in [later for later in self.buffers if later > number]:
                del self.buffers[later]
            self._write_to(buffer.values)
        self.end, self._taken = min(self.end, end), min(self._taken, first)

    def take(self, floor: int, newest: bool) -> Taken:
        """Return what a commit takes: the rows below ``end``, and all full chunks that are not wholly before ``floor``.

        They stay in RAM until :meth:`publish`. ``newest`` tells that a next observation stands behind the last row.
        """
        self.compress(floor=floor)
        stop = self._taken = self.end // self.column.chunk_rows
        self._going = range(floor, self.end + 1)
        chunks = [buffer.taken(floor // self.column.chunk_rows) for buffer in self.buffers.values()]
        return Taken(stop, chunks, self.read_rows(self.end, self.end + 1)[0] if newest else None)

    def partial(self) -> list[bytes]:
        """Return the bytes of each group of the last chunk if it has rows that no shard holds, else nothing."""
        chunk, filled = divmod(self.end, self.column.chunk_rows)
        if not filled or self.end == self.stored_rows:
            return []
        values = self.buffer[chunk % self.buffer_chunks].copy()
        values[:, filled:] = 0
        return [chunks.encode(self.column.codec, each) for each in values]

    def stage(self, stop: int, parts: list[bytes], rows: int) -> list[ShardAppend]:
        """Return what a commit of rows below ``rows`` must append so that the chunks before ``stop`` are in shards.

        ``parts`` are the bytes of each group of the last of them; nothing changes.
        """
        first, appended = stop - len(parts) // self.groups, []
        while first < stop:
            end = min(stop, (first // self.shard_chunks + 1) * self.shard_chunks)
            count = (end - first) * self.groups
            appended.append(self._append(range(first, end), parts[:count], rows))
            first, parts = end, parts[count:]
        return appended

    def _append(self, new: range, parts: list[bytes], end: int) -> ShardAppend:
        """Return what a commit of rows below ``end`` must append to a shard so that it has new chunks."""
        shard = new[0] // self.shard_chunks
        goes_on = self.stored is not None and shard == self.stored.shard
        offset = self.append_at if goes_on else 0
        first = shard * self.shard_chunks
        index = np.full((self.shard_chunks, self.groups, 2), -1, np.int64)
        low, high = max(first, self.entries.begin), min(first + self.shard_chunks, self.entries.end)
        if goes_on and low < high:
            index[low - first : high - first] = self.entries.span(low, high)
        sizes = np.array(list(map(len, parts)), np.int64).reshape(len(new), self.groups)
        ends = offset + np.cumsum(sizes).reshape(sizes.shape)
        entries = np.stack([ends - sizes, sizes], axis=2)
        index[new.start - first : new.stop - first] = entries
        rows = min(end, new.stop * self.column.chunk_rows)
        parts.append(chunks.encode_index(index, self.seal(shard, rows)))
        stored = Stored.of(self.column, shard, offset + sum(map(len, parts)), rows)
        return ShardAppend(shard, offset, parts, new, entries, stored)

    def mostly_dead(self, appended: ShardAppend) -> bool:
        """Tell whether more than half of a shard, and 64 kB, would be dead with what is appended."""
        first = appended.shard * self.shard_chunks
        low, high = max(first, self.entries.begin), min(appended.chunks[0], self.entries.end)
        alive = self.entries.span(low, high)[:, :, 1].clip(0).sum() if low < high else 0
        alive += appended.entries[:, :, 1].sum() + self.index_bytes
        return bool(appended.stored.size - alive > max(MOST_DEAD_BYTES, appended.stored.size // 2))

    def publish(self, appended: list[ShardAppend], end: int, floor: int) -> None:
        """Take the rows below ``end`` for durable, and read those that were appended from shards from now on.

        Compressed chunks before row ``floor``, which nobody needs any more, are forgotten.
        """
        for append in appended:
            first = append.chunks[0]
            if first > self.entries.end or not self.entries.end:  # the chunks before it were never needed
                begin = append.shard * self.shard_chunks
                if first // self.shard_chunks * self.shard_chunks > self.entries.end:
                    self.entries.restart(begin)
                self.entries.extend(np.full((first - self.entries.end, self.groups, 2), -1, np.int64))
            self.entries.write(first, append.entries)
            self.stored, self.append_at = append.stored, append.stored.size
        self.committed, self._going = end, range(0)
        if appended:
            self.stored_rows = appended[-1].stored.rows  # only now: until here these rows were read from RAM
            for number in [number for number in self.buffers if (number + 1) * self.buffer_rows <= self.stored_rows]:
                del self.buffers[number]
        first = max(self.stored_rows, floor) // self.column.chunk_rows
        for buffer in self.buffers.values():
            buffer.settle(wait=False)
            if buffer.begin < (kept := min(first, buffer.sealed)):
                buffer.keep(kept, buffer.sealed)
        while self._unsettled and self._unsettled[0].done:
            self._unsettled.popleft().settle()

    def describe(self, shard: int) -> None:
        """Make the array's document hold ``shard``, and its layout, before its first shard has a name."""
        rows = (shard + 1) * self.column.shard_rows
        if self.stored is None:
            wanted = metadata.array_document(self.column, self.num_envs, rows)
            if metadata.read(self.files, self.directory) == wanted:
                return
        metadata.write_array(self.files, self.directory, self.column, self.num_envs, rows)
