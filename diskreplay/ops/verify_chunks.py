"""The check of one column's files against the commits that need them.

A *span* is what one commit (the newest, or a checkpoint's) says of a column: the first row that must be there, and what
its shards hold. Shard by shard:

1. The file is there, and has the committed bytes.
2. The index at the end of the file (of the last shard: of its committed bytes) has the right checksum, and its offsets
   are inside of the file.
3. The index names every chunk of every row of the span and no chunk after its end, and no two chunks share bytes.
4. Every chunk that an index names has the right checksum, decodes to the chunk's size, and is zero after the end.
5. A boolean is 0 or 1, a reward is finite.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.errors import CorruptionError
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.reading import compiled
from diskreplay.reading.target import Target
from diskreplay.schema.columns import REWARD
from diskreplay.storage import chunks, metadata
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Stored
from diskreplay.storage.files import File

Span = tuple[int, Stored]
Entries = NDArray[np.int64]
"""Chunk, group, offset and bytes of chunks, and the commit's last row if it lies inside, ``(n, 5)``."""
PORTION_BYTES = 32 << 20
"""The decoded bytes of the chunks that are looked at together."""


class ColumnCheck:
    """A check of one column, of which commits need ``spans``; ``tick`` is called with bytes as they are read."""

    def __init__(
        self, reader: ColumnReader, path: str, spans: Sequence[Span], found: Findings, tick: Callable[[int], object]
    ) -> None:
        self.reader = reader
        self.column = reader.column
        self.path = path
        self.spans = [(min(first, stored.rows - 1), stored) for first, stored in spans]
        self.found = found
        self.tick = tick
        self._values = np.empty(reader.chunk_shape, self.column.dtype)
        self._rule: Callable[[Array], Array] | None = np.isfinite if self.column.name == REWARD else None
        """Tells which values are right, where not all are."""
        if self.column.dtype.kind == "b":
            self._rule = lambda values: values.view(np.uint8) <= 1

    def report(self, what: str, shard: int, offset: int | None = None, rows: tuple[int, int] | None = None) -> None:
        rows = rows or (shard * self.column.shard_rows, (shard + 1) * self.column.shard_rows)
        file = self.reader.shard_path(shard)
        self.found.add(what, stream=self.reader.stream, column=self.path, rows=rows, file=file, offset=offset)

    def shards(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the shards on disk that a span needs, and ranges of those that are not there.

        They are not walked through: a damaged record may name any number of shards.
        """
        rows, found, gaps = self.column.shard_rows, set[int](), set[tuple[int, int]]()
        there = sorted(shard for shard, _ in self.reader.shards_on_disk())
        for first, stop in {(begin // rows, stored.shard + 1) for begin, stored in self.spans}:
            inside = [shard for shard in there if first <= shard < stop]
            found.update(inside)
            pairs = itertools.pairwise([first - 1, *inside, stop])
            gaps |= {(before + 1, after) for before, after in pairs if after > before + 1}
        return sorted(found), sorted(gaps)

    @property
    def size(self) -> int:
        """The bytes of the files that are read."""
        return sum(self.reader.files.size(self.reader.shard_path(shard)) or 0 for shard in self.shards()[0])

    def run(self) -> None:
        """Check the array's metadata and every shard."""
        try:
            metadata.check_no_link(self.reader.files, self.reader.directory)
        except CorruptionError as error:
            self.found.take(error, stream=self.reader.stream, column=self.path)
            return
        self._document()
        there, gaps = self.shards()
        for first, stop in gaps:
            what = "the shard's file is missing" if stop == first + 1 else f"{stop - first} shards' files are missing"
            rows = self.column.shard_rows
            self.report(what, first, rows=(first * rows, stop * rows))
        for shard in there:
            self._shard(shard)

    def _document(self) -> None:
        directory, shard_rows = self.reader.directory, self.column.shard_rows
        place = {"stream": self.reader.stream, "column": self.path, "file": f"{directory}/{metadata.NAME}"}
        read = functools.partial(metadata.read, self.reader.files, directory)
        stored = self.found.read("the array's metadata", read, **place)
        if stored is None:
            return
        shape = stored.get("shape")
        rows = shape[0] if isinstance(shape, list) and shape and type(shape[0]) is int else -1
        least = max((stored.shard + 1 for _, stored in self.spans), default=0) * shard_rows
        if self.spans and (rows < least or rows % shard_rows):
            self.found.add(
                f"the array has the shape {shape}; its rows must be a multiple of {shard_rows} and at least {least}",
                **place,
            )
        expected = metadata.array_document(self.column, self.reader.num_envs, rows)
        unbound = set() if self.spans else {"shape", "chunk_grid", "codecs"}  # until the array gets its first chunk
        for key in sorted((stored.keys() | expected.keys()) - unbound):
            if stored.get(key) != expected.get(key) and not (key == "shape" and rows < 0):
                self.found.add(f"{key!r} is {stored.get(key)!r} instead of {expected.get(key)!r}", **place)

    def _shard(self, shard: int) -> None:
        first_row, stop_row = shard * self.column.shard_rows, (shard + 1) * self.column.shard_rows
        size = self.reader.files.size(self.reader.shard_path(shard))
        if size is None:
            self.report("the shard's file is missing", shard)
            return
        # Where a file ends at an older commit's length, that commit's index is whole, and another's is missing.
        begins: dict[tuple[int, int], int] = {}
        for first, stored in self.spans:
            if first < stop_row and stored.rows > first_row:
                index = stored.size if shard == stored.shard else size, min(stored.rows, stop_row)
                begins[index] = min(first, begins.get(index, first))
        entries = [self._entries(shard, begin, end, committed, size) for (committed, end), begin in begins.items()]
        if any(map(len, entries)):
            self._chunks(shard, entries[0] if len(entries) == 1 else np.unique(np.concatenate(entries), axis=0))

    def _entries(self, shard: int, begin: int, end: int, committed: int, size: int) -> Entries:
        """Return the chunks of the index that ends at byte ``committed`` of ``size``, of a commit's rows."""
        none = np.empty((0, 5), np.int64)
        if committed > size:
            self.report(f"the file has {size} of its {committed} committed bytes", shard, size)
            return none
        limit = committed - self.reader.index_bytes
        try:
            index = self.reader.read_index(shard, committed, end)
        except DAMAGE as error:
            self.report(str(error.__cause__ or error), shard, max(0, limit))
            return none
        self._complete(shard, index, begin, end)
        chunk, group = np.nonzero(index[:, :, 0] >= 0)
        number = chunk + shard * self.reader.shard_chunks
        last = np.where(number == end // self.column.chunk_rows, end, 0)
        entries: Entries = np.stack([number, group, *index[chunk, group].T, last], axis=1)
        ordered = entries[np.argsort(entries[:, 2], kind="stable")]
        following = np.append(ordered[1:, 2], limit)
        for at in np.flatnonzero(ordered[:, 2] + ordered[:, 3] > following):
            number, of, offset, *_ = ordered[at].tolist()
            self.report(f"chunk {number} of environment group {of} shares bytes with another", shard, offset)
        return entries

    def _complete(self, shard: int, index: Entries, begin: int, end: int) -> None:
        """Report chunks that rows need and that are missing, and chunks behind their end."""
        first, rows = shard * self.reader.shard_chunks, self.column.chunk_rows
        numbers = np.arange(first, first + self.reader.shard_chunks)
        needed = (numbers >= begin // rows) & (numbers <= (end - 1) // rows)
        present = index[:, :, 0] >= 0
        for group in range(self.reader.groups):
            for what, bad in (
                ("missing in the index", needed & ~present[:, group]),
                ("in the index, but behind the last committed row", (numbers * rows >= end) & present[:, group]),
            ):
                if bad.any():
                    lost = numbers[bad]
                    at = f"chunks {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"chunk {lost[0]}"
                    extent = (int(lost[0]) * rows, (int(lost[-1]) + 1) * rows)
                    self.report(f"{at} of environment group {group}: {what}", shard, rows=extent)

    def _chunks(self, shard: int, entries: Entries) -> None:
        """Read and decode chunks in the order of their places; Python looks at those that the core does not pass."""
        file, entries = self.reader.handle(shard), entries[np.argsort(entries[:, 2], kind="stable")]
        step = max(1, PORTION_BYTES // self.reader.decoded_bytes)
        for at in range(0, len(entries), step):
            portion = entries[at : at + step]
            for chunk, group, offset, size, end in portion[~self._passed(file, portion)].tolist():
                try:
                    chunks.decode(self.column.codec, file.pread(size, offset), self._values)
                    problem = self._wrong(chunk, end)
                except OSError as error:
                    problem = f"it cannot be read: {error}"
                except chunks.DamagedError as error:
                    problem = str(error)
                if problem:
                    rows = (chunk * self.column.chunk_rows, (chunk + 1) * self.column.chunk_rows)
                    first, count = group * self.reader.group_envs, self.reader.group_envs
                    envs = f"environment {first}" if count == 1 else f"environments {first} to {first + count - 1}"
                    self.report(f"chunk {chunk} of {envs}: {problem}", shard, offset, rows)
            self.found.chunks += len(portion)
            self.found.bytes += (size := int(portion[:, 3].sum()))
            self.tick(size)

    def _passed(self, file: File, entries: Entries) -> NDArray[np.bool_]:
        """Read and decode chunks in the core, in several threads; return which are whole and right, bool ``(n,)``.

        From the first that is not whole on, and of chunks with rows behind the last one, it says nothing.
        """
        chunk, group, offset, size, end = entries.T
        place, none, items = np.arange(len(chunk)), np.zeros_like(chunk), self.reader.chunk_items
        rows = items if self._rule else 1  # for the last value alone the whole chunk is decoded, too
        row, count = none + (items - rows), none + rows
        pieces = compiled.pieces_on_disk(place, none, row, count, chunk, group, none, offset, size)
        values = np.empty((len(chunk), rows, *self.column.shape), self.column.dtype)
        done = 0
        with contextlib.suppress(OSError):  # of a file that is downloaded: Python meets it again, and reports it
            if (read := compiled.reader(self.reader, Target(values), pieces, [file])) is not None:
                done = read(0, len(chunk))
        passed: NDArray[np.bool_] = (end == 0) & (place < done)
        if self._rule:
            passed &= self._rule(values).reshape(len(chunk), -1).all(axis=1)
        return passed

    def _wrong(self, chunk: int, end: int) -> str | None:
        if self._rule and not self._rule(self._values).all():
            return "a reward is not finite" if self.column.name == REWARD else "a boolean is neither 0 nor 1"
        filled = end - chunk * self.column.chunk_rows
        if 0 < filled < self.column.chunk_rows and self._values[filled:].any():
            return f"rows behind the last committed row {end} are not zero"
        return None
