"""The cache of decoded chunks: its budget, and that it never gives one chunk for another."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import Leaf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskreplay.native import core
from diskreplay.reading import cache as cache_module
from diskreplay.reading import gather
from diskreplay.reading.cache import CachedColumn, ChunkCache
from diskreplay.reading.target import Target
from diskreplay.schema import columns
from diskreplay.schema.columns import Codec, StoredColumn
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.local_files import LocalFiles

ENVS, WIDTH = 3, 90


def kept_raw() -> Any:
    """Whatever the values are, and whether compiled code is there or not."""
    return mock.patch.object(columns, "PACKED_BYTES", 1 << 30)


def column() -> ColumnReader:
    from helpers.model import to_space

    from diskreplay.schema.spec import build

    action = Config("cache", Leaf((5,)), num_envs=ENVS).action_space()
    schema = build(to_space(Leaf((WIDTH,))), action, capacity=90, num_envs=ENVS, chunk_rows=2, shard_rows=4)
    stored = StoredColumn.of(schema.obs_columns[0], 2, 4, 1, Codec())
    reader = ColumnReader(LocalFiles(), "nowhere", "0", stored, ENVS)
    return reader


def kept(cache: ChunkCache, reader: ColumnReader, chunk: int, group: int) -> np.ndarray:
    """The values of a chunk that is cached."""
    chunks, out = core.Chunks(cache, [reader]), Target(np.zeros((1, 2, WIDTH), np.uint8))
    found = chunks.rows(0, np.array([[0, group, 2 * chunk, 2 * chunk + 1, 2 * chunk]]).T.copy())
    assert found[2].size, "it is not cached"
    gather.plan(chunks, found, out)
    return out.first[0]


def values(chunk: int, group: int) -> np.ndarray:
    return np.full((2, WIDTH), 10 * group + chunk, np.uint8)


def near(chunk: int, group: int) -> np.ndarray:
    """As :func:`values`, but much alike; some have another key, and those of every fifth chunk none."""
    found = np.full((2, WIDTH), group + 50 * (chunk % 3 == 2), np.uint8)
    found[:, chunk] = 10 * group + chunk
    return np.random.default_rng(chunk).integers(0, 255, found.shape, np.uint8) if chunk % 5 == 4 else found


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "drop", "drop_but"]), st.integers(0, 20), st.integers(0, ENVS - 1)),
        max_size=60,
    ),
    st.integers(0, 2000),
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_found_is_what_was_put(operations: list[tuple[str, int, int]], budget: int) -> None:
    reader, cache = column(), ChunkCache(budget)
    held: set[tuple[int, int]] = set()
    size = reader.decoded_bytes
    for operation, chunk, group in operations:
        if operation == "put":
            fits = cache.used_bytes + size <= budget
            with kept_raw():
                cache.put(reader, chunk, group, values(chunk, group))
            if fits:
                held.add((chunk, group))
        elif operation == "drop":
            cache.drop(reader, chunk)
            held = {(c, g) for c, g in held if c >= chunk}
        else:
            cache.drop_but(reader, np.array([chunk, chunk + 1]), np.array([group, 0]))
            held &= {(chunk, group), (chunk + 1, 0)}
        assert cache.used_bytes == len(held) * size <= budget
        cached = cache.column(reader)
        if cached is None:
            assert not held
            continue
        for c in range(21):
            for g in range(ENVS):
                slot = int(cached.find(np.array([c]), np.array([g]))[0])
                assert (slot >= 0) == ((c, g) in held)
                if slot >= 0:
                    np.testing.assert_array_equal(kept(cache, reader, c, g), values(c, g))


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "put", "drop", "drop_but", "window"]), st.integers(0, 20),
                  st.integers(0, ENVS - 1)),
        max_size=80,
    ),
    st.integers(0, 3000),
)  # fmt: skip
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_runs_and_their_keys_take_what_the_budget_says(operations: list[tuple[str, int, int]], budget: int) -> None:
    reader, cache = column(), ChunkCache(budget)
    held: set[tuple[int, int]] = set()
    everything = [(c, g) for c in range(21) for g in range(ENVS)]
    with mock.patch.object(columns, "PACKED_BYTES", 1), mock.patch.object(cache_module, "MOST_KEYS", 2):
        for operation, chunk, group in operations:
            if operation == "put":
                cache.put(reader, chunk, group, near(chunk, group))
                held.add((chunk, group))
            elif operation == "drop":
                cache.drop(reader, chunk)
                held = {(c, g) for c, g in held if c >= chunk}
            elif operation == "drop_but":
                cache.drop_but(reader, np.array([chunk, chunk + 1]), np.array([group, 0]))
                held &= {(chunk, group), (chunk + 1, 0)}
            else:  # nothing is kept raw in a large one
                cache.resize_window((chunk % 2) << 30)
            cached = cache.column(reader)
            there = set() if cached is None else {one for one in everything if cached.has(*one)}
            assert there <= held  # a put is an offer
            held = there
            stats = cache.stats()
            assert stats["runs"]["bytes"] + stats["raw"]["bytes"] == cache.used_bytes <= budget
            assert stats["runs"]["rows"] + stats["raw"]["rows"] == 2 * len(held)
            for c, g in held:
                assert cached is not None
                np.testing.assert_array_equal(kept(cache, reader, c, g), near(c, g))
        cache.forget(reader)
        assert cache.used_bytes == 0


def test_a_slot_taken_by_the_same_chunk_of_another_environment() -> None:
    """Regression: only the chunk's number was compared, so one environment's frames came back as another's."""
    reader, cache = column(), ChunkCache(1000)
    with kept_raw():
        cache.put(reader, 4, 0, values(4, 0))
        cache.drop(reader)
        cache.put(reader, 4, 1, values(4, 1))
    cached = cache.column(reader)
    assert cached is not None
    assert cached.find(np.array([4, 4]), np.array([0, 1])).tolist() == [-1, 0]


