"""What a store holds in RAM, by one budget: the same batches whatever that is, and no more bytes than that."""

from __future__ import annotations

import gc
import pathlib
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Discrete
from helpers import commands
from helpers.configs import CONFIGS, WIDE, Config
from helpers.model import Leaf
from helpers.recording import Recording, reopen
from helpers.view_model import VIEWS, content

import diskreplay as dr
from diskreplay.engine import memory, run
from diskreplay.errors import NotEnoughDataError
from diskreplay.process import lifecycle
from diskreplay.reading import budget
from diskreplay.reading.budget import Budget
from diskreplay.reading.cache import ChunkCache
from diskreplay.schema.spec import build

DIM = 300
SPACE, TURN = Box(-np.inf, np.inf, (DIM,), np.float32), Discrete(2)
ROW = DIM * 4
"""More bytes than a small value has."""
OPEN: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9}
FLOATS = [
    Config("floats", Leaf((9,), np.float32), num_envs=2, n_step=2, columns={"logits": ((5,), np.float64)}),
    Config("stacked floats", Leaf((9,), np.float32), frame_stack=3, padding="reset", num_envs=2, capacity=31),
    Config("stacks of floats", Leaf((3, 9), np.float32, frames=3, axis=0), frame_stack=3, capacity=40),
    Config("floats beside frames", {"a": Leaf((9,), np.float32), "b": Leaf((4, 5))}, frame_stack={"a": 1, "b": 2}),
]


def add(rb: dr.ReplayBuffer, start: int, count: int) -> None:
    obs = np.repeat(np.arange(start, start + count + 1, dtype=np.float32)[:, None], DIM, axis=1)
    flags = np.zeros(count, bool)
    ends = flags | (np.arange(start, start + count) % 20 == 19)
    rb.extend(obs[:-1], flags.astype(int), obs[:-1, 0], obs[1:] + 0.5 * ends[:, None], flags, ends)


def check(rb: dr.ReplayBuffer) -> None:
    batch = rb.get(rb.items())
    at = batch.reward
    np.testing.assert_array_equal(batch.obs, np.repeat(at[:, None], DIM, axis=1))
    np.testing.assert_array_equal(batch.next_obs[:, 7], at + 1 + 0.5 * (at % 20 == 19))


def create(path: Any, capacity: int = 100, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, SPACE, TURN, capacity=capacity, **OPEN, **options)


def held(rb: dr.ReplayBuffer) -> bool:
    """Whether observations are in RAM; the log and what is said agree."""
    in_log = {"obs" in stream.log.table.arrays for stream in rb.engine.streams}
    (found,) = in_log
    facts = rb.stats()["held"]
    assert found == ("obs" in facts["columns"]) == (facts["bytes"] > 0)
    return found


@pytest.mark.long(quick=6)
@pytest.mark.parametrize("config", [*FLOATS, *CONFIGS, *WIDE], ids=repr)
def test_batches_are_the_same_bit_for_bit(config: Config, tmp_path: pathlib.Path) -> None:
    """As they are written, before and after a commit, of two streams, of readers, as the window moves on and grows."""
    contents = []
    for share in (0.0, 1.0):
        path, found = str(tmp_path / f"{share:g}"), []
        rng = np.random.default_rng(1)
        with config.create(path) as buffer, reopen(config, path, stream="b", capacity=20 * config.num_envs) as other:
            budget.HELD_SHARE = share
            buffer.close()
            with reopen(config, path, stream="0", seed=3) as buffer:
                readers = [dr.ReplayBuffer.open(path, mode="r", cache_bytes=size, seed=4) for size in (1 << 20, None)]
                recordings = [Recording(config, 5), Recording(config, 6)]
                large = max(8, config.resident_bytes)
                floats = [c for c in buffer.schema.columns if c.dtype.kind == "f" and c.item_bytes > large]
                for turn in range(4):
                    for rows, recording, of in zip((30, 7), recordings, (buffer, other), strict=True):
                        recording.add(of, rows, 0.3, commit=turn != 2)
                    for of in (buffer, *readers):
                        of.refresh()
                        for view in VIEWS:
                            of.draws.view = of.draws.shown = view
                            of.engine.rng.bit_generator.state = np.random.default_rng(
                                rng.integers(99)
                            ).bit_generator.state
                            try:
                                found += [content(of.sample(size)) for size in (1, 7)]
                            except NotEnoughDataError:
                                rng.integers(9)
                        names = {*of.stats()["held"]["columns"]}
                        assert {c.name for c in floats} <= names if share else not {c.name for c in floats} & names
                    if turn == 1:
                        buffer.resize(3 * config.capacity)
                for reader in readers:
                    reader.close()
        contents.append(found)
    assert contents[0] == contents[1]


