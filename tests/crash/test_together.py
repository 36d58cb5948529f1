"""Many writers, readers and threads at once: nobody is ever given another row."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from helpers import lives
from helpers.effort import examples
from helpers.forking import forked, start
from helpers.patience import PATIENCE
from helpers.threads import over_and_over

import diskreplay as dr
from diskreplay.errors import EvictedError, LockedError, NotEnoughDataError, StoreExistsError
from diskreplay.ops.verify import verify

ROWS = 150 * examples(1)
LEAST = {
    "add": examples(100, "turns of threads", least=30),
    "commit": 20,
    "checkpoint": 5,
    "sample": examples(20, least=20),
    "update": 20,
}
"""How often each thread has its turn before the test is over."""
ACTORS = 3
RACES = examples(6, "races", least=2)


@pytest.mark.long("test_threads_that_do_everything_at_once")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_actors_write_and_a_learner_samples_from_all(path: str, method: str) -> None:
    """The learner is open, with a stream and a lock of its own, when the actors are started."""
    lives.create(path).close()
    num_envs = {0: 2, 1: 1, 2: 3, 3: 2}
    with dr.ReplayBuffer.open(path, **lives.OPTIONS, sampler=dr.Proportional(), seed=0) as learner:
        for number in range(1, ACTORS + 1):
            envs = num_envs[number]
            dr.ReplayBuffer.open(path, stream=f"actor-{number}", num_envs=envs, capacity=40 * envs).close()
        actors = [start(lives.write, path, f"actor-{n}", n, ROWS, n, method=method) for n in range(1, ACTORS + 1)]
        row, seen, all_streams = 0, set(), set(range(ACTORS + 1))
        while any(actor.is_alive() for actor, _ in actors) or (seen != all_streams and row < 10 * ROWS):
            for _, pipe in actors:
                while pipe.poll():
                    try:
                        pipe.recv()
                    except EOFError:
                        break
            learner.refresh()
            lives.add(learner, 1)
            row += 1
            if len(learner) > 64:
                batch = learner.sample(64)
                lives.check(batch, num_envs)
                learner.update_priorities(batch.index, batch.reward)
                seen |= {index >> lives.ROW_BITS for index in batch.index.tolist()}
            if row % 40 == 0:
                learner.checkpoint(f"point-{row}")
                for old in [name for name in learner.checkpoints if name.startswith("point-")][:-1]:
                    learner.drop_checkpoint(old)
        assert [actor.exitcode for actor, _ in actors] == [0] * ACTORS
        learner.refresh()
        lives.check_all(learner)
        ends = {name: state["end"] for name, state in learner.stats()["streams"].items()}
    assert seen == all_streams
    assert all(ends[f"actor-{number}"] >= ROWS for number in range(1, ACTORS + 1))
    assert verify(path).problems == ()


def test_a_second_writer_is_told_who_holds_the_stream(path: str) -> None:
    lives.create(path).close()
    writer, pipe = start(lives.write, path, "0", 0, 1 << 40, 0)
    try:
        assert pipe.poll(PATIENCE)
        with pytest.raises(LockedError) as caught:
            dr.ReplayBuffer.open(path)
        if pathlib.Path("/proc/locks").exists():
            assert f"process {writer.pid} (" in str(caught.value)
        assert f"{path}/streams/0" in str(caught.value)
        with dr.ReplayBuffer.open(path, stream="mine"):  # another stream is free
            pass
    finally:
        writer.kill()
        writer.join()
    dr.ReplayBuffer.open(path).close()


def make(path: str, pipe: Connection) -> None:
    pipe.recv()
    try:
        lives.create(path).close()
    except StoreExistsError:
        pipe.send("exists")
    else:
        pipe.send("made")


def test_processes_that_make_the_same_store_at_once(tmp_path: pathlib.Path) -> None:
    for turn in range(RACES):
        makers = [start(make, str(tmp_path / f"{turn}.replay")) for _ in range(4)]
        for _, pipe in makers:
            pipe.send("go")
        assert sorted(pipe.recv() for _, pipe in makers) == ["exists", "exists", "exists", "made"]
        for maker, _ in makers:
            maker.join()
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"{turn}.replay" for turn in range(RACES)]


@pytest.mark.long
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_reader_that_outlives_its_rows(path: str, cache_bytes: int) -> None:
    """The window turns over under a reader that never refreshes by itself: new rows or a named error, no others."""
    writer = lives.create(path)
    lives.add(writer, 40)
    writer.commit()
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=cache_bytes) as reader:
        old = reader.sample(40)
        for row in range(40, 400):
            writer.add(**lives.step(0, row, 2))
            if row % 9 == 0:
                writer.commit()
            if row % 50 == 0:
                lives.check(reader.sample(40), {0: 2})
                with contextlib.suppress(EvictedError):
                    lives.check(reader.get(old.index), {0: 2})
        writer.commit()
        reader.refresh()
        with pytest.raises(EvictedError, match="left the window"):
            reader.get(old.index)
        assert reader.sample(40).index.min() >= 360 * 2
        lives.check_all(reader)
    writer.close()


@pytest.mark.long
@pytest.mark.parametrize("sampler", [dr.Uniform, dr.Proportional, dr.RankBased])
@pytest.mark.parametrize("mode", ["threads", "threads and a reader"])
def test_threads_that_do_everything_at_once(path: str, sampler: Callable[[], Any], mode: str) -> None:
    """One adds, one commits, one makes and drops checkpoints, two sample, one updates priorities."""
    buffer = lives.create(path, sampler=sampler(), seed=0, cache_bytes=1 << 14)
    turns = collections.Counter[str]()
    rows = iter(range(1 << 40))
    batches: list[dr.Batch] = []

    def add() -> None:
        buffer.add(**lives.step(0, next(rows), 2))

    def commit() -> None:
        buffer.commit()
        time.sleep(0.002)

    def checkpoint() -> None:
        buffer.checkpoint(f"at-{turns['checkpoint']}")
        for name in buffer.checkpoints[:-1]:
            buffer.drop_checkpoint(name)
        time.sleep(0.01)

    def sample() -> None:
        try:
            batches.append(buffer.sample(32))
        except NotEnoughDataError:
            time.sleep(0.001)
            return
        lives.check(batches[-1], {0: 2})
        del batches[:-4]

    def update() -> None:
        if batches and sampler is not dr.Uniform:
            batch = batches[-1]
            buffer.update_priorities(batch.index, np.abs(batch.reward) + 1)
        time.sleep(0.001)

    reader = start(lives.read, path, {0: 2}) if mode != "threads" else None
    jobs = {"add": add, "commit": commit, "checkpoint": checkpoint, "sample": sample, "another": sample}
    over_and_over({**jobs, "update": update}, LEAST, turns)
    lives.check_all(buffer)
    buffer.close()
    if reader:
        reader[1].send("stop")
        assert reader[1].poll(PATIENCE), "the reader failed"
        assert reader[1].recv()[0] > 0
    with dr.ReplayBuffer.open(path) as buffer:
        lives.check_all(buffer)
    assert verify(path).ok


def test_a_forked_child_cannot_write(path: str) -> None:
    """It has a copy of everything but the right to write; the parent goes on."""
    buffer = lives.create(path)
    lives.add(buffer, 1)
    before = sorted((str(one), one.stat().st_size) for one in pathlib.Path(path).rglob("*"))
    for deed in (buffer.commit, lambda: buffer.checkpoint("no"), lambda: buffer.add(**lives.step(0, 1, 2))):
        assert forked(deed).startswith("StateError")
    assert sorted((str(one), one.stat().st_size) for one in pathlib.Path(path).rglob("*")) == before
    lives.add(buffer, 1)
    buffer.commit()
    lives.check_all(buffer)
    buffer.close()
