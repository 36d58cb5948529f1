"""Defects that the crash tests found in the engine, each as it was found."""

from __future__ import annotations

import contextlib
import pathlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from helpers import lives
from helpers.effort import examples
from helpers.testing import Crash, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import (
    CheckpointError,
    CorruptionError,
    EvictedError,
    StateError,
    StoreExistsError,
    WriteFailedError,
)

PATH = "/a.replay"


def small(files: SimulatedDisk | FaultyFiles, **options: object) -> dr.ReplayBuffer:
    return lives.create(PATH, num_envs=1, rows=12, files=files, **options)


def reopened(files: SimulatedDisk | FaultyFiles, **options: object) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(PATH, files=files, **lives.OPTIONS | options)


def killed_after_rename(target: str, files: FaultyFiles, work: Callable[[], object]) -> None:
    """The process is killed right after something was renamed to a path that ends so, before anything is synced."""
    renamed = False

    def decide(operation: Operation) -> None:
        nonlocal renamed
        if renamed:
            raise Crash(operation)
        renamed = operation.name == "rename" and operation.target.endswith(target)

    files.decide = decide
    with pytest.raises(Crash):
        work()


def power_losses(disk: SimulatedDisk) -> Iterator[SimulatedDisk]:
    """The disk after losses of power: all rows of a reader, and of each of its checkpoints, are right."""
    for seed in (None, *range(examples(300, "losses of power", least=20))):
        after = disk.after_power_loss(None if seed is None else random.Random(seed))
        with dr.ReplayBuffer.open(PATH, mode="r", files=after) as reader:
            lives.check_all(reader)
            for name in reader.checkpoints:
                with dr.ReplayBuffer.open(PATH, mode="r", checkpoint=name, files=after) as then:
                    lives.check_all(then)
        yield after


@pytest.mark.long
def test_a_renamed_record_is_durable_before_it_evicts() -> None:
    """The next writer unlinked shards for a record that a loss of power could still take back."""
    disk = SimulatedDisk()
    with small(disk) as buffer:
        lives.add(buffer, 12)

    files = FaultyFiles(disk)
    buffer = reopened(files)
    lives.add(buffer, 28)
    killed_after_rename("streams/0/zarr.json", files, buffer.commit)
    disk = disk.after_kill()
    buffer = reopened(disk)
    assert buffer.stats()["streams"]["0"]["end"] == 40
    buffer.commit()
    assert "c.0.0.0.0" not in disk.list(f"{PATH}/streams/0/obs"), "nothing was evicted"
    assert list(power_losses(disk))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::diskreplay.errors.SamplerWarning")  # priorities go with a crash, which it says
@pytest.mark.parametrize("commits", [False, True])
def test_a_dropped_checkpoint_does_not_come_back_in_part(commits: bool) -> None:
    """A drop that a kill cut short was finished by the next writer before its rename was durable."""
    disk = SimulatedDisk()
    with small(disk, sampler=dr.Proportional()) as buffer:
        lives.add(buffer, 14)
        buffer.checkpoint("gone")
        lives.add(buffer, 26)
    files = FaultyFiles(disk)
    buffer = reopened(files)
    killed_after_rename(".tmp-dropped-gone", files, lambda: buffer.drop_checkpoint("gone"))
    disk = disk.after_kill()
    buffer = reopened(disk)
    assert buffer.checkpoints == []
    if commits:
        buffer.commit()  # and gives back what the checkpoint pinned
    for after in power_losses(disk):
        with reopened(after) as buffer:
            if not buffer.checkpoints:
                buffer.checkpoint("gone")  # the name is free


@pytest.mark.long
def test_another_stream_evicts_only_after_a_drop_is_durable() -> None:
    """A checkpoint dropped by one writer, not synced yet, pinned rows that another writer evicted meanwhile."""
    disk = SimulatedDisk()
    small(disk).close()
    other = reopened(disk, stream="b")
    lives.add(other, 14, 1)
    other.checkpoint("gone")

    dropper = FaultyFiles(disk)
    first = reopened(dropper)
    dropper.fail_at(0, names=["sync_dir"])
    with pytest.raises(WriteFailedError):
        first.drop_checkpoint("gone")
    lives.add(other, 26, 1)
    other.commit()
    assert "c.0.0.0.0" not in disk.list(f"{PATH}/streams/b/obs"), "nothing was evicted"
    assert list(power_losses(disk))


def test_the_directories_above_a_store_are_durable() -> None:
    disk = SimulatedDisk()
    with lives.create("/one/two/a.replay", num_envs=1, rows=12, files=disk) as buffer:
        lives.add(buffer, 5)
    with dr.ReplayBuffer.open("/one/two/a.replay", mode="r", files=disk.after_power_loss()) as reader:
        assert lives.check_all(reader) == 5


