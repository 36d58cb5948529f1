"""File systems that do less than ext4: short reads, locks and syncs that are refused, names that are gone for a moment.

They are emulated by other functions of ``os`` and ``fcntl``; docs/durability.md says which of them were tried for real.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import stat
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.testing import FaultyFiles

import diskreplay as dr
from diskreplay.errors import (
    CorruptionError,
    DamageWarning,
    DiskReplayError,
    FileSystemError,
    ReadFailedError,
    StateError,
    StoreNotFoundError,
    WriteFailedError,
)
from diskreplay.ops.verify import verify
from diskreplay.storage import files as fs
from diskreplay.storage.local_files import LocalFile, LocalFiles

SPACES = gymnasium.spaces.Box(0, 255, (3000,), np.uint8), gymnasium.spaces.Discrete(2)
ROWS = 80
LOCKLESS = [errno.EACCES, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, errno.EBADF]
SYNCLESS = [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS]


def observation(row: int) -> np.ndarray:
    return np.random.default_rng(row).integers(0, 256, 3000, np.uint8)


def fill(buffer: dr.ReplayBuffer, rows: int) -> None:
    begin = buffer.stats()["streams"]["0"]["end"]
    for row in range(begin, begin + rows):
        buffer.add(observation(row), 0, row, observation(row + 1), row % 7 == 6, False)


def make(path: str, **options: Any) -> None:
    options = {"capacity": 100, "chunk_rows": 4, "shard_rows": 16, **options}
    with dr.ReplayBuffer.create(path, *SPACES, **options) as buffer:
        fill(buffer, ROWS)
        buffer.checkpoint("first", attachments={"weights": os.urandom(50_000)})


def check(buffer: dr.ReplayBuffer) -> None:
    batch = buffer.sample(64)
    for row, index in zip(batch.reward.astype(int).tolist(), range(64), strict=True):
        np.testing.assert_array_equal(batch.obs[index], observation(row))


# Short reads


@pytest.fixture(params=[1, 1000, 8192])
def short_reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """A ``pread`` that gives fewer bytes than were asked for, as FUSE may with direct_io."""
    most, pread = request.param, os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, most), at))
    if most == 1:
        monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, -(-size // 2), at))  # again and again a half
    return int(most)


def test_a_file_is_read_whole_by_short_reads(tmp_path: pathlib.Path, short_reads: int) -> None:
    (tmp_path / "file").write_bytes(data := os.urandom(30_000))
    file = LocalFile(str(tmp_path / "file"), write=False)
    assert LocalFiles().read(str(tmp_path / "file")) == data
    assert file.pread(10_000, 5) == data[5:10_005]
    assert file.pread(10_000, 25_000) == data[25_000:]  # the file ends, and that is no error of this layer
    assert file.pread(10, 30_000) == b""


def test_short_reads_damage_nothing(path: str, short_reads: int) -> None:
    """Regression: sound rows were called damaged."""
    make(path)
    assert verify(path).ok
    for mode in ("r", "a"):
        with dr.ReplayBuffer.open(path, mode=mode, cache_bytes=0) as buffer:
            check(buffer)
    with dr.ReplayBuffer.open(path, checkpoint="first") as buffer:  # it cuts shards, which are read and written anew
        assert len(buffer.attachment("weights").read()) == 50_000
        fill(buffer, 5)
        check(buffer)
    assert verify(path).ok


def test_a_file_that_is_cut_is_damage_still(path: str, short_reads: int) -> None:
    make(path)
    shard = max(pathlib.Path(path, "streams", "0", "obs").glob("c.1.*"))
    os.truncate(shard, shard.stat().st_size // 2)
    assert not verify(path).ok
    with pytest.raises(CorruptionError), dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as buffer:
        buffer.sample(64)


# Locks and syncs that are refused


def refuse_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


def refuse_syncs_of_directories(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)


CASES = [(refuse_locks, number, r"refuses locks of files \(flock\)") for number in LOCKLESS]
CASES += [(refuse_syncs_of_directories, number, "refuses fsync of directories") for number in SYNCLESS]


@pytest.mark.parametrize(("refuse", "number", "said"), CASES)
def test_what_a_file_system_lacks_is_said_and_nothing_is_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, refuse: Callable[..., None], number: int, said: str
) -> None:
    """Regression: with locks refused by AppArmor ``create`` made 600,000 directories in half a minute."""
    refuse(monkeypatch, number)
    for path in (tmp_path / "a.replay", tmp_path / "some" / "where" / "a.replay"):
        with pytest.raises(FileSystemError, match=f"{said}.*; put the store on one that has them"):
            dr.ReplayBuffer.create(path, *SPACES, capacity=10)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", LOCKLESS)
def test_a_store_that_came_to_a_file_system_without_locks_is_read(
    path: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    make(path)
    refuse_locks(monkeypatch, number)
    with pytest.raises(FileSystemError, match=r"flock"):
        dr.ReplayBuffer.open(path)
    with pytest.raises(FileSystemError, match=r"flock"):
        dr.ReplayBuffer.open(path, stream="b")
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        check(buffer)


def test_a_lock_that_somebody_has_is_no_lack(path: str) -> None:
    make(path)
    with dr.ReplayBuffer.open(path), pytest.raises(dr.errors.LockedError):
        dr.ReplayBuffer.open(path)


# No permission, and handles that are stale


def test_no_permission_is_said_with_the_owner(path: str) -> None:
    """Regression: it was said to mend the disk."""
    make(path)
    owner = pathlib.Path(path).owner()
    files = FaultyFiles()
    files.fail_at(0, errno.EACCES, ["read", "open_read"])
    with pytest.raises(ReadFailedError, match=rf"Permission denied; get permission to read it from {owner}, the owner"):
        dr.ReplayBuffer.open(path, mode="r", files=files)
    files.fail_at(0, errno.EPERM, ["mkdir"])
    with pytest.raises(WriteFailedError, match=rf"nothing was made: get permission to write there from {owner}"):
        dr.ReplayBuffer.create(path + "2", *SPACES, capacity=10, files=files)
    files.fail_at(0, errno.EIO, ["read", "open_read"])
    with pytest.raises(ReadFailedError, match="mend the disk"):
        dr.ReplayBuffer.open(path, mode="r", files=files)


@pytest.mark.parametrize("times", [1, 3])
def test_a_record_that_is_stale_or_away_for_a_moment_is_read_again(path: str, times: int) -> None:
    """Regression: ``refresh`` raised a bare FileNotFoundError where a rename was two, or said to mend the disk."""
    make(path)
    for number, names in ((errno.ENOENT, ["read"]), (errno.ESTALE, ["read"])):
        files = FaultyFiles()
        with dr.ReplayBuffer.open(path, mode="r", files=files, cache_bytes=0) as reader:
            with dr.ReplayBuffer.open(path) as writer:
                fill(writer, 5)
            files.fail_at(0, number, names, times=times)
            assert reader.refresh()
            check(reader)


def test_a_document_that_another_machine_replaced_is_opened_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path)
    pread, failed = os.pread, []

    def stale(fd: int, size: int, at: int) -> bytes:
        if not failed:
            failed.append(fd)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return pread(fd, size, at)

    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as reader:
        for read in (reader.refresh, lambda: check(reader)):
            failed.clear()
            monkeypatch.setattr(os, "pread", stale)
            read()
            monkeypatch.setattr(os, "pread", pread)
            check(reader)


def test_a_record_that_stays_away_is_damage_with_its_name(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warning the one in the tail is taken; without a tail it is an error."""
    monkeypatch.setattr(fs, "LOOK_SECONDS", [0.0, 0.0])
    make(path)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        record = pathlib.Path(path, "streams", "0", "zarr.json")
        record.rename(record.with_name("elsewhere"))
        with pytest.warns(DamageWarning, match="the commit record of .*streams/0' is missing or damaged"):
            assert not reader.refresh()
        for file in record.parent.glob("start/tail.*"):
            file.unlink()
        with pytest.raises(CorruptionError, match=r"the stream '0' of .* is missing, or its commit record zarr.json"):
            reader.refresh()


