"""verify: quiet on every store that the engine makes, and exact about every kind of damage."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from gymnasium import spaces
from helpers.damage import flip
from ops.stores import IMAGE, fill, images

import diskreplay as dr
from diskreplay.errors import CheckpointError, CorruptionError, NotAStoreError, StoreExistsError, StoreNotFoundError
from diskreplay.ops import verify_chunks
from diskreplay.ops.checkpoints import drop, restore
from diskreplay.ops.problems import Problem
from diskreplay.ops.verify import verify
from diskreplay.reading import compiled
from diskreplay.storage import chunks, metadata


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    images(tmp_path / "a.replay")
    return tmp_path / "a.replay"


def stream(store: pathlib.Path) -> pathlib.Path:
    return store / "streams" / "0"


def edit(file: pathlib.Path, change: Any) -> None:
    """With the checksum that fits: what it would notice, the other rules do."""
    document = json.loads(file.read_bytes())
    change(document)
    ours = document["attributes"].get("diskreplay")
    if ours:
        store = next(parent for parent in file.parents if parent.suffix == ".replay")
        node = file.parent.relative_to(store).as_posix()
        ours["checksum"] = metadata.checksum(ours, "" if node == "." else node)
    file.write_text(json.dumps(document))


def record_of(store: pathlib.Path) -> dict[str, Any]:
    return json.loads((stream(store) / "zarr.json").read_bytes())["attributes"]["diskreplay"]


def index_of(store: pathlib.Path, column: str, shard: int, chunk_count: int, groups: int) -> np.ndarray:
    (file,) = (stream(store) / column).glob(f"c.{shard}.*")
    data = file.read_bytes()
    return chunks.decode_index(data[-chunks.index_bytes(chunk_count * groups) :], chunk_count, groups, len(data))


def only(store: pathlib.Path) -> Problem:
    (problem,) = verify(store).problems
    return problem


def test_a_healthy_store_has_no_problem(store: pathlib.Path) -> None:
    seen: list[tuple[int, int]] = []
    result = verify(store, lambda done, total: seen.append((done, total)))
    assert result.ok
    assert not result.problems
    assert (result.streams, result.checkpoints) == (1, 0)
    assert result.chunks > 2 * 13  # 50 rows in chunks of 4, for each environment, and the small columns
    assert seen[-1][0] <= seen[-1][1]
    assert seen == sorted(seen)
    assert json.loads(json.dumps(result.to_json()))["ok"] is True


def test_an_empty_store_has_no_problem(path: str) -> None:
    images(path, rows=0)
    assert verify(path).ok


@pytest.mark.long
@pytest.mark.parametrize("both_thresholds", ["own thresholds", "small thresholds"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
def test_stores_with_everything_in_them_have_no_problem(path: str, seed: int, both_thresholds: None) -> None:
    """Stacked input with odd stacks, unflagged cuts, evictions, checkpoints, a second stream, a return, a writer."""
    rng = np.random.default_rng(seed)
    stack = spaces.Box(0, 255, (3, 40, 40), np.uint8)
    layout = {"chunk_rows": {"obs": 4}, "shard_rows": {"obs": 8}}
    with dr.ReplayBuffer.create(path, stack, spaces.Discrete(3), capacity=30, frame_stack=3, **layout) as buffer:
        obs = rng.integers(0, 256, (3, 40, 40), np.uint8)
        for step in range(120):
            if rng.random() < 0.1:
                obs = rng.integers(0, 256, (3, 40, 40), np.uint8)
            if rng.random() < 0.1:
                obs = np.repeat(obs[:1], 3, axis=0)
            newest = rng.integers(0, 256, (1, 40, 40), np.uint8)
            following = np.concatenate([obs[1:] if rng.random() < 0.9 else newest.repeat(2, 0), newest])
            done = bool(rng.random() < 0.1)
            buffer.add(obs, 1, 1.0, following, done, False, valid=bool(rng.random() < 0.9))
            obs = following
            if rng.random() < 0.2:
                buffer.commit()
            if step in (40, 70):
                buffer.checkpoint(f"at-{step}")
        assert verify(path).ok  # beside its writer
    with dr.ReplayBuffer.open(path, stream="other", num_envs=2, capacity=20) as buffer:
        several = rng.integers(0, 256, (2, 3, 40, 40), np.uint8)
        for _ in range(30):
            buffer.add(several, [0, 1], [0.0, 1.0], several, [False, True], [False, False])
    result = verify(path)
    assert result.ok
    assert (result.streams, result.checkpoints) == (2, 2)
    with dr.ReplayBuffer.open(path, checkpoint="at-70") as buffer:
        assert verify(path).ok
        buffer.add(obs, 1, 1.0, obs, False, False)
    assert verify(path).ok


def test_a_flipped_byte_in_a_chunk(store: pathlib.Path) -> None:
    offset, size = index_of(store, "obs", 1, 4, 2)[2, 1].tolist()
    flip(stream(store) / "obs" / "c.1.0.0.0", offset + size // 2)
    problem = only(store)
    assert (problem.stream, problem.column, problem.rows) == ("0", "obs", (24, 28))
    assert problem.file == str(stream(store) / "obs" / "c.1.0.0.0")
    assert problem.offset == offset
    assert "chunk 6 of environment 1: the checksum does not match" in str(problem)


Damage = Callable[[pathlib.Path, int], object]
SHARDS: dict[str, tuple[str, Damage, tuple[int, int], str]] = {
    "a flipped byte in an index": ("obs/c.2.0.0.0", lambda file, size: flip(file, size - 10), (32, 48), "index"),
    "a truncated last shard": (
        "obs/c.3.0.0.0", lambda file, size: os.truncate(file, size - 7), (48, 64), "{} of its {} committed bytes"),
    "a truncated full shard": ("obs/c.0.0.0.0", lambda file, size: os.truncate(file, 5), (0, 16), ""),
    "a deleted shard": ("action/c.0.0", lambda file, size: file.unlink(), (0, 1024), "missing"),
}  # fmt: skip
OFFSETS: dict[str, Callable[[int], int]] = {
    "a flipped byte in an index": lambda size: size - chunks.index_bytes(8), "a truncated full shard": lambda size: 0,
}  # fmt: skip


@pytest.mark.own_thresholds
@pytest.mark.parametrize("name", SHARDS)
def test_a_damaged_shard(store: pathlib.Path, name: str) -> None:
    below, damage, rows, said = SHARDS[name]
    file = stream(store) / below
    size = file.stat().st_size
    damage(file, size)
    problem = only(store)
    column = below.partition("/")[0]
    assert (problem.stream, problem.column, problem.rows, problem.file) == ("0", column, rows, str(file))
    assert name not in OFFSETS or problem.offset == OFFSETS[name](size)
    assert said.format(size - 7, size) in problem.what


@pytest.mark.own_thresholds
def test_every_problem_is_named(store: pathlib.Path) -> None:
    offset, size = index_of(store, "obs", 0, 4, 2)[0, 0].tolist()
    flip(stream(store) / "obs" / "c.0.0.0.0", offset + size - 1)
    (stream(store) / "obs" / "c.1.0.0.0").unlink()
    (stream(store) / "reward" / "c.0.0").unlink()
    assert sorted((p.column, p.rows) for p in verify(store).problems) == [
        ("obs", (0, 4)),
        ("obs", (16, 32)),
        ("reward", (0, 1024)),
    ]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tables": {"rows": [0, 60, 0]}}, "nor in the tail"),
        ({"tables": {"rows": [51, 50, 0]}}, "nor begin end"),
        ({"tables": {"rows": [0, "50", 0]}}, "must be an integer"),
        ({"capacity": 10}, "must not hold more than 5 rows"),
        ({"tables": {"patches": [0, 100_000, 0]}}, "nor in the tail"),
        ({"arrays": {"obs": [3, 1 << 40, 50, 4, 16, 1, "zstd:1"]}}, "committed bytes"),
        ({"tail": [1, 9, 1]}, "tail.1"),
        ({"num_envs": 3}, "cannot have chunks of 2 environments"),
    ],
)
def test_an_edited_commit_record(store: pathlib.Path, change: dict[str, Any], expected: str) -> None:
    def put(document: dict[str, Any]) -> None:
        ours = document["attributes"]["diskreplay"]
        for key, value in change.items():
            ours[key] = {**ours[key], **value} if isinstance(value, dict) else value

    edit(stream(store) / "zarr.json", put)
    result = verify(store)
    assert not result.ok
    assert any(expected in problem.what for problem in result.problems), [problem.what for problem in result.problems]
    assert all(problem.stream == "0" for problem in result.problems)


def test_an_edited_row_count_within_the_chunk(store: pathlib.Path) -> None:
    """Fewer rows than were written: no index of a column of rows has the seal of so many."""

    def put(document: dict[str, Any]) -> None:
        ours = document["attributes"]["diskreplay"]
        ours["tables"]["rows"][1] -= 1
        for path in ("obs", "action", "reward", "terminated", "truncated", "valid", "start"):
            ours["arrays"][path][2] -= 1

    edit(stream(store) / "zarr.json", put)
    found = {problem.column for problem in verify(store).problems}
    assert {"obs", "action", "reward", "terminated", "truncated", "valid", "start"} <= found


@pytest.mark.parametrize("column", ["obs", "reward", "valid", "cuts/place"])
def test_a_record_that_names_other_shards(store: pathlib.Path, column: str) -> None:
    """Those of a newer commit, or of none: an index knows of what rows it is."""
    older = record_of(store)
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 9, seed=3)
    newer = record_of(store)
    stored = newer["arrays"][column]
    others = [[0, 1, *stored[2:]], [stored[0], 17, *stored[2:]], [7, 100, *stored[2:]]]
    cases = [(newer, to) for to in others]
    if stored != older["arrays"][column]:  # else closing kept the new rows of the column in the tail
        cases.append((older, stored))
    for record, to in cases:
        forged = {**record, "arrays": {**record["arrays"], column: to}}
        edit(stream(store) / "zarr.json", lambda document, to=forged: document["attributes"].update(diskreplay=to))
        found = verify(store).problems
        assert column in {problem.column for problem in found} or repr(column) in found[0].what


@pytest.mark.parametrize(
    ("key", "value"),
    [("shape", [48, 2, 40, 40]), ("shape", [65, 2, 40, 40]), ("shape", [64, 3, 40, 40]), ("data_type", "int8")],
)
def test_wrong_array_metadata(store: pathlib.Path, key: str, value: Any) -> None:
    file = stream(store) / "obs" / "zarr.json"
    edit(file, lambda document: document.update({key: value}))
    problem = only(store)
    assert (problem.column, problem.file) == ("obs", str(file))
    assert key in problem.what


@pytest.mark.parametrize("name", ["streams/zarr.json", "checkpoints/zarr.json", "streams/0/cuts/zarr.json"])
def test_missing_or_foreign_groups(store: pathlib.Path, name: str) -> None:
    (store / name).unlink()
    assert only(store).file == str(store / name)
    (store / name).write_text('{"zarr_format": 3, "node_type": "array"}')
    assert "group" in only(store).what
    (store / name).write_text("[")
    assert "JSON" in only(store).what


def test_two_streams_with_one_number(store: pathlib.Path) -> None:
    shutil.copytree(stream(store), store / "streams" / "copy")
    assert "the document was changed, or moved" in only(store).what
    edit(store / "streams" / "copy" / "zarr.json", lambda document: None)
    assert "is that of" in only(store).what


def test_damaged_checkpoints(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    file = store / "checkpoints" / "one" / "zarr.json"
    kept = file.read_bytes()

    edit(file, lambda document: document["attributes"]["diskreplay"]["cut"]["0"]["tables"].update(rows=[0, 60, 0]))
    assert "does not come before" in " ".join(p.what for p in verify(store).problems)
    file.write_bytes(kept)
    edit(file, lambda document: document["attributes"]["diskreplay"]["cut"].update(gone=record_of(store)))
    assert "'gone', which does not exist" in only(store).what
    file.write_text("{}")
    assert only(store).file == str(file)


def test_rows_that_only_a_checkpoint_needs(path: str) -> None:
    images(path, rows=20, num_envs=1, capacity=24, chunk_rows={"obs": 4}, shard_rows={"obs": 4})
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("early")
        fill(buffer, 60, seed=3)
        buffer.checkpoint("late")
    store = pathlib.Path(path)
    assert verify(store).ok
    file = stream(store) / "obs" / "c.1.0.0.0"
    assert file.exists()
    file.unlink()
    assert only(store).file == str(file)
    assert verify(store).checkpoint is None  # there is nothing to go back for
    with dr.ReplayBuffer.open(path) as buffer:  # the window itself is whole
        buffer.sample(8)


# What can be done


def cut_file(file: pathlib.Path, part: float = 0.5) -> None:
    os.truncate(file, int(part * file.stat().st_size))


@pytest.mark.filterwarnings("ignore:the root document .* its copy:diskreplay.errors.DamageWarning")
@pytest.mark.long(quick=5)
@pytest.mark.parametrize(
    ("below", "part", "expected"),
    [
        ("streams/0/obs/c.5.0.0.0", 0.5, "two"), ("streams/0/obs/c.4.0.0.0", 0.99, "two"),
        ("streams/0/obs/c.4.0.0.0", 0.5, "one"), ("streams/0/obs/c.4.0.0.0", 0, "one"),
        ("streams/0/obs/c.1.0.0.0", 0.5, None), ("streams/0/zarr.json", 0.5, None),
        ("streams/0/obs/zarr.json", 0.5, None), ("streams/zarr.json", 0.5, None),
        ("checkpoints/two/zarr.json", 0.5, None), ("zarr.json", 0.5, None),
    ],
)  # fmt: skip
def test_the_newest_whole_checkpoint_is_named(
    store: pathlib.Path, below: str, part: float, expected: str | None
) -> None:
    """Rows 0 to 60 are those of the first, to 78 those of the second; then some that no checkpoint has.

    A shard of 16 rows without its newest index still has that of the second.
    """
    for name, rows in (("one", 10), ("two", 18), ("", 10)):
        with dr.ReplayBuffer.open(store) as buffer:
            fill(buffer, rows, seed=rows)
            if name:
                buffer.checkpoint(name)
    cut_file(store / below, part) if part else flip(store / below, 100)
    result = verify(store)
    assert result.problems
    assert result.checkpoint == expected == json.loads(json.dumps(result.to_json()))["checkpoint"]
    if expected:
        with dr.ReplayBuffer.open(store, mode="r", checkpoint=expected) as buffer:
            assert sum(map(len, buffer.shuffled(16))) == len(buffer)
    if expected == "one":
        with pytest.raises(CheckpointError, match=r"drop them first .*, or open the checkpoint with mode='r'"):
            restore(store, "one")
        if part:  # without an index of the newest rows nobody can write, and so not drop
            return
        drop(store, ["two"])
    if expected:
        restore(store, expected)
        assert verify(store).ok


def test_a_checkpoint_without_the_damaged_stream_is_not_named(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("before the other")
    with dr.ReplayBuffer.open(store, stream="other") as buffer:
        fill(buffer, 20)
    cut_file(store / "streams/other/obs/c.1.0.0.0")
    assert verify(store).problems
    assert verify(store).checkpoint is None


def test_checkpoints_of_one_end_and_other_windows(path: str) -> None:
    """Of the second, which has no row, nothing is left to check once the first is."""
    images(path, rows=20, num_envs=1)
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("a")
        buffer.clear()
        buffer.checkpoint("b")
    assert verify(path).problems == ()
    dr.ReplayBuffer.open(path, checkpoint="a").close()
    assert verify(path).problems == (), "what was cleared is there again"


# Chunks with the right checksum that break a rule: forged where the column is not compressed.

PLAIN = {name: "none" for name in ("start", "valid", "terminated", "reward")}


def forge(store: pathlib.Path, column: str, row: int, env: int, value: Any) -> None:
    """Replaces one value of an uncompressed resident column, checksum included."""
    document = json.loads((stream(store) / column / "zarr.json").read_bytes())
    dtype, sharding = document["data_type"], document["codecs"][0]["configuration"]
    chunk_rows = sharding["chunk_shape"][0]
    count = document["chunk_grid"]["configuration"]["chunk_shape"][0] // chunk_rows
    chunk, at = divmod(row, chunk_rows)
    shard, chunk = divmod(chunk, count)
    file = stream(store) / column / f"c.{shard}.0"
    offset, size = index_of(store, column, shard, count, 1)[chunk, 0].tolist()
    data = bytearray(file.read_bytes())
    values = np.frombuffer(bytes(data[offset : offset + size - 4]), dtype).reshape(-1, 2).copy()
    values = values.view(np.uint8) if dtype == "bool" else values
    values[at, env] = value
    data[offset : offset + size] = chunks.seal(values.tobytes())
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("column", "row", "value", "expected"),
    [
        ("start", 20, 9, "start code"),
        ("start", 0, 0, "row 0 of environment 1: it continues a row that ended"),
        ("start", 20, 3, "older frames are patches"),
        ("valid", 20, 0, "it is no transition, but continues"),
        ("valid", 20, 2, "neither 0 nor 1"),
        ("reward", 20, np.nan, "not finite"),
        ("terminated", 19, 1, "row 20 of environment 1: it continues a row that ended"),
    ],
)
def test_rows_that_break_a_rule(path: str, column: str, row: int, value: Any, expected: str) -> None:
    images(path, codec=PLAIN)
    store = pathlib.Path(path)
    assert verify(store).ok
    assert zarr.open_array(stream(store) / "start", mode="r")[20, 1] == 0  # the forged row continues the one before
    forge(store, column, row, 1, value)
    problems = verify(store).problems
    assert any(expected in problem.what for problem in problems), problems
    assert {problem.column for problem in problems} <= {column, "start"}
    assert all(problem.rows and problem.rows[0] <= row + 1 and problem.rows[1] > row - 1 for problem in problems)


@pytest.mark.own_thresholds
@pytest.mark.parametrize("portion", [1, 300, verify_chunks.PORTION_BYTES])
def test_the_core_finds_what_python_finds(path: str, portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In full chunks: damage, and values that break a rule."""
    small = dict.fromkeys((*PLAIN, "obs"), 4)
    images(path, codec=PLAIN, chunk_rows=small, shard_rows=dict.fromkeys(small, 16))
    for column, row, value in (("reward", 20, np.nan), ("terminated", 3, 2), ("valid", 30, 9)):
        forge(pathlib.Path(path), column, row, 1, value)
    for shard, chunk in ((0, 3), (1, 0), (1, 2)):
        places = index_of(pathlib.Path(path), "obs", shard, 4, 2)
        flip(stream(pathlib.Path(path)) / f"obs/c.{shard}.0.0.0", places[chunk, 1, 0])
    monkeypatch.setattr(verify_chunks, "PORTION_BYTES", portion)
    monkeypatch.setattr(compiled, "LEAST_PIECES", 1)
    found = verify(path)
    monkeypatch.setattr(compiled, "CALLS", None)
    alone = verify(path)
    assert (found.problems, found.chunks, found.bytes) == (alone.problems, alone.chunks, alone.bytes)
    assert sum("checksum" in problem.what for problem in found.problems) == 3
    assert {"reward", "terminated", "valid"} <= {problem.column for problem in found.problems}


