"""Compiled code that a thread loads: once, while Python goes on, whatever forks or fails meanwhile."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import threading
import warnings
from typing import Any
from unittest import mock

import pytest
from helpers.patience import PATIENCE
from helpers.threads import together

import diskreplay
from diskreplay import loading
from diskreplay.errors import CompilerWarning
from diskreplay.loading import BackgroundImport

TESTS = pathlib.Path(__file__).parent


class Slow:
    """Gives 7 once :attr:`leave` is set; counts how often it was called."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        assert self.leave.wait(PATIENCE)
        return 7


@pytest.mark.own_thresholds
def test_python_goes_on_meanwhile() -> None:
    slow = Slow()
    late = BackgroundImport(slow)
    assert [late.begin() for _ in range(5)] == [None] * 5
    slow.leave.set()
    assert late.now() == late.begin() == late.code == 7
    assert slow.calls == 1
    assert not late.missing


def test_many_threads_begin_it_once() -> None:
    slow = Slow()
    late = BackgroundImport(slow)
    with mock.patch.object(loading, "IN_BACKGROUND", 1):
        together(*[late.begin] * 8)
    slow.leave.set()
    assert late.now() == 7
    assert slow.calls == 1


def test_one_that_ends_while_another_begins_is_enough() -> None:
    slow = Slow()
    slow.leave.set()
    late = BackgroundImport(slow)
    start = late._start

    def start_late() -> None:
        with mock.patch.object(late, "_start", start):
            assert late.now() == 7
        late.code = None
        start()

    with mock.patch.object(late, "_start", start_late):
        late.begin()
    assert late.now() == 7
    assert slow.calls == 1


@pytest.mark.parametrize("load", [lambda: None, lambda: [][0]], ids=["nothing", "an error"])
def test_what_cannot_be_had_is_asked_for_once(load: Any) -> None:
    calls = mock.Mock(side_effect=load)
    late = BackgroundImport[int](calls)
    assert [late.now() for _ in range(3)] == [None] * 3
    assert late.missing
    assert calls.call_count == 1


def test_where_memory_or_threads_lack_it_is_tried_again() -> None:
    late = BackgroundImport[int](mock.Mock(side_effect=[MemoryError, 7]))
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        assert late.now() is None
    assert late.now() == 7 or late.now() == 7  # the first call has no memory
    assert not late.missing


def test_a_fork_waits_until_it_is_there() -> None:
    slow = Slow()
    late = BackgroundImport(slow)
    with mock.patch.object(loading, "IN_BACKGROUND", 1):
        assert late.begin() is None
    threading.Timer(0.05, slow.leave.set).start()
    child = os.fork()
    if not child:
        os._exit(int(late.begin() != 7))
    assert os.waitpid(child, 0)[1] == 0
    assert late.begin() == 7


def test_a_fork_waits_no_longer_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "FORK_SECONDS", 0.02)
    monkeypatch.setattr(loading, "IN_BACKGROUND", 1)
    slow = Slow()
    late = BackgroundImport(slow)
    assert late.begin() is None
    child = os.fork()
    if not child:
        os._exit(int(late.now() is not None or not late.missing))
    assert os.waitpid(child, 0)[1] == 0
    slow.leave.set()
    assert late.now() == 7


def test_what_forks_while_it_is_loaded_gives_a_child_without() -> None:
    """As a library does that is imported: the fork cannot wait for itself."""
    found: list[int] = []

    def load() -> int:
        child = os.fork()
        if not child:
            os._exit(int(late.now() is not None or not late.missing))
        found.append(os.waitpid(child, 0)[1])
        return 7

    late = BackgroundImport(load)
    assert late.now() == 7
    assert found == [0]


@pytest.mark.parametrize("kept", [True, False])
def test_where_nothing_is_kept_it_is_said_once(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_unkept", False)
    monkeypatch.setattr(loading, "_told", False)

    def load() -> int:
        if not kept:
            loading.unkept()
        return 7

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert [BackgroundImport(load).now() for _ in range(3)] == [7] * 3
    assert [(warning.category, warning.filename) for warning in said] == [(CompilerWarning, __file__)] * (not kept)


# As programs of their own, with a copy of the package that keeps nothing yet

PROGRAM = """
import sys, warnings
import numpy as np
from diskreplay.engine import compiled_row
said = []
warnings.showwarning = lambda message, category, *_: said.append(category.__name__)
assert compiled_row.KERNEL.now() is not None
kernel = compiled_row.KERNEL.code
facts, given, ring = np.zeros((1, kernel.FACTS), np.int64), np.array([3, 4]), np.zeros((2, 2), np.int64)
facts[0, [kernel.GIVEN, kernel.PART, kernel.PARTS, kernel.RING]] = given.ctypes.data, 16, 1, ring.ctypes.data
assert kernel.add_continuing(facts, 0, 1, 2, False)
assert ring.tolist() == [[0, 0], [3, 4]], ring
print(sum(kernel.add_continuing.stats.cache_hits.values()), *said)
"""


@pytest.fixture
def installed(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the package lies, without anything that was kept beside it."""
    package = pathlib.Path(diskreplay.__file__).parent
    shutil.copytree(package, tmp_path / "site" / "diskreplay", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "site"


def started(site: pathlib.Path, **environment: str) -> subprocess.Popen[str]:
    removed = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "NUMBA_CPU_NAME")
    kept = {name: value for name, value in os.environ.items() if name not in removed}
    environment = {**kept, "PYTHONPATH": os.pathsep.join([str(site), *sys.path]), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, env=environment, cwd=site
    )


def result(process: subprocess.Popen[str]) -> list[str]:
    """How often code was found that was kept, and the warnings."""
    printed, _ = process.communicate()
    assert process.returncode == 0
    return printed.split()


def read_only(site: pathlib.Path) -> None:
    """Nothing can be written where Python and numba keep what they compile, not by the superuser either."""
    for folder in [site, *(path for path in site.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()


@pytest.mark.long
def test_a_read_only_installation(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    read_only(installed)
    assert result(started(installed, XDG_CACHE_HOME=str(tmp_path / "home"))) == ["0"]
    assert result(started(installed, XDG_CACHE_HOME=str(tmp_path / "home"))) == ["1"]  # kept for the account
    nowhere = str(installed / "__pycache__" / "nowhere")  # below a file
    assert result(started(installed, XDG_CACHE_HOME=nowhere, HOME=nowhere)) == ["0", "CompilerWarning"]


@pytest.mark.long("test_a_read_only_installation")
def test_processes_that_begin_at_once(installed: pathlib.Path) -> None:
    """On machines with different processors, which share what is kept."""
    kinds = [{}, {}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "generic"}]
    for process in [started(installed, **kind) for kind in kinds]:
        assert result(process)[1:] == []
    for kind in kinds[1:3]:
        assert result(started(installed, **kind)) == ["1"]
