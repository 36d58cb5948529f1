"""compact: what is dead goes, what is needed stays, whoever reads or dies meanwhile."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces
from helpers.damage import flip
from ops.stores import fill, images

import diskreplay as dr
from diskreplay.errors import CorruptionError, LockedError
from diskreplay.ops.compact import compact
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.storage import chunks, handles
from diskreplay.storage.local_files import LocalFiles


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    """Commits every 3 rows into chunks of 4, so that most chunks are written several times."""
    images(tmp_path / "a.replay", rows=0)
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as buffer:
        fill(buffer, 70, commit_every=3)
    return tmp_path / "a.replay"


def content(path: Any, **options: Any) -> dict[int, bytes]:
    with dr.ReplayBuffer.open(path, mode="r", **options) as buffer:
        return read(buffer)


def read(buffer: dr.ReplayBuffer) -> dict[int, bytes]:
    return {
        number: obs.tobytes() + following.tobytes()
        for batch in buffer.shuffled(16)
        for number, obs, following in zip(batch.index.tolist(), batch.obs, batch.next_obs, strict=True)
    }


@pytest.mark.long
def test_holes_are_given_back_and_nothing_else_changes(store: pathlib.Path) -> None:
    before = content(store)
    planned = compact(store, dry_run=True)
    assert content(store) == before
    result = compact(store)
    assert result.shards == planned.shards > 8
    assert planned.bytes_after == result.bytes_after < result.bytes_before == planned.bytes_before
    assert result.kept_bytes == planned.kept_bytes > 0
    assert content(store) == before
    assert verify(store).ok
    again = compact(store)
    assert (again.shards, again.bytes_before) == (0, again.bytes_after)
    assert json.loads(json.dumps(again.to_json()))["shards"] == 0
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 30, seed=1)
    assert verify(store).ok
    assert before.items() <= content(store).items()


@pytest.mark.long
def test_shards_whose_lengths_a_checkpoint_names_stay(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 7, seed=2)
        buffer.checkpoint("here")
        fill(buffer, 60, seed=3, commit_every=3)
    kept, before = content(store, checkpoint="here"), content(store)
    result = compact(store)
    assert result.shards
    assert content(store, checkpoint="here") == kept
    assert content(store) == before
    assert verify(store).ok
    with dr.ReplayBuffer.open(store, checkpoint="here") as buffer:
        buffer.drop_checkpoint("here")
    assert compact(store).kept_bytes < result.kept_bytes
    assert content(store) == kept


def test_leftovers_go(store: pathlib.Path) -> None:
    stream = store / "streams" / "0"
    left = [stream / "start" / ".tmp-commit", stream / "obs" / "c.900.0.0.0", stream / "obs" / "zarr.json.tmp"]
    for file in left:
        file.write_bytes(b"x" * 999)
    compact(store)
    assert not any(file.exists() for file in left)


def test_a_writer_forbids_it(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store, stream="other"), pytest.raises(LockedError, match="being written"):
        compact(store)
    with dr.ReplayBuffer.open(store):
        assert compact(store, dry_run=True).shards


def test_damage_stops_it(store: pathlib.Path) -> None:
    file = store / "streams" / "0" / "obs" / "c.1.0.0.0"
    data = file.read_bytes()
    (offset, size), *_ = np.frombuffer(data[-chunks.index_bytes(8) : -4], "<u8").reshape(8, 2).tolist()
    damaged = flip(file, offset + size // 2)
    with pytest.raises(CorruptionError):
        compact(store)
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("files", [1, 128])
def test_readers_go_on(store: pathlib.Path, files: int) -> None:
    """Regression: a reader that opened a compacted shard by its name had offsets of the file before."""
    expected = content(store)
    with (
        mock.patch.object(handles.POOL, "limit", return_value=files),
        dr.ReplayBuffer.open(store, mode="r", cache_bytes=0) as reader,
    ):
        ids = np.array(list(expected))
        reader.get(ids[:5])
        assert compact(store).shards
        for _ in range(3):
            assert read(reader) == expected
            reader.get(ids)


def test_a_reader_goes_on_after_its_last_shard_was_compacted(store: pathlib.Path) -> None:
    """Its record has the length of a file that is no more."""
    expected = content(store)
    with (
        mock.patch.object(handles.POOL, "limit", return_value=1),
        dr.ReplayBuffer.open(store, mode="r", cache_bytes=0) as reader,
    ):
        with dr.ReplayBuffer.open(store) as writer:
            fill(writer, 25, seed=5, commit_every=3)
        assert compact(store).shards
        assert expected.items() <= read(reader).items()


def test_damage_beside_a_newer_commit_is_still_an_error(store: pathlib.Path) -> None:
    file = store / "streams" / "0" / "obs" / "c.1.0.0.0"
    with dr.ReplayBuffer.open(store, mode="r", cache_bytes=0) as reader:
        with dr.ReplayBuffer.open(store) as writer:
            fill(writer, 5, seed=5)
        file.write_bytes(b"x" * file.stat().st_size)
        with pytest.raises(CorruptionError):
            reader.get(np.array(list(content(store))))


class Dies(Exception):
    pass


class DyingFiles(LocalFiles):
    """The local file system, of which nothing can be written any more after so many operations."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Dies

    def open(self, path: str, *, write: bool = False) -> Any:
        if write:
            self._spend()
        return super().open(path, write=write)

    def rename(self, source: str, target: str) -> None:
        self._spend()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._spend()
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._spend()
        super().mkdir(path)


