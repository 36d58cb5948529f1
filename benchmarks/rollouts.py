"""Rollouts of a language model, written by groups and read in batches, beside a file for each group and a queue in RAM.

Rollouts of 10 to 2,000 tokens, most of them short, with log-probabilities and a mask, in groups of 8. Each group is
committed; torch's files are not synced: a loss of power may cost them. Read are 32 groups at random, as tensors.

TransferQueue keeps rollouts in the RAM of Ray's actors, so that a group written is durable only once `save_checkpoint`
has written all there are; that is timed on its own. It joins in where it is installed
(``pip install TransferQueue==0.1.11``), else it is skipped by name.

    python benchmarks/rollouts.py [--groups 500]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
from typing import Any

import harness
import numpy as np
import torch
from gymnasium import spaces

import diskreplay as dr

GROUPS, GROUP, BATCH, BATCHES = 500, 8, 32, 21
COLUMNS = {"tokens": ((None,), np.int32), "log_prob": ((None,), np.float32), "loss_mask": ((None,), np.bool_)}
Rollouts = list[list[dict[str, Any]]]
Took = tuple[list[float], list[float], float | None]
"""Seconds of each group written, of each batch read, and of the checkpoint that a peer needs, if it does."""


def rollouts(groups: int) -> Rollouts:
    rng = np.random.default_rng(0)

    def one(length: int) -> dict[str, Any]:
        tokens = (rng.zipf(1.3, length) % 50_000).astype(np.int32)  # frequent ones and rare ones, as of text
        return dict(zip(COLUMNS, (tokens, -rng.random(length, np.float32), np.arange(length) > 9), strict=True))

    return [[one(int(10 * 200 ** rng.random())) for _ in range(GROUP)] for _ in range(groups)]


def store(path: pathlib.Path, groups: Rollouts) -> Took:
    """Commits each group."""
    sampler, space = dr.Groups(by="prompt", group_size=GROUP), spaces.Discrete(1)
    rb = dr.ReplayBuffer.create(path, space, space, capacity=100_000, columns=COLUMNS, sampler=sampler, seed=0)
    numbered = iter(enumerate(groups))

    def write() -> None:
        number, group = next(numbered)
        for rollout in group:
            rb.begin_episode(prompt=number)
            rb.add(0, 0, 1.0, 0, True, False, **rollout)
        rb.commit()

    with rb:
        wrote = harness.seconds_of(write, len(groups))
    with dr.ReplayBuffer.open(path, seed=0) as rb:
        return wrote, harness.seconds_of(lambda: rb.sample(BATCH).torch(), BATCHES, warmup=1), None


def files(path: pathlib.Path, groups: Rollouts) -> Took:
    path.mkdir()
    numbered, rng = iter(enumerate(groups)), np.random.default_rng(0)

    def write() -> None:
        number, group = next(numbered)
        torch.save([{k: torch.from_numpy(v) for k, v in each.items()} for each in group], path / f"{number}.pt")

    def read() -> Any:
        drawn = [each for number in rng.permutation(len(groups))[:BATCH] for each in torch.load(path / f"{number}.pt")]
        return [torch.nn.utils.rnn.pad_sequence([each[name] for each in drawn], batch_first=True) for name in COLUMNS]

    return harness.seconds_of(write, len(groups)), harness.seconds_of(read, BATCHES, warmup=1), None


def queue(path: pathlib.Path, groups: Rollouts) -> Took:
    """Puts each group into TransferQueue's default storage, and checkpoints all of it at the end."""
    os.environ.setdefault("TQ_LOGGING_LEVEL", "ERROR")
    import ray
    import transfer_queue
    from tensordict import TensorDict

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")  # its actors ask for 3
    transfer_queue.init()
    numbered, rng = iter(enumerate(groups)), np.random.default_rng(0)

    def write() -> None:
        number, group = next(numbered)
        fields = {
            name: torch.nested.as_nested_tensor([torch.from_numpy(each[name]) for each in group], layout=torch.jagged)
            for name in COLUMNS
        }
        transfer_queue.kv_batch_put(keys_of(number), "train", TensorDict(fields, batch_size=GROUP))

    def read() -> Any:
        drawn = [key for number in rng.permutation(len(groups))[:BATCH] for key in keys_of(number)]
        found = transfer_queue.kv_batch_get(drawn, "train")
        return [torch.nested.to_padded_tensor(found[name], 0) for name in COLUMNS]

    def keys_of(number: int) -> list[str]:
        return [f"{number}_{answer}" for answer in range(GROUP)]

    try:
        wrote = harness.seconds_of(write, len(groups))
        took = harness.seconds_of(read, BATCHES, warmup=1)
        (saved,) = harness.seconds_of(lambda: transfer_queue.save_checkpoint(path), 1)
        return wrote, took, saved
    finally:
        transfer_queue.close()
        ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"default {GROUPS}; only that many are kept")
    asked = parser.parse_args()
    groups, rows = rollouts(asked.groups), []
    with harness.scratch() as folder:
        ways = {"diskreplay": store, "`torch.save`": files}
        if importlib.util.find_spec("transfer_queue"):
            ways["TransferQueue, in RAM"] = queue
        for name, run in ways.items():
            wrote, read, saved = run(folder / run.__name__, groups)
            size = harness.stored_bytes(folder / run.__name__)
            cells = harness.median_ms(wrote), harness.median_ms(read), size / 1e6
            rows.append([name, *(f"{each:.1f}" for each in cells), "" if saved is None else f"{1e3 * saved:.0f}"])
    items = sum(len(each["tokens"]) for group in groups for each in group)
    intro = f"{len(groups) * GROUP:,} rollouts in groups of {GROUP}, {items / 1e6:.1f} million tokens, 9 bytes each."
    intro += f" TransferQueue {'keeps them in RAM until its checkpoint' if len(ways) > 2 else 'is not installed'}."
    header = ["", "a group written, ms", f"{BATCH} groups as tensors, ms", "on disk, MB", "checkpoint of all, ms"]
    versions = harness.versions("diskreplay", "numpy", "torch", "TransferQueue", "tensordict", "ray")
    body = f"{intro}\n\n{harness.table(header, rows)}"
    harness.write_section("rollouts", "Rollouts", versions, body, keep=asked.groups == GROUPS)


if __name__ == "__main__":
    main()
