"""Writes that fail at every possible place of making, joining and opening a store, and what is said of damage.

Those of commits and checkpoints: ``crash/test_fail_stop.py``.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterator

import pytest
from helpers.configs import Config
from helpers.damage import flip
from helpers.effort import stride
from helpers.model import Leaf
from helpers.recording import Recording, recorded_store, reopen
from helpers.testing import FaultyFiles

import diskreplay as dr
from diskreplay.errors import CorruptionError, DiskFullError, StateError, StoreNotFoundError, WriteFailedError

SMALL = Config("small", Leaf((3, 12), frames=3, axis=0), frame_stack=3, capacity=16, chunk_rows=2, shard_rows=4)
STRIDE = stride(29, "places of failing writes")


def stepped(path: str, files: FaultyFiles) -> tuple[dr.ReplayBuffer, Recording]:
    """A buffer with committed rows, evicted ones, a checkpoint, and 9 rows that no commit holds."""
    recording = Recording(SMALL)
    buffer = SMALL.create(path, files=files)
    recording.add(buffer, 13, commit=True)
    recording.add(buffer, 10)
    buffer.checkpoint("first")
    recording.add(buffer, 9)
    return buffer, recording


def places(folder: pathlib.Path) -> Iterator[tuple[int, str, FaultyFiles]]:
    """Every place at which something can fail, each with a path and a file system of its own."""
    for count in itertools.count(step=STRIDE):
        yield count, str(folder / str(count) / "a.replay"), FaultyFiles()


@pytest.mark.long
def test_creating_fails_anywhere(tmp_path: pathlib.Path) -> None:
    for count, path, files in places(tmp_path):
        files.fail_at(count)
        try:
            buffer = SMALL.create(path, files=files)
        except DiskFullError:
            files.heal()
            if pathlib.Path(path).exists():  # only the last sync failed
                with reopen(SMALL, path) as buffer:
                    assert len(buffer) == 0
                continue
            with pytest.raises(StoreNotFoundError):
                dr.ReplayBuffer.open(path)
            with SMALL.create(path, files=files) as buffer:
                recording = Recording(SMALL)
                recording.add(buffer, 3)
                recording.check(buffer)
            assert [one.name for one in pathlib.Path(path).parent.iterdir()] == ["a.replay"]
        else:
            buffer.close()
            assert count > 20
            break


@pytest.mark.long
def test_a_second_stream_that_cannot_be_made(tmp_path: pathlib.Path) -> None:
    for count, path, files in places(tmp_path):
        buffer, recording = stepped(path, files)
        buffer.commit()
        files.fail_at(count)
        try:
            other = reopen(SMALL, path, stream="b", files=files)
        except WriteFailedError:
            files.heal()
            recording.check(buffer)
            with reopen(SMALL, path, stream="b", files=files) as other:
                Recording(SMALL).add(other, 3)
            buffer.refresh()
            assert buffer.stats()["streams"].keys() == {"0", "b"}
            buffer.close()
        else:
            assert count > 20
            buffer.close()
            other.close()
            break


def test_recovery_that_fails_anywhere(tmp_path: pathlib.Path) -> None:
    for count, path, files in places(tmp_path):
        buffer, recording = stepped(path, files)
        files.fail_at(30)  # leaves shards that are longer than the record says
        with pytest.raises(DiskFullError):
            buffer.commit()
        with pytest.raises(DiskFullError, match="9 rows since the last commit are lost"):
            buffer.close()
        buffer.close()
        recording.lose(23)
        files.fail_at(count)
        try:
            buffer = reopen(SMALL, path, files=files)
        except WriteFailedError:
            files.heal()
            with reopen(SMALL, path) as buffer:
                recording.check(buffer)
        else:
            assert count > 3
            recording.check(buffer)
            buffer.close()
            break


@pytest.mark.long
def test_going_back_to_a_checkpoint_fails_anywhere(tmp_path: pathlib.Path) -> None:
    ends = set()
    for count, path, files in places(tmp_path):
        buffer, recording = stepped(path, files)
        buffer.close()
        files.fail_at(count)
        try:
            buffer = reopen(SMALL, path, checkpoint="first", files=files)
        except WriteFailedError:
            files.heal()
            with dr.ReplayBuffer.open(path, mode="r") as reader:
                end = reader.stats()["streams"]["0"]["end"]
                ends.add(end)
                recording.lose(end)
                recording.check(reader)
            with reopen(SMALL, path) as buffer:
                recording.check(buffer)
                recording.add(buffer, 3, commit=True)
                recording.check(buffer)
            with reopen(SMALL, path, checkpoint="first") as buffer:
                recording.lose(23)
                recording.check(buffer)
        else:
            assert count > 3
            buffer.close()
            break
    assert ends == {23, 32}


@pytest.mark.usefixtures("commits_at_once")
def test_an_automatic_commit_that_fails_keeps_the_row(tmp_path: pathlib.Path) -> None:
    files = FaultyFiles()
    recording = Recording(SMALL)
    buffer = SMALL.create(str(tmp_path / "a"), files=files, commit_rows=5)
    recording.add(buffer, 9)
    files.fail_at(0)
    before = recording.log.end
    recording.add(buffer, 1)
    with pytest.raises(DiskFullError):
        recording.add(buffer, 1)
    assert buffer.stats()["streams"]["0"]["end"] == before + 1
    with pytest.raises(StateError):
        recording.add(buffer, 1)
    assert buffer.stats()["streams"]["0"]["end"] == before + 1
    with pytest.raises(DiskFullError, match="5 rows since the last commit are lost"):
        buffer.close()


def test_damage_names_its_place(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "a.replay")
    recorded_store(SMALL, path, 16)
    shard = sorted(pathlib.Path(path, "streams/0/obs").glob("c.*"))[-1]
    flip(shard, 7, 4)
    with dr.ReplayBuffer.open(path, cache_bytes=0) as buffer, pytest.raises(CorruptionError) as caught:
        list(buffer.shuffled(16))
    error = caught.value
    assert (error.file, error.column, error.stream) == (str(shard), "obs", "0")
    assert error.rows is not None
    assert error.offset == 0
