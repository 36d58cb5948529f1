"""Programs that never close their buffer lose no row when they end normally, and none of their parents' when forked."""

from __future__ import annotations

import ctypes
import gc
import pathlib
import subprocess
import sys
import textwrap
import warnings
import weakref

import pytest
from helpers import line, programs
from helpers.crashes import uncollected
from helpers.line import rows_in
from helpers.patience import PATIENCE
from helpers.testing import Crash, FaultyFiles
from helpers.threads import held

import diskreplay as dr
from diskreplay.engine import lifetime
from diskreplay.errors import LockedError, WriteFailedError
from diskreplay.ops.verify import verify
from diskreplay.process import lifecycle
from diskreplay.storage.local_files import LocalFiles

ROWS = 777

HEAD = """
import os, sys, threading
import numpy as np
import diskreplay as dr
from helpers.line import LINE, TURN, add, create, rows_in

path = sys.argv[1]

def filled(rows=777, name="", **more):
    rb = create(path + name, 1000, **more)
    add(rb, rows)
    return rb

def slow_disk():  # a commit that was begun is still being written when the program goes on
    import time
    from diskreplay.storage.local_files import LocalFile
    sync = LocalFile.sync
    LocalFile.sync = lambda file: (time.sleep(0.1), sync(file))

def kept():
    assert rows_in(path, mode="r+") == 777
"""


def run(script: str, path: str, *options: str, status: int = 0, errors: str = "") -> str:
    """Runs a program to its end; what it wrote to stderr must hold ``errors``, and be nothing where that is empty."""
    done = programs.run(HEAD + textwrap.dedent(script), path, flags=options)
    assert done.returncode == status, done.stderr
    assert errors in done.stderr, done.stderr
    assert bool(errors) == bool(done.stderr), done.stderr
    return done.stderr


def rows_of(path: str) -> int:
    assert verify(path).ok
    return rows_in(path)


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        "rb = filled()",
        "rb = filled(); del rb; kept()",
        "filled(); kept()",
        "rb = filled(); rb.commit(); add(rb, 0)",
        "ring = [filled()]; ring.append(ring); del ring; import gc; gc.collect(); kept()",
        "ring = [filled()]; ring.append(ring); del ring",
        "rb = filled(); rb.me = rb; del rb; import gc; gc.collect()",
        "thread = threading.Thread(target=filled); thread.start(); thread.join(); kept()",
        """
        rb = filled(700)
        late = threading.Timer(0.3, add, (rb, 77))  # no daemon: it ends before the interpreter
        late.start()
        """,
        "slow_disk(); rb = filled(commit_rows=776)",
        "slow_disk(); rb = filled(commit_rows=776); del rb; kept()",
        "slow_disk(); rb = filled(770, commit_rows=100); add(rb, 7)",
        """
        rb = filled(776)
        added, never = threading.Event(), threading.Event()
        def work():
            add(rb, 1)
            added.set()
            never.wait()
        threading.Thread(target=work, daemon=True).start()
        added.wait()
        """,
        """
        rb = filled()
        loader = rb.loader(8)
        next(loader)
        """,
        """
                def late():  # registered before the buffer was made, so called after it was committed
            add(late.rb, 7)
            late.rb.close()
        atexit.register(late)
        late.rb = filled(770)
        """,
        """
        import tempfile
        folder = tempfile.TemporaryDirectory()
        rb = filled()
        other = create(folder.name + "/other", 10)
        add(other, 3)
        """,
        """
        import shutil
        gone = filled(5, name=".gone")
        rb = filled()
        shutil.rmtree(path + ".gone")
        """,
    ],
)
def test_a_program_that_ends_without_closing_keeps_every_row(path: str, script: str) -> None:
    run(script, path)
    assert rows_of(path) == ROWS