def test_small_values_come_first_and_frames_go_to_the_cache() -> None:
    space = {"vector": SPACE, "picture": Box(0, 255, (40, 40), np.uint8), "map": Box(0, 1, (40, 40), np.float32)}
    schema = build(spaces.Dict(space), TURN, capacity=10, columns={"wide": ((DIM + 1,), np.float64)})
    window = 1 << 20
    always = {"action", "reward", "terminated", "truncated", "valid", "start"}
    for budget_bytes, more in (
        (0, {}),
        (ROW * window, {}),
        (ROW * window + 1, {"obs/vector": ROW * window}),
        (2 * ROW * window, {"obs/vector": ROW * window}),
        (6400 * window, {"obs/vector": ROW * window, "wide": 8 * (DIM + 1) * window}),
        (1 << 60, {"obs/vector": ROW * window, "wide": 8 * (DIM + 1) * window, "obs/map": 6400 * window}),
    ):
        assert schema.held(window, window, budget_bytes) == dict.fromkeys(always, 0) | more
    assert schema.held(10).keys() == always  # of a short window, too: values of more than 1 kB are not small


def test_what_is_held_fits_into_the_budget(path: str) -> None:
    """The window that is written counts as full; of other streams counts what is there."""
    with create(path, 100, cache_bytes=100 * ROW) as rb:
        add(rb, 0, 30)
        assert not held(rb)
        check(rb)
    with dr.ReplayBuffer.open(path, cache_bytes=101 * ROW + 1) as rb:  # and a final observation
        assert held(rb)
        assert rb.stats()["held"]["bytes"] == 101 * ROW
        check(rb)
        add(rb, 30, 100)
        check(rb)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=(100 + 5) * ROW) as rb:  # with 5 final observations
        assert not held(rb)
        check(rb)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=(100 + 5) * ROW + 1) as rb:
        assert held(rb)
        check(rb)


def test_a_reader_lets_go_of_what_grows_out_of_its_budget(path: str) -> None:
    with create(path) as rb, dr.ReplayBuffer.open(path, mode="r", cache_bytes=50 * ROW) as reader:
        for start in range(0, 60, 10):
            add(rb, start, 10)
            rb.commit()
            assert reader.refresh()
            assert held(reader) == (start < 40)
            check(reader)
        rb.clear()
        add(rb, 0, 3)
        rb.commit()
        reader.refresh()
        assert not held(reader)  # before it is opened again
        check(reader)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=50 * ROW) as reader:
        assert held(reader)


def test_resizing_lets_go_too(path: str) -> None:
    with create(path, cache_bytes=150 * ROW) as rb:
        add(rb, 0, 70)
        assert held(rb)
        rb.resize(149)
        assert held(rb)
        rb.resize(150)
        assert not held(rb)
        add(rb, 70, 100)
        check(rb)
        rb.resize(20)
        assert not held(rb)
        check(rb)
    with dr.ReplayBuffer.open(path) as rb:
        assert held(rb)


def test_the_buffers_of_a_process_share_a_budget(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "left", lambda: 4 * 250 * ROW)
    gc.collect()
    with create(tmp_path / "a") as first, create(tmp_path / "b") as second:
        monkeypatch.setattr(memory, "left", lambda: 1 << 40)  # what is left later does not count
        with create(tmp_path / "c") as third, create(tmp_path / "d", cache_bytes=1 << 20) as own:
            assert [held(rb) for rb in (first, second, third, own)] == [True, True, False, True]
            for rb in (first, second, third, own):
                add(rb, 0, 90)
                rb.commit()
                check(rb)
                check(rb)
            caches = [rb.engine.streams.cache for rb in (first, second, third)]
            assert 0 < sum(cache.held_bytes + cache.used_bytes for cache in caches) <= 250 * ROW
            assert {rb.stats()["cache_bytes"] for rb in (first, second, third)} == {250 * ROW}
        del third, own, rb, caches
        with create(tmp_path / "e", 49) as later:
            assert held(later)
            second.close()
            with create(tmp_path / "f") as last:
                assert held(last)
    gc.collect()
    with dr.ReplayBuffer.open(tmp_path / "a") as anew:
        assert anew.stats()["cache_bytes"] == 1 << 38


