"""Checkpoints of a store under a URL: one order for everybody, and whose is "latest", whatever the clocks say."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from helpers.clocks import DAY, Clock
from remote.world import Life, reader

import diskreplay as dr
from diskreplay.remote.place import open_remote
from diskreplay.storage.store import Checkpoint, Store
from diskreplay.testing import SimulatedObjects


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def remote_checkpoints(objects: SimulatedObjects, mirror: pathlib.Path) -> list[Checkpoint]:
    """Those under the URL, as who looks now orders them."""
    return Store(objects.url, open_remote(objects, mirror)).checkpoints()


def test_a_trainer_goes_on_from_its_last_checkpoint_when_its_clock_was_set_back(
    tmp_path: pathlib.Path, clock: Clock
) -> None:
    life, objects = Life(tmp_path / "a"), SimulatedObjects()
    life.add(30)
    life.push(objects)
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
    life.buffer.close()


def test_a_trainer_goes_on_from_a_trainers_checkpoint_beside_collectors_that_make_some(tmp_path: pathlib.Path) -> None:
    life, objects = Life(tmp_path / "a"), SimulatedObjects()
    life.add(10)
    for name in ("c1", "c2", "c3"):
        life.checkpoint(name)
    life.push(objects)
    with reader(objects, tmp_path / "m", checkpoint="latest", seed=1) as trainer:
        assert trainer._checkpoint is not None
        assert trainer._checkpoint.name == "c3", "there is none of a reader yet"
        trainer.checkpoint("trainer")
        assert trainer.checkpoints == ["c1", "c2", "c3", "trainer"]
    life.checkpoint("c4")
    life.checkpoint("c5")
    life.push(objects)
    with reader(objects, tmp_path / "m", checkpoint="latest") as trainer:
        assert trainer._checkpoint is not None
        assert trainer._checkpoint.name == "trainer"
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
    life.buffer.close()


def test_a_checkpoint_that_is_dropped_and_made_again_is_pushed_anew(tmp_path: pathlib.Path, clock: Clock) -> None:
    """Also within the resolution of the clock, which stands still here."""
    life, objects = Life(tmp_path / "a"), SimulatedObjects()
    life.add(10)
    life.buffer.checkpoint("best", {"score": 1})
    life.push(objects)
    life.add(10)
    life.buffer.drop_checkpoint("best")
    life.buffer.checkpoint("best", {"score": 2})
    life.push(objects)
    (found,) = remote_checkpoints(objects, tmp_path / "m")
    assert found.metadata == {"score": 2}
    assert found.cut["0"].end == 20
    life.buffer.close()


def test_a_dropped_checkpoint_that_is_still_remote_comes_before_the_newer_one(
    tmp_path: pathlib.Path, clock: Clock
) -> None:
    """Where its maker dropped its newest, made another, and the push ended before it removed the first."""
    life, objects = Life(tmp_path / "a"), SimulatedObjects()
    life.add(10)
    life.checkpoint("z")
    push = life.push(objects)
    life.buffer.drop_checkpoint("z")
    clock.now -= DAY
    life.checkpoint("a")
    push._remove = lambda names, there: None  # type: ignore[method-assign]
    push.run()
    assert [one.name for one in remote_checkpoints(objects, tmp_path / "m")] == ["z", "a"]
    life.push(objects)
    assert [one.name for one in remote_checkpoints(objects, tmp_path / "m")] == ["a"]
    life.buffer.close()
