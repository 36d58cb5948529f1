"""verify --repair: what is damaged is given up, nothing else is, and it may die at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.damage import files_below, flip
from helpers.effort import stride
from helpers.testing import FaultyFiles, SimulatedDisk
from ops.stores import IMAGE, after_deaths, content, fill, images, repaired

import diskreplay as dr
from diskreplay.errors import CorruptionError, DiskReplayError, InputError, LockedError
from diskreplay.ops.repair import Repaired, repair
from diskreplay.ops.repair.plan import plan
from diskreplay.ops.verify import verify
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles

Transitions = dict[int, bytes]


SMALL = ("action", "reward", "terminated", "truncated", "valid", "start")


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    images(tmp_path / "a.replay", shard_rows={"obs": 16, **dict.fromkeys(SMALL, 16)}, chunk_rows={
        "obs": 4, **dict.fromkeys(SMALL, 4)})  # fmt: skip
    return tmp_path / "a.replay"


def rows_of(ids: Any) -> set[int]:
    return {number // 2 for number in ids}


def flip_at(file: pathlib.Path, part: float) -> None:
    flip(file, int(part * file.stat().st_size), 4)


def flip_chunk(file: pathlib.Path, which: int = 0, groups: int = 1) -> None:
    """Damages a chunk that the last index of a shard of 16 rows names, in chunks of 4."""
    data = file.read_bytes()
    entries = 4 * groups
    index = np.frombuffer(data[-16 * entries - 4 : -4], "<u8").reshape(entries, 2)
    offset, size = [entry for entry in index.tolist() if entry[0] < 1 << 60][which]
    flip(file, offset + size // 2)


def in_stream(store: pathlib.Path, *below: str) -> pathlib.Path:
    return store.joinpath("streams", "0", *below)


def check(store: pathlib.Path, before: Transitions) -> tuple[Repaired, Transitions]:
    """Repairs; everything that must hold of every repair."""
    assert not verify(store).ok
    there = files_below(store.parent)
    foreseen = plan(store)
    assert files_below(store.parent) == there
    result = repaired(store)
    if any(loss.whole or loss.went_back_to is not None for loss in foreseen.streams):
        # The worst: one flipped bit of a record that cannot be read is turned back by the repair alone.
        assert {loss.stream for loss in result.streams} <= {loss.stream for loss in foreseen.streams}
    else:
        assert foreseen.streams == result.streams
        assert set(result.checkpoints) <= set(foreseen.checkpoints)
    assert verify(store).ok
    after = content(store)
    assert after.items() <= before.items()
    lost = sum(loss.transitions for loss in result.streams)
    assert lost >= len(before) - len(after)
    assert lost == len(before) - len(after) or any("valid" in loss.columns for loss in result.streams)
    assert bool(result.quarantine) == bool(result.moved)
    aside = LocalFiles()
    assert all(aside.kind(f"{result.quarantine}/{name}") is not None for name in result.moved)
    assert json.loads(json.dumps(result.to_json()))["ok"] is True
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 20, seed=9)
    assert verify(store).ok
    newest = content(store)
    assert all(newest[number] == value for number, value in after.items() if number in newest)
    assert min(after.keys() & newest.keys()) == min(newest)
    assert not repair(store).changed
    return result, after


def test_a_healthy_store_is_left_alone(store: pathlib.Path) -> None:
    before = files_below(store)
    result = repair(store)
    assert result.ok
    assert not result.changed
    assert before == files_below(store)
    assert os.listdir(store.parent) == ["a.replay"]  # noqa: PTH208


def test_a_chunk_of_frames_costs_the_rest_of_its_run(store: pathlib.Path) -> None:
    before = content(store)
    with dr.ReplayBuffer.open(store, mode="r") as buffer:
        episodes = [e for e in buffer.episodes if e.env == 1]
    flip_chunk(in_stream(store, "obs", "c.1.0.0.0"), 1, groups=2)  # rows 16 to 20 of environment 1
    problem = verify(store).problems[0]
    assert problem.rows is not None
    result, after = check(store, before)
    (loss,) = result.streams
    assert loss.columns == ("obs",)
    assert loss.chunks == 1
    assert loss.bytes > 1000
    gone = before.keys() - after.keys()
    assert problem.rows == (16, 20)
    assert {number % 2 for number in gone} == {1}
    stop = max(e.stop for e in episodes if e.start < 20)
    assert {row for row in range(16, 20) if 2 * row + 1 in before} <= rows_of(gone) <= set(range(15, stop))
    assert rows_of(gone) >= {row for row in range(16, stop) if 2 * row + 1 in before}
    with dr.ReplayBuffer.open(store, mode="r") as buffer, pytest.raises(InputError):
        buffer.get(np.array([min(gone)]))


def test_without_stacks_only_the_rows_and_the_one_before(tmp_path: pathlib.Path) -> None:
    images(tmp_path / "a.replay", num_envs=1, frame_stack=1)
    before = content(tmp_path / "a.replay")
    flip_chunk(in_stream(tmp_path / "a.replay", "obs", "c.1.0.0.0"))
    first, stop = verify(tmp_path / "a.replay").problems[0].rows or (0, 0)
    _, after = check(tmp_path / "a.replay", before)
    assert before.keys() - after.keys() <= set(range(first - 1, stop))


@pytest.mark.long
def test_a_patch_that_the_next_row_holds_too_is_put_back(store: pathlib.Path) -> None:
    """The newest next observation of an older commit, which the commit after it continued."""
    before = content(store)
    flip_at(in_stream(store, "patches", "obs", "c.0.0.0.0"), 0.01)
    result, after = check(store, before)
    assert after == before
    assert result.streams[0].patches == 0


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("column", ["reward", "action", "valid", "start", "terminated"])
def test_a_resident_column_makes_the_store_open_again(store: pathlib.Path, column: str) -> None:
    before = content(store)
    flip_chunk(in_stream(store, column, "c.2.0"))
    with pytest.raises(DiskReplayError):
        dr.ReplayBuffer.open(store)
    _, after = check(store, before)
    assert len(after) > len(before) / 2


@pytest.mark.long
def test_a_chunk_that_nobody_needs_any_more(store: pathlib.Path) -> None:
    """Regression: a shard keeps rows that left the window; a damaged chunk of those was left as it was."""
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 60, seed=3)
    before = content(store)
    assert min(rows_of(before)) == 10
    flip_chunk(in_stream(store, "reward", "c.0.0"), 0)
    _, after = check(store, before)
    assert after == before


def test_every_place_of_a_patch_is_lost(store: pathlib.Path) -> None:
    """Transitions that cannot have a patch stay."""
    before = content(store)
    in_stream(store, "patches", "place", "c.0.0.0").unlink()
    result, after = check(store, before)
    assert len(after) > len(before) / 2
    assert result.streams[0].patches


@pytest.mark.long
def test_a_file_that_is_too_long_or_too_short(store: pathlib.Path) -> None:
    before = content(store)
    sealed = in_stream(store, "obs", "c.0.0.0.0")
    sealed.write_bytes(sealed.read_bytes() + b"more")
    result, after = check(store, before)
    assert after == before  # the index is found where it was
    before = content(store)
    last = max(in_stream(store, "obs").glob("c.*"))
    os.truncate(last, last.stat().st_size - 1)
    result, after = check(store, before)
    assert max(rows_of(before.keys() - after.keys())) == max(rows_of(before))
    assert result.streams[0].chunks


def test_things_that_are_no_files(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    before = content(store)
    outside = tmp_path / "outside"
    shutil.move(in_stream(store, "reward", "c.0.0"), outside)
    in_stream(store, "reward", "c.0.0").symlink_to(outside)
    kept = outside.read_bytes()
    in_stream(store, "action", "c.99.0").mkdir()
    os.mkfifo(in_stream(store, "valid", "zarr.json.tmp"))
    result, _ = check(store, before)
    assert outside.read_bytes() == kept
    assert result.quarantine is not None
    assert pathlib.Path(result.quarantine, "streams", "0", "reward", "c.0.0").is_symlink()


def test_documents_are_written_anew(store: pathlib.Path) -> None:
    before = content(store)
    for document in (store / "streams", store / "checkpoints", in_stream(store, "patches"), in_stream(store, "obs")):
        (document / "zarr.json").write_text("{")
    _, after = check(store, before)
    assert after == before


@pytest.mark.long
@pytest.mark.parametrize("below", ["", "streams/0", "checkpoints/one"])
def test_one_bit_of_a_document(store: pathlib.Path, below: str) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one", {"step": 50})
    before = content(store)
    original = (store / below / "zarr.json").read_bytes()
    for at in (0.2, 0.5, 0.8):
        flip_at(store / below / "zarr.json", at)
        result = repair(store)
        assert result.ok
        assert not result.streams
        assert (store / below / "zarr.json").read_bytes() == original
    assert content(store) == content(store, checkpoint="one") == before


def test_the_root_cannot_be_repaired(store: pathlib.Path) -> None:
    (store / "zarr.json").write_text("{}")
    (store / "streams/0/start/root.json").unlink()
    with pytest.raises(CorruptionError, match=r"the root document .*zarr.json' of a store is missing or damaged"):
        repair(store)


def test_a_stream_without_a_record_goes_back_to_a_checkpoint(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("one")
        fill(buffer, 10, seed=3)
        buffer.checkpoint("two")
        expected = content(store)
        fill(buffer, 10, seed=4)
    newest = in_stream(store, "obs", "c.4.0.0.0").read_bytes()
    in_stream(store, "zarr.json").write_text("gone")
    result = repaired(store)
    assert result.streams[0].went_back_to == 60
    assert content(store) == expected
    with dr.ReplayBuffer.open(store) as buffer:
        assert buffer.checkpoints == ["one", "two"]
        fill(buffer, 5, seed=5)
    assert verify(store).ok
    assert pathlib.Path(str(result.quarantine), "streams", "0", "obs", "c.4.0.0.0").read_bytes() == newest


def test_a_stream_without_record_or_checkpoint_is_moved_aside(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store, stream="other") as buffer:
        fill(buffer, 10)
    before = content(store)
    (store / "streams" / "other" / "zarr.json").write_text("gone")
    result = repair(store)
    assert result.ok
    assert result.streams[0].whole
    assert content(store) == {number: value for number, value in before.items() if number < 1 << 48}
    in_stream(store, "zarr.json").unlink()
    result = repair(store)
    assert result.ok
    assert content(store) == {}
    assert pathlib.Path(str(result.quarantine), "streams", "0", "obs").is_dir()
    with dr.ReplayBuffer.open(store) as buffer:
        fill(buffer, 5)


@pytest.mark.long
def test_checkpoints_that_need_what_is_damaged_are_moved_aside(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store) as buffer:
        buffer.checkpoint("old")
        fill(buffer, 90, seed=3)
        buffer.checkpoint("new")
        fill(buffer, 40, seed=4)
    kept, before = content(store, checkpoint="old"), content(store)
    flip_chunk(in_stream(store, "obs", "c.7.0.0.0"), groups=2)
    result, _ = check(store, before)
    assert result.checkpoints == ("new",)
    assert content(store, checkpoint="old") == kept
    flip_chunk(in_stream(store, "obs", "c.0.0.0.0"), groups=2)  # rows that only the checkpoint needs
    before = content(store)
    result = repair(store)
    assert result.ok
    assert result.checkpoints == ("old",)
    assert not result.streams
    assert content(store) == before
    assert pathlib.Path(str(result.quarantine), "streams", "0", "obs", "c.0.0.0.0").is_file()


def test_a_writer_forbids_it(store: pathlib.Path) -> None:
    with dr.ReplayBuffer.open(store):
        flip_chunk(in_stream(store, "obs", "c.1.0.0.0"), groups=2)
        with pytest.raises(LockedError):
            repair(store)
    assert not list(store.parent.glob("*quarantine*"))


@pytest.mark.own_thresholds
def test_episodes_and_returns_end_where_rows_were_given_up(tmp_path: pathlib.Path) -> None:
    """No return of several steps, and no episode, passes over what was given up."""
    path = tmp_path / "a.replay"
    with dr.ReplayBuffer.create(
        path, IMAGE, spaces.Discrete(2), capacity=100, view=dr.Transition(3, 0.5), chunk_rows={"obs": 4},
        shard_rows={"obs": 16}, codec={"obs": "none"},
    ) as buffer:  # fmt: skip
        for row in range(40):
            obs = np.full((40, 40), row, np.uint8)
            buffer.add(obs, 0, 1.0, obs + 1, row % 20 == 19, False)
    flip_at(in_stream(path, "obs", "c.0.0.0.0"), 0.6)  # rows 8 to 12
    assert repair(path).ok
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        found = {
            number: (reward, int(following[0, 0]))
            for batch in buffer.shuffled(8)
            for number, reward, following in zip(batch.index.tolist(), batch.reward, batch.next_obs, strict=True)
        }
        assert found.keys() == set(range(40)) - set(range(7, 12))
        assert found[4] == (1.75, 7)
        assert found[5] == (1.5, 7)
        assert found[6] == (1.0, 7)
        assert [(e.start, e.stop) for e in buffer.episodes] == [(0, 7), (12, 20), (20, 40)]


# It may die at any moment


def damaged_disk(damages: list[Callable[[SimulatedDisk], None]]) -> tuple[SimulatedDisk, Transitions]:
    disk = SimulatedDisk()
    images(
        "/a.replay", rows=20, num_envs=1, files=disk, chunk_rows={"obs": 2, "reward": 4, "valid": 4, "start": 4},
        shard_rows={"obs": 4, "reward": 8, "valid": 8, "start": 8},
    )  # fmt: skip
    with dr.ReplayBuffer.open("/a.replay", files=disk) as buffer:
        buffer.checkpoint("one")
        fill(buffer, 4, seed=1)
    before = content("/a.replay", files=disk)
    for damage in damages:
        damage(disk)
    return disk, before


def overwrite(name: str, at: float) -> Callable[[SimulatedDisk], None]:
    def damage(disk: SimulatedDisk) -> None:
        file = disk.open(f"/a.replay/{name}", write=True)
        file.pwrite([b"\xff\xff\xff"], int(at * file.size()))
        file.sync()

    return damage


def cut(name: str) -> Callable[[SimulatedDisk], None]:
    def damage(disk: SimulatedDisk) -> None:
        file = disk.open(f"/a.replay/{name}", write=True)
        file.truncate(file.size() - 3)
        file.sync()

    return damage


def remove(name: str) -> Callable[[SimulatedDisk], None]:
    def damage(disk: SimulatedDisk) -> None:
        disk.unlink(f"/a.replay/{name}")
        disk.sync_dir(os.path.dirname(f"/a.replay/{name}"))  # noqa: PTH120

    return damage


DAMAGES = {
    "chunks": [overwrite("streams/0/obs/c.1.0.0.0", 0.1), overwrite("streams/0/reward/c.0.0", 0.1)],
    "last shards": [cut("streams/0/valid/c.2.0"), cut("streams/0/obs/c.5.0.0.0"), overwrite("streams/0/zarr.json", 0)],
    "missing": [remove("streams/0/start/c.1.0"), remove("streams/0/patches/zarr.json")],
    "places": [cut("streams/0/patches/place/c.0.0.0"), overwrite("streams/0/reward/c.2.0", 0.9)],
    "patches": [cut("streams/0/patches/obs/c.0.0.0.0"), cut("streams/0/patches/place/c.0.0.0")],
    "record": [overwrite("streams/0/zarr.json", 0.5), remove("streams/zarr.json")],
}


@pytest.mark.long
@pytest.mark.parametrize("name", DAMAGES)
def test_it_may_die_at_any_operation(name: str) -> None:
    disk, before = damaged_disk(DAMAGES[name])
    counting = FaultyFiles(disk.after_kill())
    repaired("/a.replay", files=counting)
    expected = content("/a.replay", files=counting)
    operations = counting.count()
    assert operations > 10
    rng = random.Random(name)
    points = sorted(rng.sample(range(operations), max(1, operations // stride(50, "deaths within a repair"))))
    for at, after in after_deaths(disk, "/a.replay", points, rng):
        with contextlib.suppress(DiskReplayError):
            assert content("/a.replay", files=after).items() <= before.items()
        repaired("/a.replay", files=after)
        assert content("/a.replay", files=after) == expected, f"killed at operation {at} of {operations}"
        with dr.ReplayBuffer.open("/a.replay", files=after) as buffer:
            fill(buffer, 2, seed=8)


def test_a_half_repaired_patch_table_is_not_taken_for_newer() -> None:
    """Regression: a repair wrote the table anew and died before its commit; the next took it, with its holes."""
    disk, _ = damaged_disk(DAMAGES["places"])
    whole = disk.after_kill()
    repair("/a.replay", files=whole)
    expected = content("/a.replay", files=whole)
    died = disk.after_kill()
    table = "/a.replay/streams/0/patches/place/c.0.0.0"
    for file in (table, "/a.replay/streams/0/patches/obs/c.0.0.0.0"):  # as after each of the two files
        written = whole.open(file, write=False)
        over = died.open(file, write=True)
        over.truncate(0)
        over.pwrite([written.pread(written.size(), 0)], 0)
        over.sync()
        again = died.after_kill()
        repaired("/a.replay", files=again)
        assert content("/a.replay", files=again) == expected


def test_the_checksum_of_documents_is_stable(store: pathlib.Path) -> None:
    """As docs/format.md says; the field itself does not count."""
    ours = metadata.read(LocalFiles(), str(store / "streams" / "0"))["attributes"]["diskreplay"]
    assert metadata.checksum(ours, "streams/0") == ours["checksum"]
    assert metadata.checksum({"b": [1, 0.5, None], "a": "é"}, "n") == 0xBB019E99
