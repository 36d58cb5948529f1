"""`compat.torchrl` in torchrl's own buffers: what torchrl's tests assert of its storages, and the same batches.

``TestBuffers`` asks what torchrl's test_composable.py and test_rb_core.py ask, of tensordicts.
"""

from __future__ import annotations

import copy
import functools
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("torchrl", reason="torchrl is in the interop extra")

from tensordict import (  # noqa: E402
    LazyStackedTensorDict,
    NonTensorData,
    NonTensorStack,
    TensorDict,
    TensorDictBase,
    is_tensor_collection,
)
from tensordict.nn import TensorDictModule  # noqa: E402
from torchrl.data import (  # noqa: E402
    LazyMemmapStorage,
    LazyTensorStorage,
    OneHot,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers import checkpointers, samplers  # noqa: E402
from torchrl.data.replay_buffers.sample_units import Sequence  # noqa: E402
from torchrl.data.replay_buffers.samplers import prioritized  # noqa: E402
from torchrl.data.replay_buffers.writers import (  # noqa: E402
    RoundRobinWriter,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)
from torchrl.modules import MLP, QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss, SoftUpdate  # noqa: E402

import diskreplay as dr  # noqa: E402
from diskreplay.compat.torchrl import DiskReplayDataset, DiskReplayStorage, storage_checkpoints  # noqa: E402
from diskreplay.errors import (  # noqa: E402
    CheckpointError,
    EvictedError,
    InputError,
    LockedError,
    NotEnoughDataError,
    ReadOnlyError,
)

HAS_TREES = prioritized.SumSegmentTreeFp32 is not None
needs_trees = pytest.mark.skipif(
    not HAS_TREES,
    reason="torchrl's C++ extension does not load with this torch; with a C++ compiler build_torchrl.py builds it anew",
)

pytestmark = pytest.mark.filterwarnings("ignore:Got conflicting batch_sizes:UserWarning")

Path = pathlib.Path


@pytest.fixture
def generator() -> Any:
    return torch.Generator().manual_seed(5)


def trajectory(steps: int, number: int = 0, size: int = 8, terminated: bool = True) -> TensorDictBase:
    """A whole episode as a collector gives it: frames, a nested observation, flags, and the number of the episode."""
    rng = torch.Generator().manual_seed(number)
    frames = torch.randint(0, 255, (steps + 1, 3, size, size), dtype=torch.uint8, generator=rng)
    state = torch.randn(steps + 1, 4, generator=rng)
    ends = torch.zeros(steps, 1, dtype=torch.bool)
    ends[-1] = True
    never = torch.zeros(steps, 1, dtype=torch.bool)
    action = torch.nn.functional.one_hot(torch.randint(0, 2, (steps,), generator=rng), 2)
    after = {
        "pixels": frames[1:], "agent": {"state": state[1:]}, "reward": torch.randn(steps, 1, generator=rng),
        "done": ends, "terminated": ends if terminated else never, "truncated": never if terminated else ends,
    }  # fmt: skip
    return TensorDict(
        {
            "pixels": frames[:-1], "agent": {"state": state[:-1]}, "action": action, "done": never.clone(),
            "terminated": never.clone(), "truncated": never.clone(), "next": after,
            "collector": {"traj_ids": torch.full((steps,), number)},
        },
        [steps],
    )  # fmt: skip


def assert_same(ours: Any, theirs: Any) -> None:
    """Bit for bit, with the same keys, shapes, dtypes and batch sizes, of nested ones too."""
    assert (set(ours.keys(True)), ours.batch_size) == (set(theirs.keys(True)), theirs.batch_size)
    for key in theirs.keys(True):
        mine, other = ours.get(key), theirs.get(key)
        if is_tensor_collection(other):
            assert mine.batch_size == other.batch_size, key
            continue
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), key
        assert mine.equal(other), key


# What torchrl's own tests assert

BUFFERS: dict[str, Callable[..., Any]] = {
    "ReplayBuffer": ReplayBuffer,
    "ReplayBufferRNG": lambda **kwargs: ReplayBuffer(generator=torch.Generator(), **kwargs),
    "TensorDictReplayBuffer": TensorDictReplayBuffer,
    "TensorDictReplayBufferRNG": lambda **kwargs: TensorDictReplayBuffer(generator=torch.Generator(), **kwargs),
}
SAMPLERS: dict[str, Callable[[int], Any]] = {
    "random": lambda size: samplers.RandomSampler(),
    "without-replacement": lambda size: samplers.SamplerWithoutReplacement(),
    "prioritized": lambda size: samplers.PrioritizedSampler(max_capacity=size, alpha=0.8, beta=0.9),
}


def found_in(item: TensorDictBase, items: Any) -> bool:
    """Whether one of the items has the same values, but for the leaf ``index``."""
    keys = [key for key in item.keys(True, True) if key != "index"]
    assert keys
    return any(
        all(item.get(key).equal(other.get(key)) for key in keys if key in other.keys(True, True)) for other in items
    )


def composed(make: Callable[..., Any], sampler: str, size: int) -> Any:
    return make(
        storage=DiskReplayStorage(size), sampler=SAMPLERS[sampler](size), writer=RoundRobinWriter(), batch_size=3
    )


def whole(make: Callable[..., Any], size: int) -> Any:
    return make(storage=DiskReplayStorage(size), prefetch=0, batch_size=3)


MAKERS: dict[str, Callable[[int], Any]] = {
    **{
        f"{kind}, {sampler}": functools.partial(composed, make, sampler)
        for kind, make in BUFFERS.items()
        for sampler in SAMPLERS
    },
    "plain": functools.partial(whole, TensorDictReplayBuffer),
    "plain RNG": functools.partial(whole, functools.partial(TensorDictReplayBuffer, generator=torch.Generator())),
    "plain prioritized": functools.partial(
        whole, functools.partial(TensorDictPrioritizedReplayBuffer, alpha=0.8, beta=0.9)
    ),
}
KEYS = "a", "b", "next"


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=[needs_trees] if "prioritized" in name else []) for name in MAKERS]
)
@pytest.mark.parametrize("size", [3, 5, 100])
class TestBuffers:
    def buffer(self, kind: str, size: int) -> Any:
        return MAKERS[kind](size)

    def data(self, *size: int) -> TensorDictBase:
        inner = TensorDict({"c": torch.randint(100, (*size, 1))}, size)
        return TensorDict(
            {"a": torch.randint(100, (*size, 1)), "b": inner, "next": {"reward": torch.randn(*size, 1)}}, size
        )

    def test_add(self, kind: str, size: int) -> None:
        rb, datum = self.buffer(kind, size), self.data()
        assert "len=0" in str(rb)
        rb.add(datum)
        drawn, _ = rb.sample(1, return_info=True)
        assert (len(rb), drawn.ndim) == (1, 1)
        assert "len=1" in str(rb)
        assert_same(drawn[0].select(*KEYS), datum.select(*KEYS))

    def test_empty(self, kind: str, size: int) -> None:
        rb, datum = self.buffer(kind, size), self.data()
        for _ in range(2):
            rb.add(datum)
            assert_same(rb.sample(1)[0].select(*KEYS), datum.select(*KEYS))
            rb.empty()
            with pytest.raises(RuntimeError, match="Cannot sample from an empty storage"):
                rb.sample()

    def test_cursor_position(self, kind: str, size: int) -> None:
        alone = RoundRobinWriter()
        alone.register_storage(DiskReplayStorage(size))
        for writer in (self.buffer(kind, size).writer, alone):
            writer.extend(self.data(5))
            assert writer._cursor == 5 % size
            if size == 5:
                writer.extend(self.data(size - 1))
                assert writer._cursor == size - 1

    def test_extend(self, kind: str, size: int) -> None:
        rb, data = self.buffer(kind, size), self.data(5)
        rb.extend(data)
        assert len(rb) == min(size, 5)
        assert all(found_in(item, rb.storage) for item in data[-len(rb) :])
        rb.extend(self.data(2 * size + 2))
        assert len(rb) == min(size, 5 + 2 * size + 2)

    def test_sample(self, kind: str, size: int) -> None:
        rb, data = self.buffer(kind, size), self.data(5)
        rb.extend(data)
        drawn = rb.sample()
        assert len(drawn) == 3
        assert all(found_in(item.select(*KEYS), data) for item in drawn)

    def test_index(self, kind: str, size: int) -> None:
        rb = self.buffer(kind, size)
        rb.extend(self.data(size - 1))
        assert (len(rb[: size - 1]), len(rb[size - 2 :])) == (size - 1, 1), "it is not full"
        rb.extend(self.data(5))
        assert type(rb[2]) is type(rb.storage[2])
        assert (rb[2] == rb.storage[2]).all()

    def test_pickable(self, kind: str, size: int) -> None:
        rb = self.buffer(kind, size)
        again = pickle.loads(pickle.dumps(rb))
        assert rb.__dict__.keys() == again.__dict__.keys()
        assert all(type(rb.__dict__[name]) is type(again.__dict__[name]) for name in rb.__dict__)
        again.extend(self.data(2))
        assert (len(again), len(rb)) == (2, 0)


