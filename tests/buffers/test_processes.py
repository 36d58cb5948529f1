"""Several processes on one store: a writer that is killed at any moment, readers beside it, two writers."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import stride
from helpers.forking import fork
from helpers.programs import run

import diskreplay as dr
from diskreplay.errors import CheckpointError, LockedError, NotEnoughDataError
from diskreplay.ops.verify import verify
from diskreplay.storage.commit import Commit
from diskreplay.storage.stream import StreamWriter

WRITER = """
import os, sys, warnings
import numpy as np
import diskreplay as dr

warnings.simplefilter("ignore", dr.errors.MisuseWarning)  # episodes follow each other without a first observation
path, stream, rows, enough = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
with dr.ReplayBuffer.open(path, stream=stream, commit_rows=1 << 20, commit_seconds=1e9) as buffer:
    row = buffer.stats()["streams"][stream]["end"]
    print(row, flush=True)
    while row < rows or not os.path.exists(enough):
        obs, following = np.full((20, 20), row % 250, np.uint8), np.full((20, 20), (row + 1) % 250, np.uint8)
        buffer.add(obs, row % 6, float(row), following, False, row % 10 == 9)
        row += 1
        if row % 7 == 0:
            buffer.commit()
            print(row, flush=True)
print(row)
"""
"""Adds rows to a stream, up to a number and until somebody says that it is enough. It says what is committed."""


def create(path: str, capacity: int = 60) -> None:
    dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (20, 20), np.uint8), spaces.Discrete(6), capacity=capacity, frame_stack=3,
        chunk_rows=4, shard_rows=8, reward_dtype=np.float64,
    ).close()  # fmt: skip


Start = Callable[[str, int], subprocess.Popen[str]]


@pytest.fixture
def start(path: str) -> Iterator[Start]:
    """Starts writers of a stream, which go on beyond a row until :func:`enough`; none of them outlives the test."""
    create(path)
    started: list[subprocess.Popen[str]] = []

    def start_one(stream: str, rows: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "error", "-c", WRITER, path, stream, str(rows), f"{path}.enough"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start_one
    for writer in started:
        writer.kill()
        writer.wait()
        for pipe in (writer.stdout, writer.stderr):
            assert pipe is not None
            pipe.close()


def enough(path: str, writer: subprocess.Popen[str]) -> int:
    """The rows that the writer had added when it ended well, after it was told that it may."""
    pathlib.Path(f"{path}.enough").touch()
    said, errors = writer.communicate()
    assert writer.returncode == 0, errors
    return int(said.split()[-1])


def check(batch: dr.Batch) -> None:
    """Every value is a function of the row."""
    rows = batch.index & ((1 << 48) - 1)
    np.testing.assert_array_equal(batch.action, rows % 6)
    np.testing.assert_array_equal(batch.reward, rows)
    np.testing.assert_array_equal(batch.next_obs[:, -1, 0, 0], (rows + 1) % 250)
    for back in range(3):
        want = np.where(rows % 10 >= back, (rows - back) % 250, 0)
        np.testing.assert_array_equal(batch.obs[:, 2 - back], np.broadcast_to(want[:, None, None], (len(rows), 20, 20)))


@pytest.mark.long
def test_a_writer_that_is_killed_goes_on_from_its_last_commit(path: str, start: Start) -> None:
    ends = [0]
    for commits in (0, 1, 2, 5)[:: stride(3, "kills")]:
        writer = start("0", 10**9)
        assert writer.stdout is not None
        assert int(writer.stdout.readline()) == ends[-1]
        said = [int(writer.stdout.readline()) for _ in range(commits)]
        writer.send_signal(signal.SIGKILL)
        _, errors = writer.communicate()
        assert writer.returncode == -signal.SIGKILL, errors
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            ends.append(reader.stats()["streams"]["0"]["end"])
            assert ends[-1] % 7 == 0
            assert ends[-1] >= max(said, default=ends[-2]), "it had said that they were committed"
            if len(reader):
                check(reader.sample(len(reader)))
        assert verify(path).problems == ()


@pytest.mark.long("test_a_writer_that_is_killed_goes_on_from_its_last_commit, and crash/ in one process")
def test_a_reader_beside_a_writer_that_evicts(path: str, start: Start) -> None:
    """The window turns over many times; the reader refreshes now and then, or is overtaken."""
    writer = start("0", 1200)
    assert writer.stdout is not None
    writer.stdout.readline()
    refreshed = samples = 0
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as reader:
        while refreshed < 10 or samples < 30:
            assert writer.poll() is None
            try:
                check(reader.sample(20))
                samples += 1
            except NotEnoughDataError:
                pass
            if samples % 3 == 0:
                refreshed += reader.refresh()
        end = enough(path, writer)
        assert end >= 1200
        reader.refresh()
        assert reader.stats()["streams"]["0"]["end"] == end
        check(reader.get(np.arange(end - 60, end)))


@pytest.mark.long("test_a_writer_that_is_killed_goes_on_from_its_last_commit, and crash/ in one process")
def test_readers_open_at_any_moment(path: str, start: Start) -> None:
    writer = start("0", 1000)
    assert writer.stdout is not None
    writer.stdout.readline()
    for _ in range(20):
        assert writer.poll() is None
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            if len(reader) >= 10:
                check(reader.sample(10))
    assert enough(path, writer) >= 1000


@pytest.mark.long("test_processes_that_make_the_same_stream_at_once, and crash/test_together.py")
def test_two_processes_write_and_a_third_learns(path: str, start: Start) -> None:
    dr.ReplayBuffer.open(path, stream="learner", capacity=10).close()
    writers = [start(name, 700) for name in ("0", "b")]
    with dr.ReplayBuffer.open(path, stream="learner") as learner:
        made = 0
        while made < 5:
            assert all(writer.poll() is None for writer in writers)
            learner.refresh()
            if len(learner) > 30:
                check(learner.sample(30))
                learner.checkpoint(f"point-{made}", {"made": made})
                made += 1
        assert all(enough(path, writer) >= 700 for writer in writers)
        learner.refresh()
        assert len(learner) == 120
        assert {index >> 48 for index in learner.sample(100).index.tolist()} == {0, 2}
    for name in [f"point-{at}" for at in range(made)]:
        with dr.ReplayBuffer.open(path, mode="r", checkpoint=name) as then:
            check(then.sample(len(then)))
    assert verify(path).problems == ()


@pytest.mark.long
def test_processes_that_make_the_same_stream_at_once(path: str, start: Start) -> None:
    pathlib.Path(f"{path}.enough").touch()
    writers = [start("new", 30) for _ in range(4 // stride(2, "writers"))]
    codes = [(writer.communicate(), writer.returncode) for writer in writers]
    losers = [errors for (_, errors), code in codes if code]
    assert len(losers) < len(writers)
    assert all("LockedError" in errors for errors in losers), losers
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert reader.stats()["streams"]["new"]["end"] == 30
    assert sorted(os.listdir(f"{path}/streams")) == ["0", "new", "zarr.json"]  # noqa: PTH208  # names, not paths


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork(2) is what this is about")
def test_a_forked_child_neither_gives_the_lock_back_nor_keeps_it(path: str) -> None:
    """As the workers of a vector environment, which are forked while the buffer is open."""
    create(path)
    buffer = dr.ReplayBuffer.open(path)
    assert buffer.engine.streams.writer is not None

    def child_doing(work: Callable[[], object]) -> int:
        child = fork()
        if not child:
            work()
            os._exit(0)
        return child

    os.waitpid(child_doing(buffer.engine.streams.writer.release), 0)
    with pytest.raises(LockedError):
        dr.ReplayBuffer.open(path)
    sleeper = child_doing(lambda: time.sleep(60))
    try:
        buffer.close()
        dr.ReplayBuffer.open(path).close()
    finally:
        os.kill(sleeper, signal.SIGKILL)
        os.waitpid(sleeper, 0)


@pytest.mark.long
def test_rows_are_added_and_committed_while_the_interpreter_ends(path: str) -> None:
    """No task is taken by a pool of threads then."""
    create(path)
    script = """
