"""One thread adds, another commits, several sample: every batch is right."""

from __future__ import annotations

import collections
import contextlib
import time

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.effort import examples
from helpers.threads import over_and_over

import diskreplay as dr
from diskreplay.errors import EvictedError, NotEnoughDataError

LENGTH = 7
"""Steps of an episode."""
LEAST_ROWS = examples(400, "turns of threads", least=150)
LEAST_ROUNDS = examples(10, "turns of threads", least=3)


def frame(row: int, env: int) -> np.ndarray:
    """What row and environment look like."""
    return np.array([row % 251, row // 251 % 251, env, row % LENGTH], np.uint8)


def check(batch: dr.Batch, num_envs: int, stack: int) -> None:
    """Every value is a function of the transition's id."""
    for at, index in enumerate(batch.index.tolist()):
        row, env = divmod(index, num_envs)
        step = row % LENGTH
        for back in range(stack):
            want = frame(row - back, env) if back <= step else np.zeros(4, np.uint8)
            assert (batch.obs[at, stack - 1 - back] == want).all(), (row, env, back)
        # The next observation of an episode's last step is its final one, which only that step has seen.
        following = frame(row + 1, env) if step < LENGTH - 1 else np.full(4, row % 251, np.uint8)
        assert (batch.next_obs[at, -1] == following).all(), (row, env)
        assert (batch.next_obs[at, :-1] == batch.obs[at, 1:]).all()
        assert (batch.action[at], batch.reward[at]) == (row % 5, row)
        assert batch.truncated[at] == (step == LENGTH - 1)
        assert (batch.extra["big"][at] == row % 1000).all()


@pytest.mark.long
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("cache_bytes", [0, 3000, 1 << 20])
def test_adding_committing_and_sampling_at_once(
    path: str, monkeypatch: pytest.MonkeyPatch, cache_bytes: int, num_envs: int
) -> None:
    residency.hold_up_to(8 if num_envs == 1 else 2)
    stack = 3
    buffer = dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(5), capacity=120 * num_envs, num_envs=num_envs,
        frame_stack=stack, columns={"big": ((9,), np.int16)}, chunk_rows=4, shard_rows=16, cache_bytes=cache_bytes,
        commit_rows=50, seed=1, reward_dtype=np.float64,
    )  # fmt: skip
    rows = iter(range(10**9))

    def add() -> None:
        row = next(rows)
        last = row % LENGTH == LENGTH - 1
        obs = np.stack([frame(row, env) for env in range(num_envs)])
        following = np.stack([frame(row + 1, env) for env in range(num_envs)])
        if last:
            following[:] = row % 251
        lead = () if num_envs == 1 else (num_envs,)
        buffer.add(
            obs.reshape(*lead, 4), np.full(lead, row % 5), np.full(lead, float(row)), following.reshape(*lead, 4),
            np.zeros(lead, bool), np.full(lead, last), big=np.full((*lead, 9), row % 1000, np.int16),
        )  # fmt: skip

    def sample() -> None:
        try:
            check(buffer.sample(17), num_envs, stack)
        except NotEnoughDataError:
            time.sleep(0.001)

    def get() -> None:
        stats = buffer.stats()["streams"]["0"]
        ids = np.arange(stats["begin"] * num_envs, stats["end"] * num_envs)
        with contextlib.suppress(EvictedError):
            check(buffer.get(ids[len(ids) // 2 :]), num_envs, stack)

    def shuffle() -> None:
        seen: list[int] = []
        for batch in buffer.shuffled(13, pool_bytes=500):
            check(batch, num_envs, stack)
            seen += batch.index.tolist()
        assert len(seen) == len(set(seen))

    def commit() -> None:
        buffer.commit()
        time.sleep(0.003)

    jobs = {"add": add, "sample": sample, "sample too": sample, "get": get, "shuffle": shuffle, "commit": commit}
    rounds = collections.Counter[str]()
    over_and_over(jobs, {**dict.fromkeys(jobs, LEAST_ROUNDS), "add": LEAST_ROWS}, rounds)
    assert rounds["add"] > 125, "the window never moved on"
    assert all(rounds[name] > 3 for name in jobs), rounds
    buffer.close()
    with dr.ReplayBuffer.open(path) as buffer:
        assert len(buffer) == 120 * num_envs
        check(buffer.sample(100), num_envs, stack)


def test_a_loader_beside_the_writer(path: str) -> None:
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (4,), np.uint8), spaces.Discrete(5), capacity=100, frame_stack=2, seed=1,
        columns={"big": ((9,), np.int16)}, reward_dtype=np.float64,
    ) as buffer:  # fmt: skip

        def add(row: int) -> None:
            last = row % LENGTH == LENGTH - 1
            following = np.full(4, row % 251, np.uint8) if last else frame(row + 1, 0)
            buffer.add(frame(row, 0), row % 5, float(row), following, False, last, big=np.full(9, row % 1000, np.int16))

        for row in range(20):
            add(row)
        with buffer.loader(8, prefetch=3) as loader:
            for row in range(20, 400):
                add(row)
                check(next(loader), 1, 2)
