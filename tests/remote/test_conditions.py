"""Storage that ignores conditions on puts: it is said before anything is made there, and what is here stays."""

from __future__ import annotations

import pathlib

import pytest
from helpers.testing import FAULTS, FaultyObjects, SimulatedObjects
from remote.world import LAYOUT, SPACES, URL, Life, pushed, read, rows_of, under

import diskreplay as dr
from diskreplay.errors import RemoteError
from diskreplay.remote import conditions
from diskreplay.remote.objects import NEW


class Ignoring(SimulatedObjects):
    """Puts whatever the condition is."""

    ignored = "If-None-Match"

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        return super().put(key, data, self.kept(tag))

    def kept(self, tag: str | None) -> str | None:
        """What is left of a condition."""
        return None


class HalfIgnoring(Ignoring):
    """Knows that an object is not there, and no tags."""

    ignored = "If-Match"

    def kept(self, tag: str | None) -> str | None:
        return NEW if tag == NEW else None


class Refusing(SimulatedObjects):
    """Compares tags with something else, so that none is ever the same."""

    def put(self, key: str, data: bytes, tag: str | None = None) -> str:
        return super().put(key, data, f'"{tag}"' if tag else tag)


KINDS = pytest.mark.parametrize("kind", [Ignoring, HalfIgnoring])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Ignoring, r"though the condition .*\(If-None-Match\)"), (HalfIgnoring, r"though the condition .*\(If-Match\)"),
        (Refusing, r"a condition that holds \(If-Match\) are refused"),
    ],
)  # fmt: skip
def test_no_store_is_made_there(kind: type[SimulatedObjects], said: str, tmp_path: pathlib.Path) -> None:
    objects = kind()
    for make in dr.ReplayBuffer.create, dr.ReplayBuffer.open_or_create:
        with under(objects), pytest.raises(RemoteError, match=said) as caught:
            make(tmp_path / "a", *SPACES, capacity=9, **LAYOUT, remote=URL)
        assert URL in str(caught.value)
        assert objects.data == {}
        assert not (tmp_path / "a").exists()


@KINDS
def test_nothing_is_pushed_there_and_it_can_be_pushed_elsewhere(kind: type[Ignoring], tmp_path: pathlib.Path) -> None:
    life, objects = Life(tmp_path / "a"), kind()
    life.add(20)
    with pytest.raises(RemoteError, match=kind.ignored):
        life.push(objects)
    assert objects.data == {}
    assert rows_of(life.buffer) == life.window()
    better = SimulatedObjects()
    life.push(better)
    assert read(better, tmp_path / "m") == sorted(life.window())


@KINDS
def test_a_store_that_is_there_is_not_joined_and_not_replaced(kind: type[Ignoring], tmp_path: pathlib.Path) -> None:
    _, made = pushed(tmp_path / "a", 20)
    objects = kind(data=made.data)  # as if it were moved to other storage
    with under(objects), pytest.raises(RemoteError, match=kind.ignored):
        dr.ReplayBuffer.open_or_create(tmp_path / "b", *SPACES, capacity=60, **LAYOUT, remote=URL)
    assert not (tmp_path / "b").exists()
    with under(objects), pytest.raises(dr.errors.StoreExistsError):
        dr.ReplayBuffer.create(tmp_path / "c", *SPACES, capacity=60, **LAYOUT, remote=URL)
    assert not (tmp_path / "c").exists()
    key = f"streams/0/start/{conditions.NAME}"
    assert {**objects.data, key: b""} == {**made.data, key: b""}


@pytest.mark.parametrize("fault", FAULTS)
def test_failing_storage_is_not_taken_for_one_without_conditions(fault: str) -> None:
    counted = FaultyObjects(SimulatedObjects())
    conditions.check(counted, "0")
    requests = len(counted.requests)
    assert requests == 5
    for index in range(requests):
        objects = FaultyObjects(SimulatedObjects())
        objects.fail_at(index, fault)  # type: ignore[arg-type]
        try:
            conditions.check(objects, "0")
        except RemoteError as error:
            assert "a fault that a test asked for" in str(error)  # noqa: PT017  # it may pass, too
        objects.heal()
        conditions.check(objects, "0")
