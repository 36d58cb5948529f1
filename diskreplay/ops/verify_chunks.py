"""The check of one column's files against the commits that need them.

A *span* is what one commit (the newest, or a checkpoint's) says of a column: the rows that must be there, and where its
last shard ends. Shard by shard:

1. The file is there, and has the committed bytes.
2. The index at the end of the file (of the last shard: of its committed bytes) has the right checksum, and its offsets
   are inside of the file.
3. The index names every chunk of every row of the span and no chunk after its end, and no two chunks share bytes.
4. Every chunk that an index names has the right checksum, decodes to the chunk's size, and is zero after the end.
5. A boolean is 0 or 1, a reward is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.schema.columns import REWARD
from diskreplay.storage import chunks, metadata
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Span

Entries = NDArray[np.int64]
"""Chunk, group, offset and bytes of chunks, and the commit's last row if it lies inside, ``(n, 5)``."""


class ColumnCheck:
    """A check of one column; ``tick`` is called with bytes as they are read."""

    def __init__(self, reader: ColumnReader, path: str, found: Findings, tick: Callable[[int], None]) -> None:
        self.reader = reader
        self.column = reader.column
        self.path = path
        self.found = found
        self.tick = tick
        self._values = np.empty(reader.chunk_shape, self.column.dtype)

    def report(self, what: str, shard: int, offset: int | None = None, rows: tuple[int, int] | None = None) -> None:
        rows = rows or (shard * self.column.shard_rows, (shard + 1) * self.column.shard_rows)
        file = self.reader.shard_path(shard)
        self.found.add(what, stream=self.reader.stream, column=self.path, rows=rows, file=file, offset=offset)

    def shards(self, spans: Sequence[Span]) -> list[int]:
        """Return the shards on disk that a span needs."""
        needed = self._needed(spans)
        there = {shard for shard, _ in self.reader.shards_on_disk()}
        return sorted(shard for shard in there if any(first <= shard < stop for first, stop in needed))

    def _needed(self, spans: Sequence[Span]) -> list[tuple[int, int]]:
        """Return ranges of shards, not walked through: a damaged record may name any number of shards."""
        rows = self.column.shard_rows
        return [(s.begin // rows, (s.end - 1) // rows + 1) for s in spans if s.end > s.begin]

    def _gaps(self, spans: Sequence[Span], there: Sequence[int]) -> list[tuple[int, int]]:
        """Return ranges of shards that a span needs and that are not there."""
        gaps = set()
        for first, stop in self._needed(spans):
            inside = [shard for shard in there if first <= shard < stop]
            edges = zip([first - 1, *inside], [*inside, stop], strict=True)
            gaps |= {(before + 1, after) for before, after in edges if after > before + 1}
        return sorted(gaps)

    def run(self, spans: Sequence[Span]) -> None:
        """Check the array's metadata and every shard."""
        try:
            metadata.check_no_link(self.reader.files, self.reader.directory)
        except CorruptionError as error:
            self.found.take(error, stream=self.reader.stream, column=self.path)
            return
        self._document(spans)
        there = self.shards(spans)
        for first, stop in self._gaps(spans, there):
            what = "the shard's file is missing" if stop == first + 1 else f"{stop - first} shards' files are missing"
            rows = self.column.shard_rows
            self.report(what, first, rows=(first * rows, stop * rows))
        for shard in there:
            self._shard(shard, spans)

    def _document(self, spans: Sequence[Span]) -> None:
        file = f"{self.reader.directory}/{metadata.NAME}"
        place = {"stream": self.reader.stream, "column": self.path, "file": file}
        try:
            stored = metadata.read(self.reader.files, self.reader.directory)
        except (FileNotFoundError, NotADirectoryError):
            self.found.add("the array's metadata is missing", **place)
            return
        except DAMAGE as error:
            self.found.add(str(error), **place)
            return
        shape = stored.get("shape")
        rows = shape[0] if isinstance(shape, list) and shape and type(shape[0]) is int else -1
        least = max((-(-span.end // self.column.shard_rows) for span in spans), default=0) * self.column.shard_rows
        if rows < least or rows % self.column.shard_rows:
            self.found.add(
                f"the array has the shape {shape}; its rows must be a multiple of {self.column.shard_rows} "
                f"and at least {least}",
                **place,
            )
        expected = metadata.array_document(self.column, self.reader.num_envs, rows)
        for key in sorted(stored.keys() | expected.keys()):
            if stored.get(key) != expected.get(key) and not (key == "shape" and rows < 0):
                self.found.add(f"{key!r} is {stored.get(key)!r} instead of {expected.get(key)!r}", **place)

    def _shard(self, shard: int, spans: Sequence[Span]) -> None:
        first_row, stop_row = shard * self.column.shard_rows, (shard + 1) * self.column.shard_rows
        here = [s for s in spans if s.begin < stop_row and s.end > first_row]
        size = self.reader.files.size(self.reader.shard_path(shard))
        if size is None:
            self.report("the shard's file is missing", shard)
            return
        # Where a file ends at an older commit's length, that commit's index is whole, and another's is missing.
        sizes: dict[tuple[int, int], list[Span]] = {}
        for span in here:
            committed = span.tail.size if shard == span.tail.shard else size
            sizes.setdefault((committed, min(span.end, stop_row)), []).append(span)
        entries: list[Entries] = []
        for (committed, end), of in sizes.items():
            index = self._index(shard, committed, size, end)
            if index is not None:
                for span in of:
                    self._complete(shard, index, span)
                entries.append(self._entries(shard, index, of[0].end))
                self._overlaps(shard, entries[-1], committed - self.reader.index_bytes)
        if entries:
            self._chunks(shard, entries[0] if len(entries) == 1 else np.unique(np.concatenate(entries), axis=0))

    def _index(self, shard: int, committed: int, size: int, end: int) -> Entries | None:
        """Return the index that ends at byte ``committed``, ``(shard_chunks, groups, 2)``, or None."""
        if committed > size:
            self.report(f"the file has {size} of its {committed} committed bytes", shard, size)
            return None
        try:
            return self.reader.read_index(shard, committed, end)
        except DAMAGE as error:
            offset = max(0, committed - self.reader.index_bytes)
            self.report(str(error.__cause__ or error), shard, offset)
            return None

    def _complete(self, shard: int, index: Entries, span: Span) -> None:
        """Report chunks that the span needs and that are missing, and chunks behind its end."""
        first, rows = shard * self.reader.shard_chunks, self.column.chunk_rows
        numbers = np.arange(first, first + self.reader.shard_chunks)
        needed = (numbers >= span.begin // rows) & (numbers <= (span.end - 1) // rows)
        present = index[:, :, 0] >= 0
        for group in range(self.reader.groups):
            for what, bad in (
                ("missing in the index", needed & ~present[:, group]),
                ("in the index, but behind the last committed row", (numbers * rows >= span.end) & present[:, group]),
            ):
                if bad.any():
                    lost = numbers[bad]
                    at = f"chunks {lost[0]} to {lost[-1]}" if len(lost) > 1 else f"chunk {lost[0]}"
                    extent = (int(lost[0]) * rows, (int(lost[-1]) + 1) * rows)
                    self.report(f"{at} of environment group {group}: {what}", shard, rows=extent)

    def _entries(self, shard: int, index: Entries, end: int) -> Entries:
        chunk, group = np.nonzero(index[:, :, 0] >= 0)
        number = chunk + shard * self.reader.shard_chunks
        last = np.where(number == end // self.column.chunk_rows, end, 0)
        return np.stack([number, group, *index[chunk, group].T, last], axis=1)

    def _overlaps(self, shard: int, entries: Entries, limit: int) -> None:
        """Report chunks that share bytes with the next, or with the index."""
        ordered = entries[np.argsort(entries[:, 2], kind="stable")]
        ends = ordered[:, 2] + ordered[:, 3]
        following = np.append(ordered[1:, 2], limit)
        for at in np.flatnonzero(ends > following):
            chunk, group, offset, *_ = ordered[at].tolist()
            self.report(f"chunk {chunk} of environment group {group} shares bytes with another", shard, offset)

    def _chunks(self, shard: int, entries: Entries) -> None:
        """Read and decode chunks in the order of their places."""
        handle = self.reader.handle(shard)
        for chunk, group, offset, size, end in entries[np.argsort(entries[:, 2], kind="stable")].tolist():
            try:
                data = handle.pread(size, offset)
            except OSError as error:
                self.report(f"chunk {chunk} cannot be read: {error}", shard, offset)
                continue
            self.found.chunks += 1
            self.found.bytes += len(data)
            self.tick(len(data))
            rows = (chunk * self.column.chunk_rows, (chunk + 1) * self.column.chunk_rows)
            envs = f"environment {group}" if not self.column.resident else "all environments"
            try:
                chunks.decode(self.column.codec, data, self._values)
            except chunks.DamagedError as error:
                self.report(f"chunk {chunk} of {envs}: {error}", shard, offset, rows)
                continue
            problem = self._wrong(chunk, end)
            if problem:
                self.report(f"chunk {chunk} of {envs}: {problem}", shard, offset, rows)

    def _wrong(self, chunk: int, end: int) -> str | None:
        """Return what is wrong with the decoded values, or None."""
        if self.column.dtype.kind == "b" and (self._values.view(np.uint8) > 1).any():
            return "a boolean is neither 0 nor 1"
        if self.column.name == REWARD and not np.isfinite(self._values).all():
            return "a reward is not finite"
        filled = end - chunk * self.column.chunk_rows
        if 0 < filled < self.column.chunk_rows and self._values[filled:].any():
            return f"rows behind the last committed row {end} are not zero"
        return None
