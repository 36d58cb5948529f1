"""Checkpoints listed, dropped and gone back to, and what a killed import leaves."""

from __future__ import annotations

import os
import pathlib
import signal

import pytest
from formats.roundtrip import read, store
from helpers.programs import run
from ops.stores import fill, images

import diskreplay as dr
from diskreplay.errors import CheckpointError, InputError, LockedError, StoreNotFoundError
from diskreplay.ops.checkpoints import checkpoints, drop, restore, unfinished_imports
from diskreplay.ops.convert import import_dataset
from diskreplay.ops.verify import verify

KILLED = """
import os, signal, sys
from diskreplay.formats.core import recorder
from diskreplay.ops import convert
recorder.BLOCKS_AHEAD = 1
convert.PLAIN["commit_rows"] = 4

def report(done, total):
    report.blocks += 1

report.blocks = 0

def add(buffer, blocks, **options):
    for steps in blocks:
        recorder_add(buffer, [steps], **options)
        buffer.commit()
        os.kill(os.getpid(), signal.SIGKILL)

recorder_add, recorder.add_steps = recorder.add_steps, add
convert.import_dataset(sys.argv[1], sys.argv[2], append=True, progress=report)
"""


@pytest.fixture
def streams(path: str) -> str:
    """A store of two streams with the checkpoints "one" and "two"; both went on after each."""
    images(path, rows=10)
    for name in ("one", "two"):
        with dr.ReplayBuffer.open(path, stream="b", num_envs=1, capacity=50) as second:
            fill(second, 8)
        with dr.ReplayBuffer.open(path) as first:
            first.checkpoint(name, {"note": name})
            fill(first, 5)
    return path


def ends(path: str) -> list[int]:
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        return [stream["end"] for stream in buffer.stats()["streams"].values()]


def test_the_list(streams: str) -> None:
    lines = checkpoints(streams)
    assert [(line.name, line.rows, line.metadata, line.import_into) for line in lines] == [
        ("one", {"0": (0, 10), "b": (0, 8)}, {"note": "one"}, None),
        ("two", {"0": (0, 15), "b": (0, 16)}, {"note": "two"}, None),
    ]
    assert unfinished_imports(streams) == []
    with pytest.raises(StoreNotFoundError):
        checkpoints(f"{streams}-none")


def test_dropping(streams: str) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint 'three'"):
        drop(streams, ["one", "three"])
    with dr.ReplayBuffer.open(streams):  # the other stream is free
        drop(streams, ["one"])
    assert [line.name for line in checkpoints(streams)] == ["two"]
    with (
        dr.ReplayBuffer.open(streams), dr.ReplayBuffer.open(streams, stream="b"),
        pytest.raises(LockedError, match="being written"),
    ):  # fmt: skip
        drop(streams, ["two"])
    assert [line.name for line in checkpoints(streams)] == ["two"]
    assert ends(streams) == [20, 16]
    assert verify(streams).ok


@pytest.mark.long
def test_dropping_gives_back_what_only_the_checkpoint_needed(path: str) -> None:
    images(path, rows=60, num_envs=1, capacity=60)
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("old")
        fill(buffer, 200)
    files = len(list(pathlib.Path(path, "streams/0/obs").glob("c.*")))
    drop(path, ["old"])
    assert len(list(pathlib.Path(path, "streams/0/obs").glob("c.*"))) < files
    assert verify(path).ok


def test_going_back(streams: str) -> None:
    with pytest.raises(CheckpointError, match="two"):
        restore(streams, "one", "0")
    with pytest.raises(CheckpointError, match="has no stream 'c'"):
        restore(streams, "two", "c")
    done = restore(streams, "two")  # only the first went on since
    assert (done.stream, done.row, done.discarded, done.dropped) == ("0", 15, 5, False)
    assert ends(streams) == [15, 16]
    drop(streams, ["two"])
    with pytest.raises(InputError, match="--stream"):
        restore(streams, "one")
    assert restore(streams, "one", "b").discarded == 8
    assert ends(streams) == [15, 8]
    with dr.ReplayBuffer.open(streams), pytest.raises(LockedError):
        restore(streams, "one", "0")
    assert verify(streams).ok


@pytest.mark.long
@pytest.mark.parametrize("room", [100, 10])
def test_a_killed_import_can_be_taken_back(path: str, tmp_path: pathlib.Path, room: int) -> None:
    """Its checkpoint stayed, with half of its steps, and no command took them back."""
    dataset = str(tmp_path / "dataset.replay")
    store(capacity=room)(path)
    store()(dataset)
    before = read(path)
    assert run(KILLED, dataset, path).returncode == -signal.SIGKILL
    assert len(read(path)) > len(before)
    (name,) = unfinished_imports(path)
    assert checkpoints(path)[0].import_into is not None
    assert import_dataset(dataset, f"{path}-other").unfinished == ()
    done = restore(path, name)
    assert done.dropped
    assert done.discarded
    assert checkpoints(path) == []
    assert [episode.reward.tolist() for episode in read(path)] == [episode.reward.tolist() for episode in before]
    assert verify(path).ok
    assert import_dataset(dataset, path, append=True).unfinished == ()


@pytest.mark.long
def test_an_import_names_what_a_killed_one_left(path: str, tmp_path: pathlib.Path) -> None:
    dataset = str(tmp_path / "dataset.replay")
    store()(path)
    store()(dataset)
    run(KILLED, dataset, path)
    assert import_dataset(dataset, path, append=True).unfinished == tuple(unfinished_imports(path))
    assert len(unfinished_imports(path)) == 1


def test_an_import_that_goes_on_is_not_unfinished(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint(f"before-import-{os.getpid()}", {"import": "0"})
        assert unfinished_imports(path) == []
    assert len(unfinished_imports(path)) == 1
