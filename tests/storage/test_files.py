"""Files and locks of the local file system: interrupted, at exit, on a full disk, under names that nothing can have."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import os
import pathlib
import sys
import traceback
import weakref
from collections.abc import Iterator
from types import TracebackType

import pytest
from gymnasium import spaces
from helpers.programs import run
from helpers.testing import FaultyFiles, Interrupts

import diskreplay as dr
from diskreplay.errors import ReadFailedError, StoreExistsError, StoreNotFoundError, WriteFailedError
from diskreplay.storage import local_files
from diskreplay.storage.files import FileLock, translate, translate_reads
from diskreplay.storage.local_files import LocalFile, LocalFiles, LocalLock


def test_a_file_interrupted_before_it_was_opened_goes_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    file = LocalFile.__new__(LocalFile)
    del file
    assert said == []


def test_an_interrupted_lock_is_free_though_its_traceback_stays(tmp_path: pathlib.Path) -> None:
    local, tool = LocalFiles(), Interrupts(within=["diskreplay.storage"])
    kept: list[TracebackType | None] = []  # as a notebook does, for its debugger
    taken: list[FileLock | None] = []

    def take() -> None:
        try:
            taken.append(local.lock(str(tmp_path / "lock")))
        except KeyboardInterrupt as error:
            kept.append(error.__traceback__)
            raise

    for number in itertools.count():
        place = tool.interrupt(number, take)
        if place is None:
            break
        again = local.lock(str(tmp_path / "lock"))
        assert again is not None, f"interrupted at {place}"
        again.release()
    assert len(kept) > 5
    assert taken[0] is not None
    taken[0].release()


def test_a_lock_and_a_file_go_silently_without_their_modules(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at exit, where Python clears the globals of modules: see the next test."""
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    lock, file = LocalLock(str(tmp_path / "lock")), LocalFile(str(tmp_path / "a"), write=True)
    descriptors = lock._fd, file.descriptor()
    with monkeypatch.context() as gone:
        gone.setattr(local_files, "os", None)
        del lock, file
    assert said == []
    for descriptor in descriptors:
        os.close(descriptor)


AT_EXIT = """
import sys
from diskreplay.storage.local_files import LocalFile, LocalLock

lock, file = LocalLock({path!r} + "/lock"), LocalFile({path!r} + "/a", write=True)
lock.take()
sys.main = sys.modules["__main__"]  # as some debuggers and notebooks keep it: its globals go after the modules'
"""


@pytest.mark.long
def test_what_outlives_the_modules_at_exit_goes_without_a_word(tmp_path: pathlib.Path) -> None:
    """Regression: "Exception ignored in LocalLock.__del__", as the module os was gone already."""
    ended = run(AT_EXIT.format(path=str(tmp_path)))
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", ["x" * 300, "circle", "circle/a"])
def test_a_path_that_no_store_can_have(tmp_path: pathlib.Path, name: str) -> None:
    """Regression: it was said to mend the disk."""
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(StoreNotFoundError, match=r"(too long|symbolic links); name another path"):
        dr.ReplayBuffer.open(tmp_path / name)
    if name != "circle":
        with pytest.raises(WriteFailedError, match="nothing was made: choose another path and try again"):
            dr.ReplayBuffer.create(tmp_path / name, spaces.Discrete(2), spaces.Discrete(2), capacity=9)
    with pytest.raises((WriteFailedError, StoreExistsError)):
        dr.ReplayBuffer.open_or_create(tmp_path / name, spaces.Discrete(2), spaces.Discrete(2), capacity=9)


def test_a_link_in_the_place_of_a_file_is_named(path: str) -> None:
    with dr.ReplayBuffer.create(path, spaces.Discrete(2), spaces.Discrete(2), capacity=9) as buffer:
        buffer.add(0, 0, 0.0, 1, True, False)
    (shard,) = pathlib.Path(path, "streams/0/reward").glob("c.*")
    shard.symlink_to(shard.rename(path + ".elsewhere"))
    with pytest.raises(ReadFailedError, match=r"reward/c.0.0' failed: .*a store holds no symbolic links: put the file"):
        dr.ReplayBuffer.open(path, mode="r")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_creating_leaves_nothing_where_a_write_is_refused(path: str, number: int) -> None:
    """Regression: on a full disk a temporary directory stayed."""
    faulty, names = FaultyFiles(), ("open_write", "pwrite", "sync", "mkdir", "rename")
    made = path + ".first"
    dr.ReplayBuffer.create(made, spaces.Discrete(2), spaces.Discrete(2), capacity=9, files=faulty).close()
    last = [operation.target for operation in faulty.operations if operation.name in names].index(made)
    for count in [*range(0, last, 11), last]:
        faulty.fail_at(count, number, names, times=1)
        with pytest.raises(WriteFailedError, match="nothing was made"):
            dr.ReplayBuffer.create(path, spaces.Discrete(2), spaces.Discrete(2), capacity=9, files=faulty)
        assert [entry.name for entry in pathlib.Path(path).parent.iterdir()] == ["a.replay.first"]


@pytest.mark.parametrize("reads", [True, False])
def test_an_error_that_was_caught_keeps_nothing(reads: bool) -> None:
    """Regression: from Python 3.12 on only the garbage collector let go of a buffer of which a commit had failed."""

    @contextlib.contextmanager
    def block() -> Iterator[None]:
        with translate_reads("a") if reads else translate("writing", "a"):
            yield

    def fail(held: set[int]) -> None:
        with block():
            raise OSError(errno.EIO, f"with {held}")

    held = {1}
    reference = weakref.ref(held)
    gc.disable()
    try:
        with pytest.raises((ReadFailedError, WriteFailedError)) as caught:
            fail(held)
        cause = caught.value.__cause__
        assert cause is not None
        assert [frame.name for frame in traceback.extract_tb(cause.__traceback__)] == ["fail"]
        del held, caught, cause
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("sizes", [[], [0], [5], [0, 3, 0], [1 << 18], [1, 1 << 18, 2, 3], [300_000, 300_000, 1]])
def test_parts_of_any_size_are_written_one_behind_the_other(tmp_path: pathlib.Path, sizes: list[int]) -> None:
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    file = LocalFile(str(tmp_path / "file"), write=True)
    file.pwrite(parts, 7)
    assert file.pread(1 << 20, 0) == (b"".join([bytes(7), *parts]) if any(parts) else b"")