# The same as torchrl's storages

TWINS: dict[str, Callable[[int], Any]] = {
    **SAMPLERS,
    "slices": lambda size: samplers.SliceSampler(slice_len=4),
    "slices-by-end": lambda size: samplers.SliceSampler(slice_len=4, end_key=("next", "done"), traj_key=None),
    "whole-episodes": lambda size: samplers.SliceSampler(num_slices=4, strict_length=False),
    "slices-without-replacement": lambda size: samplers.SliceSamplerWithoutReplacement(slice_len=4),
    "prioritized-slices": lambda size: samplers.PrioritizedSliceSampler(size, 0.8, 0.9, slice_len=4),
}


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize(
    "sampler", [pytest.param(name, marks=[needs_trees] if "prioritized" in name else []) for name in TWINS]
)
def test_draws_the_batches_of_torchrls_own_storage(kind: Any, sampler: str, tmp_path: Path) -> None:
    drawn = []
    for storage in (LazyTensorStorage(100), DiskReplayStorage(100, path=tmp_path / "store", chunk_rows=4)):
        torch.manual_seed(3)
        np.random.seed(3)  # PrioritizedSampler draws from it
        rb = kind(storage=storage, sampler=TWINS[sampler](100), batch_size=16)
        found = []
        for number in range(30):  # past the end of the ring, twice
            data = trajectory(7 + number % 4, number)
            if number % 5:
                rb.extend(data)
            else:
                for step in data:
                    rb.add(step.clone())
            if number > 3:
                found += [rb.sample(), rb.sample()]
        drawn.append((found, rb[:].clone(), rb[-1], rb[5:9], rb[torch.tensor([3, 99, 3])], rb.writer._cursor))
    (theirs, ours) = drawn
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert_same(one, other)
    for one, other in zip(ours[1:-1], theirs[1:-1], strict=True):
        assert_same(one, other)
    assert ours[-1] == theirs[-1]


def items_of(kind: str, count: int, rng: Any) -> TensorDictBase:
    """Tensordicts unlike a collector's."""
    numbers = functools.partial(torch.randn, generator=rng)
    return {
        "no-next": lambda: TensorDict({"x": numbers(count, 2), "y": torch.arange(count)}, [count]),
        "dtypes": lambda: TensorDict(
            {
                str(dtype).removeprefix("torch."): (numbers(count, 3) * 9).abs().to(dtype)
                for dtype in (torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float64,
                              torch.complex64)
            },
            [count],
        ),
        "bool-observation": lambda: TensorDict(
            {"seen": numbers(count) > 0, "action": numbers(count, 2) > 0, "next": {"seen": numbers(count) > 0}}, [count]
        ),
        "agents": lambda: TensorDict(
            {
                "agents": TensorDict({"obs": numbers(count, 3, 2), "action": torch.ones(count, 3)}, [count, 3]),
                "next": {
                    "agents": TensorDict({"obs": numbers(count, 3, 2), "reward": numbers(count, 3, 1)}, [count, 3]),
                    "reward": numbers(count, 3, 1), "done": numbers(count, 3, 1) > 0,
                },
            },
            [count],
        ),
        "chunks-of-time": lambda: TensorDict(
            {"observation": numbers(count, 5, 2), "next": {"observation": numbers(count, 5, 2),
                                                           "reward": numbers(count, 5, 1)}}, [count, 5]
        ),
        "names": lambda: TensorDict(
            {
                "obs": numbers(count, 2), "next_obs": numbers(count), "self": numbers(count), "valid": numbers(count),
                "a.b": numbers(count), "a": {"b": numbers(count)}, "x/y": numbers(count),
                "index": torch.arange(count) * 7,
                "next": {"obs": numbers(count, 2), "next_obs": numbers(count), "terminated": numbers(count) > 0},
            },
            [count],
        ),
        "flags-that-contradict": lambda: TensorDict(
            {"next": {"done": numbers(count, 1) > 0, "terminated": numbers(count, 1) > 0,
                      "truncated": numbers(count, 1) > 0}}, [count]
        ),
        "nan": lambda: TensorDict(
            {"observation": numbers(count, 2) / 0.0, "next": {"observation": numbers(count, 2) * np.nan}}, [count]
        ),
    }[kind]()  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["no-next", "dtypes", "bool-observation", "agents", "chunks-of-time", "names", "flags-that-contradict", "nan"],
)
def test_every_leaf_comes_back_bit_for_bit(kind: str, tmp_path: Path, generator: Any) -> None:
    """After the store was opened anew, too; in a ring that is full."""
    data = items_of(kind, 12, generator)
    rb = ReplayBuffer(storage=DiskReplayStorage(9, path=tmp_path / "store"), batch_size=4)
    rb.extend(data[:5])
    rb.extend(data[5:])
    expected = torch.cat([data[9:], data[3:9]])

    def same(ours: TensorDictBase, theirs: TensorDictBase) -> None:
        if kind != "nan":
            return assert_same(ours, theirs)
        for key in theirs.keys(True, True):
            np.testing.assert_array_equal(ours[key].numpy(), theirs[key].numpy())
        return None

    same(rb[:].clone(), expected)
    same(rb[torch.arange(9)], expected)
    same(rb[4], expected[4])
    rb.storage.close()
    again = DiskReplayStorage(9, path=tmp_path / "store")
    same(again[:].clone(), expected)
    again.close()


