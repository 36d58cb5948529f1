"""Frames kept as runs over a key: the bits that were added, in the form that is worth it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.effort import examples
from helpers.fuzzing import fuzzed
from reading.test_frames import compare, counted

import diskreplay as dr
from diskreplay.native import core
from diskreplay.reading import cache, compiled
from diskreplay.schema import columns

Frames = np.ndarray
ROWS = 90


@contextlib.contextmanager
def few_keys() -> Iterator[None]:
    """Few keys of small values, so that some are given up."""
    with mock.patch.object(cache, "MOST_KEYS", 2), mock.patch.object(columns, "PACKED_BYTES", 100):
        yield


def game(shape: tuple[int, ...], dtype: Any, count: int) -> Frames:
    """A background, another from the middle on, and something small that moves before it."""
    rng = np.random.default_rng(0)
    backgrounds = rng.integers(0, 200, (2, *shape)).astype(dtype)
    frames = np.array([backgrounds[2 * row // count] for row in range(count)])
    flat = frames.reshape(count, -1)
    for row in range(count):
        at = rng.integers(flat.shape[1], size=2)
        flat[row, at[0] : at[0] + 3] = 1
        flat[row, at[1] :][:5] = rng.integers(0, 2, len(flat[row, at[1] :][:5]))
    return frames


def noise(shape: tuple[int, ...], dtype: Any, count: int) -> Frames:
    return np.random.default_rng(1).integers(0, 255, (count, *shape)).astype(dtype)


def added(buffer: dr.ReplayBuffer, frames: Frames, first: int, last: int) -> None:
    """The rows ``[first, last)``; every twelfth ends an episode, with a final frame that is no row's."""
    for row in range(first, last):
        ends = row % 12 == 11
        buffer.add(frames[row], 0, float(row), frames[(row + 40) % ROWS if ends else row + 1], ends, False)


def check(buffer: dr.ReplayBuffer, frames: Frames) -> None:
    """Of all rows the frame itself and the next one; asked for twice, the second time some are cached."""
    buffer.draws.view = buffer.draws.shown = dr.Transition()
    for _ in range(2):
        batch = buffer.get(buffer.items())
        rows = batch.index & ((1 << 48) - 1)
        following = np.where(rows % 12 == 11, (rows + 40) % ROWS, rows + 1)
        for found, expected in ((batch.obs, frames[rows]), (batch.next_obs, frames[following])):
            newest = found[:, -1] if found.shape[1:] != expected.shape[1:] else found
            np.testing.assert_array_equal(newest, expected)


CASES: dict[str, tuple[Frames, int, int, str]] = {
    "grey": (game((20, 21), np.uint8, ROWS + 1), 4, 1, "runs"),
    "grey, a stack of 4": (game((20, 21), np.uint8, ROWS + 1), 4, 4, "runs"),
    "colour, channels last": (game((11, 13, 3), np.uint8, ROWS + 1), 3, 1, "runs"),
    "one row a chunk": (game((20, 20), np.uint8, ROWS + 1), 1, 2, "runs"),
    "floats": (game((9, 7), np.float32, ROWS + 1), 4, 2, "runs"),
    "integers of 8 bytes": (game((60,), np.int64, ROWS + 1), 4, 1, "runs"),
    "longer than a run can skip": (game((70_001,), np.uint8, ROWS + 1), 1, 1, "runs"),
    "noise": (noise((20, 21), np.uint8, ROWS + 1), 4, 4, "raw"),
    "noise, longer than a run can skip": (noise((70_001,), np.uint8, ROWS + 1), 1, 1, "raw"),
    "noise of floats": (np.random.default_rng(1).random((ROWS + 1, 9, 7), np.float32), 1, 1, "raw"),
    "small": (game((40,), np.uint8, ROWS + 1), 4, 1, "raw"),
}


def created(path: str, frames: Frames, chunk_rows: int, stack: int, **options: Any) -> dr.ReplayBuffer:
    given = {"capacity": 200, "shard_rows": 4 * chunk_rows, "commit_rows": 1 << 20, "commit_seconds": 1e9} | options
    residency.hold_up_to(8)
    return dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, frames.shape[1:], frames.dtype), spaces.Discrete(2), seed=0, frame_stack=stack,
        chunk_rows=chunk_rows, **given,
    )  # fmt: skip


