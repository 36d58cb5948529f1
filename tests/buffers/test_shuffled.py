"""Passes without replacement: each transition once, each chunk decoded once, bounded memory; and the loader."""

from __future__ import annotations

import collections
import itertools
import os
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf, check_batch
from helpers.patience import PATIENCE
from helpers.recording import Recording, recorded_in, recorded_store, reopen

import diskreplay as dr
from diskreplay.buffers import shuffle
from diskreplay.errors import ClosedError, InputError, NotEnoughDataError
from diskreplay.reading import gather
from diskreplay.reading.cache import ChunkCache
from diskreplay.schema.ids import Ids
from diskreplay.storage import chunks
from diskreplay.storage.column import ColumnReader

FRAMES = Config(
    "frames", Leaf((7, 5)), frame_stack=4, num_envs=2, capacity=600, chunk_rows=8, shard_rows=32,
    small_chunk_rows=64, small_shard_rows=128,
)  # fmt: skip


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[int]:
    """Counts how often the chunk at each place in memory or on disk is decoded, by its bytes."""
    counts: collections.Counter[int] = collections.Counter()
    decode = chunks.decode

    def counting(codec: Any, data: bytes, out: np.ndarray) -> None:
        counts[hash(data)] += 1
        decode(codec, data, out)

    monkeypatch.setattr(chunks, "decode", counting)
    return counts


@pytest.mark.long(quick=16)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("pool_bytes", [1, 5000, 1 << 20])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 5000])
@pytest.mark.parametrize("config", [FRAMES, *CONFIGS[:3]], ids=repr)
def test_each_transition_once_in_each_pass(path: str, config: Config, batch_size: int, pool_bytes: int) -> None:
    with recorded_in(config, path, 130 if config is FRAMES else 30) as (buffer, recording):
        expected = recording.log.ids(config.n_step)
        size = len(expected)
        indexes: list[int] = []
        lengths = []
        for batch in buffer.shuffled(batch_size, epochs=2, pool_bytes=pool_bytes):
            if batch_size > 1:
                check_batch(batch, [recording.log], config.n_step, config.gamma)
            indexes += batch.index.tolist()
            lengths.append(len(batch))
        assert sorted(indexes[:size]) == expected == sorted(indexes[size:])
        full, left = divmod(size, batch_size)
        assert lengths == ([batch_size] * full + [left] * (left > 0)) * 2
        if size > 20:
            assert indexes[:size] != expected
            assert indexes[:size] != indexes[size:], "both passes have the same order"
        dropped = list(buffer.shuffled(batch_size, drop_last=True, pool_bytes=pool_bytes))
        assert [len(batch) for batch in dropped] == [batch_size] * full


@pytest.mark.own_thresholds
@pytest.mark.parametrize("batch_size", [32, 37])
def test_each_chunk_is_decoded_once_a_pass(path: str, decoded: collections.Counter[int], batch_size: int) -> None:
    recorded_store(FRAMES, path, 296, special=0.0)
    with reopen(FRAMES, path, mode="r", cache_bytes=0) as buffer:
        decoded.clear()
        for batch in buffer.shuffled(batch_size, pool_bytes=8 * 280):
            assert len(batch)
        again = sum(decoded.values()) - len(decoded)
        assert len(decoded) >= 2 * 296 // 8
        # The pool holds 8 chunks, so the log is cut into 6 parts, which share the two chunks at each border.
        assert again <= 2 * 6, f"{again} of {len(decoded)} chunks more than once"


@pytest.fixture
def lacking(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts, for each call that loads the chunks of a round, those for which the pool had no room."""
    counts: list[int] = []
    load = gather.load

    def counting(column: ColumnReader, chunk: Ids, group: Ids, pool: ChunkCache) -> None:
        load(column, chunk, group, pool)
        cached = pool.column(column)
        counts.append(0 if cached is None else int(np.count_nonzero(cached.find(chunk, group) < 0)))

    monkeypatch.setattr(gather, "load", counting)
    monkeypatch.setattr(shuffle, "POOL_SPARE_BYTES", 0)
    return counts


WIDE = spaces.Box(0, 255, (64, 64), np.uint8)
COLUMNS = {"tokens": ((None,), np.int32)}


@pytest.mark.own_thresholds
def test_what_one_stream_needs_no_more_is_room_for_another(path: str, lacking: list[int]) -> None:
    """The items of the second stream's rows must not keep the chunks of the first out of the pool."""
    actions, rng = spaces.Discrete(2), np.random.default_rng(0)
    options: dict[str, Any] = {"capacity": 5000, "chunk_rows": 8, "columns": COLUMNS}
    for stream, length in (("first", 1), ("second", 20_000)):
        with dr.ReplayBuffer.open_or_create(path, WIDE, actions, stream=stream, **options) as buffer:
            frames = rng.integers(0, 256, (101, 64, 64), np.uint8)
            for frame, following in itertools.pairwise(frames):
                tokens = rng.integers(0, 1 << 30, length, np.int32)
                buffer.add(frame, 0, 0.0, following, False, False, tokens=tokens)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0, seed=0) as buffer:
        assert all(stream.large_columns() for stream in buffer.engine.streams)
        assert sum(len(batch) for batch in buffer.shuffled(8, pool_bytes=8 * 64 * 64 * 8)) == 200
    assert len(lacking) > 8
    assert not any(lacking)


@pytest.mark.own_thresholds
def test_streams_that_are_opened_anew_leave_the_pool(path: str, lacking: list[int]) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (401, 64, 64), np.uint8)
    with dr.ReplayBuffer.create(path, WIDE, spaces.Discrete(2), capacity=5000, chunk_rows=8) as buffer:
        for frame, following in itertools.pairwise(frames):
            buffer.add(frame, 0, 0.0, following, False, False)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0, seed=0) as buffer:
        for _ in buffer.shuffled(8, pool_bytes=4 * 64 * 64 * 8):
            buffer.engine.gate.stale = True  # as a writer that goes back leaves it
            buffer.refresh()
    assert len(lacking) > 8
    assert not any(lacking)


