"""verify --repair: a record that names other tails than those of its rows costs no row that is whole."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from ops.stores import content, fill, images, repaired

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.ops.repair import repair
from diskreplay.ops.verify import verify
from diskreplay.storage import metadata

SMALL = ("action", "reward", "terminated", "truncated", "valid", "start")
ROWS = 20
"""Of the window."""
Record = dict[str, Any]


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    """The window is full, and has moved on; there are commits after rows 9, 18, 27 and 31."""
    images(tmp_path / "a.replay", 31, capacity=2 * ROWS, shard_rows={"obs": 16, **dict.fromkeys(SMALL, 16)},
           chunk_rows={"obs": 4, **dict.fromkeys(SMALL, 4)}, codec="lz4:1")  # fmt: skip
    return tmp_path / "a.replay"


def read(store: pathlib.Path) -> Record:
    return json.loads((store / "streams" / "0" / "zarr.json").read_bytes())["attributes"]["diskreplay"]


def write(store: pathlib.Path, record: Record) -> None:
    """With the checksum that it must have: this is not damage."""
    document = metadata.group_document(record, "streams/0")
    (store / "streams" / "0" / "zarr.json").write_bytes(metadata.dump(document))


def check(store: pathlib.Path, record: Record, expected: dict[int, bytes]) -> None:
    """A store with this record is repaired, and every transition is there; it can be written on."""
    write(store, record)
    assert not verify(store).ok
    result = repaired(store)
    assert sum(loss.transitions for loss in result.streams) == 0
    assert content(store) == expected
    assert not repair(store).changed
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 3, seed=5)
    assert verify(store).ok
    after = content(store)
    assert min(after) >= min(expected)
    assert all(after[number] == value for number, value in expected.items() if number >= min(after))


@pytest.mark.long(quick=9)
@pytest.mark.parametrize("change", [
    {"begin": 10}, {"begin": 0}, {"begin": 32}, {"begin": 35}, {"end": 30}, {"end": 32}, {"end": 33}, {"patch_end": -1},
    {"patch_end": 1}, {"patch_end": 3}, {"patch_begin": 1}, {"begin": 32, "patch_begin": 1},
])  # fmt: skip
def test_one_number_is_wrong(store: pathlib.Path, change: Record) -> None:
    """No writer makes such a record. It is refused; a repair leaves a store that is whole, and nothing wrong in it."""
    expected, record = content(store), read(store)
    changed = dict(change)
    if "patch_end" in change:
        changed["patch_end"] = record["patch_end"] + change["patch_end"]
    if "patch_begin" in change:
        changed["patch_begin"] = record["patch_end"] + change["patch_begin"]
    write(store, {**record, **changed})
    with pytest.raises(CorruptionError):
        dr.ReplayBuffer.open(store)
    assert not verify(store).ok
    repaired(store)
    assert content(store).items() <= expected.items()
    assert not repair(store).changed


COLUMNS = ("obs", *SMALL, "patches/place", "patches/obs")


@pytest.mark.long(quick=5)
@pytest.mark.parametrize("which", [COLUMNS, COLUMNS[:1], COLUMNS[1:4], COLUMNS[:-2], COLUMNS[-2:], COLUMNS[-1:]])
@pytest.mark.parametrize("rows", [1, 9, 20])
def test_tails_of_an_older_commit(store: pathlib.Path, which: tuple[str, ...], rows: int) -> None:
    older = read(store)["tails"]
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, rows, seed=3, commit_every=100)
    expected, record = content(store), read(store)
    check(store, {**record, "tails": {**record["tails"], **{path: older[path] for path in which}}}, expected)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("which", [COLUMNS[:1], COLUMNS[1:4], COLUMNS[-2:], COLUMNS[-1:]])
@pytest.mark.parametrize("rows", [1, 9])
def test_tails_of_a_newer_commit(store: pathlib.Path, which: tuple[str, ...], rows: int) -> None:
    expected, record = content(store), read(store)
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("pins what the older window needs")
        fill(buffer, rows, seed=3, commit_every=100)
    newer = read(store)["tails"]
    check(store, {**record, "tails": {**record["tails"], **{path: newer[path] for path in which}}}, expected)


def test_an_older_record_with_all_tails_of_a_newer_one(store: pathlib.Path) -> None:
    """The rows are those of the record: the indexes that have them are found in front of those that are named."""
    expected, record = content(store), read(store)
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("pins what the older window needs")
        fill(buffer, 4, seed=3, commit_every=100)
    check(store, {**record, "tails": read(store)["tails"]}, expected)


@pytest.mark.long(quick=6)
@pytest.mark.parametrize("tail", [None, [0, 0], [1, 17], [7, 100], [1, 1 << 40]])
@pytest.mark.parametrize("which", [COLUMNS[:1], COLUMNS[2:5], COLUMNS[-2:], COLUMNS])
def test_tails_that_name_nothing(store: pathlib.Path, which: tuple[str, ...], tail: list[int] | None) -> None:
    expected, record = content(store), read(store)
    tails = {path: value for path, value in record["tails"].items() if path not in which}
    if tail is not None:
        tails |= dict.fromkeys(which, tail)
    check(store, {**record, "tails": tails}, expected)


def test_rows_that_an_older_index_knows_are_kept(store: pathlib.Path) -> None:
    """Regression: the last chunk of an older index was given up, with the rows in it that are whole."""
    older = read(store)
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 3, seed=3, commit_every=100)
    before, record = content(store), read(store)
    shard, size = older["tails"]["reward"]
    assert older["end"] % 4
    assert record["tails"]["reward"][0] > shard
    for file in (store / "streams" / "0" / "reward").glob(f"c.{shard + 1}.0"):
        file.unlink()
    path = store / "streams" / "0" / "reward" / f"c.{shard}.0"
    path.write_bytes(path.read_bytes()[:size])
    repaired(store)
    after = content(store)
    assert after.items() <= before.items()
    gone = {number // 2 for number in before.keys() - after.keys()}
    assert gone <= set(range(older["end"] - 1, record["end"]))


def test_a_number_that_nobody_could_have_written(store: pathlib.Path) -> None:
    """Then the stream goes back to a checkpoint, or is moved aside: there is nothing to go by."""
    write(store, {**read(store), "num_envs": 1 << 20, "capacity": 1 << 47, "end": 1 << 28})
    result = repair(store)
    assert result.ok
    assert result.streams[0].whole