@pytest.mark.long(quick=3)
@pytest.mark.own_thresholds
@pytest.mark.parametrize("case", CASES)
def test_what_is_kept_in_which_form(path: str, case: str) -> None:
    frames, chunk_rows, stack, form = CASES[case]
    with few_keys():
        with created(path, frames, chunk_rows, stack) as buffer:
            added(buffer, frames, 0, ROWS)
        with dr.ReplayBuffer.open(path, mode="r", seed=0) as buffer:
            check(buffer, frames)
            stats = buffer.stats()
            found = stats["cache"]
            assert found["runs"]["bytes"] + found["raw"]["bytes"] == stats["cache_used_bytes"]
            other = "raw" if form == "runs" else "runs"
            assert found[form]["rows"] > 4 * found[other]["rows"]
            assert found[form]["hit_rate"] > found[other]["hit_rate"]
            assert found["disk"]["hit_rate"] > 0
            assert sum(each["hit_rate"] for each in found.values()) == pytest.approx(1)
            if form == "runs":
                kept = found["runs"]["bytes"] / found["runs"]["rows"]
                assert kept < frames[0].nbytes / 2
            else:
                assert found["raw"]["bytes"] >= found["raw"]["rows"] * frames[0].nbytes


@pytest.mark.long(quick=2)
@pytest.mark.parametrize("cache_bytes", [0, 3000, 30_000, None])
@pytest.mark.parametrize("case", ["grey, a stack of 4", "one row a chunk", "colour, channels last", "noise"])
def test_as_from_the_disk(path: str, case: str, cache_bytes: int | None) -> None:
    """All views, beside rows that no commit holds, eviction, a fork, a refresh, going back."""
    frames, chunk_rows, stack, _ = CASES[case]
    options = {"cache_bytes": cache_bytes}
    with few_keys(), counted() as planned, created(path, frames, chunk_rows, stack, capacity=40, **options) as buffer:
        added(buffer, frames, 0, 30)
        compare(buffer, planned)
        buffer.checkpoint("back")
        with dr.ReplayBuffer.open(path, mode="r", seed=3, **options) as reader:
            added(buffer, frames, 30, 60)
            compare(buffer, planned)
            compare(reader, planned)
            child = os.fork()
            if not child:
                status = 1
                try:
                    compare(reader, planned)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
            buffer.commit()  # evicts what the reader has
            compare(reader, planned)
            reader.refresh()
            check(reader, frames)
            compare(reader, planned)
            used = reader.stats()["cache_used_bytes"]
            assert used <= (reader.stats()["cache_bytes"] if cache_bytes is None else cache_bytes)
    with few_keys(), counted(), dr.ReplayBuffer.open(path, checkpoint="back", **options) as buffer:
        compare(buffer, planned)
        other = game(frames.shape[1:], frames.dtype, ROWS + 1)[::-1]
        frames = np.concatenate([frames[:30], other[30:]])
        buffer.cut()
        added(buffer, frames, 30, 60)
        buffer.commit()
        compare(buffer, planned)
        assert planned


@pytest.mark.own_thresholds
def test_what_does_not_shrink_is_not_tried_for_ever(path: str) -> None:
    """Where the window is too large to be kept raw, no chunk of noise would ever come to an end of being tried."""
    frames = noise((20, 21), np.uint8, ROWS + 1)
    with counted(), created(path, frames, 2, 1, cache_bytes=6000) as buffer:
        added(buffer, frames, 0, ROWS)
        buffer.commit()
        with mock.patch.object(compiled, "pack", wraps=compiled.pack) as pack:
            for _ in range(3):
                check(buffer, frames)
            tried = pack.call_count
            for _ in range(3):
                check(buffer, frames)
        assert tried == pack.call_count >= cache.FIRST_TRIED
        assert buffer.stats()["cache"]["raw"]["rows"] == 0


def test_values_narrower_than_a_run_make_none() -> None:
    rows, block = np.arange(28, dtype=np.uint8).reshape(4, 7), np.empty(1000, np.uint8)
    assert core.pack(rows, rows[0], block) == 0


@pytest.mark.long
def test_no_block_of_runs_leads_outside_of_its_memory() -> None:
    ended = fuzzed("reading.run_fuzz", 20261124, examples(1500))
    assert sum(ended.values()) == 4 * examples(1500)
    assert min(ended.values()) > examples(1500) // 10
