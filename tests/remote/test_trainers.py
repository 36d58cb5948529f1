"""Trainers, collectors and their checkpoints under one URL; what stands in the way of a push is said, and goes."""

from __future__ import annotations

import itertools
import pathlib
import pickle
import shutil
import time
import warnings
from typing import Any

import numpy as np
import pytest
from helpers.effort import stride
from helpers.patience import PATIENCE
from helpers.testing import FaultyObjects, SimulatedObjects
from remote.world import LAYOUT, RUN, SPACES, Life, lived, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import CheckpointError, RemoteConflictError, RemoteWarning
from diskreplay.ops import remote as ops
from diskreplay.ops.verify import verify
from diskreplay.remote import ledger
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.place import open_remote
from diskreplay.storage.store import Store


def _prioritized(objects: Any, mirror: pathlib.Path) -> dr.ReplayBuffer:
    buffer = reader(objects, mirror, sampler=dr.Proportional(), seed=1)
    ids = buffer.items()
    buffer.update_priorities(ids, np.arange(len(ids)) + float(len(mirror.name)))
    return buffer


def test_a_refused_checkpoint_leaves_other_trainers_whole(tmp_path: pathlib.Path) -> None:
    _, objects = pushed(tmp_path / "a", 30)
    with _prioritized(objects, tmp_path / "behind") as behind, _prioritized(objects, tmp_path / "m") as first:
        first.checkpoint("best")
        drawn = [list(first.sample(8).index) for _ in range(3)]
        with pytest.raises(CheckpointError, match="already"):
            behind.checkpoint("best")
    with reader(objects, tmp_path / "again", checkpoint="best") as again:
        assert [list(again.sample(8).index) for _ in range(3)] == drawn


@pytest.mark.long
def test_gc_within_a_checkpoint_leaves_it_whole_or_gone(tmp_path: pathlib.Path) -> None:
    life, base = pushed(tmp_path / "a", 30)
    made = 0
    for at in range(60):
        objects = base.copy()
        faulty = FaultyObjects(objects)

        def decide(index: int, request: Any, at: int = at, objects: SimulatedObjects = objects) -> None:
            if index == at:
                collect_garbage(open_remote(objects, tmp_path / "gc"), 0)

        with _prioritized(faulty, tmp_path / f"m{at}") as trainer:
            faulty.heal()
            faulty.decide = decide
            trainer.checkpoint("t")
        with reader(objects, tmp_path / "again", checkpoint="t") as again:
            assert sorted(rows_of(again)) == sorted(life.window())
        made += 1
        if len(faulty.requests) <= at:
            break
    assert made > 5


@pytest.mark.long
def test_a_kill_within_create_leaves_a_store_that_can_be_pushed(tmp_path: pathlib.Path) -> None:
    objects, machine = SimulatedObjects(), tmp_path / "machine"
    machine.mkdir()
    faulty = FaultyObjects(objects)
    taken: list[tuple[pathlib.Path, Any]] = []

    def decide(index: int, request: Any) -> None:  # before each request: what a kill would leave
        left = tmp_path / str(len(taken))
        shutil.copytree(machine, left)
        taken.append((left, objects.copy()))

    faulty.decide = decide
    with under(faulty):
        dr.ReplayBuffer.create(machine / "a", *SPACES, capacity=60, remote=objects.url, **LAYOUT, **RUN).close()
    for left, there in taken[:: stride(7, "kills while a store is made")]:
        with under(there):
            for path in (tmp_path / f"{left.name} other", left / "a"):  # another machine's is first
                life = lived(path, 3, remote=there.url)
                life.buffer.push(PATIENCE)
                life.buffer.close()
        with reader(there, tmp_path / f"{left.name} m") as buffer:
            assert len(rows_of(buffer)) == 6
    assert len(taken) > 10


@pytest.mark.long("the other tests of this module")
def test_who_replaces_a_checkpoint_has_one_at_any_time(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 20, "0")
    places = 0
    newest = 0
    for at in range(60):
        # One is replaced before the push, and two at requests of it.
        faulty = FaultyObjects(objects)

        def replace() -> None:
            nonlocal newest
            life.add(1)
            life.checkpoint(str(newest + 1))
            life.buffer.drop_checkpoint(str(newest))
            newest += 1

        def decide(index: int, request: Any, at: int = at) -> None:
            if index in (at, at + 3):
                replace()
            assert Store(objects.url, open_remote(objects, tmp_path / "m")).checkpoints(), (at, index)

        faulty.decide = decide
        replace()
        life.push(faulty)
        if len(faulty.requests) <= at:
            break
        places += 1
        life.push(objects)
        there = Store(objects.url, open_remote(objects, tmp_path / "m")).checkpoints()
        assert [one.name for one in there] == [str(newest)]
    assert places > 10


