"""Every door that takes an array: tensors and arrays of others go in as numpy's do, or are refused by their names."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.refusals import Call, Case, rows_of

import diskreplay as dr
from diskreplay.checks import check_array
from diskreplay.errors import InputError
from diskreplay.formats.arrays import from_arrays
from diskreplay.ops.convert import import_dataset
from diskreplay.ops.relabel import relabel
from diskreplay.schema.ragged import Lists, Padded

for _name in ("torch", "scipy", "ml_dtypes", "d3rlpy", "stable_baselines3", "tianshou", "torchrl"):
    pytest.importorskip(_name, reason=f"{_name} is installed by the target interop of the Makefile")

import ml_dtypes  # noqa: E402
import torch  # noqa: E402
from compat.cases import CASES  # noqa: E402
from helpers.foreign_arrays import check_doors  # noqa: E402

from diskreplay.torch import DiskDataset  # noqa: E402

BOX, TWO = spaces.Box(-99, 99, (2,), np.float32), spaces.Discrete(2)
NESTED = spaces.Dict(a=BOX, b=spaces.Tuple([spaces.Box(-99, 99, (), np.float32), TWO]))
GOALS = spaces.Dict(observation=BOX, achieved_goal=BOX, desired_goal=BOX)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 9, shape).astype(np.float32)


def step(rng: np.random.Generator, *lead: int) -> dict[str, Any]:
    def obs() -> Any:
        return {"a": numbers(rng, *lead, 2), "b": (numbers(rng, *lead), rng.integers(2, size=lead))}

    flags = [np.asarray(rng.random(lead) < 0.3) for _ in range(2)]
    return {
        "obs": obs(), "action": rng.integers(2, size=lead), "reward": numbers(rng, *lead), "next_obs": obs(),
        "terminated": flags[0], "truncated": flags[1], "valid": np.ones(lead, bool), "log_prob": numbers(rng, *lead),
    }  # fmt: skip


class Doors:
    """What is told of a buffer by keywords: ``do`` has the name of each argument that is an array."""

    def __init__(self, path: pathlib.Path | None, num_envs: int) -> None:
        columns = {"log_prob": np.float32, "tokens": ((None,), np.float32)}
        self.store = dr.ReplayBuffer.create(
            path, NESTED, TWO, capacity=4000, num_envs=num_envs, columns=columns, later={"value": np.float32},
            sampler=dr.Counting(dr.Proportional()), seed=0,
        )  # fmt: skip
        self.mixture = dr.Mixture([self.store])
        self.close = self.store.close

    def do(self, name: str, given: dict[str, Any]) -> Any:
        on = self.mixture if name.startswith("mixture.") else self.store
        return getattr(on, name.removeprefix("mixture."))(**given)


def told(buffer: Any, name: str, arguments: list[Any]) -> Any:
    return buffer.do(*arguments)


def doors(rng: np.random.Generator, buffer: Doors) -> list[Call]:
    envs = buffer.store.num_envs
    lead = (envs,) * (envs > 1)
    ids = buffer.store.items()[-3:]
    rows = [numbers(rng, 2) for _ in range(3 * envs)]
    tokens = rows[0] if envs == 1 else rows[:envs]
    flat = np.concatenate(rows), np.arange(3 * envs + 1) * 2
    padded = np.stack(rows), np.ones((3 * envs, 2), bool), np.full(3 * envs, 2)
    calls: dict[str, dict[str, Any]] = {
        "add": {**step(rng, *lead), "tokens": tokens},
        "extend": {**step(rng, 3, *lead), "tokens": rows if envs == 1 else [rows[at : at + 2] for at in (0, 2, 4)]},
        "cut": {"envs": np.ones(envs, bool)},
    }
    if len(ids) == 3:
        calls |= {
            "get": {"index": ids}, "times_sampled": {"index": ids}, "mixture.split": {"index": ids},
            "update_priorities": {"index": ids, "priorities": numbers(rng, 3)},
            "mixture.update_priorities": {"index": ids, "priorities": numbers(rng, 3)},
            "write": {"name": "value", "index": ids, "values": numbers(rng, 3)},
            "mixture.write": {"name": "value", "index": ids, "values": numbers(rng, 3)},
            "annotate_episode": {"env": 0, "goal": numbers(rng, 2), "parts": {"far": [numbers(rng, 2)]}},
        }  # fmt: skip
    found: list[Call] = [("do", [name, given]) for name, given in calls.items()]
    plain = {**step(rng, 3, *lead)}
    # Rows in one: of Lists and Padded, too, each part is a door.
    found += [("in_parts", [buffer, plain, "values", *flat]), ("in_parts", [buffer, plain, "padded", *padded])]
    return found


def in_parts(buffer: Doors, _: Any, plain: dict[str, Any], how: str, *parts: Any) -> None:
    buffer.store.extend(**plain, tokens=Lists(*parts) if how == "values" else Padded(*parts))


def core(buffer: Doors, name: str, arguments: list[Any]) -> Any:
    return in_parts(buffer, *arguments) if name == "in_parts" else buffer.do(*arguments)


Doors.in_parts = in_parts  # type: ignore[attr-defined]  # whose signature names the arguments


class Answers:
    """Functions of a user that give arrays, asked by a buffer; and the other buffers' arguments."""

    def __init__(self, path: pathlib.Path) -> None:
        path.mkdir()
        self.path, self.count, self.answer, self.box = path, 0, np.zeros(1, np.float32), spaces.Box(-9, 9, (1,))
        self.goals = dr.ReplayBuffer.create(
            path / "goals", GOALS, TWO, capacity=9, seed=0,
            view=dr.Hindsight(lambda *_: self.answers[0], ratio=1.0, terminated_fn=lambda *_: self.answers[1]),
        )  # fmt: skip
        at = dict.fromkeys(GOALS.spaces, np.zeros(2, np.float32))
        for _ in range(2):
            self.goals.add(at, 0, 0.0, at, False, True)
        self.later = dr.ReplayBuffer.create(path / "later", self.box, TWO, capacity=9, later={"value": np.float32})
        for end in (False, True):
            self.later.add([0], 0, 0.0, [0], False, end)
        self.later.commit()
        self.rollout = dr.RolloutBuffer.create(
            path / "rollout", BOX, TWO, steps=2, num_envs=2, normalize_advantage=False
        )
        self.agents = dr.MultiAgentReplayBuffer.create(
            path / "agents", BOX, TWO, 2, capacity=9, seed=0, available_actions=True, rewards="agent"
        )
        self.dataset = DiskDataset(path / "later")
        self.store = None

    def reward_fn(self, answer: Any, ended: Any) -> Any:
        self.answers = answer, ended
        batch = self.goals.sample(2)
        return batch.reward, batch.terminated

    def relabel(self, episode: Any) -> Any:
        self.later.close()
        try:
            relabel(self.path / "later", lambda _: episode)
        finally:
            self.later = dr.ReplayBuffer.open(self.path / "later")
        return self.later.get(self.later.items())

    def add(self, **given: Any) -> None:
        self.agents.add(**given)

    def fill(self, value: Any, log_prob: Any, final_value: Any, last_value: Any, value_fn: Any, mean: Any) -> Any:
        class Normalizer:
            def denormalize(self, values: Any) -> Any:
                return mean if np.shape(values) == np.shape(mean) else values

        self.rollout.clear()
        pairs = np.zeros((2, 2), np.float32)
        for end in (False, True):
            final = {"final_value": final_value} if not end else {}
            flags = np.zeros(2, bool), np.full(2, end)
            self.rollout.add(pairs, [0, 1], [0.0, 1.0], pairs, *flags, value=value, log_prob=log_prob, **final)
        self.rollout.finish(last_value, lambda _: value_fn, value_normalizer=Normalizer())
        batch = next(iter(self.rollout.episode_minibatches(2)))
        order = np.argsort(batch.reward.sum(axis=1), kind="stable")
        return batch.value[order], batch.log_prob[order], batch.advantage[order], batch.returns[order]

    def items(self, index: Any) -> Any:
        return [self.dataset[index], self.dataset.__getitems__(index)]

    def arrays(self, given: dict[str, Any]) -> Any:
        self.count += 1
        target = self.path / f"imported-{self.count}"
        import_dataset(from_arrays(**given), target)
        with dr.ReplayBuffer.open(target, mode="r") as found:
            return rows_of(found)

    def close(self) -> None:
        for one in (self.goals, self.later, self.rollout, self.agents, self.dataset):
            one.close()