def test_a_pass_mixes_the_whole_log(path: str) -> None:
    with recorded_in(FRAMES, path, 300, special=0.0) as (buffer, _):
        for batch in itertools.islice(buffer.shuffled(60), 3):
            rows = batch.index // 2
            assert rows.min() < 80
            assert rows.max() > 220
            assert set((batch.index % 2).tolist()) == {0, 1}


@pytest.mark.usefixtures("both_thresholds")
def test_rows_that_leave_during_a_pass_are_left_out(path: str) -> None:
    config = Config("plain", Leaf((40,)), capacity=60, chunk_rows=2, shard_rows=4)
    with recorded_in(config, path, 60) as (buffer, recording):
        before = set(recording.log.ids(1))
        seen: list[int] = []
        for batch in buffer.shuffled(5, pool_bytes=200):
            assert min(batch.index) >= recording.log.begin
            check_batch(batch, [recording.log], 1, 0.9)
            seen += batch.index.tolist()
            recording.add(buffer, 2, commit=True)
        assert len(seen) == len(set(seen))
        assert set(seen) <= before


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"epochs": 1.5}, {"pool_bytes": 0}, {"pool_bytes": "1"}])
def test_bad_arguments(path: str, wrong: dict[str, Any]) -> None:
    with FRAMES.create(path) as buffer, pytest.raises(InputError):
        buffer.shuffled(3, **wrong)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "diskreplay-loader"]


def test_a_loader_gives_what_sample_would(path: str) -> None:
    with recorded_in(FRAMES, path, 50) as (buffer, _):
        buffer.checkpoint("here")
        expected = [buffer.sample(8).index.tolist() for _ in range(10)]
    with reopen(FRAMES, path, checkpoint="here") as buffer, buffer.loader(8, prefetch=3) as loader:
        assert [next(loader).index.tolist() for _ in range(10)] == expected
        assert iter(loader) is loader
    assert threads() == []


def test_a_loader_samples_ahead_and_no_further(path: str) -> None:
    with recorded_in(FRAMES, path, 50) as (buffer, _):
        drawn: list[int] = []
        sample = buffer.sample
        buffer.sample = lambda size: drawn.append(size) or sample(size)  # type: ignore[method-assign,func-returns-value]
        with buffer.loader(8, prefetch=3) as loader:
            deadline = time.monotonic() + PATIENCE
            while len(drawn) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert len(drawn) == 4, "three wait, and one is in the thread's hand"
            next(loader)


def test_a_loader_hands_errors_on(path: str) -> None:
    with FRAMES.create(path) as buffer:
        loader = buffer.loader(8)
        with pytest.raises(NotEnoughDataError):
            next(loader)
        with pytest.raises(StopIteration):
            next(loader)
        assert threads() == []
        Recording(FRAMES).add(buffer, 50)
        loader = buffer.loader(8)
        next(loader)
    with pytest.raises(ClosedError):
        collections.deque(loader)  # a few were drawn before it was closed
    loader.close()
    loader.close()
    assert threads() == []


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_bad_loaders(path: str, wrong: Any) -> None:
    with FRAMES.create(path) as buffer:
        with pytest.raises(InputError, match="prefetch"):
            buffer.loader(8, prefetch=wrong)
        with pytest.raises(InputError, match="batch_size"):
            buffer.loader(wrong)
    assert threads() == []


def test_a_loader_to_a_device_without_torch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "diskreplay.buffers.device", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with recorded_in(FRAMES, path, 50) as (buffer, _):
        state = buffer.engine.rng.bit_generator.state
        with pytest.raises(ModuleNotFoundError, match=r"diskreplay\[torch\]"):
            buffer.loader(8, device="cuda")
        assert buffer.engine.rng.bit_generator.state == state
    assert threads() == []


def test_closing_a_loader_that_waits(path: str) -> None:
    with recorded_in(FRAMES, path, 50) as (buffer, _):
        with buffer.loader(8, prefetch=1) as loader:
            time.sleep(0.05)
        assert threads() == []
        assert isinstance(loader, dr.Loader)


def test_each_chunk_is_announced_before_it_is_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system is told of a round's chunks while the round before is given out; and of none that is not read."""
    recorded_store(FRAMES, path, 130)
    announced: set[tuple[int, int]] = set()
    rounds: list[set[tuple[int, int]]] = []
    seen: set[tuple[int, int]] = set()

    def announcing(column: ColumnReader, chunk: Ids, group: Ids) -> None:
        announced.update(zip(chunk.tolist(), group.tolist(), strict=True))
        advise(column, chunk, group)

    def loading(column: ColumnReader, chunk: Ids, group: Ids, pool: ChunkCache) -> None:
        fresh = set(zip(chunk.tolist(), group.tolist(), strict=True)) - seen
        assert not rounds or fresh <= announced
        rounds.append(fresh)
        seen.update(fresh)
        load(column, chunk, group, pool)

    advise, load = gather.advise, gather.load
    monkeypatch.setattr(gather, "advise", announcing)
    monkeypatch.setattr(gather, "load", loading)
    told: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, offset, size, advice: told.append(size))
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0, seed=0) as buffer:
        assert sum(len(batch) for batch in buffer.shuffled(16, pool_bytes=5000)) == len(buffer)
    assert len(rounds) > 3
    assert seen - rounds[0] <= announced <= seen
    assert len(told) >= len(announced)
    assert min(told) > 0
