"""A file system that refuses: a named error, no write after it, reading goes on, reopening works."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import pathlib
import resource
from collections.abc import Callable, Iterator

import pytest
from helpers import lives
from helpers.effort import stride
from helpers.programs import printed
from helpers.testing import READS, WRITES, FaultyFiles, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import ClosedError, DiskFullError, DiskReplayError, ReadFailedError, StateError, WriteFailedError

PATH = "/a.replay"
Deed = Callable[[dr.ReplayBuffer], object]


def prepared() -> tuple[FaultyFiles, dr.ReplayBuffer]:
    """A buffer with committed rows, some evicted, a checkpoint, and rows that no commit holds."""
    files = FaultyFiles(SimulatedDisk())
    buffer = lives.create(PATH, num_envs=1, rows=12, files=files)
    lives.add(buffer, 21)
    buffer.checkpoint("one")
    lives.add(buffer, 12)
    return files, buffer


def reopened(path: str = PATH, **options: object) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open(path, **lives.OPTIONS | options)


def failed(work: Callable[[], object]) -> DiskReplayError | None:
    """The error of this package's own that a call ends in, if any."""
    try:
        work()
    except DiskReplayError as error:
        return error
    return None


def close(buffer: dr.ReplayBuffer, lost: int) -> None:
    """Close a buffer after a write that failed: it says once how many rows are lost by that, if any, and is closed."""
    if lost:
        with pytest.raises(WriteFailedError, match=f"; {lost} rows since the last commit are lost$"):
            buffer.close()
    buffer.close()
    with pytest.raises(ClosedError):
        len(buffer)


DEEDS: dict[str, Deed] = {
    "commit": lambda buffer: buffer.commit(),
    "checkpoint": lambda buffer: buffer.checkpoint("two"),
    "drop": lambda buffer: buffer.drop_checkpoint("one"),
    "close": lambda buffer: buffer.close(),
}


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_no_write_follows_one_that_failed(deed: str, number: int) -> None:
    """At every place; only one operation fails, so that whatever followed it would succeed.

    In the sampled form the errors take turns with the places.
    """
    step = stride(17, "places of failing writes")
    ends = set()
    for place in itertools.count(number % step, step):
        files, buffer = prepared()
        files.fail_at(place, number, times=1)
        failure = failed(lambda buffer=buffer: DEEDS[deed](buffer))
        if failure is None:
            files.heal()
            buffer.close()
            break
        assert isinstance(failure, WriteFailedError)
        assert failure.errno == number
        assert isinstance(failure, DiskFullError) == (number == errno.ENOSPC)
        assert PATH in str(failure)
        assert "reopen" in str(failure)
        assert files.count() == place + 1, f"written after the failure: {files.operations[-3:]}"
        if deed != "close":
            lives.check_all(buffer)
            before = buffer.stats()["streams"]
            for refused in (
                DEEDS["commit"],
                lambda buffer: buffer.checkpoint("no"),
                lambda buffer: lives.add(buffer, 1),
            ):
                with pytest.raises(StateError, match="reopen"):
                    refused(buffer)
            if deed != "drop":  # whose first refused commit makes a patch of the newest observation
                assert buffer.stats()["streams"] == before
            close(buffer, before["0"]["end"] - buffer.engine.streams.commits["0"].end)
            assert files.count() == place + 1
        files.heal()
        with reopened(files=files) as buffer:
            ends.add(buffer.stats()["streams"]["0"]["end"])
            lives.check_all(buffer)
            if "two" not in buffer.checkpoints:
                buffer.checkpoint("two", {"tries": 2})
            if "one" in buffer.checkpoints:
                buffer.drop_checkpoint("one")
            lives.add(buffer, 5)
            buffer.commit()
            lives.check_all(buffer)
        with reopened(files=files, checkpoint="two") as buffer:
            assert buffer.stats()["streams"]["0"]["end"] in ends
            lives.check_all(buffer)
    assert place > 3
    assert ends <= {21, 33}
    assert len(ends) == 2 or deed == "drop" or step > 1, "neither the commit before nor one that failed late"


@pytest.mark.long
def test_a_sync_that_failed_is_never_tried_again() -> None:
    """The system may have dropped what it could not write: a second fsync would succeed and mean nothing."""
    for place in itertools.count(step=stride(4, "syncs that fail")):
        files, buffer = prepared()
        files.fail_at(place, errno.EIO, names=["sync", "sync_dir"], times=1)
        try:
            buffer.commit()
        except WriteFailedError:
            assert files.operations[-1].name in ("sync", "sync_dir")
            before = len(files.operations)
            with contextlib.suppress(StateError):
                buffer.commit()
            close(buffer, 12)
            assert not [one for one in files.operations[before:] if one.name in WRITES]
        else:
            break
    assert place > 8