@pytest.mark.parametrize("gone", ["all", "contents"])
def test_a_store_that_was_removed_under_a_reader_is_not_found(path: str, gone: str) -> None:
    make(path)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as reader:
        shutil.rmtree(path)
        if gone == "contents":
            pathlib.Path(path).mkdir()
        for call in (reader.refresh, lambda: reader.engine.store.checkpoint("first")):
            with pytest.raises(StoreNotFoundError, match=r"there is no store at .* any more: it was removed"):
                call()


@pytest.mark.long
def test_every_error_of_a_disk_is_one_of_ours(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read and write of each call fails once."""
    monkeypatch.setattr(fs, "LOOK_SECONDS", [0.0])
    make(str(tmp_path / "made"))
    names = ("open_read", "read", "pread", "list", "size", "kind", "mkdir", "sync_dir", "rename")

    def opened(call: Callable[[dr.ReplayBuffer], object], **options: Any) -> Callable[[str, FaultyFiles], object]:
        def run(path: str, files: FaultyFiles) -> object:
            with dr.ReplayBuffer.open(path, files=files, cache_bytes=0, **options) as buffer:
                return call(buffer)

        return run

    calls: list[Callable[[str, FaultyFiles], object]] = [
        opened(lambda rb: (rb.sample(9), rb.refresh(), rb.checkpoints), mode="r"),
        opened(lambda rb: rb.attachment("weights").read(), mode="r", checkpoint="first"),
        opened(lambda rb: (fill(rb, 9), rb.commit(), rb.checkpoint("b"), rb.drop_checkpoint("first"), rb.clear())),
        lambda path, files: verify(path, files=files),
        lambda path, files: dr.ReplayBuffer.create(path + "/x/y", *SPACES, capacity=9, files=files).close(),
    ]
    for number, call in enumerate(calls):
        for count in range(0, 400, 23):
            path = str(tmp_path / f"{number}-{count}")
            shutil.copytree(tmp_path / "made", path)
            files = FaultyFiles()
            files.fail_at(count, errno.ESTALE if count % 2 else errno.EIO, names, times=2)
            with contextlib.suppress(DiskReplayError):
                call(path, files)


# Memory and threads


def test_a_cache_without_memory_costs_no_sample(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from diskreplay.reading.cache import CachedColumn

    make(path)

    def lacks(*given: object) -> None:
        raise MemoryError

    for name in ("packed", "enter", "_reach"):
        with monkeypatch.context() as patch:
            patch.setattr(CachedColumn, name, lacks)
            with dr.ReplayBuffer.open(path, mode="r", cache_bytes=1 << 20) as buffer:
                check(buffer)
                check(buffer)
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=1 << 20) as buffer:
        check(buffer)


def test_a_loader_without_a_thread_is_an_error_of_ours(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        buffer.sample(1)

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(StateError, match="'diskreplay-loader' cannot be started: can't start new thread"):
                buffer.loader(4)
            check(buffer)
        with buffer.loader(4) as batches:
            assert len(next(iter(batches)).reward) == 4
