"""Where the tests' files lie: in RAM in the quick form, where there is room; a plugin of pytest.

The disk is a tenth of the quick form's processor time, and waits come on top; no test cuts the power (``fsync`` is left
out too). ``make exhaustive`` works on the disk, and so does whoever sets ``TMPDIR``. What a run left that failed, or
that was killed, can be looked at until the next run begins.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import tempfile

import pytest
from helpers import effort

RAM = pathlib.Path("/dev/shm")
PREFIX = "diskreplay-tests-"
LOCK = ".lock"
"""A run holds this file of its folder until its process ends, however it ends."""
NEEDED_BYTES = 1 << 31

_made: pathlib.Path | None = None
"""The folder of this run, in the process that began it."""
_passed = False


def has_room(folder: pathlib.Path, meminfo: pathlib.Path = pathlib.Path("/proc/meminfo")) -> bool:
    """Whether a file system in RAM, where programs can be run too, has enough room, and RAM has it."""
    try:
        found = os.statvfs(folder)
        lines = meminfo.read_text().splitlines()
        free = min(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return False
    runs = not found.f_flag & getattr(os, "ST_NOEXEC", 0)
    return runs and min(free, found.f_bavail * found.f_frsize) >= NEEDED_BYTES and os.access(folder, os.W_OK)


def hold(folder: pathlib.Path) -> int | None:
    """Take a run's folder; None where its run is alive."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def remove_leftovers(folder: pathlib.Path) -> None:
    """Remove the folders of runs that have ended."""
    for left in folder.glob(PREFIX + "*"):
        try:
            descriptor = hold(left)
        except OSError:  # another user's, or gone
            continue
        if descriptor is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)


def pytest_configure() -> None:
    """Processes that are started from here on, those of pytest-xdist too, get the same folder."""
    global _made
    if not effort.SAMPLED or os.environ.get("TMPDIR"):
        return
    remove_leftovers(RAM)
    if has_room(RAM):
        _made = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX, dir=RAM))
        hold(_made)
        os.environ["TMPDIR"] = str(_made)
        tempfile.tempdir = None  # which may have been asked for before


def pytest_report_header() -> str:
    return f"files: in {tempfile.gettempdir()} (TMPDIR=... elsewhere)"


def pytest_sessionfinish(exitstatus: int) -> None:
    global _passed
    _passed = exitstatus == pytest.ExitCode.OK


def pytest_unconfigure() -> None:
    """RAM is given back; what a test left that failed can be looked at."""
    if _made is not None and _passed:
        shutil.rmtree(_made, ignore_errors=True)
