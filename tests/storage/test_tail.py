"""The tail of a stream: its blocks, when another begins, and how long those that were left stay."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import types
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers import lives
from helpers.effort import stride
from helpers.testing import FaultyFiles, SimulatedDisk, small_thresholds

import diskreplay as dr
from diskreplay.errors import CheckpointError, CorruptionError, DamageWarning
from diskreplay.ops.verify import verify
from diskreplay.schema.columns import CHOSEN, Codec, StoredColumn
from diskreplay.storage import chunks, tail
from diskreplay.storage import column as column_module
from diskreplay.storage.column import ColumnReader, ColumnWriter
from diskreplay.storage.commit import NO_TAIL, ROWS, Commit, Stored, Tail
from diskreplay.storage.stream import read_commit
from diskreplay.storage.tail import Part, TailWriter

pytestmark = pytest.mark.own_thresholds
SEAL = "identity/0/tail/7"
PATH = "/a.replay"
STREAM = f"{PATH}/streams/0"
START = f"{STREAM}/start"

# Blocks

VALUES = {
    "compressed": np.arange(900, dtype=np.float32).reshape(100, 3, 3) // 7,
    "noise": np.random.default_rng(0).bytes(400),
    "short": np.arange(8, dtype=np.int64).reshape(4, 2),
    "flags": np.arange(300).reshape(100, 3) % 3 == 0,
    "complex": (np.arange(200) // 9).astype(np.complex64).reshape(100, 2),
    "no bytes": np.zeros((5, 1, 0), np.uint8),
}  # fmt: skip
ARRAYS = {name: np.frombuffer(v, np.uint8).reshape(40, 10) if isinstance(v, bytes) else v for name, v in VALUES.items()}


def parts(first: int = 0) -> list[Part]:
    return [Part.of(name, first + at, values) for at, (name, values) in enumerate(ARRAYS.items())]


def two_blocks() -> bytes:
    data = tail.block(SEAL, 0, {"sequence": 1, "tail": [1, 2, 3]}, parts())
    return data + tail.block(SEAL, len(data), {"sequence": 2}, parts(100))


def test_blocks_are_what_was_put_into_them() -> None:
    data = two_blocks()
    found = list(tail.blocks(SEAL, 0, data))
    assert [end for end, _, _ in found][-1] == len(data)
    assert [record for _, _, record in found] == [b'{"sequence":1}', b'{"sequence":2}'], "without their own place"
    assert [one for _, one, _ in found] == [parts(), parts(100)]
    for part, (name, values) in zip(found[1][1], ARRAYS.items(), strict=True):
        again = part.values(values.shape[1:], values.dtype)
        assert (part.path, again.dtype, again.shape) == (name, values.dtype, values.shape)
        np.testing.assert_array_equal(again, values)
    packed = {part.path: part.packed for part in found[0][1]}
    assert packed == {
        "compressed": True, "noise": False, "short": False, "flags": True, "complex": True, "no bytes": False,
    }, "only where it is smaller"  # fmt: skip


def test_a_later_block_is_read_alone() -> None:
    data = two_blocks()
    (first, *_), (second, listed, _) = tail.blocks(SEAL, 0, data)
    assert list(tail.blocks(SEAL, first, data[first:])) == [(second, listed, b'{"sequence":2}')]


def test_a_damaged_byte_is_noticed() -> None:
    data = two_blocks()
    for at in range(0, len(data), stride(7, "bytes of a tail")):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(chunks.DamagedError):
            list(tail.blocks(SEAL, 0, bytes(damaged)))


def test_a_block_that_ends_early_is_noticed() -> None:
    data = two_blocks()
    (first, *_), _ = tail.blocks(SEAL, 0, data)
    for size in range(1, len(data), stride(7, "sizes of a tail")):
        if size != first:
            with pytest.raises(chunks.DamagedError):
                list(tail.blocks(SEAL, 0, data[:size]))
    assert len(list(tail.blocks(SEAL, 0, data[:first]))) == 1


@pytest.mark.parametrize(
    ("seal", "offset"),
    [("identity/0/tail/8", 0), ("identity/1/tail/7", 0), ("other/0/tail/7", 0), (SEAL, 1), (SEAL, 70)],
)
def test_a_block_of_another_place_is_refused(seal: str, offset: int) -> None:
    data = tail.block(SEAL, 0, {}, parts())
    assert list(tail.blocks(SEAL, 0, data))
    with pytest.raises(chunks.DamagedError, match="damaged, or of another file"):
        list(tail.blocks(seal, offset, data))


@pytest.mark.parametrize("name", ["compressed", "noise", "short"])
def test_rows_that_do_not_fit_their_bytes_are_refused(name: str) -> None:
    part = Part.of(name, 0, ARRAYS[name])
    for other in (part._replace(rows=part.rows + 1), part._replace(data=part.data[:-1])):
        with pytest.raises(chunks.DamagedError):
            other.values(ARRAYS[name].shape[1:], ARRAYS[name].dtype)


def test_names_of_tails() -> None:
    assert [tail.number_of(tail.name(number)) for number in (1, 9, 10, 123)] == [1, 9, 10, 123]
    others = [
        "tail.",
        "tail.0",
        "tail.01",
        "tail.1.tmp",
        "tail.-1",
        "tail.x",
        "tail.\u0661",
        "tails.1",
        "zarr.json",
        "lock",
    ]
    assert [tail.number_of(name) for name in others] == [None] * len(others)


# Rows of a column


def column(together: bool = True) -> StoredColumn:
    """With chunks of both environments, or of one."""
    return StoredColumn("obs", (2,), np.dtype(np.float32), CHOSEN, 4, 16, 2 if together else 1, Codec("none"))


def rows_of(values: np.ndarray) -> np.ndarray:
    """The rows ``(4, 2, 2)`` of a chunk's values by group."""
    return values.swapaxes(0, 1).reshape(4, 2, 2)


