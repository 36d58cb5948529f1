"""A store as a dataset of PyTorch: loaders with workers of both kinds, ranks, stopping and going on."""

from __future__ import annotations

import itertools
import multiprocessing
import pathlib
import pickle
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers.multi_agent_steps import Kind, World

import diskreplay as dr
from diskreplay.errors import EvictedError, InputError, NotEnoughDataError, StateError

torch = pytest.importorskip("torch", reason="torch is in the torch and interop extras")

from torch.utils.data import ConcatDataset, DataLoader, Subset  # noqa: E402

from diskreplay.torch import DiskDataset, PassSampler, Tensors  # noqa: E402

ROWS = 61
ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "torch.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(autouse=True)
def _forks() -> Iterator[None]:
    """Python 3.12 warns of every fork of a process with threads, as torch's workers are; torch of more workers than
    processors; and of what torchdata calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        warnings.filterwarnings("ignore", "'set_vital' is deprecated", UserWarning)
        yield


def record(path: pathlib.Path, rows: int = ROWS, **options: Any) -> str:
    space = Box(-np.inf, np.inf, (3,), np.float32)
    with dr.ReplayBuffer.create(path / "a.replay", space, Discrete(7), capacity=1000, **options) as buffer:
        add(buffer, 0, rows)
        return buffer.path


def add(buffer: dr.ReplayBuffer, start: int, stop: int) -> None:
    for at in range(start, stop):
        obs = np.full(3, at, np.float32)
        buffer.add(obs, at % 7, float(at), obs + 1, at % 10 == 9, False)


def loader(dataset: DiskDataset, sampler: Any, workers: int = 0, kind: str = "fork", **options: Any) -> Any:
    many = {"multiprocessing_context": kind, "timeout": 200} if workers else {}
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers, **many, **options)


def check(batch: Any) -> list[int]:
    """The positions of a batch, after everything in it was found to be theirs."""
    at = batch.index
    assert isinstance(at, torch.Tensor)
    torch.testing.assert_close(batch.obs, at[:, None].expand(-1, 3).float())
    torch.testing.assert_close(batch["next_obs"], batch.obs + 1)
    assert batch.action.tolist() == (at % 7).tolist()
    assert batch.terminated.tolist() == (at % 10 == 9).tolist()
    return [int(one) for one in at]


def test_items_and_batches(tmp_path: pathlib.Path) -> None:
    with DiskDataset(record(tmp_path)) as dataset:
        assert (len(dataset), dataset[5].obs.tolist()) == (ROWS, [5, 5, 5])
        assert dataset[5].reward.shape == ()
        assert (check(dataset[[5, 3, 5]]), check(dataset[torch.tensor([7])])) == ([5, 3, 5], [7])
        assert [int(item.index) for item in dataset.__getitems__([4, 2])] == [4, 2]
        assert len(list(dataset)) == ROWS, "an IndexError ends it"
        assert "61 items of Transition" in repr(dataset)
        assert dataset.index.tolist() == list(range(ROWS))


def test_a_dataset_is_at_home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with DiskDataset(f"~/{next(tmp_path.iterdir()).name}") as dataset:
        assert check(dataset[[5, 3]]) == [5, 3]


@pytest.mark.parametrize("workers", [0, 1])
def test_rewards_of_another_column(tmp_path: pathlib.Path, workers: int) -> None:
    path = record(tmp_path, later={"shaped": "float64"})
    with pytest.raises(InputError, match="61 of 61 transitions have no finite value of 'shaped'"):
        DiskDataset(path, reward_column="shaped")
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.write("shaped", np.arange(ROWS), -np.arange(ROWS, dtype=float))
    with DiskDataset(path, reward_column="shaped") as dataset:
        batches = list(loader(dataset, PassSampler(dataset, 8), workers, "spawn"))
    rewards = torch.cat([batch["reward"] for batch in batches])
    assert rewards.dtype == torch.float32
    assert sorted(rewards.tolist()) == [-float(at) for at in reversed(range(ROWS))]
    assert all((batch["extra"]["recorded_reward"] == -batch["reward"]).all() for batch in batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loaders_own_batches(tmp_path: pathlib.Path, workers: int) -> None:
    """As somebody writes it who knows torch and not this package."""
    with DiskDataset(record(tmp_path)) as dataset:
        many = {"multiprocessing_context": "fork"} if workers else {}
        found = [check(batch) for batch in DataLoader(dataset, batch_size=8, shuffle=True, num_workers=workers, **many)]
    assert sorted(itertools.chain(*found)) == list(range(ROWS))
    assert found != sorted(found)


def test_own_batches_of_parts_of_several_and_of_a_collate_fn(tmp_path: pathlib.Path) -> None:
    with DiskDataset(record(tmp_path)) as dataset:
        whole = dataset[range(8)]
        for given in (dataset, Subset(dataset, range(9)), ConcatDataset([dataset, dataset])):  # the last one by one
            batch = next(iter(DataLoader(given, batch_size=8)))
            assert (type(batch), check(batch), list(batch)) == (Tensors, list(range(8)), list(whole))
            assert all(batch[name].dtype == whole[name].dtype for name in whole if name != "extra")
        items = next(iter(DataLoader(dataset, batch_size=8, collate_fn=list)))
        assert [int(item.index) for item in items] == list(range(8))
        assert [int(item.index) for item in dataset.__getitems__([4, 2, 9])[1:]] == [2, 9]


@pytest.mark.parametrize(("workers", "kind"), [(0, "fork"), (1, "fork"), (3, "fork"), (2, "spawn")])
def test_each_item_once_an_epoch_over_all_ranks(tmp_path: pathlib.Path, workers: int, kind: str) -> None:
    with DiskDataset(record(tmp_path)) as dataset:
        epochs = []
        samplers = [PassSampler(dataset, 8, rank=rank, world_size=3, seed=4) for rank in range(3)]
        for _ in range(1 if kind == "spawn" else 2):
            batches = [[check(batch) for batch in loader(dataset, one, workers, kind)] for one in samplers]
            assert len({len(of) for of in batches}) == 1
            epochs.append([at for step in zip(*batches, strict=True) for batch in step for at in batch])
            assert sorted(epochs[-1]) == list(range(ROWS))
        with DiskDataset(dataset._reader.path) as again:
            one = PassSampler(again, ROWS, seed=4)
            assert [at for batch in loader(again, one) for at in check(batch)] == epochs[0]
        assert epochs.count(epochs[0]) == 1


@pytest.mark.parametrize("stop", range(5))
def test_stopped_and_gone_on_with_other_ranks_and_workers(tmp_path: pathlib.Path, stop: int) -> None:
    with DiskDataset(record(tmp_path)) as dataset:
        whole = [at for batch in PassSampler(dataset, ROWS, seed=1) for at in batch.tolist()]
        for before, workers in ((1, 2), (2, 0), (3, 1)):
            had, states = [], []
            for rank in range(before):
                sampler = PassSampler(dataset, 4, rank=rank, world_size=before, seed=1)
                it = iter(loader(dataset, sampler, workers))
                had.append([check(next(it)) for _ in range(stop)])
                states.append(sampler.state_dict(batches=stop))
                del it
            first = [at for step in zip(*had, strict=True) for batch in step for at in batch]
            assert all(state == states[0] for state in states)
            for after, others in ((1, 0), (2, 3), (3, 1)):
                rest = []
                for rank in range(after):
                    sampler = PassSampler(dataset, 5, rank=rank, world_size=after, seed=1)
                    sampler.load_state_dict(states[0])
                    rest.append([check(batch) for batch in loader(dataset, sampler, others)])
                steps = itertools.zip_longest(*rest, fillvalue=[])
                assert first + [at for step in steps for batch in step for at in batch] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader(tmp_path: pathlib.Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is in the interop extra")
    many = {"multiprocessing_context": "fork"} if workers else {}
    with DiskDataset(record(tmp_path)) as dataset:

        def make() -> Any:
            sampler = PassSampler(dataset, 8, seed=2)
            return stateful.StatefulDataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers, **many)

        def epochs(given: Any, count: int) -> list[list[list[int]]]:
            return [[check(batch) for batch in given] for _ in range(count)]

        whole = epochs(make(), 2)
        assert len(whole[0]) == 8
        for stop in range(9):
            first = make()
            it = iter(first)
            had = [check(next(it)) for _ in range(stop)]
            state = pickle.loads(pickle.dumps(first.state_dict()))
            del it
            second = make()
            second.load_state_dict(state)
            rest = [batch for epoch in epochs(second, 2) for batch in epoch]
            assert (had + rest)[:16] == whole[0] + whole[1]


@pytest.mark.parametrize(("workers", "persistent"), [(1, False), (2, True), (8, False)])
def test_stopped_while_workers_are_ahead(tmp_path: pathlib.Path, workers: int, persistent: bool) -> None:
    """The states of all batches of two epochs; what is left after each is read without workers."""
    with DiskDataset(record(tmp_path)) as dataset:
        sampler = PassSampler(dataset, 8, seed=5)
        batches = loader(dataset, sampler, workers, persistent_workers=persistent)
        for epoch in range(2):
            seen: list[int] = []
            for used, batch in enumerate(batches, start=1):
                seen += check(batch)
                resumed = PassSampler(dataset, 5, seed=5)
                resumed.load_state_dict(sampler.state_dict(batches=used))
                assert resumed.epoch == epoch + (used == 8)
                rest = [at for part in resumed for at in part.tolist()] if resumed.epoch == epoch else []
                assert sorted(seen + rest) == list(range(ROWS))


def trained(rank: int, world_size: int, path: str, address: str, state: Any, stop: int, results: Any) -> None:
    import torch.distributed as group
    from torch.nn.parallel import DistributedDataParallel

    group.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    dataset = DiskDataset(path)
    sampler = PassSampler(dataset, 8, seed=3)
    assert (sampler.rank, sampler.world_size) == (rank, world_size)
    if state is not None:
        sampler.load_state_dict(state)
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    seen: list[int] = []
    given = 0
    for batch in loader(dataset, sampler, workers=1):
        seen += check(batch)
        optimizer.zero_grad()
        (model(batch.obs).squeeze(1) - batch.reward).square().mean().backward()
        optimizer.step()
        given += 1
        if given == stop:
            break
    weights = [value.tolist() for value in model.state_dict().values()]
    results.put((rank, seen, sampler.state_dict(batches=given), weights))
    group.barrier()
    group.destroy_process_group()


def test_training_goes_on_with_another_number_of_processes(tmp_path: pathlib.Path) -> None:
    path = record(tmp_path)
    context = multiprocessing.get_context("spawn")
    state, seen = None, []
    for run, (world_size, stop) in enumerate(((2, 2), (3, 0))):
        results = context.Queue()
        address = f"file://{tmp_path / f'meet-{run}'}"
        processes = [
            context.Process(target=trained, args=(rank, world_size, path, address, state, stop, results))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        found = [results.get(timeout=300) for _ in processes]
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * world_size
        assert all(one[2] == found[0][2] for one in found)
        assert all(one[3] == found[0][3] for one in found), "all ranks have the same weights"
        state = found[0][2]
        seen += [at for one in found for at in one[1]]
        assert state["epoch"] == run
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize(
    "view",
    [
        dr.Transition(n_step=3),
        dr.Sequence(length=6),
        dr.PaddedEpisodes(max_length=10),
        dr.DeltaTimestamps({"obs": [-1.0, 0.0], "action": [0.0, 1.0, 2.0]}, fps=1),
    ],
    ids=lambda view: type(view).__name__,
)
def test_views(tmp_path: pathlib.Path, view: Any) -> None:
    path = record(tmp_path)
    with DiskDataset(path, view=view) as dataset, dr.ReplayBuffer.open(path, mode="r", view=view) as reader:
        positions = np.arange(len(dataset))[::-2].copy()
        batch = dataset[positions]
        expected = reader.get(dataset.index[positions]).torch()
        for name, value in vars(expected).items():
            if value is None:  # a window by time has no next observation
                assert name not in batch
            else:
                torch.testing.assert_close(batch[name], value)
        sampler = PassSampler(dataset, 3)
        found = [int(at) for given in loader(dataset, sampler, 2) for at in given.index]
        assert sorted(found) == dataset.index.tolist()


def test_nested_spaces_and_several_agents(tmp_path: pathlib.Path) -> None:
    nested = Dict({"a": Box(-1, 1, (2,), np.float32), "b": Discrete(3)})
    with dr.ReplayBuffer.create(tmp_path / "n.replay", nested, Discrete(2), capacity=20, columns={"c": int}) as buffer:
        obs = {"a": np.zeros(2, np.float32), "b": 1}
        for at in range(8):
            buffer.add(obs, 1, at, obs, False, False, c=at)
    with DiskDataset(tmp_path / "n.replay") as dataset:
        for batch in (dataset[[1, 2]], next(iter(DataLoader(dataset, batch_size=2)))):
            assert batch.obs["a"].shape == (2, 2)
            assert batch["extra"]["c"].shape == (2,)
    kind = Kind()
    with dr.MultiAgentReplayBuffer.create(tmp_path / "m", *kind.spaces(), capacity=40, **kind.options()) as buffer:
        world = World(kind)
        world.fill(buffer, 4, gaps=False)
        expected = buffer.get(buffer.items()).torch()
    with DiskDataset(tmp_path / "m") as dataset:
        batch = dataset[np.arange(len(dataset))]
        torch.testing.assert_close(batch.action_onehot, expected.action_onehot)
        assert "state" not in batch
        with pytest.raises(AttributeError, match="this batch has no 'state'; it has obs"):
            _ = batch.state


def test_a_ragged_value_of_an_item_has_its_names(tmp_path: pathlib.Path) -> None:
    space, path = Discrete(2), str(tmp_path / "ragged.replay")
    with dr.ReplayBuffer.create(path, space, space, capacity=9, columns={"tokens": ((None,), np.int32)}) as rb:
        for count in range(4):
            rb.add(0, 0, 0.0, 0, True, False, tokens=range(count))
    with DiskDataset(path) as dataset:
        tokens = dataset[2].extra["tokens"]
        assert (tokens.values.tolist(), tokens.mask.tolist(), int(tokens.length)) == ([0, 1], [True, True], 2)
        (batch,) = DataLoader(dataset, batch_size=4)
        assert batch["extra"]["tokens"].length.tolist() == [0, 1, 2, 3]


def test_a_checkpoint_keeps_the_items(tmp_path: pathlib.Path) -> None:
    path = record(tmp_path)
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("first")
        pinned, loose = DiskDataset(path, checkpoint="first"), DiskDataset(path)
        state = PassSampler(loose, 8).state_dict(batches=2)
        add(buffer, ROWS, ROWS + 1000)
        buffer.commit()
        assert sorted(at for batch in loader(pinned, PassSampler(pinned, 8), 1) for at in check(batch)) == [
            *range(ROWS)
        ]
        with DiskDataset(path, checkpoint="first") as again:
            PassSampler(again, 8).load_state_dict(state)
        with DiskDataset(path) as later:
            assert later.index[0] == ROWS
            sampler = PassSampler(later, 8)
            with pytest.raises(StateError, match="other items"):
                sampler.load_state_dict(state)
            assert sampler.epoch == 0
        pinned.close()
        copy = pickle.loads(pickle.dumps(loose))
        with pytest.raises(EvictedError):
            copy[0]
        copy.close(), loose.close()


def test_misuse(tmp_path: pathlib.Path) -> None:
    path = record(tmp_path)
    with DiskDataset(path) as dataset:
        for index, error, message in (
            (ROWS, IndexError, "numbered 0 to 60, got 61"),
            (-1, IndexError, "got -1"),
            ([0, 99], IndexError, "got 99"),
            (slice(0, 3), InputError, "named by an integer"),
            ([[1]], InputError, r"got int64 \(1, 1\)"),
            ("obs", InputError, "named by an integer"),
        ):
            with pytest.raises(error, match=message):
                dataset[index]
        with pytest.raises(InputError, match="give the DataLoader batch_size=None"):
            next(iter(DataLoader(dataset, sampler=PassSampler(dataset, 8))))
        with pytest.raises(InputError, match="must be a DiskDataset, got str"):
            PassSampler(path, 8)
        with pytest.raises(InputError, match="give rank and world_size both"):
            PassSampler(dataset, 8, rank=0)
        with pytest.raises(InputError, match="rank must be 0 to 1, got 2"):
            PassSampler(dataset, 8, rank=2, world_size=2)
    with pytest.raises(NotEnoughDataError, match="no item of Sequence"):
        DiskDataset(path, view=dr.Sequence(length=100, burn_in=100))
    with pytest.raises(FileNotFoundError):
        DiskDataset(tmp_path / "none")


def test_what_is_assigned_to_a_field_is_its_item_too(tmp_path: pathlib.Path) -> None:
    """``batch.obs = batch.obs / 255`` left ``batch["obs"]``, which is what torch pins and moves, as it was."""
    with DiskDataset(record(tmp_path)) as dataset:
        batch = next(iter(DataLoader(dataset, sampler=PassSampler(dataset, 8), batch_size=None)))
    batch.obs = batch.obs / 2
    batch.reward -= 1
    assert batch["obs"] is batch.obs
    assert batch["reward"] is batch.reward


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_page(example: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("datasets").symlink_to(ROOT / "datasets")
    exec(compile(example, str(PAGE), "exec"), {})
