"""Writers on the real file system, killed at random moments while others read: every row is compared."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import time
from multiprocessing.connection import Connection

import pytest
from helpers import lives
from helpers.effort import examples
from helpers.forking import start
from helpers.line import rows_in
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles

KILLS = examples(25, "kills", least=8)


def told(pipe: Connection) -> list[tuple[str, int]]:
    """All that a process has said before it died."""
    messages = []
    try:
        while pipe.poll():
            messages.append(pipe.recv())
    except EOFError:
        pass
    return messages


def test_writers_that_are_killed_beside_readers(path: str, record_property: pytest.RecordProperty) -> None:
    rng = random.Random(1)
    lives.create(path).close()
    readers = [start(lives.read, path, {0: 2}) for _ in range(2)]
    end = rows = inside = kills = 0
    # Where a kill falls is up to the machine: there are more of them until one fell inside a commit.
    while kills < KILLS or (not inside and kills < 20 * KILLS):
        kills += 1
        writer, pipe = start(lives.write, path, "0", 0, 1 << 40, kills)
        messages = [pipe.recv() for _ in range(rng.randrange(12)) if pipe.poll(PATIENCE)]
        time.sleep(rng.uniform(0, 0.02))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        messages += told(pipe)
        assert writer.exitcode == -signal.SIGKILL, "the writer failed by itself"
        committed = max([end, *(row for what, row in messages if what == "committed")])
        announced = max([end, *(row for what, row in messages if what == "committing")])
        inside += announced > committed
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            end = reader.stats()["streams"]["0"]["end"]
            assert end in (committed, announced)
            rows += lives.check_all(reader)
            for name in reader.checkpoints[-1:]:
                with dr.ReplayBuffer.open(path, mode="r", checkpoint=name) as then:
                    rows += lives.check_all(then)
        if kills % 10 == 1:
            assert verify(path).problems == ()
            assert all(reader.is_alive() for reader, _ in readers)
    sampled = 0
    for reader, pipe in readers:
        pipe.send("stop")
        assert pipe.poll(PATIENCE), "a reader failed"
        sampled += pipe.recv()[1]
        reader.join()
        assert reader.exitcode == 0
    record_property(
        "figures",
        f"{kills} kills, {inside} of them inside a commit; {end:,} rows committed, {rows:,} transitions compared "
        f"after kills, {sampled:,} by readers",
    )
    assert inside
    assert end > kills
    assert sampled > 100
    with dr.ReplayBuffer.open(path) as buffer:
        for name in buffer.checkpoints:
            buffer.drop_checkpoint(name)
        buffer.commit()
    assert not [one for one in pathlib.Path(path).rglob("*") if "tmp" in one.name]
    assert len(list(pathlib.Path(path, "streams/0/obs").glob("c.*"))) <= 7


class ToldFiles(LocalFiles):
    """Says of each directory that it makes, and each rename, before it does so, and waits for an answer."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def mkdir(self, path: str) -> None:
        self._ask(path)
        super().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._ask(source)
        super().rename(source, target)

    def _ask(self, path: str) -> None:
        self._pipe.send(path)
        self._pipe.recv()


def make(path: str, pipe: Connection) -> None:
    lives.create(path, files=ToldFiles(pipe)).close()
    pipe.send("made")


def test_kills_while_a_store_is_made(tmp_path: pathlib.Path) -> None:
    """What a creation that was killed leaves is removed by the next one."""
    rng = random.Random(2)
    path = tmp_path / "a.replay"
    made = left = 0
    for _ in range(examples(12, "kills", least=12)):
        maker, pipe = start(make, str(path))
        for _ in range(rng.randrange(1, 30)):
            if pipe.recv() == "made":
                break
            pipe.send("go on")
        maker.kill()
        maker.join()
        try:
            assert rows_in(path, mode="r+") == 0
        except StoreNotFoundError:
            found = [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
            assert len(found) <= 1
            left += len(found)
        else:
            made += 1
            path = tmp_path / f"{made}.replay"
            assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
    assert left
    lives.create(str(path)).close()
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]


def write_beside_a_child(path: str, pipe: Connection) -> None:
    buffer = lives.create(path)
    lives.add(buffer, 1)
    buffer.commit()
    if not os.fork():
        pipe.send(os.getpid())  # by the child, which lets go of the lock when it first runs: a busy machine may be late
    time.sleep(600)


def test_a_forked_child_does_not_keep_a_killed_writers_lock(path: str) -> None:
    writer, pipe = start(write_beside_a_child, path)
    assert pipe.poll(PATIENCE)
    child = pipe.recv()
    try:
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        os.kill(child, 0)  # still there
        with dr.ReplayBuffer.open(path) as buffer:
            lives.check_all(buffer)
    finally:
        os.kill(child, signal.SIGKILL)