def test_observations_are_stored_once(tmp_path: Path) -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(1000, path=tmp_path / "store"), batch_size=4)
    episodes = [trajectory(50, number) for number in range(4)]
    rb.extend(torch.cat(episodes))  # as a collector of four environments hands them over
    store = rb.storage.store
    assert {column.name for column in store.schema.obs_columns} == {"obs/pixels", "obs/agent.state"}
    assert store.stats()["streams"]["0"]["patches"] == 3  # of the 200 next observations, but for the pending one
    assert [episode.terminated for episode in store.episodes] == [True] * 4
    assert [episode.length for episode in store.episodes] == [50] * 4
    assert store.episodes[1].total_reward == pytest.approx(float(episodes[1]["next", "reward"].sum()), abs=1e-4)


def test_stacked_frames_are_stored_once(tmp_path: Path) -> None:
    frames = torch.randint(0, 255, (24, 6, 6), dtype=torch.uint8)
    stacks = frames.unfold(0, 4, 1).permute(0, 3, 1, 2)  # (21, 4, 6, 6), as CatFrames(4, dim=-3) gives them
    data = TensorDict({"pixels": stacks[:-1], "next": {"pixels": stacks[1:]}}, [20])
    storage = DiskReplayStorage(50, path=tmp_path / "store", frame_stack={"pixels": 4}, stack_axis=0)
    rb = ReplayBuffer(storage=storage, batch_size=4)
    rb.extend(data)
    assert storage.store.schema.obs_columns[0].shape == (6, 6)
    assert_same(rb[:].clone(), data)
    with pytest.raises(InputError, match=r"frame_stack: .*'frames'.* is no observation"):
        ReplayBuffer(storage=DiskReplayStorage(50, frame_stack={"frames": 4}), batch_size=4).extend(data)


def test_buffers_that_share_a_storage_write_one_after_another(tmp_path: Path) -> None:
    storage = DiskReplayStorage(20, path=tmp_path / "store")
    one, other = (TensorDictReplayBuffer(storage=storage, batch_size=4) for _ in range(2))
    for number in range(6):
        (one, other)[number % 2].extend(trajectory(7, number))
    assert len(one) == len(other) == 20
    assert one.writer._cursor == other.writer._cursor == 42 % 20
    assert_same(one[:].clone(), other[:].clone())
    assert one[1]["collector", "traj_ids"] == 5
    ReplayBuffer(storage=storage, batch_size=4).extend([step.exclude("index") for step in trajectory(3, 9)])
    assert other[2:5]["collector", "traj_ids"].tolist() == [9] * 3


# Reading only what is asked for


def test_a_slice_reads_the_leaves_that_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store")
    rb = TensorDictReplayBuffer(storage=storage, sampler=samplers.SliceSampler(slice_len=4), batch_size=8)
    rb.extend(torch.cat([trajectory(20, number) for number in range(3)]))
    read: list[Any] = []
    reading = type(storage._reader())._read
    monkeypatch.setattr(
        type(storage._reader()),
        "_read",
        lambda self, leaf, ids, slots: (read.append((leaf.key, len(ids))), reading(self, leaf, ids, slots))[1],
    )
    rows = rb[:]
    assert (len(rows), rows["next", "done"].sum(), read) == (60, 3, [(("next", "done"), 60)])
    rb.sample()
    assert (("collector", "traj_ids"), 60) in read
    assert sum(rows for key, rows in read if "pixels" in key) == 2  # the sampler asks one row for its keys


def test_a_slice_is_a_tensordict_that_cannot_be_written_through(tmp_path: Path) -> None:
    data = trajectory(10)
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(10, path=tmp_path / "store"), batch_size=2)
    rb.extend(data)
    rows = rb[:]
    for write in (
        lambda: rb.set_at_("done", torch.ones(1, dtype=torch.bool), 3),
        lambda: rb.set_("done", torch.ones(10, 1, dtype=torch.bool)),
        lambda: rb.update_({"done": torch.ones(10, 1, dtype=torch.bool)}),
        lambda: rb.__setitem__("done", torch.ones(10, 1, dtype=torch.bool)),
        lambda: rb.__setitem__(("next", "done"), torch.ones(10, 1, dtype=torch.bool)),
        lambda: rows.__setitem__(3, data[0]),
        lambda: rows.__setitem__(slice(3), data[:3]),
        lambda: rows.zero_(),
    ):
        with pytest.raises(ReadOnlyError, match="never overwritten"):
            write()
    rows["extra"] = torch.arange(10)
    rows.set("done", torch.ones(10, 1, dtype=torch.bool))
    assert rows["done"].all()
    assert not rb[:]["done"].any()
    assert rows["extra"].sum() == 45
    for made in (rows.clone(), rows[2:5], rows.select("done"), pickle.loads(pickle.dumps(rows)), rows.to_tensordict()):
        assert type(made) is TensorDict
        made.zero_()
        assert not made["done"].any()
    assert torch.stack([rows, rows]).shape == (2, 10)
    assert rows.reshape(2, 5)["pixels"].shape == (2, 5, 3, 8, 8)


def test_a_slice_that_was_kept_says_that_its_rows_have_left(tmp_path: Path) -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(10, path=tmp_path / "store"), batch_size=2)
    rb.extend(trajectory(10))
    rows = rb[:]
    rb.extend(trajectory(3, 1))
    with pytest.raises(EvictedError):
        rows["pixels"]


# Learning