def everything(files: FaultyFiles) -> None:
    """Each thing that can be done with a store, once."""
    with reopened(files=files, cache_bytes=0) as buffer:
        buffer.sample(12)
        lives.add(buffer, 3)
        buffer.checkpoint("two")
        buffer.drop_checkpoint("one")
    with reopened(files=files, mode="r", checkpoint="two") as buffer:
        lives.check_all(buffer)


def fill(buffer: dr.ReplayBuffer) -> int:
    """Adds and commits until the disk is full; the rows that were committed."""
    committed = 0
    with pytest.raises(DiskFullError, match="make room"):  # noqa: PT012  # which commit fails is what is asked
        while True:
            lives.add(buffer, 7)
            buffer.commit()
            committed = buffer.stats()["streams"]["0"]["committed"]
    return committed


@pytest.mark.long
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
def test_every_refusal_has_a_name(number: int) -> None:
    """Whatever is refused, even to look at a directory or to lock it: an error of this package's own."""
    names = [*READS, *WRITES, "lock"]
    for place in itertools.count(step=stride(61, "places of refusals")):
        files, buffer = prepared()
        buffer.close()
        files.fail_at(place, number, names, times=1)
        failure = failed(lambda files=files: everything(files))
        if failure is not None:
            assert isinstance(failure, ReadFailedError | WriteFailedError), repr(failure)
            assert failure.errno == number
        elif files.count(names) <= place:
            break
        files.heal()
        with reopened(files=files) as buffer:
            lives.check_all(buffer)
    assert place > 200


def test_a_read_that_failed_can_be_tried_again() -> None:
    files, buffer = prepared()
    buffer.close()
    with reopened(files=files, mode="r", cache_bytes=0) as buffer:
        files.fail_at(0, errno.EIO, names=["pread"], times=1)
        with pytest.raises(ReadFailedError, match="obs"):
            buffer.sample(12)
        lives.check_all(buffer)


def test_a_disk_that_is_full_and_gets_room_again() -> None:
    disk = SimulatedDisk(capacity_bytes=120_000)
    buffer = lives.create(PATH, num_envs=1, rows=400, codec="none", files=disk)
    committed = fill(buffer)
    lives.check_all(buffer)
    close(buffer, 7)
    with reopened(files=disk, mode="r") as reader:
        assert reader.stats()["streams"]["0"]["end"] == committed > 7
        lives.check_all(reader)
    with reopened(files=disk) as buffer:  # the half commit was cut off, which made some room
        assert buffer.stats()["streams"]["0"]["end"] == committed
    disk.capacity_bytes = None
    with reopened(files=disk) as buffer:
        lives.add(buffer, 50)
        buffer.commit()
        lives.check_all(buffer)


def test_a_full_disk_refuses_going_back_before_rows_are_given_up() -> None:
    """Whatever room is left: the stream goes back, or has all of its rows, and the disk no file more.

    But for the tail, or the record, that was begun: it goes with the next opening, as after a failed write nothing is
    written.
    """
    disk = SimulatedDisk()
    with lives.create(PATH, num_envs=1, rows=100, files=disk) as buffer:
        lives.add(buffer, 21)  # in the middle of a shard, of which a part stays
        buffer.checkpoint("one")
        lives.add(buffer, 2)
    refused = 0
    for room in range(0, 200_000, 2_000):
        full = disk.after_kill()
        full.capacity_bytes = 0
        full.capacity_bytes = room - full.free_bytes()
        before = full.contents().keys()
        try:
            reopened(files=full, checkpoint="one").close()
        except DiskFullError:
            refused += 1
            assert [path for path in full.contents().keys() ^ before if "/start/" not in path] == []
            full.capacity_bytes = None
            with reopened(files=full) as buffer:
                assert lives.check_all(buffer) == 23
            assert not [path for path in full.contents().keys() - before if "tail." not in path]
            assert len([path for path in full.contents() if "/start/tail." in path]) <= 3
            continue
        with reopened(files=full) as buffer:
            assert lives.check_all(buffer) == 21
        break
    assert 2 < refused < 100


@pytest.mark.long
@pytest.mark.parametrize("times", [1, None])
def test_a_close_that_cannot_move_rows_to_shards_loses_nothing(times: int | None) -> None:
    """All rows are committed; their move may fail at each operation, once or for good, and close says nothing."""
    step, place, failed = stride(7, "operations of a close"), 0, True
    while failed:
        disk = SimulatedDisk()
        files = FaultyFiles(disk)
        buffer = lives.create(PATH, num_envs=2, rows=40, files=files)
        lives.add(buffer, 22)
        buffer.commit()
        files.fail_at(place, errno.ENOSPC, times=times)
        buffer.close()
        failed = files.count() > place
        files.heal()
        for survivor in (disk, disk.after_power_loss()):
            with reopened(files=survivor) as again:
                assert again.stats()["streams"]["0"]["end"] == 22
                lives.check_all(again)
                lives.add(again, 3)
            with reopened(files=survivor, mode="r") as reader:
                assert lives.check_all(reader) == 50
        place += step
    assert place > 20


