"""Batches on a device: what `sample` would give, through blocks that are never written while the device reads them."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import pytest
from helpers.configs import CONFIGS, Config
from helpers.model import Leaf
from helpers.recording import Recording, leaves, recorded, reopen
from helpers.view_model import VIEWS

import diskreplay as dr
from diskreplay.errors import ClosedError, InputError, NotEnoughDataError, StateError

torch = pytest.importorskip("torch", reason="torch is in the torch and interop extras")

from diskreplay.buffers import device  # noqa: E402
from diskreplay.torch import DiskDataset, PassSampler, to_device  # noqa: E402

FRAMES = Config("frames", Leaf((6, 5), np.uint8), frame_stack=4, capacity=200, chunk_rows=8, shard_rows=16)


class LateLink:
    """A device that does nothing before somebody waits for it: then it reads what stands in the blocks by then."""

    def __init__(self, *_: Any) -> None:
        self.lock = threading.Lock()
        self.todo: collections.deque[Callable[[], Any]] = collections.deque()
        self.done = self.asked = 0
        self.blocks: list[int] = []
        self.sent = 0
        """Bytes of the newest batch."""
        self.mine: list[int] = []
        """Tensors that were handed over with the newest batch."""

    def _later(self, target: Any, source: Callable[[], Any]) -> Any:
        self.todo.append(lambda: target.copy_(source()))
        self.asked += 1
        return target

    def block(self, size: int) -> Any:
        self.blocks.append(size)
        return torch.full((size,), 201, dtype=torch.uint8)

    def copy(self, host: Any) -> Any:
        self.sent += host.nbytes
        return self._later(torch.ones_like(host), lambda: host)

    def part(self, tensor: Any, axis: int, start: int, count: int) -> Any:
        target = torch.ones_like(tensor.narrow(axis, start, count), memory_format=torch.contiguous_format)
        return self._later(target, lambda: tensor.narrow(axis, start, count))

    def mark(self) -> Any:
        return LateEvent(self, self.asked)

    def hand_over(self, tensors: Any, event: Any) -> None:
        self.mine = [id(tensor) for tensor in tensors]
        self.come_to(event.at)

    def come_to(self, at: int) -> None:
        with self.lock:
            while self.done < at:
                self.todo.popleft()()
                self.done += 1


class LateEvent:
    def __init__(self, link: LateLink, at: int) -> None:
        self.link, self.at = link, at

    def synchronize(self) -> None:
        self.link.come_to(self.at)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LateLink]]:
    """Every device is a late one; the links that were made."""
    links: list[LateLink] = []
    monkeypatch.setattr(device, "sender_to", lambda _: device.Sender(links.append(LateLink()) or links[-1]))
    yield links
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
def test_batches_are_those_that_sample_gives(path: str, config: Config, late: list[LateLink]) -> None:
    with config.create(path) as buffer:
        Recording(config).add(buffer, 40, 0.2)
    for view in VIEWS:
        options: dict[str, Any] = {"mode": "r", "seed": 1, "view": view}
        with reopen(config, path, **options) as one, reopen(config, path, **options) as two:
            try:
                expected = [two.sample(3) for _ in range(5)]
            except NotEnoughDataError:
                continue
            with one.loader(3, prefetch=3, device="cuda") as loader:
                assert all(same(next(loader), batch) for batch in expected)
                found = next(loader)
                assert set(late[-1].mine) >= {id(tensor) for tensor in leaves(found)}
    assert len(late) >= 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_block_that_is_used_too_early_is_found(path: str, late: list[LateLink], waits: bool) -> None:
    """That this device finds it: else the other tests would show nothing."""
    with FRAMES.create(path) as buffer:
        Recording(FRAMES).add(buffer, 100)
    with reopen(FRAMES, path, mode="r", seed=1) as one, reopen(FRAMES, path, mode="r", seed=1) as two:
        event = mock.patch.object(LateEvent, "synchronize", autospec=True, side_effect=LateEvent.synchronize)
        with (
            event if waits else mock.patch.object(LateEvent, "synchronize"),
            one.loader(8, prefetch=3, device=0) as loader,
        ):
            until = threading.Event()
            while one.engine.rng.bit_generator.state == two.engine.rng.bit_generator.state or len(late[0].todo) < 5:
                until.wait(0.01)
            found = [same(next(loader), two.sample(8)) for _ in range(8)]
            while not waits and all(found) and len(found) < 400:  # on a loaded machine the device is not always late
                found.append(same(next(loader), two.sample(8)))
    assert all(found) == waits
    assert len(late[0].blocks) == device.Sender.BLOCKS  # and no more


@pytest.mark.parametrize(
    ("view", "space", "axis", "frames"),
    [
        (dr.Transition(), (6, 5), None, 5),
        (dr.Transition(n_step=3), (6, 5), None, 8),
        (dr.Sequence(3), (6, 5), None, 24),
        (dr.Transition(), (4, 6, 5), 0, 5),
        (dr.Transition(), (6, 5, 4), -1, 5),
    ],
    ids=["single frames", "n-step", "sequences", "stacks", "stacks last"],
)
def test_each_frame_of_consecutive_stacks_is_sent_once(
    path: str, late: list[LateLink], view: Any, space: Any, axis: int | None, frames: int
) -> None:
    box, rng = gymnasium.spaces.Box(0, 255, space, np.uint8), np.random.default_rng(0)
    stack: dict[str, Any] = {} if axis is None else {"stack_axis": axis}
    with dr.ReplayBuffer.create(
        path, box, gymnasium.spaces.Discrete(2), capacity=300, frame_stack=4, view=view, seed=1, **stack
    ) as rb:
        for _ in range(5):
            shown = rng.integers(1, 255, (34, 6, 5), np.uint8)
            shown[:4] = shown[3]
            for at in range(30):
                obs, following = (shown[at + k : at + k + 4] if axis is not None else shown[at + 3 + k] for k in (0, 1))
                if axis == -1:
                    obs, following = np.moveaxis(obs, 0, -1), np.moveaxis(following, 0, -1)
                rb.add(obs, 0, 1.0, following, at == 29, False)
    with dr.ReplayBuffer.open(path, mode="r", seed=2) as one, dr.ReplayBuffer.open(path, mode="r", seed=2) as two:
        with one.loader(7, prefetch=1, device="cuda") as loader:
            assert same(next(loader), two.sample(7))
        batch = two.sample(7)
    link, small = LateLink(), sum(array.nbytes for array in leaves(batch)) - 2 * batch.obs.nbytes
    device.Sender(link).send(batch)
    assert link.sent == 7 * frames * 30 + small


def test_stacks_that_do_not_follow_are_sent_whole(reader: dr.ReplayBuffer) -> None:
    batch = reader.sample(5)
    batch.next_obs[4, 1] += 1
    link = LateLink()
    sender = device.Sender(link)
    assert same(sender.take(sender.send(batch)), batch)
    assert link.sent == sum(array.nbytes for array in leaves(batch))


# Misuse


def test_a_loop_that_is_left_goes_on(reader: dr.ReplayBuffer, late: list[LateLink]) -> None:
    with reader.loader(4, device="cuda") as loader:
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
    assert late[0].done == late[0].asked  # nothing is read any more from blocks that nobody holds


def test_two_loaders(reader: dr.ReplayBuffer, late: list[LateLink]) -> None:
    with reader.loader(4, device="cuda") as one, reader.loader(3, device="cuda") as two:
        for _ in range(6):
            for loader in (one, two):
                batch = next(loader)
                numbers = reader.get(batch.index.numpy())
                assert same(batch, dr.Batch(**{**vars(numbers), "weight": batch.weight.numpy()}))
    assert len(late) == 2


def test_the_buffer_is_closed_under_a_loader(path: str, reader: dr.ReplayBuffer, late: list[LateLink]) -> None:
    loader = reader.loader(4, device="cuda")
    next(loader)
    reader.close()
    with pytest.raises(ClosedError):
        collections.deque(loader)  # some were sent before
    assert late[0].done == late[0].asked
    loader.close()


def test_forked_children(reader: dr.ReplayBuffer, late: list[LateLink]) -> None:
    with reader.loader(4, device="cuda") as loader:
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


def test_what_is_no_batch_is_refused(late: list[LateLink]) -> None:
    with pytest.raises(InputError, match="got list"):
        next(to_device([[torch.zeros(3)]], "cuda"))
    with pytest.raises(InputError, match="device must be"):
        to_device([], None)
    with pytest.raises(InputError, match="prefetch"):
        to_device([], "cuda", prefetch=0)


# What else gives batches


def test_the_cpu_is_a_device(reader: dr.ReplayBuffer) -> None:
    with reopen(FRAMES, reader.path, mode="r", seed=1) as two, reader.loader(4, device="cpu") as loader:
        assert all(same(next(loader), two.sample(4)) for _ in range(5))


def test_a_mixture(tmp_path: pathlib.Path, late: list[LateLink]) -> None:
    for name in ("a", "b"):
        with FRAMES.create(tmp_path / name) as buffer:
            Recording(FRAMES).add(buffer, 50)
    parts = [reopen(FRAMES, tmp_path / name, mode="r", seed=1) for name in ("a", "b")]
    with dr.Mixture(parts, [0.5, 0.5]) as mixture, mixture.loader(6, device="cuda") as loader:
        batch = next(loader)
        assert np.array_equal(batch.obs.numpy(), mixture.get(batch.index.numpy()).obs)


def test_a_data_loader_and_a_pass(reader: dr.ReplayBuffer, late: list[LateLink]) -> None:
    with DiskDataset(reader.path) as dataset:
        loader = torch.utils.data.DataLoader(dataset, sampler=PassSampler(dataset, 16), batch_size=None)
        seen = []
        with to_device(loader, "cuda") as batches:
            for batch in batches:
                assert np.array_equal(batch.next_obs.numpy(), reader.get(batch.index.numpy()).next_obs)
                assert batch["obs"] is batch.obs
                seen += batch.index.tolist()
        assert sorted(seen) == dataset.index.tolist()
    with to_device(reader.shuffled(16), "cuda") as batches:
        assert sorted(at for batch in batches for at in batch.index.tolist()) == reader.items().tolist()


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
