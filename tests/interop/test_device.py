"""Batches on a device: what `sample` would give, copied by the loader's thread."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf
from helpers.recording import leaves, recorded, recorded_store, reopen
from interop.loading import check_loader

import diskreplay as dr
from diskreplay.errors import ClosedError, InputError, StateError

torch = pytest.importorskip("torch", reason="torch is in the torch and interop extras")

from diskreplay.torch import DiskDataset, PassSampler, to_device  # noqa: E402

FRAMES = Config("frames", Leaf((6, 5), np.uint8), frame_stack=4, capacity=200, chunk_rows=8, shard_rows=16)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "diskreplay-loader"] == []


@pytest.fixture
def reader(path: str) -> Iterator[dr.ReplayBuffer]:
    with recorded(FRAMES, path) as buffer:
        yield buffer


def same(sent: Any, expected: Any) -> bool:
    """Whether tensors are the arrays, bit for bit, and lie in memory of their own."""
    tensors, arrays = leaves(sent), leaves(expected)
    assert type(sent) is type(expected)
    assert len(tensors) == len(arrays) >= 9
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
    places = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors if t.nbytes)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    pairs = zip(tensors, arrays, strict=True)
    return all(t.shape == a.shape and np.array_equal(t.numpy().view(bits(a)), a.view(bits(a))) for t, a in pairs)


def bits(array: Any) -> str:
    return f"u{array.dtype.itemsize}"


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_batches_are_those_that_sample_gives(path: str, config: Config) -> None:
    check_loader(config, path, same, prefetch=3, device="cpu")


# Misuse


def test_a_loop_that_is_left_goes_on(reader: dr.ReplayBuffer) -> None:
    with reader.loader(4, device="cpu") as loader:
        for batch in loader:
            kept = batch.obs.clone()
            break
        with contextlib.suppress(ZeroDivisionError):
            for _ in loader:
                _ = 1 / 0
        held = [next(loader) for _ in range(6)]
        assert torch.equal(batch.obs, kept)  # nothing is written into what was given out
        assert len({tensor.data_ptr() for each in held for tensor in leaves(each)}) == sum(
            len(leaves(each)) for each in held
        )


def test_two_loaders(reader: dr.ReplayBuffer) -> None:
    with reader.loader(4, device="cpu") as one, reader.loader(3, device="cpu") as two:
        for _ in range(6):
            for loader in (one, two):
                batch = next(loader)
                numbers = reader.get(batch.index.numpy())
                assert same(batch, dr.Batch(**{**vars(numbers), "weight": batch.weight.numpy()}))


def test_the_buffer_is_closed_under_a_loader(path: str, reader: dr.ReplayBuffer) -> None:
    loader = reader.loader(4, device="cpu")
    next(loader)
    reader.close()
    with pytest.raises(ClosedError):
        collections.deque(loader)  # some were sent before
    loader.close()


def test_forked_children(reader: dr.ReplayBuffer) -> None:
    with reader.loader(4, device="cpu") as loader:
        next(loader)
        child = os.fork()
        if not child:
            try:
                next(loader)
            except StateError as error:
                os._exit(int("thread is in the process" not in str(error)))
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        next(loader)


@pytest.mark.parametrize("wrong", ["nonsense", "cuda:99", 3.5, object()])
def test_bad_devices(reader: dr.ReplayBuffer, wrong: Any) -> None:
    state = reader.engine.rng.bit_generator.state
    for make in (lambda: reader.loader(4, device=wrong), lambda: to_device([], wrong)):
        with pytest.raises(InputError, match="device"):
            make()
    assert reader.engine.rng.bit_generator.state == state
    assert [thread for thread in threading.enumerate() if thread.name == "diskreplay-loader"] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, so that its name is a right one")
def test_a_machine_without_a_gpu(reader: dr.ReplayBuffer) -> None:
    with pytest.raises(InputError, match="device 'cuda' cannot be used: "):
        reader.loader(4, device="cuda")


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(InputError, match="got list"):
        next(to_device([[torch.zeros(3)]], "cpu"))
    with pytest.raises(InputError, match="device must be"):
        to_device([], None)
    with pytest.raises(InputError, match="prefetch"):
        to_device([], "cpu", prefetch=0)


# What else gives batches


def test_a_mixture(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b"):
        recorded_store(FRAMES, tmp_path / name, 50)
    parts = [reopen(FRAMES, tmp_path / name, mode="r", seed=1) for name in ("a", "b")]
    with dr.Mixture(parts, [0.5, 0.5]) as mixture, mixture.loader(6, device="cpu") as loader:
        batch = next(loader)
        assert np.array_equal(batch.obs.numpy(), mixture.get(batch.index.numpy()).obs)


def test_a_data_loader_and_a_pass(reader: dr.ReplayBuffer) -> None:
    with DiskDataset(reader.path) as dataset:
        loader = torch.utils.data.DataLoader(dataset, sampler=PassSampler(dataset, 16), batch_size=None)
        seen = []
        with to_device(loader, "cpu") as batches:
            for batch in batches:
                assert np.array_equal(batch.next_obs.numpy(), reader.get(batch.index.numpy()).next_obs)
                assert batch["obs"] is batch.obs
                seen += batch.index.tolist()
        assert sorted(seen) == dataset.index.tolist()
    with to_device(reader.shuffled(16), "cpu") as batches:
        assert sorted(at for batch in batches for at in batch.index.tolist()) == reader.items().tolist()


def test_batches_are_trees_of_torch(reader: dr.ReplayBuffer) -> None:
    batch = reader.sample(5).torch()
    doubled = torch.utils._pytree.tree_map(lambda tensor: tensor * 2, batch)
    assert type(doubled) is type(batch)
    assert torch.equal(doubled.obs, batch.obs * 2)
    assert torch.equal(doubled.index, batch.index * 2)


# The real one


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")
def test_a_gpu(path: str, reader: dr.ReplayBuffer) -> None:
    with reopen(FRAMES, path, mode="r", seed=1) as two, reader.loader(32, prefetch=3, device="cuda") as loader:
        for _ in range(200):
            busy = torch.randn(1000, 1000, device="cuda")
            for _ in range(5):
                busy = busy @ busy  # the stream that learns lags behind
            batch = next(loader)
            assert batch.obs.device.type == "cuda"
            assert same(batch.map(lambda tensor: tensor.cpu()), two.sample(32))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), reader.loader(32, device="cuda:0") as loader:  # the program's own stream
        batch = next(loader)
        assert np.array_equal(batch.obs.cpu().numpy(), reader.get(batch.index.cpu().numpy()).obs)
