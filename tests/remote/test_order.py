"""Checkpoints of a store under a URL: one order for everybody, and whose is "latest", whatever the clocks say."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest
from helpers.clocks import DAY, Clock
from helpers.line import rows_in
from helpers.patience import PATIENCE
from helpers.testing import FaultyObjects, SimulatedObjects
from remote.world import CAPACITY, LAYOUT, RUN, SPACES, Life, lived, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import CheckpointError, RemoteConflictError, RemoteError
from diskreplay.ops import remote as ops
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.place import open_remote
from diskreplay.remote.push import Push
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Checkpoint, Store, newest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def remote_checkpoints(objects: SimulatedObjects, mirror: pathlib.Path) -> list[Checkpoint]:
    """Those under the URL, as who looks now orders them."""
    return Store(objects.url, open_remote(objects, mirror)).checkpoints()


def test_a_trainer_goes_on_though_its_clock_was_set_back(tmp_path: pathlib.Path, clock: Clock) -> None:
    _, objects = pushed(tmp_path / "a", 30)
    with reader(objects, tmp_path / "m", sampler=dr.Proportional(), seed=1) as trainer:
        for update in (100, 200, 300):  # no rows in between
            trainer.update_priorities(trainer.items(), np.arange(30) + float(update))
            trainer.checkpoint(f"trainer-{update}", metadata={"update": update})
            clock.now -= 60.0
        trainer.drop_checkpoint("trainer-100")
        assert trainer.checkpoints == ["trainer-200", "trainer-300"]
        drawn = trainer.sample(8).index.tolist()
    with reader(objects, tmp_path / "elsewhere", checkpoint="latest") as again:
        assert again.checkpoint_metadata(again.checkpoints[-1])["update"] == 300
        assert again.sample(8).index.tolist() == drawn


def test_a_trainer_goes_on_from_its_own_beside_collectors(tmp_path: pathlib.Path) -> None:
    life, objects = lived(tmp_path / "a", 10), SimulatedObjects()
    for name in ("c1", "c2", "c3"):
        life.checkpoint(name)
    life.push(objects)
    with reader(objects, tmp_path / "m", checkpoint="latest", seed=1) as trainer:
        assert trainer.engine.stays_at is not None
        assert trainer.engine.stays_at.name == "c3", "there is none of a reader yet"
        trainer.checkpoint("trainer")
        assert trainer.checkpoints == ["c1", "c2", "c3", "trainer"]
    life.checkpoint("c4")
    life.checkpoint("c5")
    life.push(objects)
    with reader(objects, tmp_path / "m", checkpoint="latest") as trainer:
        assert trainer.engine.stays_at is not None
        assert trainer.engine.stays_at.name == "trainer"
        assert trainer.checkpoints == ["c1", "c2", "c3", "c4", "trainer", "c5"], "4 has been given twice: then by name"
    made = [(one.name, one.number, one.maker) for one in remote_checkpoints(objects, tmp_path / "m2")]
    assert made == [
        ("c1", 1, "0"),
        ("c2", 2, "0"),
        ("c3", 3, "0"),
        ("c4", 4, "0"),
        ("trainer", 4, None),
        ("c5", 5, "0"),
    ]


def test_a_checkpoint_that_is_made_again_is_pushed_anew(tmp_path: pathlib.Path, clock: Clock) -> None:
    """Also within the resolution of the clock, which stands still here."""
    life, objects = lived(tmp_path / "a", 10), SimulatedObjects()
    life.buffer.checkpoint("best", {"score": 1})
    life.push(objects)
    life.add(10)
    life.buffer.drop_checkpoint("best")
    life.buffer.checkpoint("best", {"score": 2})
    life.push(objects)
    (found,) = remote_checkpoints(objects, tmp_path / "m")
    assert (found.metadata, found.cut["0"].end) == ({"score": 2}, 20)


def test_a_dropped_remote_checkpoint_comes_before_the_newer_one(tmp_path: pathlib.Path, clock: Clock) -> None:
    """Where its maker dropped its newest, made another, and the push ended before it removed the first."""
    life, objects = lived(tmp_path / "a", 10, "z"), SimulatedObjects()
    push = life.push(objects)
    life.buffer.drop_checkpoint("z")
    clock.now -= DAY
    life.checkpoint("a")
    push._checkpoints._remove = lambda names, there: None  # type: ignore[method-assign]
    push.run()
    assert [one.name for one in remote_checkpoints(objects, tmp_path / "m")] == ["z", "a"]
    life.push(objects)
    assert [one.name for one in remote_checkpoints(objects, tmp_path / "m")] == ["a"]


TRAINER = None
"""As the maker of a checkpoint."""


class World:
    """Two writers of one store that is pushed, and a trainer of its URL; which checkpoints each made, in turn."""

    def __init__(self, folder: pathlib.Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.objects = SimulatedObjects()
        self.made: dict[str | None, list[str]] = {"0": [], "1": [], TRAINER: []}
        """Ids."""
        self.names = [f"name-{number}" for number in range(8)]
        self.writers = {stream: self.opened(stream) for stream in "01"}
        for stream in "01":
            self.add(stream)
            self.push(stream)
        self.trainer = reader(self.objects, folder / "mirror", seed=seed)
        self.other = dr.ReplayBuffer.create(folder / "b", *SPACES, capacity=CAPACITY, **LAYOUT, **RUN)
        """Of a mixture with the first stream."""
        self.mixed: list[str] = []
        """Ids of the mixture's checkpoints."""

    def close(self) -> None:
        for buffer in (*self.writers.values(), self.trainer, self.other):
            buffer.close()

    def opened(self, stream: str, **options: Any) -> dr.ReplayBuffer:
        return dr.ReplayBuffer.open_or_create(
            self.folder / "a", *SPACES, capacity=CAPACITY, stream=stream, **LAYOUT, **RUN, **options
        )

    def here(self) -> list[Checkpoint]:
        return Store(str(self.folder / "a"), LocalFiles()).checkpoints()

    def there(self) -> list[Checkpoint]:
        return remote_checkpoints(self.objects, self.folder / "looks")

    # What happens

    def add(self, stream: str) -> None:
        zeros = np.zeros(SPACES[0].shape, np.uint8)
        for _ in range(self.random.randint(1, 9)):
            self.writers[stream].add(zeros, 0, 0.0, zeros, False, self.random.random() < 0.2)
        self.writers[stream].commit()

    def free(self) -> list[str]:
        return [name for name in self.names if name not in {one.name for one in (*self.here(), *self.there())}]

    def checkpoint(self, stream: str) -> None:
        if names := self.free():
            name, keep = self.random.choice(names), self.random.choice([None, 1, 2])
            self.writers[stream].checkpoint(name, keep=keep)
            made = [one for one in self.here() if one.maker == stream]
            self.made[stream].append(made[-1].id)
            assert made[-1].name == name
            assert keep is None or sum(one.kept for one in made) <= keep

    def mix(self, stream: str) -> None:
        """A mixture of the first stream and another store makes a checkpoint."""
        if names := self.free():
            mixture, name = dr.Mixture([self.writers["0"], self.other]), self.random.choice(names)
            mixture.checkpoint(name)
            made = {one.id: one.name for one in self.here()}
            self.mixed.append(next(id for id, given in made.items() if given == name))
            self.made["0"].append(self.mixed[-1])
            assert mixture.checkpoints == [made[one] for one in self.mixed if one in made]

    def drop(self, stream: str) -> None:
        if found := self.here():
            self.writers[stream].drop_checkpoint(self.random.choice(found).name)

    def refresh(self, stream: str) -> None:
        self.writers[stream].refresh()

    def push(self, stream: str) -> None:
        try:
            Push(Store(str(self.folder / "a"), LocalFiles()), stream, self.objects).run()
        except RemoteConflictError:  # it went back, and a trainer's checkpoint needs the rows
            for one in self.there():
                if one.maker is TRAINER:
                    self.trainer.drop_checkpoint(one.name)
            Push(Store(str(self.folder / "a"), LocalFiles()), stream, self.objects).run()

    def start_again(self, stream: str) -> None:
        self.writers[stream].close()
        own = [one for one in self.here() if one.maker == stream]
        try:
            self.writers[stream] = self.opened(stream, checkpoint="latest")
        except CheckpointError:
            needed = [one.cut[stream].end for one in self.here() if stream in one.cut]
            self.writers[stream] = self.opened(stream)
            assert max(needed) > own[-1].cut[stream].end, "nothing was in the way"
        else:
            end = self.writers[stream].stats()["streams"][stream]["end"]
            assert not own or end == own[-1].cut[stream].end

    def train(self, stream: str) -> None:
        """The trainer goes on to newer rows, makes a checkpoint, drops one, or starts again."""
        step = self.random.randrange(4)
        mine = [one for one in self.there() if one.maker is TRAINER]
        if step == 0:
            self.trainer.refresh()
        elif step == 1 and (names := self.free()):
            name = self.random.choice(names)
            self.trainer.checkpoint(name)
            self.made[TRAINER].append(next(one.id for one in self.there() if one.name == name))
        elif step == 2 and mine:
            self.trainer.drop_checkpoint(self.random.choice(mine).name)
        elif step == 3:
            self.trainer.close()
            self.trainer = reader(self.objects, self.folder / "mirror", checkpoint="latest", or_last_commit=True)
            if mine:
                assert self.trainer.engine.stays_at is not None
                assert self.trainer.engine.stays_at.id == mine[-1].id

    def collect(self, stream: str) -> None:
        collect_garbage(open_remote(self.objects, self.folder / "gc"), 3600.0)

    # What must hold

    def check(self) -> None:
        here, there = self.here(), self.there()
        for found in (here, there):
            ids = [one.id for one in found]
            for maker, made in self.made.items():
                alive = [one for one in made if one in ids]
                assert [one.id for one in found if one.maker == maker] == alive, "not in the order they were made in"
                latest = newest(found, maker)
                if alive:
                    assert latest is not None
                    assert latest.id == alive[-1]
        both = {one.id for one in here} & {one.id for one in there}
        assert [one.id for one in here if one.id in both] == [one.id for one in there if one.id in both]


