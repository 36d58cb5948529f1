"""A resized stream under a URL: readers go on over it, trainers keep priorities and checkpoints, and it comes back."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from helpers.testing import SimulatedObjects
from remote.world import Life, lived, pushed, read, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.ops import remote as ops


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("capacity", [90, 12])
def test_a_trainer_goes_on_over_a_resize(tmp_path: pathlib.Path, capacity: int) -> None:
    life, objects = pushed(tmp_path / "a", 40, capacity=30)
    with reader(objects, tmp_path / "m", sampler=dr.Proportional(alpha=1.0)) as trainer:
        ids = trainer.items()
        trainer.update_priorities(ids, np.arange(30) + 1.0)
        before = dict(zip(ids.tolist(), trainer.sampler.state()[1]["mass"].tolist(), strict=True))
        trainer.checkpoint("before")
        then = rows_of(trainer)
        life.resize(capacity)
        life.add(3, to=objects)
        assert trainer.refresh()
        assert trainer.capacity == capacity
        assert rows_of(trainer) == life.window()
        trainer.sample(4)
        after = dict(zip(trainer.items().tolist(), trainer.sampler.state()[1]["mass"].tolist(), strict=True))
        stay = before.keys() & after.keys()
        assert len(stay) == min(30, capacity - 3)
        assert {key: after[key] for key in stay} == {key: before[key] for key in stay}
    with reader(objects, tmp_path / "m2", checkpoint="before") as again:
        assert (again.capacity, rows_of(again)) == (30, then)
    life.buffer.close()
    ops.gc(objects.url, 0, objects=objects)
    ops.pull(objects.url, tmp_path / "copy.replay", objects=objects)
    for path, held in ((tmp_path / "copy.replay", life.window()), (tmp_path / "a", life.window())):
        with dr.open(path) as local:
            assert (local.capacity, rows_of(local)) == (capacity, held)


def test_a_restarted_collector_grows_its_stream_and_pushes_it(tmp_path: pathlib.Path) -> None:
    objects = SimulatedObjects()
    with under(objects):
        life = lived(tmp_path / "a", 40, capacity=30, remote=objects.url)
        life.buffer.close()
        again = Life(tmp_path / "a", capacity=50, remote=objects.url)
        again.rows, again.first = life.rows, 10
        again.add(25)
        again.buffer.close()
        assert len(again.window()) == 50
        assert read(objects, tmp_path / "m") == sorted(again.window())
        with pytest.raises(InputError, match="has the capacity 50, and 40 would keep fewer"):
            Life(tmp_path / "a", capacity=40, remote=objects.url)
