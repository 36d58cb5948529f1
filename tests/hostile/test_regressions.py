"""Damage that once gave wrong data, a hang, a crash, or touched what is not of the store."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die

import diskreplay as dr
from diskreplay.errors import CorruptionError, DamageWarning, DiskReplayError, ReadFailedError
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.storage import chunks, metadata, tail

BOX = spaces.Box(0, 255, (40, 40), np.uint8)


def make(path: pathlib.Path, rows: int = 40, stream: str = "0", first: int = 0, **options: Any) -> pathlib.Path:
    """Row ``i`` has ``first + i`` everywhere; chunks that are not compressed, so that all shards are of one size."""
    options = {"codec": {"obs": "none", "reward": "none", "action": "none"}, **options}
    sizes = {"chunk_rows": {"obs": 4, "reward": 4, "action": 4}, "shard_rows": {"obs": 8, "reward": 8, "action": 8}}
    if path.exists():
        buffer = dr.ReplayBuffer.open(path, stream=stream, commit_seconds=1e9)
    else:
        buffer = dr.ReplayBuffer.create(path, BOX, spaces.Discrete(300), capacity=100, **sizes, **options)
    with buffer:
        for row in range(first, first + rows):
            obs = np.full((40, 40), row % 256, np.uint8)
            buffer.add(obs, row, float(row), obs + 1, row % 10 == 9, False)
            if row % 5 == 4:
                buffer.commit()
    return path


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    return make(tmp_path / "a.replay")


def column(store: pathlib.Path, name: str, stream: str = "0") -> pathlib.Path:
    return store / "streams" / stream / name


def swap(one: pathlib.Path, other: pathlib.Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def refused(store: pathlib.Path, match: str, stream: str = "0") -> None:
    """Nobody gets a transition of it, and verify says where."""
    for options in ({"mode": "r", "cache_bytes": 0}, {"stream": stream}):
        with warnings.catch_warnings(), pytest.raises(CorruptionError, match=match):  # noqa: PT012
            warnings.simplefilter("ignore", DamageWarning)  # of another stream
            with dr.ReplayBuffer.open(store, **options) as buffer:
                for _ in buffer.shuffled(8):
                    pass
    assert any(problem.file for problem in verify(store).problems)


def edit(file: pathlib.Path, change: Callable[[dict[str, Any]], Any], node: str | None = None) -> None:
    """Changes our attributes of a document; with ``node``, its checksum is made to fit."""
    document = json.loads(file.read_bytes())
    ours = document["attributes"]["diskreplay"]
    change(ours)
    if node is not None:
        ours["checksum"] = metadata.checksum(ours, node)
    file.write_text(json.dumps(document))


# Wrong data


@pytest.mark.parametrize(
    ("name", "damage"), [("obs", swap), ("reward", swap), pytest.param("obs", shutil.copyfile, marks=pytest.mark.long)]
)
def test_a_shard_in_anothers_place(
    store: pathlib.Path, name: str, damage: Callable[[pathlib.Path, pathlib.Path], object]
) -> None:
    """All checksums fitted; rows came back under the numbers of others."""
    first, second = sorted(column(store, name).glob("c.*"))[:2]
    damage(first, second)
    refused(store, "of another file or another commit")


def test_a_shard_of_another_stream_or_column(store: pathlib.Path) -> None:
    make(store, stream="1", first=100)
    swap(column(store, "obs") / "c.1.0.0.0", column(store, "obs", "1") / "c.1.0.0.0")
    refused(store, "of another file or another commit")
    swap(column(store, "obs") / "c.1.0.0.0", column(store, "obs", "1") / "c.1.0.0.0")
    swap(column(store, "terminated") / "c.0.0", column(store, "truncated") / "c.0.0")
    refused(store, "of another file or another commit")


def test_a_shard_of_another_store(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = make(tmp_path / "b.replay", first=100)
    shutil.copyfile(column(other, "obs") / "c.1.0.0.0", column(store, "obs") / "c.1.0.0.0")
    refused(store, "of another file or another commit")


def test_a_full_shard_as_it_was_at_an_older_commit(store: pathlib.Path) -> None:
    """Its last chunk was partly filled then: the rows after that came back as zeros."""
    file = column(store, "obs") / "c.1.0.0.0"
    chunk, index = 4 * 1600 + 4, 2 * 16 + 4 + 4
    older = chunk + index + chunk  # chunks and indexes of the commits at rows 10 and 15, chunk 3 of three rows
    os.truncate(file, older + chunk + index)
    refused(store, "of another file or another commit|checksum of the shard's index|missing")
    assert not verify(store).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda ours: ours["settings"]["view"].update(gamma=0.5),
        lambda ours: ours["schema"]["columns"][0].update(shape=[80, 20]),
        lambda ours: ours["schema"]["columns"][2].update(dtype="int32"),
        lambda ours: ours["schema"].update(stacks=[{"frames": 2, "axis": None, "channels": False}]),
        lambda ours: ours["schema"].pop("identity"),
    ],
)
def test_an_edited_root(store: pathlib.Path, change: Callable[[Any], Any]) -> None:
    edit(store / "zarr.json", change)
    column(store, "start/root.json").unlink()
    for mode in ("r", "r+"):
        with pytest.raises(CorruptionError, match="checksum"):
            dr.ReplayBuffer.open(store, mode=mode)  # type: ignore[arg-type]
    assert "checksum" in verify(store).problems[0].what


RECORD_CHANGES: dict[str, Callable[[Any], Any]] = {
    "stream": lambda ours: ours.update(stream=1),
    "begin": lambda ours: ours["tables"].update(rows=[3, 40, 3]),
    "capacity": lambda ours: ours.update(capacity=90),
    "end": lambda ours: ours["tables"].update(rows=[0, 39, 0]),
    "patches": lambda ours: ours["tables"].update(patches=[1, 1, 1]),
    "shard": lambda ours: ours["arrays"]["obs"].__setitem__(0, 3),
    "tail": lambda ours: ours.update(tail=[0, 0, 0]),
}


@pytest.mark.parametrize("what", RECORD_CHANGES)
def test_an_edited_commit_record(store: pathlib.Path, what: str) -> None:
    """The one in the tail is read in its place; where there is none, nothing is."""
    edit(column(store, "zarr.json"), RECORD_CHANGES[what])
    assert "checksum" in verify(store).problems[0].what
    shown_from_the_tail(store, "r")
    lost = shutil.copytree(store, store.with_name("lost"))
    column(lost, "start/tail.1").unlink()
    refused(lost, "checksum")
    shown_from_the_tail(store, "r+")
    assert verify(store).ok


def shown_from_the_tail(store: pathlib.Path, mode: Any) -> None:
    """All rows are right, with a warning."""
    with pytest.warns(DamageWarning, match="the one in the stream's tail is read"):
        buffer = dr.ReplayBuffer.open(store, mode=mode, cache_bytes=0)
    with buffer:
        batch = buffer.get(buffer.items())
        assert batch.reward.tolist() == batch.action.tolist() == batch.obs[:, 0, 0].tolist() == list(range(40))


def test_the_record_of_another_stream(store: pathlib.Path) -> None:
    """An empty stream's record in place of a full one's: opening to write removed every shard."""
    with dr.ReplayBuffer.open(store, stream="1"):
        pass
    before = sorted(column(store, "obs").iterdir())
    swap(column(store, "zarr.json"), column(store, "zarr.json", "1"))
    refused(store, "checksum", stream="1")
    assert sorted(column(store, "obs").iterdir()) == before
    shutil.rmtree(store / "streams" / "1")
    shown_from_the_tail(store, "r+")
    assert sorted(column(store, "obs").iterdir()) == before


def test_the_document_of_another_checkpoint(store: pathlib.Path) -> None:
    """Going back to one discarded what the other one held."""
    for name in ("one", "two"):
        with dr.ReplayBuffer.open(store) as buffer:
            buffer.checkpoint(name)
        make(store, rows=5, first=50)
    swap(store / "checkpoints" / "one" / "zarr.json", store / "checkpoints" / "two" / "zarr.json")
    with pytest.raises(CorruptionError, match="checksum"):
        dr.ReplayBuffer.open(store, checkpoint="one")
    assert len(verify(store).problems) == 2


def test_the_priorities_of_another_checkpoint(tmp_path: pathlib.Path) -> None:
    store = make(tmp_path / "a.replay", sampler=dr.Proportional())
    with dr.ReplayBuffer.open(store) as buffer:
        for name in ("one", "two"):
            buffer.update_priorities(np.arange(20), np.arange(20.0) + len(buffer.checkpoints))
            buffer.checkpoint(name)
    (file,) = (store / "checkpoints" / "one").glob("*/c.*")
    shutil.copyfile(file, store / "checkpoints" / "two" / file.parent.name / file.name)
    with pytest.raises(CorruptionError, match="not those that were written"):
        dr.ReplayBuffer.open(store, mode="r", checkpoint="two")
    assert "not those that were written" in verify(store).problems[0].what


# What is not of the store


def test_a_link_out_of_the_store(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Opening to write cut what the link pointed to, and appended to it."""
    last = max(column(store, "obs").glob("c.*"))
    outside = tmp_path / "outside"
    outside.write_bytes(last.read_bytes() + b"more")
    last.unlink()
    last.symlink_to(outside)
    for mode in ("r", "r+"):
        with pytest.raises(DiskReplayError):
            dr.ReplayBuffer.open(store, mode=mode)  # type: ignore[arg-type]
    assert outside.read_bytes().endswith(b"more")
    assert verify(store).problems[0].file == str(last)


