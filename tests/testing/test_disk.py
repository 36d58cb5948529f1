"""The simulated disk behaves as a real one, and loses what a real one may lose."""

from __future__ import annotations

import doctest
import errno
import pathlib
import random
from collections.abc import Callable
from typing import Any

import helpers.testing
import pytest
from helpers.testing import Crash, FaultyFiles, SimulatedDisk

from diskreplay.storage.files import Files
from diskreplay.storage.local_files import LocalFiles

NAMES = ["a", "b", "c"]
REFUSALS = {errno.ENOTDIR, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENOTEMPTY, errno.EEXIST}


def test_the_examples_run() -> None:
    assert doctest.testmod(helpers.testing, raise_on_error=True).attempted > 8
    assert helpers.testing.__all__ == sorted(helpers.testing.__all__, key=lambda name: (not name.isupper(), name))


def outcome(work: Callable[[], Any]) -> Any:
    """What a call gives, or the errno that it fails with."""
    try:
        given = work()
    except OSError as error:
        return error.errno
    return (
        given
        if isinstance(given, int | str | bytes | list | None)
        else type(given).__name__.replace("Local", "Simulated")
    )


def random_call(files: Files, root: str, rng: random.Random) -> Any:
    def path() -> str:
        return "/".join([root, *rng.choices(NAMES, k=rng.choice((1, 1, 2, 3)))])

    def write() -> None:
        file = files.open(one, write=True)
        file.pwrite([data[:3], data[3:]], offset)

    def cut() -> int:
        file = files.open(one, write=True)
        file.truncate(offset)
        return file.size()

    one, two = path(), path()
    data, offset = rng.randbytes(rng.randrange(20)), rng.randrange(30)
    return outcome(rng.choice([
        lambda: files.open(one), write, write, cut, lambda: files.read(one), lambda: files.list(one),
        lambda: files.kind(one), lambda: files.mkdir(one), lambda: files.mkdir(one), lambda: files.rename(one, two),
        lambda: files.rename(one, two), lambda: files.unlink(one), lambda: files.rmdir(one),
        lambda: files.sync_dir(one), lambda: files.size(one) if files.kind(one) == "file" else files.kind(one),
        lambda: files.open(one).pread(offset, offset),
    ]))  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_the_same_calls_do_the_same_as_on_a_real_file_system(tmp_path: pathlib.Path, seed: int) -> None:
    disk = SimulatedDisk()
    for parent in [*reversed(tmp_path.parents), tmp_path]:
        if str(parent) != "/":
            disk.mkdir(str(parent))
    ours, theirs = random.Random(seed), random.Random(seed)
    for step in range(200):
        got, want = random_call(disk, str(tmp_path), ours), random_call(LocalFiles(), str(tmp_path), theirs)
        # Where a call is wrong in several ways, systems differ in which one they name.
        assert got == want or {got, want} <= REFUSALS, f"step {step}"
    real = {str(one): one.read_bytes() if one.is_file() else None for one in sorted(tmp_path.rglob("*"), key=str)}
    below = {path: data for path, data in disk.contents().items() if path.startswith(f"{tmp_path}/")}
    assert below == real


def written(disk: SimulatedDisk, path: str, data: bytes, sync: bool) -> None:
    file = disk.open(path, write=True)
    file.pwrite([data], 0)
    if sync:
        file.sync()


def test_what_was_not_synced_may_be_lost_and_what_was_may_not() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    disk.sync_dir("/")
    written(disk, "/d/both", b"x" * 500, sync=True)
    disk.sync_dir("/d")
    written(disk, "/d/name-only", b"y" * 500, sync=False)
    disk.sync_dir("/d")
    written(disk, "/d/bytes-only", b"z" * 500, sync=True)
    assert disk.after_power_loss().contents() == {"/d": None, "/d/both": b"x" * 500, "/d/name-only": b""}
    assert disk.after_kill().contents() == disk.contents()
    assert disk.after_kill().after_power_loss().contents() == disk.after_power_loss().contents()
    assert len({str(disk.after_power_loss(random.Random(seed)).contents()) for seed in range(200)}) > 20
    for seed in range(200):
        after = disk.after_power_loss(random.Random(seed)).contents()
        assert after["/d/both"] == b"x" * 500
        assert len(after["/d/name-only"] or b"") <= 500
        assert after.get("/d/bytes-only", b"z" * 500) == b"z" * 500


def test_a_rename_took_place_or_it_did_not() -> None:
    disk = SimulatedDisk()
    for name in ("/from", "/to"):
        disk.mkdir(name)
    disk.sync_dir("/")
    written(disk, "/to/x", b"old", sync=True)
    disk.sync_dir("/to")
    written(disk, "/from/x", b"new", sync=True)
    disk.sync_dir("/from")
    disk.rename("/from/x", "/to/x")
    found = {str(disk.after_power_loss(random.Random(seed)).contents()) for seed in range(50)}
    before = {"/from": None, "/from/x": b"new", "/to": None, "/to/x": b"old"}
    assert found == {str(before), str({"/from": None, "/to": None, "/to/x": b"new"})}
    disk.sync_dir("/to")
    assert disk.after_power_loss().contents() == {"/from": None, "/to": None, "/to/x": b"new"}