class Pole(gym.Env):
    """Keep a state near zero; small, and the same on every machine."""

    observation_space = spaces.Box(-9, 9, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state, self.steps = self.np_random.uniform(-1, 1, 3).astype(np.float32), 0
        return self.state.copy(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        push = np.float32(0.25 if action else -0.25)
        self.state = (self.state + push * np.array([1, -0.5, 0.25], np.float32)).astype(np.float32)
        return self.state.copy(), float(1 - abs(self.state[0])), bool(abs(self.state[0]) > 2), self.steps >= 20, {}


def train(storage: Any, rounds: int) -> list[Any]:
    """DQN with torchrl's loss, target updates and buffer; the parameters of the network afterwards."""
    torch.manual_seed(0)
    rng, env = np.random.default_rng(0), Pole()
    network = MLP(in_features=3, out_features=2, num_cells=[16])
    actor = QValueActor(TensorDictModule(network, ["observation"], ["action_value"]), spec=OneHot(2))
    loss = DQNLoss(actor, action_space="one-hot", delay_value=True)
    loss.make_value_estimator(gamma=0.9)
    updater, optimizer = SoftUpdate(loss, eps=0.95), torch.optim.Adam(actor.parameters(), 1e-2)
    rb = TensorDictReplayBuffer(storage=storage, batch_size=16, prefetch=0)
    obs, _ = env.reset(seed=0)
    for _ in range(rounds):
        steps = []
        for _ in range(10):
            state = TensorDict({"observation": torch.as_tensor(obs)}, [])
            with torch.no_grad():
                greedy = int(actor(state)["action"].argmax())
            action = int(rng.integers(2)) if rng.random() < 0.2 else greedy
            following, reward, terminated, truncated, _ = env.step(action)
            steps.append(
                TensorDict(
                    {
                        "observation": torch.as_tensor(obs), "action": torch.eye(2, dtype=torch.int64)[action],
                        "next": {
                            "observation": torch.as_tensor(following), "reward": torch.tensor([reward]),
                            "done": torch.tensor([terminated or truncated]), "terminated": torch.tensor([terminated]),
                            "truncated": torch.tensor([truncated]),
                        },
                    },
                    [],
                )
            )  # fmt: skip
            obs = env.reset()[0] if terminated or truncated else following
        rb.extend(torch.stack(steps))
        value = loss(rb.sample())["loss"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        updater.step()
    return [parameter.detach().clone() for parameter in actor.parameters()]


def test_dqn_learns_the_same_parameters(tmp_path: Path) -> None:
    before = train(LazyTensorStorage(150), 0)
    theirs = train(LazyMemmapStorage(150, scratch_dir=tmp_path / "memmap"), 40)
    ours = train(DiskReplayStorage(150, path=tmp_path / "store"), 40)
    assert all(mine.equal(other) for mine, other in zip(ours, theirs, strict=True))
    assert not any(mine.equal(other) for mine, other in zip(ours, before, strict=True))


# Checkpoints


def bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def filled(storage: Any, kind: Any = TensorDictReplayBuffer, episodes: int = 14, **kwargs: Any) -> Any:
    rb = kind(storage=storage, batch_size=8, **kwargs)
    for number in range(episodes):
        rb.extend(trajectory(9, number, size=16))
    return rb


def test_dumps_and_loads_go_back_by_the_name_of_a_checkpoint(tmp_path: Path, generator: Any) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store")
    rb = filled(storage, generator=generator)
    rb.dumps(tmp_path / "saved")
    rows, cursor = rb[:].clone(), rb.writer._cursor
    drawn = [rb.sample() for _ in range(3)]
    for number in range(5):
        rb.extend(trajectory(9, 50 + number, size=16))
    rb.dumps(tmp_path / "saved-later")
    assert bytes_below(tmp_path / "saved") < 10_000 < rows["pixels"].numel()
    rb.loads(tmp_path / "saved")
    assert_same(rb[:].clone(), rows)
    assert rb.writer._cursor == cursor == 126 % 100
    for expected in drawn:
        assert_same(rb.sample(), expected)
    rb.extend(trajectory(9, 77, size=16))
    assert rb[cursor]["collector", "traj_ids"] == 77


def test_a_new_process_loads_what_was_dumped(tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=tmp_path / "store"))
    rb.dumps(tmp_path / "saved")
    rows = rb[:].clone()
    rb.extend(trajectory(9, 50, size=16))
    rb.storage.close()
    again = TensorDictReplayBuffer(storage=DiskReplayStorage(100, path=tmp_path / "store"), batch_size=8)
    again.loads(tmp_path / "saved")
    assert_same(again[:].clone(), rows)
    assert again.writer._cursor == 26
    again.extend(trajectory(9, 51, size=16))
    assert again[26]["collector", "traj_ids"] == 51


def test_dumping_to_one_directory_again_keeps_one_checkpoint(tmp_path: Path) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store")
    rb = filled(storage, episodes=1)
    for number in range(5):
        rb.extend(trajectory(9, number, size=16))
        rb.dumps(tmp_path / "saved")
    assert len(storage.store.checkpoints) == 1
    rb.extend(trajectory(9, 9, size=16))
    rb.loads(tmp_path / "saved")
    assert len(rb) == 54
    shutil.copytree(tmp_path / "saved", tmp_path / "copied")
    for _ in range(2):
        rb.dumps(tmp_path / "saved")
        with pytest.raises(CheckpointError, match="any more"):  # and not other rows of a name that was given again
            rb.loads(tmp_path / "copied")


def test_a_crash_before_the_file_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store")
    rb = filled(storage, episodes=2)
    rb.dumps(tmp_path / "saved")
    rb.extend(trajectory(9, 5, size=16))
    with monkeypatch.context() as patch:
        patch.setattr(storage_checkpoints, "_write", lambda file, state: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rb.dumps(tmp_path / "saved")
    assert len(storage.store.checkpoints) == 2
    rb.loads(tmp_path / "saved")
    assert (len(rb), len(storage.store.checkpoints)) == (18, 1)


def test_state_dict_is_a_name_that_torch_saves_and_loads(tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=tmp_path / "store"))
    rows = rb[:].clone()
    torch.save(rb.state_dict(), tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 10_000
    rb.extend(trajectory(9, 50, size=16))
    rb.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert_same(rb[:].clone(), rows)
    assert rb.writer._cursor == 26


def test_the_newest_states_are_kept(tmp_path: Path) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store", keep_checkpoints=2)
    rb, states = filled(storage, episodes=1), []
    for number in range(4):
        states.append(rb.state_dict())
        rb.extend(trajectory(9, number, size=16))
    assert len(storage.store.checkpoints) == 2
    rb.load_state_dict(states[3])
    assert len(rb) == 36
    rb.load_state_dict(states[2])
    assert len(rb) == 27
    with pytest.raises(CheckpointError, match=r"no checkpoint 'torchrl-state-.*' any more"):
        rb.load_state_dict(states[0])
    assert len(rb) == 27


@pytest.mark.parametrize("how", ["dumps", "state_dict"])
@pytest.mark.parametrize("temporary", [False, True])
def test_another_storage_takes_over_a_copy(how: str, temporary: bool, tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=None if temporary else tmp_path / "one"))
    other = filled(DiskReplayStorage(100, path=tmp_path / "other"), episodes=2)
    third = ReplayBuffer(storage=DiskReplayStorage(100), batch_size=8)
    rows = rb[:].clone()
    if how == "dumps":
        for _ in range(3):
            rb.dumps(tmp_path / "saved")
        saved: Any = tmp_path / "saved"
    else:
        torch.save(rb.state_dict(), tmp_path / "saved.pt")
        saved = torch.load(tmp_path / "saved.pt")
    for target in (other, third):
        (target.loads if how == "dumps" else target.load_state_dict)(saved)
        assert target.writer._cursor == 26
        assert_same(target[:].clone(), rows)
        target.extend(trajectory(9, 51, size=16).exclude("index"))
        assert target[26]["collector", "traj_ids"] == 51
    assert_same(rb[:].clone(), rows)


def test_an_empty_buffer_is_saved_and_loaded(tmp_path: Path) -> None:
    empty = ReplayBuffer(storage=DiskReplayStorage(100, path=tmp_path / "store"), batch_size=8)
    empty.dumps(tmp_path / "saved")
    state = empty.state_dict()
    empty.extend(trajectory(9))
    empty.loads(tmp_path / "saved")
    assert len(empty) == 0
    empty.extend(trajectory(9))
    empty.load_state_dict(state)
    assert len(empty) == 0
    empty.extend(trajectory(4))
    assert len(empty) == 4


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=tmp_path / "store"), episodes=2)
    state = rb.state_dict()
    small = ReplayBuffer(storage=DiskReplayStorage(50), batch_size=8)
    with pytest.raises(InputError, match="max_size 100; give this one, of 50, the same"):
        small.load_state_dict(state)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(CheckpointError, match=r"no diskreplay\.json"):
        rb.storage.loads(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="hook"):
        rb.storage.register_save_hook(lambda *args: None)


@pytest.mark.parametrize(
    "foreign", [lambda: LazyTensorStorage(100).state_dict(), dict, list, lambda: {"max_size": 100}]
)
def test_the_state_of_another_storage_is_named(foreign: Callable[[], Any]) -> None:
    storage = filled(DiskReplayStorage(100), episodes=2).storage
    rows = storage[:].clone()
    with pytest.raises(InputError, match="must be one that state_dict of a DiskReplayStorage gave"):
        storage.load_state_dict(foreign())
    assert_same(storage[:].clone(), rows)


class Named(DiskReplayStorage):
    """A subclass that takes no size."""

    def __init__(self, name: str) -> None:
        super().__init__(100, frame_stack={"pixels": 4}, stack_axis=0)
        self.name = name


