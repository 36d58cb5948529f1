"""A thread writes the files of a commit while rows are added."""

from __future__ import annotations

import errno
import functools
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from helpers.commits import DUE, PATH, Held, at_once, check, in_commit, settled
from helpers.forking import forked
from helpers.line import add, create, rows_in
from helpers.patience import PATIENCE
from helpers.testing import small_thresholds
from helpers.testing.faults import Operation
from helpers.threads import beside

import diskreplay as dr
from diskreplay.engine import commits
from diskreplay.errors import DiskFullError, StateError, WriteFailedError
from diskreplay.ops.verify import verify
from diskreplay.storage.stream import StreamWriter

SMALL: dict[str, Any] = {"chunk_rows": 2, "shard_rows": 4}


def committed(buffer: dr.ReplayBuffer) -> int:
    found: int = buffer.stats()["streams"]["0"]["committed"]
    return found


@pytest.fixture
def held() -> Iterator[Held]:
    files = Held()
    yield files
    files.go.set()


def test_everything_but_commits_goes_on(held: Held) -> None:
    buffer = held.stuck(later={"x": "float32"}, sampler=dr.Proportional())
    batch = buffer.sample(8)
    buffer.update_priorities(batch.index, np.ones(8))
    buffer.begin_episode(seed=3)
    add(buffer, 5)
    buffer.annotate_episode(success=True)
    buffer.write("x", [3], [0.5])
    zeros = np.zeros(4)
    rows = np.arange(15.0, 20.0)[:, None]
    buffer.extend(rows[:-1], zeros.astype(int), rows[:-1, 0], rows[1:], zeros > 0, zeros > 0)
    buffer.cut()
    assert buffer.refresh() is False
    assert buffer.get(buffer.items()).obs[:, 0].tolist() == list(range(19))
    assert (len(buffer), committed(buffer)) == (19, 0)
    held.go.set()
    settled(buffer)
    assert committed(buffer) == DUE, "what was fixed when it was begun"
    buffer.close()
    check(held, 19)
    with dr.ReplayBuffer.open(PATH, mode="r", files=held) as reader:
        assert [episode.facts for episode in reader.episodes] == [{}, {"seed": 3, "success": True}]
        assert reader.get([3]).extra["x"] == [0.5]


WAITING: dict[str, Callable[[dr.ReplayBuffer], object]] = {
    "commit": lambda rb: rb.commit(),
    "checkpoint": lambda rb: rb.checkpoint("one"),
    "drop": lambda rb: rb.drop_checkpoint("zero"),
    "clear": lambda rb: rb.clear(),
    "resize": lambda rb: rb.resize(50),
    "close": lambda rb: rb.close(),
}


@pytest.mark.parametrize("call", WAITING)
def test_what_else_writes_waits_for_the_commit(held: Held, call: str) -> None:
    held.at = "nothing"
    buffer = create(PATH, files=held, commit_rows=DUE)
    buffer.checkpoint("zero")
    held.at = "sync"
    add(buffer, DUE)
    assert held.arrived.wait(PATIENCE)
    over = threading.Event()

    def work() -> None:
        WAITING[call](buffer)
        over.set()

    with beside(work):
        assert not over.wait(0.05)
        before = held.count()
        assert not over.wait(0.05)
        assert held.count() == before, "there is one commit at a time"
        held.go.set()
    assert over.is_set()
    buffer.close()
    assert rows_in(PATH, files=held) == (0 if call == "clear" else DUE)


def test_one_commit_at_a_time(held: Held) -> None:
    buffer = held.stuck()
    before = held.count()
    add(buffer, 3 * DUE)
    assert held.count() == before
    held.go.set()
    settled(buffer)
    assert committed(buffer) == DUE
    add(buffer)
    settled(buffer)
    assert committed(buffer) == 4 * DUE + 1, "the one that was due is begun with the next row"
    add(buffer, DUE - 1)
    settled(buffer)
    assert committed(buffer) == 4 * DUE + 1
    buffer.close()
    check(held, 5 * DUE)


