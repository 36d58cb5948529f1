"""`gc` removes what nothing needs, and nothing else; `pull` copies what there is."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import stride
from helpers.testing import FaultyObjects, SimulatedObjects

import diskreplay as dr
from diskreplay.engine.run import engine_options
from diskreplay.errors import InputError, RemoteError
from diskreplay.ops import remote as ops
from diskreplay.ops.verify import verify
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.place import open_remote
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

DAY = 86_400.0
LAYOUT: dict[str, Any] = {"shard_rows": {"obs": 2, "action": 16, "reward": 16}, "chunk_rows": {"obs": 2, "action": 8}}


class Writer:
    """A local store of 40 transitions whose rewards are the numbers of their rows, and where it is pushed to."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.objects = SimulatedObjects()
        box = spaces.Box(0, 255, (3,), np.uint8)
        self.buffer = dr.ReplayBuffer.create(folder / "a.replay", box, spaces.Discrete(3), capacity=40, **LAYOUT)
        self.push = Push(Store(self.buffer.path, LocalFiles()), "0", self.objects)
        self.rows = 0

    def add(self, count: int) -> None:
        for _ in range(count):
            obs, after = np.full(3, self.rows % 250, np.uint8), np.full(3, (self.rows + 1) % 250, np.uint8)
            self.buffer.add(obs, self.rows % 3, float(self.rows), after, False, False)
            self.rows += 1
        self.buffer.commit()
        self.push.run()

    def files(self, mirror: str = "mirror") -> Any:
        return open_remote(self.objects, self.folder / mirror)

    def reader(self, mirror: str = "mirror", **options: Any) -> dr.ReplayBuffer:
        files = self.files(mirror)
        return dr.ReplayBuffer(Store(files.url, files), stream=None, **options)

    def rewards(self) -> list[float]:
        with self.reader("anew") as reader:
            return list(reader.get(reader.items()).reward)