def rows(first: int, stop: int, plus: int = 0) -> np.ndarray:
    """Rows of two environments, ``(n, 2, 2)``."""
    at = np.arange(first, stop, dtype=np.float32)[:, None, None]
    return at * 10 + np.arange(4, dtype=np.float32).reshape(2, 2) + np.float32(plus)


@pytest.mark.parametrize("together", [True, False])
def test_of_two_blocks_with_one_row_the_last_counts(together: bool) -> None:
    reader = ColumnReader(SimulatedDisk(), "/a", "0", column(together), 2)
    reader.load(None, 0, 5)
    reader.put(0, rows(0, 6, plus=500))  # row 5 is the newest next observation
    reader.held(1)
    reader.load(None, 0, 9)
    reader.put(5, rows(5, 10))
    assert reader.read_rows(0, 10).tolist() == [*rows(0, 5, plus=500).tolist(), *rows(5, 10).tolist()]
    values = reader.held(1).values
    assert values is not None
    assert rows_of(values).tolist() == [*rows(4, 5, plus=500).tolist(), *rows(5, 8).tolist()], "what was held goes"
    reader.check_held(10)
    with pytest.raises(
        CorruptionError, match=r"row 10 of column 'obs'.*neither in the shards.*nor in the tail"
    ) as error:
        reader.check_held(11)
    assert error.value.rows == (10, 11)


@pytest.mark.parametrize("together", [True, False])
def test_rows_that_nobody_needs_may_be_missing(together: bool) -> None:
    """Those below the first needed one: their places in a chunk are zeros."""
    reader = ColumnReader(SimulatedDisk(), "/a", "0", column(together), 2)
    reader.load(None, 6, 9)
    reader.put(6, rows(6, 9))
    reader.check_held(9)
    assert reader.read_rows(6, 9).tolist() == rows(6, 9).tolist()
    values = reader.held(1).values
    assert values is not None
    assert rows_of(values).tolist() == [*np.zeros((2, 2, 2)).tolist(), *rows(6, 8).tolist()]
    reader.put(9, rows(10, 12))
    reader.load(None, 8, 12)
    reader.forget_held()
    reader.put(9, rows(9, 12))
    with pytest.raises(CorruptionError, match="row 8 of"):
        reader.check_held(12)