@pytest.mark.own_thresholds
def test_a_small_share_of_the_window_is_not_worth_it() -> None:
    """For what is kept raw; what is kept as runs stays."""
    size = values(1, 0).nbytes
    reader, cache = column(), ChunkCache(2 * size)
    cache.put(reader, 1, 0, values(1, 0))
    assert cache.used_bytes == size
    cache.resize_window(8 * size)
    assert cache.used_bytes
    cache.resize_window(8 * size + 4)
    assert cache.used_bytes == 0
    cache.put(reader, 1, 0, values(1, 0))
    assert cache.used_bytes == 0
    assert not cache.admits(reader)
    with mock.patch.object(columns, "PACKED_BYTES", WIDTH):
        cache.put(reader, 1, 0, near(1, 0))
        assert WIDTH < cache.used_bytes < size
        cache.resize_window(8 * size + 5)
        assert WIDTH < cache.used_bytes < size


def test_a_column_that_comes_while_the_cache_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: threads that decode offer chunks of a column for the first time while another asks for stats."""
    cache = ChunkCache(1000)
    cache.admits(column())
    held = CachedColumn.held

    def while_another_comes(cached: CachedColumn, raw: bool) -> tuple[int, int]:
        cache.admits(column())
        return held(cached, raw)

    monkeypatch.setattr(CachedColumn, "held", while_another_comes)
    assert cache.stats()["raw"]["rows"] == 0


def test_a_chunk_that_cannot_be_decoded_leaves_no_trace() -> None:
    reader, cache = column(), ChunkCache(1000)

    def decode(place: Any, out: np.ndarray, chunk: int) -> None:
        if chunk == 1:
            raise OSError("damaged")
        out[...] = values(chunk, 0)

    with mock.patch.object(reader, "decode", decode), pytest.raises(OSError, match="damaged"):
        cache.fill(reader, np.array([0, 1, 2]), np.array([0, 0, 0]), [(mock.Mock(), 0, 0)] * 3)
    cached = cache.column(reader)
    assert cached is not None
    assert (cached.find(np.array([0, 1, 2]), np.array([0, 0, 0])) >= 0).tolist() == [True, False, False]
    assert cache.used_bytes == reader.decoded_bytes
    with kept_raw():
        cache.put(reader, 1, 0, values(1, 0))
    np.testing.assert_array_equal(kept(cache, reader, 1, 0), values(1, 0))
