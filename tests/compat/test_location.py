"""When the stores of other libraries' buffers are closed."""

from __future__ import annotations

import gc
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from compat.cases import CASES
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.compat.frames import ReplayBuffer
from diskreplay.errors import LockedError

SCRIPT = """
import os, sys
import numpy as np
from diskreplay.compat.frames import ReplayBuffer
buffer = ReplayBuffer(10, 1, path=sys.argv[1])
for value in range(5):
    buffer.store_effect(buffer.store_frame(np.full((90, 90, 1), value, np.uint8)), value, 0.0, False)
temporary = ReplayBuffer(10, 1)
temporary.store_frame(np.zeros(3, np.uint8))
print(temporary.store.path)
"""


def run(script: str, path: pathlib.Path) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout.strip()


@pytest.mark.long
def test_a_script_that_just_ends_has_committed(tmp_path: pathlib.Path) -> None:
    temporary = pathlib.Path(run(SCRIPT, tmp_path / "store"))
    assert not temporary.exists()
    assert not temporary.parent.exists()
    with dr.ReplayBuffer.open(tmp_path / "store", mode="r") as store:
        assert len(store) == 4


@pytest.mark.long
def test_a_forked_process_closes_and_removes_nothing(tmp_path: pathlib.Path) -> None:
    script = (
        SCRIPT
        + """
child = os.fork()
if not child:
    sys.exit()
assert os.waitpid(child, 0)[1] == 0
assert os.path.exists(temporary.store.path)
assert len(buffer.store.zarr()["streams/0/reward"][:].nonzero()[0]) == 0
buffer.store_effect(buffer.store_frame(np.full((90, 90, 1), 5, np.uint8)), 5, 1.0, False)
"""
    )
    run(script, tmp_path / "store")
    with dr.ReplayBuffer.open(tmp_path / "store", mode="r") as store:
        assert len(store) == 5


def fill(path: pathlib.Path | None, cycle: bool = False) -> pathlib.Path:
    """Makes a buffer with two rows, and forgets it."""
    buffer = ReplayBuffer(10, 1, path=path)
    for value in range(3):
        buffer.store_effect(buffer.store_frame(np.full(3, value, np.uint8)), value, 0.0, False)
    if cycle:
        ring = [buffer]
        ring.append(ring)  # type: ignore[arg-type]
    return pathlib.Path(buffer.store.path)


def test_a_store_is_closed_as_soon_as_its_buffer_is_forgotten(tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "store")
    with dr.ReplayBuffer.open(tmp_path / "store") as store:
        assert len(store) == 2


@pytest.mark.long
def test_a_store_whose_buffer_was_collected_can_be_opened(tmp_path: pathlib.Path) -> None:
    gc.disable()
    try:
        fill(tmp_path / "store", cycle=True)
        with pytest.raises(LockedError):
            dr.ReplayBuffer.open(tmp_path / "store")
        gc.collect()
    finally:
        gc.enable()
    buffer = ReplayBuffer(10, 1, path=tmp_path / "store")
    assert buffer.num_in_buffer == 2
    buffer.close()


@pytest.mark.long(quick=4)
@pytest.mark.parametrize("name", CASES)
def test_a_temporary_store_goes_with_its_buffer(name: str) -> None:
    case = CASES[name]
    buffer = case.make(None)
    case.do(buffer, *case.steps(np.random.default_rng(0), buffer)[0])
    store = buffer.store if isinstance(getattr(buffer, "store", None), dr.ReplayBuffer) else buffer.engine
    folder = pathlib.Path(store.path).parent
    assert folder.exists()
    del buffer, store
    gc.collect()
    assert not folder.exists()


@pytest.mark.long
def test_a_collected_buffers_temporary_store_goes() -> None:
    store = fill(None, cycle=True)
    gc.collect()
    ReplayBuffer(10, 1)
    assert not store.parent.exists()