class Array:
    """One array in its own directory, written, committed and read as a stream does it."""

    def __init__(self, together: bool) -> None:
        self.disk = SimulatedDisk()
        self.disk.mkdir("/a")
        self.column = column(together)
        self.writer = ColumnWriter(self.disk, "/a", "0", self.column, 2, "identity/0/obs")
        self.resume(None, 0, 0, rows(0, 0))

    def resume(self, stored: Stored | None, needed_from: int, end: int, held: np.ndarray) -> None:
        """Opens it again, with rows before ``end`` and the newest next observation in the tail."""
        self.writer = ColumnWriter(self.disk, "/a", "0", self.column, 2, "identity/0/obs")
        self.writer.load(stored, needed_from, end)
        self.writer.put(end + (len(held) > 0) - len(held), held)
        self.writer.resume(len(held) > 0)

    def commit(self, needed_from: int = 0, closing: bool = False) -> None:
        taken, last = self.writer.take(0, False), self.writer.partial() if closing else []
        appended = self.writer.stage(taken.stop + bool(last), taken.parts() + last, self.writer.end)
        for append in appended:
            self.disk.open(self.writer.shard_path(append.shard), write=True).pwrite(append.parts, append.offset)
        self.writer.publish(appended, self.writer.end, 0)
        self.writer.trim(needed_from)

    def read(self, start: int, stop: int) -> list[Any]:
        """What a reader finds, which knows the shards alone."""
        reader = ColumnReader(self.disk, "/a", "0", self.column, 2, "identity/0/obs")
        reader.load(self.writer.stored, start, stop)
        found: list[Any] = reader.read_rows(start, stop).tolist()
        return found


@pytest.mark.parametrize("together", [True, False])
def test_a_chunk_that_was_not_full_is_completed(together: bool) -> None:
    array = Array(together)
    array.writer.append(rows(0, 6))
    array.commit(closing=True)
    taken = array.writer.take(0, False)
    assert (array.writer.stored_rows, taken.stop, taken.parts(), array.writer.partial()) == (6, 1, [], [])
    assert array.read(0, 6) == rows(0, 6).tolist()
    size = array.writer.append_at
    array.resume(array.writer.stored, 0, 6, rows(6, 7, plus=100))
    assert array.writer.read_rows(0, 7).tolist() == [*rows(0, 6).tolist(), *rows(6, 7, plus=100).tolist()]
    assert array.writer.append_at == size
    array.writer.append(rows(6, 13))
    taken = array.writer.take(0, False)
    assert (taken.stop, len(taken.parts())) == (3, 2 * array.writer.groups), "the one that was not full, too"
    array.commit()
    assert array.writer.stored_rows == 12
    assert array.read(0, 12) == rows(0, 12).tolist()
    assert array.writer.read_rows(0, 13).tolist() == rows(0, 13).tolist()
    array.writer.append(rows(13, 21))
    array.commit(closing=True)
    assert array.read(0, 21) == rows(0, 21).tolist()
    assert array.writer.stored is not None
    assert array.writer.stored[:3] == (1, array.writer.append_at, 21)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("needed_from", [6, 8, 18, 37])
