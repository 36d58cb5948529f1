"""Collectors that push and trainers that read a URL, in processes that may be killed; what they say by a pipe.

Rows are functions of who wrote them and of their number.
"""

from __future__ import annotations

import hashlib
import os
import random
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import CheckpointError

WIDTH = 48 << 10
CAPACITY = 200
SPACES = spaces.Box(0, 255, (WIDTH,), np.uint8), spaces.Discrete(5)
LAYOUT: dict[str, Any] = {"shard_rows": {"obs": 96, "action": 128}, "chunk_rows": {"obs": 8, "action": 64}}
"""A shard of observations has four and a half megabytes."""
BATCH = 8
DRAWS = 4
"""Batches that are compared."""
FINAL = 1 << 20
"""What the number of an episode's last observation is away from that of its row."""
NOISE = np.random.default_rng(0).integers(0, 256, 2 * WIDTH, np.uint8)
"""Does not compress."""


def observation(writer: Any, number: Any) -> np.ndarray:
    """Says in its first numbers which it is; the rest is a piece of the noise that few others have."""
    start = (int(number) * 977 + int(writer) * 7919) % WIDTH
    made = NOISE[start : start + WIDTH].copy()
    made[:8] = np.frombuffer(np.array([writer, number], np.uint32).tobytes(), np.uint8)
    return made


def row(writer: int, number: int) -> dict[str, Any]:
    """The arguments of ``add``."""
    last = number % 10 == 9
    return {
        "obs": observation(writer, number), "action": (number + writer) % 5, "reward": float(number),
        "next_obs": observation(writer, number + (FINAL if last else 1)), "terminated": False, "truncated": last,
    }  # fmt: skip


def check(batch: dr.Batch) -> list[int]:
    """Every value of a batch is that of the row that its observation names; the writer of each."""
    writers = []
    for at in range(len(batch.obs)):
        writer, number = np.frombuffer(batch.obs[at, :8].tobytes(), np.uint32).tolist()
        assert number == int(batch.index[at]) & ((1 << 48) - 1), (writer, number, batch.index[at])
        want = row(writer, number)
        for name in ("obs", "next_obs", "action", "reward", "terminated", "truncated"):
            assert np.array_equal(getattr(batch, name)[at], want[name]), (writer, number, name)
        writers.append(writer)
    return writers


def check_all(buffer: dr.ReplayBuffer) -> tuple[int, dict[str, int]]:
    """Compares every transition of every window: each is there once, without a hole.

    How many there are, and the writer of each stream that holds some, by its name.
    """
    found: dict[str, int] = {}
    items, facts = buffer.items(), buffer.stats()["streams"]
    assert len(set(items.tolist())) == len(items)
    for name, number in zip(facts, [state.log.stream for state in buffer.engine.streams], strict=True):
        here = items[items >> 48 == number]
        begin, end = facts[name]["begin"], facts[name]["end"]
        assert (here & ((1 << 48) - 1)).tolist() == list(range(begin, end)), name
        assert begin == max(0, end - CAPACITY), (name, begin, end)
        for part in np.array_split(here, max(1, len(here) // 64)):
            for writer in check(buffer.get(part)) if len(part) else ():
                assert found.setdefault(name, writer) == writer, name
    return len(items), found


def digest(batch: dr.Batch) -> str:
    """Of all that a batch says."""
    made = hashlib.blake2b(digest_size=8)
    for name in ("index", "obs", "action", "reward", "next_obs", "terminated", "truncated", "weight"):
        made.update(np.ascontiguousarray(getattr(batch, name)).tobytes())
    return made.hexdigest()


def drawn(buffer: dr.ReplayBuffer) -> list[str]:
    """The next batches."""
    return [digest(buffer.sample(BATCH)) for _ in range(DRAWS)]


def state(buffer: dr.ReplayBuffer) -> str:
    """Of rows, priorities and random state."""
    facts, arrays = buffer.engine.state()
    made = hashlib.blake2b(digest_size=8)
    made.update(repr((facts, buffer.engine.rng.bit_generator.state)).encode())
    for name in sorted(arrays):
        made.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    made.update(buffer.items().tobytes())
    return made.hexdigest()


def collect(endpoint: str, url: str, path: str, writer: int, checkpoints: bool, seed: int, pipe: Connection) -> None:
    """Adds and pushes; says the name of its stream, how many rows it has at the start, and how many are pushed.

    If ``checkpoints``, it makes one now and then, and drops the one before.
    """
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    rng = random.Random(seed)
    options = {"capacity": CAPACITY, "commit_rows": rng.choice((3, 25)), "commit_seconds": 1e9, **LAYOUT}
    buffer = dr.ReplayBuffer.open_or_create(path, *SPACES, remote=url, push_seconds=0, **options)
    number = buffer.stats()["streams"][buffer.stream]["end"]
    pipe.send(("begun", buffer.stream, number))
    while True:
        for _ in range(rng.randrange(1, 40)):
            buffer.add(**row(writer, number))
            number += 1
        made = None
        if checkpoints and rng.random() < 0.3:
            made = f"collector-{writer}-{number}"
            buffer.checkpoint(made)
            for name in buffer.checkpoints:
                if name != made:
                    buffer.drop_checkpoint(name)
        if rng.random() < 0.7 or made:
            buffer.push()
            pipe.send(("pushed", number, made))


def train(endpoint: str, url: str, mirror: str, name: str, seed: int, pipe: Connection) -> None:
    """Samples, sets priorities and makes checkpoints ``name-0``, ``name-1``, ... of its own under the URL.

    It goes on from the newest of them. Of each it says the state before and the next batches after; of the one that it
    began with, its state and batches.
    """
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    rng = random.Random(seed)
    mirrored = {"mirror": mirror, "mirror_bytes": 256 << 20}
    try:
        buffer = dr.ReplayBuffer.open(url, mode="r", checkpoint="latest", **mirrored)
        at = max(int(one.removeprefix(f"{name}-")) for one in buffer.checkpoints)
        pipe.send(("begun", at, buffer.checkpoint_metadata(f"{name}-{at}"), state(buffer), drawn(buffer)))
    except CheckpointError:
        at = -1
        buffer = dr.ReplayBuffer.open(url, mode="r", sampler=dr.Proportional(), seed=seed, **mirrored)
        pipe.send(("begun", at, None, None, None))
    while True:
        for _ in range(rng.randrange(1, 8)):
            if rng.random() < 0.4:
                buffer.refresh()
            batch = buffer.sample(BATCH)
            check(batch)
            buffer.update_priorities(batch.index, np.array([rng.random() for _ in batch.index]))
        at += 1
        pipe.send(("making", at, state(buffer)))
        buffer.checkpoint(f"{name}-{at}", metadata={"at": at})
        pipe.send(("made", at, drawn(buffer)))
        for old in buffer.checkpoints:
            if int(old.removeprefix(f"{name}-")) < at - 1:
                buffer.drop_checkpoint(old)
