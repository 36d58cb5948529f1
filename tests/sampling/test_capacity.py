"""Capacities far beyond the rows that there are: memory by the rows, the same draws; trees that grow or are copied."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.line import create, play

import diskreplay as dr
from diskreplay.index.log import NOW
from diskreplay.sampling import places
from diskreplay.sampling.window import Window

SAMPLERS: dict[str, Callable[[], Any]] = {
    "uniform": dr.Uniform,
    "proportional": dr.Proportional,
    "by environment": lambda: dr.Proportional(by_env=True),
    "rank": dr.RankBased,
    "counting": lambda: dr.Counting(dr.Uniform(), max_times_sampled=100),
    "recent": lambda: dr.Recent(newest=20),
}


def add(buffer: dr.ReplayBuffer, rows: int) -> None:
    for _ in range(rows // 5):
        play(buffer, 5)


@pytest.mark.parametrize("capacity", [2**31 + 2, 2**36 + 2, 10**12, 2**40, 2**48])
def test_any_capacity_makes_a_store(path: str, capacity: int) -> None:
    """Regression: 10**12 was refused in words about shard_rows, which nobody had given."""
    with create(path, capacity, 2) as buffer:
        add(buffer, 30)
    with dr.ReplayBuffer.open(path) as buffer:
        add(buffer, 30)
        buffer.commit()
        assert (buffer.capacity, len(buffer.sample(50).reward)) == (capacity, 50)
        assert buffer.engine.store.files.stored_bytes(path) < 4 << 20


@pytest.mark.own_thresholds
@pytest.mark.parametrize("name", SAMPLERS)
def test_memory_is_by_the_rows(path: str, name: str) -> None:
    """Regression: ``RankBased`` asked for 64 GiB, and ``Proportional`` for more than any machine has."""
    with create(path, 2**40, 2) as buffer:
        add(buffer, 25)
    with dr.ReplayBuffer.open(path, sampler=SAMPLERS[name](), seed=0) as buffer:
        buffer.sample(8)  # loads code
    tracemalloc.start()
    try:
        with dr.ReplayBuffer.open(path, sampler=SAMPLERS[name](), seed=0) as buffer:
            for _ in range(3):
                batch = buffer.sample(8)
                if name in ("proportional", "by environment", "rank"):
                    buffer.update_priorities(batch.index, batch.obs[:, 0])
                add(buffer, 5)
            buffer.checkpoint("c")
        with dr.ReplayBuffer.open(path, sampler=SAMPLERS[name](), checkpoint="c") as buffer:
            buffer.sample(8)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def drawn(make: Callable[[], Any], capacity: int, envs: int = 1) -> tuple[list[bytes], list[int]]:
    """What a sampler draws while a window grows, and slides in the end; and the slots of its tree."""
    rng, sampler = np.random.default_rng(0), make()
    found, slots = [], []

    def now(ids: Any) -> Any:
        return np.full(len(ids), NOW, np.int8)

    for stop in (4, 50, 64, 66, 200, 511, 514, 520, 2000, capacity, capacity + 100, capacity + 2000):
        windows = [Window(max(0, stop - capacity), stop, capacity, envs)]
        for _ in range(3):
            ids, weights = sampler.sample(rng, windows, now, 16)
            sampler.update(ids, rng.random(16) * 10, windows, now)
            found += [ids.tobytes(), weights.tobytes(), sampler.probability(ids, windows, now).tobytes()]
        slots.append(sampler._places.slots)
    return found, slots


@pytest.mark.own_thresholds
@pytest.mark.parametrize("capacity", [2100, 4096, 5000, 32768 + 4])
@pytest.mark.parametrize("make", [dr.Proportional, dr.RankBased, lambda: dr.Proportional(alpha=0.0)])
def test_a_tree_that_grows_draws_the_same(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any], capacity: int
) -> None:
    whole, slots = drawn(make, capacity)
    assert set(slots) == {capacity}
    monkeypatch.setattr(places, "LEAST_ROWS", 8)
    growing, slots = drawn(make, capacity)
    assert (growing, slots[0], slots, slots[-1]) == (whole, 8, sorted(slots), capacity)
    assert len(set(slots)) <= 7  # it grows eightfold, so that what is copied is a part of what was added


def test_each_environment_of_a_tree_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "LEAST_ROWS", 8)
    sampler = dr.Proportional(by_env=True)
    rng = np.random.default_rng(0)
    for stop in (8, 40, 400, 3000, 4400):
        windows = [Window(max(0, stop - 4000), stop, 4000, 4), Window(1 << 48, (1 << 48) + stop // 4, 1 << 40, 1)]
        ids, _ = sampler.sample(rng, windows, lambda ids: np.full(len(ids), NOW, np.int8), 50)
        local = ids[:40]
        np.testing.assert_array_equal(local % 4, np.repeat(range(4), 10))
        assert windows[0].first <= local.min()
        assert local.max() < stop
        assert (ids[40:] >= 1 << 48).all()
        assert (ids[40:] < windows[1].stop).all()


@pytest.mark.own_thresholds
@pytest.mark.parametrize("make", [dr.Proportional, dr.RankBased])
def test_a_state_of_a_whole_tree_is_taken(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]) -> None:
    """As earlier versions wrote it: with slots for all of the capacity."""

    def now(ids: Any) -> Any:
        return np.full(len(ids), NOW, np.int8)

    whole, windows = make(), [Window(0, 50, 30_000, 1)]
    ids, _ = whole.sample(np.random.default_rng(0), windows, now, 16)
    whole.update(ids, np.arange(16.0), windows, now)
    assert whole._places.slots == 30_000
    monkeypatch.setattr(places, "LEAST_ROWS", 8)
    taken = make()
    taken.restore(*whole.state())
    later = [Window(0, 60, 30_000, 1)]
    for one, other in zip(
        whole.sample(np.random.default_rng(1), later, now, 32),
        taken.sample(np.random.default_rng(1), later, now, 32),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    assert taken._places.slots == 64


@pytest.mark.parametrize("make", [dr.Proportional, dr.RankBased, lambda: dr.Proportional(by_env=True)])
@pytest.mark.parametrize(
    ("capacity", "smaller", "stop"), [(1000, 500, 1500), (1500, 1000, 4000), (64, 16, 80), (64, 24, 81)]
)
def test_a_window_that_shrinks_keeps_no_entry(make: Callable[[], Any], capacity: int, smaller: int, stop: int) -> None:
    """Regression: where the ids that were left had the same slots as before, those of the others stayed in the tree."""

    def now(ids: Any) -> Any:
        return np.full(len(ids), NOW, np.int8)

    rng, sampler, other = np.random.default_rng(0), make(), Window(1 << 48, (1 << 48) + 9, 1000)
    sizes = (capacity, stop - capacity, stop), (smaller, stop - smaller, stop), (capacity, stop, stop + 5)
    for size, first, end in sizes:
        windows = [Window(first, end, size, 1), other]
        every = np.concatenate([np.arange(first, end), np.arange(*other[:2])])
        for _ in range(5):
            ids, _ = sampler.sample(rng, windows, now, 64)
            assert np.isin(ids, every).all()
            sampler.update(ids, rng.random(64), windows, now)
        assert len(sampler.state()[1][sampler._array]) == len(every)
        total = sampler.probability(every, windows, now).sum()
        np.testing.assert_allclose(total, 1.0)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 3)])
def test_a_stream_with_other_environments_begins_anew(before: int, after: int) -> None:
    def now(ids: Any) -> Any:
        return np.full(len(ids), NOW, np.int8)

    sampler = dr.Proportional(by_env=True)
    sampler.update(np.arange(480), np.arange(480.0), [Window(0, 480, 480, before)], now)
    ids, _ = sampler.sample(np.random.default_rng(0), [Window(0, 7 * after, 480, after)], now, 12 * after)
    assert np.unique(ids).max() < 7 * after


@pytest.mark.parametrize("make", [dr.Proportional, dr.RankBased, lambda: dr.Proportional(by_env=True)])
def test_copies_go_on_by_themselves(make: Callable[[], Any]) -> None:
    """Also one whose arrays lie in memory that nobody may write to, as Ray unpickles them, joblib only large ones."""

    def now(ids: Any) -> Any:
        return np.full(len(ids), NOW, np.int8)

    sampler, windows, buffers = make(), [Window(0, 40, 80, 2)], list[pickle.PickleBuffer]()
    sampler.update(np.arange(40), np.arange(40.0), windows, now)
    shared = pickle.dumps(sampler, protocol=5, buffer_callback=buffers.append)
    large = [bytes(buffer) if buffer.raw().nbytes > 64 else bytearray(buffer) for buffer in buffers]
    copies = [
        pickle.loads(shared, buffers=[bytes(buffer) for buffer in buffers]),
        pickle.loads(shared, buffers=large),
        pickle.loads(pickle.dumps(sampler)),
        copy.deepcopy(sampler),
    ]
    states = []
    for each in [sampler, *copies]:
        ids, _ = each.sample(np.random.default_rng(0), [Window(10, 60, 80, 2)], now, 16)
        each.update(ids, np.arange(16.0), [Window(10, 60, 80, 2)], now)
        states.append(repr((ids, each.state())))
    assert len(set(states)) == 1