def test_chunks_below_the_first_needed_row_may_be_missing(together: bool, needed_from: int) -> None:
    """A writer that opens a stream whose window went on, while no chunk of an array was worth a shard."""
    array = Array(together)
    array.writer.append(rows(0, 6))
    array.commit()
    assert array.writer.stored_rows == 4
    array.resume(array.writer.stored, needed_from, 40, rows(needed_from, 41))
    assert array.writer.read_rows(needed_from, 41).tolist() == rows(needed_from, 41).tolist()
    array.writer.append(rows(40, 43))
    array.commit(needed_from, closing=True)
    assert array.read(needed_from, 43) == rows(needed_from, 43).tolist()
    low = needed_from // 4 * 4
    if low > 4:
        missing = array.read(max(low, needed_from // 16 * 16), needed_from)
        assert missing == np.zeros((len(missing), 2, 2)).tolist(), "what is in a needed chunk is zeros"


# When another tail begins


class Clock(types.SimpleNamespace):
    """A clock that a test sets, in place of the module ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(tail, "time", found)
    return found


def tail_writer(disk: SimulatedDisk | None = None) -> TailWriter:
    files = SimulatedDisk() if disk is None else disk
    files.mkdir("/start")
    return TailWriter(files, "/start", "identity/0/tail")


def part(first: int, rows: int, size: int = 100, path: str = "obs") -> Part:
    return Part(path, first, rows, False, bytes(rows * size))


def append(writer: TailWriter, parts: list[Part], begin: int | None = None, oldest: int | None = None) -> Tail:
    return writer.append({"sequence": 1}, parts, begin, oldest)


def test_a_tail_begins_when_more_is_dead_than_lives() -> None:
    writer = tail_writer()
    assert writer.begins({}), "there is none yet"
    append(writer, [part(0, 2000)], begin=1)
    assert writer.tail.size > 200_000
    assert not writer.begins({"obs": 0})
    append(writer, [part(2000, 100)])
    assert not writer.begins({"obs": 1999}), "the part has a row that is needed"
    assert writer.begins({"obs": 2000})
    append(writer, [part(2000, 100)], begin=2)
    assert (writer.tail.number, writer.tail.size < 12_000) == (2, True)
    assert not writer.begins({"obs": 2000})
    for at in range(600):
        append(writer, [part(2100 + at, 1)])
    assert not writer.begins({"obs": 2000}), "64 kB are dead in any case: records and lists"
    assert writer.tail.size < 2 * tail.DEAD_BYTES + 12_000
    assert writer.begins({"obs": 2700}), "all are dead"


def test_no_tail_begins_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    writer = tail_writer(disk)
    append(writer, [part(0, 2000), part(0, 500, path="reward")], begin=1)
    dead = {"obs": 2000, "reward": 0}
    assert writer.begins(dead)
    monkeypatch.setattr(SimulatedDisk, "room", lambda *_: 100_000 + tail.DEAD_BYTES)
    assert not writer.begins(dead), "50 kB are alive"
    monkeypatch.setattr(SimulatedDisk, "room", lambda *_: 110_000 + tail.DEAD_BYTES)
    assert writer.begins(dead)


def test_a_tail_that_was_left_stays_for_a_minute(clock: Clock) -> None:
    writer = tail_writer()
    assert append(writer, [part(0, 1)], begin=1) == Tail(1, writer.tail.size, 1)
    assert append(writer, [part(0, 1)], begin=2).oldest == 1
    clock.now += 1
    assert append(writer, [part(0, 1)], begin=3).oldest == 1
    assert writer.outdated() == []
    clock.now += tail.LEFT_SECONDS - 0.5  # the first was left earlier than that
    assert append(writer, [part(1, 1)]).oldest == 2, "any block may say so"
    assert writer.outdated() == [1]
    writer.gone(1)
    clock.now += 1e9
    assert append(writer, [part(1, 1)]).oldest == 2, "the one before the newest stays"
    assert writer.outdated() == []
    assert append(writer, [part(1, 1)], begin=4).oldest == 3
    assert writer.outdated() == [2]


def test_tails_that_were_left_take_no_more_than_so_many_bytes(clock: Clock) -> None:
    writer = tail_writer()
    for number in range(1, 9):
        append(writer, [part(0, 1000, size=tail.LEFT_BYTES // 3500)], begin=number)
    assert writer.tail.oldest == 5, "three of those before it fit"
    assert writer.outdated() == [1, 2, 3, 4]
    append(writer, [part(0, 1000, size=tail.LEFT_BYTES // 900)], begin=9)
    assert append(writer, [part(0, 1)], begin=10).oldest == 9, "the one before stays, however large"


def test_the_oldest_tail_never_becomes_an_older_one(clock: Clock) -> None:
    """A checkpoint may have been dropped because its tail was below: what was said must hold.

    A tail that only a checkpoint keeps is still there when a writer opens the stream, older than those that went.
    """
    disk = SimulatedDisk()
    writer = tail_writer(disk)
    for number in (2, 4, 5):
        disk.open(f"/start/{tail.name(number)}", write=True).pwrite([bytes(900)], 0)
    writer.go_on(Tail(5, 900, 4), [], tail.on_disk(disk, "/start"))
    assert writer.outdated() == [2]
    assert append(writer, [part(0, 1)]).oldest == 4
    clock.now += 2 * tail.LEFT_SECONDS
    assert append(writer, [part(0, 1)], begin=6).oldest == 5
    assert writer.outdated() == [2, 4]


def test_what_an_earlier_process_left_stays_for_a_minute_from_the_opening(clock: Clock) -> None:
    writer = tail_writer()
    for number in (3, 4, 5):
        writer._files.open(writer.path(number), write=True).pwrite([bytes(900)], 0)
    clock.now = 1000.0
    writer.go_on(Tail(5, 900, 3), [part(0, 1)], [3, 4, 5])
    assert append(writer, [part(0, 1)]).oldest == 3
    clock.now += tail.LEFT_SECONDS + 1
    assert append(writer, [part(0, 1)]).oldest == 4


# Of a stream


def opened(files: SimulatedDisk | FaultyFiles, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(PATH, files=files, **lives.OPTIONS | options)


def record(disk: SimulatedDisk) -> Commit:
    return read_commit(disk, STREAM)


def tails(disk: SimulatedDisk) -> list[int]:
    return tail.on_disk(disk, START)


def sizes(disk: SimulatedDisk) -> dict[int, int]:
    return {number: disk.size(f"{START}/{tail.name(number)}") or 0 for number in tails(disk)}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimulatedDisk:
    """A store with 40 rows of which each is a commit of its own, and tails that are small."""
    monkeypatch.setattr(tail, "DEAD_BYTES", 4000)
    monkeypatch.setattr(tail, "LEFT_BYTES", 0)
    disk = SimulatedDisk()
    with lives.create(PATH, num_envs=1, rows=12, files=disk) as buffer:
        one_by_one(buffer, 40)
    return disk


def one_by_one(buffer: dr.ReplayBuffer, rows: int) -> None:
    for _ in range(rows):
        lives.add(buffer, 1)
        buffer.commit()


def test_a_new_stream_has_no_tail_and_its_first_commit_begins_one() -> None:
    disk = SimulatedDisk()
    with lives.create(PATH, num_envs=1, rows=12, files=disk) as buffer:
        assert (record(disk).tail, tails(disk)) == (NO_TAIL, [])
        one_by_one(buffer, 1)
        assert record(disk).tail == Tail(1, sizes(disk)[1], 1)


@pytest.mark.long
def test_arrays_of_other_tables_come_with_their_first_chunk_a_group_at_a_time() -> None:
    disk = SimulatedDisk()
    with small_thresholds(), lives.create(PATH, num_envs=1, rows=60, files=disk) as buffer:
        assert not {"patches", "cuts", "info"} & set(disk.list(STREAM))
        while "patches" not in disk.list(STREAM):
            lives.add(buffer, 8)
            buffer.commit()
        patches = {path for path in buffer.schema.arrays if path.startswith("patches/")}
        assert patches & record(disk).arrays.keys()
        assert all("zarr.json" in disk.list(f"{STREAM}/{path}") for path in ("patches", *patches))
        assert not any(name.startswith(".tmp") for name in disk.list(START))


def test_tails_come_and_go(disk: SimulatedDisk) -> None:
    placed = record(disk).tail
    assert placed.number > 4
    assert tails(disk) == [placed.number - 1, placed.number]
    assert placed.oldest == placed.number - 1
    with opened(disk, mode="r") as buffer:
        assert lives.check_all(buffer) == 12


def test_the_newest_next_observation_stands_in_the_tail(disk: SimulatedDisk) -> None:
    """Row ``end``; no shard has it, and no patch, also after a close, where all rows are in shards."""
    newest = record(disk)
    assert newest.end == 40
    assert newest.stored_rows("obs") == 40
    schema = opened(disk, mode="r").schema
    for path, length in (("obs", 41), ("reward", 40)):
        held = [part for part in _parts(disk) if part.path == path]
        assert max((part.first + part.rows for part in held), default=40) == length
    newest_row = next(part for part in reversed(_parts(disk)) if part.path == "obs")
    value = newest_row.values((1, *schema.column("obs").shape), schema.column("obs").dtype)[-1, 0]
    np.testing.assert_array_equal(value, lives.step(0, 39, 1)["next_obs"])
    with opened(disk, mode="r") as buffer:
        np.testing.assert_array_equal(buffer.get(buffer.items()[-1:]).next_obs[0, -1], value)
        log = next(iter(buffer.engine.streams)).log
        assert 39 not in log.patches.span("place", log.patch_begin, log.patch_end)[:, 0]


def newest_identity(disk: SimulatedDisk) -> str:
    with opened(disk, mode="r") as buffer:
        return str(buffer.schema.identity)


def _parts(disk: SimulatedDisk) -> list[Part]:
    with opened(disk, mode="r") as buffer:
        return buffer.engine.store.read_tail("0", record(disk)).parts


@pytest.mark.parametrize("again", [False, True])
def test_tails_that_checkpoints_name_stay_and_are_cut_to_what_they_name(disk: SimulatedDisk, again: bool) -> None:
    """To the greatest bytes that any of them names; and none for a while after the last was dropped."""
    buffer = opened(disk)

    def go_on(rows: int) -> None:
        nonlocal buffer
        if again:
            buffer.close()
            buffer = opened(disk)
        one_by_one(buffer, rows)

    number = record(disk).tail.number
    while record(disk).tail.number == number:
        one_by_one(buffer, 1)
    buffer.checkpoint("a")
    number, first, _ = record(disk).tail
    end = record(disk).end
    one_by_one(buffer, 1)
    buffer.checkpoint("b")
    second = record(disk).tail
    assert (second.number, second.size > first) == (number, True)
    lives.add(buffer, 1)
    buffer.commit()
    assert record(disk).tail.number == number
    go_on(30)
    assert tails(disk)[:1] + tails(disk)[-1:] == [number, record(disk).tail.number]
    assert len(tails(disk)) == 3, "this one, the newest, and the one before"
    assert sizes(disk)[number] == second.size, "what was behind is gone"
    for name, then_end in (("a", end), ("b", end + 1)):
        with opened(disk, mode="r", checkpoint=name) as then:
            lives.check_all(then)
            assert then.stats()["streams"]["0"]["end"] == then_end
    buffer.drop_checkpoint("b")
    go_on(1)
    assert sizes(disk)[number] == first
    with opened(disk, mode="r", checkpoint="a") as then:
        assert lives.check_all(then) == 12
    buffer.drop_checkpoint("a")
    go_on(1)
    assert number not in tails(disk)
    buffer.close()
    with opened(disk, mode="r") as then:
        assert lives.check_all(then) == 12


@pytest.mark.parametrize("closed", [False, True])
def test_going_back_leaves_a_tail_that_checkpoints_name(disk: SimulatedDisk, closed: bool) -> None:
    """Of two checkpoints of equal ends, maybe with a close between them, the second is whole after going back."""
    buffer = opened(disk)
    one_by_one(buffer, 2)
    buffer.checkpoint("a")
    if closed:
        buffer.close()
        buffer = opened(disk)
    buffer.checkpoint("b")
    one_by_one(buffer, 3)
    before = sizes(disk)
    buffer.close()
    with opened(disk, checkpoint="a") as back:
        assert back.stats()["streams"]["0"]["end"] == 42
        lives.check_all(back)
        named = {cut.tail.number for one in back.engine.store.checkpoints() for cut in one.cut.values()}
        assert record(disk).tail.number > max(before)
        assert record(disk).tail.number not in named
        one_by_one(back, 5)
        lives.check_all(back)
    for name in ("a", "b"):
        with opened(disk, mode="r", checkpoint=name) as then:
            lives.check_all(then)
            assert then.stats()["streams"]["0"]["end"] == 42


@pytest.mark.parametrize("damaged", ["tail", "shard", "both"])
def test_a_stream_whose_newest_rows_are_damaged_goes_back(disk: SimulatedDisk, damaged: str) -> None:
    """As verify says; nothing changes if what it would go back to is damaged, too, or is still needed by others."""
    with opened(disk) as buffer:
        one_by_one(buffer, 2)
        buffer.checkpoint("a")
        one_by_one(buffer, 30)
        buffer.checkpoint("b")
        one_by_one(buffer, 6)
    newest = record(disk)
    if damaged != "shard":
        disk.unlink(f"{START}/{tail.name(newest.tail.number)}")
    if damaged != "tail":
        disk.unlink(f"{STREAM}/obs/c.{newest.arrays['obs'].shard}.0.0.0")
    with pytest.raises(CorruptionError):
        opened(disk)
    with pytest.raises(CheckpointError, match=r"'b'.* still need"):
        opened(disk, checkpoint="a")
    with pytest.raises(CorruptionError):
        opened(disk)
    assert record(disk) == dataclasses.replace(newest, sequence=record(disk).sequence, time=record(disk).time,
                                               timeline=record(disk).timeline)  # fmt: skip
    with opened(disk, checkpoint="b") as back:
        assert lives.check_all(back) == 12
        one_by_one(back, 20)
        assert lives.check_all(back) == 12
    assert verify(PATH, files=disk).problems == ()


def test_recovery_cuts_what_no_record_names(disk: SimulatedDisk) -> None:
    """Blocks behind the record's, and a tail that was begun for a record that never came."""
    placed = record(disk).tail
    file = f"{START}/{tail.name(placed.number)}"
    disk.open(file, write=True).pwrite([b"torn"], placed.size)
    disk.open(f"{START}/{tail.name(placed.number + 3)}", write=True).pwrite([b"torn"], 0)
    with opened(disk, mode="r") as buffer:
        assert lives.check_all(buffer) == 12
    with opened(disk) as buffer:
        assert sizes(disk)[placed.number] == placed.size
        assert tails(disk)[-1] == placed.number
        one_by_one(buffer, 2)
        assert lives.check_all(buffer) == 12


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "another"])
def test_of_a_damaged_tail_what_the_shards_hold_is_shown(path: str, damage: str, closed: bool) -> None:
    """With a warning, to readers alone; verify names the file. After a close that is all but the newest row."""
    buffer = lives.create(path, num_envs=1, rows=40)
    one_by_one(buffer, 23)
    if closed:
        buffer.close()
    stored = min(array.rows for array in read_commit(buffer.engine.store.files, f"{path}/streams/0").arrays.values())
    file = pathlib.Path(path, "streams", "0", "start", tail.name(1))
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        flipped = data[:100] + bytes([data[100] ^ 1]) + data[101:]
        file.write_bytes({"short": data[:-1], "flipped": flipped, "another": data[::-1]}[damage])
    with pytest.warns(DamageWarning, match="the tail of the stream '0' of .* is missing or damaged: the newest"):
        reader = dr.ReplayBuffer.open(path, mode="r")
    with reader:
        ids = reader.items()
        lives.check(reader.get(ids), {0: 1})
        assert len(ids) == len(reader)
        assert set(ids.tolist()) <= set(range(23))
        assert not closed or len(ids) >= 23 - 1 - 1, "the newest is the next observation of the one before"
        assert stored > 0 or not len(ids)
    found = verify(path)
    assert str(file) in {problem.file for problem in found.problems}
    if closed:
        with pytest.raises(CorruptionError) as error:
            dr.ReplayBuffer.open(path)
        assert (error.value.file, error.value.stream) == (str(file), "0")
    buffer.close()
    file.write_bytes(data)
    if closed:
        assert verify(path).ok


