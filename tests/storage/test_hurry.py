"""Rows that come faster than they are compressed: their chunks are compressed lightly, and hold the same."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.schema.columns import Codec
from diskreplay.storage import column as columns

SPACE = Box(0, 255, (40, 40), np.uint8)


def frames(count: int) -> np.ndarray:
    """Something to compress: level 1 takes more bytes for it than level 9."""
    found = np.zeros((count, 40, 40), np.uint8)
    for at in range(count):
        found[at] = (np.arange(1600).reshape(40, 40) // 7 * (at % 13 + 1)) % 251
    return found


def written(path: pathlib.Path, how: str, codec: str) -> int:
    """The bytes of the frames on disk."""
    given = frames(200)
    with dr.ReplayBuffer.create(path, SPACE, Discrete(2), capacity=1000, codec=codec, chunk_rows=16) as buffer:
        zeros = np.zeros(199)
        if how == "extend":
            flags = np.zeros(199, bool)
            buffer.extend(given[:-1], np.zeros(199, int), zeros, given[1:], flags, flags)
        else:
            for at in range(199):
                buffer.add(given[at], 0, 0.0, given[at + 1], False, False)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        np.testing.assert_array_equal(buffer.get(np.arange(199)).obs, given[:-1])
        np.testing.assert_array_equal(buffer.zarr()["streams/0/obs"][:199, 0], given[:-1])
    assert verify(str(path)).ok
    return sum(file.stat().st_size for file in (path / "streams/0/obs").glob("c.*"))


@pytest.mark.own_thresholds
@pytest.mark.parametrize("codec", ["lz4hc:9", "zstd:9", "lz4", "none"])
def test_chunks_of_a_writer_in_a_hurry(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    monkeypatch.setattr(columns, "HANDED_BYTES", 64 * 1600)
    calm = written(tmp_path / "calm", "add", codec)
    monkeypatch.setattr(columns, "HURRY_BYTES", -1)
    hurried = written(tmp_path / "hurried", "add", codec)
    assert written(tmp_path / "extended", "extend", codec) == calm
    if codec in ("lz4hc:9", "zstd:9"):
        assert hurried != calm
    if codec == "none":
        assert hurried == calm


@pytest.mark.parametrize(("codec", "lightest"), [("lz4hc:9", "lz4hc:1"), ("zstd:3", "zstd:1"), ("none", "none")])
def test_the_lightest_of_a_codec(codec: Any, lightest: str) -> None:
    assert str(Codec.parse(codec).lightest) == lightest


@pytest.mark.own_thresholds
def test_chunks_that_leave_before_a_commit_are_forgotten(path: str) -> None:
    """Regression: they stayed compressed in RAM where no chunk of the window was worth a shard yet."""
    waiting, zeros, flags = [], np.zeros(2560), np.zeros(2560, bool)
    options = {"capacity": 16, "commit_rows": 1 << 30, "commit_seconds": 1e9}
    with dr.ReplayBuffer.create(path, Box(-1, 1, (4,), np.float32), Discrete(2), **options) as buffer:
        vectors = np.random.default_rng(0).random((2561, 4), np.float32)
        for count in (128, *[2560] * 12):
            given = vectors[: count + 1]
            buffer.extend(given[:-1], zeros[:count].astype(int), zeros[:count], given[1:], flags[:count], flags[:count])
            buffer.commit()
            columns = buffer.engine.appender.writer.columns.values()
            waiting.append(sum(each.size for column in columns for each in column.buffers.values()))
    assert max(waiting) < 2 * max(waiting[:3])