def test_caches_share_what_is_not_held() -> None:
    shared = Budget(1000)
    caches = [ChunkCache(shared) for _ in range(3)]
    caches[0].held_bytes, caches[1].used_bytes = 500, 300
    assert (shared.left(), shared.besides(caches[1]), shared.to_hold(caches[0])) == (200, 500, 700)
    assert [caches[2].has_room(size) for size in (200, 201)] == [True, False]
    del caches[1]
    gc.collect()
    assert caches[1].has_room(500)


def test_many_children_of_a_fork_do_not_take_a_share_each(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, own = Budget(1000, 300), Budget(1000)
    caches = [ChunkCache(shared), ChunkCache(own)]
    for cache in caches:
        cache.held_bytes, cache.used_bytes = 500, 100
    assert [budget.left() for budget in (shared, own)] == [400, 400]
    monkeypatch.setattr(lifecycle, "process", -1)
    assert [budget.left() for budget in (shared, own)] == [200, 900]


def test_memory_is_taken_as_rows_come(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "left", lambda: 1 << 44)
    with create(path, 10**7) as rb:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        add(rb, 0, 100)
        check(rb)
        assert held(rb)
        assert rb.stats()["held"]["bytes"] == 10**7 * ROW
        assert sum(array.nbytes for array in rb.engine.streams.shown.log.table.arrays.values()) < 2048 * ROW
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_limit_of_the_address_space(path: str) -> None:
    """A window that fits in a quarter of it, and one that does not."""
    with create(path, 1 << 17) as rb:
        add(rb, 0, 10)
    code = f"""
import resource, sys
import diskreplay as dr
from diskreplay.engine import memory
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
most = taken + 4 * int(sys.argv[1]) * {(1 << 17) * ROW}
resource.setrlimit(resource.RLIMIT_AS, (most, most))
with dr.ReplayBuffer.open({path!r}, mode="r+") as rb:
    facts = rb.stats()
    print(facts["held"]["bytes"], facts["cache_bytes"] <= (most - taken) // 4)
    rb.sample(5)
"""
    for windows, bytes_held in ((1, 0), (3, (1 << 17) * ROW)):
        done = subprocess.run([sys.executable, "-c", code, str(windows)], capture_output=True, text=True, check=False)
        assert (done.stdout.split(), done.stderr) == ([str(bytes_held), "True"], "")


def test_a_limit_of_the_control_group(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_group_limits", lambda: [1 << 30])
    with create(path, (1 << 28) // ROW) as rb:
        assert not held(rb)  # for the process holds something already
        assert rb.stats()["cache_bytes"] < 1 << 28
    with dr.ReplayBuffer.open(path, mode="a", stream="b") as rb:
        assert rb.stats()["cache_bytes"] <= run.APPENDING_BYTES


def test_inspect_says_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(path, 1000) as rb:
        add(rb, 0, 10)
    monkeypatch.setattr(memory, "left", lambda: 8000 * ROW)
    facts = commands.facts("inspect", path)
    assert facts["budget_bytes"] == 2000 * ROW
    assert all(column["resident"] for column in facts["columns"])
    assert "in RAM" in (told := commands.said("inspect", path))
    assert "all columns, by a budget of 2.4 MB" in told
    monkeypatch.setattr(memory, "left", lambda: 4000 * ROW)
    facts = commands.facts("inspect", path)
    assert [column["name"] for column in facts["columns"] if not column["resident"]] == ["obs", "patches/obs"]
    assert "all columns but obs, by a budget of" in commands.said("inspect", path)


def test_a_store_under_a_url_holds_what_is_small(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(path) as rb:
        add(rb, 0, 10)
    monkeypatch.setattr("diskreplay.engine.streams.is_url", lambda path: True)
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        assert not held(rb)
        check(rb)
