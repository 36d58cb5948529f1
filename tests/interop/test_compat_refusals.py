"""An adapter checks all of its input before the first store is touched, and one call is one change.

Those that need no library of their own are in ``tests/compat/test_refusals.py``.
"""

from __future__ import annotations

import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from helpers.refusals import Call, Case, check, rows_of

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
for _name in ("d3rlpy", "stable_baselines3", "tianshou", "torchrl"):
    pytest.importorskip(_name, reason=f"{_name} is installed by the target interop of the Makefile")

from d3rlpy.dataset import Episode  # noqa: E402
from helpers.foreign_arrays import check_doors  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from tianshou.data import Batch  # noqa: E402
from torchrl.data import TensorDictReplayBuffer  # noqa: E402

from diskreplay.compat import cleanrl, sb3, tianshou  # noqa: E402
from diskreplay.compat import torchrl as ours  # noqa: E402
from diskreplay.compat.d3rlpy import DiskDataset  # noqa: E402

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Discrete(4)})
PIXELS = spaces.Box(0, 255, (4, 8, 8), np.uint8)
DISCRETE = spaces.Discrete(3)


def observed(rng: np.random.Generator, space: spaces.Space, *lead: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: observed(rng, part, *lead) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=lead)
    return rng.integers(0, 9, (*lead, *space.shape)).astype(space.dtype)


# SB3 and CleanRL


def vector_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    def step(*lead: int) -> list[Any]:
        done = rng.random((*lead, 2)) < 0.3
        infos: Any = [[{"TimeLimit.truncated": bool(one)} for one in row] for row in np.atleast_2d(done & False)]
        space = buffer.observation_space
        return [observed(rng, space, *lead, 2), observed(rng, space, *lead, 2), rng.integers(3, size=(*lead, 2, 1)),
                observed(rng, BOX, *lead, 2)[..., 0], done, infos if lead else infos[0]]  # fmt: skip

    return [("add", step()), ("extend", step(3))]


def vector_seen(buffer: Any) -> Any:
    arrays = [np.asarray(getattr(buffer, name)) for name in ("actions", "rewards", "dones", "timeouts")]
    return buffer.pos, buffer.full, arrays, rows_of(buffer.store), _tensors(buffer) if buffer.size() else ()


def _tensors(buffer: Any) -> Any:
    found = buffer.sample(4)
    names = "observations", "actions", "rewards", "dones", "next_observations"
    return [getattr(found, name) for name in names]


def rainbow_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    step = [observed(rng, PIXELS), int(rng.integers(3)), float(rng.integers(5)), observed(rng, PIXELS),
            bool(rng.random() < 0.3)]  # fmt: skip
    calls: list[Call] = [("add", step)]
    if buffer.store is not None and len(buffer.store.items()):
        calls.append(
            ("update_priorities", [buffer.store.items()[:2].copy(), rng.random(min(2, len(buffer.store.items())))])
        )
    return calls


def rainbow_seen(buffer: Any) -> Any:
    return buffer.pos, buffer.size, buffer.max_priority, rows_of(buffer.store)


# Tianshou


def ready_steps(rng: np.random.Generator, buffer: Any) -> list[Call]:
    ids = rng.permutation(3)[: rng.integers(1, 4)]
    count = len(ids)
    batch = {
        "obs": observed(rng, BOX, count), "act": rng.integers(3, size=count), "rew": rng.random(count),
        "terminated": rng.random(count) < 0.2, "truncated": rng.random(count) < 0.1,
        "obs_next": observed(rng, BOX, count), "info": {"env_id": np.arange(count)}, "noise": rng.random((count, 2)),
    }  # fmt: skip
    calls: list[Call] = [("add", [batch, ids])]
    if isinstance(buffer, tianshou.DiskPrioritizedVectorReplayBuffer) and len(buffer):
        calls.append(("update_weight", [buffer.sample_indices(0)[:2], rng.random(min(2, len(buffer)))]))
    return calls


def ready_call(buffer: Any, name: str, arguments: list[Any]) -> Any:
    if name == "add" and isinstance(arguments[0], dict):
        batch = Batch()
        batch.__dict__.update({key: Batch(part) if key == "info" and isinstance(part, dict) else part
                               for key, part in arguments[0].items()})  # fmt: skip
        arguments[0] = batch
    return getattr(buffer, name)(*arguments)


def ready_seen(buffer: Any) -> Any:
    held = buffer.sample_indices(0)
    names = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next") if len(held) else ()
    weights = buffer.weight[np.arange(buffer.maxsize)] if hasattr(buffer, "weight") else ()
    batch = buffer[held] if len(held) else {}
    return len(buffer), held, [batch[name] for name in names], weights, [rows_of(store) for store in buffer.stores]


# d3rlpy


class Env(gymnasium.Env[Any, Any]):
    observation_space, action_space = BOX, DISCRETE


def written(rng: np.random.Generator, buffer: Any) -> list[Call]:
    def step() -> list[Any]:
        return [observed(rng, BOX), int(rng.integers(3)), float(rng.integers(5))]

    steps = int(rng.integers(2, 5))
    episode = {"observations": observed(rng, BOX, steps), "actions": rng.integers(3, size=(steps, 1)),
               "rewards": rng.random((steps, 1)), "terminated": bool(rng.random() < 0.5)}  # fmt: skip
    calls: list[Call] = [("append", step()) for _ in range(3)]
    return [*calls, ("clip_episode", [bool(rng.random() < 0.5), observed(rng, BOX)]), ("append_episode", [episode])]


