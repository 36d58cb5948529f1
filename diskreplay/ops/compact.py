"""The giving back of what no commit and no checkpoint needs any more.

1. Opening each stream to write, as every writer does, removes what dead processes left: temporary files, shards that no
   commit names, bytes behind the last commit, shards that the window has left.
2. A shard behind the last one is written anew, if it has *dead bytes*: older versions of chunks that several commits
   filled, and older indexes. Its chunks, checked, and one index go to a new file beside, which is renamed over it.

The last shard of each array stays as it is: the commit record names its length, and the two cannot change at once. So
does a shard whose length a checkpoint names. All streams are locked together: a writer that opened the store before
could make a checkpoint of lengths that are no more. Readers may go on: who opens a shard of another size than before
reads its index again.
"""

# ruff: noqa: PTH118  # plain strings behind the seam to the file system, as in storage

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterable, Iterator

import numpy as np

from diskreplay.ops.result import Result
from diskreplay.ops.signals import Progress
from diskreplay.remote import local
from diskreplay.storage import chunks, stream
from diskreplay.storage import files as fs
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.commit import Commit
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import Store
from diskreplay.storage.stream import SCRATCH


@dataclasses.dataclass(frozen=True)
class Compacted(Result):
    """The space that was given back, or would be.

    Attributes:
        shards: written anew.
        bytes_before, bytes_after: the bytes of all files of the store, before and after; with ``dry_run``,
            ``bytes_after`` is what step 2 would leave.
        kept_bytes: dead bytes that stay: in last shards, and in those whose lengths checkpoints name.
    """

    path: str
    dry_run: bool
    shards: int
    bytes_before: int
    bytes_after: int
    kept_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A shard with dead bytes."""

    reader: ColumnReader
    number: int
    size: int
    dead_bytes: int


def compact(
    path: PathLike, *, dry_run: bool = False, progress: Progress | None = None, files: fs.Files | None = None
) -> Compacted:
    """Compact the store at ``path`` as the module's docstring says, or with ``dry_run`` only look, without a lock.

    Raises LockedError when a stream is being written, CorruptionError when something to be kept is damaged: then
    nothing of that shard has changed.
    """
    started = time.perf_counter()
    full = local(path, "compacting")
    with contextlib.ExitStack() as opened:
        opened.enter_context(fs.translate("compacting", full))
        store = Store(full, files or LocalFiles())
        before = LocalFiles().stored_bytes(full)
        names = store.stream_names()
        writers = [] if dry_run else [opened.enter_context(store.write_stream(name)) for name in names]
        cuts = store.cuts_of(names)
        for name, writer in zip(names, writers, strict=False):
            writer.reclaim(contextlib.nullcontext(), cuts[name])
        found = [_StreamShards(store, name, cuts[name]) for name in names]
        shards = [shard for one in found for shard in one.dead()]
        total = sum(shard.size for shard in shards)
        done = 0
        for shard in [] if dry_run else shards:
            _rewrite(store, shard)
            done += shard.size
            if progress:
                progress(done, total)
        after = before - sum(shard.dead_bytes for shard in shards) if dry_run else LocalFiles().stored_bytes(full)
        return Compacted(
            full, dry_run, len(shards), before, after, sum(one.kept_bytes for one in found),
            time.perf_counter() - started,
        )  # fmt: skip


class _StreamShards:
    """The shards of one stream, whose commits ``cuts`` checkpoints hold.

    Attributes:
        kept_bytes: dead bytes that stay, known after :meth:`dead`.
    """

    def __init__(self, store: Store, name: str, cuts: Iterable[Commit]) -> None:
        self.store = store
        self.name = name
        self.path = store.stream_path(name)
        self.kept_bytes = 0
        self._commit = stream.read_commit(store.files, self.path)
        self._cuts = tuple(cuts)

    def dead(self) -> Iterator[_Shard]:
        """Yield the shards that can be compacted and have something to give back."""
        context = self.store.schema.context
        logs = self.store.log_readers(self.name, self._commit)
        readers = {**self.store.readers(self.name, self._commit), **logs}
        for path, reader in readers.items():
            span = self._commit.span(path, context)
            needed = [span, *(cut.span(path, context) for cut in self._cuts)]
            named = {cut.tails[path].shard for cut in self._cuts if path in cut.tails}
            rows = reader.column.shard_rows
            for number, file in sorted(reader.shards_on_disk()):
                held = any(one.begin < (number + 1) * rows and number * rows < one.end for one in needed)
                if number > span.tail.shard or not held:
                    continue  # nobody's; opening to write removes it
                last = number == span.tail.shard
                size = span.tail.size if last else self.store.files.size(file) or 0
                shard = _Shard(reader, number, size, _dead_bytes(reader, number, size, span.end))
                if last or number in named:
                    self.kept_bytes += shard.dead_bytes
                elif shard.dead_bytes:
                    yield shard


def _dead_bytes(reader: ColumnReader, shard: int, size: int, end: int) -> int:
    """Return how many bytes of a shard with rows below ``end`` are neither chunks nor the newest index."""
    if not end:
        return 0
    entries = reader.read_index(shard, size, end)
    live = int(entries[:, :, 1][entries[:, :, 0] >= 0].sum())
    return size - live - len(chunks.encode_index(entries, reader.seal(shard, end)))


def _rewrite(store: Store, shard: _Shard) -> None:
    """Replace a shard behind the last by a file of the same chunks and one index."""
    reader = shard.reader
    end = (shard.number + 1) * reader.column.shard_rows
    old = reader.read_index(shard.number, None, end)
    new = np.full(old.shape, -1, np.int64)
    parts: list[bytes] = []
    offset = 0
    handle = reader.handle(shard.number)
    for place in zip(*np.nonzero(old[:, :, 0] >= 0), strict=True):
        start, size = old[place].tolist()
        data = handle.pread(size, start)
        if not chunks.is_whole(data):
            number = int(place[0]) + shard.number * reader.shard_chunks
            raise reader.damage(shard.number, start, "the checksum does not match", number)
        new[place] = offset, size
        parts.append(data)
        offset += size
    parts.append(chunks.encode_index(new, reader.seal(shard.number, end)))
    path = reader.shard_path(shard.number)
    with fs.translate("compacting", path):
        scratch = os.path.join(store.stream_path(reader.stream), SCRATCH, ".tmp-shard")
        fs.replace(store.files, path, b"".join(parts), scratch)
    reader.close_files()
