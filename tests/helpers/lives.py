"""Rows that are a function of their number, and processes that write and read them."""

from __future__ import annotations

import random
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError

STACK = 3
SIDE = 36
"""Frames of more than 1024 bytes are read from disk, as real ones; smaller ones are kept in RAM."""
ROW_BITS = 48
OPTIONS: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": 1 << 14}


def create(path: str, num_envs: int = 2, rows: int = 40, **options: Any) -> dr.ReplayBuffer:
    """A store whose window of ``rows`` turns over within moments."""
    return dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (SIDE, SIDE), np.uint8), spaces.Discrete(5), capacity=rows * num_envs,
        num_envs=num_envs, frame_stack=STACK, columns={"value": np.float32}, reward_dtype=np.float64,
        **{"chunk_rows": 4, "shard_rows": 8} | OPTIONS | options,
    )  # fmt: skip


def frames(stream: Any, row: Any, env: Any, final: Any = False) -> np.ndarray:
    """What rows look like, ``(B, SIDE, SIDE)``; the final observation of an episode looks like no row."""
    seed = np.asarray(row, np.int64) * 31 + np.asarray(env) * 7 + np.asarray(stream) * 101 + np.asarray(final) * 17
    return ((seed[..., None] + np.arange(SIDE * SIDE)) % 251).astype(np.uint8).reshape(*seed.shape, SIDE, SIDE)


def length(env: Any) -> Any:
    """Steps of an environment's episodes."""
    return 5 + np.asarray(env)


def step(stream: int, row: int, num_envs: int) -> dict[str, Any]:
    """The arguments of ``add`` for a row."""
    env = np.arange(num_envs)
    last = row % length(env) == length(env) - 1
    ends = last & (row % 2 == 0)
    following = np.where(last[:, None, None], frames(stream, row, env, True), frames(stream, row + 1, env))
    values = {
        "obs": frames(stream, row, env),
        "action": (row + env + stream) % 5,
        "reward": row + env / 8,
        "next_obs": following,
        "terminated": ends,
        "truncated": last & ~ends,
        "value": np.full(num_envs, row % 1000, np.float32),
    }
    return values if num_envs > 1 else {name: value[0] for name, value in values.items()}


def add(buffer: dr.ReplayBuffer, rows: int, stream: int = 0, commit_every: int | None = None) -> None:
    """Adds rows behind those that a stream has; with a commit every so many rows, and at the end."""
    first = buffer.stats()["streams"][buffer.stream]["end"]
    for row in range(first, first + rows):
        buffer.add(**step(stream, row, buffer.num_envs))
        if commit_every and row % commit_every == 0:
            buffer.commit()
    if commit_every:
        buffer.commit()


def check(batch: dr.Batch, num_envs: dict[int, int]) -> None:
    """Every value of a batch is that of the row and environment which its index names.

    Args:
        num_envs: of each stream, by its number.
    """
    stream = batch.index >> ROW_BITS
    row, env = np.divmod(batch.index & ((1 << ROW_BITS) - 1), np.array([num_envs[one] for one in stream.tolist()]))
    at = row % length(env)
    last = at == length(env) - 1
    for back in range(STACK):
        want = np.where((at >= back)[:, None, None], frames(stream, row - back, env), 0)
        np.testing.assert_array_equal(batch.obs[:, STACK - 1 - back], want)
    following = np.where(last[:, None, None], frames(stream, row, env, True), frames(stream, row + 1, env))
    np.testing.assert_array_equal(batch.next_obs[:, -1], following)
    np.testing.assert_array_equal(batch.next_obs[:, :-1], batch.obs[:, 1:])
    np.testing.assert_array_equal(batch.action, (row + env + stream) % 5)
    np.testing.assert_array_equal(batch.reward, row + env / 8)
    np.testing.assert_array_equal(batch.terminated, last & (row % 2 == 0))
    np.testing.assert_array_equal(batch.truncated, last & (row % 2 == 1))
    np.testing.assert_array_equal(batch.extra["value"], row % 1000)


def check_all(buffer: dr.ReplayBuffer) -> int:
    """Compares every row of every stream; how many transitions there were."""
    streams = buffer.stats()["streams"]
    # Streams are numbered in the order that they were made in, which is the order of the facts.
    num_envs = {number: state["num_envs"] for number, state in enumerate(streams.values())}
    ids = [
        np.arange(state["begin"] * state["num_envs"], state["end"] * state["num_envs"]) + (number << ROW_BITS)
        for number, state in enumerate(streams.values())
    ]
    wanted = np.concatenate(ids)
    if len(wanted):
        check(buffer.get(wanted), num_envs)
    assert len(buffer) == len(wanted)
    return len(wanted)


def write(path: str, stream: str, number: int, rows: int, seed: int, pipe: Connection) -> None:
    """A process that writes up to a row, and tells of each commit before and after it."""
    rng = random.Random(seed)
    with dr.ReplayBuffer.open(path, stream=stream, **OPTIONS) as buffer:
        state = buffer.stats()["streams"][stream]
        row, num_envs = state["end"], state["num_envs"]
        pipe.send(("open", row))
        while row < rows:
            for _ in range(rng.randrange(1, 12)):
                buffer.add(**step(number, row, num_envs))
                row += 1
            pipe.send(("committing", row))
            if rng.random() < 0.8:
                buffer.commit()
            else:
                for name in [name for name in buffer.checkpoints if name.startswith(f"{stream}-")][:-1]:
                    buffer.drop_checkpoint(name)
                buffer.checkpoint(f"{stream}-{row}")
            pipe.send(("committed", row))


def read(path: str, num_envs: dict[int, int], pipe: Connection) -> None:
    """A process that samples beside the writers until it is told to stop, and a few times at least; tells how often."""
    rng = np.random.default_rng(0)
    batches = rows = evicted = 0
    while batches < 4 or not pipe.poll():  # on a busy machine it may be told before it has begun
        with dr.ReplayBuffer.open(path, mode="r", cache_bytes=int(rng.choice([0, 1 << 14]))) as buffer:
            for _ in range(20):
                try:
                    batch = buffer.sample(20)
                    check(batch, num_envs)
                    batches, rows = batches + 1, rows + 20
                    if rng.random() < 0.3:
                        buffer.refresh()
                    check(buffer.get(batch.index), num_envs)
                except NotEnoughDataError:
                    buffer.refresh()
                except EvictedError:
                    evicted += 1
    pipe.send((batches, rows, evicted))