def written_call(buffer: Any, name: str, arguments: list[Any]) -> Any:
    if name == "append_episode":
        if buffer._held() is not None:  # an append that was taken though it was spoiled
            buffer.clip_episode(True)
        if isinstance(arguments[0], dict) and len(arguments[0]) == 4 and set(arguments[0]) == set(EPISODE):
            arguments[0] = Episode(**arguments[0])
    return getattr(buffer, name)(*arguments)


EPISODE = "observations", "actions", "rewards", "terminated"


def written_seen(buffer: Any) -> Any:
    episodes = [(one.observations, one.actions, one.rewards, one.terminated) for one in buffer.episodes]
    drawn = vars(buffer.sample_transition()) if buffer.transition_count else {}
    return episodes, {key: value for key, value in drawn.items() if key != "rewards_to_go"}, rows_of(buffer.store)


# torchrl


def batches(rng: np.random.Generator, buffer: Any) -> list[Call]:
    count = int(rng.integers(1, 4))
    flags = rng.random((count, 1)) < 0.2
    data = {
        "observation": observed(rng, BOX, count), "action": rng.integers(3, size=(count, 1)),
        "next": {"observation": observed(rng, BOX, count), "reward": rng.random((count, 1)), "done": flags},
    }  # fmt: skip
    return [("extend", [data])]


def batch_call(buffer: Any, name: str, arguments: list[Any]) -> Any:
    """Through the storage, as torchrl's buffer asks it: what torchrl refuses itself is not tried."""
    data = arguments[0]
    if isinstance(data, dict):
        try:
            count = len(data["action"])
            data = TensorDict(data, [count])
        except Exception:  # no tensordict
            count = 2
    else:
        count = 2
    storage = buffer.storage
    storage.set((storage.pos + torch.arange(count)) % storage.max_size, data)


def batches_seen(buffer: Any) -> Any:
    storage = buffer.storage
    rows = storage.get(slice(None)).to_tensordict().flatten_keys(".") if len(storage) else {}
    return len(storage), storage.pos, {key: rows[key].numpy() for key in rows.keys()}, rows_of(storage.store)  # noqa: SIM118


class OverStorage:
    """torchrl's buffer, with a ``close``."""

    def __init__(self, path: pathlib.Path) -> None:
        self.storage = ours.DiskReplayStorage(9, path=path)
        self.buffer = TensorDictReplayBuffer(storage=self.storage, batch_size=2)

    def close(self) -> None:
        self.storage.close()


CASES = {
    "SB3": Case(lambda path: sb3.DiskReplayBuffer(14, BOX, DISCRETE, "cpu", 2, path=path), vector_steps, vector_seen),
    "SB3, Dict": Case(
        lambda path: sb3.DiskReplayBuffer(14, NESTED, DISCRETE, "cpu", 2, path=path), vector_steps,
        lambda buffer: (buffer.pos, rows_of(buffer.store)),
    ),
    "SB3, stacks": Case(
        lambda path: sb3.DiskReplayBuffer(14, PIXELS, DISCRETE, "cpu", 2, path=path), vector_steps, vector_seen
    ),
    "CleanRL": Case(
        lambda path: cleanrl.ReplayBuffer(14, BOX, DISCRETE, "cpu", 2, path=path), vector_steps, vector_seen
    ),
    "CleanRL, stacks": Case(
        lambda path: cleanrl.ReplayBuffer(14, PIXELS, DISCRETE, "cpu", 2, path=path), vector_steps, vector_seen
    ),
    "CleanRL, Rainbow": Case(
        lambda path: cleanrl.PrioritizedReplayBuffer(7, (4, 8, 8), "cpu", 2, 0.9, path=path), rainbow_steps,
        rainbow_seen,
    ),
    "Tianshou": Case(
        lambda path: tianshou.DiskVectorReplayBuffer(15, 3, path=path), ready_steps, ready_seen, ready_call, True
    ),
    "Tianshou, priorities": Case(
        lambda path: tianshou.DiskPrioritizedVectorReplayBuffer(15, 3, alpha=0.6, beta=0.4, path=path), ready_steps,
        ready_seen, ready_call, True,
    ),
    "d3rlpy": Case(
        lambda path: DiskDataset(path, limit=9, env=Env()), written, written_seen, written_call
    ),
    "torchrl": Case(OverStorage, batches, batches_seen, batch_call, True),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_refused_leaves_no_trace(name: str, seed: int, tmp_path: pathlib.Path) -> None:
    check(CASES[name], tmp_path, seed, 12, 8)


@pytest.mark.parametrize("name", ["SB3", "Tianshou", "d3rlpy", "torchrl"])
def test_what_is_refused_leaves_no_trace_in_a_few_rounds(name: str, tmp_path: pathlib.Path) -> None:
    check(CASES[name], tmp_path, 0, 2, 4)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_arrays_of_others(name: str, tmp_path: pathlib.Path) -> None:
    """Those that need no library of their own are in ``test_foreign_arrays.py``."""

    def skip(call: str, at: int, kind: str) -> bool:
        """Tianshou itself keeps info and further keys, and counts weights in their own precision.

        A TensorDict makes tensors of masked arrays, and no tensors of scipy's and JAX's.
        """
        if name == "torchrl":
            return any(one in kind for one in ("masked", "scipy", "JAX"))
        return name.startswith("Tianshou") and (at > 5 if call == "add" else "bfloat16" in kind)

    assert check_doors(CASES[name], tmp_path, skip=skip) >= 3