@contextlib.contextmanager
def small_tmpfs(folder: pathlib.Path, size: int) -> Iterator[Callable[[bool], None]]:
    """A real file system of ``size`` bytes at ``folder``; gives a function that makes it read-only, or not."""
    libc = ctypes.CDLL(None, use_errno=True)
    read_only, remount = 1, 32

    def mount(flags: int) -> None:
        if libc.mount(b"none", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    folder.mkdir()
    try:
        mount(0)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here ({error}); the injected faults above stand for it")
    try:
        yield lambda locked: mount(remount | (read_only if locked else 0))
    finally:
        libc.umount2(os.fsencode(folder), 2)


def test_a_real_file_system_that_is_full(tmp_path: pathlib.Path) -> None:
    with small_tmpfs(tmp_path / "small", 400_000):
        path = str(tmp_path / "small" / "a.replay")
        buffer = lives.create(path, num_envs=1, rows=4000, codec="none")
        ballast = tmp_path / "small" / "ballast"
        ballast.write_bytes(bytes(100_000))
        committed = fill(buffer)
        lives.check_all(buffer)
        close(buffer, 7)
        with reopened(path, mode="r") as reader:
            assert reader.stats()["streams"]["0"]["end"] == committed > 7
        ballast.unlink()
        with reopened(path) as buffer:
            lives.add(buffer, 7)
            buffer.commit()
            lives.check_all(buffer)


def test_a_real_file_system_that_becomes_read_only(tmp_path: pathlib.Path) -> None:
    with small_tmpfs(tmp_path / "small", 1 << 22) as lock:
        path = str(tmp_path / "small" / "a.replay")
        with lives.create(path, num_envs=1, rows=40) as buffer:
            lives.add(buffer, 20)
        lock(True)  # no writer is open: its lock, a file that is open for writing, would forbid it
        with reopened(path, mode="r") as reader:
            assert lives.check_all(reader) == 20
        for refused in (lambda: reopened(path, stream="b"), lambda: lives.create(f"{path}.other")):
            with pytest.raises(WriteFailedError) as caught:
                refused()
            assert caught.value.errno == errno.EROFS
        with pytest.raises(WriteFailedError, match=r"Read-only file system.*or open it with mode='r'"):
            reopened(path)
        lock(False)
        with reopened(path) as buffer:
            assert lives.check_all(buffer) == 20
            lives.add(buffer, 5)


DESCRIPTORS = """
import resource, sys
from helpers import lives
import diskreplay as dr
from diskreplay.errors import ReadFailedError, StateError, WriteFailedError

path = sys.argv[1]
buffer = lives.create(path, num_envs=1, rows=40, cache_bytes=0)
lives.add(buffer, 30)
buffer.commit()
lives.add(buffer, 5)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (40, most))
try:
    while True:
        taken.append(open("/dev/null"))
except OSError:
    pass
for deed, kind in (
    (buffer.commit, WriteFailedError),
    (buffer.commit, StateError),
    (lambda: dr.ReplayBuffer.open(path, mode="r"), ReadFailedError),
    (lambda: dr.ReplayBuffer.open(path), (ReadFailedError, WriteFailedError)),
    (lambda: lives.create(path + ".other"), WriteFailedError),
):
    try:
        deed()
    except kind as error:
        assert isinstance(error, StateError) or error.errno == 24, repr(error)
    else:
        raise SystemExit(f"no error: {deed}")
for one in taken:
    one.close()
assert lives.check_all(buffer) == 35
try:
    buffer.close()
except WriteFailedError as error:
    assert "; 5 rows since the last commit are lost" in str(error), error
else:
    raise SystemExit("closing said nothing")
with dr.ReplayBuffer.open(path) as buffer:
    assert lives.check_all(buffer) == 30
"""


@pytest.mark.long
def test_out_of_file_descriptors(path: str) -> None:
    """In a process of its own, under a real limit."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 40
    printed(DESCRIPTORS, path, flags=("-W", "error"))


def test_samples_stay_right_while_commits_fail() -> None:
    """Rows that could not be written are sampled from RAM until the buffer is closed."""
    files, buffer = prepared()
    files.fail_at(3, errno.EIO)
    with pytest.raises(WriteFailedError):
        buffer.commit()
    for _ in range(20):
        lives.check(buffer.sample(12), {0: 1})
    close(buffer, 12)
