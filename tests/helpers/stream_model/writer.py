"""The writer of a stream: recovery, commits, evictions (docs/format.md, 4.6, 4.8, 8.1, 8.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from helpers.stream_model.contents import (
    ARRAYS,
    FILL,
    NO_TAIL,
    SHARD_CHUNKS,
    WINDOW,
    Block,
    Checkpoint,
    Chunk,
    Index,
    Record,
    Rows,
    Shards,
    Tail,
    checkpoints,
    cuts_of,
    index_at,
    load,
    most_named,
    pinned,
    record_of,
    shards_of,
    tails_of,
)
from helpers.stream_model.disk import Entry, first, size

if TYPE_CHECKING:
    from helpers.stream_model.world import World

Steps = Iterator[str]


@dataclasses.dataclass(frozen=True)
class Commit:
    """What a commit does: rows with so many items each, other items, and what a writer is free to choose.

    Attributes:
        moves: whether full chunks go to shards, of tables that it adds to.
        begins: whether it begins a tail.
        forgets: whether ``oldest`` moves on then, to the tail before.
        clears: whether it clears the window.
        closes: whether chunks that are not full go to shards too, but of the arrays ``keeps``.
    """

    rows: Sequence[int] = ()
    items: int = 0
    moves: bool = False
    begins: bool = False
    forgets: bool = True
    clears: bool = False
    closes: bool = False
    keeps: tuple[str, ...] = ()


class Writer:
    """One stream's writer. It is alive from its recovery on, until it closes or dies.

    Attributes:
        rows: the values of the rows that are needed, ``(array, row)``, and of the newest next observation.
        in_tail: of each array the row up to which the tail holds those that no shard has.
        seen: the numbers of the tails that it found or made.
        must_begin: whether the next commit must begin a tail.
        held: the record of the other stream that it read, for a checkpoint.
    """

    def __init__(self, world: World, stream: str) -> None:
        self.world, self.disk, self.stream = world, world.disk, stream
        self.alive = self.must_begin = False
        self.held: Record | None = None
        self.rows: dict[Any, Any] = {}
        self.seen: set[int] = set()
        self.in_tail: dict[str, int] = {}
        self.begin = self.end = self.end_item = 0

    def has_bug(self, name: str) -> bool:
        return self.world.bug == name

    # 8.4

    def recover(self) -> Steps:
        """Makes the files those of the record, and reads what it says."""
        disk, stream = self.disk, self.stream
        record = record_of(disk, stream)
        self.world.expect(record, f"opening {stream}")
        self.seen = set(tails_of(disk, stream))
        for directory in (stream, f"{stream}/start", *(f"{stream}/{array}" for array in ARRAYS), "checkpoints"):
            yield disk.sync_directory(directory)
        for path in disk.list(f"{stream}/start", ".tmp"):
            yield disk.unlink(path)
        for name, checkpoint in checkpoints(disk).items():
            if checkpoint.pending and name[1] == stream:
                yield from self.drop(name)
                self.world.counts["pending dropped"] += 1
        cuts = cuts_of(disk, stream)
        parts = [self.cut_tails, self.cut_shards]
        for part in reversed(parts) if self.has_bug("shards_first") else parts:
            yield from part(record, cuts)
        self.must_begin = most_named(cuts, record.tail.n) > record.tail.bytes
        self.record, self.rows = record, load(disk, record)
        self.begin, self.end, self.end_item = record.begin, record.end, record.end_item
        self.in_tail = {array: record.span(array)[1] for array in ARRAYS}
        self.alive = True
        self.world.counts["recoveries"] += 1
        if record.back:
            yield from self.commit(Commit())

    def cut_tails(self, record: Record, cuts: Sequence[Record]) -> Steps:
        disk, unlinked = self.disk, False
        for n, path in tails_of(disk, self.stream).items():
            named = most_named(cuts, n)
            if n > record.tail.n and not named:
                yield disk.unlink(path)
                unlinked = True
            elif n == record.tail.n and size(disk.names[path].data) > max(named, record.tail.bytes):
                yield disk.truncate(path, max(named, record.tail.bytes))
                yield disk.sync(path)
        if unlinked and not self.has_bug("stale_tail"):
            yield disk.sync_directory(f"{self.stream}/start")

    def cut_shards(self, record: Record, cuts: Sequence[Record]) -> Steps:
        for array in ARRAYS:
            last = record.arrays[array].shard if array in record.arrays else -1
            named, whole = named_shards(cuts, array)
            if self.has_bug("cut_pinned"):
                named, whole = {}, set()
            for shard, path in shards_of(self.disk, self.stream, array).items():
                kept = max(named.get(shard, 0), record.arrays[array].bytes if shard == last else 0)
                if shard < last or shard in whole:
                    continue
                if not kept:
                    yield self.disk.unlink(path)
                elif size(self.disk.names[path].data) > kept:
                    yield from self.shorten(path, kept, in_place=record.timeline == 0)
            if record.timeline:
                yield self.disk.sync_directory(f"{self.stream}/{array}")

    def shorten(self, path: str, length: int, *, in_place: bool) -> Steps:
        """Cuts a shard; after a going back by another file, as readers may have this one open."""
        disk = self.disk
        if in_place:
            yield disk.truncate(path, length)
            yield disk.sync(path)
            return
        temporary = f"{self.stream}/start/.tmp-shard"
        yield disk.create(temporary)
        yield disk.append(temporary, *first(disk.names[path].data, length))
        yield disk.sync(temporary)
        yield disk.rename(temporary, path)
        yield disk.sync_directory(path.rpartition("/")[0])

    # 8.1

    def add(self, items: int) -> None:
        """A row with so many items, which may go on from the newest next observation."""
        value, goes_on = self.world.value(), self.end and self.world.values % 3
        self.rows["obs", self.end] = self.rows["newest"] if goes_on else ("obs", self.end, value)
        self.rows["start", self.end] = ("start", self.end, value, self.end_item)
        self.end += 1
        self.rows["newest"] = ("obs", self.end, self.world.value())
        self.begin = max(self.begin, self.end - WINDOW)
        self.add_items(items)

    def add_items(self, count: int) -> None:
        for _ in range(count):
            self.rows["items", self.end_item] = ("item", self.end_item, self.world.value())
            self.end_item += 1

    def floor(self) -> int:
        return max(0, min(self.begin, self.end - 1))

    def first_item(self) -> int:
        """The first item of a row from the floor on."""
        return min((self.rows["start", row][3] for row in range(self.floor(), self.end)), default=0)

    def needed_from(self, array: str) -> int:
        return self.floor() if ARRAYS[array][0] == "rows" else self.first_item()

    def stop(self, array: str) -> int:
        return self.end if ARRAYS[array][0] == "rows" else self.end_item

    def commit(self, what: Commit) -> Steps:
        for items in what.rows:
            self.add(items)
        self.add_items(what.items)
        if what.clears:
            self.begin = self.end
        old = self.record
        arrays = dict(old.arrays)
        for array in ARRAYS:
            upto = self.movable(array, what)
            if upto > max(old.in_shards(array), self.needed_from(array)):
                yield from self.move(array, upto, arrays)
        n, _, oldest = old.tail
        begins = not n or what.begins or self.must_begin
        if begins:
            oldest = n if n and what.forgets else oldest
            n, self.in_tail = self.next_tail(), dict.fromkeys(ARRAYS, 0)
        record = Record(
            self.stream, self.new_content(), old.sequence + 1, old.timeline, self.floor(), self.begin, self.end,
            self.first_item(), self.end_item, arrays, Tail(n, 0, oldest),
        )  # fmt: skip
        if self.has_bug("unlink_early") and begins and not most_named(cuts_of(self.disk, self.stream), old.tail.n):
            for path in [path for number, path in tails_of(self.disk, self.stream).items() if number == old.tail.n]:
                yield self.disk.unlink(path)
        yield from self.put(record, self.block_rows(record, self.rows, self.in_tail))
        self.must_begin = False
        self.in_tail = {array: self.stop(array) for array in ARRAYS}
        yield from self.evict(begins)
        if what.closes:
            self.alive = False

    def movable(self, array: str, what: Commit) -> int:
        """Up to which row a commit moves an array's chunks to shards."""
        table, chunk_rows = ARRAYS[array]
        added = self.end > self.record.end if table == "rows" else self.end_item > self.record.end_item
        full = self.stop(array) // chunk_rows * chunk_rows
        if what.closes:
            return full if array in what.keeps else self.stop(array)
        return full if what.moves and added else 0

    def move(self, array: str, upto: int, arrays: dict[str, Shards]) -> Steps:
        """Chunks up to this row go to shards; one that was partly filled is completed, and stands behind."""
        disk, chunk_rows = self.disk, ARRAYS[array][1]
        of_shard, low = chunk_rows * SHARD_CHUNKS, self.needed_from(array)
        entry = arrays.get(array)
        begin = max(entry.rows if entry else 0, low) // chunk_rows
        for shard in range(begin // SHARD_CHUNKS, (upto - 1) // of_shard + 1):
            path = f"{self.stream}/{array}/c.{shard}"
            is_new = path not in disk.names
            known: dict[int, int] = {}
            if entry and entry.shard == shard:
                index = index_at(disk.names[path].data, entry.bytes)
                assert index is not None
                known = dict(index.chunks)
            if is_new:
                yield disk.create(path)
            at, entries = size(disk.names[path].data), []
            last = min((upto - 1) // chunk_rows, (shard + 1) * SHARD_CHUNKS - 1)
            for chunk in range(max(begin, shard * SHARD_CHUNKS), last + 1):
                rows = range(chunk * chunk_rows, (chunk + 1) * chunk_rows)
                values = tuple(self.rows[array, row] if low <= row < upto else FILL for row in rows)
                entries.append(Entry("chunk", 2 + chunk_rows, Chunk(self.stream, array, chunk, values)))
                known[chunk] = at
                at += 2 + chunk_rows
            rows_known = min(upto, (shard + 1) * of_shard)
            entries.append(Entry("index", 2, Index((self.stream, array, shard, rows_known), known)))
            yield disk.append(path, *entries)
            if not self.has_bug("no_shard_sync"):
                yield disk.sync(path)
            if is_new:
                yield disk.sync_directory(f"{self.stream}/{array}")
            arrays[array] = Shards(shard, at + 2, rows_known, chunk_rows, of_shard)
            self.world.counts["moves"] += 1

    def next_tail(self) -> int:
        """4.8: one above the greatest that the record, a cut, or a file has."""
        cut = [cut.tail.n for cut in cuts_of(self.disk, self.stream)]
        found = max([record_of(self.disk, self.stream).tail.n, *cut, *self.seen]) + 1
        self.seen.add(found)
        return found

    def block_rows(self, record: Record, rows: Rows, held: Mapping[str, int]) -> dict[str, tuple[int, tuple[Any, ...]]]:
        """The rows that neither shards nor an earlier block of the tail have, and row ``end``."""
        found = {}
        for array in ARRAYS:
            low, high = record.span(array)
            low = max(low, record.in_shards(array), held.get(array, 0))
            values = tuple(rows[array, row] for row in range(low, high))
            if array == "obs" and record.end:
                values += (rows["newest"],)
            if values:
                found[array] = low, values
        return found

    def put(self, record: Record, rows: Mapping[str, tuple[int, tuple[Any, ...]]]) -> Steps:
        """Appends a block to the tail that the record names, syncs it, and puts the record in place."""
        disk, (n, _, oldest) = self.disk, record.tail
        path = f"{self.stream}/start/tail.{n}"
        is_new = path not in disk.names
        self.world.unsure.setdefault(self.stream, set()).add(record.content)
        if is_new:
            yield disk.create(path)
        offset, length = size(disk.names[path].data), 2 + sum(len(values) for _, values in rows.values())
        block = Block((self.stream, n, offset), rows, dataclasses.replace(record, tail=NO_TAIL))
        record = dataclasses.replace(record, tail=Tail(n, offset + length, oldest or n))
        if self.has_bug("record_first"):
            yield from self.replace(record)
        yield disk.append(path, Entry("block", length, block))
        if not self.has_bug("no_tail_sync"):
            yield disk.sync(path)
        if is_new:
            yield disk.sync_directory(f"{self.stream}/start")
        if not self.has_bug("record_first"):
            yield from self.replace(record)
        self.world.counts["records"] += 1

    def replace(self, record: Record) -> Steps:
        """The commit."""
        disk, temporary = self.disk, f"{self.stream}/start/.tmp-commit"
        yield disk.create(temporary)
        yield disk.append(temporary, Entry("document", 9, record))
        yield disk.sync(temporary)
        yield disk.rename(temporary, f"{self.stream}/zarr.json")
        yield disk.sync_directory(self.stream)
        self.record = record
        self.world.returned[self.stream] = record.sequence
        self.world.unsure.pop(self.stream, None)

    def new_content(self) -> int:
        """What the next record says."""
        content: dict[tuple[str, int] | str, Any] = {
            (array, row): self.rows[array, row]
            for array in ARRAYS
            for row in range(self.needed_from(array), self.stop(array))
        }
        if self.end:
            content["newest"] = self.rows["newest"]
        return self.world.content(content)

    def evict(self, tails_too: bool) -> Steps:
        """Unlinks shards and tails that neither the record nor a checkpoint needs."""
        disk, record = self.disk, self.record
        shards = [
            (array, shard, path)
            for array, entry in record.arrays.items()
            for shard, path in shards_of(disk, self.stream, array).items()
            if shard < entry.shard and (shard + 1) * entry.shard_rows <= record.span(array)[0]
        ]
        tails = [(n, path) for n, path in tails_of(disk, self.stream).items() if n < record.tail.oldest and tails_too]
        if not shards and not tails:
            return
        cuts = cuts_of(disk, self.stream)
        yield disk.say(f"list checkpoints: {sorted(checkpoints(disk))}")
        if not self.has_bug("no_listing_sync"):
            yield disk.sync_directory("checkpoints")
        for array, shard, path in shards:
            if not pinned(cuts, array, shard, record.arrays[array].shard_rows):
                yield disk.unlink(path)
                self.world.counts["evicted"] += 1
        for n, path in tails:
            named = most_named(cuts, n)
            if not named:
                yield disk.unlink(path)
                self.world.counts["tails unlinked"] += 1
            elif size(disk.names[path].data) > named:
                yield disk.truncate(path, named)
                yield disk.sync(path)
                self.world.counts["tails cut"] += 1

    def drop(self, name: str) -> Steps:
        """9.1: drops a checkpoint, if it is there."""
        disk, path = self.disk, f"checkpoints/{name}"
        if path not in disk.names:
            return
        self.world.promised.discard(name)
        temporary = f"{self.stream}/start/.tmp-dropped-{name}"
        yield disk.rename(path, temporary)
        yield disk.sync_directory("checkpoints")
        yield disk.unlink(temporary)


def named_shards(cuts: Sequence[Record], array: str) -> tuple[dict[int, int], set[int]]:
    """The last shards of cuts with the greatest bytes that one names, and those that stand before them."""
    last: dict[int, int] = {}
    before: set[int] = set()
    for cut in cuts:
        if array in cut.arrays:
            entry = cut.arrays[array]
            last[entry.shard] = max(last.get(entry.shard, 0), entry.bytes)
            before |= set(range(cut.span(array)[0] // entry.shard_rows, entry.shard))
    return last, before


def put_checkpoint(writer: Writer, name: str, checkpoint: Checkpoint) -> Steps:
    """Makes a checkpoint, or puts its document in the place of the one that it has."""
    disk, temporary = writer.disk, f"{writer.stream}/start/.tmp-checkpoint-{name}"
    yield disk.create(temporary)
    yield disk.append(temporary, Entry("document", 9, checkpoint))
    yield disk.sync(temporary)
    yield disk.rename(temporary, f"checkpoints/{name}")
    yield disk.sync_directory("checkpoints")
