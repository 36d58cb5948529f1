"""Readers beside a writer that commits single rows: they follow from tail to tail, and see each commit whole."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from typing import Any

import pytest
from helpers import lives
from helpers.effort import examples
from helpers.testing import FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError
from diskreplay.storage import tail
from diskreplay.storage.stream import read_commit

pytestmark = pytest.mark.own_thresholds
PATH = "/a.replay"
ROWS = 12


@pytest.fixture(autouse=True)
def _small_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "DEAD_BYTES", 4000)
    monkeypatch.setattr(tail, "LEFT_BYTES", 0)


def opened(files: SimulatedDisk | FaultyFiles, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(PATH, files=files, **lives.OPTIONS | options)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_reader_sees_the_rows_of_each_commit(num_envs: int) -> None:
    """With their next observations, at whatever commit it was before, across tails and checkpoints gone back to."""
    disk = SimulatedDisk()
    numbers = set()
    with lives.create(PATH, num_envs, ROWS, files=disk) as writer, opened(disk, mode="r") as each:
        for row in range(60):
            lives.add(writer, 1)
            writer.commit()
            numbers.add(read_commit(disk, f"{PATH}/streams/0").tail.number)
            assert each.refresh()
            assert lives.check_all(each) == min(row + 1, ROWS) * num_envs
            if row % 7 == 0:
                late = opened(disk, mode="r")
            if row % 7 == 5:
                late.refresh()
                assert lives.check_all(late) == min(row + 1, ROWS) * num_envs
                late.close()
    assert len(numbers) > 5


@pytest.mark.parametrize("refreshes", [False, True])
def test_a_reader_whose_tail_is_unlinked_meanwhile_tries_again(refreshes: bool) -> None:
    """Between the record and the tail that it names, the writer commits until that tail is gone."""
    disk = SimulatedDisk()
    files = FaultyFiles(disk)
    with lives.create(PATH, 1, ROWS, files=disk) as writer:
        lives.add(writer, 20, commit_every=1)
        reader = opened(files, mode="r") if refreshes else None
        while (before := read_commit(disk, f"{PATH}/streams/0").tail).number < 2 or (refreshes and reader is None):
            lives.add(writer, 1, commit_every=1)
        lives.add(writer, 1, commit_every=1)
        before = read_commit(disk, f"{PATH}/streams/0").tail
        happened = []

        def decide(operation: Operation) -> None:
            if operation.name == "open_read" and operation.path.endswith(tail.name(before.number)) and not happened:
                happened.append(operation.path)
                while before.number in tail.on_disk(disk, f"{PATH}/streams/0/start"):
                    lives.add(writer, 1)
                    writer.commit()

        files.decide = decide
        if reader is None:
            reader = opened(files, mode="r")
        else:
            reader.refresh()
        with reader:
            assert happened
            assert lives.check_all(reader) == ROWS
            assert reader.stats()["streams"]["0"]["end"] == writer.stats()["streams"]["0"]["end"]


def write(path: str, rows: int, small: bool) -> None:
    """Commits single rows; in a process of its own it makes its tails ``small``."""
    if small:
        tail.DEAD_BYTES, tail.LEFT_BYTES = 4000, 0
    with dr.ReplayBuffer.open(path, **lives.OPTIONS) as buffer:
        for _ in range(rows):
            lives.add(buffer, 1)
            buffer.commit()


@pytest.mark.long(quick=1)
@pytest.mark.parametrize("process", [True, False])
def test_readers_beside_a_writer_never_see_another_row(path: str, process: bool) -> None:
    """One that goes on, and others that are opened; the writer is a process or a thread."""
    lives.create(path, 2, ROWS).close()
    rows = 20 * examples(20, "commits beside a reader")
    writer = (
        multiprocessing.get_context("spawn").Process(target=write, args=(path, rows, True))
        if process
        else threading.Thread(target=write, args=(path, rows, False))
    )
    writer.start()
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as reader:
        while writer.is_alive():
            reader.refresh()
            with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as again:
                for one in (reader, again):
                    with contextlib.suppress(EvictedError, NotEnoughDataError):
                        lives.check(one.get(one.items()), {0: 2})
        writer.join()
        reader.refresh()
        assert lives.check_all(reader) == 2 * ROWS
        assert reader.stats()["streams"]["0"]["end"] == rows
