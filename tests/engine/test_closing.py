"""Closing after a commit that failed: everything is given back, and it is said once what is lost."""

from __future__ import annotations

import errno
import gc
import itertools
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import line
from helpers.commits import settled
from helpers.line import add
from helpers.patience import PATIENCE
from helpers.robot import ACTION, Robot, walk
from helpers.testing import FaultyFiles, SimulatedDisk
from helpers.testing.faulty_objects import SimulatedObjects

import diskreplay as dr
from diskreplay.compat.frames import ReplayBuffer as Frames
from diskreplay.errors import ClosedError, DiskFullError, StateError, WriteFailedError
from diskreplay.ops.verify import verify

LOST = "{} rows since the last commit are lost"


def filled(path: Any, files: Any, rows: int = 3, more: int = 5, **options: Any) -> dr.ReplayBuffer[Any]:
    """A buffer of which ``rows`` are committed, and ``more`` are not."""
    buffer = line.create(path, files=files, **options)
    add(buffer, rows)
    buffer.commit()
    add(buffer, more)
    return buffer


def rows_of(path: Any) -> int:
    """The rows of a store that nobody holds any more."""
    assert verify(path).ok
    return line.rows_in(path, mode="r+")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_it_is_said_once_how_many_rows_are_lost(tmp_path: pathlib.Path, number: int, told: bool) -> None:
    files = FaultyFiles()
    buffer = filled(tmp_path / "a", files)
    files.fail_at(0, number)
    if told:
        with pytest.raises(WriteFailedError, match="the last commit is intact"):
            buffer.commit()
        with pytest.raises(StateError, match="must be reopened"):
            add(buffer, 1)
    with pytest.raises(WriteFailedError, match=f"{tmp_path}.*{LOST.format(5)}$") as caught:
        buffer.close()
    assert isinstance(caught.value, DiskFullError) == (number == errno.ENOSPC)
    assert caught.value.errno == number
    files.heal()
    buffer.close()
    with pytest.raises(ClosedError):
        add(buffer, 1, 0)
    assert rows_of(tmp_path / "a") == 3


@pytest.mark.parametrize("deed", ["facts", "later", "nothing", "checkpoint"])
def test_what_is_lost_beside_rows(tmp_path: pathlib.Path, deed: str) -> None:
    files = FaultyFiles()
    buffer = filled(tmp_path / "a", files, more=0, later={"x": "float32"})
    if deed == "facts":
        buffer.annotate_episode(success=True)
    elif deed == "later":
        buffer.write("x", [1], [0.5])
    files.fail_at(0)
    with pytest.raises(DiskFullError):
        buffer.checkpoint("one")
    if deed in ("facts", "later"):
        with pytest.raises(DiskFullError, match="; changes since the last commit are lost"):
            buffer.close()
    buffer.close()  # whose rows are all there
    files.heal()
    assert rows_of(tmp_path / "a") == 3


def block(files: FaultyFiles, opened: Any, deed: Callable[[], object]) -> BaseException:
    """The exception of a ``with`` block, in which the disk is full, and something is done."""
    try:
        with opened:
            files.fail_at(0)
            deed()
    except Exception as error:
        return error
    finally:
        files.heal()
    raise AssertionError("the block ended well")


def mine() -> None:
    raise KeyError("mine")


def test_what_ends_a_block_gets_it_as_a_note(tmp_path: pathlib.Path) -> None:
    files = FaultyFiles()
    buffers = [filled(tmp_path / name, files) for name in "abc"]
    other, same, alone = map(block, [files] * 3, buffers, (mine, buffers[1].commit, lambda: None))
    assert isinstance(other, KeyError)
    assert [LOST.format(5) in note for note in other.__notes__] == [True]
    assert other.__notes__[0].startswith("DiskFullError: ")
    assert other.__context__ is None
    assert isinstance(same, DiskFullError)
    assert LOST.format(5) not in str(same.strerror)
    assert [LOST.format(5) in note for note in same.__notes__] == [True]
    assert isinstance(alone, DiskFullError)
    assert LOST.format(5) in str(alone)
    assert not hasattr(alone, "__notes__")
    for buffer in buffers:
        buffer.close()
    assert [rows_of(tmp_path / name) for name in "abc"] == [3, 3, 3]


