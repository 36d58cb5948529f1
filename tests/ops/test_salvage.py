"""Salvage by hand: what a lost file costs, what is said, what is refused, and what an interrupt leaves."""

from __future__ import annotations

import errno
import json
import pathlib
import shutil
import signal
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.commands import command, failure
from helpers.programs import run

import diskreplay as dr
from diskreplay.errors import CorruptionError, DiskFullError, InputError, NotAStoreError, StoreNotFoundError
from diskreplay.ops.salvage_streams import DamagedEpisode
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles

SIZES = {"chunk_rows": {"obs": 4}, "shard_rows": {"obs": 8}}
ROWS = 48
BOX = spaces.Box(-9, 9, (40,), np.float32)


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    """Episodes of twelve steps; row ``i`` has the reward ``i``; a checkpoint at row 24 with two files."""
    path = tmp_path / "a.replay"
    with dr.ReplayBuffer.create(path, BOX, spaces.Discrete(3), capacity=99, **SIZES) as buffer:
        add(buffer, 0, 24)
        buffer.checkpoint("early", {"step": 24}, attachments={"learner": b"weights" * 100, "note": b"n"})
        add(buffer, 24, ROWS)
    return path


def add(buffer: dr.ReplayBuffer, first: int, stop: int) -> None:
    for row in range(first, stop):
        if row % 12 == 0:
            buffer.begin_episode(seed=row)
        obs, following = (np.full(40, at, np.float32) for at in (row, row + 1))
        buffer.add(obs, row % 3, row, following, False, row % 12 == 11)


def rewards(path: pathlib.Path) -> list[list[int]]:
    """Of each episode."""
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        every = buffer.episodes
        return [buffer.get(buffer.items()[e.start : e.stop]).reward.astype(int).tolist() for e in every]


def shard(store: pathlib.Path, number: int) -> pathlib.Path:
    return store / f"streams/0/obs/c.{number}.0.0"


def out_of(store: pathlib.Path) -> pathlib.Path:
    return store.with_name("out.replay")


def test_a_whole_store_comes_out_whole(store: pathlib.Path) -> None:
    found = dr.salvage(store, out_of(store))
    assert (found.lossless, found.transitions, found.episodes) == (True, ROWS, 4)
    assert rewards(out_of(store)) == rewards(store)
    with dr.ReplayBuffer.open(out_of(store), mode="r") as buffer:
        assert [episode.facts for episode in buffer.episodes] == [{"seed": row} for row in range(0, ROWS, 12)]
    beside = out_of(store).with_name("out.replay.checkpoints") / "early"
    assert json.loads((beside / "metadata.json").read_text()) == {"step": 24}
    assert (beside / "attachments/learner").read_bytes() == b"weights" * 100
    assert found.files == ("early/learner", "early/note")


def test_a_lost_shard_costs_its_rows_and_the_step_before(store: pathlib.Path) -> None:
    shard(store, 2).unlink()
    found = dr.salvage(store, out_of(store))
    (stream,) = found.streams
    assert (found.lossless, stream.kept, stream.lost, stream.whole) == (False, 39, 9, 3)
    assert stream.damaged == (DamagedEpisode(0, 12, 24, 3),)
    assert rewards(out_of(store)) == [list(range(12)), [12, 13, 14], list(range(24, 36)), list(range(36, 48))]
    assert verify(out_of(store)).ok


@pytest.mark.parametrize("name", ["zarr.json", "streams/0/zarr.json", "streams/0/obs/c.2.0.0"])
def test_a_file_that_the_disk_does_not_give(store: pathlib.Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, opened = LocalFiles.read, LocalFiles.open

    def check(path: str) -> None:
        if path == str(store / name):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LocalFiles, "read", lambda self, path: (check(path), read(self, path))[1])
    monkeypatch.setattr(LocalFiles, "open", lambda self, path, **how: (check(path), opened(self, path, **how))[1])
    assert dr.salvage(store, out_of(store)).transitions == (39 if "c.2" in name else ROWS)