def test_a_subclass_with_other_arguments_is_saved(tmp_path: Path) -> None:
    frames = torch.randint(0, 255, (24, 6, 6), dtype=torch.uint8)
    stacks = frames.unfold(0, 4, 1).permute(0, 3, 1, 2)
    rb = ReplayBuffer(storage=Named("mine"), batch_size=8)
    rb.extend(TensorDict({"pixels": stacks[:-1], "next": {"pixels": stacks[1:]}}, [20]))
    rows = rb[:].clone()
    for _ in range(2):
        rb.dumps(tmp_path / "saved")
        with dr.ReplayBuffer.open(next((tmp_path / "saved").rglob("store-?")), mode="r") as copied:
            assert copied.schema.obs_columns[0].shape == (6, 6)  # frames once, as in the storage
    rb.storage._empty()
    rb.loads(tmp_path / "saved")
    assert_same(rb[:].clone(), rows)


@needs_trees
def test_priorities_come_back_with_a_checkpoint(tmp_path: Path) -> None:
    drawn = []
    for storage in (LazyTensorStorage(100), DiskReplayStorage(100, path=tmp_path / "store")):
        sampler = samplers.PrioritizedSampler(100, 0.8, 0.9)
        rb = filled(storage, sampler=sampler)
        rb.update_priority(torch.arange(100), torch.arange(100) + 1.0)
        rb.dumps(tmp_path / type(storage).__name__)
        rb.update_priority(torch.arange(100), torch.ones(100))
        rb.loads(tmp_path / type(storage).__name__)
        np.random.seed(1)
        drawn.append(rb.sample(64))
    assert_same(drawn[1], drawn[0])


# Going on


def test_a_store_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    """The writer goes on after the newest row, which is in the slot that it had."""
    for episodes, cursor in ((4, 36), (14, 26)):
        path = tmp_path / str(episodes)
        filled(DiskReplayStorage(100, path=path), episodes=episodes).storage.close()
        for writer in (None, RoundRobinWriter(), TensorDictRoundRobinWriter):
            storage = DiskReplayStorage(100, path=path)
            rb = (
                TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=8)
                if writer
                else (TensorDictReplayBuffer(storage=storage, batch_size=8))
            )
            assert rb.writer._cursor == cursor
            newest = rb[cursor - 1]["collector", "traj_ids"]
            assert newest == episodes - 1
            storage.close()
        rb = TensorDictReplayBuffer(
            storage=DiskReplayStorage(100, path=path), sampler=samplers.SliceSampler(slice_len=3), batch_size=30
        )
        rb.extend(trajectory(9, 99, size=16))
        assert rb[cursor : cursor + 9]["collector", "traj_ids"].tolist() == [99] * 9
        slices = rb.sample()["collector", "traj_ids"].reshape(-1, 3)
        assert (slices == slices[:, :1]).all()
        rb.storage.close()


def test_a_store_is_opened_at_a_checkpoint(tmp_path: Path) -> None:
    storage = DiskReplayStorage(100, path=tmp_path / "store")
    rb = filled(storage, episodes=3)
    storage.store.checkpoint("three")
    rb.extend(trajectory(9, 5, size=16))
    storage.close()
    assert len(DiskReplayStorage(100, path=tmp_path / "store", checkpoint="three")) == 27
    with pytest.raises(InputError, match="no store, and so no checkpoint"):
        DiskReplayStorage(100, path=tmp_path / "other", checkpoint="three")