@pytest.mark.parametrize(
    ("seed", "steps"), [(0, 12), *(pytest.param(seed, 80, marks=pytest.mark.long) for seed in range(1, 9))]
)
def test_whatever_clocks_do_all_agree_on_one_order(tmp_path: pathlib.Path, clock: Clock, seed: int, steps: int) -> None:
    """Checkpoints, drops, pushes, `gc` and new starts of two writers and a trainer, the clock wrong at each call."""
    clock.jump(seed)
    world = World(tmp_path, seed)
    happens = [world.checkpoint, world.checkpoint, world.mix, world.drop, world.add, world.push, world.train,
               world.train, world.refresh, world.start_again, world.collect]  # fmt: skip
    for _ in range(steps):
        world.random.choice(happens)(world.random.choice("01"))
        world.check()
    assert any(world.made.values())
    world.close()


def gone_back(path: str, name: str, objects: Any) -> dr.ReplayBuffer:
    with under(objects):
        return dr.ReplayBuffer.open(path, checkpoint=name, remote=objects.url, **RUN)


def rows_here(life: Life) -> int:
    with dr.ReplayBuffer.open(life.path, mode="r") as buffer:
        return len(rows_of(buffer))


def test_going_back_is_refused_before_rows_are_given_up(tmp_path: pathlib.Path) -> None:
    """A trainer's checkpoint needs rows that would be: the collector keeps them, and goes on pushing."""
    life, objects = pushed(tmp_path / "a", 20, "mine", 20)
    with reader(objects, tmp_path / "m", seed=1) as trainer:
        trainer.checkpoint("trainer")
        life.buffer.close()
        for name in ("mine", "latest"):
            with pytest.raises(RemoteConflictError, match=r"'trainer' of .* may need the rows"):
                gone_back(life.path, name, objects)
        assert rows_here(life) == 40
        with under(objects), dr.ReplayBuffer.open(life.path, remote=objects.url, **RUN) as buffer:
            buffer.push(PATIENCE)
        trainer.drop_checkpoint("trainer")
    with gone_back(life.path, "latest", objects) as buffer:
        assert len(buffer) == 20
        buffer.push(PATIENCE)
    assert len(read(objects, tmp_path / "again") or []) == 20


