"""The shards of one column that is repaired: what of them can be read, and how their chunks are replaced.

A chunk is replaced by appending another one and a new index, as a commit does: the older indexes, whose ends
checkpoints name, stay where they are. The last shard is appended to in place, if the file still has its committed
bytes: nobody reads what follows them. Other files are written anew beside, with all bytes that an index names, and
renamed.

Where the index that a record names cannot be read, or is another commit's, the right one is looked for in the same
file, or else the one that comes nearest: each commit left one (:mod:`diskreplay.ops.repair.index`).
"""

# ruff: noqa: PTH118  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.ops.problems import DAMAGE
from diskreplay.ops.quarantine import Quarantine, copy_bytes
from diskreplay.ops.repair.index import ShardIndex, indexes
from diskreplay.ops.verify_rows import ValueReader
from diskreplay.storage import chunks, metadata
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Tail

MAX_KEPT_BYTES = 8 << 30
"""The most bytes of a shard that are written anew: no shard has more, and a lie about a length costs no more."""


class ColumnRepair:
    """Rows ``[first, end)`` of a column, of which :meth:`scan` finds out what can be read.

    Attributes:
        bad: chunks that cannot be read, with their groups.
        bad_bytes: encoded bytes of those, as far as an index still says.
        value: a function that returns a row of one environment that can be read.
    """

    def __init__(
        self, reader: ColumnReader, first: int, end: int, tail: Tail, quarantine: Quarantine, lengths: dict[int, int],
        predicate: Callable[[Array], Array] | None, newer: bool = True,
    ) -> None:  # fmt: skip
        """Take a column's rows ``[first, end)``; nothing is read before :meth:`scan`.

        Args:
            lengths: committed bytes of shards that checkpoints rely on, by shard.
            predicate: a test of the values that the column may have; None for all.
            newer: True if an index of more rows than ``end`` will do.
        """
        self.reader = reader
        self.column = reader.column
        self.files = reader.files
        self.first, self.end = first, end
        last = max(0, end - 1) // self.column.shard_rows
        self.tail = tail if tail.shard == last else Tail(last, 0)
        self.quarantine = quarantine
        self.bad: set[tuple[int, int]] = set()
        self.bad_bytes = 0
        self._lengths = lengths
        self._predicate = predicate
        self._newer = newer
        self._entries: dict[int, NDArray[np.int64]] = {}
        self._index_end: dict[int, int] = {}
        self._misfit: set[int] = set()  # shards whose file does not end where it should, or is none
        self._known: dict[int, int] = {}  # chunks that are whole, as of a commit with rows only below this one
        self._longer: set[int] = set()  # chunks that have rows behind the end too
        self.value = ValueReader(reader, self._decode)

    @property
    def damaged(self) -> bool:
        return bool(self.bad or self._misfit)

    def _shards(self, end: int) -> range:
        rows = self.column.shard_rows
        return range(self.first // rows, -(-end // rows) if end > self.first else self.first // rows)

    def _chunks(self, shard: int, end: int) -> range:
        """Return the numbers of a shard's chunks below ``end``, also before ``first``: an index names them all."""
        first = shard * self.reader.shard_chunks
        return range(first, min(first + self.reader.shard_chunks, -(-end // self.column.chunk_rows)))

    def clear_names(self) -> None:
        """Move aside what has the name of a shard, or of a temporary file, and is not a file."""
        names = [os.path.join(self.reader.directory, f"{metadata.NAME}.tmp")]
        names += [path for _, path in self.reader.shards_on_disk()]
        for path in names:
            if self.files.kind(path) not in ("file", None):
                self.quarantine.take(path)

    def scan(self) -> None:
        """Read everything."""
        scratch = np.empty(self.reader.chunk_shape, self.column.dtype)
        for shard in self._shards(self.end):
            self._find_index(shard)
            for chunk in self._chunks(shard, self.end):
                for group in range(self.reader.groups):
                    if not self._decode(chunk, group, scratch):
                        self.bad.add((chunk, group))
                        self.bad_bytes += max(0, int(self._entry(chunk, group)[1]))

    def _find_index(self, shard: int) -> None:
        path = self.reader.shard_path(shard)
        size = self.files.size(path)
        count = self.reader.shard_chunks, self.reader.groups, 2
        self._entries[shard], self._index_end[shard] = np.full(count, -1, np.int64), 0
        if size is None:
            self._misfit.add(shard)
            return
        committed = self.tail.size if shard == self.tail.shard else size
        try:
            if committed <= size:
                self._entries[shard] = self.reader.read_index(shard, committed, self.end)
                self._index_end[shard] = committed
                return
        except DAMAGE:
            pass
        self._misfit.add(shard)
        self._search(shard)

    def _search(self, shard: int) -> None:
        """Take the index of exactly the rows below the end, else one of more rows, else the one of most rows."""
        wanted = min(self.end, (shard + 1) * self.column.shard_rows)
        best: ShardIndex | None = None
        named = self.tail.size if shard == self.tail.shard else 0
        for found in indexes(self.reader, shard, wanted, named):
            if found.end == wanted:
                best = found
                break
            if found.end > wanted and not self._newer:
                continue
            if best is None or min(found.end, wanted) > min(best.end, wanted):
                best = found
        if best is not None:
            self._take(shard, best, wanted)

    def _take(self, shard: int, index: ShardIndex, wanted: int) -> None:
        """Take the chunks of an index, as far as they are known to hold the rows below ``wanted``."""
        first, rows = shard * self.column.shard_rows, self.column.chunk_rows
        known = min(index.end, wanted)
        begins = first + np.arange(self.reader.shard_chunks) * rows
        self._entries[shard] = np.where((begins < known)[:, None, None], index.entries, -1)
        self._index_end[shard] = index.stop
        if known < wanted and known % rows:
            self._known[known // rows] = known
        if index.end > wanted and wanted % rows:
            self._longer.add(wanted // rows)

    def _entry(self, chunk: int, group: int) -> Any:
        shard, place = divmod(chunk, self.reader.shard_chunks)
        return self._entries[shard][place, group]

    def _decode(self, chunk: int, group: int, out: Array) -> bool:
        """Fill ``out`` with a chunk; return False if it cannot be read, or holds a value the column cannot have."""
        offset, size = self._entry(chunk, group).tolist()
        if offset < 0:
            return False
        try:
            data = self.reader.handle(chunk // self.reader.shard_chunks).pread(size, offset)
            chunks.decode(self.column.codec, data, out)
        except (OSError, chunks.DamagedError, *DAMAGE):
            return False
        return self._predicate is None or bool(self._predicate(out).all())

    def lost_rows(self) -> Iterator[tuple[tuple[int, int], int | None]]:
        """Yield ranges of rows that cannot be read, each with its environment, None for all of them."""
        rows = self.column.chunk_rows
        for chunk, group in sorted(self.bad):
            span = max(self.first, chunk * rows), min(self.end, (chunk + 1) * rows)
            if span[0] < span[1]:
                yield span, None if self.column.resident else group
        for chunk, known in self._known.items():
            yield (max(self.first, known), min(self.end, (chunk + 1) * rows)), None

    def readable(self, row: int, env: int) -> bool:
        """Tell whether a row of one environment can be read."""
        chunk = row // self.column.chunk_rows
        shard, group = chunk // self.reader.shard_chunks, env // self.reader.group_envs
        known = self._known.get(chunk, self.end)
        return shard in self._entries and (chunk, group) not in self.bad and row < known

    def values(self, start: int, stop: int) -> Array:
        """Return rows ``[start, stop)`` as ``(rows, num_envs, *shape)``, with zeros where they cannot be read."""
        rows = self.column.chunk_rows
        out = np.zeros((stop - start, self.reader.num_envs, *self.column.shape), self.column.dtype)
        for chunk in range(start // rows, -(-stop // rows)):
            low, high = max(start, chunk * rows), min(stop, (chunk + 1) * rows)
            values = self._values(chunk)
            out[low - start : high - start] = values[low - chunk * rows : high - chunk * rows]
        return out

    def _values(self, chunk: int) -> Array:
        """Return a chunk of all environments ``(chunk_rows, num_envs, *shape)``, with zeros where it cannot be read."""
        shape = (self.column.chunk_rows, self.reader.num_envs, *self.column.shape)
        out = np.zeros(shape, self.column.dtype)
        scratch = np.empty(self.reader.chunk_shape, self.column.dtype)
        for group in range(self.reader.groups):
            shard = chunk // self.reader.shard_chunks
            if shard in self._entries and (chunk, group) not in self.bad and self._decode(chunk, group, scratch):
                out[:, group * self.reader.group_envs : (group + 1) * self.reader.group_envs] = scratch
        known = self._known.get(chunk, self.end if chunk in self._longer else None)
        if known is not None:
            out[max(0, known - chunk * self.column.chunk_rows) :] = 0
        return out

    def write(self, new: Array | None, end: int) -> Tail:
        """Replace damaged chunks, and those whose rows differ from ``new``, the rows from ``first`` to ``end``.

        ``new`` None means zeros for what is damaged. The column's last shard as a record must name it.
        """
        tail = self.tail
        for shard in self._shards(end):
            if shard not in self._entries:
                count = self.reader.shard_chunks, self.reader.groups, 2
                self._entries[shard], self._index_end[shard] = np.full(count, -1, np.int64), 0
                self._misfit.add(shard)
            replaced = self._replaced(shard, new, end)
            last = (shard + 1) * self.column.shard_rows >= end
            resealed = self.reader.seal(shard, end) != self.reader.seal(shard, self.end)
            if replaced or resealed or shard in self._misfit:
                written = self._write(shard, replaced, end, last)
                tail = written if last else tail
        self.end = end
        return tail

    def _replaced(self, shard: int, new: Array | None, end: int) -> dict[tuple[int, int], Array]:
        found = {}
        rows, each = self.column.chunk_rows, self.reader.group_envs
        for chunk in self._chunks(shard, end):
            low, high = max(self.first, chunk * rows), min(end, (chunk + 1) * rows)
            bad = [group for group in range(self.reader.groups) if (chunk, group) in self.bad]
            fresh = chunk * rows >= self.end or chunk in self._longer
            if new is None and not bad and not fresh:
                continue
            old = self._values(chunk)
            values = old.copy()
            if new is not None and low < high:
                values[low - chunk * rows : high - chunk * rows] = new[low - self.first : high - self.first]
            for group in range(self.reader.groups):
                own = slice(group * each, (group + 1) * each)
                if group in bad or fresh or not np.array_equal(values[:, own], old[:, own]):
                    found[chunk, group] = np.ascontiguousarray(values[:, own])
        return found

    def _replace(self, shard: int, keep: int, parts: list[bytes]) -> None:
        """Replace a shard by a new file: ``keep`` bytes of the old one, and ``parts``."""
        if keep > MAX_KEPT_BYTES:
            raise self.reader.damage(shard, None, f"{keep} bytes are too many to be repaired")
        path = self.reader.shard_path(shard)
        temporary = os.path.join(self.reader.directory, f"{metadata.NAME}.tmp")  # opening to write removes it
        file = self.files.open(temporary, write=True)
        file.truncate(0)
        if keep:
            copy_bytes(self.reader.handle(shard), file, keep)
        file.pwrite(parts, keep)
        file.sync()
        self.files.rename(temporary, path)
        self.files.sync_dir(self.reader.directory)

    def _write(self, shard: int, replaced: dict[tuple[int, int], Array], end: int, last: bool) -> Tail:
        path = self.reader.shard_path(shard)
        in_place = last and shard == self.tail.shard and shard not in self._misfit
        if shard in self._misfit or any(key in self.bad for key in replaced):
            self.quarantine.copy(path)
        keep = self.tail.size if in_place else max(self._index_end[shard], self._lengths.get(shard, 0))
        entries = self._entries[shard]
        parts, offset = [], keep
        for (chunk, group), values in replaced.items():
            parts.append(chunks.encode(self.column.codec, values))
            entries[chunk - shard * self.reader.shard_chunks, group] = offset, len(parts[-1])
            offset += len(parts[-1])
        parts.append(chunks.encode_index(entries, self.reader.seal(shard, end)))
        if in_place:
            file = self.files.open(path, write=True)
            file.truncate(keep)
            file.pwrite(parts, keep)
            file.sync()
        else:
            self._replace(shard, keep, parts)
        self.reader.close_files()
        self._misfit.discard(shard)
        self.bad -= replaced.keys()
        self._index_end[shard] = keep + sum(map(len, parts))
        return Tail(shard, self._index_end[shard])
