"""Opening and refreshing a URL: what is read first comes at the same time, whatever a request takes."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterable

import pytest
from helpers.patience import PATIENCE
from helpers.testing.faulty_objects import SimulatedObjects
from remote.world import RUN, Life, lived, reader, rows_of, under

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError
from diskreplay.remote import shards
from diskreplay.remote.objects import Object

TOGETHER = 12


class Meeting(SimulatedObjects):
    """The next shards that are asked for come once so many are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(TOGETHER)
        self.expected = 0
        self._count = threading.Lock()

    def get(self, key: str, span: shards.Span | None = None) -> tuple[Object, Iterable[bytes]]:
        with self._count:
            waits = "/c." in key and self.expected > 0
            self.expected -= waits
        if waits:
            self.barrier.wait(PATIENCE)
        return super().get(key, span)


def test_shards_that_are_read_first_come_at_the_same_time(tmp_path: pathlib.Path) -> None:
    """Regression: one came after another, so that opening took the time of ten requests for each stream."""
    objects = Meeting()
    life = lived(tmp_path / "a", 10)
    row = life.buffer.get(life.buffer.items()[:1])
    life.buffer.close()

    def go_on() -> None:
        for stream in ("0", "c1", "c2"):  # closed, it has shards of all columns
            with dr.ReplayBuffer.open(life.path, mode="a", stream=stream, capacity=60, **RUN) as writer:
                writer.add(row.obs[0], row.action[0], row.reward[0], row.next_obs[0], False, True)
            life.push(objects, stream)
        objects.expected = TOGETHER

    go_on()
    with reader(objects, tmp_path / "m") as buffer:
        assert not objects.expected
        assert len(rows_of(buffer)) == 13
        go_on()
        buffer.refresh()
        assert not objects.expected
        assert len(rows_of(buffer)) == 16


def test_a_root_document_that_is_missing_is_said_and_comes_back(tmp_path: pathlib.Path) -> None:
    objects, life = SimulatedObjects(), Life(tmp_path / "a")
    with pytest.raises(StoreNotFoundError, match=r"there is no store at .* yet; who writes makes one"):
        reader(objects, tmp_path / "m")
    life.add(10, to=objects)
    del objects.data["zarr.json"]
    with pytest.raises(StoreNotFoundError, match=r"any more: its root document is missing, .* push"):
        reader(objects, tmp_path / "m")
    life.push(objects)
    with reader(objects, tmp_path / "m") as buffer:
        assert len(rows_of(buffer)) == 10
    life.buffer.close()


def test_open_finds_the_class_of_a_store_under_a_url(tmp_path: pathlib.Path) -> None:
    objects, life = SimulatedObjects(), Life(tmp_path / "a")
    life.add(10, to=objects)
    with under(objects), dr.open(objects.url, mirror=tmp_path / "m") as found:
        assert type(found) is dr.ReplayBuffer
        assert rows_of(found) == life.window()
    with under(SimulatedObjects()), pytest.raises(dr.errors.StoreNotFoundError):
        dr.open(objects.url, mirror=tmp_path / "m")