CALLS: dict[str, Callable[[dr.ReplayBuffer], object]] = {
    **WAITING,
    "add": add,
    "extend": lambda rb: rb.extend([[0.0]], [0], [0.0], [[1.0]], [False], [False]),
    "begin_episode": lambda rb: rb.begin_episode(seed=1),
    "annotate_episode": lambda rb: rb.annotate_episode(success=True),
    "write": lambda rb: rb.write("x", [3], [0.5]),
}
del CALLS["close"], CALLS["drop"]


@pytest.mark.parametrize("call", CALLS)
def test_the_next_call_raises_what_went_wrong_once(held: Held, call: str) -> None:
    buffer = held.stuck(later={"x": "float32"})
    add(buffer, 3)
    held.fail_at(0)
    held.go.set()
    settled(buffer)
    before = held.count()
    with pytest.raises(DiskFullError):
        CALLS[call](buffer)
    for again in CALLS.values():
        with pytest.raises(StateError, match=f"{DUE + 3} newer rows are not in it"):
            again(buffer)
    assert len(buffer) == DUE + 3, "it can be read"
    buffer.sample(4)
    held.decide = lambda operation: None
    with pytest.raises(DiskFullError, match=f"{DUE + 3} rows since the last commit are lost"):
        buffer.close()
    assert held.count() == before
    check(held, 0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_closing_says_what_nobody_was_told_of(held: Held, number: int) -> None:
    buffer = held.stuck()
    held.fail_at(0, number)
    held.go.set()
    with pytest.raises(WriteFailedError, match=f"{DUE} rows since the last commit are lost") as caught:
        buffer.close()
    assert caught.value.errno == number
    buffer.close()


def test_an_error_after_the_record_is_told_too(held: Held) -> None:
    """No row is lost, and all the same nothing more is written."""
    held.at = "nothing"
    buffer = create(PATH, 10, files=held, commit_rows=DUE, **SMALL)
    for _ in range(3):
        add(buffer, DUE)
        settled(buffer)
    held.fail_at(0, errno.EIO, names=("unlink",))
    add(buffer, DUE)
    settled(buffer)
    assert committed(buffer) == 4 * DUE
    with pytest.raises(WriteFailedError):
        add(buffer)
    buffer.close()


def test_an_error_that_is_no_disks_stops_the_writer(held: Held) -> None:
    def decide(operation: Operation) -> None:
        if in_commit() and operation.name == "pwrite":
            raise KeyError("mine")

    held.decide = decide
    buffer = held.stuck() if held.go.set() else create(PATH, files=held, commit_rows=DUE)
    add(buffer, DUE)
    settled(buffer)
    with pytest.raises(KeyError, match="mine"):
        add(buffer)
    with pytest.raises(StateError, match=r"was cut short: KeyError\('mine'\)"):
        add(buffer)
    with pytest.raises(StateError, match=f"{DUE} newer rows are not in it"):
        buffer.close()


@pytest.mark.parametrize("at", ["pwrite", "sync", "rename", "sync_dir", "unlink"])
@pytest.mark.parametrize("capacity", [4, 7])
@pytest.mark.parametrize("by", ["add", "extend"])
def test_a_window_that_goes_round_while_files_are_written(held: Held, at: str, capacity: int, by: str) -> None:
    """What the commit has taken stays in RAM, whatever was added since; what it needs not goes."""
    with small_thresholds(), mock.patch.object(commits, "COMMIT_BYTES", 1 << 30):
        held.at = "nothing"
        buffer = create(PATH, capacity, files=held, commit_rows=DUE, **SMALL)
        add(buffer, DUE)
        settled(buffer)
        held.at = at
        add(buffer, DUE)
        assert held.arrived.wait(PATIENCE)
        if by == "add":
            add(buffer, 200)
        else:
            rows, zeros = np.arange(20.0, 221.0)[:, None], np.zeros(200)
            buffer.extend(rows[:-1], zeros.astype(int), rows[:-1, 0], rows[1:], zeros > 0, zeros > 0)
        writer = buffer.engine.appender.writer
        assert sum(len(column.buffers) for column in writer.rows.values()) < 150
        held.go.set()
        settled(buffer)
        check(held, 20, capacity)
        add(buffer, 3)
        buffer.close()
        check(held, 223, capacity)


def test_adding_waits_where_many_bytes_wait_behind_a_commit(held: Held) -> None:
    """Those that the commit has taken do not count."""
    with small_thresholds(), mock.patch.object(commits, "COMMIT_BYTES", 6000):
        options: dict[str, Any] = {"capacity": 5000, "commit_rows": 1 << 30, "commit_seconds": 1e9}
        buffer = dr.ReplayBuffer.create(PATH, Box(0, 1, (40,), np.float32), Discrete(2), files=held, **options)
        rng, count = np.random.default_rng(0), 0

        def step() -> None:
            nonlocal count
            buffer.add(rng.random(40, np.float32), 0, 0.0, rng.random(40, np.float32), True, False)
            count += 1

        while not held.arrived.is_set():
            step()
            held.arrived.wait(0.001)
        first, waited = count, threading.Event()
        for _ in range(first // 2):
            step()

        def more() -> None:
            for _ in range(4 * first):
                step()
            waited.set()

        with beside(more):
            assert not waited.wait(0.2)
            assert count < 4 * first
            held.go.set()
        assert waited.is_set()
        buffer.close()
        assert verify(PATH, files=held).problems == ()
        assert rows_in(PATH, files=held) == count


# Whoever else is there


def test_a_fork_while_files_are_written(held: Held) -> None:
    buffer = held.stuck()
    add(buffer, 3)
    for work in (functools.partial(add, buffer, 1, 0), buffer.commit, buffer.close, lambda: buffer.checkpoint("no")):
        assert "StateError: this process was forked from the one that writes" in forked(work)
    held.go.set()
    add(buffer, 3)
    buffer.close()
    check(held, DUE + 6)


def test_a_buffer_that_is_forgotten_while_files_are_written(held: Held) -> None:
    buffer = held.stuck()
    add(buffer, 3)
    threading.Timer(0.05, held.go.set).start()
    del buffer
    check(held, DUE + 3)


def test_a_finalizer_in_the_thread_that_writes(held: Held) -> None:
    """The collector runs it there, while another thread holds a lock and waits for the commit."""
    said: list[str] = []

    class Owner:
        def __del__(self) -> None:
            for call in (functools.partial(add, buffer, 1, 0), buffer.commit, buffer.close):
                try:
                    call()
                except StateError as error:
                    said.append(str(error))

    def decide(operation: Operation) -> None:
        if in_commit() and not said:
            owner: list[Any] = [Owner()]
            owner.append(owner)
            del owner
            gc.collect()

    buffer = held.stuck()
    with beside(buffer.commit):
        while buffer.engine.write_lock.acquire(timeout=0):
            buffer.engine.write_lock.release()
            time.sleep(0.001)
        held.decide = decide
        held.go.set()
    assert len(said) == 3
    assert all("finalizer" in each for each in said)
    buffer.close()
    check(held, DUE)


def test_a_finalizer_in_the_thread_that_writes_alone(held: Held) -> None:
    """Nobody holds a lock: rows are added, and a commit that would wait for itself is refused."""
    said: list[str] = []

    def decide(operation: Operation) -> None:
        if in_commit() and operation.name == "rename" and not said:
            said.append("")
            add(buffer, 1, DUE)
            with pytest.raises(StateError, match="in the thread that writes a commit"):
                buffer.commit()

    buffer = held.stuck()
    held.decide = decide
    held.go.set()
    while buffer.engine.commits.is_running():
        time.sleep(0.001)
    buffer.close()
    check(held, DUE + 1)


def test_where_the_system_has_no_thread_to_give(held: Held) -> None:
    with at_once():
        buffer = create(PATH, files=held, commit_rows=DUE)
        add(buffer, DUE + 3)
        assert committed(buffer) == DUE
    buffer.close()
    check(held, DUE + 3)


def test_a_thread_that_ends_half_way_stops_the_writer(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by an error that comes while another one is noted: nobody knows what is on the disk."""
    buffer = create(PATH, files=held, commit_rows=DUE)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "excepthook", lambda arguments: None)
        patch.setattr(StreamWriter, "stopped_by", no_memory)
        add(buffer, DUE)
        settled(buffer)
    for call in (add, lambda buffer: buffer.sample(3), lambda buffer: buffer.close()):
        with pytest.raises(StateError, match="the thread that wrote a commit ended"):
            call(buffer)
    check(held, 0)


def no_memory(*_: object, **__: object) -> Any:
    raise MemoryError
