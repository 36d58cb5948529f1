"""Forked processes: children of readers sample, each for itself, and no child waits for a thread that is gone."""

from __future__ import annotations

import multiprocessing
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.effort import examples
from helpers.forking import forked
from helpers.programs import run
from helpers.threads import held

import diskreplay as dr
from diskreplay.process import lifecycle

SPACE, ACTIONS = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
FRAMES = gymnasium.spaces.Box(0, 255, (20, 20), np.uint8)
ROWS = 400


def create(path: str | pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    """Every value is a function of the row; frames are on disk, in chunks of 8."""
    buffer = dr.ReplayBuffer.create(
        path, FRAMES, ACTIONS, capacity=ROWS, chunk_rows=8, reward_dtype=np.float64, **options
    )
    add(buffer, 0, ROWS)
    buffer.commit()
    return buffer


def add(buffer: dr.ReplayBuffer, first: int, stop: int) -> None:
    for row in range(first, stop):
        frames = [np.full((20, 20), at % 251, np.uint8) for at in (row, row + 1)]
        buffer.add(frames[0], row % 2, float(row), frames[1], False, row % 10 == 9)


def check(batch: dr.Batch) -> list[int]:
    rows: list[int] = batch.index.tolist()
    assert batch.reward.tolist() == rows
    assert (batch.obs[:, 3, 5] == np.array(rows) % 251).all()
    assert (batch.next_obs[:, 3, 5] == (np.array(rows) + 1) % 251).all()
    return rows


def draw(buffer: dr.ReplayBuffer) -> Callable[[], list[int]]:
    return lambda: check(buffer.sample(30))


@pytest.mark.long
@pytest.mark.parametrize("sampler", [dr.Uniform, dr.Proportional, dr.RankBased])
def test_children_of_a_reader_differ_and_are_the_same_again(path: str, sampler: Callable[[], Any]) -> None:
    """Regression: all children, and their parent, drew the same batches."""
    create(path, sampler=sampler()).close()

    def batches() -> list[list[int]]:
        with dr.ReplayBuffer.open(path, mode="r", seed=3) as reader:
            drawn = [draw(reader)() for _ in range(2)]
            drawn += [forked(draw(reader)) for _ in range(2)]
            drawn.append(forked(lambda: forked(draw(reader))))
            drawn.append(draw(reader)())
            drawn.append(forked(draw(reader)))
            return drawn

    first = batches()
    assert len({tuple(one) for one in first}) == len(first) == 7
    assert batches() == first
    with dr.ReplayBuffer.open(path, mode="r", seed=3) as reader:
        unforked = [draw(reader)() for _ in range(3)]
    assert unforked == [first[0], first[1], first[5]], "a fork changed what the parent draws"


def test_a_readers_pass_goes_on_in_its_child(path: str) -> None:
    create(path).close()
    with dr.ReplayBuffer.open(path, mode="r", seed=3) as reader:
        batches = reader.shuffled(30, pool_bytes=10_000)
        first = check(next(batches))
        rest = forked(lambda: [row for batch in batches for row in check(batch)])
        assert sorted(first + rest) == list(range(ROWS))
        assert sorted(first + [row for batch in batches for row in check(batch)]) == list(range(ROWS))


@pytest.mark.long
def test_a_writers_child_refuses_and_can_open_the_store(path: str) -> None:
    with create(path) as buffer:
        under_way = buffer.shuffled(30, pool_bytes=10_000)
        check(next(under_way))
        for work in (
            lambda: buffer.sample(3), lambda: buffer.get([3]), lambda: add(buffer, 0, 1), buffer.commit,
            lambda: buffer.checkpoint("no"), lambda: next(buffer.shuffled(3)), buffer.refresh, buffer.clear,
            lambda: next(buffer.loader(3)),
        ):  # fmt: skip
            assert forked(work).startswith("StateError: this process was forked from the one that writes")
        assert str(forked(lambda: [row for batch in under_way for row in check(batch)])).startswith(("[", "StateError"))
        assert forked(lambda: len(buffer)) == ROWS

        def open_it() -> list[int]:
            with dr.ReplayBuffer.open(path, mode="r") as reader:
                return check(reader.sample(5))

        assert (len(forked(open_it)), buffer.checkpoints) == (5, [])
        draw(buffer)()


def test_a_child_is_refused_its_parents_loader(path: str) -> None:
    create(path).close()
    with dr.ReplayBuffer.open(path, mode="r") as reader, reader.loader(8) as loader:
        check(next(loader))
        assert "the loader's thread is in the process" in forked(lambda: next(loader))
        assert forked(loader.close) is None

        def own() -> list[int]:
            with reader.loader(8) as mine:
                return check(next(mine))

        assert len(forked(own)) == 8
        check(next(loader))


@pytest.mark.long("test_fifty_forks_beside_busy_threads")
def test_a_fork_by_the_thread_that_samples(path: str) -> None:
    """A view's own code forks: the locks are its thread's in the child too."""
    goal = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    space = gymnasium.spaces.Dict(observation=goal, achieved_goal=goal, desired_goal=goal)
    found: list[Any] = []

    def reward(achieved: Any, desired: Any, info: Any) -> Any:
        if not found and not nested:
            found.append(forked(lambda: len(reader.sample(3))))
        return np.zeros(len(achieved), np.float32)

    nested: list[int] = []
    obs = dict.fromkeys(("observation", "achieved_goal", "desired_goal"), np.zeros(1, np.float32))
    with dr.ReplayBuffer.create(path, space, ACTIONS, capacity=99) as buffer:
        for at in range(20):
            buffer.add(obs, 0, 0.0, obs, False, at % 5 == 4)
    with dr.ReplayBuffer.open(path, mode="r", view=dr.Hindsight(reward)) as reader:

        def child() -> int:
            nested.append(1)
            return len(reader.sample(3))

        assert len(reader.sample(8)) == 8
        nested.clear()
        assert forked(child) == 3
    assert found == [3]


def test_a_fork_that_can_wait_no_longer_gives_a_refused_copy(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    create(path).close()
    monkeypatch.setattr(lifecycle, "FORK_SECONDS", 0.05)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        with held(reader.engine.lock):
            said = forked(draw(reader))
        assert said.startswith("StateError: this process was forked while another thread was using the buffer: open")
        assert len(forked(draw(reader))) == 30


def test_the_workers_of_a_pool(path: str) -> None:
    create(path).close()
    with dr.ReplayBuffer.open(path, mode="r", seed=0) as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        shared["reader"] = reader
        with multiprocessing.get_context("fork").Pool(3) as pool:
            given = pool.map(_draw_shared, range(12), chunksize=1)
        assert len({tuple(one) for one in given}) == 12


shared: dict[str, dr.ReplayBuffer] = {}


def _draw_shared(_: int) -> list[int]:
    return draw(shared["reader"])()


STORM = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
import diskreplay as dr
from engine.test_forks import ROWS, add, check, create
from diskreplay.process import lifecycle
from diskreplay.errors import MisuseWarning, StateError
from helpers.patience import PATIENCE

warnings.simplefilter("ignore", MisuseWarning)  # episodes follow each other without a first observation of their own
lifecycle.FORK_SECONDS = PATIENCE
path, what = sys.argv[1], sys.argv[2]
sampler = dr.Proportional if what.startswith("priorities") else dr.Uniform
buffer = create(path, sampler=sampler(), commit_rows=10, seed=0)
if what.startswith("write"):
    rb = buffer
else:
    buffer.close()
    rb = dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=1 << 15)
stop = threading.Event()

def sample():
    while not stop.is_set():
        check(rb.sample(30))

def write():
    row = ROWS
    while not stop.is_set():
        add(rb, row, row + 1)
        row += 1

def shuffle():
    while not stop.is_set():
        for batch in rb.shuffled(20, pool_bytes=5000):
            check(batch)

works = {
    "sample": [sample], "priorities": [sample], "shuffle": [shuffle], "load": [],
    "write": [write], "write and sample": [write, sample], "write and load": [write],
}[what]
threads = [threading.Thread(target=work, daemon=True) for work in works]
for thread in threads:
    thread.start()
loader = rb.loader(10) if "load" in what else None
sampled = refused = 0
for turn in range(int(sys.argv[3])):
    if loader:
        check(next(loader))
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE))  # hung
        try:
            for _ in range(3):
                check(rb.sample(30))
            code = 7
        except StateError:
            code = 8
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (7, 8), (turn, code)
    sampled, refused = sampled + (code == 7), refused + (code == 8)