def test_runs_of_a_damaged_episode_keep_its_facts_and_lack_its_first_steps(store: pathlib.Path) -> None:
    data = bytearray(shard(store, 0).read_bytes())
    data[20] ^= 1  # the first chunk
    shard(store, 0).write_bytes(data)
    dr.salvage(store, out_of(store))
    with dr.ReplayBuffer.open(out_of(store), mode="r") as buffer:
        first = buffer.episodes[0]
        assert (first.length, first.complete_start, first.facts) == (8, False, {"seed": 0})


def test_a_dry_run_says_the_same_and_writes_nothing(store: pathlib.Path) -> None:
    shard(store, 2).unlink()
    names = sorted(store.parent.iterdir())
    tried = dr.salvage(store, out_of(store), dry_run=True)
    assert sorted(store.parent.iterdir()) == names
    done = dr.salvage(store, out_of(store))
    differ = {"dry_run", "stored_bytes", "seconds"}
    assert {k: v for k, v in tried.to_json().items() if k not in differ} == {
        k: v for k, v in done.to_json().items() if k not in differ
    }


@pytest.mark.parametrize("tail", [True, False], ids=["tail", "no tail"])
def test_a_record_that_is_lost(store: pathlib.Path, *, tail: bool) -> None:
    """It is read from the tail, else the newest checkpoint's cut; rows of that are in shards, or not at all."""
    (store / "streams/0/zarr.json").unlink()
    if not tail:
        for file in (store / "streams/0/start").glob("tail.*"):
            file.unlink()
    found = dr.salvage(store, out_of(store))
    assert found.streams[0].record == ("tail" if tail else "checkpoint")
    assert found.transitions + found.streams[0].lost == (ROWS if tail else 24)


def test_a_stream_without_any_record_is_lost(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store, stream="other") as buffer:
        add(buffer, 0, 24)
    shutil.rmtree(store / "streams/other")
    (store / "streams/other").mkdir()
    found = dr.salvage(store, out_of(store))
    assert [(one.name, one.record, one.kept) for one in found.streams] == [("0", "stream", ROWS), ("other", None, 0)]
    assert not found.lossless


def test_of_copies_of_a_lost_root_the_one_that_seals_the_tails_counts(store: pathlib.Path) -> None:
    other = store.with_name("b.replay")
    dr.ReplayBuffer.create(other, spaces.Discrete(2), spaces.Discrete(3), capacity=9).close()
    shutil.copytree(other / "streams/0", store / "streams/00")
    (store / "zarr.json").write_text("{")
    with pytest.raises(CorruptionError, match="its copies differ"):
        dr.ReplayBuffer.open(store, mode="r")
    found = dr.salvage(store, out_of(store))
    assert (found.transitions, found.root) == (ROWS, str(store / "streams/0/start/root.json"))


def test_no_root_at_all(store: pathlib.Path) -> None:
    (store / "zarr.json").unlink()
    (store / "streams/0/start/root.json").write_bytes(b"")
    with pytest.raises(CorruptionError, match="missing or damaged"):
        dr.salvage(store, out_of(store))
    assert not out_of(store).exists()


def test_stacks_of_single_frames_are_padded_behind_a_gap(tmp_path: pathlib.Path) -> None:
    space = spaces.Box(0, 255, (3,), np.uint8)
    with dr.ReplayBuffer.create(
        tmp_path / "a", space, spaces.Discrete(3), capacity=99, frame_stack=3, stack_axis=None, codec="none",
        chunk_rows=4, shard_rows=8,
    ) as buffer:  # fmt: skip
        for row in range(32):
            buffer.add(np.full(3, row + 1, np.uint8), 0, row, np.full(3, row + 2, np.uint8), False, row == 31)
    shard = tmp_path / "a/streams/0/obs/c.1.0.0"
    data = bytearray(shard.read_bytes())
    data[0] ^= 1  # rows 8 to 12
    shard.write_bytes(data)
    found = dr.salvage(tmp_path / "a", tmp_path / "b")
    assert (found.transitions, found.padded) == (27, 2)
    with dr.ReplayBuffer.open(tmp_path / "b", mode="r") as buffer:
        batch = buffer.get(buffer.items())
    assert batch.reward.tolist() == [*range(7), *range(12, 32)]
    assert batch.obs[7:10, :, 0].tolist() == [[0, 0, 13], [0, 13, 14], [13, 14, 15]]