def test_a_checkpoint_has_learner_and_buffer(tmp_path: Path) -> None:
    def opened(path: Path) -> Any:
        storage = DiskReplayStorage(100, path=path, checkpoint="latest")
        return TensorDictReplayBuffer(
            storage=storage, sampler=samplers.SamplerWithoutReplacement(), batch_size=8, generator=torch.Generator()
        )

    def save(rb: Any, name: str) -> None:
        files = {"learner.pt": lambda file: torch.save({"rb": rb.state_dict(), "name": name}, file)}
        rb.storage.checkpoint(name, {"rows": len(rb)}, attachments=files, keep=1)

    def load(rb: Any) -> str:
        with rb.storage.attachment("learner.pt") as file:
            saved = torch.load(file)
        rb.load_state_dict(saved["rb"])
        return saved["name"]

    rb = opened(tmp_path / "store")
    assert rb.storage.restored is None
    with pytest.raises(CheckpointError, match="before the first row"):
        load(rb)
    with pytest.raises(InputError, match="add a row first"):
        save(rb, "none")
    rb.extend(trajectory(9, 0, size=16))
    rb.empty()
    for number in range(14):
        rb.extend(trajectory(9, number, size=16))
    rb.sample()
    for name in ("one", "two"):
        save(rb, name)
    assert rb.storage.store.checkpoints == ["two"]
    with pytest.raises(ZeroDivisionError):
        rb.storage.checkpoint("three", attachments={"a": lambda file: 1 // 0})
    rows, cursor, drawn = rb[:].clone(), rb.writer._cursor, [rb.sample() for _ in range(3)]
    assert rb.state_dict()["_storage"]["checkpoint"].startswith("torchrl-state-")
    rb.storage.store.drop_checkpoint(rb.storage.store.checkpoints[-1])
    rb.extend(trajectory(9, 50, size=16))
    rb.storage.close()

    (tmp_path / "store").rename(tmp_path / "moved")
    rb = opened(tmp_path / "moved")
    assert (rb.storage.restored.name, rb.storage.restored.metadata) == ("two", {"rows": 100})
    assert (load(rb), rb.storage.restored.name, rb.writer._cursor) == ("two", "two", cursor)
    assert_same(rb[:].clone(), rows)
    for expected in drawn:
        assert_same(rb.sample(), expected)
    rb.storage.store.checkpoint("later")
    rb.extend(trajectory(9, 51, size=16))
    rb.storage.store.checkpoint("latest rows")
    assert load(rb) == "two"  # the rows of a later checkpoint stay: those of this one are copied
    assert_same(rb[:].clone(), rows)
    rb.storage.close()


WRITER = """
import sys, torch
from tensordict import TensorDict
from torchrl.data import TensorDictReplayBuffer
from diskreplay.compat.torchrl import DiskReplayStorage

storage = DiskReplayStorage(64, path=sys.argv[1], commit_seconds=1e9)
rb = TensorDictReplayBuffer(storage=storage, batch_size=4)
first = int(sys.argv[2])
numbers = torch.arange(first, first + 1001, dtype=torch.float32)[:, None].expand(-1, 5).contiguous()
for at in range(0, 1000, 10):
    rows = slice(at, at + 10)
    after = {"observation": numbers[1:][rows]}
    n = torch.arange(first + at, first + at + 10)
    rb.extend(TensorDict({"observation": numbers[:-1][rows], "next": after, "n": n}, [10]))
    if at == 30:
        storage.commit()
        print("committed", flush=True)
        if sys.argv[3] == "die":
            sys.stdin.read()
"""


def test_a_killed_process_finds_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for life, first in enumerate((0, 40, 80)):
        command = [sys.executable, "-W", "ignore", "-c", WRITER, str(path), str(first), "die"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            said = iter(process.stdout.readline, "")
            assert any(line.strip() == "committed" for line in said)
            os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        rb = TensorDictReplayBuffer(storage=DiskReplayStorage(64, path=path), batch_size=4)
        rows, end = rb[:], first + 40
        assert sorted(rows["n"].tolist()) == list(range(max(0, end - 64), end))
        assert (rows["n"] % 64).tolist() == list(range(min(end, 64))), "each is in the slot that it had"
        assert rows["observation"][:, 0].tolist() == rows["n"].tolist()
        assert (rows["next", "observation"][:, 4] == rows["n"] + 1).all()
        assert rb.writer._cursor == end % 64, life
        rb.storage.close()


# Refusals


def test_what_overwrites_is_refused_by_its_name(tmp_path: Path) -> None:
    make = functools.partial(DiskReplayStorage, 10)
    for writer in (TensorDictMaxValueWriter(), TensorDictMaxValueWriter):
        with pytest.raises(InputError, match="TensorDictMaxValueWriter overwrites"):
            TensorDictReplayBuffer(storage=make(), writer=writer, batch_size=2)
    for arguments in ({"sampler": samplers.ConsumingSampler()}, {"sampler": samplers.ConsumingSampler},
                      {"consume_after_n_samples": 2}):  # fmt: skip
        with pytest.raises(InputError, match="ConsumingSampler"):
            TensorDictReplayBuffer(storage=make(), batch_size=2, **arguments)
    rb = TensorDictReplayBuffer(storage=make(), batch_size=2)
    rb.extend(trajectory(4))
    for write in (
        lambda: rb.__setitem__(2, trajectory(1)[0]),
        lambda: rb.storage.set(0, trajectory(1)[0]),
        lambda: rb.writer.write_at(4, trajectory(1)[0]),
        lambda: rb.storage.set(6, trajectory(1)[0]),
    ):
        with pytest.raises(InputError, match="never overwritten: slot 4 is the next"):
            write()
    rb.set_writer(TensorDictMaxValueWriter(rank_key=("next", "reward")))
    with pytest.raises(InputError, match="TensorDictMaxValueWriter overwrites"):
        rb.extend(trajectory(4))
    assert len(rb) == 4


def test_bad_input_leaves_the_writer_where_it_was() -> None:
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(10), batch_size=2)
    good = trajectory(4)
    nan, less, more, long, other = good.clone(), good.exclude("done"), good.clone(), good.clone(), good.clone()
    nan["next", "reward"][1] = np.nan
    more["more"] = torch.zeros(4)
    long["action"] = torch.zeros(4, 3, dtype=torch.int64)
    other["agent", "state"] = good["agent", "state"].double()
    rb.extend(good.clone())
    for bad, message in (
        (nan, "reward"), (less, "lacks .*done"), (more, "has .*more.* too"), (long, r"action.* \(2,\)"),
        (other, "float32"), (good.set("text", NonTensorData("a", [4])), "text.* must be a tensor"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            rb.extend(bad)
        assert (len(rb), rb.writer._cursor) == (4, 4)
    rb.extend(trajectory(4, 1))
    assert len(rb) == 8


STRINGS: dict[str, Callable[[TensorDict], Any]] = {
    "a string": lambda data: data.set("text", NonTensorData("a", data.batch_size)),
    "a string for each": lambda data: data.set("text", NonTensorStack(*"abcd")),
    "strings below": lambda data: data.set(("next", "text"), NonTensorStack(*"abcd")),
    "strings in a tensordict of their own": lambda data: data.set(
        "text", TensorDict({"a": NonTensorStack(*"abcd")}, [4])
    ),
    "None": lambda data: data.set("text", NonTensorData(None, data.batch_size)),
    "an object": lambda data: data.set("text", NonTensorData({"a": 1}, data.batch_size)),
    "an empty tensordict": lambda data: data.set("text", TensorDict({}, [4])),
    "an empty tensordict below": lambda data: data.set(("next", "text"), TensorDict({}, [4])),
    "sparse": lambda data: data.set("text", torch.ones(4, 2).to_sparse()),
}


@pytest.mark.parametrize("what", STRINGS)
@pytest.mark.parametrize("how", ["extend", "add", "set", "set a list"])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_no_tensor_is_refused_or_held(what: str, how: str, first: bool) -> None:
    """torchrl's own storages hold it, and leave it out where it comes later; here it is never dropped."""
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(20), batch_size=2)
    if not first:
        rb.extend(trajectory(4))
    data = trajectory(4, 1)
    STRINGS[what](data)
    before, slots = len(rb), (rb.storage.pos + torch.arange(4)) % 20
    calls: dict[str, Callable[[], Any]] = {
        "extend": lambda: rb.extend(data),
        "add": lambda: rb.add(data[0]),
        "set": lambda: rb.storage.set(slots, data),
        "set a list": lambda: rb.storage.set(slots, list(data.unbind(0))),
    }
    if first and "empty" in what:
        calls[how]()
        held = rb[:].to_tensordict()
        assert set(data.keys(True)) <= set(held.keys(True))
        with pytest.raises(InputError, match=r"lacks .*text"):
            rb.extend(trajectory(4, 2))
        return
    with pytest.raises(InputError, match="text"):
        calls[how]()
    assert (len(rb), rb.writer._cursor) == (before, before)
    rb.extend(trajectory(4, 2))
    assert len(rb) == before + 4


@pytest.mark.parametrize("inner", [{}, {"a": torch.zeros(4, 2)}])
def test_a_leaf_that_comes_as_a_tensordict_is_refused_and_the_other_way_round(inner: dict[str, Any]) -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(20), batch_size=2)
    rb.extend(trajectory(4).set("text", torch.zeros(4, 2)))
    with pytest.raises(InputError, match="text"):
        rb.extend(trajectory(4, 1).set("text", TensorDict(inner, [4])))
    rb = ReplayBuffer(storage=DiskReplayStorage(20), batch_size=2)
    rb.extend(trajectory(4).set("text", TensorDict(inner, [4])))
    with pytest.raises(InputError, match="text"):
        rb.extend(trajectory(4, 1).set("text", torch.zeros(4, 2)))
    assert len(rb) == 4


def test_a_stack_whose_tensordicts_have_other_leaves_is_refused() -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(20), batch_size=2)
    for extra in ({"text": torch.ones(())}, {"text": NonTensorData("a")}, {"next": {"text": torch.ones(())}}):
        one, other = trajectory(2).unbind(0)
        other.update(TensorDict(extra, []))
        with pytest.raises(InputError, match=r"text.* must be in each of the tensordicts of a stack"):
            rb.extend(LazyStackedTensorDict(one, other))
        with pytest.raises(InputError, match="must be alike"):
            rb.storage.set(torch.arange(2), [one, other])
    assert len(rb) == 0


def test_tensors_as_networks_give_them() -> None:
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(20), batch_size=2)
    first, later = trajectory(4), trajectory(4, 1)
    rb.extend(first.clone().set("value", torch.ones(4, 2, requires_grad=True) * 2))
    values = torch.arange(8.0).reshape(4, 2)
    rb.extend(later.set("value", values.bfloat16()))
    held = rb[:]["value"]
    assert held.dtype is torch.float32
    assert held.tolist() == [[2.0, 2.0]] * 4 + values.tolist()