stop.set()
for thread in threads:
    thread.join()
if loader:
    loader.close()
print(sampled, refused)
rb.close()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "what", ["sample", "priorities", "shuffle", "write", "write and sample", "load", "write and load"]
)
def test_fifty_forks_beside_busy_threads(path: str, what: str) -> None:
    """Regression: the child hung in 14 of 15 forks, with the lock that a thread of its parent held."""
    turns = examples(50, "forks", least=8)
    done = run(STORM, path, what, turns, flags=("-Wignore::UserWarning",))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["0", str(turns)] if what.startswith("write") else [str(turns), "0"])


IMPORTS = """
import os, sys, threading, time
import diskreplay as dr
from diskreplay.process import lifecycle

lifecycle.FORK_SECONDS = 800.0
rb = dr.ReplayBuffer.open(sys.argv[1], mode="r")
import logging
within = threading.Event()

def load():
    with rb.engine.lock:
        within.set()
        time.sleep(0.3)  # the fork waits for the lock by now
        logging.getLogger("of a library that a batch loads")

threading.Thread(target=load).start()
within.wait()
child = os.fork()
if not child:
    os._exit(bool(rb.engine.refused))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.long
def test_a_fork_beside_a_thread_that_loads_a_library(path: str) -> None:
    """Regression: the fork held the lock of ``logging``, which was imported after this package, while it waited."""
    create(path).close()
    done = run(IMPORTS, path, flags=("-Wignore",))
    assert (done.stdout, done.stderr, done.returncode) == ("0\n", "", 0)