@pytest.mark.long
@pytest.mark.parametrize("window", [12, 40])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_of_a_tail_that_is_damaged_in_a_block_what_is_before_is_shown(
    num_envs: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of the commit before, but for what left the window since; never less than the shards hold."""
    with small_thresholds(), monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        patch.setattr(tail, "DEAD_BYTES", 1 << 20)
        disk = SimulatedDisk()
        buffer = lives.create(PATH, num_envs, window, files=disk, chunk_rows=16, shard_rows=16)
        one_by_one(buffer, 26)
        newest = record(disk)
        file = f"{START}/{tail.name(newest.tail.number)}"
        data = disk.read(file)[: newest.tail.size]
        before, end, shown = 0, 0, set()
        for stop, _, said in tail.blocks(f"{newest_identity(disk)}/0/tail/{newest.tail.number}", 0, data):
            damaged = disk.after_kill()
            damaged.open(file, write=True).pwrite([bytes([data[(before + stop) // 2] ^ 1])], (before + stop) // 2)
            with opened(damaged, mode="r") as reader:
                if len(ids := reader.items()):
                    lives.check(reader.get(ids), {0: num_envs})
                assert set(range(newest.begin * num_envs, end * num_envs)) <= set(ids.tolist())
                assert len(ids) == len(reader) < (newest.end - newest.begin) * num_envs
                shown.add(len(ids))
            before, end = stop, Commit.from_json(json.loads(said), file).end
        assert len(shown) >= 10


@pytest.mark.parametrize("chunk_rows", [4, 32])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_whatever_of_a_stream_without_its_tail_is_shown_is_right(num_envs: int, chunk_rows: int) -> None:
    """After each commit; tables go to shards one by one, so that patches may be there of rows that are lost."""
    shown = set()
    with small_thresholds(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        disk = SimulatedDisk()
        buffer = lives.create(PATH, num_envs, 60, files=disk, chunk_rows=chunk_rows, shard_rows=4 * chunk_rows)
        for row in range(80):
            lives.add(buffer, 1)
            buffer.commit()
            if row % stride(5, "commits after which a tail is lost"):
                continue
            without = disk.after_kill()
            for number in tails(without):
                without.unlink(f"{START}/{tail.name(number)}")
            with opened(without, mode="r") as reader:
                if len(ids := reader.items()):
                    lives.check(reader.get(ids), {0: num_envs})
                shown.add(len(ids) > 0)
    assert shown == {True, False}


def test_a_tail_that_a_reader_knows_is_read_from_where_it_was(disk: SimulatedDisk) -> None:
    files = FaultyFiles(disk)
    with opened(disk) as writer, opened(files, mode="r") as reader:
        one_by_one(writer, 1)
        reader.refresh()
        before = record(disk).tail
        one_by_one(writer, 1)
        after = record(disk).tail
        assert after.number == before.number
        files.heal()
        assert reader.refresh()
        assert lives.check_all(reader) == 12
        read = [one for one in files.operations if one.name == "pread" and "/tail." in one.path]
        assert len(read) == 1
        assert not reader.refresh()


def test_a_shard_that_would_be_mostly_dead_leaves_its_rows_in_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each close writes a chunk that is not full again; what that takes the place of is dead."""
    monkeypatch.setattr(column_module, "MOST_DEAD_BYTES", 1000)
    disk = SimulatedDisk()
    lives.create(PATH, num_envs=1, rows=100, files=disk, chunk_rows=32, shard_rows=64).close()
    behind = set()
    for end in range(1, 50):
        with opened(disk) as buffer:
            lives.add(buffer, 1)
        if end % stride(3, "rows of a tail"):
            continue
        newest = record(disk)
        with opened(disk, mode="r") as reader:
            assert lives.check_all(reader) == end
            for path, array in next(iter(reader.engine.streams)).disk.columns.items():
                if array.stored is not None:
                    assert array.stored.rows <= newest.of(path).end
                    alive = int(array.entries.span(array.entries.begin, array.entries.end)[..., 1].clip(0).sum())
                    size = array.stored.size
                    full = array.stored.rows % array.column.chunk_rows == 0  # it goes to its shard in any case
                    assert full or size - alive - array.index_bytes <= max(1000, size // 2), path
                    if array.stored.rows < newest.of(path).end:
                        behind.add(path)
    assert {"obs", "reward"} <= behind
    with opened(disk) as buffer:
        lives.add(buffer, 20)
    assert record(disk).stored_rows("obs") >= 64, "chunks that are full go to their shards"


def test_a_commit_of_a_row_appends_the_row_alone() -> None:
    """Each column's row, and the newest next observation once: as the row that it becomes it is not said again."""
    disk = SimulatedDisk()
    box = spaces.Box(-1, 1, (200,), np.float32)
    rng = np.random.default_rng(0)
    frames = rng.random((30, 200), np.float32)
    with dr.ReplayBuffer.create(PATH, box, spaces.Discrete(2), capacity=1000, files=disk) as buffer:
        for row in range(20):
            buffer.add(frames[row], 0, 0.0, frames[row + 1], False, False)
            buffer.commit()
        size = record(disk).tail.size
        buffer.add(frames[20], 0, 0.0, frames[21], False, False)
        buffer.commit()
        assert 800 < record(disk).tail.size - size < 2000
        size = record(disk).tail.size
        buffer.add(frames[25], 0, 0.0, frames[26], False, False)  # it begins a run: the row was another before
        buffer.commit()
        assert 1600 < record(disk).tail.size - size < 3200
    with opened(disk, mode="r") as reader:
        batch = reader.get(reader.items())
        np.testing.assert_array_equal(batch.obs, frames[[*range(21), 25]])
        np.testing.assert_array_equal(batch.next_obs, frames[[*range(1, 22), 26]])


def test_rows_of_a_tail_that_the_window_left_are_not_written_again(disk: SimulatedDisk) -> None:
    """A tail begins with the needed rows alone, and is read all the same."""
    newest = record(disk)
    floor = newest.table(ROWS).needed_from
    assert floor > 0
    with opened(disk) as buffer:
        number = record(disk).tail.number
        while record(disk).tail.number == number:
            one_by_one(buffer, 1)
        needed = record(disk).table(ROWS).needed_from
        held = [part for part in _parts(disk) if part.path in ("reward", "obs")]
        assert min(part.first for part in held) >= needed
    with opened(disk) as buffer:
        assert lives.check_all(buffer) == 12