def test_after_an_interrupted_write_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(10), batch_size=2)
    rb.extend(trajectory(4))
    extend = dr.ReplayBuffer.extend

    def interrupted(store: Any, **steps: Any) -> None:
        extend(store, **{name: {key: part[:2] for key, part in value.items()} if isinstance(value, dict) else value[:2]
                         for name, value in steps.items()})  # fmt: skip
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(dr.ReplayBuffer, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rb.extend(trajectory(4, 1))
    assert (len(rb), rb.writer._cursor) == (6, 6)
    rb.extend(trajectory(4, 2))
    assert rb[:]["collector", "traj_ids"].tolist() == [0] * 4 + [1] * 2 + [2] * 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(3, 2), "takes tensordicts, got Tensor"),
        ({"a": torch.zeros(3)}, "takes tensordicts, got dict"),
        (TensorDict({"a": torch.zeros(3, dtype=torch.bfloat16)}, [3]), "'a'.*bfloat16"),
        (TensorDict({}, [3]), "must have a leaf"),
        (TensorDict({"a": TensorDict({}, [3])}, [3]), "must have a leaf"),
        (TensorDict({"a": torch.zeros(3, 0)}, [3]), "'a' must be 1 to"),
        (TensorDict({"a:b": torch.zeros(3)}, [3]), "'a:b'"),
    ],
)
def test_what_a_store_cannot_hold_is_named(data: Any, message: str) -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(10), batch_size=2)
    with pytest.raises(InputError, match=message):
        rb.extend(data)
    assert (len(rb), rb.writer._cursor) == (0, 0)
    rb.extend(trajectory(3))
    assert len(rb) == 3


def test_slots_that_hold_nothing() -> None:
    rb = ReplayBuffer(storage=DiskReplayStorage(10), batch_size=2)
    with pytest.raises(RuntimeError, match="empty"):
        rb.sample()
    rb.extend(trajectory(4))
    assert [item in rb.storage for item in (0, 3, 4, -4, -5)] == [True, True, False, True, False]
    assert_same(rb[-1], rb[3])
    assert rb[:][torch.tensor([True, False, True, False])].shape == (2,)
    assert rb.storage[torch.tensor([True, False, True, False])].shape == (2,)
    for wrong in (4, -5, torch.tensor([0, 4])):
        with pytest.raises(IndexError, match="holds nothing"):
            rb.storage[wrong]


def test_a_path_of_another_store_is_refused(tmp_path: Path) -> None:
    filled(DiskReplayStorage(100, path=tmp_path / "store"), episodes=1).storage.close()
    with pytest.raises(InputError, match="made for 100 transitions: this storage is for 50"):
        DiskReplayStorage(50, path=tmp_path / "store")
    plain(tmp_path / "plain", steps=5).close()
    with pytest.raises(InputError, match="not by this class"):
        DiskReplayStorage(100, path=tmp_path / "plain")
    holder = DiskReplayStorage(100, path=tmp_path / "store")
    with pytest.raises(LockedError):
        DiskReplayStorage(100, path=tmp_path / "store")
    assert len(holder) == 9


def test_a_pickle_holds_the_path(tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=tmp_path / "store"), episodes=2)
    rows, pickled = rb[:].clone(), pickle.dumps(rb)
    assert len(pickled) < 20_000
    rb.storage.close()
    again = pickle.loads(pickled)
    assert_same(again[:].clone(), rows)
    again.extend(trajectory(9, 4, size=16))
    assert len(again) == 27
    temporary = filled(DiskReplayStorage(100), episodes=1)
    with pytest.raises(ReadOnlyError, match="give the storage a path"):
        copy.deepcopy(temporary)


def test_prefetching_threads_see_whole_rows(tmp_path: Path) -> None:
    rb = TensorDictReplayBuffer(storage=DiskReplayStorage(40, path=tmp_path / "store"), batch_size=16, prefetch=3)
    for number in range(30):
        state = torch.full((8, 3), float(number))
        rb.extend(TensorDict({"observation": state, "next": {"observation": state + 0.5}}, [8]))
        drawn = rb.sample()
        assert (drawn["next", "observation"] == drawn["observation"] + 0.5).all()
    rb.shutdown()


# Datasets


def plain(path: Path, steps: int, num_envs: int = 1, **options: Any) -> Any:
    """A store of diskreplay's own: episodes of 5 steps, observations that count them, one that is cut off."""
    store = dr.ReplayBuffer.create(
        path, spaces.Box(-1e6, 1e6, (2,), np.float32), spaces.Discrete(3), capacity=1000 * num_envs, num_envs=num_envs,
        columns={"log_prob": np.float32}, **options,
    )  # fmt: skip

    def one(values: Any) -> Any:
        return values[0] if num_envs == 1 else values

    for step in range(steps):
        number = step + 100 * np.arange(num_envs)
        obs = np.stack([number, number // 5], 1).astype(np.float32)
        ends = np.full(num_envs, step % 5 == 4)
        store.add(
            one(obs), one(number % 3), one(number.astype(np.float32)), one(obs + np.float32([1, 0])), one(ends),
            one(ends & False), log_prob=one(-number.astype(np.float32)),
        )  # fmt: skip
        if step == 7:
            store.cut()
    return store


@pytest.mark.parametrize("num_envs", [1, 3])
def test_any_store_is_a_dataset_in_the_ted_layout(num_envs: int, tmp_path: Path) -> None:
    store = plain(tmp_path / "store", 23, num_envs)
    store.commit()
    dataset = DiskReplayDataset(
        tmp_path / "store", sampler=samplers.SliceSampler(slice_len=2), batch_size=64, cache_bytes=1 << 20
    )
    assert len(dataset) == 23 * num_envs
    rows = dataset[:].clone()
    flags = {"done", "terminated", "truncated"}
    assert set(rows.keys(True, True)) == {
        "observation", "action", "log_prob", *flags, ("collector", "traj_ids"), ("next", "observation"),
        ("next", "reward"), *(("next", name) for name in flags),
    }  # fmt: skip
    assert rows["next", "reward"].shape == rows["next", "done"].shape == (23 * num_envs, 1)
    assert rows["action"].dtype == torch.int64
    for env in range(num_envs):
        part = rows[rows["observation"][:, 0] // 100 == env]
        number = torch.arange(23) + 100 * env
        assert part["observation"][:, 0].equal(number.float())
        assert part["next", "observation"][:, 0].equal(number + 1.0)
        assert part["next", "reward"][:, 0].equal(number.float())
        assert part["log_prob"].equal(-number.float())
        assert part["action"].equal(number % 3)
        assert part["next", "terminated"][:, 0].nonzero()[:, 0].tolist() == [4, 9, 14, 19]
        lengths = part["collector", "traj_ids"].unique_consecutive(return_counts=True)[1]
        assert lengths.tolist() == [5, 3, 2, 5, 5, 3]  # the second one was cut off
    numbers = rows["collector", "traj_ids"].unique_consecutive()
    assert len(numbers) == 6 * num_envs
    slices = dataset.sample().reshape(-1, 2)
    assert (slices["collector", "traj_ids"][:, 0] == slices["collector", "traj_ids"][:, 1]).all()
    assert (slices["next", "observation"][:, 0, 0] == slices["observation"][:, 1, 0]).all()
    dataset.close()


def test_a_dataset_of_a_storage_has_the_leaves_that_were_put_in(tmp_path: Path) -> None:
    rb = filled(DiskReplayStorage(100, path=tmp_path / "store"))
    rb.storage.commit()
    oldest = rb.writer._cursor
    dataset = DiskReplayDataset(tmp_path / "store", batch_size=4)
    expected = torch.cat([rb[oldest:], rb[:oldest]]).exclude("index")
    assert_same(dataset[:].clone().exclude("index"), expected)
    assert dataset.sample()["pixels"].shape == (4, 3, 16, 16)
    with pytest.raises(RuntimeError, match="doesn't allow writing"):
        dataset.extend(trajectory(3))
    with pytest.raises(ReadOnlyError, match="DiskReplayDataset is read"):
        dataset.storage.set(0, trajectory(1)[0])
    dataset.close()


def test_a_dataset_of_nested_and_stacked_observations(tmp_path: Path) -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (6, 6), np.uint8), "arm": spaces.Box(-1, 1, (2,), np.float32)})
    store = dr.ReplayBuffer.create(
        tmp_path / "store", space, spaces.Box(-1, 1, (2,), np.float32), capacity=50, frame_stack={"camera": 3},
        stack_axis=None,
    )  # fmt: skip
    frames = np.random.default_rng(0).integers(0, 255, (8, 6, 6), np.uint8)
    for step in range(7):
        obs, after = ({"camera": frames[at], "arm": np.full(2, at, np.float32)} for at in (step, step + 1))
        store.add(obs, np.zeros(2, np.float32), 0.0, after, False, False)
    store.close()
    dataset = DiskReplayDataset(tmp_path / "store", batch_size=2)
    assert dataset[5]["camera"].numpy().tolist() == frames[3:6].tolist()
    assert dataset[:]["next", "camera"][5].numpy().tolist() == frames[4:7].tolist()
    assert dataset[:]["next", "arm"][:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]
    dataset.close()