import atexit, sys
import numpy as np
import diskreplay as dr

buffer = dr.ReplayBuffer.open(sys.argv[1])

@atexit.register
def end():
    for row in range(23):
        obs, following = np.full((20, 20), row, np.uint8), np.full((20, 20), row + 1, np.uint8)
        buffer.add(obs, 0, float(row), following, False, False)
    buffer.close()
"""
    done = run(script, path)
    assert (done.returncode, done.stderr) == (0, "")
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.get(np.arange(23)).reward.tolist() == list(range(23))
    assert not verify(path).problems


@pytest.mark.parametrize("first", ["checkpoint", "record"])
def test_a_checkpoint_is_made_while_another_stream_goes_back(
    path: str, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever comes first, the checkpoint that was made can be opened, with the rows that it had."""

    def add(buffer: dr.ReplayBuffer, rows: range) -> None:
        for row in rows:
            buffer.add([row], 0, float(row), [row + 1], False, False)

    def rewards(buffer: dr.ReplayBuffer) -> list[float]:
        found: list[float] = buffer.get(buffer.items()).reward.tolist()
        return found

    line = spaces.Box(-np.inf, np.inf, (1,), np.float32), spaces.Discrete(2)
    options: dict[str, Any] = {"capacity": 500, "chunk_rows": 16, "shard_rows": 64}
    with dr.ReplayBuffer.create(path, *line, stream="back", **options) as buffer:
        add(buffer, range(100))
        buffer.checkpoint("here")
        add(buffer, range(100, 200))
    with dr.ReplayBuffer.open(path, stream="other") as other:
        add(other, range(300, 305))
        replace = StreamWriter.replace_record
        replaced: list[Commit] = []

        def replacing(writer: StreamWriter, record: Commit) -> None:
            once = writer.name == "back" and len(replaced) == (first == "record")  # the first one announces the other
            if writer.name == "back":
                replaced.append(record)
            if once and first == "checkpoint":
                other.checkpoint("new")
            replace(writer, record)
            if once and first == "record":
                other.checkpoint("new")

        monkeypatch.setattr(StreamWriter, "replace_record", replacing)
        rows = 200 if first == "checkpoint" else 100
        if first == "checkpoint":
            with pytest.raises(CheckpointError, match=r"would discard rows that \['new'\] still need"):
                dr.ReplayBuffer.open(path, stream="back", checkpoint="here")
        with dr.ReplayBuffer.open(path, stream="back", checkpoint=None if first == "checkpoint" else "here") as buffer:
            assert rewards(buffer)[:rows] == list(range(rows))
            add(buffer, range(400, 450))
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="new") as reader:
        assert rewards(reader) == [*range(rows), *range(300, 305)]
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert rewards(reader) == [*range(rows), *range(400, 450), *range(300, 305)]
    assert not verify(path).problems
