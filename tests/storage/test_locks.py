"""Locks are of files: missing, removed, replaced and copied ones, and a second writer that comes by another mount."""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from helpers import line
from helpers.damage import files_below
from helpers.line import add, rows_in
from helpers.patience import PATIENCE
from helpers.testing import FaultyFiles, Operation

import diskreplay as dr
from diskreplay.errors import LockedError, StateError
from diskreplay.ops.verify import verify
from diskreplay.storage import temporaries
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.stream import lock_holder

LOCK, STORE_LOCK = "streams/0/start/lock", "streams/0/start/store-lock"


def locks(path: str | pathlib.Path) -> set[str]:
    return {name for name in files_below(path) if name.endswith("lock")}


def test_a_missing_lock_is_made_by_who_writes_and_by_nobody_else(path: str) -> None:
    line.create(path).close()
    assert locks(path) == {LOCK, STORE_LOCK}
    for name in (LOCK, STORE_LOCK):
        pathlib.Path(path, name).unlink()
    pathlib.Path(path, "lock").touch()  # as who made the store left it, if killed
    assert rows_in(path) == 0
    assert verify(path).ok
    assert lock_holder(LocalFiles(), f"{path}/streams/0") == "another process"
    assert locks(path) == {"lock"}
    with dr.ReplayBuffer.open(path, stream="b"), dr.ReplayBuffer.open(path), pytest.raises(LockedError):
        dr.ReplayBuffer.open(path)
    assert locks(path) == {LOCK, STORE_LOCK, "streams/b/start/lock"}


def replace(lock: pathlib.Path) -> None:
    lock.rename(f"{lock}.old")
    lock.touch()


@pytest.mark.parametrize("change", [pathlib.Path.unlink, replace])
def test_a_writer_whose_lock_is_another_file_writes_nothing(path: str, change: Callable[[pathlib.Path], None]) -> None:
    buffer = line.create(path)
    add(buffer, 5)
    buffer.commit()
    add(buffer, 2)
    change(pathlib.Path(path, LOCK))
    for deed in (buffer.commit, lambda: buffer.checkpoint("new"), buffer.close):
        with pytest.raises(StateError, match=r"moved, removed or replaced .* 2 rows are in no commit"):
            deed()
    with dr.ReplayBuffer.open(path) as other:
        add(other)
    assert rows_in(path) == 6


def test_a_copied_lock_locks_nothing_and_a_link_to_the_store_is_the_same_lock(path: str) -> None:
    with line.create(path) as buffer:
        shutil.copytree(path, path + ".copy")
        pathlib.Path(path + ".link").symlink_to(path)
        dr.ReplayBuffer.open(path + ".copy").close()
        with pytest.raises(LockedError):
            dr.ReplayBuffer.open(path + ".link")
        buffer.commit()


# A store that is being made


def test_a_temporary_directory_without_a_lock_goes_and_a_locked_one_stays(path: str) -> None:
    place = pathlib.Path(path)
    temporary = place.with_name(f".{place.name}.tmp-{'0' * 16}")
    for held in (False, True):
        (temporary / "streams").mkdir(parents=True)
        taken = LocalFiles().lock(str(temporary / "lock")) if held else None
        line.create(path).close()
        assert temporary.exists() == held == (taken is not None)
        shutil.rmtree(path)


def test_a_maker_whose_directory_went_begins_anew(path: str) -> None:
    """Another process found it without a lock: it is removed, or about to be."""
    files, place = FaultyFiles(), pathlib.Path(path)
    gone: list[pathlib.Path] = []
    held: list[object] = []

    def decide(operation: Operation) -> None:
        if operation.name == "lock" and ".tmp-" in operation.path and len(gone) < 2:
            gone.append(pathlib.Path(operation.path).parent)
            if len(gone) == 1:
                shutil.rmtree(gone[0])
            else:
                held.append(LocalFiles().lock(operation.path))

    files.decide = decide
    line.create(path, files=files).close()
    assert len(set(gone)) == 2
    assert verify(path).ok
    held.clear()
    temporaries.sweep(LocalFiles(), str(place.parent), place.name)
    assert list(place.parent.iterdir()) == [place]


def test_the_lock_of_a_file_that_was_removed_meanwhile_is_none(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who removes a temporary directory would empty the one that its maker has just begun."""
    flock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        pathlib.Path(path).unlink()
        pathlib.Path(path).touch()
        flock(fd, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", late)
        assert LocalFiles().lock(path) is None
    assert LocalFiles().lock(path) is not None


# Another mount


@contextlib.contextmanager
def mounted(source: pathlib.Path, place: pathlib.Path) -> Iterator[pathlib.Path]:
    """Another mount of a directory, which hands locks of files on, as some network file systems do."""
    place.mkdir()
    if not (shutil.which("bindfs") and shutil.which("fusermount")):
        pytest.skip("no bindfs here: nothing mounts a directory a second time without root")
    command = ["bindfs", "--multithreaded", "--enable-lock-forwarding", str(source), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        pytest.skip(f"bindfs mounts nothing here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["fusermount", "-u", "-z", str(place)], check=True)


def test_a_second_writer_by_another_mount_is_refused(tmp_path: pathlib.Path) -> None:
    """Regression: locks of directories were each mount's own, so both wrote, and the store could not be read."""
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", tmp_path / "one") as one, mounted(tmp_path / "disk", tmp_path / "two") as two:
        with line.create(one / "a.replay"):
            for place in (two, tmp_path / "disk"):
                with pytest.raises(LockedError, match="is being written by"):
                    dr.ReplayBuffer.open(place / "a.replay")
        dr.ReplayBuffer.open(two / "a.replay").close()