@pytest.mark.long
@pytest.mark.parametrize(
    ("end", "status", "errors"),
    [
        ("sys.exit(3)", 3, ""),
        ("\ndef work(): raise KeyError('mine')\nwork()", 1, "KeyError"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt"),
    ],
    ids=["exit", "error", "interrupt"],
)
def test_the_status_and_the_traceback_stay(path: str, end: str, status: int, errors: str) -> None:
    said = run(f"rb = filled(); {end}", path, status=status, errors=errors)
    assert rows_of(path) == ROWS
    if status == 1:
        assert said.count("Traceback") == 1
        assert said.endswith("KeyError: 'mine'\n")


@pytest.mark.long
def test_where_nothing_is_lost_there_is_no_warning(path: str) -> None:
    run("rb = filled(); two = filled(name='2'); two.close()", path, "-W", "error")
    assert rows_of(path) == rows_of(f"{path}2") == ROWS


@pytest.mark.long
def test_rollouts_and_several_agents(path: str) -> None:
    run("""
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
        del agents[1]
    """, path)  # fmt: skip
    for kind, name in (
        (dr.RolloutBuffer, path), (dr.MultiAgentReplayBuffer, f"{path}-0"), (dr.MultiAgentRolloutBuffer, f"{path}-1")
    ):  # fmt: skip
        with kind.open(name, mode="r") as buffer:
            assert len(buffer) == ROWS


@pytest.mark.long
@pytest.mark.parametrize("end", ["sys.exit()", "os._exit(0)", "del rb; sys.exit()"])
def test_a_forked_child_commits_nothing_of_its_parents(path: str, end: str) -> None:
    run(f"""
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        rb = filled(700)
        child = os.fork()
        if not child:
            {end}
        assert os.waitpid(child, 0)[1] == 0
        assert rb.stats()["streams"]["0"]["committed"] == 0
        assert rows_in(path) == 0
        add(rb, 77)
    """, path)  # fmt: skip
    assert rows_of(path) == ROWS


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_a_child_of_multiprocessing_keeps_what_it_wrote_itself(path: str, tmp_path: pathlib.Path, method: str) -> None:
    main = tmp_path / "main.py"
    main.write_text(
        f"import sys; sys.path.append({programs.TESTS!r})\n"
        + HEAD
        + textwrap.dedent("""
        import multiprocessing, warnings

        def work():
            global rb
            rb = filled()

        if __name__ == "__main__":
            warnings.simplefilter("ignore", DeprecationWarning)
            child = multiprocessing.get_context(sys.argv[2]).Process(target=work)
            child.start()
            child.join()
            assert child.exitcode == 0
    """)
    )
    done = subprocess.run([sys.executable, str(main), path, method], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr, rows_of(path)) == (0, "", ROWS)


@pytest.mark.long
def test_what_was_committed_survives_os_exit(path: str) -> None:
    run("rb = filled(700); rb.commit(); add(rb, 77); os._exit(0)", path)
    assert rows_of(path) == 700
    run("""
        from diskreplay.storage.local_files import LocalFiles
        from helpers.testing import FaultyFiles
        files = FaultyFiles(LocalFiles())
        rb = filled(700, name="2", files=files)
        rb.commit()
        add(rb, 77)
        files.fail_at(0)
        try:
            rb.commit()
        except dr.errors.DiskFullError:
            files.heal()
    """, path, errors="77 rows since the last commit are lost")  # fmt: skip
    assert rows_of(f"{path}2") == 700


@pytest.mark.long
def test_a_commit_that_failed_beside_the_program_is_said_at_its_end(path: str) -> None:
    run("""
        from diskreplay.storage.local_files import LocalFiles
        from helpers.testing import FaultyFiles
        files = FaultyFiles(LocalFiles())
        rb = filled(700, files=files, commit_rows=77)
        rb.commit()
        files.fail_at(0)
        add(rb, 77)
    """, path, errors="77 rows since the last commit are lost")  # fmt: skip
    assert rows_of(path) == 700


@pytest.mark.long
def test_a_full_disk_at_the_end_stops_one_buffer_alone(path: str) -> None:
    run("""
        from diskreplay.storage.local_files import LocalFiles
        from helpers.testing import FaultyFiles
        one = filled(name="1")
        files = FaultyFiles(LocalFiles())
        full = filled(name="2", files=files)
        two = filled(name="3")
        files.fail_at(0)
    """, path, errors="DiskFullError")  # fmt: skip
    assert [rows_of(f"{path}{name}") for name in "123"] == [ROWS, 0, ROWS]


# In this process


def filled(path: str | pathlib.Path, rows: int = 7, **options: object) -> dr.ReplayBuffer:
    buffer = line.create(path, **options)
    line.add(buffer, rows)
    return buffer


def test_rows_of_a_store_that_was_removed_are_a_resource_warning(path: str) -> None:
    buffer = filled(path)
    pathlib.Path(path).rename(f"{path}.away")
    raised: list[BaseException | None] = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(sys, "unraisablehook", lambda hook: raised.append(hook.exc_value))
        del buffer
    assert [type(error) for error in raised] == [ResourceWarning]
    assert f"{path!r} was not closed, and 7 rows are lost" in str(raised[0])
    dr.ReplayBuffer.open(f"{path}.away").close()


def test_a_failed_write_of_a_forgotten_buffer_is_said(path: str) -> None:
    files = FaultyFiles(LocalFiles())
    buffer = filled(path, files=files)
    files.fail_at(0, 5)
    raised: list[BaseException | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda hook: raised.append(hook.exc_value))
        del buffer
    assert [type(error) for error in raised] == [WriteFailedError]
    dr.ReplayBuffer.open(path).close()


def test_a_buffer_of_a_simulated_process_that_died_does_nothing(path: str) -> None:
    files = FaultyFiles(LocalFiles())
    buffer = filled(path, files=files)
    files.crash_at(0, names=["list"])
    with pytest.raises(Crash):
        files.list(path)
    del buffer
    assert rows_of(path) == 0


@pytest.mark.long
def test_what_the_collector_finds_waits_until_a_store_is_opened(path: str, tmp_path: pathlib.Path) -> None:
    """It may run while this very thread holds the locks that a commit needs."""
    filled(tmp_path / "other").close()
    with uncollected():
        files = FaultyFiles(LocalFiles())
        ring: list[object] = [filled(path, files=files)]
        ring.append(ring)
        del ring
        files.heal()
        with files._ask:  # no lock that can be taken twice
            gc.collect()
        assert files.operations == []
    with pytest.warns(ResourceWarning, match="was not closed; now it is"):
        dr.ReplayBuffer.open(tmp_path / "other", mode="r").close()
    assert rows_of(path) == 7


def test_an_interrupt_in_a_collection_is_not_lost() -> None:
    """The function that watched the collector got the KeyboardInterrupt, and a collector's callback raises none."""
    interrupt = ctypes.PYFUNCTYPE(None, ctypes.py_object, ctypes.py_object)(("PyErr_SetInterrupt", ctypes.pythonapi))
    ours = [callback for callback in gc.callbacks if callback == lifecycle._phases.move_to_end]
    assert len(ours) == 1
    before = gc.callbacks[:]
    gc.collect()  # what it finds may have finalizers, in Python
    gc.callbacks[:] = [interrupt, *ours]  # those of others may be in Python, too
    try:
        with pytest.raises(KeyboardInterrupt):
            gc.collect()
    finally:
        gc.callbacks[:] = before


def test_a_closed_buffer_leaves_nothing_to_be_done(path: str) -> None:
    buffer = filled(path)
    engine = weakref.ref(buffer.engine)
    buffer.close()
    del buffer
    assert engine() is None


def test_a_thread_with_the_lock_does_not_keep_the_interpreter(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "EXIT_SECONDS", 0.01)
    buffer = filled(path)
    with held(buffer.engine.write_lock), pytest.warns(ResourceWarning, match="7 rows are lost: a thread still holds"):
        lifetime._end(buffer.engine, True)
    with pytest.raises(LockedError):
        dr.ReplayBuffer.open(path)
    buffer.close()
