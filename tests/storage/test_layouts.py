"""The layout of an array is its stream's, and fixed with its first chunk; who opens takes it from the record."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from gymnasium import spaces
from helpers import residency
from helpers.configs import Config
from helpers.model import Leaf
from helpers.recording import Recording

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.reading import compiled
from diskreplay.schema import layout
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

pytestmark = pytest.mark.own_thresholds


def check_bound(path: str | pathlib.Path, stream: str = "0") -> None:
    """Every array with chunks has the document of its record's layout."""
    store = Store(str(path), LocalFiles())
    commit = store.newest_commit(stream)
    assert commit.arrays
    for name, stored in commit.arrays.items():
        column = stored.column((store.schema.arrays | store.schema.logs)[name])
        rows = (stored.shard + 1) * stored.shard_rows
        expected = metadata.array_document(column, commit.envs(name), rows)
        assert metadata.read(LocalFiles(), f"{path}/streams/{stream}/{name}") == expected
    assert not list(verify(path).problems)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("width", [3, 40])
def test_a_reader_takes_the_layout_of_the_first_chunk(
    path: str, monkeypatch: pytest.MonkeyPatch, width: int, num_envs: int
) -> None:
    config = Config("own", Leaf((width,)), num_envs=num_envs, capacity=200 * num_envs, frame_stack=2, chunk_rows=0)
    recording = Recording(config)
    with config.create(path) as buffer:
        recording.add(buffer, 6, commit=True)
        with monkeypatch.context() as other:
            for name, rows in (("DISK_ROWS", 2), ("MAX_CHUNK_ROWS", 8)):
                other.setattr(layout, name, rows)
            reader = dr.ReplayBuffer.open(path, mode="r")
        with reader:
            recording.check(reader)
            column = reader.engine.streams.shown.disk.rows["obs"]
            assert column.column.chunk_rows == (2 if width > 8 else 8)
            recording.add(buffer, 60, special=0.2, commit=True)
            reader.refresh()
            recording.check(reader)
            buffer.close()
            reader.refresh()
            recording.check(reader)
            assert column.stored is not None
            assert column.column.chunk_rows == column.stored.chunk_rows == (16 if width > 8 else 32)
    check_bound(path)


def test_the_document_is_that_of_the_first_chunk(path: str) -> None:
    """The window of a stream grew before it had a chunk; how long shards of patches are turns out with theirs."""
    config = Config("own", Leaf((40,)), capacity=100_000, chunk_rows=0)
    recording = Recording(config)
    config.create(path, capacity=40).close()
    assert not list(verify(path).problems)
    with dr.ReplayBuffer.open(path, capacity=100_000):
        pass
    assert not list(verify(path).problems)
    with dr.ReplayBuffer.open(path) as buffer:
        assert buffer.engine.streams.shown.disk.rows["obs"].column.chunk_rows == layout.DISK_ROWS
        recording.add(buffer, 50, special=0.3)
    check_bound(path)
    with dr.ReplayBuffer.open(path, capacity=10_000_000) as buffer:
        bound = {name: column.column for name, column in buffer.engine.streams.shown.disk.columns.items()}
        recording.add(buffer, 50, special=0.3)
        recording.check(buffer)
    check_bound(path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        columns = buffer.engine.streams.shown.disk.columns
        assert {name: column.column for name, column in columns.items() if column.stored} == {
            name: column for name, column in bound.items() if columns[name].stored
        }


@pytest.mark.parametrize("code", ["Python", "compiled"])
@pytest.mark.parametrize("small", [8, 40], ids=["an environment a chunk", "all in a chunk"])
def test_streams_of_other_layouts_in_one_batch(
    path: str, monkeypatch: pytest.MonkeyPatch, code: str, small: int
) -> None:
    residency.hold_up_to(8)
    monkeypatch.setattr(layout, "SMALL_BYTES", small)
    space = spaces.Box(0, 255, (40,), np.uint8)
    dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=1000).close()
    for stream, num_envs, capacity in (("0", 1, 1000), ("b", 1, 12), ("c", 3, 2000), ("d", 3, 30)):
        with dr.ReplayBuffer.open(path, stream=stream, num_envs=num_envs, capacity=capacity) as buffer:
            for row in range(60):
                frames = np.arange(num_envs, dtype=np.uint8).repeat(40).reshape(num_envs, 40) + np.uint8(row * 3)
                no, value = np.zeros(num_envs, bool), frames[:, 0].astype(np.float32)
                step = frames, no.astype(int), value, frames + np.uint8(3), no, no
                buffer.add(*(part[0] if num_envs == 1 else part for part in step))
        check_bound(path, stream)
    if code == "Python":
        monkeypatch.setattr(compiled, "CALLS", None)
    with dr.ReplayBuffer.open(path, mode="r", seed=0, cache_bytes=0) as buffer:
        assert len({stream.disk.rows["obs"].chunk_items for stream in buffer.engine.streams}) > 1
        for _ in range(20):
            batch = buffer.sample(16)
            np.testing.assert_array_equal(batch.obs, np.broadcast_to(batch.reward[:, None], (16, 40)))
            np.testing.assert_array_equal(batch.next_obs, batch.obs + np.uint8(3))


def test_what_was_given_binds_all_streams(path: str) -> None:
    space = spaces.Box(0, 255, (300,), np.uint8)
    options = {"chunk_rows": 3, "shard_rows": {"action": 5000}, "codec": "zstd:2"}
    dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=1000, **options).close()
    for stream, capacity in (("b", 50), ("c", 1 << 30)):
        with dr.ReplayBuffer.open(path, stream=stream, num_envs=2, capacity=capacity) as buffer:
            rows = buffer.engine.streams.written.disk.rows
            assert (rows["obs"].column.chunk_rows, str(rows["obs"].column.codec)) == (3, "zstd:2")
            assert rows["action"].column.shard_rows == 5000
    assert Store(path, LocalFiles()).schema.column("reward").to_json() == {
        "name": "reward", "shape": [], "dtype": "float32"
    }  # fmt: skip
