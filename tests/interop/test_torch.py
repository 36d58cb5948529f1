"""Batches as torch tensors."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from helpers.configs import CONFIGS
from helpers.model import flat
from helpers.multi_agent_steps import N_ACTIONS, N_AGENTS, Kind, World
from helpers.recording import recorded_in

import diskreplay as dr

torch = pytest.importorskip("torch", reason="torch is in the torch and interop extras")


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_every_array_becomes_a_tensor(path: str, config, device: str | None) -> None:
    with recorded_in(config, path, 20) as (buffer, _):
        batch = buffer.sample(6)
    tensors = batch.torch(device)
    arrays: list[np.ndarray] = []
    batch.map(arrays.append)
    found: list[torch.Tensor] = []
    tensors.map(found.append)
    assert len(arrays) == len(found) >= 9
    for array, tensor in zip(arrays, found, strict=True):
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), array)
    for array, tensor in zip(flat(batch.reward), flat(tensors.reward), strict=True):
        array[0] = 77
        assert tensor[0] == 77, "on the CPU they share memory"


def test_tensors_of_some_sequences_hold_all_their_lists(path: str) -> None:
    with dr.ReplayBuffer.create(
        path, gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2), capacity=40, seed=0,
        columns={"tokens": ((None,), np.int16)}, view=dr.Sequence(length=4), ragged="lists",
    ) as buffer:  # fmt: skip
        for step in range(20):
            buffer.add([0.0], 0, 0.0, [0.0], False, False, tokens=np.full(step % 5, step))
        batch = buffer.sample(8)
    tensors = batch.torch()
    keys = slice(2, 4), [2, 3], np.array([2, 3]), torch.tensor([2, 3]), torch.arange(8) // 2 == 1
    for some in (batch[2:4].torch(), *(tensors[key] for key in keys)):
        assert some.reward.shape == (2, 4)
        rows = [row.tolist() for row in some.extra["tokens"].unbind()]
        assert rows == [row.tolist() for row in list(batch.extra["tokens"])[8:16]]
        assert some.extra["tokens"].dtype == torch.int16
    for none in (slice(0, 0), []):
        assert (tensors[none].extra["tokens"].size(0), len(batch[none].extra["tokens"])) == (0, 0)


def test_blocks_behind_a_tensor_are_not_given_out_again(path: str) -> None:
    from helpers.configs import Config
    from helpers.model import Leaf

    config = Config("large", Leaf((84, 84)), frame_stack=4, capacity=200, chunk_rows=8, shard_rows=16)
    with recorded_in(config, path, 100) as (buffer, _):
        held = [buffer.sample(64).torch().obs for _ in range(6)]
        copies = [tensor.clone() for tensor in held]
        for _ in range(10):
            buffer.sample(64)
        assert all(torch.equal(a, b) for a, b in zip(held, copies, strict=True))


def test_batches_of_several_agents(path: str) -> None:
    kind = Kind()
    with dr.MultiAgentReplayBuffer.create(path, *kind.spaces(), capacity=40, **kind.options()) as buffer:
        world = World(kind)
        buffer.add(**world.arguments(world.step(gaps=False)))
        batch = buffer.sample(1).torch()
    assert batch.state is None
    assert batch.action_onehot.shape == (1, N_AGENTS, N_ACTIONS)
    assert isinstance(batch.obs, torch.Tensor)


def test_the_workers_of_a_data_loader_draw_batches_of_their_own(path: str) -> None:
    """They are forked from the process that has the reader open."""
    box, discrete = gymnasium.spaces.Box(-1, 1, (3,), np.float32), gymnasium.spaces.Discrete(2)
    with dr.ReplayBuffer.create(path, box, discrete, capacity=500) as buffer:
        for row in range(500):
            buffer.add(np.zeros(3, np.float32), 0, float(row), np.zeros(3, np.float32), False, False)

    class Batches(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self):
            for _ in range(5):
                batch = reader.sample(20)
                assert batch.reward.tolist() == batch.index.tolist()
                yield batch.index.tolist()

    with dr.ReplayBuffer.open(path, mode="r", seed=0) as reader, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        loader = torch.utils.data.DataLoader(
            Batches(), batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=100
        )
        given = [tuple(rows) for rows in loader]
    assert len(given) == len(set(given)) == 10