def test_synced_bytes_do_not_change_with_what_follows() -> None:
    disk = SimulatedDisk()
    written(disk, "/a", b"k" * 300, sync=True)
    disk.sync_dir("/")
    disk.open("/a", write=True).pwrite([b"n" * 300], 300)
    sizes, contents = set(), set()
    for seed in range(200):
        data = disk.after_power_loss(random.Random(seed)).read("/a")
        assert data[:300] == b"k" * 300
        sizes.add(len(data))
        contents.add(data)
    assert {300, 600} < sizes, "neither wholly lost nor wholly kept"
    assert any(b"\0" in data for data in contents), "a file never grew without its bytes"


def test_a_crash_ends_everything_and_gives_the_locks_back() -> None:
    disk = SimulatedDisk()
    disk.mkdir("/d")
    files = FaultyFiles(disk)
    lock = files.lock("/d/lock")
    assert lock
    assert disk.lock("/d/lock") is None
    files.crash_at(1)
    files.mkdir("/one")
    for _ in range(2):
        with pytest.raises(Crash):
            files.mkdir("/two")
    with pytest.raises(Crash):
        files.list("/")
    assert disk.list("/") == ["d", "one"]
    assert disk.lock("/d/lock")


@pytest.mark.parametrize("make", [LocalFiles, SimulatedDisk])
def test_a_lock_that_is_forgotten_is_free(tmp_path: pathlib.Path, make: Callable[[], Files]) -> None:
    files, path = make(), str(tmp_path / "a") if make is LocalFiles else "/a"
    lock = files.lock(path)
    assert lock is not None
    assert files.lock(path) is None
    del lock
    assert files.lock(path) is not None


def wrapped_disk() -> FaultyFiles:
    return FaultyFiles(SimulatedDisk())


@pytest.mark.parametrize("make", [LocalFiles, SimulatedDisk, wrapped_disk])
def test_a_lock_knows_whether_its_file_was_moved(tmp_path: pathlib.Path, make: Callable[[], Files]) -> None:
    files, root = make(), str(tmp_path)
    if not isinstance(files, LocalFiles):
        for parent in [*list(reversed(tmp_path.parents))[1:], tmp_path]:
            files.mkdir(str(parent))
    files.mkdir(f"{root}/a")
    lock = files.lock(f"{root}/a/lock")
    assert lock is not None
    assert (lock.held(), lock.is_at(f"{root}/a/lock"), lock.is_at(root)) == (True, True, False)
    files.rename(f"{root}/a", f"{root}/b")
    assert (lock.is_at(f"{root}/a/lock"), lock.is_at(f"{root}/b/lock")) == (False, True)
    files.mkdir(f"{root}/a")
    files.open(f"{root}/a/lock", write=True)
    assert not lock.is_at(f"{root}/a/lock")
    files.unlink(f"{root}/b/lock")
    assert not lock.is_at(f"{root}/b/lock")
    assert lock.held()
    lock.release()
    assert not lock.held()


def test_a_lock_is_not_held_after_a_crash_and_cannot_look(tmp_path: pathlib.Path) -> None:
    files = FaultyFiles(LocalFiles())
    lock = files.lock(str(tmp_path / "lock"))
    assert lock is not None
    files.fail_at(0, errno.EIO, names=["is_at"])
    with pytest.raises(OSError, match="Input/output"):
        lock.is_at(str(tmp_path / "lock"))
    files.crash_at(0, names=["mkdir"])
    with pytest.raises(Crash):
        files.mkdir(str(tmp_path / "x"))
    assert not lock.held()
    with pytest.raises(Crash):
        lock.is_at(str(tmp_path / "lock"))


def test_failing_at_the_second_half_of_a_write_tears_it() -> None:
    disk = SimulatedDisk()
    files = FaultyFiles(disk)
    file = files.open("/a", write=True)
    files.fail_at(1, errno.EIO, names=["pwrite"], times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.pwrite([b"0123456789"], 0)
    assert disk.read("/a") == b"01234"
    assert files.count(["pwrite"]) == 2
    file.pwrite([b"x"], 0)
    assert disk.read("/a") == b"x1234"


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimulatedDisk(capacity_bytes=10)
    file = disk.open("/a", write=True)
    file.pwrite([b"12345678"], 0)
    with pytest.raises(OSError, match="No space") as caught:
        file.pwrite([b"abcdef"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("/a") == b"12345678ab"
    file.pwrite([b"ABCDE"], 0)  # over what is there
    disk.unlink("/a")
    assert disk.free_bytes() == 10