def test_a_dataset_of_a_checkpoint_keeps_its_rows(tmp_path: Path) -> None:
    storage = DiskReplayStorage(20, path=tmp_path / "store")
    rb = filled(storage, episodes=2)
    storage.store.checkpoint("then")
    dataset = DiskReplayDataset(tmp_path / "store", checkpoint="then", batch_size=2)
    for number in range(5):
        rb.extend(trajectory(9, 10 + number, size=16))
    storage.commit()
    assert dataset[:]["collector", "traj_ids"].tolist() == [0] * 9 + [1] * 9
    dataset.close()


def test_a_dataset_without_transitions_is_refused(tmp_path: Path) -> None:
    plain(tmp_path / "empty", 0).close()
    with pytest.raises(NotEnoughDataError, match="holds no transition"):
        DiskReplayDataset(tmp_path / "empty")
    agents = dr.MultiAgentReplayBuffer.create(
        tmp_path / "agents", spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), 2, capacity=10
    )
    agents.close()
    with pytest.raises(InputError, match="several agents"):
        DiskReplayDataset(tmp_path / "agents")


def test_the_swap_of_two_lines(tmp_path: Path) -> None:
    """The program of the page, as it stands there."""
    page = (pathlib.Path(__file__).parent.parent.parent / "docs" / "compat" / "torchrl.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    exec(compile(textwrap.dedent(program).replace("pole.replay", str(tmp_path / "pole")), "torchrl.md", "exec"), {})


def test_a_dataset_shows_what_was_written_later(tmp_path: pathlib.Path) -> None:
    line, turn = spaces.Box(-9, 9, (2,), np.float32), spaces.Discrete(2)
    later = {"state": ((3,), np.float32)}
    with dr.ReplayBuffer.create(tmp_path / "a", line, turn, capacity=50, later=later) as buffer:
        for step in range(10):
            buffer.add(np.zeros(2, np.float32), 0, 1.0, np.zeros(2, np.float32), False, step == 9)
        buffer.write("state", [2, 3], np.ones((2, 3), np.float32))
    dataset = DiskReplayDataset(tmp_path / "a")
    part = dataset[torch.arange(10)]
    assert part["state_known"].flatten().tolist() == [number in (2, 3) for number in range(10)]
    assert part["state"].shape == (10, 3)
    assert part["state"].sum() == 6
    dataset.close()


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize(
    "unit",
    [
        Sequence(length=3),
        Sequence(length=2, burn_in=2, bootstrap=1),
        Sequence(length=3, episode_boundary="stop", dilation=2),
        Sequence(length=4, episode_boundary="include_reset", burn_in=1),
        Sequence(length=3, done_key=None),
    ],
    ids=["pad", "burn-in", "stop", "include-reset", "one-trajectory"],
)
def test_sequences_are_those_of_torchrls_own_storage(kind: Any, unit: Any, tmp_path: Path) -> None:
    drawn = []
    for storage in (LazyTensorStorage(50), DiskReplayStorage(50, path=tmp_path / "store", chunk_rows=4)):
        torch.manual_seed(3)
        rb = kind(storage=storage, batch_size=8, sample_unit=unit)
        found = []
        for number in range(12):  # past the end of the ring
            rb.extend(trajectory(7 + number % 4, number))
            found.append(rb.sample(return_info=True))
        drawn.append(found)
    assert type(unit) is Sequence, "the user's own is left alone"
    for (one, info), (other, expected) in zip(*drawn, strict=True):
        assert_same(other, one)
        assert info.keys() == expected.keys()
        for name in info:
            assert torch.equal(torch.as_tensor(info[name]), torch.as_tensor(expected[name])), name
    rb.storage.close()


def test_sequences_of_a_dataset(tmp_path: Path) -> None:
    storage = DiskReplayStorage(50, path=tmp_path / "store")
    rb = TensorDictReplayBuffer(storage=storage, batch_size=4)
    for number in range(3):
        rb.extend(trajectory(6, number))
    storage.close()
    dataset = DiskReplayDataset(tmp_path / "store", batch_size=8, sample_unit=Sequence(length=3))
    batch, info = dataset.sample(return_info=True)
    assert len(batch) == 24
    trajectories = batch["collector", "traj_ids"].reshape(8, 3)
    valid = info["validity_mask"].reshape(8, 3)
    assert all((row[mask] == row[0]).all() for row, mask in zip(trajectories, valid, strict=True))
    dataset.close()


def test_other_checkpointers_are_refused_by_name() -> None:
    for checkpointer in (
        checkpointers.FlatStorageCheckpointer(), checkpointers.NestedStorageCheckpointer(),
        checkpointers.H5StorageCheckpointer(), checkpointers.TensorStorageCheckpointer(),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"{type(checkpointer).__name__} writes the rows as tensors"):
            TensorDictReplayBuffer(storage=DiskReplayStorage(10), checkpointer=checkpointer, batch_size=2)
        with pytest.raises(InputError, match=type(checkpointer).__name__):
            DiskReplayStorage(10).checkpointer = checkpointer
    assert not DiskReplayStorage(10).supports_conditional_update


def test_a_first_batch_that_is_refused_fixes_nothing(tmp_path: Path) -> None:
    wrong = trajectory(4).exclude("action")
    wrong["next", "reward"][2] = np.nan
    infinite = trajectory(4)
    infinite["agent", "state"][1] = np.inf
    for options, bad in (({}, wrong), ({"finite": True}, infinite)):
        storage = DiskReplayStorage(10, path=tmp_path / "s", **options)
        rb = TensorDictReplayBuffer(storage=storage, batch_size=2)
        with pytest.raises(InputError):
            rb.extend(bad)
        assert (storage.store, len(rb), rb.writer._cursor) == (None, 0, 0)
        assert not (tmp_path / "s").exists()
    rb.extend(trajectory(4))
    assert len(rb) == 4
    with pytest.raises(InputError, match="must be alike"):
        rb.storage.set([4, 5], [trajectory(1)[0], trajectory(1).exclude("action")[0]])
    storage.close()
