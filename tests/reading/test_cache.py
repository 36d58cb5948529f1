"""The cache of decoded chunks: its budget, and that it never gives one chunk for another."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.model import Leaf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskreplay.reading.cache import ChunkCache
from diskreplay.storage.column import ColumnReader
from diskreplay.storage.local_files import LocalFiles

ENVS = 3


def column() -> ColumnReader:
    from helpers.model import to_space

    from diskreplay import schema as schemas

    config = Config("cache", Leaf((5,)), num_envs=ENVS)
    with config.limits():
        schema = schemas.build(
            schemas.StoreSpec(
                to_space(Leaf((9,))), config.action_space(), capacity=90, num_envs=ENVS, chunk_rows=2, shard_rows=4
            )
        )
    reader = ColumnReader(LocalFiles(), "nowhere", "0", schema.obs_columns[0], ENVS)
    reader.entries.reserve(64)
    return reader


def values(chunk: int, group: int) -> np.ndarray:
    return np.full((2, 9), 10 * group + chunk, np.uint8)


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "drop", "drop_but"]), st.integers(0, 20), st.integers(0, ENVS - 1)),
        max_size=60,
    ),
    st.integers(0, 200),
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_found_is_what_was_put(operations: list[tuple[str, int, int]], budget: int) -> None:
    reader, cache = column(), ChunkCache(budget)
    held: set[tuple[int, int]] = set()
    size = reader.decoded_bytes
    for operation, chunk, group in operations:
        if operation == "put":
            fits = cache.used_bytes + size <= budget
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
        slab = cache.slab(reader)
        if slab is None:
            assert not held
            continue
        for c in range(21):
            for g in range(ENVS):
                slot = int(slab.find(np.array([c]), np.array([g]))[0])
                assert (slot >= 0) == ((c, g) in held)
                if slot >= 0:
                    np.testing.assert_array_equal(slab.values[slot], values(c, g))


def test_a_slot_taken_by_the_same_chunk_of_another_environment() -> None:
    """Regression: only the chunk's number was compared, so one environment's frames came back as another's."""
    reader, cache = column(), ChunkCache(1000)
    cache.put(reader, 4, 0, values(4, 0))
    cache.drop(reader)
    cache.put(reader, 4, 1, values(4, 1))
    slab = cache.slab(reader)
    assert slab is not None
    assert slab.find(np.array([4, 4]), np.array([0, 1])).tolist() == [-1, 0]


@pytest.mark.own_thresholds
def test_a_small_share_of_the_window_is_not_worth_it() -> None:
    reader, cache = column(), ChunkCache(100)
    cache.put(reader, 1, 0, values(1, 0))
    assert cache.used_bytes
    cache.resize_window(399)
    assert cache.used_bytes
    cache.resize_window(401)
    assert cache.used_bytes == 0
    cache.put(reader, 1, 0, values(1, 0))
    assert cache.used_bytes == 0
    assert not cache.admits(reader)


def test_a_chunk_that_cannot_be_decoded_leaves_no_trace() -> None:
    reader, cache = column(), ChunkCache(1000)

    def decode(which: int, slot: np.ndarray) -> None:
        if which == 1:
            raise OSError("damaged")
        slot[...] = values(which, 0)

    with pytest.raises(OSError, match="damaged"):
        cache.fill(reader, np.array([0, 1, 2]), np.array([0, 0, 0]), decode)
    slab = cache.slab(reader)
    assert slab is not None
    assert (slab.find(np.array([0, 1, 2]), np.array([0, 0, 0])) >= 0).tolist() == [True, False, False]
    assert cache.used_bytes == reader.decoded_bytes
    cache.put(reader, 1, 0, values(1, 0))
    np.testing.assert_array_equal(slab.values[slab.find(np.array([1]), np.array([0]))[0]], values(1, 0))
