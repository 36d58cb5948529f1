"""Batches as arrays of JAX: what `sample` would give, in memory that nobody writes into."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf
from helpers.recording import Recording, leaves, recorded, reopen
from helpers.view_model import VIEWS

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.reading import blocks

jax = pytest.importorskip("jax", reason="jax is in the jax and interop extras")

from diskreplay.buffers import to_jax  # noqa: E402
from diskreplay.jax import to_device  # noqa: E402

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
    found, arrays = leaves(placed), leaves(expected)
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
    with config.create(path) as buffer:
        Recording(config).add(buffer, 40, 0.2)
    compared = 0
    for view in VIEWS:
        options: dict[str, Any] = {"mode": "r", "seed": 1, "view": view}
        with reopen(config, path, **options) as one, reopen(config, path, **options) as two:
            try:
                expected = [two.sample(3) for _ in range(3)]
            except NotEnoughDataError:
                continue
            with one.loader(3, device=CPU) as loader:
                assert all(same(next(loader), batch) for batch in expected)
                compared += 1
    assert compared >= 2


def test_what_was_given_out_does_not_change(reader: dr.ReplayBuffer) -> None:
    """JAX uses the memory of numpy's arrays, and the blocks of large batches are used again."""
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(32, device=CPU) as loader:
        held = [(next(loader), two.sample(32).map(np.copy)) for _ in range(4)]
        assert held[0][1].obs.nbytes > blocks.LEAST_BYTES
        for _ in range(12):
            next(loader)
            gc.collect()
        assert all(same(placed, expected) for placed, expected in held)


def test_arrays_that_are_used_again_by_whoever_gives_them() -> None:
    def batches() -> Iterator[dict[str, Any]]:
        block = np.zeros(1 << 20, np.uint8)
        aligned = block[-block.ctypes.data % 64 :][: 1 << 19]
        for number in range(6):
            aligned[...] = number
            yield {"obs": aligned, "index": np.array([number << 48])}

    with to_device(batches(), prefetch=3) as placed:
        found = list(placed)
    for number, batch in enumerate(found):
        assert isinstance(batch["obs"], jax.Array)
        assert np.unique(batch["obs"]).tolist() == [number]
        assert batch["index"].tolist() == [number << 48], "JAX has no integers of 64 bits"


def test_priorities_are_updated_by_the_ids_of_a_batch(path: str) -> None:
    with FRAMES.create(path, sampler=dr.Proportional()) as buffer:
        Recording(FRAMES).add(buffer, 60)
        with buffer.loader(8, device=CPU) as loader:
            batch = next(loader)
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
    assert len(sizes) == count
    assert [row.tolist() for row in tokens] == [[size] * size for size in sizes]
    assert isinstance(placed.index, np.ndarray)


def test_lists_are_lists_of_arrays_of_jax(lists: dr.ReplayBuffer) -> None:
    with lists.loader(len(lists), device=CPU) as loader:
        check_lists(next(loader), len(lists))
    with to_device(iter([lists.sample(len(lists))]), CPU) as batches:
        check_lists(next(batches), len(lists))


def test_nested_tensors_are_handed_on_as_lists(lists: dr.ReplayBuffer) -> None:
    pytest.importorskip("torch", reason="torch is in the torch and interop extras")
    from interop.test_device import LateLink

    from diskreplay.buffers.device import Sender

    exporter = to_jax.Exporter(Sender(LateLink()))
    for sent in exporter.sent(lists.sample(len(lists)) for _ in range(4)):
        check_lists(exporter.take(sent), len(lists))


def test_a_sharding_is_a_device(reader: dr.ReplayBuffer) -> None:
    sharding = jax.sharding.SingleDeviceSharding(CPU)
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(4, device=sharding) as loader:
        batch = next(loader)
        assert same(batch, two.sample(4))
        assert batch.obs.sharding == sharding


def test_a_pass(reader: dr.ReplayBuffer) -> None:
    with to_device(reader.shuffled(16)) as batches:
        assert sorted(at for batch in batches for at in batch.index.tolist()) == reader.items().tolist()


def test_misuse(reader: dr.ReplayBuffer) -> None:
    with pytest.raises(InputError, match="one of jax"):
        to_device([], "cpu")
    with pytest.raises(InputError, match="prefetch"):
        to_device([], prefetch=0)
    with pytest.raises(InputError, match="got list"):
        next(to_device([[1, 2]]))


def test_tensors_of_a_device_are_handed_on_by_dlpack(reader: dr.ReplayBuffer) -> None:
    """By a device that copies as late as it may: a block that is used too early would be found."""
    pytest.importorskip("torch", reason="torch is in the torch and interop extras")
    from interop.test_device import LateLink

    from diskreplay.buffers.device import Sender

    link = LateLink()
    exporter = to_jax.Exporter(Sender(link))
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two:
        sent = exporter.sent(reader.sample(8) for _ in range(12))
        waiting = [next(sent) for _ in range(2)]
        held = []
        for each in sent:
            waiting.append(each)
            held.append((exporter.take(waiting.pop(0)), two.sample(8)))
        held += [(exporter.take(each), two.sample(8)) for each in waiting]
        assert len(held) == 12
        assert all(same(placed, expected) for placed, expected in held)
    assert len(link.blocks) == Sender.BLOCKS


@pytest.mark.skipif("gpu" not in {device.platform for device in jax.devices()}, reason="JAX finds no GPU here")
def test_a_gpu(reader: dr.ReplayBuffer) -> None:
    gpu = jax.devices("gpu")[0]
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(32, device=gpu) as loader:
        for _ in range(50):
            batch = next(loader)
            assert batch.obs.devices() == {gpu}
            assert same(batch, two.sample(32))
