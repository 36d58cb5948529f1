"""Batches as trees of JAX: what `sample` would give, in memory that nobody writes into."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf
from helpers.recording import leaves, recorded, recorded_in, reopen
from interop.loading import check_loader

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.reading import blocks

jax = pytest.importorskip("jax", reason="jax is in the jax and interop extras")

import diskreplay.jax  # noqa: E402

FRAMES = Config("frames", Leaf((60, 50), np.uint8), frame_stack=4, capacity=200, chunk_rows=8, shard_rows=16)
CPU = jax.devices("cpu")[0]


@pytest.fixture
def reader(path: str) -> Iterator[dr.ReplayBuffer]:
    with recorded(FRAMES, path) as buffer:
        yield buffer


def same(placed: Any, expected: Any) -> bool:
    """Whether JAX's arrays are the arrays, those of 64 bits narrowed as JAX does it, and ids are the ids."""
    assert type(placed) is type(expected)
    assert isinstance(placed.index, np.ndarray)
    found, arrays = leaves(placed), leaves(jax.tree.map(np.asarray, expected))  # JAX sorts the names of dicts
    assert all(isinstance(one, jax.Array) or one is placed.index for one in found)
    assert len(found) == len(arrays) >= 9
    narrow = [a if f is placed.index else a.astype(jax.dtypes.canonicalize_dtype(a.dtype)) for f, a in
              zip(found, arrays, strict=True)]  # fmt: skip
    return all(
        f.dtype == a.dtype and f.shape == a.shape and np.asarray(f).tobytes() == a.tobytes()
        for f, a in zip(found, narrow, strict=True)
    )


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_batches_are_those_that_sample_gives(path: str, config: Config) -> None:
    check_loader(config, path, lambda given, batch: same(jax.device_put(given, CPU), batch))


def test_what_was_given_out_does_not_change(reader: dr.ReplayBuffer) -> None:
    """JAX uses the memory of numpy's arrays, and the blocks of large batches are used again."""
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(32) as loader:
        held = [(jax.device_put(next(loader)), two.sample(32).map(np.copy)) for _ in range(4)]
        assert held[0][1].obs.nbytes > blocks.LEAST_BYTES
        for _ in range(12):
            next(loader)
            gc.collect()
        assert all(same(placed, expected) for placed, expected in held)


def test_priorities_are_updated_by_the_ids_of_a_batch(path: str) -> None:
    with recorded_in(FRAMES, path, 60, sampler=dr.Proportional()) as (buffer, _), buffer.loader(8) as loader:
        batch = jax.device_put(next(loader))
        buffer.update_priorities(batch.index, jax.numpy.abs(batch.reward))
        assert np.array_equal(buffer.get(batch.index).obs, batch.obs)


@pytest.fixture(params=[(1, 5, 3), (4, 4), (7,)])
def lists(path: str, request: pytest.FixtureRequest) -> Iterator[dr.ReplayBuffer]:
    """A buffer whose rows have several lengths, one length, or that has one row."""
    choice = gymnasium.spaces.Discrete(10)
    columns = {"tokens": ((None,), np.int32)}
    with dr.ReplayBuffer.create(path, choice, choice, capacity=9, columns=columns, ragged="lists") as buffer:
        for size in request.param:
            buffer.add(0, 0, float(size), 0, True, False, tokens=np.full(size, size))
        yield buffer


def check_lists(placed: Any, count: int) -> None:
    tokens = placed.extra["tokens"]
    assert isinstance(tokens, dr.Lists)
    assert all(isinstance(part, jax.Array) for part in tokens.parts)
    sizes = np.asarray(placed.reward).astype(int).tolist()
    assert (len(sizes), [row.tolist() for row in tokens]) == (count, [[size] * size for size in sizes])
    assert isinstance(placed.index, np.ndarray)


def test_lists_are_lists_of_arrays_of_jax(lists: dr.ReplayBuffer) -> None:
    check_lists(jax.device_put(lists.sample(len(lists)), CPU), len(lists))


def test_a_sharding(reader: dr.ReplayBuffer) -> None:
    sharding = jax.sharding.SingleDeviceSharding(CPU)
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two:
        batch = jax.device_put(reader.sample(4), sharding)
        assert same(batch, two.sample(4))
        assert batch.obs.sharding == sharding


def test_a_function_is_traced_once_and_sees_no_ids(reader: dr.ReplayBuffer) -> None:
    traced = []

    @jax.jit
    def step(batch: dr.Batch) -> tuple[Any, dr.Batch]:
        traced.append(batch.index)
        return batch.reward.sum(), batch

    for _ in range(3):
        batch = reader.sample(4)
        total, returned = step(batch)
        assert np.isclose(float(total), batch.reward.sum())
        assert returned.index is None, "not the ids of the batch that was traced"
        assert np.array_equal(returned.obs, batch.obs)
    assert traced == [None]


def test_a_map_keeps_the_ids(reader: dr.ReplayBuffer) -> None:
    batch = reader.sample(4)
    doubled = jax.tree.map(lambda array: array * 2, batch)
    assert np.array_equal(doubled.reward, batch.reward * 2)
    assert doubled.index is batch.index


def test_a_device_of_jax_is_none_of_torch(reader: dr.ReplayBuffer) -> None:
    state = reader.engine.rng.bit_generator.state
    with pytest.raises(InputError, match="device_put"):
        reader.loader(4, device=CPU)
    with pytest.raises(InputError, match="device_put"):
        reader.loader(4, device=jax.sharding.SingleDeviceSharding(CPU))
    assert reader.engine.rng.bit_generator.state == state


@pytest.mark.skipif("gpu" not in {device.platform for device in jax.devices()}, reason="JAX finds no GPU here")
def test_a_gpu(reader: dr.ReplayBuffer) -> None:
    gpu = jax.devices("gpu")[0]
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(32) as loader:
        for _ in range(50):
            batch = jax.device_put(next(loader), gpu)
            assert batch.obs.devices() == {gpu}
            assert same(batch, two.sample(32))