def answers(rng: np.random.Generator, buffer: Answers) -> list[Call]:
    agents = {
        "obs": numbers(rng, 2, 2), "action": rng.integers(2, size=2), "reward": numbers(rng, 2),
        "next_obs": numbers(rng, 2, 2), "terminated": np.array(False), "truncated": np.array(False),
        "available_actions": np.ones((2, 2), bool), "next_available_actions": np.ones((2, 2), bool),
        "agent_mask": np.ones(2, bool),
    }  # fmt: skip
    steps = {
        "obs": {"a": numbers(rng, 6, 2), "b": numbers(rng, 6, 1)}, "action": numbers(rng, 6, 1),
        "reward": numbers(rng, 6), "next_obs": {"a": numbers(rng, 6, 2), "b": numbers(rng, 6, 1)},
        "terminated": np.arange(6) == 5, "truncated": np.arange(6) == 2, "columns": {"more": numbers(rng, 6, 2)},
    }  # fmt: skip
    others = {name: steps[name] for name in ("obs", "action")}
    return [
        ("reward_fn", [numbers(rng, 2), np.ones(2, bool)]),
        ("relabel", [numbers(rng, 2)]),
        ("fill", [numbers(rng, 2) for _ in range(6)]),
        ("add", [agents]),
        ("items", [np.array([1, 0])]),
        ("arrays", [steps]),
        ("arrays", [{**others, "last": np.arange(6) % 3 == 2}]),
        ("arrays", [{**others, "first": np.arange(6) % 3 == 0}]),
        ("arrays", [{**others, "lengths": np.array([3, 3])}]),
    ]


