"""A fault at every request of every operation: what was pushed stays whole, and trying again ends well."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from helpers import effort
from helpers.patience import PATIENCE
from helpers.testing import FAULTS, FaultyObjects, SimulatedObjects
from remote.world import RUN, SPACES, Life, Rows, lived, observation, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import CheckpointError, CorruptionError, DiskReplayError, InputError, RemoteError
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store


@dataclasses.dataclass
class Scene:
    """A push to be disturbed: what is remote before it, and what a reader may see until it is done."""

    life: Life
    before: SimulatedObjects
    allowed: list[Rows | None]
    checkpoints: dict[str, Rows]
    """Remote, when it is done."""

    @property
    def store(self) -> Store:
        return Store(self.life.path, LocalFiles())

    def pushing(self, objects: Any) -> Push:
        return Push(self.store, self.store.stream_names()[0], objects)

    def done(self) -> Rows:
        return sorted(self.life.window())


def _first(folder: pathlib.Path) -> Scene:
    life, objects = Life(folder / "a"), SimulatedObjects()
    life.add(37)
    return Scene(life, objects, [None, []], {})


def _later(folder: pathlib.Path, rows: int = 3, capacity: int = 60) -> Scene:
    life, objects = pushed(folder / "a", 29, capacity=capacity)
    before = sorted(life.window())
    life.add(rows)
    return Scene(life, objects, [before], {})


def _checkpoint(folder: pathlib.Path) -> Scene:
    scene = _later(folder, 11, 20)
    scene.life.checkpoint("c")
    scene.life.add(40)  # and what it needs would be evicted
    return dataclasses.replace(scene, checkpoints={"c": sorted(scene.life.saved["c"][-20:])})


def _remade(folder: pathlib.Path) -> Scene:
    """A checkpoint is dropped and made again, another is dropped."""
    scene = _checkpoint(folder)
    scene.life.checkpoint("gone")
    scene.life.push(scene.before)
    before = sorted(scene.life.window())
    scene.life.buffer.drop_checkpoint("c")
    scene.life.buffer.drop_checkpoint("gone")
    scene.life.add(2)
    scene.life.checkpoint("c")
    return Scene(scene.life, scene.before, [before], {"c": sorted(scene.life.window())})


def _back(folder: pathlib.Path) -> Scene:
    life, objects = pushed(folder / "a", 21, "c", 27)
    before = sorted(life.window())
    life.go_back("c")
    life.add(23)
    return Scene(life, objects, [before, []], {"c": sorted(life.saved["c"])})


def _resized(folder: pathlib.Path, capacity: int) -> Scene:
    scene = _later(folder, 40, 30)
    scene.life.resize(capacity)
    scene.life.add(15)
    return scene


SCENES: dict[str, Callable[[pathlib.Path], Scene]] = {
    "first": _first, "later": _later, "many shards": lambda folder: _later(folder, 90, 200),
    "eviction": lambda folder: _later(folder, 100, 20), "checkpoint": _checkpoint, "made again": _remade,
    "going back": _back, "grown": lambda folder: _resized(folder, 90), "shrunk": lambda folder: _resized(folder, 7),
}  # fmt: skip


def _places(requests: int, what: str) -> list[tuple[int, str]]:
    all_ = [(index, fault) for index in range(requests) for fault in FAULTS]
    few = len(all_) // effort.stride(50, "requests of remote stores and their faults")
    return random.Random(what).sample(all_, max(few, min(len(all_), 2)))


def _check_end(scene: Scene, objects: SimulatedObjects, folder: pathlib.Path) -> None:
    assert read(objects, folder / "end") == scene.done()
    with reader(objects, folder / "end") as buffer:
        assert sorted(buffer.checkpoints) == sorted(scene.checkpoints)
    for name, rows in scene.checkpoints.items():
        assert read(objects, folder / "end", checkpoint=name) == rows, name
        with reader(objects, folder / "end", checkpoint=name) as then, then.attachment("learner") as learner:
            assert learner.read() == str(scene.life.saved[name]).encode()


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_a_push_that_is_disturbed_is_done_by_the_next_one(name: str, tmp_path: pathlib.Path) -> None:
    scene = SCENES[name](tmp_path)
    counted = FaultyObjects(scene.before.copy())
    scene.pushing(counted).run()
    _check_end(scene, counted.inner, tmp_path)
    for number, (index, fault) in enumerate(_places(len(counted.requests), name)):
        objects = scene.before.copy()
        faulty = FaultyObjects(objects)
        faulty.fail_at(index, fault)
        push = scene.pushing(faulty)
        try:
            push.run()
        except RemoteError as error:
            assert not isinstance(error, dr.errors.RemoteConflictError), (index, fault)  # noqa: PT017  # it may pass
        where = name, index, fault, faulty.requests[index]
        mirror = tmp_path / f"m{number}"
        assert read(objects, mirror) in [*scene.allowed, scene.done()], where
        again = objects.copy()
        push.run()  # the thread tries again
        _check_end(scene, objects, mirror)
        if number % 2:
            scene.pushing(again).run()  # a process that started anew
            _check_end(scene, again, mirror)
        shutil.rmtree(mirror)
    scene.life.buffer.close()


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
def test_a_reader_between_any_two_requests_sees_whole_commits(name: str, tmp_path: pathlib.Path) -> None:
    scene = SCENES[name](tmp_path)
    objects, allowed = scene.before.copy(), [*scene.allowed, scene.done()]
    faulty = FaultyObjects(objects)
    stale = reader(objects, tmp_path / "stale", cache_bytes=0) if read(objects, tmp_path / "m") is not None else None
    items = stale.items() if stale is not None else ()
    first = sorted(rows_of(stale)) if stale is not None else None
    following = reader(objects, tmp_path / "following") if stale is not None else None
    seen = 0
    gone = 0

    def look(index: int, request: Any) -> None:
        nonlocal seen, gone
        every = effort.stride(23, "moments of a push that are looked at")
        if index % every:
            return
        mirror = tmp_path / f"m{index}"  # nothing is there yet
        assert read(objects, mirror) in allowed, request
        shutil.rmtree(mirror)
        seen += 1
        if stale is not None:  # one that stands where it was, and must download what it reads
            for copy in (tmp_path / "stale").iterdir():
                copy.unlink()
            for stream in stale.engine.streams:
                stream.disk.close_files()
            try:
                assert sorted(rows_of(stale, items)) == first, request
            except (CorruptionError, InputError):  # it says so, and stands at the newer commit from then on
                gone += 1
        if following is not None:
            following.refresh()
            assert sorted(rows_of(following)) in allowed, request

    faulty.decide = look
    scene.pushing(faulty).run()
    assert seen
    assert gone == 0 or name == "going back"  # what a reader stands at is never removed but by that
    if following is not None:
        following.refresh()
        assert sorted(rows_of(following)) == scene.done()
        following.close()
    if stale is not None:
        stale.close()
    scene.life.buffer.close()


@pytest.mark.long
def test_a_disturbed_join_gives_no_number_twice(tmp_path: pathlib.Path) -> None:
    first, base = pushed(tmp_path / "a", 20)

    def join(objects: Any, path: pathlib.Path) -> Life:
        with under(objects):
            buffer = dr.ReplayBuffer.open(path, remote=objects.url, **RUN)
        buffer.close()
        return lived(path, 7, writer=1)

    counted = FaultyObjects(base.copy())
    join(counted, tmp_path / "b").buffer.close()
    for number, (index, fault) in enumerate(_places(len(counted.requests), "joining")):
        objects = base.copy()
        faulty = FaultyObjects(objects)
        faulty.fail_at(index, fault)
        path = tmp_path / f"b{number}"
        try:
            life = join(faulty, path)
        except RemoteError:
            faulty.heal()
            life = join(faulty, path)
        life.push(objects)
        with under(objects):
            other = dr.ReplayBuffer.open(tmp_path / f"c{number}", remote=objects.url, **RUN)
            other.push(PATIENCE)
            other.close()
        assert read(objects, tmp_path / f"m{number}") == sorted([*first.window(), *life.window()]), (index, fault)
        with reader(objects, tmp_path / f"m{number}") as buffer:
            assert len(buffer.stats()["streams"]) == 3
        life.buffer.close()
    first.buffer.close()


def test_making_a_remote_store_that_is_disturbed(tmp_path: pathlib.Path) -> None:
    def make(objects: Any, path: pathlib.Path) -> dr.ReplayBuffer:
        with under(objects):
            return dr.ReplayBuffer.open_or_create(path, *SPACES, capacity=50, remote=objects.url, **RUN)

    for number, (index, fault) in enumerate(_places(6, "making")):
        objects = SimulatedObjects()
        faulty = FaultyObjects(objects)
        faulty.fail_at(index, fault)
        try:
            buffer = make(faulty, tmp_path / f"a{number}")
        except RemoteError:
            faulty.heal()
            buffer = make(faulty, tmp_path / f"a{number}")
        buffer.add(observation(0, 0, 0), 0, 0.0, observation(0, 0, 1), False, False)
        buffer.push(PATIENCE)
        buffer.close()
        assert read(objects, tmp_path / f"m{number}") == [(0, 0, 0, 0)], (index, fault)


def _trainer(folder: pathlib.Path) -> tuple[Life, SimulatedObjects]:
    life, objects = pushed(folder / "a", 30)
    life.buffer.close()
    return life, objects


def test_a_trainers_checkpoint_that_is_disturbed(tmp_path: pathlib.Path) -> None:
    life, base = _trainer(tmp_path)

    def write(objects: Any, mirror: pathlib.Path, before: Callable[[], None] = lambda: None) -> list[Any]:
        with reader(objects, mirror, sampler=dr.Proportional(), seed=1) as buffer:
            buffer.update_priorities(buffer.sample(8).index, [float(n + 1) for n in range(8)])
            before()
            try:
                buffer.checkpoint("t", {"step": 1})
            except RemoteError:
                objects.heal()
                try:
                    buffer.checkpoint("t", {"step": 1})
                except CheckpointError:
                    assert "t" in buffer.checkpoints
            return [buffer.sample(8).index.tolist() for _ in range(3)]

    counted = FaultyObjects(base.copy())
    write(counted, tmp_path / "m", counted.heal)
    for number, (index, fault) in enumerate(_places(len(counted.requests), "a trainer's checkpoint")):
        faulty = FaultyObjects(base.copy())
        drawn = write(faulty, tmp_path / "m", lambda: faulty.fail_at(index, fault))  # noqa: B023
        faulty.heal()
        with reader(faulty, tmp_path / f"m{number}", checkpoint="t") as buffer:
            assert [buffer.sample(8).index.tolist() for _ in range(3)] == drawn, (index, fault)
            assert sorted(rows_of(buffer)) == sorted(life.window())
    whole = counted.inner.copy()
    counted = FaultyObjects(whole.copy())
    with reader(counted, tmp_path / "d") as buffer:
        counted.heal()
        buffer.drop_checkpoint("t")
    for index, fault in _places(len(counted.requests), "a trainer's drop"):
        faulty = FaultyObjects(whole.copy())
        with reader(faulty, tmp_path / "d") as buffer:
            faulty.fail_at(index, fault)
            try:
                buffer.drop_checkpoint("t")
            except RemoteError:
                faulty.heal()
                try:
                    buffer.drop_checkpoint("t")
                except CheckpointError:
                    assert "t" not in buffer.checkpoints
            assert buffer.checkpoints == []
            assert sorted(rows_of(buffer)) == sorted(life.window())


@pytest.mark.long
def test_reading_that_is_disturbed_reads_on(tmp_path: pathlib.Path) -> None:
    life, base = pushed(tmp_path / "a", 30)
    earlier, grown = sorted(life.window()), base.copy()
    life.add(20)
    life.push(grown)
    life.buffer.close()

    def look(objects: FaultyObjects, mirror: pathlib.Path) -> None:
        def tried(call: Callable[[], Any]) -> Any:
            try:
                return call()
            except RemoteError:
                return call()
            except DiskReplayError as error:
                raise AssertionError(f"no fault of the network is {type(error).__name__}: {error}") from error

        buffer = tried(lambda: reader(objects, mirror))
        assert tried(lambda: sorted(rows_of(buffer))) == earlier
        objects.inner = grown
        tried(buffer.refresh)
        assert tried(lambda: sorted(rows_of(buffer))) == sorted(life.window())
        buffer.close()

    counted = FaultyObjects(base)
    look(counted, tmp_path / "m")
    for number, (index, fault) in enumerate(_places(len(counted.requests), "reading")):
        faulty = FaultyObjects(base)
        faulty.fail_at(index, fault)
        look(faulty, tmp_path / f"m{number}")