def test_attachments_and_documents_that_cannot_be_read(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("late", {"step": 48})
    (file,) = (store / "checkpoints/early/attachments/learner").glob("c.*")
    file.write_bytes(b"x" + file.read_bytes()[1:])
    (store / "checkpoints/late/zarr.json").write_text("")
    found = dr.salvage(store, out_of(store))
    assert (found.lost_files, found.lost_checkpoints) == (("early/learner",), ("late",))
    assert not found.lossless
    folder = out_of(store).with_name("out.replay.checkpoints")
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == ["metadata.json", "note"]


@pytest.mark.parametrize(("path", "error"), [("nothing", StoreNotFoundError), ("", NotAStoreError)])
def test_no_store(tmp_path: pathlib.Path, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        dr.salvage(tmp_path / path, tmp_path.with_name("out"))


def test_what_is_refused(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="diskreplay pull s3://bucket/a"):
        dr.salvage("s3://bucket/a", out_of(store))
    with pytest.raises(InputError, match="apart"):
        dr.salvage(store, store / "out")
    out_of(store).with_name("out.replay.checkpoints").write_text("mine")
    with pytest.raises(InputError, match=r"out\.replay\.checkpoints' exists"):
        dr.salvage(store, out_of(store))
    out_of(store).with_name("out.replay.checkpoints").unlink()
    monkeypatch.setattr(LocalFiles, "room", lambda self, path: 1234)
    with pytest.raises(DiskFullError, match=r"may need [0-9,]+ bytes, and its disk has room for 1,234"):
        dr.salvage(store, out_of(store))
    assert not out_of(store).exists()


def test_beside_a_writer_that_holds_the_lock(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store):
        assert dr.salvage(store, out_of(store)).transitions == ROWS


def test_nothing_is_opened_to_write(store: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that is mounted read-only."""
    opened = LocalFiles.open

    def watched(self: LocalFiles, path: str, *, write: bool = False) -> Any:
        assert not (write and path.startswith(f"{store}/"))
        return opened(self, path, write=write)

    monkeypatch.setattr(LocalFiles, "open", watched)
    before = {file: file.stat().st_mtime_ns for file in store.rglob("*")}
    dr.salvage(store, out_of(store))
    assert {file: file.stat().st_mtime_ns for file in store.rglob("*")} == before


@pytest.mark.parametrize("after", [0.0, 0.7], ids=["checking", "copying"])
def test_an_interrupt_leaves_nothing(store: pathlib.Path, after: float) -> None:
    names = sorted(store.parent.iterdir())

    def stop(done: int, total: int) -> None:
        if done > after * total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dr.salvage(store, out_of(store), progress=stop)
    assert sorted(store.parent.iterdir()) == names


@pytest.mark.long
def test_a_kill_leaves_nothing_under_the_name(store: pathlib.Path) -> None:
    program = f"""
        import os, signal
        import diskreplay
        diskreplay.salvage({str(store)!r}, {str(out_of(store))!r},
                           progress=lambda done, total: 2 * done > total and os.kill(os.getpid(), signal.SIGKILL))
    """
    assert run(program).returncode == -signal.SIGKILL
    assert not out_of(store).exists()
    assert dr.salvage(store, out_of(store)).transitions == ROWS
    assert sorted(path.name for path in store.parent.iterdir()) == ["a.replay", "out.replay", "out.replay.checkpoints"]


def test_the_command(store: pathlib.Path) -> None:
    shard(store, 2).unlink()
    dry = command("salvage", store, out_of(store), "--dry-run")
    assert dry.exit_code == 3
    assert not out_of(store).exists()
    assert "stream 0, environment 0, rows 12 to 24: 3 of 12 steps kept" in dry.stdout
    done = command("salvage", store, out_of(store))
    assert done.exit_code == 3
    assert f"{out_of(store)}: 39 transitions of 4 episodes" in done.stdout
    assert "exists" in failure("salvage", store, out_of(store))
    again = command("salvage", out_of(store), store.with_name("again"), "--json")
    assert (again.exit_code, json.loads(again.stdout)["lossless"]) == (0, True)


def test_verify_names_the_command(store: pathlib.Path) -> None:
    shard(store, 2).unlink()
    said = command("verify", store)
    assert said.exit_code == 1
    assert f"diskreplay salvage {store} {store}.salvaged" in said.stdout
