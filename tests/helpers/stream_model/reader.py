"""A reader beside the writers (docs/format.md, 8.2): whatever it shows are the rows of one record."""

from __future__ import annotations

from collections.abc import Generator, Mapping

from helpers.stream_model.contents import Block, Record, blocks, gather, record_of, shard_rows, tail_rows
from helpers.stream_model.disk import Damage, File, Missing, Violation, size
from helpers.stream_model.world import World
from helpers.stream_model.writer import Steps


class Reader:
    """Keeps the blocks of a tail, and files open within a timeline."""

    def __init__(self, world: World, stream: str) -> None:
        self.world, self.disk, self.stream = world, world.disk, stream
        self.content: int | None = None
        self.n = self.committed = 0
        self.blocks: list[tuple[int, Block]] = []
        self.open: dict[tuple[int, str], File] = {}
        self.last: set[tuple[int, str]] = set()

    def run(self, times: int) -> Steps:
        """Opens, and refreshes so many times less one."""
        for _ in range(times):
            while True:
                record = record_of(self.disk, self.stream)
                yield self.disk.say(f"reader of {self.stream}: record {record.sequence}")
                if self.content == record.content:
                    break
                try:
                    done = yield from self.read(record)
                except Damage as error:
                    if record_of(self.disk, self.stream) == record:
                        raise Violation(f"reader of {self.stream}: damage in a sound store: {error}") from None
                    done = False
                    self.world.counts["reader starts over"] += 1
                if done:
                    self.world.counts["reads"] += 1
                    break
                self.open.clear()

    def read(self, record: Record) -> Generator[str, None, bool]:
        """Reads all that a record says; true, or false where the timeline is another by then."""
        if record.timeline and self.world.bug != "reader_keeps":
            self.open = {key: file for key, file in self.open.items() if key not in self.last}
        self.last = {
            (record.timeline, f"{self.stream}/{array}/c.{entry.shard}") for array, entry in record.arrays.items()
        }
        yield from self.read_tail(record)
        shards: dict[tuple[str, int], Mapping[int, object]] = {}
        for array, entry in record.arrays.items():
            low, high = record.span(array)
            for shard in range(low // entry.shard_rows, entry.shard + 1) if low < min(high, entry.rows) else ():
                key = record.timeline, f"{self.stream}/{array}/c.{shard}"
                if key not in self.open:
                    file = self.disk.names.get(key[1])
                    yield self.disk.say(f"reader opens {key[1]}")
                    if file is None:
                        raise Missing(key[1])
                    if (
                        record_of(self.disk, self.stream).timeline != record.timeline
                        and self.world.bug != "reader_timeline"
                    ):
                        return False
                    self.open[key] = file
                    yield self.disk.say("reader reads the record again")
                shards[array, shard] = shard_rows(self.open[key].data, record, array, shard)
                yield self.disk.say(f"reader reads {key[1]}")
        found = gather(record, lambda array, shard: shards[array, shard], tail_rows(self.blocks))
        if found != self.world.written[record.content]:
            raise Violation(f"reader of {self.stream}: other rows than those of record {record.sequence}")
        self.content = record.content
        return True

    def read_tail(self, record: Record) -> Steps:
        """Opens the tail, and reads it, or what is behind the blocks that it has."""
        n, committed, _ = record.tail
        if n == 0:
            self.n, self.committed, self.blocks = 0, 0, []
            return
        file = self.disk.names.get(f"{self.stream}/start/tail.{n}")
        yield self.disk.say(f"reader opens tail.{n}")
        if file is None or size(file.data) < committed:
            raise Missing(f"tail.{n}")
        found = blocks(file.data, self.stream, n, committed)
        yield self.disk.say(f"reader reads tail.{n}")
        if self.n == n and self.committed <= committed:
            found = self.blocks + [(end, block) for end, block in found if end > self.committed]
        self.n, self.committed, self.blocks = n, committed, found
