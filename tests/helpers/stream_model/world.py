"""The two streams and their checkpoints, and what must hold after every step."""

from __future__ import annotations

import collections

from helpers.stream_model import bugs
from helpers.stream_model.contents import (
    STREAMS,
    Record,
    Rows,
    checkpoints,
    cuts_of,
    from_tail,
    load,
    pinned,
    record_of,
    shard_rows,
    shards_of,
    tails_of,
)
from helpers.stream_model.disk import Damage, Disk, Entry, Violation, size
from helpers.stream_model.writer import Writer


class World:
    """A disk, the writers of both streams, and what was promised.

    Attributes:
        written: what each content is; a record has its number.
        returned: the sequence of each stream's last record whose commit returned.
        unsure: contents of records that a commit was about to put in place.
        promised: the checkpoints that were reported, and that nobody began to drop.
        made: the checkpoints that were ever reported.
        counts: how often what happened.
    """

    def __init__(self, bug: str | None = None) -> None:
        self.disk, self.bug = Disk(), bugs.check_name(bug)
        self.written: dict[int, Rows] = {}
        self.returned = dict.fromkeys(STREAMS, 0)
        self.unsure: dict[str, set[int]] = {}
        self.promised: set[str] = set()
        self.made: set[str] = set()
        self.counts: collections.Counter[str] = collections.Counter()
        self.values = 0
        self.writers = {stream: Writer(self, stream) for stream in STREAMS}
        for stream in STREAMS:
            path = f"{stream}/zarr.json"
            self.disk.create(path)
            self.disk.append(path, Entry("document", 9, Record(stream, self.content({}))))
            self.disk.sync(path)
            self.disk.sync_directory(stream)

    def content(self, rows: Rows) -> int:
        """The number of what a record is to say."""
        self.written[len(self.written) + 1] = rows
        return len(self.written)

    def value(self) -> int:
        """A value that no row had before."""
        self.values += 1
        return self.values

    def copy(self) -> World:
        """Another world of the same state, whose writers are dead."""
        new = object.__new__(World)
        new.disk, new.bug, new.values, new.counts = self.disk.copy(), self.bug, self.values, self.counts
        new.written, new.returned = dict(self.written), dict(self.returned)
        new.unsure = {stream: set(contents) for stream, contents in self.unsure.items()}
        new.promised, new.made = set(self.promised), set(self.made)
        new.writers = {stream: Writer(new, stream) for stream in STREAMS}
        return new

    def expect(self, record: Record, what: str) -> None:
        """What a record says is what was written."""
        try:
            found = load(self.disk, record)
        except Damage as error:
            raise Violation(f"{what}: {error}; {record}") from None
        written = self.written[record.content]
        if found != written:
            places = sorted(set(found) | set(written), key=str)
            other = [(at, found.get(at), written.get(at)) for at in places if found.get(at) != written.get(at)]
            raise Violation(f"{what}: other rows (place, read, written): {other}")

    def check(self, *, recovered: bool = False) -> None:
        """Records, checkpoints, and what is left when a document or a tail is lost; only where something changed."""
        disk = self.disk
        touched = {*STREAMS, "checkpoints"} if recovered else disk.touched
        if not touched:
            return
        disk.touched = set()
        for stream in touched.intersection(STREAMS):
            record = record_of(disk, stream)
            self.expect(record, f"stream {stream}")
            if record.sequence < self.returned[stream]:
                raise Violation(f"stream {stream}: record {record.sequence} after {self.returned[stream]} had returned")
            self.check_losses(stream, record)
        there = checkpoints(disk)
        if missing := self.promised - set(there):
            raise Violation(f"checkpoints went: {sorted(missing)}")
        for name, checkpoint in there.items():
            if name in self.made or (recovered and not checkpoint.pending):
                for stream, cut in checkpoint.cut.items():
                    if stream in touched or "checkpoints" in touched:
                        self.expect(cut, f"checkpoint {name}, stream {stream}")

    def check_losses(self, stream: str, record: Record) -> None:
        """8.5: the record is lost, then the tail is."""
        found = from_tail(self.disk, stream)
        if found is None and record.tail.n:
            raise Violation(f"stream {stream}: no record in a tail")
        if found is not None:
            if found.content not in {record.content, *self.unsure.get(stream, ())}:
                raise Violation(
                    f"stream {stream}: the tails say record {found.sequence}, the last is {record.sequence}"
                )
            self.expect(found, f"stream {stream} by its tail")
        written = self.written[record.content]
        for array in ("obs", "start"):
            for row in range(record.floor, min(record.in_shards("obs"), record.in_shards("start")) - 1):
                shard = row // record.arrays[array].shard_rows
                data = self.disk.names[f"{stream}/{array}/c.{shard}"].data
                if shard_rows(data, record, array, shard).get(row) != written[array, row]:
                    raise Violation(f"stream {stream} without its tail: {array}[{row}]")

    def check_files(self) -> None:
        """After recovery: no temporary file, and no shard or tail behind those that the record or a cut names."""
        disk = self.disk
        if left := [path for path in disk.names if "tmp" in path]:
            raise Violation(f"temporary files after recovery: {left}")
        for stream in STREAMS:
            record, cuts = record_of(disk, stream), cuts_of(disk, stream)
            for n, path in tails_of(disk, stream).items():
                if n > record.tail.n and all(cut.tail.n != n for cut in cuts):
                    raise Violation(f"{path} above the record's tail")
            for array in ("obs", "start", "items"):
                for number, path in shards_of(disk, stream, array).items():
                    named = (of.arrays[array].shard for of in (record, *cuts) if array in of.arrays)
                    if number > max(named, default=-1):
                        raise Violation(f"{path}, which nobody names")

    def check_evicted(self, stream: str) -> None:
        """After a commit that left its tail: no file that neither the record nor a checkpoint needs."""
        disk, record, cuts = self.disk, record_of(self.disk, stream), cuts_of(self.disk, stream)
        for n, path in tails_of(disk, stream).items():
            named = max((cut.tail.bytes for cut in cuts if cut.tail.n == n), default=0)
            if n < record.tail.oldest and not 0 < size(disk.names[path].data) <= named:
                raise Violation(f"{path} is left over, or too long")
        for array, entry in record.arrays.items():
            for number, path in shards_of(disk, stream, array).items():
                stop = (number + 1) * entry.shard_rows
                if (
                    stop <= record.span(array)[0]
                    and number < entry.shard
                    and not pinned(cuts, array, number, entry.shard_rows)
                ):
                    raise Violation(f"{path} is left over")