def test_what_is_no_store(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreNotFoundError):
        verify(tmp_path / "nothing")
    with pytest.raises(NotAStoreError):
        verify(tmp_path)


@pytest.mark.parametrize(
    "left", [None, b"", b"{", b"\0" * 900, b"{}", b'{"zarr_format":3,"node_type":"group"}', b"[]"],
    ids=["missing", "empty", "cut", "zeros", "bare", "another's", "a list"],
)  # fmt: skip
def test_a_store_that_lost_its_root_document_is_one(store: pathlib.Path, left: bytes | None) -> None:
    root = store / "zarr.json"
    (store / "streams/0/start/root.json").unlink()
    whole = root.read_bytes()
    root.unlink()
    if left is not None:
        root.write_bytes(left)
    said = "the root document .*zarr.json' of a store is missing or damaged, .*: put that file back from a backup, or"
    new: dict[str, Any] = {"observation_space": IMAGE, "action_space": spaces.Discrete(5), "capacity": 200}
    for deed, more in ((dr.open, {}), (dr.ReplayBuffer.open, {}), (dr.ReplayBuffer.open_or_create, new)):
        with pytest.raises(CorruptionError, match=said) as told:
            deed(store, **more)
        assert told.value.file == str(root)
    assert "the root document" in only(store).what
    with pytest.raises(StoreExistsError):
        dr.ReplayBuffer.create(store, **new)
    root.write_bytes(whole)
    assert verify(store).ok


def test_a_folder_with_names_like_a_stores_is_none(tmp_path: pathlib.Path) -> None:
    for name in ("streams", "checkpoints"):
        (tmp_path / name).mkdir()
    with pytest.raises(NotAStoreError, match=r"it has no zarr\.json"):
        dr.open(tmp_path)
    zarr.create_group(str(tmp_path / "streams"))
    with pytest.raises(NotAStoreError, match=r"it has no zarr\.json"):
        dr.open(tmp_path)


def test_an_unreadable_schema_is_a_problem(store: pathlib.Path) -> None:
    edit(store / "zarr.json", lambda document: document["attributes"]["diskreplay"].update(schema={}))
    assert "schema" in only(store).what


def test_image_space_is_on_disk() -> None:
    """The tests above mean chunks of one environment each."""
    assert IMAGE.shape == (40, 40)
