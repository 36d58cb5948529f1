"""The frames of a batch, found by the core: those that the log says, wherever they are."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.configs import CONFIGS, DEFAULT_CHUNKS, WIDE, Config
from helpers.effort import examples
from helpers.forking import forked
from helpers.fuzzing import fuzzed
from helpers.recording import Recording, reopen
from helpers.testing import FaultyFiles
from helpers.view_model import VIEWS, content

import diskreplay as dr
from diskreplay.errors import NotEnoughDataError
from diskreplay.index.log import NEXT_PATCH
from diskreplay.native import core
from diskreplay.reading import compiled
from diskreplay.schema.columns import CONTINUES, START
from diskreplay.storage import handles

CACHES = [0, 2000, 4 << 20, 256 << 20]


Frame = tuple[str, int, int, int]
"""Whether it is a row or a patch, the stream, the row or number of the patch, and the environment."""


def by_hand(
    logs: list[Any], ids: np.ndarray, place: np.ndarray, first_step: int, last_step: int, runs: int
) -> dict[Any, Frame]:
    """The frames of steps of rows, one by one, by place and step."""
    found: dict[Any, Frame] = {}
    for one, to in zip(ids.tolist(), place.tolist(), strict=True):
        at = [log.stream for log in logs].index(one >> 48)
        row, env = divmod(one & ((1 << 48) - 1), logs[at].num_envs)

        def of(name: str, row: int, at: int = at, env: int = env) -> int:
            return int(logs[at].take(name, np.array([row]), np.array([env]))[0])

        for step in range(first_step, last_step + 1):
            if step == 1 and (patch := of(NEXT_PATCH, row)) >= 0:
                found[to, step - first_step] = "patch", at, patch, 0
            elif step >= 0 or all(of(START, before) == CONTINUES for before in range(row, row + step, -1)):
                found[to, step - first_step] = "row", at, row + step, env
    return found


def told(
    chunks: core.Chunks, pieces: np.ndarray, lengths: list[int | None], kind: str, steps: int, runs: int
) -> dict[Any, Frame]:
    """The frames of pieces, by place and step. Of a run of places, each has its row and, of two steps, the next."""
    found: dict[Any, Frame] = {}
    for place, step, first, rows, chunk, group, stream, _, _, _, places, *_ in pieces.tolist():
        column = chunks.columns[stream]
        envs, length = column.group_envs, column.column.chunk_rows
        if lengths[stream] is not None:
            envs, length = column.num_envs, lengths[stream]
        for more, after in itertools.product(range(rows), range(places - (runs == 2))):
            if 0 <= step + more - after < steps:
                assert (place + after, step + more - after) not in found
                row, env = divmod(first + more, envs)
                found[place + after, step + more - after] = kind, stream, chunk * length + row, group * envs + env
    return found


@contextlib.contextmanager
def counted() -> Iterator[list[bool]]:
    """The list yielded grows by whether chunks of all streams were read together; they are the frames by hand."""
    planned: list[bool] = []
    find, made = core.frames, {}

    def logs_of(logs: list[Any], *names: str) -> core.Logs:
        seen = MADE(logs, *names)
        made[id(seen)] = logs, seen
        return seen

    def noted(seen: core.Logs, rows: core.Chunks, patches: core.Chunks, *given: Any) -> Any:
        found = find(seen, rows, patches, *given)
        planned.append(found is not None)
        if found is not None and id(seen) in made and len(given[0]) < 40:
            logs = made[id(seen)][0]
            names = [[column.column.name for column in chunks.columns] for chunks in (rows, patches)]
            tables = [[log.table for log in logs], [log.patches for log in logs]]
            lengths = [
                [table.length if name in table.arrays else None for table, name in zip(*each, strict=True)]
                for each in zip(tables, names, strict=True)
            ]
            frames: dict[Any, Frame] = {}
            for chunks, part, length, kind in zip((rows, patches), found, lengths, ("row", "patch"), strict=False):
                for pieces in () if part is None else (part[0], *part[2:4]):
                    frames |= told(chunks, pieces, length, kind, given[3] - given[2] + 1, given[4])
            assert frames == by_hand(logs, *given)
        return found

    with mock.patch.object(core, "frames", noted), mock.patch.object(core, "Logs", logs_of):
        yield planned


MADE = core.Logs


@contextlib.contextmanager
def from_disk(buffer: dr.ReplayBuffer) -> Iterator[None]:
    """From no cache."""
    cache = buffer.engine.streams.cache
    with mock.patch.object(cache, "_columns", {}), mock.patch.object(cache, "admits", return_value=False):
        yield


def compare(buffer: dr.ReplayBuffer, planned: list[bool]) -> None:
    """Draws the same batches from the disk and as usual, of all views."""
    for view in VIEWS:
        buffer.draws.view = buffer.draws.shown = view
        state = buffer.engine.rng.bit_generator.state
        for size in (1, 9):
            try:
                with from_disk(buffer):
                    expected = content(buffer.sample(size))
            except NotEnoughDataError:
                continue
            after = buffer.engine.rng.bit_generator.state
            buffer.engine.rng.bit_generator.state = state
            assert content(buffer.sample(size)) == expected
            assert buffer.engine.rng.bit_generator.state == after
            state = after
    assert planned


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("config", CONFIGS + WIDE + DEFAULT_CHUNKS, ids=repr)
def test_as_python(path: str, config: Config) -> None:
    """Beside rows that no commit holds, another stream, eviction, a fork, going back; with all sizes of the cache."""
    cache = CACHES[len(config.name) % len(CACHES)]
    recording = Recording(config)
    with counted() as planned, config.create(path, cache_bytes=cache) as buffer:
        large = any(name not in stream.log.held for stream in buffer.engine.streams for name in stream.disk.rows)
        planned += [True] * (not large)
        for rows in (20, 31):
            recording.add(buffer, rows, 0.3)
            compare(buffer, planned)
        buffer.checkpoint("back")
        with reopen(config, path, stream="b", num_envs=1, capacity=17) as other:
            Recording(Config("b", config.obs, frame_stack=config.frame_stack, padding=config.padding,
                             stack_axis=config.stack_axis, several_actions=config.several_actions,
                             columns=config.columns), seed=1).add(other, 25, 0.3)  # fmt: skip
        buffer.refresh()
        compare(buffer, planned)
        with reopen(config, path, mode="r", cache_bytes=cache, seed=3) as reader:
            compare(reader, planned)
            assert forked(lambda: compare(reader, planned)) is None
            recording.add(buffer, 40)
            buffer.commit()  # evicts what the reader has
            compare(reader, planned)
    with counted() as again, reopen(config, path, checkpoint="back", cache_bytes=cache) as buffer:
        again += [True] * (not large)
        compare(buffer, again)
        Recording(config, seed=2)
        compare(buffer, again)
    assert any(planned)


SPACE = spaces.Box(0, 255, (40, 40), np.uint8)


def fill(path: str, rows: int = 100, **options: Any) -> np.ndarray:
    """A store of frames; what they are."""
    frames = np.random.default_rng(0).integers(0, 3, (rows + 1, 40, 40), np.uint8)
    options = {"capacity": 1000, "seed": 0, "chunk_rows": 4, "shard_rows": 16, "cache_bytes": 0, **options}
    with dr.ReplayBuffer.create(path, SPACE, spaces.Discrete(2), **options) as buffer:
        for obs, following in itertools.pairwise(frames):
            buffer.add(obs, 0, 0.0, following, False, False)
    return frames


def check(batch: Any, frames: np.ndarray) -> None:
    np.testing.assert_array_equal(batch.obs, frames[batch.index & ((1 << 48) - 1)])
    np.testing.assert_array_equal(batch.next_obs, frames[(batch.index & ((1 << 48) - 1)) + 1])


def test_a_batch_of_many_streams_is_one_plan_and_one_reading(path: str) -> None:
    """Where each stream had its own, a batch of 64 of them took 9 to 17 times that of one."""
    frames = fill(path, 30, stream="s0")
    for number in range(1, 9):
        with dr.ReplayBuffer.open(path, stream=f"s{number}", capacity=1000) as buffer:
            for obs, following in itertools.pairwise(frames[: 20 + number]):
                buffer.add(obs, 0, 0.0, following, False, False)
    calls = []
    make = compiled.reader

    def reader(*arguments: Any) -> Any:
        calls.append(arguments)
        return make(*arguments)

    with counted() as planned, dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:
        check(buffer.sample(60), frames)  # opens the shards
        planned.clear()
        with mock.patch.object(compiled, "reader", reader):
            for _ in range(5):
                calls.clear()
                batch = buffer.sample(60)
                check(batch, frames)
                assert len(set((batch.index >> 48).tolist())) > 4
                assert len(calls) <= 2  # the frames, and those that stand in the patch table
    assert planned == [True] * 5


def test_the_batches_of_a_pass(path: str) -> None:
    frames = fill(path)
    with counted() as planned, dr.ReplayBuffer.open(path, mode="r", seed=0) as buffer:
        rows = []
        for batch in buffer.shuffled(8):
            check(batch, frames)
            rows += batch.index.tolist()
        assert sorted(rows) == list(range(100))
    assert planned[1:] == [True] * (len(planned) - 1)
    assert len(planned) > 5


@pytest.mark.parametrize("way", ["not open", "closed by the pool", "somebody's files"])
def test_shards_that_are_not_open(path: str, way: str) -> None:
    files = FaultyFiles() if way == "somebody's files" else None
    frames = fill(path)
    with counted() as planned, dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0, files=files) as buffer:
        if way == "not open":
            next(iter(buffer.engine.streams)).disk.close_files()
        elif way == "closed by the pool":
            while handles.POOL.shed():
                pass
        for _ in range(5):
            check(buffer.sample(50), frames)
        assert all(planned)


def test_streams_whose_chunks_are_not_alike_are_read_apart(path: str) -> None:
    """Stacks in RAM: each log is one chunk, as long as its table."""
    space, frames = spaces.Box(0, 255, (2, 2), np.uint8), np.arange(31, dtype=np.uint8)[:, None, None] * np.ones((2, 2))
    options: dict[str, Any] = {"frame_stack": 3, "cache_bytes": 0}
    for stream, capacity in (("a", 20), ("b", 900)):
        with dr.ReplayBuffer.open_or_create(
            path, space, spaces.Discrete(2), stream=stream, capacity=capacity, **options
        ) as buffer:
            for obs, following in itertools.pairwise(frames):
                buffer.add(obs, 0, 0.0, following, False, False)
    with counted() as planned, dr.ReplayBuffer.open(path, mode="r", seed=0) as buffer:
        batch = buffer.sample(16)
        rows = batch.index & ((1 << 48) - 1)
        assert set((batch.index >> 48).tolist()) == {0, 1}
        for step in range(3):
            np.testing.assert_array_equal(batch.obs[:, step, 0, 0], np.maximum(rows - 2 + step, 0))
            np.testing.assert_array_equal(batch.next_obs[:, step, 0, 0], np.maximum(rows - 1 + step, 0))
        assert planned[0] is False
        assert planned[1:] == [True] * (len(planned) - 1)


def test_a_chunk_of_several_environments(path: str) -> None:
    """As of a column that was small enough for RAM before the window grew."""
    rng = np.random.default_rng(0)
    with dr.ReplayBuffer.create(
        path, spaces.Box(-1, 1, (30,), np.float32), spaces.Discrete(2), capacity=8, num_envs=2, seed=0
    ) as buffer:
        obs = rng.random((31, 2, 30), np.float32)
        for row in range(30):
            never = np.zeros(2, bool)
            buffer.add(obs[row], np.zeros(2, int), np.zeros(2), obs[row + 1], never, never)
        with residency.restored():
            residency.hold_windows_up_to(1000)
            buffer.resize(40)
            buffer.sample(8)  # opens the shard
            with counted() as planned:
                batch = buffer.sample(8)
            assert planned == [True]
        at = np.divmod(batch.index, 2)
        np.testing.assert_array_equal(batch.obs, obs[at])
        np.testing.assert_array_equal(batch.next_obs, obs[at[0] + 1, at[1]])


# Hostile rings


@pytest.mark.long
def test_nothing_outside_of_the_rings_is_looked_at() -> None:
    ended = fuzzed("reading.plan_fuzz", 20261124, examples(2000))
    assert sum(ended.values()) == examples(2000)
    assert min(ended["planned"], ended["refused"]) > examples(2000) // 10