@pytest.mark.parametrize("full", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("deed", [mine, lambda: None], ids=["error", "none"])
def test_a_mixture_closes_all_parts(tmp_path: pathlib.Path, full: set[int], deed: Callable[[], object]) -> None:
    files = [FaultyFiles() for _ in range(3)]
    parts = [filled(tmp_path / str(number), files[number], more=number + 5) for number in range(3)]
    with dr.Mixture(parts) as mixture:
        for number in full:
            files[number].fail_at(0)
        error = block(FaultyFiles(), mixture, deed)
        assert isinstance(error, KeyError if deed is mine else DiskFullError)
        told = [*([] if deed is mine else [str(error)]), *getattr(error, "__notes__", ())]
        assert [LOST.format(number + 5) in text for number, text in zip(sorted(full, reverse=True), told, strict=True)]
        assert all(f"/{number}/streams" in text for number, text in zip(sorted(full, reverse=True), told, strict=True))
    for one in files:
        one.heal()
    assert [rows_of(tmp_path / str(number)) for number in range(3)] == [3 if n in full else n + 8 for n in range(3)]


@pytest.mark.parametrize("background", [False, True])
def test_a_recording_notes_it_too(path: str, background: bool) -> None:
    files = FaultyFiles()
    with dr.Record(Robot(50), path, background=background, files=files, commit_rows=4) as env:
        walk(env, 4)
        env.buffer.engine.settle()
        settled(env.buffer)

        def until_refused() -> None:
            while True:
                env.step(ACTION)
                env.buffer.engine.settle()
                settled(env.buffer)

        error = block(files, env, until_refused)
        assert isinstance(error, WriteFailedError)
        assert LOST.format(4) in error.__notes__[-1]
        assert ("were not recorded" in error.__notes__[0]) == background
    assert rows_of(path) == 4


def test_an_adapter_says_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Frames(10, 1, path=path)
    for value in range(4):
        buffer.store_effect(buffer.store_frame(np.full(3, value, np.uint8)), value, 0.0, False)
    buffer.commit()
    buffer.store_effect(buffer.store_frame(np.full(3, 4, np.uint8)), 1, 0.0, False)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("diskreplay.storage.local_files.LocalFile.pwrite", full)
        with pytest.raises(DiskFullError):
            buffer.commit()
    with pytest.raises(DiskFullError, match=r"\d rows since the last commit are lost"):
        buffer.close()
    buffer.close()
    assert rows_of(path) == 3


@pytest.mark.parametrize("told", [True, False], ids=["told", "untold"])
def test_a_forgotten_buffer_says_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """As finalizers do."""
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda it: raised.append(it.exc_value))
    files = FaultyFiles()
    buffer = filled(tmp_path / "a", files)
    files.fail_at(0)
    if told:
        with pytest.raises(DiskFullError):
            buffer.commit()
    del buffer
    gc.collect()
    assert [LOST.format(5) in str(error) for error in raised] == [True]
    files.heal()
    assert rows_of(tmp_path / "a") == 3


def test_what_pushes_ends_with_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, files = SimulatedObjects(), FaultyFiles()
    monkeypatch.setattr("diskreplay.remote.ObjectStore", lambda url: objects)
    buffer = filled(tmp_path / "a", files, remote="s3://simulated/a.replay")
    files.fail_at(0)
    with pytest.raises(DiskFullError, match=LOST.format(5)):
        buffer.close()
    buffer.close()
    pushing = buffer.engine.pushes.pushing
    assert pushing is not None
    for thread in threading.enumerate():
        if "push" in thread.name:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    files.heal()
    assert rows_of(tmp_path / "a") == 3


@pytest.mark.long
def test_every_place_at_which_a_disk_is_full() -> None:
    """Closing gives the stream to the next writer wherever the disk is full, and says what that one does not have."""
    for place in itertools.count():
        files = FaultyFiles(SimulatedDisk())
        buffer = filled("/a", files)
        files.fail_at(place)
        said = ""
        try:
            buffer.close()
        except DiskFullError as error:
            said = str(error)
        files.heal()
        buffer.close()
        with dr.ReplayBuffer.open("/a", files=files) as again:
            assert len(again) in (3, 8)
            if len(again) == 3:
                assert LOST.format(5) in said
        if not said:
            break
    assert place > 8