def answered(buffer: Answers, name: str, arguments: list[Any]) -> Any:
    return buffer.add(**arguments[0]) if name == "add" else getattr(buffer, name)(*arguments)


def seen(buffer: Answers) -> Any:
    return [rows_of(one) for one in (buffer.goals, buffer.later, buffer.agents)]


CORE = {
    "one environment": Case(lambda path: Doors(path, 1), doors, lambda buffer: rows_of(buffer.store), core),
    "two environments": Case(lambda path: Doors(path, 2), doors, lambda buffer: rows_of(buffer.store), core),
    "answers": Case(Answers, answers, seen, answered),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize(("name", "doors"), [("one environment", 44), ("two environments", 44), ("answers", 28)])
def test_buffers(name: str, doors: int, tmp_path: pathlib.Path) -> None:
    assert check_doors(CORE[name], tmp_path) >= doors


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_adapters(name: str, tmp_path: pathlib.Path) -> None:
    assert check_doors(CASES[name], tmp_path) >= (2 if name == "frames" else 3)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_rarer_tensors() -> None:
    grad = torch.tensor([1.5, -2.0], requires_grad=True) * 2
    for value, wanted in (
        ([grad, grad], [[3, -4], [3, -4]]),
        ((grad[0], 1, np.float32(2)), [3, 1, 2]),
        (torch.nn.Parameter(grad.detach()), [3, -4]),
        (torch.complex(grad, grad).conj(), [3 - 3j, -4 + 4j]),
        (torch.complex(grad, grad).conj().imag, [-3, 4]),
        (grad.to(torch.float8_e5m2), [3, -4]),
        (grad.half(), [3, -4]),
        (grad.double(), [3, -4]),
        (torch.nested.nested_tensor([grad.detach()] * 2), [[3, -4], [3, -4]]),
        (torch.nested.nested_tensor([grad.detach()] * 2, layout=torch.jagged), [[3, -4], [3, -4]]),
        (np.array([1, 2], ml_dtypes.bfloat16), [1, 2]),
        ([ml_dtypes.bfloat16(1)], [1]),
    ):
        found = check_array("x", value)
        assert type(found) is np.ndarray
        assert (found.tolist(), found.dtype.isbuiltin) == (wanted, 1)
    assert check_array("x", grad.half()).dtype == np.float16
    assert check_array("x", grad.double()).dtype == np.float64
    for value, said in (
        (torch.nested.nested_tensor([grad.detach(), grad.detach()[:1]]), "ragged"),
        (torch.ones(2, device="meta"), "must be an array, got a tensor of"),
        ([0.0, grad.detach().to_sparse()], "must be dense"),
    ):
        with pytest.raises(InputError, match=f"^x: .*{said}"):
            check_array("x", value)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
def test_torchs_masked_tensors() -> None:
    masked = torch.masked.masked_tensor
    data = torch.tensor([1.0, 2.0])
    assert check_array("x", masked(data, torch.tensor([True, True]))).tolist() == [1, 2]
    with pytest.raises(InputError, match=r"^x: must have no masked values"):
        check_array("x", masked(data, torch.tensor([True, False])))