@pytest.mark.parametrize("deed", ["checkpoint", "drop_checkpoint"])
def test_a_checkpoint_that_fails_stops_the_writer(deed: str) -> None:
    """It went on writing; then a drop that did not last could leave a checkpoint without its rows."""
    files = FaultyFiles(SimulatedDisk())
    buffer = small(files)
    lives.add(buffer, 9)
    buffer.checkpoint("one")
    first = 1 if deed == "checkpoint" else 0  # of the commit that notes the checkpoint's number
    files.fail_at(first, 5, names=["sync_dir"], times=1)
    with pytest.raises(WriteFailedError, match="checkpoint"):
        getattr(buffer, deed)("one" if deed == "drop_checkpoint" else "two")
    written = files.count()
    for refused in (buffer.commit, lambda: buffer.checkpoint("three"), lambda: buffer.drop_checkpoint("one")):
        with pytest.raises((StateError, CheckpointError)):
            refused()
    with pytest.raises(StateError, match="reopen"):
        lives.add(buffer, 1)
    assert lives.check_all(buffer) == 9
    assert files.count() == written, "something was written after the failure"
    buffer.close()
    assert files.count() == written
    with reopened(files) as buffer:
        assert lives.check_all(buffer) == 9


def test_a_reader_never_sees_the_rows_that_replaced_its_own() -> None:
    """Going back was killed after its record; the next writer then cut a shard in place that a reader held open.

    Without compression the new rows had the size and the place of the old ones, and were given out under their ids.
    """
    disk = SimulatedDisk()
    buffer = small(disk, codec="none")
    lives.add(buffer, 9)
    buffer.checkpoint("here")
    lives.add(buffer, 3)
    buffer.close()
    reader = dr.ReplayBuffer.open(PATH, mode="r", files=disk, cache_bytes=0)
    sequence = reader.stats()["streams"]["0"]["sequence"]
    before = reader.get(np.arange(8, 12))

    files = FaultyFiles(disk)  # of a process on the same machine
    killed_after_rename("streams/0/zarr.json", files, lambda: reopened(files, checkpoint="here"))
    with reopened(disk) as buffer:
        for row in range(9, 12):
            buffer.add(**lives.step(0, row + 1000, 1))
        buffer.commit()
    with contextlib.suppress(CorruptionError, EvictedError):
        after = reader.get(np.arange(8, 12))
        if reader.stats()["streams"]["0"]["sequence"] == sequence:  # it has not noticed
            np.testing.assert_array_equal(after.obs, before.obs)
            np.testing.assert_array_equal(after.next_obs, before.next_obs)


def test_what_killed_creations_left_is_removed(tmp_path: pathlib.Path) -> None:
    """Each process left a directory beside the store that only a process of the same id would have removed."""
    (tmp_path / ".a.replay.tmp-mine").mkdir()
    for _ in range(5):
        files = FaultyFiles()
        files.crash_at(40)
        with pytest.raises(Crash):
            lives.create(str(tmp_path / "a.replay"), files=files)
        assert len(list(tmp_path.glob(".a.replay.tmp-*"))) <= 2
    lives.create(str(tmp_path / "a.replay")).close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [".a.replay.tmp-mine", "a.replay"]


def test_the_loser_of_a_race_to_create_is_told_so(tmp_path: pathlib.Path) -> None:
    """It was told that the file system failed."""
    path = str(tmp_path / "a.replay")
    files = FaultyFiles()

    def other_wins(operation: Operation) -> None:
        if operation.name == "rename" and operation.target == path:
            lives.create(path).close()

    files.decide = other_wins
    with pytest.raises(StoreExistsError):
        lives.create(path, files=files)
    assert [one.name for one in tmp_path.iterdir()] == ["a.replay"]


def test_a_store_is_not_made_over_a_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a.replay").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreExistsError):
        lives.create(str(tmp_path / "a.replay"))
    assert not list((tmp_path / "elsewhere").iterdir())


def test_half_a_stream_is_removed_when_the_first_one_is_opened() -> None:
    disk = SimulatedDisk()
    small(disk).close()
    files = FaultyFiles(disk)
    files.crash_at(60)
    with pytest.raises(Crash):
        reopened(files, stream="b")
    disk = disk.after_kill()
    assert [one for one in disk.contents() if ".tmp-stream-b" in one]
    reopened(disk).close()
    assert not [one for one in disk.contents() if ".tmp-" in one]
