"""Checkpoints, also of the other stream, and going back to them (docs/format.md, 9.1, 9.2)."""

from __future__ import annotations

import dataclasses

from helpers.stream_model.contents import Checkpoint, Record, Rows, Shards, Tail, checkpoints, load, record_of
from helpers.stream_model.disk import Damage
from helpers.stream_model.writer import Commit, Steps, Writer, put_checkpoint

OTHER = "0"
"""The stream that a maker, the writer of stream 1, cuts without its lock."""


def read_other(writer: Writer) -> Steps:
    writer.held = record_of(writer.disk, OTHER)
    yield writer.disk.say(f"{writer.stream} reads the record of {OTHER}")


def make(writer: Writer, name: str, *, other: bool = False, fresh: bool = False) -> Steps:
    """A checkpoint of the own stream, and of the other one as it was read last, or now if ``fresh``."""
    world, disk = writer.world, writer.disk
    yield from writer.commit(Commit(forgets=False))
    cut = {writer.stream: writer.record}
    if other:
        if fresh or writer.held is None:
            yield from read_other(writer)
        assert writer.held is not None
        cut[OTHER] = writer.held
        if writer.held.back and not writer.has_bug("cut_marked"):
            world.counts["maker waits"] += 1
            return
        if not writer.has_bug("no_record_sync"):
            yield disk.sync_directory(OTHER)
    yield from put_checkpoint(writer, name, Checkpoint(cut, pending=other and not writer.has_bug("no_pending")))
    if other and not writer.has_bug("no_second_look"):
        now = record_of(disk, OTHER)
        yield disk.say("second look")
        if has_moved(writer, cut[OTHER], now):
            yield from writer.drop(name)
            writer.held = None
            world.counts["second look drops"] += 1
            return
    if other:
        yield from put_checkpoint(writer, name, Checkpoint(cut))
    world.promised.add(name)
    world.made.add(name)
    disk.touched.add("checkpoints")
    world.counts["checkpoints"] += 1
    yield disk.say(f"checkpoint {name} is reported")


def has_moved(writer: Writer, cut: Record, now: Record) -> bool:
    """Whether what a cut names of another's stream may be gone."""
    gone = cut.tail.n > 0 and cut.tail.n < now.tail.oldest
    if writer.has_bug("look_by_file"):
        gone = cut.tail.n > 0 and f"{OTHER}/start/tail.{cut.tail.n}" not in writer.disk.names
    rows = now.begin > cut.begin
    if not writer.has_bug("look_at_begin"):
        rows = now.floor > cut.floor or now.first_item > cut.first_item
    return gone or rows or now.timeline != cut.timeline


def go_back(writer: Writer, name: str) -> Steps:
    """Makes a checkpoint's cut the newest record; refused, or in vain, all is as it was."""
    world, disk, stream = writer.world, writer.disk, writer.stream
    writer.alive = False
    yield from writer.recover()
    newest, why = writer.record, refusal(writer, name)
    if why or (cut := checkpoints(disk)[name].cut[stream]).sequence == newest.sequence:
        world.counts["back refused"] += bool(why)
        return
    yield disk.say(f"may go back to {name}")
    if not writer.has_bug("no_announcement"):
        marked = dataclasses.replace(
            newest, sequence=newest.sequence + 1, timeline=newest.timeline + 1, back=True,
            tail=Tail(writer.next_tail(), 0, newest.tail.oldest),
        )  # fmt: skip
        yield from writer.put(marked, writer.block_rows(marked, load(disk, newest), {}))
        newest, why = marked, refusal(writer, name)
        yield disk.say(f"may go back to {name} still: {why or 'yes'}")
    if not why:
        try:
            rows = load(disk, cut)
        except Damage:
            if name in world.made:
                raise
        else:
            yield from put_cut(writer, cut, newest, rows)
            world.counts["backs"] += 1
    writer.alive = False
    yield from writer.recover()


def put_cut(writer: Writer, cut: Record, newest: Record, rows: Rows) -> Steps:
    """The record of the cut, with the rows that no shard holds in a new tail."""
    record = dataclasses.replace(
        cut, sequence=newest.sequence + 1, timeline=newest.timeline + 1, arrays=entries(writer, cut),
        tail=Tail(writer.next_tail(), 0, newest.tail.oldest),
    )  # fmt: skip
    if writer.has_bug("append_pinned") and cut.tail.n:
        yield writer.disk.truncate(f"{writer.stream}/start/tail.{cut.tail.n}", cut.tail.bytes)
        yield from writer.replace(dataclasses.replace(record, tail=Tail(*cut.tail[:2], newest.tail.oldest)))
    else:
        yield from writer.put(record, writer.block_rows(record, rows, {}))


def ends(record: Record) -> tuple[int, int]:
    return record.end, record.end_item


def entries(writer: Writer, cut: Record) -> dict[str, Shards]:
    """Of each array the entry with the most rows, among the cuts of the same ends."""
    found = dict(cut.arrays)
    if writer.has_bug("own_entries") or writer.has_bug("cut_pinned"):
        return found
    for other in checkpoints(writer.disk).values():
        if (of := other.cut.get(writer.stream)) and ends(of) == ends(cut):
            for array, entry in of.arrays.items():
                if array not in found or entry.rows > found[array].rows:
                    found[array] = entry
    return found


def refusal(writer: Writer, name: str) -> str:
    """Why going back is refused, or nothing."""
    there, stream = checkpoints(writer.disk), writer.stream
    if name not in there or there[name].pending:
        return "gone"
    cut = there[name].cut[stream]
    for other, checkpoint in there.items():
        of = checkpoint.cut.get(stream)
        if of is None or other == name:
            continue
        has_items = cut.end_item or not writer.has_bug("absent_table")
        if of.end > cut.end or (of.end_item > cut.end_item and has_items):
            return f"{other} has more"
        if (
            writer.has_bug("own_entries")
            or ends(of) != ends(cut)
            or (of.floor, of.first_item) <= (cut.floor, cut.first_item)
        ):
            continue
        if any(entry.rows > cut.in_shards(array) for array, entry in of.arrays.items()):
            return f"{other} needs less"
    return ""