@pytest.fixture
def writer(tmp_path: pathlib.Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.buffer.close()


def test_what_is_below_the_window_goes_after_its_time(writer: Writer) -> None:
    writer.add(50)
    writer.add(100)
    untouched = dict(writer.objects.data)
    assert collect_garbage(writer.files(), 0, dry_run=True).removed > 20
    assert writer.objects.data == untouched
    before = set(untouched)
    first = collect_garbage(writer.files(), DAY, now=1000.0)
    assert first.removed == 0
    assert first.waiting > 20
    assert before <= set(writer.objects.data)
    assert collect_garbage(writer.files(), DAY, now=1000.0 + DAY - 1) == first
    last = collect_garbage(writer.files(), DAY, now=1000.0 + DAY)
    assert (last.removed, last.waiting) == (first.waiting, 0)
    assert len(writer.objects.data) < len(before) - 20
    assert writer.rewards() == list(range(110, 150))
    writer.add(40)
    assert writer.rewards() == list(range(150, 190))


@pytest.mark.parametrize("of", ["the store", "a trainer"])
def test_what_a_checkpoint_needs_stays(writer: Writer, of: str) -> None:
    writer.add(50)
    if of == "the store":
        writer.buffer.checkpoint("kept")
        writer.push.run()
    else:
        with writer.reader("trainer", run=engine_options({"seed": 1})) as trainer:
            trainer.checkpoint("kept")
    writer.add(200)
    collect_garbage(writer.files(), 0)
    files = writer.files("anew")
    store = Store(files.url, files)
    with dr.ReplayBuffer(store, stream=None, checkpoint=store.checkpoint("kept")) as reader:
        assert list(reader.get(reader.items()).reward) == list(range(10, 50))
    assert writer.rewards() == list(range(210, 250))


@pytest.mark.long
def test_a_checkpoint_and_gc_at_the_same_time(writer: Writer) -> None:
    """At each request of `gc` a trainer that stands at dead rows makes a checkpoint: one of the two gives way."""
    writer.add(50)
    before = dict(writer.objects.data)
    writer.add(200)
    after = dict(writer.objects.data)
    outcomes = set()
    for at in range(0, 100, stride(5, "requests of gc")):
        objects = SimulatedObjects(data=before)
        there = open_remote(objects, writer.folder / "trainer")
        with dr.ReplayBuffer(Store(there.url, there), stream=None, run=engine_options({"seed": 1})) as trainer:
            objects.data = dict(after)
            faulty = FaultyObjects(objects)

            def decide(index: int, request: Any, at: int = at, trainer: dr.ReplayBuffer = trainer) -> None:
                if index == at:
                    trainer.checkpoint("kept")

            faulty.decide = decide
            collect_garbage(open_remote(faulty, writer.folder / "gc"), 0)
        files = open_remote(objects, writer.folder / "anew")
        store = Store(files.url, files)
        for name in store.checkpoint_names():
            with dr.ReplayBuffer(store, stream=None, checkpoint=store.checkpoint(name)) as reader:
                found = list(reader.get(reader.items()).reward)
            assert found in (list(range(10, 50)), list(range(210, 250)))
            outcomes.add(found[0])
        if len(faulty.requests) <= at:
            break
    assert outcomes == {10, 210}


@pytest.mark.filterwarnings("ignore:objects at .* have names like a store's:diskreplay.errors.RemoteWarning")
def test_what_is_not_the_store_s_stays(writer: Writer) -> None:
    foreign = {
        "notes.txt": b"mine", "streams/0/obs/c.0.0.0.bak": b"mine", "streams/0/obs/readme": b"mine",
        "streams/other/x": b"mine", "elsewhere/streams/0/obs/c.0.0.0": b"mine",
    }  # fmt: skip
    writer.add(50)
    writer.objects.data |= foreign
    writer.add(200)
    collect_garbage(writer.files(), 0)
    assert {key: writer.objects.data.get(key) for key in foreign} == foreign


def test_arrays_of_a_checkpoint_without_a_document_go(writer: Writer) -> None:
    writer.add(50)
    writer.objects.data["checkpoints/half/priorities/c.0.0"] = b"x"
    assert collect_garbage(writer.files(), 0).removed == 1
    assert not any(key.startswith("checkpoints/half") for key in writer.objects.data)


@pytest.mark.parametrize("note", [b"", b"[]", b"{", b'{"since": "b", "going": 7}', b"\xff", b"[" * 5000])
def test_a_note_that_cannot_be_read_begins_anew(writer: Writer, note: bytes) -> None:
    writer.add(50)
    writer.add(100)
    writer.objects.data["streams/0/start/__dead.json"] = note
    found = collect_garbage(writer.files(), DAY, now=5.0)
    assert found.removed == 0
    assert found.waiting > 20
    assert len(json.loads(writer.objects.data["streams/0/start/__dead.json"])["since"]) == found.waiting


@pytest.mark.long
@pytest.mark.parametrize("fault", ["refused", "lost", "cut"])
def test_a_fault_at_any_request_of_gc_harms_nothing(writer: Writer, fault: Any) -> None:
    writer.add(50)
    writer.add(100)
    data = dict(writer.objects.data)
    tried = 0
    for at in range(0, 1000, stride(11, "requests that fail")):
        objects = SimulatedObjects(data=data)
        faulty = FaultyObjects(objects)
        faulty.fail_at(at, fault)
        try:
            collect_garbage(open_remote(faulty, writer.folder / "gc"), 0)
            failed = False
        except RemoteError:
            failed = True
        writer.objects.data = objects.data
        assert writer.rewards() == list(range(110, 150)), at
        collect_garbage(writer.files(), 0)
        assert writer.rewards() == list(range(110, 150)), at
        tried += failed
        if len(faulty.requests) <= at:
            break
    assert tried > 2


def test_pull_copies_everything(writer: Writer, tmp_path: pathlib.Path) -> None:
    writer.add(50)
    writer.buffer.checkpoint("c", {"step": 7})
    writer.add(30)
    with writer.reader("trainer", run=engine_options({"seed": 1}), sampler=dr.Proportional()) as trainer:
        trainer.checkpoint("t")
        drawn = [list(trainer.sample(8).index) for _ in range(3)]
    first = "zarr.json", "streams/0/start/root.json", "streams/0/zarr.json"
    assert [key for key in writer.objects.data if key in first] == list(first)  # in the order of the puts
    found = ops.pull(writer.objects.url, tmp_path / "copy.replay", objects=writer.objects)
    assert (found.streams, set(found.checkpoints)) == ({"0": 80}, {"c", "t"})
    assert verify(found.path).ok
    pathlib.Path(found.path, "zarr.json").unlink()
    with pytest.warns(dr.errors.DamageWarning):
        copy = dr.ReplayBuffer.open(found.path)
    with copy:
        assert list(copy.get(copy.items()).reward) == list(range(40, 80))
        assert copy.checkpoint_metadata("c") == {"step": 7}
    with dr.ReplayBuffer.open(found.path, mode="r", checkpoint="t") as again:
        assert [list(again.sample(8).index) for _ in range(3)] == drawn
    with pytest.raises(InputError, match="exists"):
        ops.pull(writer.objects.url, found.path, objects=writer.objects)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["refused", "cut"])
def test_a_fault_at_any_request_of_pull_leaves_nothing_or_all(
    writer: Writer, tmp_path: pathlib.Path, fault: Any
) -> None:
    writer.add(50)
    failed = 0
    for at in range(0, 1000, stride(11, "requests that fail")):
        faulty = FaultyObjects(writer.objects.copy())
        faulty.fail_at(at, fault)
        target = tmp_path / f"copy-{at}.replay"
        try:
            ops.pull(writer.objects.url, target, objects=faulty)
        except RemoteError:
            failed += 1
            assert not target.exists()
            assert not list(tmp_path.glob(f".copy-{at}.*"))
            ops.pull(writer.objects.url, target, objects=faulty.inner)
            continue
        with dr.ReplayBuffer.open(target, mode="r") as copy:
            assert list(copy.get(copy.items()).reward) == list(range(10, 50))
        if 0 < len(faulty.requests) <= at:
            break
    assert failed


def test_push_says_who_writes(writer: Writer) -> None:
    writer.add(10)
    with pytest.raises(dr.errors.LockedError, match="being written by"):
        ops.push(writer.buffer.path, writer.objects.url, SimulatedObjects())
    writer.buffer.close()
    there = SimulatedObjects()
    assert ops.push(writer.buffer.path, there.url, there).streams == {"0": 10}
    assert ops.push(writer.buffer.path, there.url, there).sent_bytes == 0