def test_going_back_asks_whose_the_remote_stream_is(tmp_path: pathlib.Path) -> None:
    objects, other = SimulatedObjects(), SimulatedObjects()
    life, stranger = Life(tmp_path / "a"), Life(tmp_path / "b", writer=1)
    for one in (life, stranger):
        one.add(20)
        one.checkpoint("c")
        one.add(20)
    life.push(objects)
    stranger.push(other)
    life.buffer.close()
    stranger.buffer.close()
    with pytest.raises(RemoteConflictError, match="holds another store"):
        gone_back(life.path, "c", other)
    assert rows_here(life) == 40
    ops.pull(objects.url, tmp_path / "pulled", objects=objects)
    assert rows_in(tmp_path / "pulled", mode="r+", **RUN) == 40
    with pytest.raises(RemoteConflictError):
        gone_back(str(tmp_path / "pulled"), "c", objects)
    assert rows_in(tmp_path / "pulled", mode="r+", **RUN) == 40


def test_where_the_url_does_not_answer_nothing_is_given_up(tmp_path: pathlib.Path) -> None:
    """At each request that going back makes."""
    life, objects = pushed(tmp_path / "a", 20, "c", 20)
    life.buffer.close()
    record = (tmp_path / "a" / "streams" / "0" / "zarr.json").read_bytes()
    for at in range(50):
        faulty = FaultyObjects(objects.copy())
        faulty.fail_at(at)
        try:
            buffer = gone_back(life.path, "c", faulty)
        except RemoteError:
            assert (tmp_path / "a" / "streams" / "0" / "zarr.json").read_bytes() == record
            continue
        faulty.heal()
        buffer.close()
        break
    assert at > 3
    assert rows_here(life) == 20


def test_going_back_to_where_the_stream_stands_asks_nobody(tmp_path: pathlib.Path) -> None:
    life, objects = lived(tmp_path / "a", 20, "c"), SimulatedObjects()
    life.buffer.close()
    faulty = FaultyObjects(objects)
    faulty.decide = lambda index, request: "refused"
    buffer = gone_back(life.path, "c", faulty)
    assert len(buffer) == 20
    faulty.heal()
    buffer.close()


def test_a_name_that_another_has_dropped_is_free(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10, "best")
    with reader(objects, tmp_path / "m", seed=1) as trainer:
        assert trainer.checkpoints == ["best"]
        life.buffer.drop_checkpoint("best")
        life.push(objects)
        trainer.checkpoint("best")
        with pytest.raises(CheckpointError, match="'best' already"):
            trainer.checkpoint("best")
