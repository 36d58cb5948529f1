"""Tails under a URL: put before the record that names them, removed once they are left and no checkpoint names them."""

from __future__ import annotations

import functools
import itertools
import pathlib
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
from helpers.effort import stride
from helpers.testing import FaultyObjects, SimulatedObjects
from remote import world
from remote.world import CAPACITY, Life, Rows, lived, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import RemoteError
from diskreplay.ops import remote as ops
from diskreplay.ops.verify import verify
from diskreplay.remote import push
from diskreplay.remote.checkpoint_objects import document_key
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.needed import tail_key, tail_number
from diskreplay.remote.place import open_remote
from diskreplay.remote.trainer_checkpoints import RemoteCheckpoints
from diskreplay.storage import metadata, tail
from diskreplay.storage.commit import Commit, Tail
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Checkpoint, Store

RECORD = "streams/0/zarr.json"


@pytest.fixture
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail of which half is dead is left, and then only the one before the newest stays."""
    monkeypatch.setattr(tail, "DEAD_BYTES", 0)
    monkeypatch.setattr(tail, "LEFT_SECONDS", -1.0)
    monkeypatch.setattr(push, "KEPT_SECONDS", -1.0)


def tails(objects: SimulatedObjects) -> set[int]:
    return {number for key in objects.data if (number := tail_number("0", key)) is not None}


def record_of(objects: SimulatedObjects, mirror: pathlib.Path) -> Any:
    return Store(objects.url, open_remote(objects, mirror)).newest_commit("0")


def leave(life: Life, push: Callable[[], object], windows: list[Rows]) -> None:
    """Adds and pushes until a tail is left and removed; notes what a reader may see meanwhile."""
    for _ in range(3):
        life.add(5)
        windows.append(sorted(life.window()))
        push()


def at_request(at: int, happens: Callable[[], None]) -> Callable[[int, Any], None]:
    def decide(index: int, request: Any) -> None:
        if index == at:
            happens()

    return decide


def test_a_push_that_ends_between_tail_and_record(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 5)
    before, size = life.window(), len(objects.data[tail_key("0", 1)])
    life.add(1)
    faulty, puts = FaultyObjects(objects), itertools.count()
    faulty.decide = lambda index, request: (
        "refused" if request.name == "put" and request.key == RECORD and next(puts) else None
    )
    with pytest.raises(RemoteError):  # the first put of the record is the fence
        life.push(faulty)
    grown = objects.data[tail_key("0", 1)]
    assert len(grown) > size
    assert read(objects, tmp_path / "m") == sorted(before)
    faulty.heal()
    life.push(faulty)
    assert objects.data[tail_key("0", 1)] == grown
    assert read(objects, tmp_path / "m") == sorted(life.window())


@pytest.mark.long
def test_a_tail_is_opened_with_its_record(tmp_path: pathlib.Path, short_lived: None) -> None:
    """It goes while shards are put, or before it was opened: then the newer record is read."""
    life, base = pushed(tmp_path / "a", 5)
    for at in range(0, 60, stride(11, "requests of a push")):
        objects = base.copy()
        faulty = FaultyObjects(objects)
        faulty.decide = at_request(at, lambda: [life.add(5) for _ in range(3)] and None)
        life.add(5)
        life.push(faulty)
        life.push(objects)
        assert read(objects, tmp_path / "m") == sorted(life.window())
        base = objects


def test_tails_that_were_left_go(tmp_path: pathlib.Path, short_lived: None) -> None:
    life, objects = pushed(tmp_path / "a", 3)
    pusher = life.push(objects)
    for _ in range(12):
        life.add(5)
        pusher.run()
        newest = record_of(objects, tmp_path / "m").tail
        assert tails(objects) <= set(range(newest.oldest, newest.number + 1))
    assert newest.number > 3
    assert read(objects, tmp_path / "m") == sorted(life.window())
    assert verify(life.path).ok


@pytest.mark.parametrize("by", ["push", "gc"])
def test_what_a_trainers_checkpoint_names_stays(tmp_path: pathlib.Path, short_lived: None, by: str) -> None:
    life, objects = pushed(tmp_path / "a", 5)
    with reader(objects, tmp_path / "m") as trainer:
        trainer.checkpoint("t")
        wanted, named = sorted(rows_of(trainer)), record_of(objects, tmp_path / "m").tail.number
        for _ in range(6):
            life.add(5, to=objects)
            collect_garbage(open_remote(objects, tmp_path / "gc"), 0)
        assert min(tails(objects)) == named < record_of(objects, tmp_path / "m").tail.oldest
        assert read(objects, tmp_path / "anew", checkpoint="t") == wanted
        trainer.drop_checkpoint("t")
    if by == "push":
        life.push(objects)
    else:
        assert collect_garbage(open_remote(objects, tmp_path / "gc"), 0).removed
    assert named not in tails(objects)


def test_what_a_checkpoint_here_names_stays(tmp_path: pathlib.Path, short_lived: None) -> None:
    """Also where the push was at a later tail when the checkpoint was made."""
    life, objects = pushed(tmp_path / "a", 5)
    life.add(6)
    life.checkpoint("c")
    for _ in range(3):
        life.add(5)
    life.push(objects)
    assert read(objects, tmp_path / "m", checkpoint="c") == sorted(life.saved["c"])
    pull = tmp_path / "pulled"
    ops.pull(objects.url, pull, objects=objects)
    with dr.ReplayBuffer.open(pull, mode="r", checkpoint="c") as buffer:
        assert sorted(rows_of(buffer)) == sorted(life.saved["c"])


def test_no_tail_gets_fewer_bytes_than_another_checkpoint_names(tmp_path: pathlib.Path, short_lived: None) -> None:
    life, objects = lived(tmp_path / "a", 5, "c", 1), SimulatedObjects()
    life.push(objects)
    wanted = {"c": life.saved["c"], "t": life.window()}
    with reader(objects, tmp_path / "m") as trainer:
        trainer.checkpoint("t")
    remote = Store(objects.url, open_remote(objects, tmp_path / "m"))
    here = Store(life.path, LocalFiles()).checkpoint("c").cut["0"].tail
    there = remote.checkpoint("t").cut["0"].tail
    assert here.number == there.number
    assert here.size < there.size
    key = tail_key("0", here.number)
    for _ in range(6):
        life.add(5, to=objects)
    whole = objects.data[key]
    for name in [name for name in objects.data if name.startswith("checkpoints/c/")]:
        del objects.data[name]
    life.push(objects)
    assert objects.data[key] == whole
    for name, rows in wanted.items():
        assert read(objects, tmp_path / "anew", checkpoint=name) == sorted(rows)


def test_a_trainer_may_be_some_minutes_behind(
    tmp_path: pathlib.Path, short_lived: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "KEPT_SECONDS", 600.0)
    life, objects = pushed(tmp_path / "a", 5)
    pusher, before = life.push(objects), sorted(life.window())
    with reader(objects, tmp_path / "m") as trainer:
        for _ in range(6):
            life.add(5)
            pusher.run()
        trainer.checkpoint("t")
        assert sorted(rows_of(trainer)) == before
    monkeypatch.setattr(push, "KEPT_SECONDS", -1.0)
    life.add(5)
    pusher.run()
    assert len(tails(objects)) <= 3
    assert read(objects, tmp_path / "anew", checkpoint="t") == before


def test_a_checkpoint_made_while_a_push_removes_its_tail(tmp_path: pathlib.Path, short_lived: None) -> None:
    """The push has looked for checkpoints already: the trainer sees the newer record, and gives way."""
    life, objects = pushed(tmp_path / "a", 5)
    faulty, removed = FaultyObjects(objects), []
    push = life.push(faulty)
    with reader(objects, tmp_path / "m") as trainer:

        def decide(index: int, request: Any) -> None:
            if request.name == "delete" and tail_number("0", request.key) is not None and not removed:
                removed.append(request.key)
                trainer.checkpoint("t")

        faulty.decide = decide
        for _ in range(6):
            life.add(5)
            push.run()
        assert removed
        assert read(objects, tmp_path / "anew", checkpoint="t") == sorted(rows_of(trainer))


@pytest.mark.long
def test_a_reader_whose_tail_went_reads_the_newer_record(tmp_path: pathlib.Path, short_lived: None) -> None:
    """A tail is left, and removed, at any request of a reader that opens, or refreshes."""
    life, objects = pushed(tmp_path / "a", 5)
    went = 0
    for at in range(0, 40, stride(11, "requests of a reader")):
        faulty, windows = FaultyObjects(objects), [sorted(life.window())]

        def happens(windows: list[Rows] = windows) -> None:
            nonlocal went
            there = tails(objects)
            leave(life, lambda: life.push(objects), windows)
            went += not there & tails(objects)

        faulty.decide = at_request(at, happens)
        with reader(faulty, tmp_path / f"m{at}") as buffer:
            assert sorted(rows_of(buffer)) in windows
            faulty.heal()
            faulty.decide = at_request(at, happens)
            life.add(1, to=objects)
            buffer.refresh()
            faulty.heal()
            buffer.refresh()
            assert sorted(rows_of(buffer)) == sorted(life.window())
    assert went


@pytest.mark.long
def test_a_trainers_checkpoint_whose_tail_is_removed_meanwhile(tmp_path: pathlib.Path, short_lived: None) -> None:
    """It is of a newer record then, whole; one that goes on where a checkpoint stands keeps what that one keeps."""
    life, objects = pushed(tmp_path / "a", 5)
    for at in range(0, 30, stride(11, "requests of a checkpoint")):
        faulty = FaultyObjects(objects)
        with reader(faulty, tmp_path / f"m{at}") as trainer:
            before = sorted(rows_of(trainer))
            faulty.heal()
            windows = [before]
            faulty.decide = at_request(at, functools.partial(leave, life, lambda: life.push(objects), windows))
            trainer.checkpoint("t")
            saved = read(objects, tmp_path / "anew", checkpoint="t")
            assert saved == sorted(rows_of(trainer))
            assert saved in windows
        life.add(5, to=objects)
        with reader(objects, tmp_path / f"m{at}", checkpoint="t") as trainer:
            trainer.checkpoint("u")
            assert sorted(rows_of(trainer)) == saved, "the other keeps its tail"
            trainer.drop_checkpoint("t")
            life.add(5, to=objects)
            assert read(objects, tmp_path / "anew", checkpoint="u") == saved
            trainer.drop_checkpoint("u")


class Collector:
    """A stream without rows under a URL, each commit of which leaves a tail and is pushed at once."""

    def __init__(self, objects: SimulatedObjects, number: int, clock: types.SimpleNamespace) -> None:
        self.objects, self.name, self.due = objects, str(number), clock.now + number % 100 / 10
        self.record, self.left, self.there = Commit.first(number, 1, CAPACITY), push.LeftTails(), [1]

    def commit(self) -> None:
        before = self.record.tail.number
        if before:
            self.left.leave(before)
        newest = Tail(before + 1, 9, self.left.oldest(before + 1))
        self.record = self.record.next(tail=newest)
        self.due += 10

    def put(self) -> None:
        """Put the newest commit, as if all those before had been put, too, and remove tails that nobody names."""
        number, _, oldest = self.record.tail
        for name in range(self.there[-1], number + 1):
            self.objects.put(tail_key(self.name, name), bytes(9))
        path = f"streams/{self.name}"
        self.objects.put(f"{path}/zarr.json", metadata.dump(metadata.group_document(self.record.to_json(), path)))
        named = [document_key("first")] if document_key("first") in self.objects.data else []
        self.objects.delete(tail_key(self.name, name) for name in self.there if name < oldest and not named)
        self.there = [*(name for name in self.there if name >= oldest or named), number]


@pytest.mark.long
@pytest.mark.parametrize("behind", [300, 900])
def test_a_checkpoint_of_a_thousand_streams_succeeds_at_the_first_try(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, behind: float
) -> None:
    """Their collectors commit every ten seconds, and a request takes 10 ms; unless the trainer is too far behind."""
    clock = types.SimpleNamespace(now=0.0)
    monkeypatch.setattr(push, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    _, objects = pushed(tmp_path / "a", 3)
    count = 1000 // stride(5, "streams of a checkpoint")
    streams = [Collector(objects, number, clock) for number in range(1, count + 1)]

    def go_on(seconds: float, put: bool = True) -> None:
        end = clock.now + seconds
        while True:
            clock.now = min(clock.now + 10, end)  # each commit is made when it is due, not all of them at the end
            for stream in streams:
                while stream.due <= clock.now:
                    stream.commit()
                    if put:
                        stream.put()
            if clock.now == end:
                break

    go_on(0, put=False)
    for stream in streams:
        stream.commit()
        stream.put()
    faulty = FaultyObjects(objects)
    files = open_remote(faulty, tmp_path / "m")
    store = Store(objects.url, files)
    checkpoint = Checkpoint("first", store.newest_commits(), {}, {}, 0.0)
    go_on(behind, put=False)
    for stream in streams:
        stream.put()
    lock = threading.Lock()

    def decide(index: int, request: Any) -> None:
        with lock:
            go_on(0.01)

    faulty.decide = decide
    began = clock.now
    assert RemoteCheckpoints(store, files).write(checkpoint, {}, None) is (behind < push.KEPT_SECONDS)
    assert behind > push.KEPT_SECONDS or count / 200 < clock.now - began < 60
    assert (document_key("first") in objects.data) is (behind < push.KEPT_SECONDS)


@pytest.mark.long
def test_a_live_stream_is_pulled(tmp_path: pathlib.Path, short_lived: None) -> None:
    """At any request its writer pushes, leaves tails and makes a checkpoint."""
    life, objects = pushed(tmp_path / "a", 20, "c", 3)
    push = life.push(objects)
    for at in range(0, 60, stride(23, "requests of pull")):
        faulty, windows = FaultyObjects(objects), [sorted(life.window())]
        made = f"at-{at}"

        def happens(made: str = made, windows: list[Rows] = windows) -> None:
            life.checkpoint(made)
            push.run()
            leave(life, push.run, windows)

        faulty.decide = at_request(at, happens)
        target = tmp_path / f"pulled-{at}"
        found = ops.pull(objects.url, target, objects=faulty)
        assert verify(target).ok
        with dr.ReplayBuffer.open(target, mode="r") as buffer:
            assert sorted(rows_of(buffer)) in windows
            assert list(found.streams.values()) == [buffer.stats()["streams"]["0"]["end"]]
        for name in found.checkpoints:
            with dr.ReplayBuffer.open(target, mode="r", checkpoint=name) as buffer:
                assert sorted(rows_of(buffer)) == sorted(life.saved[name][-CAPACITY:])
        if made in life.saved:
            life.buffer.drop_checkpoint(made)
            push.run()


def test_full_chunks_of_a_pushed_stream_wait_for_a_quarter_of_a_shard(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(world.LAYOUT, "shard_rows", {"obs": 64, "action": 64})
    objects = SimulatedObjects()
    with under(objects):
        life = Life(tmp_path / "a", remote=objects.url)
        writer: Any = life.buffer.engine.streams.writer
        life.add(12)
        assert "obs" not in writer.commit_record.arrays
        life.add(4)
        assert writer.commit_record.arrays["obs"].rows == 16
        life.buffer.close()
    assert read(objects, tmp_path / "m") == sorted(life.window())