@pytest.mark.parametrize("below", ["streams", "streams/0", "streams/0/obs", "streams/0/cuts", "checkpoints/one"])
def test_a_directory_that_is_a_link(store: pathlib.Path, tmp_path: pathlib.Path, below: str) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    outside = tmp_path / "outside"
    shutil.move(store / below, outside)
    (store / below).symlink_to(outside)
    before = {file: file.stat().st_mtime_ns for file in outside.rglob("*")}
    with pytest.raises(CorruptionError, match="is a link"):
        dr.ReplayBuffer.open(store, checkpoint="one")
    assert {file: file.stat().st_mtime_ns for file in outside.rglob("*")} == before
    assert any("is a link" in problem.what for problem in verify(store).problems)


def test_a_cut_of_a_stream_elsewhere(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The name of a stream in a checkpoint was joined to the path as it is."""
    make(tmp_path / "b.replay", first=100)
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    name = "../../b.replay/streams/0"
    edit(
        store / "checkpoints" / "one" / "zarr.json",
        lambda ours: ours["cut"].update({name: ours["cut"].pop("0")}),
        "checkpoints/one",
    )
    with pytest.raises(CorruptionError, match="cannot name"):
        dr.ReplayBuffer.open(store, mode="r", checkpoint="one")


# Hangs and memory


@pytest.mark.parametrize(
    "below", ["zarr.json", "streams/0/zarr.json", "streams/0/obs/c.1.0.0.0", "streams/0/reward/c.0.0"]
)
def test_a_pipe_in_a_files_place(store: pathlib.Path, below: str) -> None:
    """Opening one waits until somebody writes to it."""
    (store / below).unlink()
    os.mkfifo(store / below)
    for mode in ("r", "r+"):
        with (
            pytest.raises((CorruptionError, ReadFailedError)),
            dr.ReplayBuffer.open(store, mode=mode, cache_bytes=0) as buffer,  # type: ignore[arg-type]
        ):
            for _ in buffer.shuffled(8):
                pass
    assert not verify(store).ok


@pytest.mark.long
def test_a_record_of_more_rows_than_any_disk_has(store: pathlib.Path) -> None:
    """verify and inspect went through the numbers of all shards."""

    def lie(ours: dict[str, Any]) -> None:
        ours.update(capacity=1 << 47)
        ours["tables"]["rows"] = [0, 1 << 46, 0]
        for path, array in ours["arrays"].items():
            if path != "cuts/place":
                ours["arrays"][path] = [((1 << 46) - 1) // array[4], array[1], 1 << 46, *array[3:]]

    edit(column(store, "zarr.json"), lie, "streams/0")
    assert not verify(store).ok
    assert inspect(store).health
    with pytest.raises(CorruptionError):
        dr.ReplayBuffer.open(store)


def test_a_record_of_more_environments_than_any_machine_has(store: pathlib.Path) -> None:
    """At most a million can be named; with fewer, chunks of one environment each would be as many files' entries."""
    edit(column(store, "zarr.json"), lambda ours: ours.update(num_envs=1 << 20, capacity=1 << 46), "streams/0")
    refused(store, ".")
    edit(column(store, "zarr.json"), lambda ours: ours.update(num_envs=1 << 40, capacity=1 << 46), "streams/0")
    assert not verify(store).ok
    shown_from_the_tail(store, "r")
    column(store, "start/tail.1").unlink()
    refused(store, "num_envs")


def test_an_index_entry_of_more_bytes_than_a_chunk_has(store: pathlib.Path) -> None:
    """The file is a hole of a terabyte, so that the entry lies inside; reading it asked for a terabyte of memory."""
    with dr.ReplayBuffer.open(store, mode="r") as buffer:
        identity = buffer.schema.identity
    file = column(store, "obs") / "c.1.0.0.0"
    index = np.array([[[0, 1 << 39]], [[0, 1 << 39]]], np.int64)
    with file.open("r+b") as handle:
        handle.seek(1 << 40)
        handle.write(chunks.encode_index(index, f"{identity}/0/obs/1/16"))
    refused(store, "points outside")


def test_deeply_nested_documents(store: pathlib.Path) -> None:
    text = (store / "zarr.json").read_text()
    column(store, "start/root.json").unlink()
    for deep in ("[" * 100_000, "[" * 900 + "]" * 900, '{"kind": "Tuple", "spaces": [' * 300 + "]}" * 300):
        (store / "zarr.json").write_text(text.replace('"padding": "zeros"', f'"padding": {deep}'))
        with pytest.raises(DiskReplayError):
            dr.ReplayBuffer.open(store)


def forged_tail(store: pathlib.Path, parts: bytes) -> None:
    """Gives the only block of a tail another list of parts, with the right seal, and a record that names it."""
    file = column(store, "start/tail.1")
    data, seal = file.read_bytes(), json.loads((store / "zarr.json").read_bytes())
    listed, said, _ = tail.HEAD.unpack_from(data)
    rest = data[tail.HEAD.size + listed : -chunks.CRC_BYTES]
    size = tail.HEAD.size + len(parts) + len(rest) + chunks.CRC_BYTES
    body = tail.HEAD.pack(len(parts), said, size) + parts + rest
    identity = seal["attributes"]["diskreplay"]["schema"]["identity"]
    file.write_bytes(body + tail._sealed(f"{identity}/0/tail/1", 0, body))
    edit(column(store, "zarr.json"), lambda ours: ours["tail"].__setitem__(1, size), "streams/0")


NO_NUMBERS = "x", None, -1, 1 << 40, 1 << 60, 10**400, 0.5, [1], {}, True
NO_LISTS = "[" * 100_000, "3", "[3]", "[[]]", '{"a":1}', "null", '[[[],0,1,2,"raw"]]', "\ud800", '[["obs",0,1]]', "NaN"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_forged_parts_of_a_tail(tmp_path: pathlib.Path, at: int) -> None:
    """Of all parts the number at one place is another: rows, bytes, or nothing that can be one."""
    store = tmp_path / "a"
    with dr.ReplayBuffer.create(store, BOX, spaces.Discrete(300), capacity=100, commit_seconds=1e9) as buffer:
        for row in range(9):
            buffer.add(np.full((40, 40), row), row, float(row), np.full((40, 40), row + 1), False, False)
        buffer.commit()
        die(buffer)
    data = column(store, "start/tail.1").read_bytes()
    parts = json.loads(data[tail.HEAD.size : tail.HEAD.size + tail.HEAD.unpack_from(data)[0]])
    forged = [[[*part[:at], number, *part[at + 1 :]] for part in parts] for number in NO_NUMBERS]
    for text in [*map(json.dumps, forged), *NO_LISTS]:
        forged_tail(store, text.encode("utf-8", "surrogatepass"))
        with pytest.raises(CorruptionError, match=r"tail\.1|neither in the shards"):
            dr.ReplayBuffer.open(store)
        with warnings.catch_warnings(), contextlib.suppress(CorruptionError):
            warnings.simplefilter("ignore", DamageWarning)
            with dr.ReplayBuffer.open(store, mode="r") as reader:
                assert len(reader) == 0
        assert not verify(store).ok


# Named errors


def test_a_checkpoint_of_a_stream_that_is_gone(store: pathlib.Path) -> None:
    make(store, stream="1", first=100)
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    column(store, "zarr.json", "1").unlink()
    with pytest.warns(DamageWarning, match="the one in the stream's tail is read"):
        buffer = dr.ReplayBuffer.open(store, mode="r", checkpoint="one")
    with buffer:
        assert sorted(buffer.get(buffer.items()).reward) == [*range(40), *range(100, 140)]
    shutil.rmtree(store / "streams" / "1")
    with pytest.raises(CorruptionError, match="missing"):
        dr.ReplayBuffer.open(store, mode="r", checkpoint="one")


def test_a_link_to_itself(store: pathlib.Path) -> None:
    """The system's own error came out."""
    file = column(store, "obs") / "zarr.json"
    file.unlink()
    file.symlink_to(file)
    assert inspect(store).stored_bytes
    assert not verify(store).ok


@pytest.mark.parametrize("below", ["streams", "streams/0", "streams/0/cuts", "streams/0/obs", "checkpoints"])
def test_a_directory_that_is_a_link_to_itself(store: pathlib.Path, below: str) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    shutil.rmtree(store / below)
    (store / below).symlink_to(store / below)
    assert not verify(store).ok
    assert inspect(store).health or below == "checkpoints"
    for checkpoint in (None, "one"):
        for mode in ("r", "r+"):
            if (below, checkpoint) != ("checkpoints", None):
                with pytest.raises(DiskReplayError):
                    dr.ReplayBuffer.open(store, mode=mode, checkpoint=checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999", "9" * 5000, '"\\ud800"'])
def test_numbers_that_are_none(store: pathlib.Path, text: str) -> None:
    column(store, "start/tail.1").unlink()  # else the record in it is read in place of one that cannot be
    for name in ("sequence", "time", "num_envs"):
        kept = column(store, "zarr.json").read_text()
        value = json.dumps(json.loads(kept)["attributes"]["diskreplay"][name])
        assert f'"{name}": {value}' in kept
        column(store, "zarr.json").write_text(kept.replace(f'"{name}": {value}', f'"{name}": {text}'))
        with pytest.raises(CorruptionError):
            dr.ReplayBuffer.open(store)
        column(store, "zarr.json").write_text(kept)


def test_verify_names_a_random_state_that_cannot_be_restored(store: pathlib.Path) -> None:
    """Only opening the checkpoint did."""
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    file = store / "checkpoints" / "one" / "zarr.json"
    edit(file, lambda ours: ours["state"]["rng"].pop("uinteger"), "checkpoints/one")
    (problem,) = verify(store).problems
    assert problem.file == str(file)


def test_the_end_of_a_file_is_not_taken_for_a_checkpoints(store: pathlib.Path) -> None:
    """A full shard that was cut to the length that a checkpoint names has a whole index, but not its own."""
    make(store, rows=5, first=40)
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
    make(store, rows=15, first=45)
    attributes = json.loads((store / "checkpoints" / "one" / "zarr.json").read_bytes())["attributes"]
    shard, length, *_ = attributes["diskreplay"]["cut"]["0"]["arrays"]["reward"]
    os.truncate(column(store, "reward") / f"c.{shard}.0", length)
    assert any(problem.column == "reward" for problem in verify(store).problems)


@pytest.mark.parametrize("missing", ["checksum", "identity"])
def test_a_store_without_checksums_or_identity_is_refused(store: pathlib.Path, missing: str) -> None:
    """Regression: where the checksum was left out, nothing was checked; without an identity nothing was sealed."""
    if missing == "identity":
        edit(store / "zarr.json", lambda ours: ours["schema"].pop("identity"), node="")
    else:
        edit(column(store, "zarr.json"), lambda ours: ours.pop("checksum"))
        column(store, "start/tail.1").unlink()  # else the record in it is read
    for mode in ("r", "r+"):
        with pytest.raises(CorruptionError, match=missing):
            dr.ReplayBuffer.open(store, mode=mode)  # type: ignore[arg-type]
    assert missing in verify(store).problems[0].what
