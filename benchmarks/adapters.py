"""What an adapter or a loader costs beside the library whose place it takes: processor time, by turns, in one process.

Both hold the same transitions of 17 floats, ours on disk with its commits, theirs in RAM; windows are full. Episodes
have 1,000 steps. The `DataLoader` is compared with one over arrays, whose `__getitems__` takes the batch out of each,
and which collates nothing.

For a quick look: ``--steps 100000 --rounds 2``; ``--only`` takes libraries: ``sb3 torch d3rlpy``. A library that is not
installed is left out; d3rlpy asks for an older Gymnasium: ``pip install --no-deps d3rlpy``.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any

import calls
import contenders
import harness
import numpy as np
import rows
from calls import CASES, Calls, Costs

STEPS = 1_000_000
ROUNDS = 7
BATCH = 256
TRAJECTORIES = 64
LENGTH = 20
"""Steps of a trajectory."""


# Stable-Baselines3


def adapted(folder: Any, case: rows.Case, held: int) -> Any:
    from diskreplay.compat.sb3 import DiskReplayBuffer

    return DiskReplayBuffer(held, case.obs, case.action, device="cpu", n_envs=case.envs, path=folder / "store")


def sb3(name: str, what: str, held: int, rounds: int) -> Costs:
    """Rows as SB3's algorithms give them, and batches, of either or of both by turns."""
    import torch

    torch.set_num_threads(1)
    case = CASES[name]
    steps = [contenders.sb3_arguments(step) for step in rows.calls(case)]
    with harness.scratch() as folder:
        buffers = {"ours": adapted(folder, case, held), "SB3": calls.sb3(case, held)}
        adding = {key: calls.through(buffer.add, steps) for key, buffer in buffers.items()}
        drawing = {key: calls.again(buffer.sample, BATCH) for key, buffer in buffers.items()}
        for each in adding.values():
            calls.exhaust(each, held // case.envs)
        both = {key: zip(adding[key], drawing[key], strict=True) for key in buffers}
        turns, count = {"add": (adding, 2000), "sample": (drawing, 500), "both": (both, 500)}[what]
        found = calls.by_turns(turns, count, rounds)
        buffers["ours"].close()
    return found


# torch


def columns(held: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((held + 1, 17), dtype=np.float32)
    ends = np.arange(held) % 1000 == 999
    following = obs[1:].copy()
    following[ends] += 1
    return {
        "obs": obs[:-1], "action": rng.uniform(-1, 1, (held, 6)).astype(np.float32),
        "reward": rng.random(held, np.float32), "next_obs": following,
        "terminated": ends, "truncated": np.zeros(held, bool),
    }  # fmt: skip


def stored(folder: Any, data: dict[str, Any]) -> str:
    path = str(folder / "store")
    options = {"observation_space": rows.VECTOR, "action_space": CASES["17 floats"].action, "frame_stack": 1}
    with contenders.create_store(path, len(data["reward"]), **options) as buffer:
        buffer.extend(**data)
    return path


def loader(sampler: str, held: int, rounds: int) -> Costs:
    """Batches of a `DataLoader`: shuffled, of DDP's sampler, or of ours, which is compared with shuffled arrays."""
    import torch
    from torch.utils.data import DataLoader, Dataset, DistributedSampler

    from diskreplay.torch import DiskDataset, PassSampler

    torch.set_num_threads(1)
    data = columns(held)

    class Arrays(Dataset):
        def __len__(self) -> int:
            return held

        def __getitems__(self, at: list[int]) -> dict[str, Any]:
            return {name: torch.from_numpy(array[at]) for name, array in data.items()}

    def loaded(dataset: Any, how: str, **options: Any) -> Calls:
        match how:
            case "shuffle=True":
                options |= {"shuffle": True, "batch_size": BATCH}
            case "DistributedSampler":
                options |= {"sampler": DistributedSampler(dataset, 1, 0), "batch_size": BATCH}
            case _:
                options |= {"sampler": PassSampler(dataset, BATCH), "batch_size": None}
        each = DataLoader(dataset, **options)
        return itertools.chain.from_iterable(each for _ in itertools.count())

    with harness.scratch() as folder, DiskDataset(stored(folder, data)) as dataset:
        shuffled = "shuffle=True" if sampler == "PassSampler" else sampler
        found = {"ours": loaded(dataset, sampler), "arrays": loaded(Arrays(), shuffled, collate_fn=lambda batch: batch)}
        for each in found.values():
            calls.exhaust(each, 1)
        return calls.by_turns(found, 100, rounds)


# d3rlpy


def d3rlpy(what: str, held: int, rounds: int) -> Costs:
    """Batches of transitions, or of trajectories."""
    import d3rlpy
    import structlog

    from diskreplay.compat.d3rlpy import DiskDataset

    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    data = columns(held)
    ends = data["terminated"].astype(np.float32)
    theirs = d3rlpy.dataset.MDPDataset(data["obs"], data["action"], data["reward"][:, None], ends)
    with harness.scratch() as folder:
        ours = DiskDataset(stored(folder, data))
        drawn: dict[str, Callable[[Any], Any]] = {
            "transitions": lambda dataset: dataset.sample_transition_batch(BATCH),
            "trajectories": lambda dataset: dataset.sample_trajectory_batch(TRAJECTORIES, LENGTH),
        }
        found = {"ours": calls.again(drawn[what], ours), "d3rlpy": calls.again(drawn[what], theirs)}
        try:
            return calls.by_turns(found, 20, rounds)
        finally:
            ours.close()


PLANNED = {
    "sb3": [
        ("SB3: `add`, 17 floats", sb3, ("17 floats", "add"), "SB3", 1.5),
        (f"SB3: `sample({BATCH})`", sb3, ("17 floats", "sample"), "SB3", 0.6),
        *(
            (f"SB3: `add` and `sample({BATCH})`, {name}", sb3, (name, "both"), "SB3", wanted)
            for name, wanted in (("17 floats", 0.6), ("64 environments", 0.8), ("1,024 environments", 1.0))
        ),
    ],
    "torch": [
        (f"`DataLoader`: a batch of {BATCH}, `{name}`", loader, (name,), "arrays", 1.5)
        for name in ("shuffle=True", "DistributedSampler", "PassSampler")
    ],
    "d3rlpy": [
        (f"d3rlpy: `sample_transition_batch({BATCH})`", d3rlpy, ("transitions",), "d3rlpy", 0.3),
        (f"d3rlpy: `sample_trajectory_batch({TRAJECTORIES}, {LENGTH})`", d3rlpy, ("trajectories",), "d3rlpy", 0.3),
    ],
}  # fmt: skip
PACKAGES = {"sb3": "stable_baselines3", "torch": "torch", "d3rlpy": "d3rlpy"}


def main() -> None:
    parser = harness.parser(__doc__, STEPS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--only", nargs="+", choices=[*PLANNED], help="then nothing is written to RESULTS.md")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = []
    for library in arguments.only or PLANNED:
        if not importlib.util.find_spec(PACKAGES[library]):
            continue
        for label, measure, which, peer, wanted in PLANNED[library]:
            costs = harness.fresh(measure, *which, arguments.steps, arguments.rounds)
            ratio = costs["ours"]["process"] / costs[peer]["process"]
            cells = [f"{costs[name]['process']:.4g} ({costs[name]['thread']:.4g})" for name in ("ours", peer)]
            verdict = "" if ratio <= wanted else "**missed**"
            lines.append((label, cells[0], f"{peer} {cells[1]}", f"{ratio:.2f}", f"{wanted:g}", verdict))
            print(*lines[-1], flush=True)
    body = (
        f"From {arguments.steps:,} transitions. Microseconds of processor time of the process, and of the thread that "
        f"calls in brackets, medians of {arguments.rounds} rounds by turns; the load of the machine was "
        f"{os.getloadavg()[2]:.1f}.\n\n" + harness.table(("call", "ours", "beside", "ratio", "wanted", ""), lines)
    )
    packages = harness.versions("diskreplay", "numpy", "gymnasium", "torch", "stable-baselines3", "d3rlpy")
    keep = arguments.steps == STEPS and arguments.rounds == ROUNDS and not arguments.only
    harness.write_section("adapters", "Adapters beside what they stand for", packages, body, keep=keep)


if __name__ == "__main__":
    main()
