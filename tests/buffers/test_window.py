"""The window moves on, its disk space is given back, checkpoints keep what they need, and ids stay."""

from __future__ import annotations

import pathlib
import time

import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf
from helpers.recording import Recording, recorded_in, reopen

import diskreplay as dr
from diskreplay.errors import EvictedError
from diskreplay.storage import tail

PLAIN = Config("plain", Leaf((40,)), capacity=24, chunk_rows=2, shard_rows=4, small_chunk_rows=2, small_shard_rows=4)
PLACES = "patches/place"


def shards(path: str, column: str) -> list[int]:
    """Numbers of the shards on disk."""
    return sorted(int(file.name.split(".")[1]) for file in pathlib.Path(path, "streams/0", column).glob("c.*"))


def disk_bytes(path: str) -> int:
    return sum(file.stat().st_size for file in pathlib.Path(path).rglob("*") if file.is_file())


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("config", CONFIGS, ids=repr)
def test_just_the_shards_of_the_window_are_left(path: str, config: Config) -> None:
    with recorded_in(config, path) as (buffer, recording):
        context = buffer.schema.context
        for _ in range(12):
            recording.add(buffer, 9, commit=True)
            floor = max(0, recording.log.begin - context)
            arrays = buffer.engine.store.newest_commit("0").arrays
            for column in buffer.schema.columns:
                stored = arrays.get(column.name)
                rows = buffer.engine.streams.written.disk.rows[column.name].column.shard_rows
                assert recording.log.end - (stored.rows if stored else 0) <= rows, "a shard that is full has its file"
                expected = list(range(floor // rows, stored.shard + 1)) if stored else []
                assert shards(path, column.name) == expected, column.name
        recording.check(buffer)
        stream = buffer.stats()["streams"]["0"]
        commit = buffer.engine.store.newest_commit("0")
        stored, table = commit.arrays.get(PLACES), commit.of(PLACES)
        expected = list(range(table.needed_from // stored.shard_rows, stored.shard + 1)) if stored else []
        assert shards(path, PLACES) == expected
        assert stream["patches"] <= (config.capacity // config.num_envs + context + 2) * config.num_envs * (context + 2)


@pytest.mark.long
def test_disk_usage_is_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "LEFT_BYTES", 0)  # of tails that were left the last one stays
    small = {"small_shard_rows": 60, "resident_bytes": 24}
    config = Config("noise", Leaf((600,)), capacity=60, chunk_rows=2, shard_rows=6, **small)
    recording = Recording(config)
    sizes = []
    with config.create(path) as buffer:
        for _ in range(40):
            for _ in range(30):
                recording.add(buffer, 6, commit=True)
            sizes.append(disk_bytes(path))
    assert min(sizes) > 60 * 600 * 0.6
    # The patch table's shards are long; it has turned over twice by now.
    assert max(sizes[20:]) < 1.2 * max(sizes[:20]), "the store grows though its window does not"


def test_ids_are_never_given_again(path: str) -> None:
    recording = Recording(PLAIN)
    PLAIN.create(path).close()
    for _ in range(5):
        with reopen(PLAIN, path) as buffer:
            recording.add(buffer, 17, commit=True)
            recording.check(buffer)
    with reopen(PLAIN, path) as buffer:
        recording.check(buffer)
        with pytest.raises(EvictedError):
            buffer.get([0])


def test_a_checkpoint_pins_and_dropping_it_gives_back(path: str) -> None:
    with recorded_in(PLAIN, path, 30) as (buffer, recording):
        buffer.checkpoint("one")
        kept = set(shards(path, "obs"))
        assert kept == {1, 2, 3, 4, 5, 6, 7}
        recording.add(buffer, 200, commit=True)
        assert kept <= set(shards(path, "obs"))
        with dr.ReplayBuffer.open(path, mode="r", checkpoint="one") as reader:
            assert len(reader) == 24 - sum(not step.valid for row in recording.log.rows[6:30] for step in row)
            assert set((reader.sample(20).index).tolist()) <= set(range(6, 30))
        buffer.drop_checkpoint("one")
        buffer.commit()  # without another step
        assert not kept & set(shards(path, "obs"))
        assert min(shards(path, "obs")) >= recording.log.begin // 4
        recording.check(buffer)


def test_a_checkpoint_pins_what_it_needs_for_later_writers_too_and_no_more(path: str) -> None:
    """Not the rows that came after it and have left the window since: else an old checkpoint would keep everything."""
    with recorded_in(PLAIN, path, 30) as (buffer, recording):
        buffer.checkpoint("one")
        recording.add(buffer, 150, commit=True)
    for _ in range(3):
        with reopen(PLAIN, path) as buffer:
            recording.add(buffer, 50, commit=True)
            recording.check(buffer)
    for name in ("obs", "reward", "start"):
        assert shards(path, name) == [1, 2, 3, 4, 5, 6, 7, *range(306 // 4, 329 // 4 + 1)], name
    recording.lose(30)
    with reopen(PLAIN, path, checkpoint="one") as buffer:
        recording.check(buffer)
        recording.add(buffer, 100, commit=True)
        recording.check(buffer)


def test_context_rows_are_kept_and_never_sampled(path: str) -> None:
    """The oldest transition's stack reaches before the window, whatever shard borders lie between."""
    config = Config("context", Leaf((5, 4)), frame_stack=4, capacity=8, chunk_rows=1, shard_rows=1, cache_bytes=0)
    with recorded_in(config, path) as (buffer, recording):
        for _ in range(40):
            recording.add(buffer, 1, special=0.0, commit=True)
            recording.check(buffer)
        assert shards(path, "obs") == list(range(40 - 8 - 3, 40))
        assert set(np.concatenate([buffer.sample(8).index for _ in range(50)]).tolist()) == set(range(32, 40))


def test_more_rows_than_the_window_between_two_commits(path: str) -> None:
    with recorded_in(PLAIN, path, 5, commit=True) as (buffer, recording):
        recording.add(buffer, 150)
        recording.check(buffer)
        buffer.commit()
        recording.check(buffer)
        assert min(shards(path, "obs")) == recording.log.begin // 4
    with reopen(PLAIN, path) as buffer:
        recording.check(buffer)


def test_a_window_of_one_transition(path: str) -> None:
    config = Config("one", Leaf((40,)), capacity=1, frame_stack=3)
    with recorded_in(config, path) as (buffer, recording):
        for _ in range(30):
            recording.add(buffer, 1)
            recording.check(buffer)
            if recording.log.end % 4 == 0:
                buffer.commit()
    with reopen(config, path) as buffer:
        recording.check(buffer)


@pytest.mark.usefixtures("commits_at_once")
def test_automatic_commits_by_rows_and_seconds(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with recorded_in(PLAIN, path, commit_rows=5) as (buffer, recording):
        for end in range(1, 23):
            recording.add(buffer, 1)
            assert buffer.stats()["streams"]["0"]["committed"] == end // 5 * 5
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with reopen(PLAIN, path, commit_seconds=30.0) as buffer:
        recording.add(buffer, 3)
        assert buffer.stats()["streams"]["0"]["committed"] == 22
        now += 31
        recording.add(buffer, 1)
        assert buffer.stats()["streams"]["0"]["committed"] == 26


def test_the_clock_commits_nothing_in_tests(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that knows its commits failed where the machine stood still for 10 seconds (``conftest.py``)."""
    with PLAIN.create(path) as buffer:
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
        Recording(PLAIN).add(buffer, 3)
        assert buffer.stats()["streams"]["0"]["committed"] == 0


@pytest.mark.long
def test_a_reader_that_falls_behind_goes_on(path: str) -> None:
    """A live writer evicts what the reader's window still names: the reader takes the newest commit."""
    with (
        recorded_in(PLAIN, path, 24, commit=True) as (buffer, recording),
        dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as reader,
    ):
        before = recording.log.upto(24)
        for _ in range(10):
            recording.add(buffer, 37, commit=True)
            for _ in range(3):
                batch = reader.sample(10)
                assert len(batch) == 10
        reader.refresh()
        recording.check(reader)
        assert before.end == 24
