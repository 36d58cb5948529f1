"""Documents that are known are not parsed again."""

from __future__ import annotations

import collections
import os
import pathlib

import numpy as np
import pytest
from gymnasium import spaces
from helpers.line import rows_in
from helpers.testing import FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.ops.checkpoints import drop
from diskreplay.ops.verify import verify
from diskreplay.storage import metadata

PATH = "/a.replay"
BOX, ZEROS = spaces.Box(-1, 1, (2,), np.float32), np.zeros(2, np.float32)


def added(disk: SimulatedDisk, name: str) -> None:
    """Add a row to a stream."""
    with dr.ReplayBuffer.open(PATH, mode="a", stream=name, files=disk) as other:
        other.add(ZEROS, 0, 0.0, ZEROS, False, False)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories whose documents are parsed from here on."""
    found: list[str] = []
    attributes = metadata.attributes
    monkeypatch.setattr(metadata, "attributes", lambda at, data: found.append(at) or attributes(at, data))
    return found


@pytest.mark.parametrize("columns", [3, 30])
def test_many_columns_parse_the_commit_record_no_oftener(columns: int, parsed: list[str]) -> None:
    """Each column that was opened parsed the whole record, twice: of all columns."""
    disk = SimulatedDisk()
    values = {f"c{number}": np.float32(number) for number in range(columns)}
    with dr.ReplayBuffer.create(
        PATH, BOX, spaces.Discrete(2), capacity=100, files=disk,
        columns=dict.fromkeys(values, np.float32),
    ) as buffer:  # fmt: skip
        buffer.add(ZEROS, 0, 0.0, ZEROS, False, False, **values)
    parsed.clear()
    with dr.ReplayBuffer.open(PATH, mode="r", files=disk) as buffer:
        assert buffer.get(buffer.items()).extra["c2"].tolist() == [2.0]
    assert len(parsed) == 1, "its bytes stay the same"


def test_opening_reads_the_record_of_each_stream_twice() -> None:
    """It was read once more, and again for each column: nine of a stream without columns of its own."""
    disk = SimulatedDisk()
    dr.ReplayBuffer.create(PATH, BOX, spaces.Discrete(2), capacity=100, files=disk).close()
    for number in range(1, 4):
        with dr.ReplayBuffer.open(PATH, mode="a", stream=f"s{number}", files=disk) as buffer:
            buffer.add(ZEROS, 0, 0.0, ZEROS, False, False)
    files = FaultyFiles(disk)
    assert rows_in(PATH, files=files) == 3
    read = collections.Counter(one.path for one in files.operations if one.name == "read" and "/streams/s" in one.path)
    each = dict.fromkeys([f"{PATH}/streams/s{number}/zarr.json" for number in range(1, 4)], 2)
    assert read == each, "to know of it, and whether it is still current"


def test_an_appender_reads_the_others_when_somebody_asks() -> None:
    disk = SimulatedDisk()
    dr.ReplayBuffer.create(PATH, BOX, spaces.Discrete(2), capacity=64, files=disk).close()
    added(disk, "s1"), added(disk, "s2")
    with dr.ReplayBuffer.open(PATH, mode="a", stream="s1", files=disk) as buffer:
        assert list(buffer.engine.streams.commits) == ["0", "s1", "s2"]
        assert not buffer.refresh()
        added(disk, "s2")
        assert buffer.refresh()
        assert buffer.engine.streams.commits["s2"].end == 2


def test_a_checkpoint_does_no_more_of_a_stream_with_nothing_new_than_read_its_record(parsed: list[str]) -> None:
    """It was parsed, encoded, and its directory synced, each time."""
    disk = SimulatedDisk()
    dr.ReplayBuffer.create(PATH, BOX, spaces.Discrete(2), capacity=100, files=disk).close()
    added(disk, "s1"), added(disk, "s2")
    files = FaultyFiles(disk)

    def done(buffer: dr.ReplayBuffer, name: str) -> dict[str, int]:
        parsed.clear()
        files.heal()
        buffer.checkpoint(name)
        of_others = [one for one in files.operations if f"{PATH}/streams/s" in one.path]
        return collections.Counter(f"{one.name} {os.path.relpath(one.path, PATH)}" for one in of_others)

    records = {f"read streams/{name}/zarr.json": 2 for name in ("s1", "s2")}
    with dr.ReplayBuffer.open(PATH, files=files) as buffer:
        synced = {"sync_dir streams/s1": 1, "sync_dir streams/s2": 1}
        assert done(buffer, "first").items() >= (records | synced).items(), "they may not be durable yet"
        assert (done(buffer, "second"), parsed) == (records, []), "before and after it has its name"
        added(disk, "s2")
        assert buffer.refresh()
        assert (done(buffer, "third"), parsed) == (records | {"sync_dir streams/s2": 1}, [])


def test_verify_reads_each_index_and_lists_each_array_once(tmp_path: pathlib.Path) -> None:
    """Each array was listed three times, and its index read three times: the last time also where no patch needs it."""
    path = str(tmp_path / "a.replay")
    with dr.ReplayBuffer.create(path, BOX, spaces.Discrete(2), capacity=100) as buffer:
        buffer.add(ZEROS, 0, 0.0, ZEROS, False, False)
    files = FaultyFiles()
    assert verify(path, files=files).ok
    listed = collections.Counter(os.path.relpath(one.path, path) for one in files.operations if one.name == "list")
    read = collections.Counter(os.path.relpath(one.path, path) for one in files.operations if one.name == "pread")
    assert listed["streams/0/reward"] == listed["streams/0/cuts/place"] == 1
    assert read["streams/0/reward/c.0.0"] == 2, "the index and the chunk"


@pytest.mark.parametrize("streams", [2, 6])
def test_commands_parse_each_checkpoint_once_for_all_streams(
    streams: int, parsed: list[str], tmp_path: pathlib.Path
) -> None:
    """``drop`` parsed every checkpoint, of all streams, once for each stream."""
    path = str(tmp_path / "a.replay")
    dr.ReplayBuffer.create(path, BOX, spaces.Discrete(2), capacity=16, shard_rows=16, chunk_rows=4).close()

    def fill(rows: int) -> None:
        for number in range(1, streams):
            with dr.ReplayBuffer.open(path, mode="a", stream=f"s{number}") as buffer:
                for _ in range(rows):
                    buffer.add(ZEROS, 0, 0.0, ZEROS, False, True)

    fill(16)
    with dr.ReplayBuffer.open(path) as buffer:
        for number in range(3):
            buffer.checkpoint(str(number))
    fill(40)
    parsed.clear()
    shards = list(tmp_path.glob("a.replay/streams/s1/obs/c.*"))
    drop(path, ["0", "1", "2"])
    said = "whether it is there, and whether it is pending"
    names = sorted(name for parent, name in map(os.path.split, parsed) if parent.endswith("checkpoints"))
    assert names == ["0", "0", "1", "1", "2", "2"], said
    assert len(list(tmp_path.glob("a.replay/streams/s1/obs/c.*"))) == len(shards) - 1, "the space is given back"
