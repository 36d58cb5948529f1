"""Systems that are not Linux, faked by taking away what they lack."""

from __future__ import annotations

import pathlib

import pytest
from helpers.programs import run

from diskreplay.storage.files import THIS_PROCESS
from diskreplay.storage.local_files import LocalFiles

WINDOWS = """
import sys
sys.modules.update(fcntl=None, resource=None)
"""


@pytest.mark.parametrize(
    "use", ["import diskreplay", "import diskreplay.errors", "from diskreplay.compat import frames"]
)
def test_windows_is_told_of_wsl_at_import(use: str) -> None:
    done = run(WINDOWS + use)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: diskreplay runs on Linux and macOS")
    assert "on Windows use it within WSL (https://learn.microsoft.com/windows/wsl/install)" in last


def test_windows_is_told_of_wsl_by_the_command_in_one_line() -> None:
    done = run(WINDOWS + "from diskreplay_cli.start import main; main()")
    assert done.returncode == 1
    assert done.stderr.startswith("diskreplay: diskreplay runs on Linux and macOS")
    assert done.stderr.count("\n") == 1


MACOS = """
import builtins, io, os, pathlib, resource, signal, sys, tempfile

LINUX = [
    "posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity", "fdatasync", "copy_file_range",
    "memfd_create", "eventfd", "pidfd_open", "splice", "getrandom", "preadv", "pwritev", "O_TMPFILE", "O_DIRECT",
]
for name in dir(os):
    if name in LINUX or name.startswith(("POSIX_FADV_", "RWF_", "MFD_", "EFD_", "SPLICE_", "SCHED_")):
        delattr(os, name)
tempfile._O_TMPFILE_WORKS = False  # as it finds when it is imported there
del resource.prlimit, signal.sigtimedwait, signal.sigwaitinfo

def without_proc(function):
    def called(path, *args, **kwargs):
        if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(("/proc", "/sys")):
            raise FileNotFoundError(2, "No such file or directory", path)
        return function(path, *args, **kwargs)
    return called

for module, names in (builtins, ["open"]), (io, ["open"]), (os, ["open", "listdir", "scandir", "stat", "readlink"]):
    for name in names:
        setattr(module, name, without_proc(getattr(module, name)))
"""
"""Takes away what macOS lacks. It cannot fake another libc, nor another file system."""

EVERYDAY = """
import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import LockedError
from diskreplay_cli.main import main

sys.path.append(sys.argv[3])
from helpers.testing import small_thresholds

path, again = sys.argv[1:3]
camera, buttons = spaces.Box(0, 255, (40, 40), np.uint8), spaces.Discrete(3)
with small_thresholds():
    rb = dr.ReplayBuffer.create(path, camera, buttons, capacity=50, frame_stack=4, sampler=dr.Proportional(), seed=0)
    for step in range(80):
        frame = np.full((40, 40), step, np.uint8)
        rb.add(frame, step % 3, step, frame + 1, False, step % 80 == 79)
    rb.checkpoint("best")
    drawn = rb.sample(16)
    with dr.open(path) as reader:
        assert len(reader) == 50
        assert (reader.get(drawn.index).obs == drawn.obs).all()
        assert sum(len(batch) for batch in reader.shuffled(16)) == 50
        if (child := os.fork()) == 0:
            os._exit(0 if len(reader.sample(8)) == 8 else 1)
        assert os.waitpid(child, 0)[1] == 0
    try:
        dr.ReplayBuffer.open(path)
    except LockedError as error:
        assert "being written by this very process" in str(error), error
    if (child := os.fork()) == 0:
        try:
            dr.ReplayBuffer.open(path)
        except LockedError as error:
            os._exit(0 if "being written by another process" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    rb.close()
    with dr.ReplayBuffer.open(path, checkpoint="best") as rb:
        assert (rb.sample(16).index == drawn.index).all()
    for args in (
        ["inspect", path], ["verify", path], ["episodes", path],
        ["show", path, "-o", f"{path}.png"], ["report", path, "-o", f"{path}.html"],
        ["export", path, f"{path}.hdf5", "--allow-loss"], ["import", f"{path}.hdf5", again],
    ):
        try:
            main(args)
        except SystemExit as ended:
            assert not ended.code, (args, ended.code)
"""


@pytest.mark.long
def test_macos(tmp_path: pathlib.Path) -> None:
    arguments = [str(tmp_path / "a.replay"), str(tmp_path / "b.replay"), str(pathlib.Path(__file__).parent)]
    done = run(MACOS + EVERYDAY, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert pathlib.Path(arguments[1], "zarr.json").exists()


def test_a_holder_that_the_system_does_not_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where there is no /proc/locks; in this process it is known all the same."""

    def missing(path: pathlib.Path) -> str:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(pathlib.Path, "read_text", missing)
    lock = LocalFiles().lock(str(tmp_path / "lock"))
    assert lock is not None
    assert LocalFiles().lock_holder(str(tmp_path / "lock")).startswith(THIS_PROCESS)
    lock.release()
    assert LocalFiles().lock_holder(str(tmp_path / "lock")) == "another process"