def test_what_stood_in_the_way_of_a_push_is_looked_for_again(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    with under(objects):
        life = lived(tmp_path / "a", 20, "c", 10, remote=objects.url)
        life.buffer.push(PATIENCE)
        with reader(objects, tmp_path / "t", seed=1) as trainer:
            life.go_back("c")
            trainer.checkpoint("held")  # after it went back, and before that is pushed
            life.buffer.close()
            life.buffer = dr.ReplayBuffer.open(life.path, remote=objects.url, **RUN)
            stop = time.monotonic() + PATIENCE
            while not life.buffer.stats()["remote"]["error"]:
                assert time.monotonic() < stop
                time.sleep(0.01)
            with pytest.warns(RemoteWarning, match="held"):
                life.add(1)
            for _ in range(2):
                with pytest.raises(RemoteConflictError, match="held"):
                    life.buffer.push(PATIENCE)
            trainer.drop_checkpoint("held")
        life.buffer.push(PATIENCE)
        assert read(objects, tmp_path / "m") == sorted(life.window())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            life.buffer.close()


def test_a_store_of_two_streams_goes_back_to_its_own_checkpoint(tmp_path: pathlib.Path) -> None:
    life, objects = lived(tmp_path / "a", 10), SimulatedObjects()
    second = dr.ReplayBuffer.open(life.path, stream="second", **RUN)
    life.buffer.refresh()
    life.checkpoint("c")
    life.push(objects, "0")
    life.push(objects, "second")
    life.push(objects, "0")
    second.close()
    life.add(5)
    life.go_back("c")
    life.add(3)
    life.buffer.close()
    ops.push(life.path, objects.url, objects)
    assert read(objects, tmp_path / "m") == sorted(life.window())


def test_a_collector_that_joined_and_has_no_rows_is_whole(tmp_path: pathlib.Path) -> None:
    _, objects = pushed(tmp_path / "a", 10)
    with under(objects):
        joined = dr.ReplayBuffer.open_or_create(tmp_path / "b", *SPACES, capacity=60, remote=objects.url, **RUN)
        assert (pathlib.Path(joined.path, "streams", str(joined.stream), "start") / ledger.NAME).exists()
        joined.push(PATIENCE)
        joined.close()
        assert len(Store(objects.url, open_remote(objects, tmp_path / "m")).stream_names()) == 2
        assert verify(objects.url, files=None).ok
    assert sorted(ops.pull(objects.url, tmp_path / "copy", objects=objects).streams.values()) == [0, 10]


def test_a_reader_of_a_url_is_copied(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 20)
    with under(objects), reader(objects, tmp_path / "m", seed=3) as buffer, pickle.loads(pickle.dumps(buffer)) as other:
        assert sorted(rows_of(other)) == sorted(life.window())
        assert other.engine.store.files.mirror.directory == str(tmp_path / "m")


def test_an_undone_put_is_no_checkpoint_of_another(tmp_path: pathlib.Path) -> None:
    """Regression: it was said that there is a checkpoint of that name. S3 answers 409 so, and asks to try again."""
    life, objects = Life(tmp_path / "a"), FaultyObjects(SimulatedObjects())
    life.add(20, to=objects)
    with reader(objects, tmp_path / "m", sampler=dr.Proportional()) as trainer:
        for number in range(3):
            objects.heal()
            puts = itertools.count()
            objects.decide = lambda _, one: "taken" if one.name == "put" and next(puts) == number else None  # noqa: B023
            trainer.checkpoint(f"c{number}")
            assert next(puts) > number
        assert list(trainer.checkpoints) == ["c0", "c1", "c2"]


def test_a_network_that_is_back_is_noticed_by_who_waits(tmp_path: pathlib.Path) -> None:
    objects = FaultyObjects(SimulatedObjects())
    with under(objects):
        life = lived(tmp_path / "a", 5, remote=objects.url, push_seconds=0.1)
        life.buffer.push(PATIENCE)
        objects.fail_at(0, times=None)
        for _ in range(4):
            life.add(1)
        stop = time.monotonic() + PATIENCE
        while not life.buffer.stats()["remote"]["failures"]:
            assert time.monotonic() < stop
            time.sleep(0.01)
        objects.heal()
        life.buffer.push(PATIENCE)
        assert read(objects, tmp_path / "m") == sorted(life.window())
        life.buffer.close()
