"""Ends of programs without ``close``, beside those of the contract: kinds of buffers, disks, locks, moved stores."""

from __future__ import annotations

import pathlib
import sys
import warnings
from typing import Any

import pytest
from helpers import line, programs
from helpers.line import rows_in
from helpers.testing import FaultyFiles
from helpers.threads import held

import diskreplay as dr
from diskreplay.engine import lifetime
from diskreplay.errors import LockedError, WriteFailedError
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles

ROWS = 777
HEAD = """
import sys, tempfile
import numpy as np
import diskreplay as dr
from diskreplay.storage.local_files import LocalFiles
from helpers.line import LINE, TURN, add, create
from helpers.testing import FaultyFiles

path = sys.argv[1]

def filled(name="", rows=777, **more):
    rb = create(path + name, 1000, **more)
    add(rb, rows)
    return rb
"""


def run(script: str, path: str, *flags: str) -> str:
    """What a program that ends well says to stderr."""
    done = programs.run(HEAD + script, path, flags=flags)
    assert done.returncode == 0, done.stderr
    return str(done.stderr)


def rows_of(path: str) -> int:
    assert verify(path).ok
    return rows_in(path)


@pytest.mark.long
def test_each_kind_of_buffer_keeps_every_row_without_a_word(path: str) -> None:
    """Temporary directories are removed after that."""
    script = """
rollout = dr.RolloutBuffer.create(path, LINE, TURN, steps=900, commit_seconds=1e9)
add(rollout, 777, value=0.0, log_prob=0.0)
both = (np.zeros((2, 1), np.float32), [0, 0], 0.0, np.zeros((2, 1), np.float32), False, False)
agents = [
    kind.create(f"{path}-{at}", LINE, TURN, 2, **size, commit_seconds=1e9)
    for at, (kind, size) in enumerate(
        [(dr.MultiAgentReplayBuffer, {"capacity": 900}), (dr.MultiAgentRolloutBuffer, {"steps": 900})]
    )
]
for _ in range(777):
    agents[0].add(*both)
    agents[1].add(*both, value=np.zeros(2), log_prob=np.zeros(2))
folder = tempfile.TemporaryDirectory()
other = create(folder.name + "/other", 10)
add(other, 3)
"""
    assert run(script, path, "-Werror", "-Wignore:Implicitly") == ""
    kinds: tuple[Any, ...] = dr.RolloutBuffer, dr.MultiAgentReplayBuffer, dr.MultiAgentRolloutBuffer
    for kind, name in zip(kinds, (path, f"{path}-0", f"{path}-1"), strict=True):
        with kind.open(name, mode="r") as buffer:
            assert len(buffer) == ROWS


@pytest.mark.long
def test_a_full_disk_at_the_end_stops_one_buffer_alone(path: str) -> None:
    """And so does a commit that failed before, of which the program was told."""
    script = """
first, full, last = filled("1"), filled("2", files=(disk := FaultyFiles(LocalFiles()))), filled("3")
failed = filled("4", rows=700, files=(other := FaultyFiles(LocalFiles())))
failed.commit()
add(failed, 77)
other.fail_at(0)
try:
    failed.commit()
except dr.errors.DiskFullError:
    other.heal()
disk.fail_at(0)
"""
    said = run(script, path)
    assert "DiskFullError" in said
    assert "77 rows since the last commit are lost" in said
    assert [rows_of(f"{path}{name}") for name in "1234"] == [ROWS, 0, ROWS, 700]


@pytest.mark.long
@pytest.mark.parametrize("then", ["", "del rb", "add(rb, 7)"])
def test_a_commit_that_is_still_being_written_comes_first(path: str, then: str) -> None:
    script = f"""
import time
from diskreplay.storage.local_files import LocalFile
sync = LocalFile.sync
LocalFile.sync = lambda file: (time.sleep(0.1), sync(file))
rb = filled(rows={777 - 7 * then.startswith("add")}, commit_rows=100)
{then}
"""
    assert run(script, path) == ""
    assert rows_of(path) == ROWS


@pytest.mark.long
def test_a_commit_that_failed_beside_the_program_is_said_at_its_end(path: str) -> None:
    script = """
rb = filled(rows=700, files=(disk := FaultyFiles(LocalFiles())), commit_rows=77)
rb.commit()
disk.fail_at(0)
add(rb, 77)
"""
    assert "77 rows since the last commit are lost" in run(script, path)
    assert rows_of(path) == 700


def forgotten(buffers: list[dr.ReplayBuffer]) -> list[BaseException | None]:
    """What Python prints where the last reference to a buffer is dropped."""
    raised: list[BaseException | None] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(sys, "unraisablehook", lambda hook: raised.append(hook.exc_value))
        buffers.clear()
    return raised


def filled(path: str, **options: object) -> dr.ReplayBuffer:
    buffer = line.create(path, **options)
    line.add(buffer, 7)
    return buffer


def test_rows_of_a_store_that_was_moved_are_a_resource_warning(path: str) -> None:
    buffers = [filled(path)]
    pathlib.Path(path).rename(f"{path}.away")
    (raised,) = forgotten(buffers)
    assert type(raised) is ResourceWarning
    assert f"{path!r} was not closed, and 7 rows are lost" in str(raised)
    dr.ReplayBuffer.open(f"{path}.away").close()


def test_a_failed_write_of_a_forgotten_buffer_is_said(path: str) -> None:
    files = FaultyFiles(LocalFiles())
    buffers = [filled(path, files=files)]
    files.fail_at(0, 5)
    assert [type(error) for error in forgotten(buffers)] == [WriteFailedError]
    dr.ReplayBuffer.open(path).close()


def test_a_thread_with_the_lock_does_not_keep_the_interpreter(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "EXIT_SECONDS", 0.01)
    buffer = filled(path)
    with held(buffer.engine.write_lock), pytest.warns(ResourceWarning, match="7 rows are lost: a thread still holds"):
        lifetime._end(buffer.engine, True)
    with pytest.raises(LockedError):
        dr.ReplayBuffer.open(path)
    buffer.close()


@pytest.mark.long
def test_an_interrupt_in_a_collection_is_not_lost() -> None:
    """A callback of the collector that is Python would get the KeyboardInterrupt, and lose it."""
    script = """
import ctypes, gc
others = gc.callbacks[:]
import diskreplay.process.lifecycle
interrupt = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object)(("PyErr_SetInterrupt", ctypes.pythonapi))
gc.callbacks[:] = [interrupt, *gc.callbacks[len(others):]]
try:
    gc.collect()
    print("lost")
except KeyboardInterrupt:
    gc.callbacks.clear()
"""
    done = programs.run(script)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
