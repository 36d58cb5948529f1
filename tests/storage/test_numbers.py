"""Numbers of streams: what adding one reads, and that no note makes two of the same number."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.testing import FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.storage import metadata, numbers
from diskreplay.storage.store import Store

PATH = "/a.replay"
NOTE = f"{PATH}/streams/0/start/numbers"


def added(files: SimulatedDisk | FaultyFiles, name: str, mode: str = "a") -> None:
    with dr.ReplayBuffer.open(PATH, mode=mode, stream=name, files=files) as buffer:
        buffer.add(np.zeros(2, np.float32), 0, 0.0, np.zeros(2, np.float32), False, False)


def with_streams(count: int, first: str = "0") -> SimulatedDisk:
    disk = SimulatedDisk()
    box = spaces.Box(-1, 1, (2,), np.float32)
    dr.ReplayBuffer.create(PATH, box, spaces.Discrete(2), capacity=64, stream=first, files=disk).close()
    for number in range(1, count):
        added(disk, f"s{number}")
    return disk


def there(disk: SimulatedDisk) -> list[tuple[str, int]]:
    """All streams and their numbers, by their records."""
    return [(name, commit.stream) for name, commit in Store(PATH, disk).newest_commits().items()]


@pytest.mark.parametrize("first", ["0", "z"])
@pytest.mark.parametrize("count", [2, 12])
def test_adding_a_stream_reads_no_other_stream(count: int, first: str) -> None:
    """A collector that began read the records of all others, three times."""
    disk = with_streams(count, first)
    files = FaultyFiles(disk)
    added(files, "new")
    read = {one.path for one in files.operations if one.name == "read" and "/streams/" in one.path}
    assert {path for path in read if "/streams/new/" not in path} == {
        f"{PATH}/streams/{first}/zarr.json",  # whose environments and capacity the new one gets
        f"{PATH}/streams/{first}/start/numbers",
    }
    assert there(disk) == [(first, 0), *((f"s{number}", number) for number in range(1, count)), ("new", count)]


def put(disk: SimulatedDisk, data: bytes) -> None:
    file = disk.open(NOTE, write=True)
    file.truncate(0)
    file.pwrite([data], 0)


def note(entries: Any) -> bytes:
    facts = {"numbers": entries}
    return json.dumps({**facts, "checksum": metadata.checksum(facts, "numbers")}).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda disk: disk.unlink(NOTE),
        lambda disk: put(disk, b""),
        lambda disk: put(disk, disk.read(NOTE)[:-9]),
        lambda disk: put(disk, disk.read(NOTE).replace(b'"s1":1', b'"s1":7')),
        lambda disk: put(disk, b"[]"),
        lambda disk: put(disk, note([1, 2])),
        lambda disk: put(disk, note({"0": 0, "s1": -1})),
        lambda disk: put(disk, note({"0": 0, "s1": 0})),
        lambda disk: put(disk, note({"0": 0, "s1": "1"})),
        lambda disk: put(disk, note({"0": 0, "gone": 1})),
        lambda disk: put(disk, note({"0": 0})),
    ],
    ids=["lost", "empty", "torn", "damaged", "a list", "no names", "negative", "twice", "text", "gone", "older"],
)
def test_a_note_that_is_not_whole_is_not_believed(spoil: Callable[[SimulatedDisk], None]) -> None:
    disk = with_streams(4)
    spoil(disk)
    added(disk, "new")
    assert there(disk) == [("0", 0), ("s1", 1), ("s2", 2), ("s3", 3), ("new", 4)]
    assert len(json.loads(disk.read(NOTE))["numbers"]) == 5


def test_streams_that_an_older_version_added_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = with_streams(3)
    with monkeypatch.context() as older:
        older.setattr(numbers, "write", lambda *args: None)
        added(disk, "older", "r+")
    added(disk, "new")
    assert there(disk) == [("0", 0), ("s1", 1), ("s2", 2), ("older", 3), ("new", 4)]


def test_a_note_that_cannot_be_written_is_none() -> None:
    disk = with_streams(3)
    files = FaultyFiles(disk)
    files.decide = lambda operation: 5 if operation.name == "rename" and operation.target == NOTE else None
    added(files, "new")
    assert not disk.kind(NOTE)
    added(disk, "next")
    assert there(disk)[-2:] == [("new", 3), ("next", 4)]
    assert disk.list(f"{PATH}/streams/0/start") == ["numbers", "zarr.json"]


def test_an_appender_reads_the_others_when_somebody_asks() -> None:
    disk = with_streams(3)
    with dr.ReplayBuffer.open(PATH, mode="a", stream="s1", files=disk) as buffer:
        assert list(buffer.engine.streams.commits) == ["0", "s1", "s2"]
        assert not buffer.refresh()
        added(disk, "s2")
        assert buffer.refresh()
        assert buffer.engine.streams.commits["s2"].end == 2