@pytest.mark.long
def test_it_may_die_anywhere(tmp_path: pathlib.Path) -> None:
    images(tmp_path / "a.replay", rows=0)
    with dr.ReplayBuffer.open(tmp_path / "a.replay") as buffer:
        fill(buffer, 40, commit_every=3)
    expected = content(tmp_path / "a.replay")
    deaths = 0
    while True:
        try:
            compact(tmp_path / "a.replay", files=DyingFiles(deaths % 7))
            break
        except Dies:
            deaths += 1
        assert content(tmp_path / "a.replay") == expected
        assert verify(tmp_path / "a.replay").ok
    assert deaths > 7
    assert not [name for name in os.listdir(tmp_path / "a.replay" / "streams" / "0" / "start") if "tmp" in name]  # noqa: PTH208


def test_small_commits_of_ragged_rows_are_given_back(tmp_path: pathlib.Path) -> None:
    """Each leaves the partial chunk and the index before it as dead bytes, as of every column; full shards lose all."""
    line = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    sizes: dict[str, Any] = {name: {"tokens": rows} for name, rows in (("chunk_rows", 8), ("shard_rows", 32))}
    columns = {"tokens": ((None,), np.int32)}
    path = tmp_path / "a.replay"
    with dr.ReplayBuffer.create(path, *line, capacity=60, columns=columns, codec={"tokens": "none"}, **sizes) as rb:
        for row in range(40):
            rb.add(np.zeros(1), 0, 0.0, np.zeros(1), False, False, tokens=np.full(5, row))
            rb.commit()

    def stored() -> dict[int, int]:
        files = (path / "streams/0/ragged/tokens").glob("c.*")
        return {int(file.name.split(".")[1]): file.stat().st_size for file in files}

    index = len(chunks.encode_index(np.zeros((4, 1, 2), np.int64), "sealed"))
    chunk = 8 * 4 + chunks.CRC_BYTES
    whole = 4 * chunk + index
    before = stored()
    assert sorted(before) == list(range(7))
    assert before[6] == 2 * (chunk + index), "two commits"
    assert min(before[shard] for shard in range(6)) > 2 * whole
    column = next(one for one in inspect(path).columns if one.name == "ragged/tokens")
    assert column.stored_bytes == sum(before.values()) > 2 * column.raw_bytes
    assert compact(path, dry_run=True).kept_bytes >= chunk + index
    assert compact(path).shards >= 6
    assert stored() == {**dict.fromkeys(range(6), whole), 6: before[6]}
    assert verify(path).ok
